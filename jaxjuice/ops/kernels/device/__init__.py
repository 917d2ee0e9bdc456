"""The kernels themselves, in Triton: imported only where they run."""
