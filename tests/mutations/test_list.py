"""The wrong edits still fit the code: `python -m tests.mutations` runs them."""

import ast
from pathlib import Path

import pytest

from tests.mutations._list import KERNELS, XLA, Mutation
from tests.mutations._scaled_list import SCALED

PACKAGE = Path(__file__).parents[2] / "jaxjuice"


@pytest.mark.parametrize("mutation", [*KERNELS, *XLA, *SCALED], ids=lambda m: f"{m.file}: {m.what}")
def test_an_edit_fits(mutation: Mutation) -> None:
    text = (PACKAGE / mutation.file).read_text()
    mutated = text.replace(mutation.old, mutation.new)
    assert mutated != text, f"{mutation.old!r} is not in {mutation.file}"
    ast.parse(mutated)
