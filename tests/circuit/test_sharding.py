"""A batch over four devices, by `jit` and by `shard_map`, in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = r"""
import re
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
import jaxjuice as juice
from tests.circuit.test_against_oracle import shared_pd, tree

mesh = jax.make_mesh((4,), ("batch",), axis_types=(jax.sharding.AxisType.Auto,))
rows = NamedSharding(mesh, P("batch"))
roots = {
    "chain": juice.structures.HMM(30, 8, 2), "tree": tree(60, 8, 0), "blocks": shared_pd(8)
}
for name, root in roots.items():
    pc = juice.compile(root)
    params = pc.init(jax.random.key(0))
    x = np.random.default_rng(0).integers(0, 2, (32, pc.num_vars))
    lls, flows = pc.log_likelihood_and_flows(params, x)
    gradient = jax.grad(lambda p: pc.log_likelihood(p, x).sum())(params)
    def close(a, b):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-5), a, b)

    # jit, by sharding propagation
    sharded = jax.device_put(x, rows)
    run = jax.jit(pc.log_likelihood_and_flows)
    close(run(params, sharded), (lls, flows))
    text = run.lower(params, sharded).compile().as_text()
    program = pc.program
    for slots in (program.value_slots[8], program.flow_slots[8]):
        assert f"f32[{slots},8,8]" in text, "the arrays hold a quarter of the batch each"
        assert f"f32[{slots},32,8]" not in text, "no device holds the whole batch"
    entry = text[text.index("ENTRY "):]
    reduces = r" all-reduce(?:-start)?\("
    assert len(re.findall(reduces, text)) == len(re.findall(reduces, entry)), "none in a loop"
    assert "all-gather" not in text
    groups = len(params["sums"]) + len(params["inputs"])
    assert len(re.findall(reduces, entry)) <= groups + 1, "parameters are reduced once"

    run = jax.jit(jax.grad(lambda p, x: pc.log_likelihood(p, x).sum()))
    close(run(params, sharded), gradient)
    text = run.lower(params, sharded).compile().as_text()
    entry = text[text.index("ENTRY "):]
    assert len(re.findall(reduces, text)) == len(re.findall(reduces, entry)) <= groups + 1

    # shard_map, with its defaults
    mapped = jax.jit(jax.shard_map(
        pc.log_likelihood, mesh=mesh, in_specs=(P(), P("batch")), out_specs=P("batch")))
    close(mapped(params, sharded), lls)
    def local(params, x):
        return jax.grad(lambda p: pc.log_likelihood(p, x).sum())(params)
    mapped = jax.jit(jax.shard_map(
        local, mesh=mesh, in_specs=(P(), P("batch")), out_specs=P()))
    close(mapped(params, sharded), gradient)
    text = mapped.lower(params, sharded).compile().as_text()
    entry = text[text.index("ENTRY "):]
    assert len(re.findall(reduces, text)) == len(re.findall(reduces, entry)) <= groups
    def local_flows(params, x):
        lls, flows = pc.log_likelihood_and_flows(params, x)
        return lls, jax.tree.map(lambda a: jax.lax.psum(a, "batch"), flows)
    mapped = jax.jit(jax.shard_map(
        local_flows, mesh=mesh, in_specs=(P(), P("batch")), out_specs=(P("batch"), P())))
    close(mapped(params, sharded), (lls, flows))
    print("done", name)
"""


def test_a_batch_over_four_devices() -> None:
    root = Path(__file__).parents[2]
    flags = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=4"
    path = os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, cwd=root
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split() == ["done", "chain", "done", "tree", "done", "blocks"]
