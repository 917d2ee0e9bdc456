"""Masks of MaskedCategorical, and that forbidden categories stay forbidden."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from leaf_cases import jitted

from jaxjuice._errors import ParameterError
from jaxjuice.distributions import LeafGroup, MaskedCategorical


def mask_of(mode, mask, num_nodes=2, num_cats=5):
    dist = MaskedCategorical(num_cats, mode)
    return dist.check_constants(num_nodes, {"mask": mask})["mask"].astype(int).tolist()


def test_masks_of_every_mode():
    assert mask_of("range", [1, 3]) == [[0, 1, 1, 0, 0]] * 2
    assert mask_of("range", [[0, 5], [4, 5]]) == [[1, 1, 1, 1, 1], [0, 0, 0, 0, 1]]
    assert mask_of("rev_range", [1, 3]) == [[1, 0, 0, 1, 1]] * 2
    assert mask_of("rev_range", [[2, 2], [0, 4]]) == [[1, 1, 1, 1, 1], [0, 0, 0, 0, 1]]
    full = np.array([[1, 0, 0, 1, 0], [0, 1, 0, 0, 0]])
    assert mask_of("full_mask", full) == full.tolist()
    assert mask_of("full_mask", full[0].astype(float)) == [full[0].tolist()] * 2
    for mode in ("range", "rev_range"):  # as files hold them
        assert mask_of(mode, full.astype(bool)) == full.tolist()
    assert mask_of("range", [1, 2], num_cats=2) == [[0, 1]] * 2
    assert mask_of("range", np.array([True, False]), num_cats=2) == [[1, 0]] * 2


@pytest.mark.parametrize(
    ("mode", "mask", "message"),
    [
        ("range", [2, 2], "no category at node 0"),
        ("range", [[0, 1], [5, 5]], "no category at node 1"),
        ("rev_range", [0, 5], "no category at node 0"),
        ("range", [-1, 3], "0 <= low <= high <= 5"),
        ("range", [3, 6], "0 <= low <= high <= 5"),
        ("range", [3, 1], "0 <= low <= high <= 5"),
        ("range", [0.5, 3], "0 <= low <= high <= 5"),
        ("range", [1, 2, 3], r"shape \(3,\)"),
        ("range", "ab", "shape"),
        ("full_mask", [1, 0], r"shape \(2,\)"),
        ("full_mask", [0, 0, 2, 0, 0], "other than 0 and 1"),
        ("full_mask", [0, 0, 0, 0, 0], "no category at node 0"),
    ],
)
def test_bad_masks_are_refused(mode, mask, message):
    with pytest.raises(ParameterError, match=message):
        mask_of(mode, mask)


def test_a_mask_is_wanted():
    with pytest.raises(ParameterError, match="without `mask=`"):
        MaskedCategorical(5).check_constants(2, {})


def test_given_mass_outside_the_mask_is_dropped():
    dist = MaskedCategorical(3)
    constants = dist.check_constants(1, {"mask": [1, 0, 1]})
    checked = dist.check_params({"probs": np.array([[1.0, 5.0, 3.0]])}, constants)
    np.testing.assert_allclose(checked["probs"], [[0.25, 0, 0.75]])
    with pytest.raises(ParameterError, match="row of zeros"):
        dist.check_params({"probs": np.array([[0.0, 5.0, 0.0]])}, constants)


def test_forbidden_categories_stay_forbidden():
    dist = MaskedCategorical(4)
    mask = jnp.asarray([[[True], [False], [True], [True]]])
    leaf = LeafGroup({"probs": jnp.asarray([[[0.5], [0.0], [0.5], [0.0]]])}, {"mask": mask}, None)
    # Counts on a forbidden category cannot come from flows, but must not matter if they do.
    stats = {"counts": jnp.asarray([[[1.0], [7.0], [2.0], [1.0]]])}
    new = jitted(dist, "m_step")(leaf, stats, step_size=1.0, pseudocount=3.0)["probs"][0, :, 0]
    np.testing.assert_allclose(new, np.array([2, 0, 3, 2]) / 7, rtol=1e-6)
    assert new[1] == 0
    kept = jitted(dist, "m_step")(
        leaf, stats, step_size=1.0, pseudocount=3.0, keep_zero_params=True
    )
    np.testing.assert_allclose(kept["probs"][0, :, 0], [0.4, 0, 0.6, 0], rtol=1e-6)
    raw = {"probs": jnp.zeros((1, 4, 1))}
    uniform = dist.from_unconstrained(raw, leaf.constants)["probs"][0, :, 0]
    np.testing.assert_allclose(uniform, [1 / 3, 0, 1 / 3, 1 / 3], rtol=1e-6)
    drawn = dist.init_params(jax.random.key(0), leaf.constants, 1, 1, 2.0, jnp.float32)["probs"]
    assert drawn[0, 1, 0] == 0
    assert (drawn[0, [0, 2, 3], 0] > 0).all()
    assert jitted(dist, "log_prob")(leaf, jnp.asarray([[1]]))[0, 0, 0] == -np.inf
