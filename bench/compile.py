"""Compile time and the first step: `python -m bench.compile`.

Prints, for each circuit, the seconds to build the DAG, to compile it to a program, to trace and
lower a training step (E-step and M-step), to compile that with XLA, and the seconds of its first
and a later run: medians of three rounds, or of `--rounds N`, and of all that happens from tracing
to the first run the median, least and most. Nothing else should run on the machine.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
import optax

import jaxjuice as juice
from jaxjuice.distributions import Categorical
from jaxjuice.nodes import CircuitNodes


class Case(NamedTuple):
    """A circuit, and the batch and the number of categories of its data."""

    build: Callable[[], CircuitNodes]
    batch: int
    num_cats: int


def hclt(num_latents: int) -> CircuitNodes:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 16, (1000, 784))
    x[:, 1:] = np.where(rng.random((1000, 783)) < 0.5, x[:, :-1], x[:, 1:])
    return juice.structures.HCLT(x, num_latents, input_dist=Categorical(256))


def poon_domingos(num_latents: int) -> CircuitNodes:
    return juice.structures.PD(
        (28, 28), num_latents, split_intervals=(4, 4), input_dist=Categorical(256), seed=0
    )


def irregular(num_latents: int, levels: int = 12, width: int = 300) -> CircuitNodes:
    """A DAG of sums with 1 to 4 children; half of the products are shared within a level.

    It is no model of anything: it ignores scopes, and only its shape counts.
    """
    rng = np.random.default_rng(0)
    dist = Categorical(16)
    nodes = [juice.inputs(v, num_nodes=num_latents, dist=dist) for v in range(width)]
    last = list(nodes)
    with juice.structural_properties(allow_nonsmooth=True, allow_nondecomposable=True):
        for _ in range(levels):
            products: list[CircuitNodes] = []
            level = []
            for _ in range(width if len(nodes) < width * levels else width // 8):
                chosen: list[CircuitNodes] = []
                for _ in range(rng.integers(1, 5)):
                    if products and rng.random() < 0.5:
                        product = products[rng.integers(len(products))]
                    else:
                        pair = last[rng.integers(len(last))], nodes[rng.integers(len(nodes))]
                        product = juice.multiply(*dict.fromkeys(pair))
                        products.append(product)
                    if product not in chosen:
                        chosen.append(product)
                level.append(juice.summate(*chosen, num_nodes=num_latents))
            last, nodes = level, nodes + level
        # Every sum has an effect, so that nothing is left out.
        tops = [juice.multiply(*nodes[i : i + 400]) for i in range(width, len(nodes), 400)]
        return juice.summate(*tops, num_nodes=1)


CASES = {
    "HMM 16 latents, length 10": Case(lambda: juice.structures.HMM(10, 16, 10), 32, 10),
    "HMM 16 latents, length 10,000": Case(lambda: juice.structures.HMM(10_000, 16, 10), 32, 10),
    "HCLT 784 variables, 64 latents": Case(lambda: hclt(64), 64, 256),
    "PD 28x28, 64 latents, split (4,4)": Case(lambda: poon_domingos(64), 64, 256),
    "irregular DAG, 12 levels, 64 latents": Case(lambda: irregular(64), 16, 16),
}


def measure(case: Case) -> dict[str, float]:
    """Seconds of every phase of a training step."""
    seconds: dict[str, float] = {}

    def timed(name: str, function: Callable):
        start = time.perf_counter()
        result = jax.block_until_ready(function())
        seconds[name] = time.perf_counter() - start
        return result

    root = timed("build", case.build)
    pc = timed("program", lambda: juice.compile(root))
    params = pc.init(jax.random.key(0))
    x = np.random.default_rng(0).integers(0, case.num_cats, (case.batch, pc.num_vars))
    tx = juice.optim.mini_batch_em(pc, step_size=0.1, pseudocount=0.1)
    state = tx.init(params)

    def step(params, state, x):
        lls, flows = pc.log_likelihood_and_flows(params, x)
        updates, state = tx.update(flows, state, params)
        return optax.apply_updates(params, updates), state, lls.sum()

    traced = timed("trace", lambda: jax.jit(step).trace(params, state, x))
    lowered = timed("lower", traced.lower)
    run = timed("xla", lowered.compile)
    timed("first run", lambda: run(params, state, x))
    timed("run", lambda: run(params, state, x))
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.compile", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    print(f"jax {jax.__version__}, {jax.devices()[0].device_kind}")
    names = ("build", "program", "trace", "lower", "xla", "first run", "run")
    print(f"{'circuit':38}" + "".join(f"{name:>11}" for name in names) + "   trace to first run")
    for title, case in CASES.items():
        found = [measure(case) for _ in range(rounds)]
        medians = [statistics.median(seconds[name] for seconds in found) for name in names]
        totals = sorted(
            sum(seconds[name] for name in ("trace", "lower", "xla", "first run"))
            for seconds in found
        )
        print(
            f"{title:38}" + "".join(f"{value:11.2f}" for value in medians)
            + f"{statistics.median(totals):8.2f} s ({totals[0]:.2f} to {totals[-1]:.2f})",
            flush=True,
        )  # fmt: skip


if __name__ == "__main__":
    main()
