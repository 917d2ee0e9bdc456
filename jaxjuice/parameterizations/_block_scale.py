"""`BlockScale`: a gate for each block of (node, child) pairs."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Sequence

import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxjuice._errors import StructureError
from jaxjuice.parameterizations._base import (
    Parameterization,
    Unit,
    check_flags,
    positive_size,
)


@dataclasses.dataclass(frozen=True)
class BlockScale(Parameterization):
    """Scales constant over blocks of pairs: g_b[i, j] = exp(phi_b[block of i, block of j]).

    One tensor a vector: the logarithms phi of its gates, `[B, num_nodes / block_size, num_ch_nodes
    / ch_block_size]`. A gate over all children of a node changes nothing: weights are normalized.

    Its statistic W is the same for all children in a gate, so it is kept once a gate.

    Nodes that share gates share exponentials: in float32, a node is impossible if all its children,
    gates included, lie more than 87 nats below some child of the others, as in plain layers.

    Attributes:
        block_size: nodes a gate, a divisor of the vector's block size, which is the default.
        ch_block_size: child nodes a gate, a divisor of the children's block size, which is the
            default.
        apply_z_correction, tie_external: see `Parameterization`.

    Raises:
        StructureError: if a size is not an integer of at least 1; in `summate`, if it does not
            divide.
    """

    block_size: int | None = None
    ch_block_size: int | None = None
    apply_z_correction: bool = True
    tie_external: bool = False

    def __post_init__(self) -> None:
        for name in ("block_size", "ch_block_size"):
            if getattr(self, name) is not None:
                # An int of numpy could not be written to a file.
                size = positive_size("BlockScale(...)", name, getattr(self, name))
                object.__setattr__(self, name, size)
        flags = {name: getattr(self, name) for name in ("apply_z_correction", "tie_external")}
        check_flags("BlockScale(...)", **flags)

    def resolve(self, call: object, block_size: int, ch_block_size: int) -> BlockScale:
        sizes = {"block_size": block_size, "ch_block_size": ch_block_size}
        for name, whole in sizes.items():
            given = getattr(self, name)
            if given is not None and whole % given:
                raise StructureError(
                    f"{call}: the gates of {self!r} have {name}={given}, which does not divide the "
                    f"{name} {whole} of the vector."
                )
        given = {name: getattr(self, name) or whole for name, whole in sizes.items()}
        return dataclasses.replace(self, **given)

    def tensor_shapes(self, num_nodes: int, num_ch_nodes: int) -> tuple[tuple[int, ...], ...]:
        block_size, ch_block_size = self._sizes()
        return ((num_nodes // block_size, num_ch_nodes // ch_block_size),)

    def log_scale(self, tensors: Sequence[Array], num_nodes: int, num_ch_nodes: int) -> Array:
        block_size, ch_block_size = self._sizes()
        return jnp.repeat(jnp.repeat(tensors[0], block_size, axis=1), ch_block_size, axis=2)

    @property
    def reads_positions(self) -> bool:
        return False

    @property
    def children_per_scale(self) -> int:
        return self._sizes()[1]

    @property
    def nodes_per_scale(self) -> int:
        return self._sizes()[0]

    def layer_key(self, num_nodes: int, num_ch_nodes: int) -> Hashable:
        return ()

    def unit_indices(
        self, nodes: np.ndarray, children: np.ndarray, num_nodes: int, num_ch_nodes: int
    ) -> tuple[np.ndarray, ...]:
        block_size, ch_block_size = self._sizes()
        rows, columns = nodes[::block_size] // block_size, children[::ch_block_size]
        width = num_ch_nodes // ch_block_size
        return (rows[:, None] * width + columns[None] // ch_block_size,)

    def unit_log_scale(self, parts: Sequence[Array], unit: Unit) -> Array:
        return parts[0]

    def _sizes(self) -> tuple[int, int]:
        assert self.block_size is not None and self.ch_block_size is not None, "not resolved"
        return self.block_size, self.ch_block_size
