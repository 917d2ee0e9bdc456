"""jaxjuice on a CPU, beside other libraries: `python -m bench.cpu`."""
