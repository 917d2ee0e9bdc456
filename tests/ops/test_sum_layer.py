"""Sum layers against float64 numpy, at odd shapes and where children are impossible."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxjuice.ops import (
    LL,
    PRECISIONS,
    Propagation,
    add_selected,
    block_shifts,
    canonical_precision,
    choose_children,
    exponentiate,
    exponentiate_elements,
    flow_ratio,
    select_elements,
    shared_elements_backward,
    sum_layer_backward,
    sum_layer_forward,
    sum_layer_weight_gradient,
)

GENERAL = Propagation("GeneralLL", 1.7)
MPE = Propagation("MPE")
RULES = {"LL": LL, "GeneralLL": GENERAL, "MPE": MPE}

# (blocks, batch, elements, width, nodes)
SHAPES = [(1, 1, 1, 1, 1), (2, 7, 1, 16, 7), (1, 16, 3, 7, 17), (3, 17, 2, 1, 16), (2, 5, 17, 1, 1)]


def make_layer(shape, seed=0, dead=0.2):
    """Children with scales, weights with zeros, and whole rows of -inf; all float32 values."""
    blocks, batch, elements, width, nodes = shape
    rng = np.random.default_rng(seed)
    e = rng.normal(scale=3, size=(blocks, batch, elements, width))
    e[rng.random(e.shape) < dead] = -np.inf
    e[rng.random((blocks, batch)) < dead] = -np.inf
    # What lies further below the maximum than float32 reaches (87 nats) counts as impossible.
    scale = -1e4 + rng.normal(scale=3, size=e.shape[:3])
    weights = rng.random((blocks, nodes, elements * width)) + 0.01
    weights[rng.random(weights.shape) < dead] = 0.0
    weights[..., 0] += 0.01
    weights /= weights.sum(-1, keepdims=True)
    return tuple(a.astype(np.float32) for a in (e, scale, weights))


def reference(e, scale, weights, rule):
    """Node values and the terms `log theta + e` `[X, B, M, N]`, in float64."""
    e, scale, weights = (a.astype(np.float64) for a in (e, scale, weights))
    children = (e + scale[..., None]).reshape(*e.shape[:2], -1)
    with np.errstate(divide="ignore"):
        terms = np.log(weights)[:, None] + children[:, :, None]
    if rule.is_max:
        return terms.max(-1), terms
    alpha = rule.alpha if rule.algorithm == "GeneralLL" else 1.0
    return np.logaddexp.reduce(alpha * terms, axis=-1) / alpha, terms


def shares_of(values, terms, rule):
    """Which part of a node's flow goes to which child, `[X, B, M, N]`; 0 where the node is -inf."""
    alive = np.isfinite(values)[..., None]
    safe = np.where(alive, values[..., None], 0.0)
    if rule.is_max:
        chosen = np.arange(terms.shape[-1]) == terms.argmax(-1)[..., None]
        return np.where(alive, chosen, 0.0)
    alpha = rule.alpha if rule.algorithm == "GeneralLL" else 1.0
    return np.where(alive, np.exp(alpha * (terms - safe)), 0.0)


@partial(jax.jit, static_argnums=4)
def run(e, scale, weights, f, rule):
    p, shift = exponentiate(e, scale, rule)
    v = sum_layer_forward(p, weights, rule, "fp32")
    q = flow_ratio(v, f, rule)
    factor = choose_children(p, weights) if rule.is_max else p
    element_flows = sum_layer_backward(factor, q, weights, rule, "fp32")
    gradient = sum_layer_weight_gradient(q[:, None], factor[:, None], weights, rule, "fp32")
    return v + shift[..., None], q, element_flows, gradient


CASES = [(shape, "float32") for shape in SHAPES] + [(SHAPES[2], "float64")]


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("shape, dtype", CASES, ids=str)
def test_against_float64(name, shape, dtype):
    rule = RULES[name]
    layer = make_layer(shape)
    f = np.random.default_rng(1).random((shape[0], shape[1], shape[4])).astype(np.float32)
    with jax.enable_x64(True):
        arrays = [jnp.asarray(a, dtype) for a in (*layer, f)]
        got = run(*arrays, rule)
        assert all(a.dtype == dtype for a in got)
        got = [np.asarray(a, np.float64) for a in got]
    values, terms = reference(*layer, rule)
    flows = shares_of(values, terms, rule) * f[..., None]
    tolerance = (
        {"rtol": 2e-4, "atol": 2e-5} if dtype == "float32" else {"rtol": 1e-9, "atol": 1e-12}
    )
    np.testing.assert_array_equal(np.isneginf(got[0]), np.isneginf(values))
    np.testing.assert_allclose(got[0], values, rtol=1e-6 if dtype == "float32" else 1e-12)
    np.testing.assert_allclose(got[2], flows.sum(2), **tolerance)
    np.testing.assert_allclose(got[3] * layer[2], flows.sum(1), **tolerance)
    assert all(np.isfinite(a).all() for a in got[1:])


@pytest.mark.parametrize("name", RULES)
def test_rows_that_are_impossible(name):
    """Every child is -inf, or every child with a positive weight: value -inf, flows 0, no NaN."""
    e = np.full((1, 3, 1, 4), -np.inf, np.float32)
    e[0, 1:, 0, 3] = [0.0, -2.0]
    weights = np.asarray([[[0.5, 0.25, 0.25, 0.0], [0.0, 0.0, 0.0, 1.0]]], np.float32)
    f = np.ones((1, 3, 2), np.float32)
    arrays = [jnp.asarray(a) for a in (e, np.zeros((1, 3, 1), np.float32), weights, f)]
    values, q, element_flows, gradient = run(*arrays, RULES[name])
    np.testing.assert_array_equal(values[0], [[-np.inf, -np.inf], [-np.inf, 0.0], [-np.inf, -2.0]])
    np.testing.assert_array_equal(q[0, :, 0], np.zeros(3))
    np.testing.assert_array_equal(element_flows[0], [[0, 0, 0, 0], [0, 0, 0, 1], [0, 0, 0, 1]])
    np.testing.assert_array_equal(gradient[0] * weights[0], [[0, 0, 0, 0], [0, 0, 0, 2]])


@pytest.mark.parametrize("name", RULES)
def test_one_child_passes_its_value_and_flow_on(name):
    e = np.asarray([-1e4, 0.0, 3.0], np.float32).reshape(1, 3, 1, 1)
    scale = np.asarray([-1e5, 7.0, 0.0], np.float32).reshape(1, 3, 1)
    f = np.asarray([1.0, 0.0, 0.5], np.float32).reshape(1, 3, 1)
    arrays = [jnp.asarray(a) for a in (e, scale, np.ones((1, 1, 1), np.float32), f)]
    values, _, element_flows, _ = run(*arrays, RULES[name])
    np.testing.assert_array_equal(values[0, :, 0], [-1.1e5, 7.0, 3.0])
    np.testing.assert_array_equal(element_flows[0, :, 0], f[0, :, 0])


def test_exponentiate_shifts_by_the_maximum():
    e, scale, _ = make_layer((2, 7, 3, 4, 1))
    children = (e.astype(np.float64) + scale[..., None]).reshape(2, 7, 12)
    dead = np.isneginf(children).all(-1)
    assert dead.any() and not dead.all()
    wanted = children.max(-1)
    for rule, power in ((LL, 1.0), (GENERAL, GENERAL.alpha)):
        p, shift = exponentiate(jnp.asarray(e), jnp.asarray(scale), rule)
        assert np.isfinite(shift).all() and np.isfinite(p).all()
        np.testing.assert_allclose(np.asarray(shift)[~dead], wanted[~dead], rtol=1e-6)
        np.testing.assert_array_equal(np.asarray(p)[dead], 0.0)
        np.testing.assert_allclose(np.asarray(p).max(-1)[~dead], 1.0, rtol=1e-3)
        # Relative to the shift as it is stored, not to the maximum that it is rounded from.
        relative = np.exp(power * (children[~dead] - np.asarray(shift, np.float64)[~dead][:, None]))
        np.testing.assert_allclose(np.asarray(p)[~dead], relative, rtol=3e-5, atol=1e-7)
    p, shift = exponentiate(jnp.asarray(e), jnp.asarray(scale), MPE)
    relative = children[~dead] - np.asarray(shift, np.float64)[~dead][:, None]
    np.testing.assert_allclose(np.asarray(p)[~dead], relative, rtol=1e-6, atol=3e-5)
    assert np.isneginf(np.asarray(p)[dead]).all() and np.isfinite(shift).all()


def test_flow_ratio_is_finite_where_padding_is_absurd():
    v = jnp.asarray([[[-jnp.inf, -200.0, -87.0, 0.0]]], jnp.float32)
    f = jnp.asarray([[[1.0, 0.0, 1.0, 0.25]]], jnp.float32)
    q = flow_ratio(v, f, LL)
    assert np.isfinite(q).all()
    np.testing.assert_array_equal(q[0, 0, jnp.asarray([0, 1, 3])], [0.0, 0.0, 0.25])
    np.testing.assert_allclose(q[0, 0, 2], np.exp(87.0), rtol=1e-5)
    np.testing.assert_array_equal(flow_ratio(v, f, MPE), [[[0.0, 0.0, 1.0, 0.25]]])


def test_of_equal_children_the_lowest_is_chosen():
    arrays = [jnp.zeros((1, 2, 1, 3)), jnp.zeros((1, 2, 1)), jnp.full((1, 1, 3), 1 / 3)]
    element_flows = run(*arrays, jnp.ones((1, 2, 1)), MPE)[2]
    np.testing.assert_array_equal(element_flows[0], [[1, 0, 0], [1, 0, 0]])


def test_copies_add_up_in_the_weight_gradient():
    rng = np.random.default_rng(0)
    q, p = rng.random((2, 3, 5, 4)), rng.random((2, 3, 5, 6))
    weights = jnp.full((2, 4, 6), 1 / 6)
    got = sum_layer_weight_gradient(
        jnp.asarray(q, jnp.float32), jnp.asarray(p, jnp.float32), weights, LL, "fp32"
    )
    np.testing.assert_allclose(got, np.einsum("xcbm,xcbn->xmn", q, p), rtol=1e-5)


# (units, blocks, elements of a block, distinct elements, batch, width, nodes of a block)
SHARED_SHAPES = [(1, 2, 1, 2, 1, 1, 1), (2, 3, 2, 4, 7, 5, 3), (3, 4, 4, 6, 16, 1, 2)]


def make_shared(shape, apart, seed=0):
    """As `make_layer`, and flows and a selection of elements that lie `apart` nats."""
    units, blocks, own, elements, batch, width, nodes = shape
    e, scale, _ = make_layer((units, batch, elements, width, 1), seed)
    e, scale = e.swapaxes(1, 2), scale.swapaxes(1, 2).copy()
    scale += apart * (np.arange(elements, dtype=np.float32)[:, None] % 4)
    rng = np.random.default_rng(seed)
    chosen = [[rng.choice(elements, own, replace=False) for _ in range(blocks)] for _ in e]
    selection = np.sort(np.array(chosen, np.int32), axis=-1)
    # A node whose weight of the largest is 0 does not see what lies too far below it.
    dead = 0.2 if apart < 10 else 0.0
    weights = make_layer((units * blocks, 1, own, width, nodes), seed, dead)[2]
    f = rng.random((units * blocks, batch, nodes)).astype(np.float32)
    return e, scale, weights, f, selection


def inverse(selection, elements):
    """What `add_selected` takes, with more room than any element needs."""
    units, blocks, own = selection.shape
    table = np.full((units, elements, blocks + 1), blocks * own, np.int32)
    for x, element in np.ndindex(units, elements):
        places = np.flatnonzero(selection[x].ravel() == element)
        table[x, element, : len(places)] = places
    return table


@partial(jax.jit, static_argnums=6)
def run_shared(e, scale, weights, f, selection, selected_by, rule):
    p, m = exponentiate_elements(e, scale, rule)
    block_shift = block_shifts(m, selection)
    operand = select_elements(p, m, block_shift, selection, rule)
    v = sum_layer_forward(operand, weights, rule, "fp32")
    q = flow_ratio(v, f, rule)
    factor = choose_children(operand, weights) if rule.is_max else p
    m, width = None if rule.is_max else m, e.shape[3]
    element_flows = shared_elements_backward(
        factor, m, block_shift, q, weights, selected_by, width, rule, "fp32"
    )
    factor = factor if rule.is_max else operand
    gradient = sum_layer_weight_gradient(q[:, None], factor[:, None], weights, rule, "fp32")
    values = v + block_shift.reshape(len(v), -1, 1)
    return values, element_flows, gradient, block_shift, operand


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("apart", [5, 200])
@pytest.mark.parametrize("shape", SHARED_SHAPES, ids=str)
def test_shared_elements_against_float64(name, shape, apart, dtype):
    rule = RULES[name]
    units, blocks, own, elements, batch, width, _ = shape
    e, scale, weights, f, selection = make_shared(shape, apart)
    with jax.enable_x64(True):
        arrays = [jnp.asarray(a, dtype) for a in (e, scale, weights, f)]
        tables = jnp.asarray(selection), jnp.asarray(inverse(selection, elements))
        got = run_shared(*arrays, *tables, rule)
        assert all(a.dtype == dtype for a in got)
        values, element_flows, gradient, shifts, _ = (np.asarray(a, np.float64) for a in got)
    assert all(np.isfinite(a).all() for a in (element_flows, gradient, shifts))
    # Each block with copies of its elements, as a layer of its own.
    place = np.arange(units)[:, None, None], selection
    own_e = e[place].transpose(0, 1, 3, 2, 4).reshape(units * blocks, batch, own, width)
    own_scale = scale[place].transpose(0, 1, 3, 2).reshape(units * blocks, batch, own)
    wanted, terms = reference(own_e, own_scale, weights, rule)
    flows = shares_of(wanted, terms, rule) * f[..., None]
    summed = np.zeros(e.shape)
    by_child = flows.sum(2).reshape(units, blocks, batch, own, width).swapaxes(2, 3)
    np.add.at(summed, place, by_child)
    tolerance = (
        {"rtol": 2e-4, "atol": 2e-5} if dtype == "float32" else {"rtol": 1e-9, "atol": 1e-12}
    )
    np.testing.assert_array_equal(np.isneginf(values), np.isneginf(wanted))
    np.testing.assert_allclose(values, wanted, rtol=1e-6 if dtype == "float32" else 1e-12)
    np.testing.assert_allclose(element_flows, summed, **tolerance)
    np.testing.assert_allclose(gradient * weights, flows.sum(1), **tolerance)


@pytest.mark.parametrize("name", ["LL", "GeneralLL"])
def test_shared_elements_keep_their_digits_far_from_zero(name):
    """Shifts of a million nats are whole numbers over 16, operands have all their digits."""
    e = np.random.default_rng(0).normal(scale=3, size=(1, 2, 4, 5)).astype(np.float32)
    scale = np.broadcast_to(np.float32([[-1e6], [-1e6 + 2]]), (1, 2, 4))
    selection = np.array([[[0, 1]]], np.int32)
    weights, f = np.full((1, 1, 10), 0.1, np.float32), np.ones((1, 4, 1), np.float32)
    tables = selection, inverse(selection, 2)
    *_, shift, operand = run_shared(*map(jnp.asarray, (e, scale, weights, f, *tables)), RULES[name])
    exact = e.astype(np.float64) + scale[..., None] - np.asarray(shift, np.float64)[:, 0, :, None]
    exact = np.exp(RULES[name].alpha * exact).swapaxes(1, 2).reshape(1, 4, 10)
    np.testing.assert_allclose(operand, exact, rtol=1e-5)
    assert np.asarray(operand).max() < 1.1


def test_add_selected_without_shifts():
    selection = np.array([[[0, 2], [1, 2]], [[0, 1], [1, 3]]], np.int32)
    flows = np.arange(4 * 3 * 4, dtype=np.float32).reshape(4, 3, 4)
    got = add_selected(jnp.asarray(flows), jnp.asarray(inverse(selection, 4)), 2)
    assert got.shape == (2, 4, 3, 2)
    parts = flows.reshape(2, 2, 3, 2, 2)
    np.testing.assert_array_equal(got[0, 0], parts[0, 0, :, 0])
    np.testing.assert_array_equal(got[0, 2], parts[0, 0, :, 1] + parts[0, 1, :, 1])
    np.testing.assert_array_equal(got[0, 3], np.zeros((3, 2)))
    np.testing.assert_array_equal(got[1, 1], parts[1, 0, :, 1] + parts[1, 1, :, 0])


def test_canonical_precision():
    assert [canonical_precision(mode) for mode in PRECISIONS] == list(PRECISIONS)
    for given, mode in (("default", "bf16"), ("high", "tf32"), ("highest", "fp32")):
        assert canonical_precision(given) == mode
        assert canonical_precision(lax.Precision[given.upper()]) == mode
    for bad in ("AUTO", "float32", "", None, 32, ["fp32"], lax.DotAlgorithmPreset.F32_F32_F32):
        with pytest.raises(ValueError, match="precision=.* is not a mode: take one of 'auto', "):
            canonical_precision(bad)  # pyright: ignore[reportArgumentType]
