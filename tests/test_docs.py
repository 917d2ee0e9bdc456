"""The pages of the reference name everything that is public."""

import importlib
import re
from pathlib import Path

import pytest

import jaxjuice as juice

# What the command line needs of `io`.
HELPERS = {"atomic_writer", "check_writable", "installed_version"}
REFERENCE = Path(__file__).parents[1] / "docs" / "reference"


def documented() -> set[str]:
    texts = [page.read_text() for page in REFERENCE.glob("*.md")]
    return {name for text in texts for name in re.findall(r"^::: (\S+)$", text, re.MULTILINE)}


@pytest.mark.parametrize(
    "package",
    ["structures", "distributions", "nodes", "parameterizations", "optim", "training"]
    + ["queries", "nn", "io", "data"],
)
def test_every_public_name_has_an_entry(package: str) -> None:
    module = importlib.import_module(f"jaxjuice.{package}")
    public = {
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and getattr(value, "__module__", "").startswith("jaxjuice.")
        and name not in HELPERS
    }
    assert public
    missing = {f"jaxjuice.{package}.{name}" for name in public} - documented()
    assert not missing


def test_the_top_level_is_documented() -> None:
    own = {"Circuit", "Flows", "compile", "load", "save", "fit", "evaluate", "inputs", "multiply"}
    own |= {name for name in vars(juice) if name.endswith("Error")}
    assert own <= {entry.rsplit(".", 1)[1] for entry in documented()}


def test_every_entry_exists() -> None:
    for entry in documented():
        module, name = entry.rsplit(".", 1)
        assert getattr(importlib.import_module(module), name) is not None, entry
