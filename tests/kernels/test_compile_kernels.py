"""The kernels, compiled for the GPUs that jaxjuice supports."""

import jax
import jax.numpy as jnp
import pytest

from jaxjuice.ops import kernels
from tests.kernels.compile import CAPABILITIES, Compiled, compile_call
from tests.kernels.suite import CASES, PRODUCTS

OTHERS = (
    "exponentiate-wide",
    "exponentiate-elements-illegal",
    "exponentiate_apart-lookups-offsets",
    "scale_flows-elements3",
    "flow_ratio-blocks-pieces-offsets",
    "leaf_counts-pieces-offsets",
    "empty-all",
)
SHAPE = dict(units=2, blocks=2, nodes=128, elements=3, own=2, batch=256, width=256)
KIND = {80: "mma.sync", 90: "wgmma", 100: "tcgen05", 120: "mma.sync"}


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch, capability: int) -> list[Compiled]:
    """What is launched is compiled, put in this list, and not run."""
    found: list[Compiled] = []

    def launch(kernel, *arguments, out, **options):
        found.append(compile_call(capability, kernel, *arguments, out=out, **options))
        return jax.tree.map(lambda o: jnp.zeros(o.shape, o.dtype), out)

    monkeypatch.setattr(kernels, "launch", launch)
    monkeypatch.setattr(kernels, "dispatch", lambda _, kernel, __, *arrays: kernel(*arrays))
    monkeypatch.setattr(kernels, "compute_capability", lambda: capability)
    return found


@pytest.mark.parametrize("op", PRODUCTS)
@pytest.mark.parametrize(
    ("capability", "precision"),
    [
        *((c, "bf16") for c in CAPABILITIES),
        *((c, mode) for c in (80, 90, 120) for mode in ("tf32", "fp32")),
        (90, "bf16x3"),
    ],
)
def test_products(op: str, capability: int, precision: str, compiled: list[Compiled]) -> None:
    PRODUCTS[op](precision=precision, **SHAPE).run("triton")
    (kernel,) = compiled
    assert kernel.products
    assert all(name.startswith(KIND[capability]) for name in kernel.products)
    assert kernel.fits, f"{kernel.shared} bytes of shared memory"
    assert kernel.spills <= 64


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("capability", [CAPABILITIES[0], CAPABILITIES[-1]])
def test_others(name: str, capability: int, compiled: list[Compiled]) -> None:
    CASES[name]().run("triton")
    (kernel,) = compiled
    assert not kernel.products
    # The loops over several elements with lookups keep more addresses than one GPU's compiler can.
    spills = 64 if (name, capability) == ("exponentiate-elements-illegal", 120) else 0
    assert kernel.fits and kernel.spills <= spills
    has_lookups = "lookups" in name or "illegal" in name
    assert has_lookups == ("lg2.approx.f32" in kernel.ptx)
