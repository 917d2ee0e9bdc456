"""A scaled batch over four devices, by `jit` and by `shard_map`, in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = r"""
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
import jaxjuice as juice
from jaxjuice.ops import _samples
from jaxjuice.parameterizations import LowRank
from tests.scaled_cases import random_tensors

mesh = jax.make_mesh((4,), ("batch",), axis_types=(jax.sharding.AxisType.Auto,))
rows = NamedSharding(mesh, P("batch"))
_samples._MOST_ELEMENTS = 8 * 64 * 2  # parts of 8 samples or so
for kind in (LowRank(3), LowRank(2, "sum_exp", tie_external=True)):
    root = juice.structures.HMM(6, 8, 2, block_size=4, parameterization=kind)
    pc = juice.compile(root)
    params = pc.init(jax.random.key(0))
    x = np.random.default_rng(0).integers(0, 2, (32, pc.num_vars))
    drawn = random_tensors(np.random.default_rng(1), root, 32)
    keys, tensors = list(drawn), [tuple(map(np.float32, ts)) for ts in drawn.values()]

    def values_and_flows(params, x, tensors):
        external = dict(zip(keys, tensors, strict=True))
        return pc.log_likelihood_and_flows(params, x, external_params=external)
    def gradient(params, x, tensors):
        return jax.grad(
            lambda p, t: values_and_flows(p, x, t)[0].sum(), argnums=(0, 1))(params, tensors)
    def close(a, b):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-5), a, b)

    both = jax.jit(lambda *args: (values_and_flows(*args), gradient(*args)))
    wanted = both(params, x, tensors)
    sharded = jax.device_put((x, tensors), rows)
    run = both.lower(params, *sharded).compile()
    close(run(params, *sharded), wanted)
    text = run.as_text()
    assert "all-gather" not in text and "all-to-all" not in text
    assert "f32[32,8,8]" not in text and "f32[1,32,8,8]" not in text

    def local(params, x, tensors):
        lls, flows = values_and_flows(params, x, tensors)
        flows = jax.tree.map(lambda a: jax.lax.psum(a, "batch"), flows)
        return (lls, flows), gradient(params, x, tensors)
    mapped = jax.jit(jax.shard_map(
        local, mesh=mesh, in_specs=(P(), P("batch"), P("batch")),
        out_specs=((P("batch"), P()), (P(), P("batch")))))
    run = mapped.lower(params, *sharded).compile()
    close(run(params, *sharded), wanted)
    text = run.as_text()
    entry = text[text.index("ENTRY "):]
    assert text.count(" all-reduce(") == entry.count(" all-reduce("), "none in a loop"
    print("done", kind.form)
"""


def test_a_batch_over_four_devices() -> None:
    root = Path(__file__).parents[2]
    flags = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=4"
    path = os.pathsep.join([str(root), str(root / "tests"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, cwd=root
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split() == ["done", "exp_sum", "done", "sum_exp"]
