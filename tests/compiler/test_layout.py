"""Layouts: units however a vector is blocked, parameter rows, and the table that prints."""

import numpy as np
import pytest
import random_circuits
import small_circuits

from jaxjuice.compiler import build_program, edges_from_weights, weights_from_edges
from jaxjuice.compiler._units import SumUnit, UnitTable
from jaxjuice.distributions import Categorical
from jaxjuice.nodes import (
    InputNodes,
    ProductNodes,
    SumNodes,
    inputs,
    multiply,
    set_block_size,
    summate,
)
from jaxjuice.structures import HMM, PD
from tests.circuit.test_against_oracle import bushy_chains

COIN = Categorical(num_cats=2)


def random_root(seed):
    rng = np.random.default_rng(seed)
    return random_circuits.random_circuit(rng, zero_masks=True, num_root_nodes=1 + seed % 2)


def sums_of(root):
    return [ns for ns in root if isinstance(ns, SumNodes)]


@pytest.mark.parametrize("seed", range(8))
def test_edges_and_weights_are_inverse(seed):
    """Every edge of a source is in exactly one row, and comes back from there."""
    root = random_root(seed)
    program = build_program(root)
    for ns in {ns.get_source() for ns in sums_of(root)}:
        shape = (ns.edge_ids.shape[1], ns.block_size, ns.ch_block_size)
        array = 1.0 + np.arange(np.prod(shape), dtype=float).reshape(shape)
        back = np.zeros(shape)
        seen = []
        for row in program.sum_rows[ns]:
            weights = weights_from_edges(array, row.edges)
            assert weights.shape == program.sum_groups[row.group].shape[1:]
            seen.append(weights.ravel())
            edges_from_weights(weights, row.edges, back)
        np.testing.assert_array_equal(back, array)
        np.testing.assert_array_equal(np.sort(np.concatenate(seen)), array.ravel())


def test_weights_are_where_the_edges_say():
    """Two node blocks of two, three child blocks of three, edges in any order."""
    child = inputs(0, num_nodes=9, block_size=3, dist=COIN)
    blocks = [[1, 0, 1, 0, 0, 1], [2, 1, 0, 0, 2, 1]]
    ns = summate(child, num_nodes=4, block_size=2, edge_ids=blocks)
    (row,) = build_program(ns).sum_rows[ns]
    array = np.random.default_rng(0).random((6, 2, 3))
    dense = np.zeros((4, 9))
    for edge, (i, j) in enumerate(np.asarray(ns.edge_ids).T):
        dense[2 * i : 2 * i + 2, 3 * j : 3 * j + 3] = array[edge]
    np.testing.assert_array_equal(weights_from_edges(array, row.edges), dense[None])


@pytest.mark.parametrize("block_size", [1, 2, 3, 6])
@pytest.mark.parametrize("ch_block_size", [1, 4])
def test_a_dense_vector_is_one_unit_however_it_is_blocked(block_size, ch_block_size):
    leaves = [inputs(v, num_nodes=8, block_size=ch_block_size, dist=COIN) for v in (0, 1)]
    ns = summate(multiply(*leaves), num_nodes=6, block_size=block_size)
    (unit,) = UnitTable(ns).units_of(ns)
    assert isinstance(unit, SumUnit)
    assert (unit.num_nodes, unit.num_blocks, unit.block_nodes) == (6, 1, 6)
    assert (unit.num_elements, unit.width, unit.arity) == (1, 8, 2)
    program = build_program(ns)
    assert {group.shape for group in program.sum_groups.values()} == {(1, 1, 6, 8)}


def test_equal_sparse_blocks_are_one_unit_and_unequal_ones_are_units_of_their_own():
    with set_block_size(2):
        child = inputs(0, num_nodes=6, dist=COIN)
        diagonal = summate(child, num_nodes=6, edge_ids=np.eye(3, dtype=bool))
        ragged = summate(child, num_nodes=4, edge_ids=[[0, 0, 1], [0, 2, 1]])
    (unit,) = UnitTable(diagonal).units_of(diagonal)
    assert isinstance(unit, SumUnit) and (unit.num_blocks, unit.num_children) == (3, 2)
    units = UnitTable(ragged).units_of(ragged)
    assert [(unit.start, unit.num_nodes) for unit in units] == [(0, 2), (2, 2)]
    assert [unit.num_children for unit in units if isinstance(unit, SumUnit)] == [4, 2]


def picking(picks):
    """A sum of blocks of two nodes; block i reads the leaves `picks[i]`, of four nodes each."""
    leaves = [
        inputs(0, num_nodes=4, block_size=4, dist=COIN) for _ in range(1 + max(map(max, picks)))
    ]
    edges = [[i, j] for i, row in enumerate(picks) for j in row]
    return summate(*leaves, num_nodes=2 * len(picks), block_size=2, edge_ids=np.array(edges).T)


def layer_of(program):
    (stage,) = program.stages
    (layer,) = stage
    return layer


def test_blocks_share_the_elements_that_several_read():
    picks = [[0, 1, 2], [0, 3, 2], [1, 2, 4], [4, 0, 1]]
    ns = picking(picks)
    (unit,) = UnitTable(ns).units_of(ns)
    assert isinstance(unit, SumUnit)
    assert (unit.num_blocks, unit.block_elements, unit.num_children) == (4, 3, 12)
    assert unit.factor_units.shape == unit.factor_offsets.shape == (5, 1)
    np.testing.assert_array_equal(unit.selection, np.sort(picks, axis=1))
    program = build_program(ns)
    layer = layer_of(program)
    assert (layer.num_elements, layer.block_elements, layer.num_children) == (5, 3, 12)
    assert layer.shares_elements and "4 x [B, 3 of 5 x 4] x [12, 2]" in program.table()
    np.testing.assert_array_equal(layer.selection, [[np.sort(picks, axis=1)]])
    np.testing.assert_array_equal(layer.children[4].slots, np.arange(1, 6).reshape(1, 1, 5, 1))
    # Element 0 is child 0 of blocks 0, 1 and 3; element 3 is child 2 of block 1 alone.
    assert layer.selected_by is not None
    np.testing.assert_array_equal(layer.selected_by[0, 0, [0, 3]], [[0, 3, 9], [5, 12, 12]])
    assert program.flow_slots == {8: 2, 4: 6}
    # Parameters are what the edges say.
    assert program.sum_groups["sum0"].shape == (1, 4, 2, 12)


@pytest.mark.parametrize("picks", [[[0, 1], [2, 3]], [[0, 2], [1, 3]]])
def test_blocks_that_share_nothing_read_their_own_one_after_the_other(picks):
    layer = layer_of(build_program(picking(picks)))
    assert not layer.shares_elements and layer.num_elements == 4
    assert layer.selection is not None
    np.testing.assert_array_equal(layer.selection, np.arange(4).reshape(1, 1, 2, 2))
    np.testing.assert_array_equal(layer.children[4].slots.ravel(), 1 + np.ravel(picks))


def test_one_block_selects_all():
    (unit,) = UnitTable(ns := HMM(3, 4, 2)).units_of(ns)
    assert isinstance(unit, SumUnit)
    np.testing.assert_array_equal(unit.selection, np.arange(unit.num_elements)[None])
    for stage in build_program(ns).stages:
        for layer in stage:
            assert layer.selection is None and layer.num_elements == layer.block_elements


def small_pd():
    return PD((4, 4), 8, split_intervals=1, max_prod_block_conns=3, block_size=2, input_dist=COIN)


def factors_of(table, ns, node):
    """The unit and the offset that hold each factor of a node of a sum's child."""
    factors = []
    is_product = isinstance(ns, ProductNodes)
    nodes = zip(ns.chs, ns.child_node_ids()[node], strict=True) if is_product else [(ns, node)]
    for child, i in nodes:
        units = table.units_of(child)
        width = child.num_nodes // len(units)
        factors.append((units[i // width].index, i % width))
    return sorted(factors)


def test_a_pd_reads_each_product_once_a_unit():
    root = small_pd()
    table = UnitTable(root)
    shared = 0
    for ns in sums_of(root):
        products = [(product, j) for product in ns.chs for j in range(product.num_nodes)]
        size = ns.ch_block_size
        for unit in table.units_of(ns):
            assert isinstance(unit, SumUnit)
            pairs = np.stack([unit.factor_units, unit.factor_offsets], axis=-1)
            assert len(np.unique(pairs.reshape(len(pairs), -1), axis=0)) == unit.num_elements
            read = []
            for row, block in zip(unit.selection, unit.edges, strict=True):
                children = [j * size + k for j in ns.edge_ids[1][block[0]] for k in range(size)]
                assert len(children) == unit.num_children
                for element, child in zip(row, children[:: unit.width], strict=True):
                    factors = sorted((i, offset) for i, offset in pairs[element] if i >= 0)
                    assert factors == factors_of(table, *products[child])
                read.extend(row)
            assert set(read) == set(range(unit.num_elements)), "each is read by some block"
            shared += len(read) > unit.num_elements
    assert shared > 10


def test_padding_selects_in_range_and_is_not_selected():
    layers = [layer for stage in build_program(small_pd()).stages for layer in stage]
    (layer,) = [layer for layer in layers if layer.shares_elements]
    assert layer.selection is not None and layer.selected_by is not None
    assert layer.num_steps > 1
    blocks, own = layer.selection.shape[2:]
    assert 0 <= layer.selection.min() and layer.selection.max() < layer.num_elements
    unread = 0
    for place in np.ndindex(layer.num_steps, layer.quota):
        chosen = layer.selection[place].ravel()
        for element in range(layer.num_elements):
            listed = layer.selected_by[(*place, element)]
            found = np.flatnonzero(chosen == element) if layer.weights.real[place] else []
            np.testing.assert_array_equal(listed[listed < blocks * own], found)
            if len(found) == 0:
                unread += 1
                for child in layer.children.values():
                    assert (child.slots[(*place, element)] == 0).all()
    assert unread > 0


def test_tied_copies_select_alike():
    picks = np.array([[0, 1], [0, 2], [1, 2]])
    edges = np.stack([np.repeat(np.arange(3), 2), picks.ravel()])
    leaves = [[inputs(v, num_nodes=4, block_size=4, dist=COIN) for _ in range(3)] for v in range(2)]
    source = summate(*leaves[0], num_nodes=6, block_size=2, edge_ids=edges)
    copy = source.duplicate(*reversed(leaves[1]), tie_params=True)
    root = summate(multiply(source, copy), num_nodes=1)
    table = UnitTable(root)
    for ns in (source, copy):
        (unit,) = table.units_of(ns)
        assert isinstance(unit, SumUnit) and unit.num_elements == 3
        np.testing.assert_array_equal(unit.selection, picks)
    assert build_program(root).sum_groups["sum0"].num_params == 1


def rows_read(program):
    """By group, how often the real entries of all layers read each row."""
    read = {name: np.zeros(group.num_params, int) for name, group in program.sum_groups.items()}
    for stage in program.stages:
        for layer in stage:
            weights = layer.weights
            np.add.at(read[weights.group], weights.rows[weights.real], 1)
    return read


@pytest.mark.parametrize("seed", range(8))
def test_parameter_rows_cover_every_source_once(seed):
    root = random_root(seed)
    program = build_program(root)
    holders = {ns.get_source() for ns in sums_of(root)}
    rows = [(row.group, row.row) for ns in holders for row in program.sum_rows[ns]]
    every = [(name, i) for name, g in program.sum_groups.items() for i in range(g.num_params)]
    assert sorted(rows) == sorted(every)
    # Each vector reads its own rows, a tied copy those of its source.
    wanted = dict.fromkeys(every, 0)
    for ns in sums_of(root):
        assert program.sum_rows[ns] == program.sum_rows[ns.get_source()]
        for row in program.sum_rows[ns]:
            wanted[row.group, row.row] += 1
    read = rows_read(program)
    assert {(name, i): int(n) for name in read for i, n in enumerate(read[name])} == wanted
    leaves = [ns for ns in root if isinstance(ns, InputNodes)]
    held = {ns.get_source(): program.leaf_rows[ns] for ns in leaves}
    assert len(set(held.values())) == len(held)
    assert sorted(held.values()) == sorted(
        (leaf.name, i) for leaf in program.leaves for i in range(leaf.num_params)
    )
    assert all(program.leaf_rows[ns] == held[ns.get_source()] for ns in leaves)


def test_padding_reads_and_writes_in_range():
    """Tables name slots that exist, padded entries too."""
    for seed in range(8):
        program = build_program(random_root(seed))
        for layer in (layer for stage in program.stages for layer in stage):
            for tables, slots in (
                (layer.children, program.value_slots),
                (layer.parents, program.flow_slots),
            ):
                for width, table in tables.items():
                    assert table.slots.min() >= 0 and table.slots.max() < slots[width]
            last = layer.value_start.max() + layer.quota
            assert last <= program.value_slots[layer.num_nodes]
            last = layer.flow_start.max() + layer.quota * layer.num_elements
            assert last <= program.flow_slots[layer.width]


@pytest.mark.parametrize("num_blocks", [1, 2])
def test_entries_of_units_that_read_more_come_first(num_blocks):
    program = build_program(bushy_chains(num_blocks))
    differ = 0
    for layer in (layer for stage in program.stages for layer in stage):
        for table in layer.children.values():
            reads = (table.slots > 0).any(2)  # [R, quota, n]
            for j, count in enumerate(table.entries[1:], 1):
                last = max(np.flatnonzero(step[:, j])[-1] for step in reads if step[:, j].any())
                assert last < count <= min(2 * (last + 1), layer.quota)
            differ += len(set(table.entries)) > 1
    assert differ, "units of several arities share a layer"


def test_rows_of_padding_exist():
    for seed in range(8):
        program = build_program(random_root(seed) if seed else bushy_chains())
        for layer in (layer for stage in program.stages for layer in stage):
            rows = layer.weights.rows
            assert (
                rows.min() >= 0 and rows.max() < program.sum_groups[layer.weights.group].num_params
            )
            if layer.weights.kind == "slice":
                np.testing.assert_array_equal(rows, rows[:, :1] + np.arange(layer.quota))


def test_the_table_has_a_line_a_layer():
    root, _ = small_circuits.chain()
    program = build_program(root)
    lines = program.table().splitlines()
    assert lines[0].split() == "layer steps units product arity parameters path padding".split()
    assert len(lines) == 1 + len(program.leaves) + sum(map(len, program.stages)) + 1
    assert lines[1].startswith("categorical0: Categorical(num_cats=5)")
    assert lines[-1].startswith("root") and "tied" in program.table()


def test_a_long_chain_is_a_short_table():
    lengths = [len(build_program(HMM(n, 4, 2)).table().splitlines()) for n in (10, 500)]
    assert lengths[1] <= lengths[0]
