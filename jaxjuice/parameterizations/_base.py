"""What all parameterizations have in common."""

from __future__ import annotations

import abc
from collections.abc import Hashable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxjuice._errors import StructureError


class Unit(NamedTuple):
    """What a parameterization may know of the units of a compiled layer, X of them.

    Attributes:
        num_nodes, num_ch_nodes: of the whole node vectors that the units belong to.
        nodes: int32 `[X, M]`, each unit's nodes, counted in its vector; None unless
            `Parameterization.reads_positions`.
        children: int32 `[X, N]`, each unit's children, counted over all children of its vector;
            None as above.
        precision: one of `jaxjuice.ops.PRECISIONS`.
        num_samples: the size of the whole batch, of which a call may see a part.
    """

    num_nodes: int
    num_ch_nodes: int
    nodes: Array | None
    children: Array | None
    precision: str
    num_samples: int


class Parameterization(abc.ABC):
    """How tensors of a call scale the weights of a vector of M sum nodes over N child nodes.

    A parameterization of your own implements two methods, `tensor_shapes` and `log_scale`: values,
    flows, gradients, the statistic of the M-step and sampling follow from them. Make it a frozen
    dataclass, so that equal ones are one to `jit` and to the compiler; `register` makes it loadable
    from files.

    Attributes:
        apply_z_correction: whether flows hold the statistic W of the conditional M-step (see
            `jaxjuice.optim.conditional_m_step`). Without it the M-step is normalize(F+), which may
            lower the likelihood.
        tie_external: whether all tied copies of a vector read one set of tensors, that of their
            source. Without it every copy has its own.
    """

    apply_z_correction: bool = True
    tie_external: bool = False

    @abc.abstractmethod
    def tensor_shapes(self, num_nodes: int, num_ch_nodes: int) -> tuple[tuple[int, ...], ...]:
        """The shapes of the tensors for one vector, each without the leading batch axis.

        The first axis of each is the one along which the tensors of a group are concatenated.
        """

    @abc.abstractmethod
    def log_scale(self, tensors: Sequence[Array], num_nodes: int, num_ch_nodes: int) -> Array:
        """log g `[B, num_nodes, num_ch_nodes]`, of all pairs, connected or not.

        Args:
            tensors: `[B, *shape]` for each of `tensor_shapes`.
            num_nodes, num_ch_nodes: M and N.
        """

    def resolve(self, call: object, block_size: int, ch_block_size: int) -> Parameterization:
        """This parameterization with all defaults that hang on a vector filled in.

        Args:
            call: the call to quote in errors.
            block_size, ch_block_size: those of the vector.

        Raises:
            StructureError: if it does not fit such a vector.
        """
        del call, block_size, ch_block_size
        return self

    # How compiled layers read it ------------------------------------------------------------------
    #
    # A layer runs many units at once, each a part of some vector. What follows hands every unit the
    # whole tensors of its vector; BlockScale and LowRank hand it those rows that it needs.

    @property
    def reads_positions(self) -> bool:
        """Whether `unit_log_scale` looks at `Unit.nodes` and `Unit.children`."""
        return True

    @property
    def is_mixture(self) -> bool:
        """Whether g is a sum over ranks r of exp(A_ir) exp(B_rj), with parts A and B."""
        return False

    @property
    def children_per_scale(self) -> int:
        """How many consecutive children of a unit share each scale."""
        return 1

    @property
    def nodes_per_scale(self) -> int:
        """How many consecutive nodes of a unit share each scale."""
        return 1

    def factor_precision(self, precision: str) -> str | None:
        """The mode of the products that make g in a call of a mode; None where none do."""
        del precision
        return None

    def layer_key(self, num_nodes: int, num_ch_nodes: int) -> Hashable:
        """What units must agree in, beyond the parameterization, to run in one layer."""
        return num_nodes, num_ch_nodes

    def flat_sizes(self, num_nodes: int, num_ch_nodes: int) -> tuple[int, ...]:
        """F of each tensor, see `flatten`."""
        return tuple(int(np.prod(shape)) for shape in self.tensor_shapes(num_nodes, num_ch_nodes))

    def flatten(self, tensors: Sequence[Array], num_members: int) -> tuple[Array, ...]:
        """Tensors of a group of members, one after the other, as `[B, F of all members, ...]`."""
        del num_members
        return tuple(t.reshape(t.shape[0], int(np.prod(t.shape[1:]))) for t in tensors)

    def unit_indices(
        self, nodes: np.ndarray, children: np.ndarray, num_nodes: int, num_ch_nodes: int
    ) -> tuple[np.ndarray, ...]:
        """What a unit reads of each flattened tensor: its *parts*, `[X, B, *index shape, ...]`.

        Args:
            nodes: int `[M]`, the unit's nodes in its vector.
            children: int `[N]`, its children among all those of its vector.
            num_nodes, num_ch_nodes: of the vector.
        """
        del nodes, children
        return tuple(np.arange(size) for size in self.flat_sizes(num_nodes, num_ch_nodes))

    def unit_log_scale(self, parts: Sequence[Array], unit: Unit) -> Array:
        """log g `[X, B, M / m, N / n]`: each entry for m consecutive nodes and n children."""
        dense = self._dense(parts, unit)
        return jax.vmap(lambda g, i, j: g[:, i][:, :, j])(dense, unit.nodes, unit.children)

    def row_log_scale(self, parts: Sequence[Array], row: Array, num_rows: int, unit: Unit) -> Array:
        """log g `[X, B, N / n]` of node `row` `[X, B]` (of `num_rows`) of each unit and sample."""
        scale = self.unit_log_scale(parts, unit)
        place = row[:, :, None, None] // (num_rows // scale.shape[2])
        return jnp.take_along_axis(scale, place, axis=2)[:, :, 0]

    def _dense(self, parts: Sequence[Array], unit: Unit) -> Array:
        """`[X, B, num_nodes, num_ch_nodes]`."""
        size = unit.num_nodes, unit.num_ch_nodes
        shapes = self.tensor_shapes(*size)
        units, batch = parts[0].shape[:2]
        whole = [p.reshape(units * batch, *shape) for p, shape in zip(parts, shapes, strict=True)]
        scale = self.log_scale(whole, *size)
        if scale.shape != (units * batch, *size):
            raise StructureError(
                f"{type(self).__name__}.log_scale(tensors, {size[0]}, {size[1]}) returned shape "
                f"{list(scale.shape)}, and {[units * batch, *size]} is wanted."
            )
        return scale.astype(parts[0].dtype).reshape(units, batch, *size)


def positive_size(call: str, name: str, value: object) -> int:
    """`value` as an int.

    Raises:
        StructureError: unless it is an integer of at least 1.
    """
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise StructureError(f"{call}: {name}={value!r} is not an integer >= 1.")
    number = int(value)  # pyright: ignore[reportArgumentType]
    if number < 1:
        raise StructureError(f"{call}: {name}={value!r} is not an integer >= 1.")
    return number


def check_flags(call: str, **flags: object) -> None:
    """Raises a StructureError unless all are True or False."""
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise StructureError(f"{call}: {name}={value!r} is neither True nor False.")
