"""Wrong edits of what scales sum weights for each sample."""

from tests.mutations._list import Mutation

_LAYER = "ops/_scaled_layer.py"
_MIXTURE = "ops/_scaled_mixture.py"
_STEP = "optim/_conditional_m_step.py"
_PROPERTIES = "tests/parameterizations/test_properties.py"
_ORACLE = "tests/parameterizations/test_against_oracle.py"
_CALLS = "tests/parameterizations/test_calls.py"


def _in(path: str, words: str) -> tuple[str, ...]:
    return path, "-k", words


SCALED = [
    Mutation(
        "scaled weights are not normalized", _LAYER,
        "self.log_n - self.log_z", "self.log_n", _in(_PROPERTIES, "probabilities_sum"),
    ),
    Mutation(
        "a closed node is NaN", _LAYER,
        "return jnp.where(self.log_n > -jnp.inf, self.log_n - self.log_z, self.log_n)",
        "return self.log_n - self.log_z", _in(_PROPERTIES, "extreme and exp_sum and float64"),
    ),
    Mutation(
        "weights of 0 set the shift", _LAYER,
        "_shift(jnp.where(possible, terms, jnp.full_like(terms, -jnp.inf)), 3)",
        "_shift(terms, 3)", _in(_PROPERTIES, "do_not_hide and BlockScale"),
    ),
    Mutation(
        "weights of 0 overflow", _LAYER,
        "return finite(f * jnp.exp(jnp.minimum(exponent, largest)))",
        "return f * jnp.exp(exponent)", _in(_PROPERTIES, "extreme and float32 and exp_sum"),
    ),
    Mutation(
        "the gradient of scales forgets Z", _LAYER,
        ".sum(-1) - prior_flows", ".sum(-1)", _in(_PROPERTIES, "test_gradients and BlockScale"),
    ),
    Mutation(
        "plain units count in F-", _LAYER,
        "prior = jnp.where(active[:, None, None], f, jnp.zeros_like(f))", "prior = f",
        _in(_ORACLE, "structures and padded and exp_sum"),
    ),
    Mutation(
        "flows of nodes far below others are cut", _LAYER,
        "0.69 * float(jnp.finfo(exponent.dtype).maxexp)", "80.0", _in(_PROPERTIES, "far_below"),
    ),
    Mutation(
        "0 times an infinite gradient is NaN", "passes/_gradient.py",
        "plain = {group: ops.finite(total) for group, total in found.weights.items()}",
        "plain = dict(found.weights)", _in(_PROPERTIES, "far_below and None"),
    ),
    Mutation(
        "an M-step overflows", _STEP,
        "ratio = jnp.minimum(ratio, jnp.asarray(largest, dtype))", "pass",
        _in("tests/parameterizations/test_m_step.py", "one_by_one"),
    ),
    Mutation(
        "tensors of a data set are not handed on", "training/_steps.py",
        'options["external_params"] = batch.external_params', "pass",
        _in("tests/training/test_fit.py", "external_parameters"),
    ),
    Mutation(
        "all ranks share a shift", _MIXTURE,
        "shift = jnp.max(masked, axis=3, initial=LOWEST)",
        "shift = jnp.max(masked, axis=(2, 3), initial=LOWEST)[:, :, None] + 0 * masked[..., 0]",
        _in(_PROPERTIES, "hundreds and sum_exp"),
    ),
    Mutation(
        "the gradient of factors forgets Z", _MIXTURE,
        "(x - y).swapaxes(2, 3)", "x.swapaxes(2, 3)",
        _in(_PROPERTIES, "test_gradients and sum_exp"),
    ),
    Mutation(
        "plain units read the factors of others", _MIXTURE,
        "return jnp.where(is_scaled, a, one), jnp.where(is_scaled, b, jnp.zeros_like(b))",
        "return a, b", _in(_ORACLE, "structures and padded and sum_exp"),
    ),
    Mutation(
        "small numbers become 0 in eight bits", "ops/_statistics.py",
        "jnp.where(lost, smallest, scaled)", "scaled", _in("tests/ops/test_statistics.py", "rows"),
    ),
    Mutation(
        "the filled-up last part is not cut off", "ops/_samples.py",
        "[:, :batch]", "", _in(_PROPERTIES, "parts_of_a_batch and 7"),
    ),
    Mutation(
        "flows of plain copies are not in W", "passes/_scaled.py",
        "unscaled = jnp.where(active[:, None], jnp.zeros_like(flows), flows)",
        "unscaled = jnp.zeros_like(flows)", _in(_ORACLE, "structures and padded and sum_exp"),
    ),
    Mutation(
        "W has all flows of plain layers twice", "_flows.py",
        "if name in scaled:\n                denominator = denominator + scaled[name].minus",
        "denominator = 2 * denominator", _in("tests/parameterizations/test_m_step.py", "w_of_node"),
    ),
    Mutation(
        "every vector reads the tensors of the first", "_external_params.py",
        "array[(*at, block)] = index + start", "array[(*at, block)] = index",
        _in(_PROPERTIES, "test_gradients and BlockScale"),
    ),
    Mutation(
        "members of a group in the wrong order", "parameterizations/_low_rank.py",
        "b.reshape(batch, num_members, self.rank, children)",
        "b.reshape(batch, num_members, self.rank, children)[:, ::-1]",
        _in(_CALLS, "a_group_is and sum_exp"),
    ),
    Mutation(
        "-inf times 0 is NaN", "parameterizations/_low_rank.py",
        "jnp.maximum(x, jnp.full_like(x, _LOWEST_FACTOR))", "x",
        _in(_PROPERTIES, "extreme and exp_sum and float64"),
    ),
    Mutation(
        "all parameterizations share layers", "compiler/_scaled.py",
        "return parameterization, parameterization.layer_key(", "return None and (",
        _in(_CALLS, "layers_are_of_one"),
    ),
    Mutation(
        "closed edges lose their weight", _STEP,
        "target = jnp.where(is_alive, ratio, theta)", "target = ratio",
        _in("tests/parameterizations/test_m_step.py", "one_by_one"),
    ),
    Mutation(
        "weights of 0 come back", _STEP,
        " & (theta > 0)", "", _in("tests/parameterizations/test_m_step.py", "one_by_one"),
    ),
]  # fmt: skip
