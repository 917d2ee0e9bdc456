"""Settings of the whole test suite.

The library itself never touches JAX's global configuration; its tests make JAX as strict as it
gets, so that an implicit cast in the library is an error here.
"""

import jax
import pytest

jax.config.update("jax_numpy_dtype_promotion", "strict")


def _has_gpu() -> bool:
    return any(device.platform == "gpu" for device in jax.devices())


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skips tests with the marker `gpu` where JAX sees no GPU."""
    del config
    gpu_items = [item for item in items if "gpu" in item.keywords]
    if gpu_items and not _has_gpu():
        skip = pytest.mark.skip(reason="JAX sees no GPU")
        for item in gpu_items:
            item.add_marker(skip)
