"""Without Triton, modules that need it are skipped."""

import importlib.util
from pathlib import Path

import pytest


class _WithoutTriton(pytest.Module):
    def collect(self):
        pytest.skip("Triton is not installed (it is there for Linux only)", allow_module_level=True)


def _needs_triton(module: Path) -> bool:
    return module.parent.name == "interpreted" or module.name.startswith(
        ("test_compile", "test_interpreted")
    )


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector):
    if _needs_triton(module_path) and importlib.util.find_spec("triton") is None:
        return _WithoutTriton.from_parent(parent, path=module_path)
    return None
