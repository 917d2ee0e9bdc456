"""Wrong edits of the package, one at a time, and whether the tests see them.

    python -m tests.mutations              # all, some minutes
    python -m tests.mutations block dense  # those in whose words or file any of these stands

Each of `_list.py` goes into a copy of the package and of its tests, where those tests run that
ought to catch it: the cheapest that do, so that a run stays short. First they run on the copy as
it is, and must pass. "survived" means that a mistake of this kind could be made unseen: exit
status 1.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

from tests.mutations._list import KERNELS, XLA, Mutation
from tests.mutations._scaled_list import SCALED

_ROOT = Path(__file__).parents[2]
_TIMEOUT = 600  # seconds; an edit may make a loop endless


def _copy(folder: Path) -> None:
    without = shutil.ignore_patterns("__pycache__", "mutations")
    for name in ("bench", "jaxjuice", "tests"):
        shutil.copytree(_ROOT / name, folder / name, ignore=without)
    shutil.copy(_ROOT / "pyproject.toml", folder)


def _run_tests(folder: Path, tests: tuple[str, ...]) -> int | None:
    """The exit status of pytest; None if it took too long."""
    command = [sys.executable, *"-m pytest -q -x --no-header -p no:cacheprovider".split(), *tests]
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        return subprocess.run(
            command, cwd=folder, env=environment, timeout=_TIMEOUT, capture_output=True
        ).returncode
    except subprocess.TimeoutExpired:
        return None


def _verdict(folder: Path, mutation: Mutation) -> str:
    path = folder / "jaxjuice" / mutation.file
    text = path.read_text()
    if mutation.old not in text:
        return "not there"
    try:
        path.write_text(text.replace(mutation.old, mutation.new))
        status = _run_tests(folder, mutation.tests)
    finally:
        path.write_text(text)
    return {0: "survived", 1: "caught", None: "caught (endless)"}.get(status, f"error {status}")


def _chosen(words: list[str]) -> list[Mutation]:
    everything = [*KERNELS, *XLA, *SCALED]
    if not words:
        return everything
    return [m for m in everything if any(word in f"{m.what} {m.file}" for word in words)]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=__doc__)
    parser.add_argument("words", nargs="*", help="which mutations: words of their names or files")
    parser.add_argument("--jobs", type=int, default=min(4, os.cpu_count() or 1))
    options = parser.parse_args()
    mutations = _chosen(options.words)
    with tempfile.TemporaryDirectory() as temporary:
        folders: SimpleQueue[Path] = SimpleQueue()
        for n in range(options.jobs):
            folder = Path(temporary, str(n))
            _copy(folder)
            folders.put(folder)

        def with_folder(function, *arguments):
            folder, start = folders.get(), time.monotonic()
            try:
                return function(folder, *arguments), time.monotonic() - start
            finally:
                folders.put(folder)

        with ThreadPoolExecutor(options.jobs) as pool:
            used = list(dict.fromkeys(mutation.tests for mutation in mutations))
            statuses = pool.map(lambda tests: with_folder(_run_tests, tests)[0], used)
            bad = [tests for tests, status in zip(used, statuses, strict=True) if status != 0]
            if bad:
                print("These tests do not pass without a mutation:", *bad, sep="\n  ")
                return 2
            uncaught = 0
            verdicts = pool.map(lambda m: with_folder(_verdict, m), mutations)
            for mutation, (verdict, seconds) in zip(mutations, verdicts, strict=True):
                uncaught += not verdict.startswith("caught")
                line = f"{verdict:9} {seconds:4.0f} s  {mutation.file:26}  {mutation.what}"
                print(line, flush=True)
    print(f"{len(mutations) - uncaught} of {len(mutations)} are caught")
    return int(uncaught > 0)


if __name__ == "__main__":
    sys.exit(main())
