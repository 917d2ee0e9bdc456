"""PyJuice's part: the same DAG with the same parameters, through its Triton kernels.

Its CuTe kernels take many minutes to build and are left out (PYJUICE_DISABLE_CUDA_KERNELS=1).
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from bench.gpu._jaxjuice import PSEUDOCOUNT, STEP_SIZE, Measured, Times, time_calls
from jaxjuice import nodes
from jaxjuice.distributions import Categorical

os.environ.setdefault("PYJUICE_DISABLE_CUDA_KERNELS", "1")


def translate(root: nodes.CircuitNodes, params: Mapping[nodes.CircuitNodes, Any]) -> Any:
    """The DAG under `root` as PyJuice's nodes.

    Args:
        root: a circuit over `Categorical` leaves whose vectors have block sizes that PyJuice takes.
        params: by source, what `Circuit.node_params` returns.
    """
    made: dict[nodes.CircuitNodes, Any] = {}
    waiting = list(root)
    while waiting:  # a tied copy may come before its source
        later = []
        for ns in waiting:
            if all(needed in made for needed in (*ns.chs, *_source(ns))):
                made[ns] = _translate(ns, made, params)
            else:
                later.append(ns)
        waiting = later
    return made[root]


def _source(ns: nodes.CircuitNodes) -> list[nodes.CircuitNodes]:
    return [ns.get_source()] if ns.is_tied else []


def _translate(ns: nodes.CircuitNodes, made: Mapping[nodes.CircuitNodes, Any], params: Any) -> Any:
    import pyjuice
    import pyjuice.nodes.distributions as families
    import torch

    children = [made[child] for child in ns.chs]
    if isinstance(ns, nodes.ProductNodes):
        edges = torch.from_numpy(np.array(ns.edge_ids, np.int64))
        return pyjuice.multiply(*children, edge_ids=edges, sparse_edges=ns.sparse_edges)
    if isinstance(ns, nodes.InputNodes):
        if ns.is_tied:
            return made[ns.get_source()].duplicate(ns.var, tie_params=True)
        if not isinstance(ns.dist, Categorical):
            raise TypeError(f"no leaves but Categorical are translated, not {ns.dist}")
        dist = families.Categorical(num_cats=ns.dist.num_cats)
        new = pyjuice.inputs(ns.var, ns.num_node_blocks, dist, block_size=ns.block_size)
        new.set_params(torch.from_numpy(np.array(params[ns]["probs"], np.float32)), normalize=False)
        return new
    if ns.is_tied:
        return made[ns.get_source()].duplicate(*children, tie_params=True)
    edges = np.array(ns.edge_ids, np.int64)
    new = pyjuice.summate(
        *children,
        num_node_blocks=ns.num_node_blocks,
        block_size=ns.block_size,
        edge_ids=torch.from_numpy(edges),
    )
    # PyJuice may have edges in another order.
    order, theirs = (np.lexsort(e[::-1]) for e in (edges, new.edge_ids.numpy()))
    weights = np.empty_like(params[ns], np.float32)
    weights[theirs] = params[ns][order]
    new.set_params(torch.from_numpy(weights), normalize=False)
    return new


def compile_on_gpu(translated: Any) -> Any:
    """PyJuice's circuit for what `translate` returned."""
    import pyjuice
    import torch

    pc = pyjuice.compile(translated, verbose=False)
    pc.to(torch.device("cuda:0"))
    return pc


def measure(
    root: nodes.CircuitNodes,
    params: Mapping[nodes.CircuitNodes, Any],
    x: np.ndarray,
    rounds: int,
) -> Measured:
    """Compiles and times the circuit on the GPU.

    Each time is that of the faster way, kernels launched one by one or as CUDA graphs.
    """
    import torch

    gc.collect()
    torch.cuda.empty_cache()
    translated = translate(root, params)
    begin = time.perf_counter()
    pc = compile_on_gpu(translated)
    data = torch.from_numpy(np.asarray(x, np.int64)).to(torch.device("cuda:0"))

    def both(**options) -> Any:
        lls = pc(data, **options)
        pc.backward(data, flows_memory=0.0, **options)
        return lls

    def step() -> None:
        both()
        pc.mini_batch_em(step_size=STEP_SIZE, pseudocount=PSEUDOCOUNT)

    def times() -> list[Times]:
        return [
            time_calls(action, lambda _: torch.cuda.synchronize(), rounds)
            for action in (lambda: pc(data), both, step)
        ]

    # Its forward pass marks what it returns for autograd, which it does not need for EM.
    with torch.no_grad():
        lls = both().double().reshape(-1).cpu().numpy()
        step()  # the M-step's kernels are compiled here
        torch.cuda.synchronize()
        compile_s = time.perf_counter() - begin
        torch.cuda.reset_peak_memory_stats()
        found = times()
        memory = torch.cuda.max_memory_allocated()
        try:
            both(record_cudagraph=True)  # later calls replay what this one records
            recorded = times()
        except RuntimeError as error:
            print(f"  pyjuice without CUDA graphs: {error}", flush=True)
        else:
            found = [
                Times(
                    min(one.alone, other.alone, key=lambda timing: timing.median),
                    min(one.queued, other.queued),
                )
                for one, other in zip(found, recorded, strict=True)
            ]
    return Measured(compile_s, *found, memory, lls)
