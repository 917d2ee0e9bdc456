"""A hidden Markov model whose transitions depend on a context, trained together with a network.

Each sequence comes with a context that says how it moves through its hidden states. A flax network
reads the context and makes the factors of a `LowRank` scale of the transitions; optax.adam trains
the network by the gradient of the log-likelihood, Anemone the circuit by its flows.

Run it with `python examples/conditional_hmm.py`. It needs nothing beyond jaxjuice.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import jaxjuice as juice
from jaxjuice.parameterizations import LowRank

NUM_STATES, NUM_SYMBOLS, LENGTH, RANK = 6, 6, 10, 4


def make_data(num_rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Contexts `[rows, 2]`, points of a circle, and sequences that walk around a ring of symbols.

    The angle of the context is the step that a sequence takes, in fractions of the ring.
    """
    rng = np.random.default_rng(seed)
    angle = rng.uniform(0, 2 * np.pi, num_rows)
    step = angle / (2 * np.pi) * NUM_SYMBOLS
    position = rng.integers(0, NUM_SYMBOLS, num_rows).astype(float)
    columns = []
    for _ in range(LENGTH):
        columns.append(np.round(position) % NUM_SYMBOLS)
        position = position + step + 0.4 * rng.normal(size=num_rows)
    context = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    return context.astype(np.float32), np.stack(columns, axis=1).astype(np.uint8)


class Scales(nnx.Module):
    """From contexts to the factors A `[batch, states, rank]` and B `[batch, rank, states]`."""

    def __init__(self, rngs: nnx.Rngs):
        self.hidden = nnx.Linear(2, 64, rngs=rngs)
        self.out = nnx.Linear(64, 2 * NUM_STATES * RANK, rngs=rngs)

    def __call__(self, context: jax.Array) -> tuple[jax.Array, jax.Array]:
        out = self.out(jnp.tanh(self.hidden(context)))
        a, b = jnp.split(out.reshape(-1, 2 * NUM_STATES, RANK), 2, axis=1)
        return a, b.swapaxes(1, 2)


def train_unconditional(train: np.ndarray, test: np.ndarray, epochs: int, batch_size: int) -> float:
    """The test log-likelihood of the HMM that does not see contexts."""
    pc = juice.compile(juice.structures.HMM(LENGTH, NUM_STATES, NUM_SYMBOLS))
    params = pc.init(jax.random.key(0))
    tx = juice.optim.anemone(pc)
    result = juice.fit(pc, params, train, tx, epochs=epochs, batch_size=batch_size)
    return juice.evaluate(pc, result.params, test).log_likelihood


def train_conditional(
    train: tuple[np.ndarray, np.ndarray],
    test: tuple[np.ndarray, np.ndarray],
    epochs: int,
    batch_size: int,
) -> float:
    """The test log-likelihood given contexts."""
    # All transitions are tied copies of one vector, and so share one pair of factors.
    kind = LowRank(RANK, tie_external=True)
    root = juice.structures.HMM(LENGTH, NUM_STATES, NUM_SYMBOLS, parameterization=kind)
    pc = juice.compile(root)
    (transition,) = {ns.get_source() for ns in root if getattr(ns, "parameterization", None)}

    params = pc.init(jax.random.key(0))
    em = juice.optim.anemone(pc)
    em_state = em.init(params)
    network = Scales(nnx.Rngs(0))
    graph, weights = nnx.split(network)
    adam = optax.adam(1e-2)
    adam_state = adam.init(weights)

    @jax.jit
    def step(params, em_state, weights, adam_state, context, x):
        def loss(weights):
            factors = nnx.merge(graph, weights)(context)
            # Flows come with the values; only values have gradients.
            lls, flows = pc.log_likelihood_and_flows(
                params, x, external_params={transition: factors}
            )
            return -lls.mean(), flows

        gradient, flows = jax.grad(loss, has_aux=True)(weights)
        updates, adam_state = adam.update(gradient, adam_state, weights)
        weights = optax.apply_updates(weights, updates)
        updates, em_state = em.update(flows, em_state, params)
        return optax.apply_updates(params, updates), em_state, weights, adam_state

    rng = np.random.default_rng(0)
    state = params, em_state, weights, adam_state
    for _ in range(epochs):
        order = rng.permutation(len(train[0]))
        for rows in np.split(order, len(order) // batch_size):
            state = step(*state, *(array[rows] for array in train))
    params, _, weights, _ = state
    factors = nnx.merge(graph, weights)(jnp.asarray(test[0]))
    lls = pc.log_likelihood(params, test[1], external_params={transition: factors})
    return float(lls.mean())


def main(epochs: int = 40, num_rows: int = 4000, batch_size: int = 200) -> dict[str, float]:
    """Trains both, and returns their mean log-likelihoods of held-out sequences."""
    train, test = make_data(num_rows), make_data(1000, seed=1)
    return {
        "unconditional": train_unconditional(train[1], test[1], epochs, batch_size),
        "conditional": train_conditional(train, test, epochs, batch_size),
    }


if __name__ == "__main__":
    for model, score in main().items():
        print(f"{model:>14}: test log-likelihood {score:.3f}")
