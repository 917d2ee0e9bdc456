"""Benchmarks: `python -m bench.cpu`. Results are in bench/results."""
