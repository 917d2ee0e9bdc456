"""The pages of the reference name everything that is public."""

import importlib
import re
from pathlib import Path

import pytest

REFERENCE = Path(__file__).parents[1] / "docs" / "reference"


def documented() -> set[str]:
    texts = [page.read_text() for page in REFERENCE.glob("*.md")]
    return {name for text in texts for name in re.findall(r"^::: (\S+)$", text, re.MULTILINE)}


@pytest.mark.parametrize(
    "package", ["structures", "distributions", "nodes", "optim", "training", "queries", "nn"]
)
def test_every_public_name_has_an_entry(package: str) -> None:
    module = importlib.import_module(f"jaxjuice.{package}")
    public = {
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", "").startswith("jaxjuice.")
    }
    assert public
    missing = {f"jaxjuice.{package}.{name}" for name in public} - documented()
    assert not missing


def test_every_entry_exists() -> None:
    for entry in documented():
        module, name = entry.rsplit(".", 1)
        assert getattr(importlib.import_module(module), name) is not None, entry
