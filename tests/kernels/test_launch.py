"""Where the kernels run: on which GPUs, and as what under JAX's transformations elsewhere."""

import importlib
import warnings
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from jaxjuice.ops import kernels
from jaxjuice.ops.kernels import KernelWarning, _compilation, _launch, dispatch
from tests.kernels import cases


@pytest.fixture(autouse=True)
def forget():
    """What is known of GPUs is asked anew in each test, and after it."""
    functions = kernels.available, kernels.num_devices
    for function in functions:
        function.cache_clear()
    yield
    for function in functions:
        function.cache_clear()


def _pretend(monkeypatch: pytest.MonkeyPatch, capability: int | None, imports: str = "") -> None:
    """A GPU, and modules of which those whose names start with `imports` cannot be imported."""
    original = importlib.import_module

    def import_module(name: str, package: str | None = None):
        if imports and name.startswith(imports):
            raise ImportError(f"no {name} here")
        return original(name, package)

    monkeypatch.setattr(_launch, "compute_capability", lambda: capability)
    monkeypatch.setattr(_compilation, "POOL", _compilation.Pool(0, ()))
    monkeypatch.setattr(_launch.importlib, "import_module", import_module)
    if imports != "jax_triton":
        monkeypatch.setattr(_launch, "_call_through_ffi", lambda: None)


def test_without_a_gpu_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    _pretend(monkeypatch, None, "jax_triton")
    assert not kernels.available()
    assert kernels.num_devices() == 0


@pytest.mark.parametrize(
    ("capability", "imports", "problem"),
    [
        (75, "", r"compute capability 7\.5, and 8\.0 is wanted"),
        (90, "jax_triton", r"cannot be imported \(ImportError: no jax_triton here\)"),
        (90, "triton", r"cannot be imported \(ImportError: no triton\S* here\)"),
    ],
)
def test_a_gpu_that_goes_unused_is_told_of_once(
    monkeypatch: pytest.MonkeyPatch, capability: int, imports: str, problem: str
) -> None:
    _pretend(monkeypatch, capability, imports)
    with pytest.warns(KernelWarning, match=f"without its Triton kernels.*{problem}"):
        assert not kernels.available()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not kernels.available()


def _double():
    """A dispatched op, and how often each of its two forms was traced."""
    calls = {"kernel": 0, "reference": 0}

    def traced(name: str, x, y):
        calls[name] += 1
        return 2 * x + y, x

    def op(x, y, implementation="triton"):
        kernel, reference = (partial(traced, name) for name in calls)
        return dispatch(implementation, kernel, reference, x, y)

    return op, calls


def test_dispatch_without_a_gpu() -> None:
    op, calls = _double()
    x, y = jnp.arange(3.0), jnp.ones(3)
    for run in (op, jax.jit(op), partial(op, implementation="xla")):
        for found, wanted in zip(run(x, y), (2 * x + 1, x), strict=True):
            np.testing.assert_array_equal(found, wanted)
    kernel_calls = calls["kernel"]
    jax.jit(partial(op, implementation="xla"))(x, y)
    assert calls["kernel"] == kernel_calls, "no kernel is traced for xla"


def test_dispatch_is_lowered_as_a_kernel_for_cuda_alone() -> None:
    def lowered(platform: str) -> str:
        def op(x):
            return dispatch("triton", jnp.sin, jnp.cos, x)

        return jax.jit(op).trace(jnp.ones(3)).lower(lowering_platforms=(platform,)).as_text()

    assert "stablehlo.sine" in lowered("cuda") and "stablehlo.cosine" not in lowered("cuda")
    for platform in ("cpu", "rocm", "tpu"):
        assert "stablehlo.cosine" in lowered(platform) and "stablehlo.sine" not in lowered(platform)


def test_the_plain_form_is_traced_only_where_it_is_lowered() -> None:
    op, calls = _double()
    traced = jax.jit(op).trace(jnp.arange(3.0), jnp.ones(3))
    traced.lower(lowering_platforms=("cuda",))
    assert calls["reference"] == 0
    traced.lower(lowering_platforms=("cpu",))
    assert calls["reference"] == 1


def test_a_plain_form_of_other_shapes_is_no_plain_form() -> None:
    def op(x):
        return dispatch("triton", lambda x: x, lambda x: x[:1], x)

    with pytest.raises(AssertionError, match=r"the kernel returns .*\(3,\).*its plain form"):
        jax.jit(op)(jnp.arange(3.0))


def test_dispatch_under_vmap_is_the_reference() -> None:
    def op(x, y):
        return dispatch("triton", lambda x, y: x - y, lambda x, y: x + y, x, y)

    x, y = jnp.arange(6.0).reshape(2, 3), jnp.ones(3)
    run = jax.jit(jax.vmap(op, in_axes=(0, None)))
    np.testing.assert_array_equal(run(x, y), x + y)
    text = run.trace(x, y).lower(lowering_platforms=("cuda",)).as_text()
    assert "stablehlo.add" in text and "stablehlo.subtract" not in text
    twice = jax.vmap(jax.vmap(op), in_axes=(0, None))(x[:, None], y[None])
    np.testing.assert_array_equal(twice[:, 0], x + y)


def test_dispatch_inside_shard_map() -> None:
    mesh = jax.make_mesh((1,), ("batch",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = PartitionSpec("batch")

    def op(x, y):
        return dispatch("triton", lambda x, y: x - y, lambda x, y: x + y, x, y)

    run = jax.shard_map(op, mesh=mesh, in_specs=(spec, PartitionSpec()), out_specs=spec)
    x, y = jnp.arange(6.0).reshape(2, 3), jnp.ones(3)
    np.testing.assert_array_equal(jax.jit(run)(x, y), x + y)


@pytest.mark.parametrize("make", [cases.exponentiate, cases.flow_ratio])
def test_an_op_without_a_gpu(make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both implementations are the plain one; what would be launched is traced all the same."""

    def launch(_, *arguments, out, **options):
        return jax.tree.map(lambda o: jnp.zeros(o.shape, o.dtype), out)

    monkeypatch.setattr(_launch, "launch", launch)
    make(batch=5).check("triton")
