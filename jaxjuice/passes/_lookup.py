"""Leaves whose values are rows of a table: where sums read them, how their flows are counted."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jaxjuice.compiler import LeafLayer, Program


class Lookup(NamedTuple):
    """The values of a leaf layer as rows of a table.

    Attributes:
        table: probabilities `[P, C, K]`.
        category: int32 `[V, B]`; -1 where a value is missing, -2 where it is illegal.
    """

    table: Array
    category: Array


class LookupFlows(NamedTuple):
    """The flows of a `Lookup`: of categories `[P, C, K]`; of missing values `[P, K]`, or None."""

    counts: Array
    missing: Array | None


def can_look_up(leaf: LeafLayer, num_categories: int, batch: int) -> bool:
    """Whether the keys that count such a layer's flows fit into 32 bits, and are not too many."""
    tables, copies = leaves_of_tables(leaf).shape
    # Tables with few leaves have as many keys as the one with most.
    is_even = tables * copies <= 2 * leaf.num_leaves
    return is_even and (num_categories + 2) * copies * batch < 2**31


@dataclass(frozen=True)
class ValueSlots:
    """Where the values of a program are when some leaves are looked up.

    Attributes:
        looked_up: by width, the first slot of such a leaf layer and how many it has.
        lookup: by width, its table `[P * C, K]`, whether that holds logarithms, and rows int32
            `[V, B]`.
    """

    looked_up: dict[int, tuple[int, int]]
    lookup: dict[int, tuple[Array, bool, Array]]

    @staticmethod
    def of(
        program: Program, leaves: Sequence[Array | Lookup], *, reads: bool = True
    ) -> "ValueSlots":
        """Of `leaves`, whose tables are prepared only if they are to be read."""
        looked_up, lookup = {}, {}
        for leaf, value in zip(program.leaves, leaves, strict=True):
            if not isinstance(value, Lookup):
                continue
            assert leaf.num_nodes not in lookup, "one layer of lookups for each width"
            num_params, categories, nodes = value.table.shape
            ids = _param_ids(leaf)[:, None] * np.int32(categories)
            rows = jnp.where(value.category >= 0, value.category + ids, value.category)
            table = value.table.reshape(num_params * categories, nodes)
            looked_up[leaf.num_nodes] = leaf.value_start, leaf.num_leaves
            # The logarithm of a number costs as much as a dozen loads: it is taken once, if many
            # are read. A fixed rule.
            logs = reads and _numbers_read(program, leaf) * rows.shape[1] >= 4 * table.size
            table = lax.optimization_barrier(jnp.log(table)) if logs else table
            lookup[leaf.num_nodes] = table, logs, rows
        return ValueSlots(looked_up, lookup)

    def slots(self, width: int, slots: np.ndarray) -> np.ndarray:
        """Slots as the kernels read them: -1 - v for leaf v of the lookups."""
        if width not in self.looked_up:
            return slots
        first, count = self.looked_up[width]
        stored = np.where(slots >= first + count, slots - count, slots)
        is_lookup = (slots >= first) & (slots < first + count)
        return np.where(is_lookup, first - 1 - slots, stored).astype(np.int32)

    def size(self, width: int, count: int) -> int:
        """How many of `count` slots are left."""
        return count - self.looked_up.get(width, (0, 0))[1]

    def table(self, width: int) -> tuple[Array | None, bool, Array | None]:
        return self.lookup.get(width, (None, False, None))


def sorted_keys(category: Array, leaves: np.ndarray, categories: int) -> Array:
    """Keys as `kernels.leaf_counts` takes them; category C for missing, C + 1 for illegal ones."""
    tables, copies = leaves.shape
    batch = category.shape[1]
    members = copies * batch
    category = jnp.where(category == -1, categories, category)
    category = jnp.where(category < 0, categories + 1, category)[np.maximum(leaves, 0)]
    category = jnp.where((leaves >= 0)[..., None], category, categories + 1)
    member = jnp.arange(members, dtype=jnp.int32)
    return jnp.sort(category.reshape(tables, members) * members + member[None], axis=1)


def _numbers_read(program: Program, leaf: LeafLayer) -> int:
    """How many values of a leaf layer the sums read for one sample."""
    first, stop = leaf.value_start, leaf.value_start + leaf.num_leaves
    count = 0
    for layer in (program.root, *(layer for stage in program.stages for layer in stage)):
        if leaf.num_nodes in layer.children:
            slots = layer.children[leaf.num_nodes].slots
            count += layer.width * int(np.count_nonzero((slots >= first) & (slots < stop)))
    return count


def _param_ids(leaf: LeafLayer) -> np.ndarray:
    return np.arange(leaf.num_leaves, dtype=np.int32) if leaf.param_ids is None else leaf.param_ids


def leaves_of_tables(leaf: LeafLayer) -> np.ndarray:
    """Int32 `[P, copies]`, the leaves that share each parameter set; -1 for none."""
    ids = _param_ids(leaf)
    counts = np.bincount(ids, minlength=leaf.num_params)
    leaves = np.full((leaf.num_params, int(counts.max())), -1, np.int32)
    order = np.argsort(ids, kind="stable")
    rank = np.arange(len(ids)) - np.repeat(np.cumsum(counts) - counts, counts)
    leaves[ids[order], rank] = order
    return leaves
