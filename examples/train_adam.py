"""Train one circuit in three ways: EM, Adam with `juice.fit`, and Adam in a loop of your own.

Run it with `python examples/train_adam.py`. It needs nothing beyond jaxjuice.
"""

import jax
import numpy as np
import optax

import jaxjuice as juice


def make_data(num_rows: int, length: int = 12, seed: int = 0) -> np.ndarray:
    """Sequences over four symbols that keep their symbol most of the time."""
    rng = np.random.default_rng(seed)
    jumps = rng.random((num_rows, length)) < 0.2
    symbols = rng.integers(0, 4, (num_rows, length))
    for t in range(1, length):
        symbols[:, t] = np.where(jumps[:, t], symbols[:, t], symbols[:, t - 1])
    return symbols.astype(np.uint8)


def main(epochs: int = 40) -> dict[str, float]:
    """Trains, and returns the test log-likelihood of each way."""
    train, test = make_data(2000), make_data(500, seed=1)
    root = juice.structures.HMM(seq_length=train.shape[1], num_latents=8, num_emits=4)
    pc = juice.compile(root)
    params = pc.init(jax.random.key(0))
    scores = {}

    # 1. EM: the optimizers of juice.optim move probabilities by the flows of each batch.
    result = juice.fit(pc, params, train, juice.optim.anemone(pc), epochs=epochs, batch_size=200)
    scores["anemone"] = juice.evaluate(pc, result.params, test).log_likelihood

    # 2. Any other optax optimizer moves logits by the gradient of the log-likelihood.
    result = juice.fit(pc, params, train, optax.adam(0.05), epochs=epochs, batch_size=200)
    scores["adam"] = juice.evaluate(pc, result.params, test).log_likelihood

    # 3. The same by hand.
    tx = optax.adam(0.05)
    logits = pc.to_unconstrained(params)
    state = tx.init(logits)

    @jax.jit
    def step(logits, state, batch):
        def loss(logits):
            return -pc.log_likelihood(pc.from_unconstrained(logits), batch).mean()

        gradient = jax.grad(loss)(logits)
        updates, state = tx.update(gradient, state, logits)
        return optax.apply_updates(logits, updates), state

    for _ in range(epochs):
        for batch in np.split(train, 10):
            logits, state = step(logits, state, batch)
    params = pc.from_unconstrained(logits)
    scores["adam by hand"] = juice.evaluate(pc, params, test).log_likelihood
    return scores


if __name__ == "__main__":
    for way, score in main().items():
        print(f"{way:>14}: test log-likelihood {score:.3f}")
