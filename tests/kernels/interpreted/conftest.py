"""The tests here run in Triton's interpreter, which takes a process of its own.

`../test_interpreted.py` starts one for each file of this folder. Called by hand, for nothing but
files of this folder, pytest becomes one itself.
"""

import os
from pathlib import Path

import pytest

_FOLDER = Path(__file__).parent


def pytest_configure(config: pytest.Config) -> None:
    paths = [Path(config.invocation_params.dir, arg.split("::")[0]) for arg in config.args]
    if all(path.resolve().is_relative_to(_FOLDER) for path in paths):
        os.environ["TRITON_INTERPRET"] = "1"


def pytest_ignore_collect() -> bool | None:
    return None if os.environ.get("TRITON_INTERPRET") == "1" else True
