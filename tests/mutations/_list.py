"""The wrong edits, and the tests that catch them."""

from typing import NamedTuple


class Mutation(NamedTuple):
    """A wrong edit.

    Attributes:
        what: in words.
        file: under `jaxjuice/`.
        old, new: a text, which is replaced wherever it stands.
        tests: arguments of pytest; some test among these fails.
    """

    what: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


def _interpreted(*names: str) -> tuple[str, ...]:
    """Kernels in the interpreter, by names of `tests/kernels/suite.py`."""
    path = "tests/kernels/interpreted/test_kernels.py"
    return tuple(f"{path}::test_kernel[{name}]" for name in names)


def _precise(op: str, precision: str) -> tuple[str, ...]:
    return (f"tests/kernels/interpreted/test_kernels.py::test_precision[{op}-{precision}]",)


def _precise_dense(op: str, precision: str) -> tuple[str, ...]:
    path = "tests/kernels/interpreted/test_kernels.py"
    return (f"{path}::test_precision_of_dense_products[{op}-{precision}]",)


_CHILDREN = "ops/kernels/device/children.py"
_FLOWS = "ops/kernels/device/flows.py"
_BLOCKS = "ops/kernels/device/blocks.py"
_DENSE = "ops/kernels/device/dense.py"
_ARITHMETIC = "ops/kernels/device/arithmetic.py"
_PARTS = "ops/kernels/_parts.py"

KERNELS = [
    Mutation(
        "children of the first launch in every launch", _CHILDREN,
        "group = first_unit(counter, stride, offset) * per_unit + here", "group = here",
        _interpreted("exponentiate-small"),
    ),
    Mutation(
        "all units have their shifts where the first does", _CHILDREN,
        "tl.load(starts + group)", "tl.load(starts)", _interpreted("exponentiate-small"),
    ),
    Mutation(
        "p of padding is kept", _CHILDREN,
        "mask & (kept_place >= 0)", "mask", _interpreted("exponentiate-small"),
    ),
    Mutation(
        "no finite shift where all children are -inf", _CHILDREN,
        "tl.full([ROWS], LOWEST, tl.float32)", 'tl.full([ROWS], float("-inf"), tl.float32)',
        _interpreted("exponentiate-dead"),
    ),
    Mutation(
        "p relative to another shift than is stored", _CHILDREN,
        "shift = total - scale", "shift = shift", _interpreted("exponentiate-many-factors"),
    ),
    Mutation(
        "slot 0 is read", _CHILDREN,
        "mask=mask & (slot > 0)", "mask=mask & (slot >= 0)", _interpreted("exponentiate-small"),
    ),
    Mutation(
        "one factor too many", _CHILDREN,
        "first + f < factors", "first + f <= factors", _interpreted("exponentiate-small"),
    ),
    Mutation(
        "the leaf before the one that is looked up", _CHILDREN,
        "place = (-1 - slot)", "place = (-slot)", _interpreted("exponentiate-lookups"),
    ),
    Mutation(
        "row 0 of a table counts as missing", _CHILDREN,
        "(row >= 0)", "(row > 0)", _interpreted("exponentiate-lookups"),
    ),
    Mutation(
        "missing values are NaN, illegal ones not", _CHILDREN,
        "row == -2", "row == -1", _interpreted("exponentiate-illegal"),
    ),
    Mutation(
        "all elements start where the first does", _CHILDREN,
        "offsets += c * factors", "pass", _interpreted("exponentiate-elements-offsets"),
    ),
    Mutation(
        "places of the first launch in every launch", _CHILDREN,
        "entry = first_unit(counter, stride, offset) + unit", "entry = unit",
        _interpreted("scale_flows-elements3"),
    ),
    Mutation(
        "an element takes the flows of the first", _CHILDREN,
        "(element % elements) * WIDTH + j", "j", _interpreted("scale_flows-elements3"),
    ),
    Mutation(
        "flows of nodes that are impossible", _FLOWS,
        'live = (f != 0) & (v > float("-inf"))', "live = f != 0", _interpreted("flow_ratio-small"),
    ),
    Mutation(
        "the exponent has no largest", _FLOWS,
        "tl.exp(tl.minimum(-v, LARGEST_EXPONENT))", "tl.exp(-v)", _interpreted("flow_ratio-small"),
    ),
    Mutation(
        "neighbours have the same elements", _CHILDREN,
        "tl.program_id(0) // groups if BY_SAMPLE", "tl.program_id(0) % groups if BY_SAMPLE",
        _interpreted("exponentiate-by-sample"),
    ),
    Mutation(
        "logarithms of logarithms", _CHILDREN,
        "found if LOGS else fast_log(found)", "fast_log(found)", _interpreted("exponentiate-logs"),
    ),
    Mutation(
        "four factors are all", _CHILDREN,
        "if tl.load(slots + first) != 0:", "if first == 0:",
        _interpreted("exponentiate-many-factors"),
    ),
    Mutation(
        "every step of a loop is its first", _ARITHMETIC,
        "tl.load(counter) * stride + (offset - 2)", "stride * 0 + (offset - 2)",
        _interpreted("exponentiate-small"),
    ),
    Mutation(
        "a unit is shifted by its last blocks", _BLOCKS,
        "scale = tl.maximum(scale, tl.max(m, axis=0))", "scale = tl.max(m, axis=0)",
        _interpreted("forward-seven-blocks"),
    ),
    Mutation(
        "a unit of many blocks is shifted by its last ones", _BLOCKS,
        "scale = tl.maximum(scale, tl.max(most, axis=0))", "scale = tl.max(most, axis=0)",
        _interpreted("forward-many-blocks"),
    ),
    Mutation(
        "shifts of other samples", _BLOCKS,
        "if tile % TILES == 0:", "if tile == 0:", _interpreted("forward-tiles"),
    ),
    Mutation(
        "samples of the first tile in every tile", _BLOCKS,
        "b = (tile // TILES) * ROWS + tl.arange(0, ROWS)", "b = tl.arange(0, ROWS)",
        _interpreted("forward-tiles"),
    ),
    Mutation(
        "element flows of samples of the first tile", _BLOCKS,
        "    b = (tile // TILES) * ROWS + tl.arange(0, ROWS)\n    j =",
        "    b = tl.arange(0, ROWS)\n    j =", _interpreted("element_flows-tiles"),
    ),
    Mutation(
        "a block is shifted by what others read", _BLOCKS,
        'tl.where(mine[:, None], m, float("-inf"))', "m", _interpreted("forward-small"),
    ),
    Mutation(
        "shifts of the first unit in every unit", _BLOCKS,
        "selection += entry * (BLOCKS * OWN)", "selection += 0", _interpreted("forward-small"),
    ),
    Mutation(
        "shifts of a launch lie where those of all do", _BLOCKS,
        "(unit.to(tl.int64) * BLOCKS + block % BLOCKS) * B",
        "(entry.to(tl.int64) * BLOCKS + block % BLOCKS) * B",
        _interpreted("forward-one-step"),
    ),
    Mutation(
        "readers of all units are those of the first", _BLOCKS,
        "(entry * (BLOCKS * OWN) + reader)", "reader", _interpreted("element_flows-by-reader"),
    ),
    Mutation(
        "gradients of all units are those of the first", _BLOCKS,
        "(unit * (BLOCKS * OWN) + reader)", "(unit * 0 + reader)",
        _interpreted("weight_gradient-by-reader"),
    ),
    Mutation(
        "rows are as far apart as columns", _DENSE,
        "out + start + j[None, :] * M", "out + start + j[None, :] * N",
        _interpreted("transpose-everyday"),
    ),
    Mutation(
        "corrections the wrong way", _FLOWS,
        "v -= most - scale[:, None]", "v += most - scale[:, None]",
        _interpreted("flow_ratio-blocks"),
    ),
    Mutation(
        "all elements of a block get the flows of its first", _FLOWS,
        "reader = block * OWN + own", "reader = block * OWN", _interpreted("flow_ratio-apart"),
    ),
    Mutation(
        "what an element gets is not relative to it", _FLOWS,
        "ratio * tl.exp(m - most), 0.0)", "ratio, 0.0)", _interpreted("flow_ratio-apart"),
    ),
    Mutation(
        "nodes of a block lie apart", _FLOWS,
        "node // (NODES // BLOCKS)", "node % BLOCKS", _interpreted("flow_ratio-blocks"),
    ),
    Mutation(
        "the category before is counted, too", _FLOWS,
        "key < low + members", "key < low + members + 1",
        _interpreted("leaf_counts-everyday"),
    ),
    Mutation(
        "a program's categories start anew", _FLOWS,
        "place = (pid.to(tl.int64) * categories + category)",
        "place = (pid.to(tl.int64) * categories + start)",
        _interpreted("leaf_counts-many-reads"),
    ),
    Mutation(
        "all programs count the first categories", _FLOWS,
        "low = (first + start) * members", "low = first * members",
        _interpreted("leaf_counts-many-reads"),
    ),
    Mutation(
        "the first sample of a category is left out", _FLOWS,
        "tl.load(keys + middle) < low", "tl.load(keys + middle) <= low",
        _interpreted("leaf_counts-everyday", "leaf_counts-one"),
    ),
    Mutation(
        "runs start one node late", _FLOWS,
        "column = j[None, :]", "column = j[None, :] + 1", _interpreted("flow_ratio-offsets"),
    ),
    Mutation(
        "elements are not scaled to their block", _BLOCKS,
        "s += ratio[:, None] * more", "s += more", _interpreted("forward-small"),
    ),
    Mutation(
        "a block's own elements in place of those it selects", _BLOCKS,
        "(first + c).to(tl.int64)", "(first + own).to(tl.int64)", _interpreted("forward-small"),
    ),
    Mutation(
        "blocks are not brought to the unit's shift", _BLOCKS,
        "v = tl.log(s) + (most - scale)[:, None]", "v = tl.log(s)", _interpreted("forward-small"),
    ),
    Mutation(
        "parameters of the first step in every step", _BLOCKS,
        "tl.load(rows + entry)", "tl.load(rows + unit)", _interpreted("forward-small"),
    ),
    Mutation(
        "block and own are swapped", _BLOCKS,
        "block = reader // OWN", "block = reader % OWN", _interpreted("element_flows-small"),
    ),
    Mutation(
        "the inverse of the ratio of shifts", _BLOCKS,
        "tl.exp(m - most)[:, None]", "tl.exp(most - m)[:, None]",
        _interpreted("element_flows-small"),
    ),
    Mutation(
        "readers without their number in front", _BLOCKS,
        "element * (1 + most_readers)", "element * most_readers",
        _interpreted("element_flows-small"),
    ),
    Mutation(
        "a sample too many", _BLOCKS,
        "real = b < B\n                x, x_middle", "real = b <= B\n                x, x_middle",
        _interpreted("weight_gradient-small"),
    ),
    Mutation(
        "copies that are none", _BLOCKS,
        "if unit >= 0:", "if unit >= -1:", _interpreted("weight_gradient-small"),
    ),
    Mutation(
        "unit in place of element", _BLOCKS,
        "element = (unit * elements + c) * B", "element = (unit + c) * B",
        _interpreted("weight_gradient-small"),
    ),
    Mutation(
        "bf16x3 is two products", _ARITHMETIC,
        "        total = tl.dot(a_middle, b, total)\n", "", _precise("forward", "bf16x3"),
    ),
    Mutation(
        "fp32 is five products", _ARITHMETIC,
        "        total = tl.dot(a_middle, b_middle, total)\n", "", _precise("forward", "fp32"),
    ),
    Mutation(
        "what was there before is lost", _ARITHMETIC,
        "total += before", "total += 0.0", _interpreted("dense_forward-wide"),
    ),
    Mutation(
        "the third part is the second", _ARITHMETIC,
        "low = tl.load(array + 2 * size + places", "low = tl.load(array + size + places",
        _interpreted("dense_forward-nodes"),
    ),
    Mutation(
        "parts are no remainders", _ARITHMETIC,
        "rest = x - high.to(tl.float32)", "rest = x", _interpreted("split-two"),
    ),
    Mutation(
        "fp32 is of two parts", _PARTS,
        "_Preset.TF32_TF32_F32_X3: Products(3, True)",
        "_Preset.TF32_TF32_F32_X3: Products(2, True)",
        _precise_dense("dense_backward", "fp32"),
    ),
    Mutation(
        "tf32 is of one part", _PARTS,
        "_Preset.TF32_TF32_F32: Products(2, False)", "_Preset.TF32_TF32_F32: Products(1, False)",
        _precise_dense("dense_gradient", "tf32"),
    ),
    Mutation(
        "dense units of padding are written", _DENSE,
        "if place < 0:\n        return", "if place < -1:\n        return",
        _interpreted("dense_forward-small", "dense_backward-small"),
    ),
    Mutation(
        "dense parameters of the first launch in every launch", _DENSE,
        "row = tl.load(rows + entry)", "row = tl.load(rows + (tl.program_id(0) // tiles))",
        _interpreted("dense_forward-small"),
    ),
    Mutation(
        "a dense product without its last children", _DENSE,
        "range(0, CHILDREN, DEPTH)", "range(0, CHILDREN - DEPTH, DEPTH)",
        _interpreted("dense_forward-wide"),
    ),
    Mutation(
        "weights that are split where they are read have one part", _DENSE,
        "s += s_middle + s_low", "s += s_low", _precise_dense("dense_forward-whole", "tf32"),
    ),
    Mutation(
        "p has one part where weights are split", _DENSE,
        "s += s_middle + s_low", "s += s_middle", _precise_dense("dense_forward-whole", "tf32"),
    ),
    Mutation(
        "weights that are split where they are read are bfloat16", _ARITHMETIC,
        "high, middle, low = split(x, PARTS)  # pyright: ignore\n    else:",
        "high, middle, low = split(x, 1)  # pyright: ignore\n    else:",
        _precise_dense("dense_forward-whole", "fp32"),
    ),
    Mutation(
        "dense flows are not those of children", _DENSE,
        "tl.store(flows + out, factor * finite(back)", "tl.store(flows + out, finite(back)",
        _interpreted("dense_backward-small"),
    ),
    Mutation(
        "p of 0 times infinite sums is NaN", _DENSE,
        "factor * finite(back)", "factor * back", _interpreted("dense_backward-huge"),
    ),
    Mutation(
        "weights of 0 times infinite sums are NaN", _DENSE,
        "total = finite(total)", "pass", _interpreted("dense_gradient-huge"),
    ),
    Mutation(
        "infinite sums stay so in element flows", _BLOCKS,
        "factor * finite(back)", "factor * back", _interpreted("element_flows-huge"),
    ),
    Mutation(
        "infinite sums stay so in gradients of blocks", _BLOCKS,
        "total = finite(total)", "pass", _interpreted("weight_gradient-huge"),
    ),
    Mutation(
        "infinite flows stay so where they are scaled", _CHILDREN,
        "p * finite(x)", "p * x", _interpreted("scale_flows-infinite"),
    ),
    Mutation(
        "the second element lies where the first does", _DENSE,
        "tl.load(starts + entry) + j // WIDTH", "tl.load(starts + entry) + j * 0",
        _interpreted("dense_backward-elements"),
    ),
    Mutation(
        "copies of dense units that are none", _DENSE,
        "if place >= 0:", "if place >= -1:", _interpreted("dense_gradient-small"),
    ),
    Mutation(
        "factors of another row", _DENSE,
        "tl.load(rows + row).to(tl.int64) * NODES", "row.to(tl.int64) * NODES",
        _interpreted("dense_gradient-multiplied"),
    ),
    Mutation(
        "a group of readers too many", _BLOCKS,
        "inside = (which < tl.load(readers))", "inside = (which <= tl.load(readers))",
        _interpreted("weight_gradient-small"),
    ),
    Mutation(
        "tied layers multiply in the kernels", _PARTS,
        "return large and fits and (not tied or", "return large and fits and (True or",
        ("tests/circuit/test_plan.py", "-k", "where_products_run"),
    ),
    Mutation(
        "a logarithm to base 2", _ARITHMETIC,
        "return log2 * 0.6931471805599453", "return log2", _interpreted("exponentiate-lookups"),
    ),
]  # fmt: skip

_PRECISION = "ops/_precision.py"
_LAYER = "ops/_sum_layer.py"
_PLAN = "passes/_plan.py"
_WALK = "passes/_walk.py"
_FUSED = "passes/_fused.py"
_FUSED_LAYERS = "passes/_fused_layers.py"
_LAUNCHES = "passes/_launches.py"
_LOOKUP = "passes/_lookup.py"
_REFERENCE = "ops/kernels/_reference.py"
_LAYOUT = "compiler/_layout.py"
_COMPILED_LAYER = "compiler/_layer.py"


def _in(path: str, words: str = "") -> tuple[str, ...]:
    return (path, "-k", words) if words else (path,)


_MODES = "tests/circuit/test_precision.py"
_OPS = "tests/ops/test_sum_layer.py"
_PASSES = "tests/circuit/test_fused.py"
_LAUNCHED = "tests/circuit/test_launches.py"

XLA = [
    Mutation(
        "auto has its roles swapped", _PRECISION,
        '"auto": _Mode(_BF16, _TF32, _TF32)', '"auto": _Mode(_TF32, _TF32, _BF16)',
        _in(_MODES, "auto_is_bf16"),
    ),
    Mutation(
        "auto does not know dense products", _PRECISION,
        '"auto": _Mode(_BF16, _TF32, _TF32)', '"auto": _Mode(_BF16, _BF16, _TF32)',
        _in(_MODES, "auto_takes"),
    ),
    Mutation(
        "fp32 is one product in TF32", _PRECISION,
        "_Mode(*3 * [_Preset.TF32_TF32_F32_X3])", "_Mode(*3 * [_TF32])",
        _in(_MODES, "a_mode_holds"),
    ),
    Mutation(
        "bf16x3 is one product", _PRECISION,
        "_Mode(*3 * [_Preset.BF16_BF16_F32_X3])", "_Mode(*3 * [_BF16])",
        _in(_MODES, "a_mode_holds"),
    ),
    Mutation(
        "batches of 16 count as small", _PRECISION,
        "num_samples < _MIN_BATCH", "num_samples <= _MIN_BATCH", _in(_MODES, "a_mode_holds"),
    ),
    Mutation(
        "batches of 15 do not", _PRECISION,
        "_MIN_BATCH = 16", "_MIN_BATCH = 15", _in(_MODES, "small_batches"),
    ),
    Mutation(
        "high is bf16", _PRECISION,
        'lax.Precision.HIGH: "tf32"', 'lax.Precision.HIGH: "bf16"', _in(_OPS, "canonical"),
    ),
    Mutation(
        "1024 nodes are not dense", _LAYER,
        "num_nodes >= DENSE_NODES", "num_nodes > DENSE_NODES", _in(_MODES, "auto_takes"),
    ),
    Mutation(
        "2^19 child values are not dense", _LAYER,
        "num_samples >= DENSE_CHILD_VALUES", "num_samples > DENSE_CHILD_VALUES",
        _in(_MODES, "auto_takes"),
    ),
    Mutation(
        "maxima are dense", _LAYER,
        'return large and propagation.algorithm == "LL"', "return large", _in(_MODES, "auto_takes"),
    ),
    Mutation(
        "the pass forward never asks whether it is dense", _LAYER,
        '"dense_forward" if dense else "forward"', '"forward"', _in(_MODES, "auto_takes"),
    ),
    Mutation(
        "flows go back in the mode of the pass forward", _LAYER,
        'role="backward"', 'role="forward"', _in(_MODES, "auto_is_bf16"),
    ),
    Mutation(
        "scales meet relative values whole", _LAYER,
        "e = e + (scale - shift[..., None])[..., None]", "e = e + scale[..., None]",
        _in(_OPS, "against_float64"),
    ),
    Mutation(
        "flows of nodes that are impossible", _LAYER,
        "live = (f != 0) & (v > -jnp.inf)", "live = f != 0", _in(_OPS, "impossible"),
    ),
    Mutation(
        "the exponent has no largest", _LAYER,
        "jnp.exp(jnp.minimum(-v, largest))", "jnp.exp(-v)",
        _in("tests/kernels/test_reference.py", "ratios"),
    ),
    Mutation(
        "elements are not scaled to their block", _LAYER,
        "else chosen * ratio", "else chosen", _in(_OPS, "shared_elements_against"),
    ),
    Mutation(
        "padding of selected_by counts", _LAYER,
        "real = (selected_by < blocks * size)", "real = (selected_by <= blocks * size)",
        _in(_OPS, "add_selected or shared_elements_against"),
    ),
    Mutation(
        "the maximum is taken without weights", _LAYER,
        "jnp.argmax(jnp.log(weights)[:, None] + p[:, :, None], axis=-1)",
        "jnp.argmax(jnp.zeros_like(weights)[:, None] + p[:, :, None], axis=-1)",
        _in(_OPS, "against_float64"),
    ),
    Mutation(
        "weights of 0 have a gradient of NaN", _LAYER,
        "return jnp.where(weights > 0, counts / safe, jnp.zeros_like(counts))",
        "return counts / weights", _in(_OPS, "against_float64 or impossible"),
    ),
    Mutation(
        "the path is dense one batch too early", _PLAN,
        "-(-ops.DENSE_CHILD_VALUES // layer.num_children)",
        "ops.DENSE_CHILD_VALUES // layer.num_children", _in(_MODES, "made_up_layers"),
    ),
    Mutation(
        "padding counts as products", _PLAN,
        "layer.weights.real.sum()", "layer.weights.real.size", _in("tests/circuit/test_plan.py"),
    ),
    Mutation(
        "1024 nodes are sparse in a plan", _PLAN,
        "layer.block_nodes < ops.DENSE_NODES", "layer.block_nodes <= ops.DENSE_NODES",
        _in(_MODES, "made_up_layers"),
    ),
    Mutation(
        "a plan takes whole units for products", _PLAN,
        "nodes, children = layer.block_nodes, layer.num_children",
        "nodes, children = layer.block_nodes, layer.num_nodes", _in("tests/circuit/test_plan.py"),
    ),
    Mutation(
        "padding is trained", _WALK,
        "order = real[np.argsort(rows[real], kind=\"stable\")]",
        "order = np.argsort(rows[real], kind=\"stable\")",
        _in("tests/circuit/test_against_oracle.py", "test_structures and arities"),
    ),
    Mutation(
        "lookups of the leaf before", _LOOKUP,
        "first - 1 - slots", "first - slots", _in(_PASSES, "test_small_batches and 1"),
    ),
    Mutation(
        "missing values are counted as category 0", _LOOKUP,
        "jnp.where(category == -1, categories, category)",
        "jnp.where(category == -1, 0, category)", _in(_PASSES, "test_missing_values and HMM"),
    ),
    Mutation(
        "without flows, p of a step lies where it is kept", _FUSED_LAYERS,
        "if not save:  # p of", "if save is None:  # p of",
        _in("tests/kernels/interpreted/test_circuits.py", "padded and True"),
    ),
    Mutation(
        "flows of plain products are gradients", _FUSED,
        "factors = _as_rows(weights) if as_flows else None", "factors = None",
        _in(_PASSES, "in_parts and tied"),
    ),
    Mutation(
        "a block is shifted by the least of its elements", _REFERENCE,
        "_selected(m, selection).max(2)", "_selected(m, selection).min(2)",
        _in(_PASSES, "drowned"),
    ),
    Mutation(
        "corrections the wrong way", _REFERENCE,
        "v = v - jnp.repeat(correction", "v = v + jnp.repeat(correction",
        _in(_PASSES, "test_small_batches and 1 and picking"),
    ),
    Mutation(
        "launches of a loop run in the order of those of the pass forward", _FUSED,
        "run.repeats - 1, -1 if reverse else 1", "run.repeats - 1, 1",
        _in(_PASSES, "launches_of_a_run"),
    ),
    Mutation(
        "steps that read what others compute are joined", _LAUNCHES,
        "if r == steps or needed[r] >= low:", "if r == steps:", _in(_LAUNCHED),
    ),
    Mutation(
        "padding is launched", _LAUNCHES,
        "grid = grid[layer.weights.real.reshape(-1)[grid]]", "pass", _in(_LAUNCHED),
    ),
    Mutation(
        "a copy of a step costs nothing", _LAUNCHES,
        "_COPY = 3", "_COPY = 0", _in(_LAUNCHED),
    ),
    Mutation(
        "what has no room is launched whole", _LAUNCHES,
        "number = -(-launch.count // limit)", "number = 1", _in(_LAUNCHED),
    ),
    Mutation(
        "the rest of what was cut is left out", _LAUNCHES,
        "        if rest:\n", "        if rest < 0:\n", _in(_LAUNCHED),
    ),
    Mutation(
        "what a unit needs is not counted where no flows follow", _FUSED_LAYERS,
        "return 0 if save else", "return 0 if not save else", _in(_PASSES, "is_bounded"),
    ),
    Mutation(
        "a plan has the launches of the pass alone for those with flows", _PLAN,
        "launches_with_flows=more.num_launches", "launches_with_flows=units.num_launches",
        _in("tests/circuit/test_plan.py", "launches"),
    ),
    Mutation(
        "weights are split where a pass backward reads them, too", _PARTS,
        "samples <= _FEW_SAMPLES and not save", "samples <= _FEW_SAMPLES",
        _in(_PASSES, "split_where"),
    ),
    Mutation(
        "weights are split where they are read however often", _FUSED_LAYERS,
        "units * batch // group.num_params", "batch // group.num_params",
        _in(_PASSES, "split_where"),
    ),
    Mutation(
        "r q is kept however much it is", "ops/kernels/_flows.py",
        "nodes * own <= elements * width", "nodes > 0",
        _in(_PASSES, "no_more_than"),
    ),
    Mutation(
        "logarithms are taken of tables that are read once", _LOOKUP,
        ">= 4 * table.size", ">= 0", _in(_PASSES, "as_logarithms"),
    ),
    Mutation(
        "places of all steps are read as far as those of the first", _LAYOUT,
        "(real.any((0, 2)) * places).max(0)", "(real[:1].any((0, 2)) * places).max(0)",
        _in("tests/compiler/test_layout.py", "entries"),
    ),
    Mutation(
        "full steps come first", _COMPILED_LAYER,
        "key=lambda step: len(step) == self.quota", "key=lambda step: len(step) != self.quota",
        _in("tests/circuit/test_against_oracle.py", "test_structures and arities"),
    ),
    Mutation(
        "reads of several blocks end where those of one do", _WALK,
        "n * (len(slots) // places) for n", "n for n",
        _in("tests/circuit/test_against_oracle.py", "arities"),
    ),
]  # fmt: skip
