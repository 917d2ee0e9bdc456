"""Runs each file of `interpreted/` in a process of its own: see there."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FILES = sorted(Path(__file__).with_name("interpreted").glob("test_*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_in_the_interpreter(path: Path, pytestconfig: pytest.Config) -> None:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    command = [sys.executable, *"-m pytest -q --color=no --tb=short -p no:cacheprovider".split()]
    if pytestconfig.option.markexpr:
        command += ["-m", pytestconfig.option.markexpr]
    run = subprocess.run(
        [*command, str(path)],
        cwd=pytestconfig.rootpath,
        env={**kept, "TRITON_INTERPRET": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if run.returncode == pytest.ExitCode.NO_TESTS_COLLECTED:
        pytest.skip(f"no test of {path.name} was chosen")
    if run.returncode:
        pytest.fail(
            f"TRITON_INTERPRET=1 {' '.join(command)} {path} failed:\n{run.stdout}", pytrace=False
        )
