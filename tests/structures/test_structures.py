"""What every structure must satisfy: one suite over all of them."""

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from random_circuits import randomize_params

import jaxjuice
from jaxjuice import StructureError, distributions
from jaxjuice.nodes import (
    InputNodes,
    SumNodes,
    block_diagonal_edge_constructor,
    block_sparse_rnd_blk_edge_constructor,
    is_decomposable,
    is_smooth,
    is_structured_decomposable,
)
from jaxjuice.structures import HCLT, HMM, PD, PDHCLT, RAT_SPN, GeneralizedHMM

BINARY = {"input_dist": distributions.Bernoulli()}
DATA = (np.random.default_rng(0).random((100, 12)).cumsum(axis=1) % 1 < 0.5).astype(int)


def sparse():
    return block_sparse_rnd_blk_edge_constructor(2, seed=1)


STRUCTURES = {
    "hclt": lambda: HCLT(DATA, 6, **BINARY),
    "hclt of blocks": lambda: HCLT(DATA, 6, block_size=2, **BINARY),
    "hclt of one": lambda: HCLT(DATA[:, :1], 3, **BINARY),
    "hclt of two": lambda: HCLT(DATA[:, :2], 3, **BINARY),
    "hclt of three": lambda: HCLT(DATA[:, :3], 3, **BINARY),
    "hclt of one latent": lambda: HCLT(DATA, 1, **BINARY),
    "hclt with several roots": lambda: HCLT(DATA, 4, num_root_ns=6, **BINARY),
    "hclt with tied inputs": lambda: HCLT(DATA, 3, tie_input_params=True, **BINARY),
    "hclt sparse": lambda: HCLT(DATA, 8, block_size=2, sum_edge_ids_constructor=sparse(), **BINARY),
    "hclt by class": lambda: HCLT(
        DATA, 3, input_node_type=distributions.Categorical, input_node_params={"num_cats": 2}
    ),
    "hmm": lambda: HMM(12, 5, 2),
    "hmm of one": lambda: HMM(1, 5, 2),
    "hmm of two": lambda: HMM(2, 5, 2),
    "hmm inhomogeneous": lambda: HMM(6, 4, 2, homogeneous=False, block_size=2),
    "hmm sparse": lambda: HMM(6, 6, 2, block_size=2, sum_edge_ids_constructor=sparse()),
    "generalized hmm": lambda: GeneralizedHMM(7, 4, **BINARY),
    "generalized hmm inhomogeneous": lambda: GeneralizedHMM(5, 3, homogeneous=False, **BINARY),
    "pd": lambda: PD((3, 4), 4, split_intervals=1, **BINARY),
    "pd of blocks": lambda: PD((3, 4), 6, split_intervals=(2, 2), block_size=2, **BINARY),
    "pd with few connections": lambda: PD(
        (3, 4), 4, split_intervals=1, max_prod_block_conns=1, block_size=2, **BINARY
    ),
    "pd product-dominated": lambda: PD(
        (2, 4), 3, split_intervals=1, structure_type="prod_dominated", **BINARY
    ),
    "pd tied": lambda: PD((3, 4), 4, split_intervals=1, tie_homogeneous_params=True, **BINARY),
    "pd tied product-dominated": lambda: PD(
        (2, 4),
        4,
        split_intervals=1,
        structure_type="prod_dominated",
        tie_homogeneous_params=True,
        max_prod_block_conns=2,
        **BINARY,
    ),
    "pd of no splits": lambda: PD((3, 4), 4, split_intervals=9, **BINARY),
    "pd of one variable": lambda: PD((1,), 4, split_intervals=1, **BINARY),
    "pd of one axis": lambda: PD(10, 4, split_points=[[3, 4, 8]], **BINARY),
    "pd of three axes": lambda: PD((2, 3, 2), 3, split_intervals=1, **BINARY),
    "pd of depth 0": lambda: PD((3, 4), 4, split_intervals=1, max_split_depth=0, **BINARY),
    "pd of depth 1": lambda: PD((3, 4), 4, split_intervals=1, max_split_depth=1, **BINARY),
    "pd of depth 3": lambda: PD((3, 4), 4, split_intervals=1, max_split_depth=3, **BINARY),
    "pdhclt": lambda: PDHCLT(DATA, (3, 4), 4, split_intervals=2, **BINARY),
    "pdhclt of no splits": lambda: PDHCLT(DATA, (3, 4), 4, split_intervals=9, **BINARY),
    "pdhclt of single variables": lambda: PDHCLT(DATA, (3, 4), 4, split_intervals=1, **BINARY),
    "pdhclt of depth 2": lambda: PDHCLT(
        DATA, (3, 4), 4, split_intervals=1, max_split_depth=2, block_size=2, **BINARY
    ),
    "rat": lambda: RAT_SPN(12, 4, depth=3, num_repetitions=3, **BINARY),
    "rat of one": lambda: RAT_SPN(1, 4, depth=3, num_repetitions=3, **BINARY),
    "rat of depth 0": lambda: RAT_SPN(5, 4, depth=0, num_repetitions=2, **BINARY),
    "rat of three pieces": lambda: RAT_SPN(11, 4, 9, 2, num_pieces=3, **BINARY),
    "rat of blocks": lambda: RAT_SPN(
        9, 6, 2, 2, block_size=2, sum_edge_ids_constructor=block_diagonal_edge_constructor, **BINARY
    ),
}


@pytest.fixture(params=sorted(STRUCTURES), scope="module")
def built(request):
    return request.param, STRUCTURES[request.param]()


def test_probabilities_of_all_assignments_sum_to_one(built):
    _, root = built
    randomize_params(np.random.default_rng(1), root)
    num_vars = max(root.scope) + 1
    total = oracle.total_probability(root, oracle.dag_params(root), [2] * num_vars)
    np.testing.assert_allclose(total, 1, atol=1e-12)
    assert total.shape == (6 if built[0] == "hclt with several roots" else 1,)


def test_structural_properties(built):
    name, root = built
    assert is_smooth(root) and is_decomposable(root)
    assert list(root.scope) == list(range(len(root.scope)))
    assert isinstance(root, SumNodes)
    if name.startswith(("hclt", "hmm", "generalized")):
        assert is_structured_decomposable(root)


def test_one_input_vector_per_variable_unless_copied(built):
    name, root = built
    if "product-dominated" in name:
        return
    variables = [ns.var for ns in root if isinstance(ns, InputNodes)]
    assert sorted(variables) == list(root.scope)


@pytest.mark.parametrize("name", sorted(STRUCTURES))
def test_structures_are_reproducible(name):
    first, again = STRUCTURES[name](), STRUCTURES[name]()
    for a, b in zip(first, again, strict=True):
        assert repr(a) == repr(b)
        if not isinstance(a, InputNodes):
            np.testing.assert_array_equal(a.edge_ids, b.edge_ids)


SIZED = {
    "HCLT": lambda **o: HCLT(DATA, **o, **BINARY),
    "HMM": lambda **o: HMM(3, num_emits=2, **o),
    "GeneralizedHMM": lambda **o: GeneralizedHMM(3, **o, **BINARY),
    "PD": lambda **o: PD((2, 2), split_intervals=1, **o, **BINARY),
    "PDHCLT": lambda **o: PDHCLT(DATA[:, :4], (2, 2), split_intervals=1, **o, **BINARY),
    "RAT_SPN": lambda **o: RAT_SPN(4, depth=1, num_repetitions=1, **o, **BINARY),
}


@pytest.mark.parametrize("name", sorted(SIZED))
@pytest.mark.parametrize("num_latents", [1, 2, 6, 7, 37, 100])
def test_no_latent_is_lost(name, num_latents):
    root = SIZED[name](num_latents=num_latents)
    assert {ns.num_nodes for ns in root if ns is not root} == {num_latents}
    assert root.num_nodes == 1


@pytest.mark.parametrize("name", sorted(SIZED))
def test_block_sizes_that_do_not_divide_are_refused(name):
    with pytest.raises(StructureError, match="block_size=4 does not divide num_latents=6"):
        SIZED[name](num_latents=6, block_size=4)
    for bad in (0, -1, 2.5, "3"):
        with pytest.raises(StructureError, match="num_latents"):
            SIZED[name](num_latents=bad)
    with pytest.raises(StructureError, match="block_size=0"):
        SIZED[name](num_latents=6, block_size=0)


def draws(seed):
    root = RAT_SPN(8, 2, 2, 2, seed=seed, **BINARY)
    return [str(ns.scope) for ns in root]


def test_seeds():
    assert draws(3) == draws(3) == draws(np.int64(3))
    assert draws(3) != draws(4)
    key = jax.random.key(3)
    assert draws(key) == draws(jax.random.key(3)) == draws(jax.random.PRNGKey(3))
    assert draws(key) != draws(jax.random.key(4))
    assert draws(np.random.default_rng(3)) == draws(3)
    for bad in (-1, 1.5, "a", None, True):
        with pytest.raises(StructureError, match="seed="):
            draws(bad)


@pytest.mark.parametrize("name", sorted(SIZED))
def test_every_structure_takes_a_seed(name):
    for seed in (3, jax.random.key(3)):
        first, again = (SIZED[name](num_latents=2, seed=seed) for _ in range(2))
        assert [repr(ns) for ns in first] == [repr(ns) for ns in again]


@pytest.mark.parametrize("name", ["hclt", "hmm inhomogeneous", "pd", "rat"])
def test_scope_of_families(name):
    root = STRUCTURES[name]()
    families = {type(ns.dist).__name__ for ns in root if isinstance(ns, InputNodes)}
    assert families == {"Categorical"} if name.startswith("hmm") else {"Bernoulli"}


def test_the_default_family_has_256_categories():
    for root in (
        HCLT(DATA, 2),
        GeneralizedHMM(3, 2),
        PD((2, 2), 2, split_intervals=1),
        PDHCLT(DATA[:, :4], (2, 2), 2, split_intervals=1),
        RAT_SPN(4, 2, 1, 1),
    ):
        dists = {ns.dist for ns in root if isinstance(ns, InputNodes)}
        assert dists == {distributions.Categorical(num_cats=256)}


def test_bad_families_are_refused():
    with pytest.raises(StructureError, match="input_dist"):
        HCLT(DATA, 2, input_dist=distributions.Bernoulli)  # pyright: ignore[reportArgumentType]


def test_jax_data_give_the_same_tree():
    mine, theirs = HCLT(DATA, 3, **BINARY), HCLT(jnp.asarray(DATA), 3, **BINARY)
    assert [repr(ns) for ns in mine] == [repr(ns) for ns in theirs]


def test_structures_are_public():
    assert jaxjuice.structures.HCLT is HCLT
