"""The circuits that are measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from jaxjuice import structures
from jaxjuice.distributions import Categorical
from jaxjuice.nodes import CircuitNodes


class Workload(NamedTuple):
    """A circuit over categorical variables.

    Attributes:
        title: for people.
        build: makes the DAG.
        num_cats: categories of every variable.
        batches: batch sizes to measure.
    """

    title: str
    build: Callable[[], CircuitNodes]
    num_cats: int
    batches: tuple[int, ...]

    def data(self, batch: int, num_vars: int) -> np.ndarray:
        """Uniform values, int32 `[batch, num_vars]`; the same in every call."""
        rng = np.random.default_rng(1)
        return rng.integers(0, self.num_cats, (batch, num_vars)).astype(np.int32)


def _hmm(length: int, num_latents: int, num_cats: int, *batches: int) -> Workload:
    # Blocks make no difference here, and PyJuice's own HMM has none above 1024.
    block_size = min(1024, num_latents)
    return Workload(
        f"HMM, {num_latents} latents, {length} positions",
        lambda: structures.HMM(length, num_latents, num_cats, block_size=block_size),
        num_cats,
        batches,
    )


def _hclt(num_vars: int, num_latents: int, num_cats: int, batch: int) -> Workload:
    def build() -> CircuitNodes:
        # Independent columns: a tree of many short branches, as PyJuice's own benchmark has it.
        x = np.random.default_rng(0).integers(0, num_cats, (256, num_vars))
        return structures.HCLT(x, num_latents, input_dist=Categorical(num_cats))

    return Workload(f"HCLT, {num_latents} latents, {num_vars} variables", build, num_cats, (batch,))


def _pd(side: int, num_latents: int, split: int, num_cats: int, batch: int) -> Workload:
    return Workload(
        f"PD {side}x{side}, {num_latents} latents, split ({split}, {split})",
        lambda: structures.PD(
            (side, side),
            num_latents,
            split_intervals=(split, split),
            input_dist=Categorical(num_cats),
            seed=0,
        ),
        num_cats,
        (batch,),
    )


def _rat_spn(
    num_vars: int, num_latents: int, depth: int, repetitions: int, num_cats: int, batch: int
) -> Workload:
    return Workload(
        f"RAT-SPN, {num_latents} latents, {num_vars} variables, depth {depth}, "
        f"{repetitions} repetitions",
        lambda: structures.RAT_SPN(
            num_vars, num_latents, depth, repetitions, input_dist=Categorical(num_cats)
        ),
        num_cats,
        (batch,),
    )


WORKLOADS = {
    "hmm4096": _hmm(32, 4096, 512, 512, 128),
    "hmm1024": _hmm(64, 1024, 512, 512),
    "hclt1024": _hclt(768, 1024, 512, 512),
    "pd256": _pd(28, 256, 4, 256, 512),
    "ratspn": _rat_spn(784, 256, 5, 10, 256, 512),
}
QUICK = {
    "hmm4096": _hmm(4, 32, 8, 32, 16),
    "hmm1024": _hmm(6, 16, 8, 32),
    "hclt1024": _hclt(12, 16, 8, 32),
    "pd256": _pd(8, 32, 2, 8, 32),
    "ratspn": _rat_spn(16, 16, 2, 2, 8, 32),
}
"""The same shapes, tiny, to see that everything runs."""
