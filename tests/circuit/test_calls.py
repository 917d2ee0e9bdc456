"""The calls of `Circuit`: what they refuse and in which words, roots, weights, External leaves."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxjuice as juice
from jaxjuice.distributions import Bernoulli, Categorical, External
from tests import oracle
from tests.circuit.test_against_oracle import STRUCTURES


@pytest.fixture(name="hmm", scope="module")
def _hmm():
    pc = juice.compile(juice.structures.HMM(4, 3, 2))
    return pc, pc.init(jax.random.key(0)), np.random.default_rng(0).integers(0, 2, (6, 4))


def test_shapes_that_do_not_fit(hmm) -> None:
    pc, params, x = hmm
    with pytest.raises(
        juice.DataError, match=r"log_likelihood: x has shape \(6, 3\), and \[batch, 4\]"
    ):
        pc.log_likelihood(params, x[:, :3])
    with pytest.raises(juice.DataError, match=r"x has shape \(4,\)"):
        jax.jit(pc.log_likelihood)(params, x[0])
    with pytest.raises(juice.DataError, match=r"missing_mask has shape \(3,\)"):
        pc.log_likelihood(params, x, np.zeros(3, bool))
    with pytest.raises(juice.DataError, match="missing_mask has dtype int64"):
        pc.log_likelihood(params, x, np.zeros(4, np.int64))
    with pytest.raises(juice.DataError, match=r"weights has shape \(5,\)"):
        pc.log_likelihood_and_flows(params, x, None, np.ones(5, np.float32))
    with pytest.raises(juice.DataError, match="no leaf is External"):
        pc.log_likelihood(params, x, external_log_probs=np.zeros((6, 1, 3)))
    with pytest.raises(juice.DataError, match="numbers or booleans"):
        pc.log_likelihood(params, np.array([["a", "b", "c", "d"]]))
    with pytest.raises(ValueError, match="propagation='max' is unknown"):
        pc.log_likelihood(params, x, propagation="max")
    with pytest.raises(ValueError, match="alpha=0"):
        pc.log_likelihood(params, x, propagation="GeneralLL", alpha=0.0)
    with pytest.raises(TypeError, match="root is a str"):
        juice.compile("root")


def test_a_call_is_the_log_likelihood(hmm) -> None:
    pc, params, x = hmm
    np.testing.assert_array_equal(pc(params, x), pc.log_likelihood(params, x))
    assert hash(pc) == hash(pc) and pc == pc and pc != juice.compile(pc.root)
    np.testing.assert_array_equal(
        pc.with_precision("fp32")(params, x), pc(params, x, precision="fp32")
    )


def test_weights_scale_flows(hmm) -> None:
    pc, params, x = hmm
    _, once = pc.log_likelihood_and_flows(params, x)
    _, twice = pc.log_likelihood_and_flows(params, np.concatenate([x, x]))
    _, weighted = pc.log_likelihood_and_flows(params, x, None, np.full(6, 2.0))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), twice, weighted)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(2 * a, b, rtol=1e-5), once, weighted)


def test_several_roots() -> None:
    leaves = [juice.inputs(v, num_nodes=4, dist=Categorical(3)) for v in range(3)]
    root = juice.summate(juice.multiply(*leaves), num_nodes=5)
    pc = juice.compile(root)
    params = pc.init(jax.random.key(0))
    x = np.random.default_rng(0).integers(0, 3, (6, 3))
    lls = pc.log_likelihood(params, x)
    assert lls.shape == (6, 5)
    np.testing.assert_allclose(
        lls, oracle.log_likelihood(root, pc.node_params(params), x), atol=1e-5
    )


@pytest.mark.parametrize("kind", ("product", "input", "wide input"))
def test_roots_that_are_no_sums(kind: str) -> None:
    leaves = [juice.inputs(v, num_nodes=3, dist=Bernoulli()) for v in range(2)]
    root = juice.multiply(*leaves) if kind == "product" else leaves[0]
    if kind == "input":
        root = juice.inputs(0, num_nodes=1, dist=Bernoulli())
    pc = juice.compile(root)
    params = pc.init(jax.random.key(0))
    x = np.array([[0, 1], [1, 1]])[:, : pc.num_vars]
    lls, flows = pc.log_likelihood_and_flows(params, x)
    expected = oracle.log_likelihood(root, pc.node_params(params), x)
    np.testing.assert_allclose(np.reshape(lls, expected.shape), expected, atol=1e-6)
    assert float(flows.weight) == 2 * pc.num_roots


def test_variables_may_have_gaps() -> None:
    leaves = [juice.inputs(v, num_nodes=2, dist=Bernoulli()) for v in (1, 4)]
    pc = juice.compile(juice.summate(juice.multiply(*leaves), num_nodes=1))
    assert pc.num_vars == 5
    params = pc.init(jax.random.key(0))
    x = np.array([[9, 1, -3, 7, 0]])
    expected = oracle.log_likelihood(pc.root, pc.node_params(params), x)[:, 0]
    np.testing.assert_allclose(pc.log_likelihood(params, x), expected, atol=1e-6)


def test_external_leaves_take_densities_from_the_call() -> None:
    leaves = [juice.inputs(v, num_nodes=3, dist=External()) for v in range(2)]
    root = juice.summate(juice.multiply(*leaves), num_nodes=1)
    pc = juice.compile(root)
    params = pc.init(jax.random.key(0))
    x = np.zeros((5, 2))
    given = jnp.asarray(np.random.default_rng(0).normal(size=(5, 2, 3)), jnp.float32)

    def total(given):
        return pc.log_likelihood(params, x, external_log_probs=given).sum()

    weights = oracle.dense_weights(root, pc.get_node_params(params, root))[0].astype(np.float32)
    e = given.sum(1)
    expected = jnp.log((weights * jnp.exp(e)).sum(1))
    np.testing.assert_allclose(
        pc.log_likelihood(params, x, external_log_probs=given), expected, rtol=1e-5
    )
    by_name = {leaves[1]: given[:, 1], 0: given[:, 0]}
    np.testing.assert_array_equal(
        pc.log_likelihood(params, x, external_log_probs=by_name),
        pc.log_likelihood(params, x, external_log_probs=given),
    )
    posterior = jax.nn.softmax(jnp.log(weights) + e, axis=-1)
    for variable in range(2):
        np.testing.assert_allclose(jax.grad(total)(given)[:, variable], posterior, rtol=1e-4)
    with pytest.raises(juice.DataError, match="external_log_probs are missing, .* variables 0, 1"):
        pc.log_likelihood(params, x)
    with pytest.raises(juice.DataError, match=r"\[5, 2, 3\] is wanted"):
        pc.log_likelihood(params, x, external_log_probs=given[:, :1])
    with pytest.raises(juice.DataError, match="no entry for variable 1"):
        pc.log_likelihood(params, x, external_log_probs={0: given[:, 0]})


def test_external_leaves_of_one_variable_are_told_apart_by_their_vectors() -> None:
    a, other, b = (juice.inputs(v, num_nodes=2, dist=External()) for v in (0, 0, 1))
    root = juice.summate(juice.multiply(a, b), juice.multiply(other, b), num_nodes=1)
    pc = juice.compile(root)
    params = pc.init(jax.random.key(0))
    rng = np.random.default_rng(0)
    given = {ns: rng.normal(size=(3, 2)).astype(np.float32) for ns in (a, other, b)}
    lls = pc.log_likelihood(params, np.zeros((3, 2)), external_log_probs=given)
    e = np.concatenate([given[a] + given[b], given[other] + given[b]], axis=1)
    weights = oracle.dense_weights(root, pc.get_node_params(params, root))[0]
    np.testing.assert_allclose(lls, np.log((weights * np.exp(e)).sum(1)), rtol=1e-5)
    with pytest.raises(juice.DataError, match="entry for 7, no External leaf"):
        pc.log_likelihood(params, np.zeros((3, 2)), external_log_probs={**given, 7: given[a]})


def test_parameters_of_another_circuit_are_refused(hmm) -> None:
    pc, params, x = hmm
    other = juice.compile(juice.structures.HMM(4, 5, 2)).init(jax.random.key(0))
    for wrong in (other, {}, params["sums"], {**params, "inputs": {}}):
        with pytest.raises(juice.ParameterError, match="not those of this circuit"):
            pc.log_likelihood(wrong, x)


def test_weights_must_be_finite(hmm) -> None:
    pc, params, x = hmm
    with pytest.raises(juice.DataError, match="not all finite"):
        pc.log_likelihood_and_flows(params, x, None, [1.0, np.nan, 1.0, 1.0, 1.0, 1.0])
    lls, flows = pc.log_likelihood_and_flows(
        params, x, None, jnp.array([1.0, jnp.nan, 1, 1, 1, 1]), validate=False
    )
    assert bool(jnp.isfinite(lls).all()) and bool(jnp.isnan(flows.weight))
    with pytest.raises(juice.DataError, match="equal lengths"):
        pc.log_likelihood(params, [[0, 1, 0, 1], [0, 1]])


def test_gradients_of_both_calls(hmm) -> None:
    pc, params, x = hmm
    plain = jax.grad(lambda p: pc.log_likelihood(p, x).sum())(params)
    both = jax.grad(lambda p: pc.log_likelihood_and_flows(p, x)[0].sum())(params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), plain, both)
    with pytest.raises(TypeError, match="a gradient of the flows was asked for"):
        jax.grad(lambda p: pc.log_likelihood_and_flows(p, x)[1].sums["sum0"].sum())(params)


def test_gradient_by_continuous_data() -> None:
    leaves = [
        juice.inputs(v, num_nodes=2, dist=juice.distributions.Gaussian(mu=0.0, sigma=1.0))
        for v in range(2)
    ]
    pc = juice.compile(juice.summate(juice.multiply(*leaves), num_nodes=1))
    with jax.enable_x64(True):
        params = pc.init(jax.random.key(0), dtype=jnp.float64)
        x = jnp.array([[0.3, -0.2]])
        gradient = jax.grad(lambda x: pc.log_likelihood(params, x)[0])(x)
        for v in range(2):
            step = jnp.zeros((1, 2)).at[0, v].set(1e-6)
            slope = (
                pc.log_likelihood(params, x + step) - pc.log_likelihood(params, x - step)
            ) / 2e-6
            np.testing.assert_allclose(gradient[0, v], slope[0], rtol=1e-6)


def test_vmap_over_parameters(hmm) -> None:
    pc, params, x = hmm
    stacked = jax.tree.map(lambda a: jnp.stack([a, a[::-1]]), params)
    together = jax.vmap(pc.log_likelihood, in_axes=(0, None))(stacked, x)
    for i in range(2):
        one = pc.log_likelihood(jax.tree.map(lambda a, i=i: a[i], stacked), x)
        np.testing.assert_allclose(together[i], one, rtol=1e-6)


def test_it_prints_a_table() -> None:
    text = str(juice.compile(STRUCTURES["padded tree"]()))
    for part in (
        "40 variables",
        "precision='auto'",
        "bernoulli0",
        "sum, stage 0",
        "padding",
        "root",
    ):
        assert part in text
    assert text.isascii() and max(map(len, text.splitlines())) < 140
