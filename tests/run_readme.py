"""Runs the Python blocks of README.md, in order and in one namespace, as a reader would.

Usage: python tests/run_readme.py [FILE.md ...]. It is no pytest module: it wants a
fresh interpreter without the strict settings of the tests. Files that the blocks write go to a
temporary folder.
"""

import os
import re
import sys
import tempfile
import time
from pathlib import Path

_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def run_blocks(path: Path) -> int:
    """Runs the blocks of one file; returns how many there are."""
    text = path.read_text(encoding="utf-8")
    namespace: dict[str, object] = {"__name__": "__main__"}
    count = 0
    for match in _BLOCK.finditer(text):
        # Blank lines in front make line numbers in tracebacks those of the file.
        first_line = text[: match.start(1)].count("\n")
        code = compile("\n" * first_line + match.group(1), str(path), "exec")
        start = time.perf_counter()
        exec(code, namespace)
        count += 1
        print(f"{path.name}:{first_line}: ran in {time.perf_counter() - start:.1f} s", flush=True)
    return count


def main() -> None:
    """Runs the named files, README.md by default; fails if one holds no block."""
    root = Path(__file__).resolve().parent.parent
    paths = [Path(name).resolve() for name in sys.argv[1:]] or [root / "README.md"]
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for path in paths:
            if run_blocks(path) == 0:
                sys.exit(f"{path} holds no Python block.")
        os.chdir(root)


if __name__ == "__main__":
    main()
