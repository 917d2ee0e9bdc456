"""The kernels, compiled for the GPUs that jaxjuice supports."""

import jax
import jax.numpy as jnp
import pytest

from jaxjuice.ops.kernels import _launch
from tests.kernels import cases
from tests.kernels.compile import CAPABILITIES, Compiled, compile_call
from tests.kernels.suite import CASES, DENSE, PRODUCTS

OTHERS = (
    "exponentiate-wide",
    "exponentiate-elements-illegal",
    "exponentiate_apart-lookups-offsets",
    "exponentiate-parts",
    "exponentiate-logs",
    "scale_flows-elements3",
    "flow_ratio-blocks-pieces-offsets",
    "flow_ratio-three-parts",
    "flow_ratio-apart-pieces",
    "split-three",
    "transpose-everyday",
    "leaf_counts-pieces-offsets",
    "empty-all",
)
SHAPES: dict[str, dict] = {
    **dict.fromkeys(PRODUCTS, dict(blocks=4, nodes=32, elements=5, own=2, batch=256, width=256)),
    **dict.fromkeys(DENSE, dict(nodes=256, batch=256, width=256)),
}
# Bytes. The loops over several elements with lookups keep more addresses than registers.
SPILLS = {
    ("exponentiate-elements-illegal", 80): 140,
    ("exponentiate-elements-illegal", 120): 68,
    ("exponentiate-parts", 80): 8,
}
KIND = {80: "mma.sync", 90: "wgmma", 100: "tcgen05", 120: "mma.sync"}


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch, capability: int) -> list[Compiled]:
    """What is launched is compiled, put in this list, and not run."""
    found: list[Compiled] = []

    def call(kernel, *arguments, out, **options):
        found.append(compile_call(capability, kernel, *arguments, out=out, **options))
        return jax.tree.map(lambda o: jnp.zeros(o.shape, o.dtype), out)

    monkeypatch.setattr(_launch, "call", call)
    monkeypatch.setattr(_launch, "dispatch", lambda _, kernel, __, *arrays: kernel(*arrays))
    monkeypatch.setattr(_launch, "compute_capability", lambda: capability)
    return found


@pytest.mark.parametrize("op", SHAPES)
@pytest.mark.parametrize(
    ("capability", "units", "precision"),
    [
        *((c, 2, mode) for c in CAPABILITIES for mode in ("bf16", "fp32")),
        (90, 2, "tf32"),
        (90, 40, "bf16"),
        (90, 40, "tf32"),
        (90, 40, "bf16x3"),
        (90, 40, "fp32"),
    ],
)
def test_products(
    op: str, capability: int, units: int, precision: str, compiled: list[Compiled]
) -> None:
    make = {**PRODUCTS, **DENSE}[op]
    make(precision=precision, units=units, **SHAPES[op]).run("triton")
    (kernel,) = compiled
    assert kernel.products
    assert all(name.startswith(KIND[capability]) for name in kernel.products)
    assert kernel.fits, f"{kernel.shared} bytes of shared memory"
    assert kernel.spills <= 64, kernel.spills


@pytest.mark.parametrize("precision", ["bf16", "tf32"])
@pytest.mark.parametrize("op", [op for op in DENSE if op != "dense_gradient"])
@pytest.mark.parametrize("capability", [90])
def test_long_sums(op: str, precision: str, capability: int, compiled: list[Compiled]) -> None:
    """Whose tiles are deeper."""
    shape = dict(nodes=1024, batch=256, width=1024)
    DENSE[op](precision=precision, units=8, **shape).run("triton")
    (kernel,) = compiled
    assert kernel.products and kernel.fits and kernel.spills <= 64, (kernel.shared, kernel.spills)


@pytest.mark.parametrize("capability", [CAPABILITIES[0], 90, CAPABILITIES[-1]])
def test_shifts_of_many_blocks(capability: int, compiled: list[Compiled]) -> None:
    """They have a kernel of their own."""
    CASES["forward-many-blocks"]().run("triton")
    shifts, product = compiled
    assert not shifts.products and product.products
    assert all(kernel.fits and not kernel.spills for kernel in compiled)


@pytest.mark.parametrize("capability", [90])
def test_large_gradients(capability: int, compiled: list[Compiled]) -> None:
    """Of enough products to fill the GPU with tiles twice as large."""
    cases.dense_gradient(precision="tf32", units=160, **SHAPES["dense_gradient"]).run("triton")
    (kernel,) = compiled
    assert any(".m64n128k16." in name for name in kernel.products)
    assert kernel.fits and kernel.spills <= 64, (kernel.shared, kernel.spills)


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("capability", [CAPABILITIES[0], CAPABILITIES[-1]])
def test_others(name: str, capability: int, compiled: list[Compiled]) -> None:
    CASES[name]().run("triton")
    (kernel,) = compiled
    assert not kernel.products
    spills = SPILLS.get((name, capability), 0)
    assert kernel.fits and kernel.spills <= spills
    has_lookups = "lookups" in name or "illegal" in name
    assert has_lookups == ("lg2.approx.f32" in kernel.ptx)
