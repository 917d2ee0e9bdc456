"""Speed and memory on one NVIDIA GPU, beside PyJuice: `python -m bench.gpu`."""
