"""Scopes: immutable sets of variable ids, cheap for thousands of vectors and variables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np


class Scope:
    """An immutable set of variable ids (integers from 0 up), stored as the bits of one Python
    integer.

    Union, intersection and the subset tests are one operation on machine words, and equal scopes
    hash alike, so a scope may be a dictionary key.

    Args:
        variables: the variable ids; each an integer >= 0. Repetitions are harmless.

    Raises:
        ValueError: if an id is negative.

    Example:
        >>> Scope([3, 0, 1]) | Scope([7])
        Scope({0, 1, 3, 7})
    """

    __slots__ = ("_bits", "_hash")

    _bits: int
    _hash: int | None

    def __init__(self, variables: Iterable[int] = ()) -> None:
        bits = 0
        for variable in variables:
            if variable < 0:
                raise ValueError(f"Scope(...) got the variable id {variable}; ids start at 0.")
            bits |= 1 << int(variable)
        self._bits = bits
        self._hash = None

    @classmethod
    def from_bits(cls, bits: int) -> Scope:
        """Returns the scope whose bit i (value 2**i) tells whether variable i is in it."""
        if bits < 0:
            raise ValueError(f"Scope.from_bits({bits}): bits is an integer from 0 up.")
        scope = cls.__new__(cls)
        scope._bits = bits
        scope._hash = None
        return scope

    @property
    def bits(self) -> int:
        """The set as an integer: bit i is 1 exactly if variable i is in the scope."""
        return self._bits

    def __contains__(self, variable: object) -> bool:
        if not isinstance(variable, (int, np.integer)) or variable < 0:
            return False
        return bool((self._bits >> int(variable)) & 1)

    def __iter__(self) -> Iterator[int]:
        """Iterates over the variable ids, ascending."""
        num_bytes = (self._bits.bit_length() + 7) // 8
        as_bytes = np.frombuffer(self._bits.to_bytes(num_bytes, "little"), dtype=np.uint8)
        return iter(np.flatnonzero(np.unpackbits(as_bytes, bitorder="little")).tolist())

    def __len__(self) -> int:
        return self._bits.bit_count()

    def __or__(self, other: Scope) -> Scope:
        if not isinstance(other, Scope):
            return NotImplemented
        return Scope.from_bits(self._bits | other._bits)

    def __and__(self, other: Scope) -> Scope:
        if not isinstance(other, Scope):
            return NotImplemented
        return Scope.from_bits(self._bits & other._bits)

    def __sub__(self, other: Scope) -> Scope:
        if not isinstance(other, Scope):
            return NotImplemented
        return Scope.from_bits(self._bits & ~other._bits)

    def isdisjoint(self, other: Scope) -> bool:
        """Tells whether no variable is in both."""
        return not self._bits & other._bits

    def issubset(self, other: Scope) -> bool:
        """Tells whether every variable of this scope is in the other."""
        return not self._bits & ~other._bits

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Scope):
            return NotImplemented
        return self._bits == other._bits

    def __hash__(self) -> int:
        # hash(int) is the value modulo 2**61 - 1, under which the single-variable scopes of a large
        # circuit share 61 values; hashing the bytes spreads them.
        if self._hash is None:
            self._hash = hash(self._bits.to_bytes((self._bits.bit_length() + 7) // 8, "little"))
        return self._hash

    def __reduce__(self) -> tuple:
        return Scope.from_bits, (self._bits,)

    def __repr__(self) -> str:
        return f"Scope({self})"

    def __str__(self) -> str:
        """Writes the scope with runs shortened, such as ``{0..4, 7}``."""
        variables = list(self)
        parts: list[str] = []
        start = 0
        for stop in range(1, len(variables) + 1):
            if stop < len(variables) and variables[stop] == variables[stop - 1] + 1:
                continue
            run = variables[start:stop]
            parts += [f"{run[0]}..{run[-1]}"] if len(run) > 2 else map(str, run)
            start = stop
        if len(parts) > 12:
            parts = [*parts[:10], "...", parts[-1]]
        return "{" + ", ".join(parts) + "}"
