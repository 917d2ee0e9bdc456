"""Settings that hold while a circuit is written down: block size, and which checks are made."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator

from jaxjuice._errors import StructureError

_block_size: contextvars.ContextVar[int] = contextvars.ContextVar("block_size", default=1)
_allow_nonsmooth: contextvars.ContextVar[bool] = contextvars.ContextVar(
    "allow_nonsmooth", default=False
)
_allow_nondecomposable: contextvars.ContextVar[bool] = contextvars.ContextVar(
    "allow_nondecomposable", default=False
)


def current_block_size() -> int:
    """Returns the block size of node vectors that do not name their own."""
    return _block_size.get()


def nonsmooth_allowed() -> bool:
    """Tells whether sums may have children of different scopes."""
    return _allow_nonsmooth.get()


def nondecomposable_allowed() -> bool:
    """Tells whether the scopes of a product's children may overlap."""
    return _allow_nondecomposable.get()


@contextlib.contextmanager
def set_block_size(block_size: int = 1) -> Iterator[None]:
    """Sets the default block size of the node vectors built inside a ``with`` statement.

    A block size groups consecutive nodes so that edges are written (and parameters laid out) a
    block at a time. It never changes what a circuit computes. Uses may be nested, and the result
    decorates functions too.

    Args:
        block_size: nodes a block, any integer >= 1.

    Raises:
        StructureError: if `block_size` is not an integer >= 1.

    Example:
        >>> with set_block_size(4):
        ...     print(current_block_size())
        4
    """
    check_block_size("set_block_size", block_size)
    token = _block_size.set(int(block_size))
    try:
        yield
    finally:
        _block_size.reset(token)


@contextlib.contextmanager
def structural_properties(
    allow_nonsmooth: bool = False, allow_nondecomposable: bool = False
) -> Iterator[None]:
    """Sets which structural checks are left out for the nodes built inside a ``with`` statement.

    Likelihoods, marginals and flows are exact only in smooth and decomposable circuits; outside of
    them a circuit is still evaluated as the sums and products that were written down. Uses may be
    nested (the inner one holds), and the result decorates functions too.

    Args:
        allow_nonsmooth: whether a sum's children may have different scopes.
        allow_nondecomposable: whether the scopes of a product's children may overlap.
    """
    nonsmooth_token = _allow_nonsmooth.set(bool(allow_nonsmooth))
    nondecomposable_token = _allow_nondecomposable.set(bool(allow_nondecomposable))
    try:
        yield
    finally:
        _allow_nondecomposable.reset(nondecomposable_token)
        _allow_nonsmooth.reset(nonsmooth_token)


def check_block_size(call: object, block_size: int) -> None:
    """Raises StructureError, quoting `call`, unless `block_size` is an integer >= 1."""
    if isinstance(block_size, bool) or not hasattr(block_size, "__index__") or block_size < 1:
        raise StructureError(f"{call}(block_size={block_size!r}): a block size is an integer >= 1.")
