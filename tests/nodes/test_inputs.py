"""Input vectors: sizes, parameters, constants, ties."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxjuice import ParameterError, StructureError, distributions
from jaxjuice.nodes import InputNodes, inputs

CATEGORICAL = distributions.Categorical(num_cats=3)
PROBS = np.array([[0.2, 0.3, 0.5], [0.1, 0.1, 0.8]])


def test_attributes():
    ns = inputs(7, num_node_blocks=2, dist=CATEGORICAL, block_size=5)
    assert isinstance(ns, InputNodes)
    assert (ns.var, ns.num_nodes, ns.num_node_blocks, ns.block_size) == (7, 10, 2, 5)
    assert list(ns.scope) == [7]
    assert ns.chs == ()
    assert ns.dist is CATEGORICAL
    assert ns.params is None
    assert not ns.has_params()
    assert not ns.is_tied
    assert ns.source is None
    assert ns.get_source() is ns
    assert "Categorical" in repr(ns) and "{7}" in repr(ns)


def test_sizes_by_nodes():
    assert inputs(0, num_nodes=6, block_size=3, dist=CATEGORICAL).num_node_blocks == 2
    assert inputs(0, 2, CATEGORICAL, num_nodes=6, block_size=3).num_nodes == 6


def test_variable_forms():
    assert inputs([4], num_nodes=1, dist=CATEGORICAL).var == 4
    assert inputs(np.int64(4), num_nodes=1, dist=CATEGORICAL).var == 4
    assert inputs((np.int32(4),), num_nodes=1, dist=CATEGORICAL).var == 4


@pytest.mark.parametrize("var", [-1, 1.5, "a", [0, 1], [], None, True, [-2]])
def test_bad_variables_are_refused(var):
    with pytest.raises(StructureError, match="variable"):
        inputs(var, num_nodes=1, dist=CATEGORICAL)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({}, "how many nodes"),
        ({"num_nodes": 5, "block_size": 2}, "multiple of the block size"),
        ({"num_nodes": 4, "num_node_blocks": 1}, "one of the two"),
        ({"num_nodes": -1}, "num_nodes=-1"),
        ({"num_node_blocks": 1.5}, "num_node_blocks=1.5"),
        ({"num_nodes": 2, "block_size": -1}, "block size"),
    ],
)
def test_bad_sizes_are_refused(sizes, message):
    with pytest.raises(StructureError, match=message):
        inputs(0, dist=CATEGORICAL, **sizes)


@pytest.mark.parametrize("dist", [None, "Categorical", distributions.Categorical, 3])
def test_bad_distributions_are_refused(dist):
    with pytest.raises(StructureError, match="distributions"):
        inputs(0, num_nodes=1, dist=dist)


@pytest.mark.parametrize(
    "params", [PROBS, PROBS.tolist(), {"probs": PROBS}, PROBS.reshape(-1), jnp.asarray(PROBS)]
)
def test_parameter_forms(params):
    ns = inputs(0, num_nodes=2, dist=CATEGORICAL, params=params)
    assert ns.has_params()
    np.testing.assert_allclose(ns.params["probs"], PROBS, rtol=1e-6)


def test_parameters_of_several_kinds_from_one_array():
    ns = inputs(0, num_nodes=2, dist=distributions.Gaussian(), params=[[0.0, 1.0], [2.0, 3.0]])
    np.testing.assert_array_equal(ns.params["mu"], [0.0, 2.0])
    np.testing.assert_array_equal(ns.params["sigma"], [1.0, 3.0])


def test_parameters_are_copied_and_read_only():
    probs = PROBS.copy()
    ns = inputs(0, num_nodes=2, dist=CATEGORICAL, params=probs)
    probs[:] = 0
    np.testing.assert_allclose(ns.params["probs"], PROBS)
    with pytest.raises(ValueError, match="read-only"):
        ns.params["probs"][0] = 1


@pytest.mark.parametrize(
    "params", [PROBS[:1], np.ones((2, 4)), {"p": PROBS}, {}, -PROBS, PROBS * np.nan, "ab"]
)
def test_bad_parameters_are_refused(params):
    with pytest.raises(ParameterError, match=r"set_params of InputNodes"):
        inputs(0, num_nodes=2, dist=CATEGORICAL, params=params)


def test_parameters_can_be_unset():
    ns = inputs(0, num_nodes=2, dist=CATEGORICAL, params=PROBS)
    ns.set_params(None)
    assert not ns.has_params()


def test_constants():
    masked = distributions.MaskedCategorical(num_cats=3)
    mask = np.array([[True, True, False], [True, False, True]])
    ns = inputs(0, num_nodes=2, dist=masked, mask=mask)
    np.testing.assert_array_equal(ns.constants["mask"], mask)
    shared = inputs(0, num_nodes=2, dist=masked, mask=mask[0])
    np.testing.assert_array_equal(shared.constants["mask"], [mask[0], mask[0]])
    with pytest.raises(ParameterError):
        inputs(0, num_nodes=2, dist=masked, mask=mask[:, :2])
    with pytest.raises(ParameterError):
        inputs(0, num_nodes=2, dist=CATEGORICAL, mask=mask)


def test_untied_duplicate_has_its_own_parameters():
    ns = inputs(0, num_nodes=2, dist=CATEGORICAL, params=PROBS)
    copy = ns.duplicate(3)
    assert (copy.var, copy.is_tied) == (3, False)
    np.testing.assert_allclose(copy.params["probs"], PROBS)
    copy.set_params(PROBS[::-1])
    np.testing.assert_allclose(ns.params["probs"], PROBS)


def test_tied_duplicates_share_the_ultimate_source():
    masked = distributions.MaskedCategorical(num_cats=3)
    ns = inputs(0, num_nodes=2, dist=masked, mask=np.ones((2, 3), bool))
    first = ns.duplicate(1, tie_params=True)
    second = first.duplicate(2, tie_params=True)
    same_variable = ns.duplicate(tie_params=True)
    assert second.source is ns and second.get_source() is ns and second.is_tied
    assert same_variable.var == 0
    assert second.params is None and not second.has_params()
    assert second.constants is ns.constants
    second.set_params(PROBS)
    assert second.has_params()
    np.testing.assert_allclose(ns.params["probs"], PROBS)
    # A copy of a tied vector without a tie begins with the parameters of its source.
    np.testing.assert_allclose(second.duplicate(5).params["probs"], PROBS)


def test_source_node_argument():
    ns = inputs(0, num_nodes=2, dist=CATEGORICAL)
    tied = inputs(1, num_nodes=2, source_node=ns)
    assert tied.source is ns and tied.dist is CATEGORICAL
    with pytest.raises(StructureError, match="cannot be tied"):
        inputs(1, num_nodes=3, source_node=ns)
    with pytest.raises(StructureError, match="cannot be tied"):
        inputs(1, num_nodes=2, dist=distributions.Bernoulli(), source_node=ns)
    with pytest.raises(ParameterError, match="tied"):
        inputs(1, num_nodes=2, source_node=ns, params=PROBS)


def test_num_parameters():
    ns = inputs(0, num_nodes=4, dist=CATEGORICAL)
    assert ns.num_parameters() == 0
    assert ns.num_parameters(count_input_params=True) == 12
    assert inputs(0, num_nodes=2, dist=distributions.Literal(1)).num_parameters(True) == 0
