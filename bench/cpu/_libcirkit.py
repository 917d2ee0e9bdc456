"""libcirkit: layers of a circuit folded into batched torch operations, float32."""

from __future__ import annotations

from typing import Any

import numpy as np

from bench.cpu._contest import Contender, Task
from bench.cpu._dag import check_elementwise, leaf_probs, sum_weights
from bench.cpu._torch import with_best_threads
from jaxjuice import Circuit
from jaxjuice.nodes import InputNodes, ProductNodes


def build(
    pc: Circuit, params: dict, x: np.ndarray, pseudocount: float, learning_rate: float
) -> Contender:
    """Translates the circuit twice: with probabilities, for EM, and with logits, for Adam.

    Both are compiled as libcirkit does by default: folded and optimized, in the log-sum-exp
    semiring.
    """
    import torch
    from cirkit.backend.torch.em_optimizer import EM

    data = torch.as_tensor(x, dtype=torch.long)
    plain = _compiled(pc, params, logits=False)
    em = EM(_compiled(pc, params, logits=False), lr=1.0, pseudocount=pseudocount)
    logits = _compiled(pc, params, logits=True)

    def log_likelihoods(circuit: Any) -> np.ndarray:
        with torch.no_grad():
            return circuit(data).reshape(-1).double().numpy()

    def run_em() -> None:
        em.zero_grad()
        # EM is the one optimizer of torch that climbs.
        em.pc(data).sum().backward()
        em.step()

    def make_adam() -> Any:
        return torch.optim.Adam(logits.parameters(), lr=learning_rate, fused=True)

    adam = make_adam()

    def run_adam() -> None:
        adam.zero_grad()
        (-logits(data).mean()).backward()
        adam.step()

    begin = {circuit: _copy(circuit) for circuit in (em.pc, logits)}

    def reset_em() -> None:
        em.pc.load_state_dict(begin[em.pc])

    def reset_adam() -> None:
        nonlocal adam
        logits.load_state_dict(begin[logits])
        adam = make_adam()

    return with_best_threads(
        {
            "log-likelihood": Task(lambda: log_likelihoods(plain), lambda: log_likelihoods(plain)),
            "EM step": Task(run_em, lambda: log_likelihoods(em.pc), reset_em),
            "Adam step": Task(run_adam, lambda: log_likelihoods(logits), reset_adam),
        }
    )


def _copy(module: Any) -> dict[str, Any]:
    return {name: value.clone() for name, value in module.state_dict().items()}


def _compiled(pc: Circuit, params: dict, *, logits: bool) -> Any:
    from cirkit.pipeline import PipelineContext

    context = PipelineContext(backend="torch", semiring="lse-sum", fold=True, optimize=True)
    return context.compile(_symbolic(pc, params, logits=logits))


def _symbolic(pc: Circuit, params: dict, *, logits: bool) -> Any:
    """The circuit as libcirkit's layers, one for each node vector."""
    from cirkit.symbolic import layers as symbolic
    from cirkit.symbolic.circuit import Circuit as SymbolicCircuit
    from cirkit.utils.scope import Scope

    layer_of, layers, inputs = {}, [], {}
    for ns in pc.root:
        if isinstance(ns, InputNodes):
            probs = leaf_probs(pc, params, ns)
            layer = symbolic.CategoricalLayer(
                Scope([ns.var]),
                ns.num_nodes,
                num_categories=ns.dist.num_cats,
                probs=_parameter(probs, logits=logits),
            )
        elif isinstance(ns, ProductNodes):
            check_elementwise(ns)
            layer = symbolic.HadamardLayer(ns.num_nodes, arity=len(ns.chs))
        else:
            weights = sum_weights(pc, params, ns)
            (width,) = {child.num_nodes for child in ns.chs}
            layer = symbolic.SumLayer(
                width, ns.num_nodes, arity=len(ns.chs), weight=_parameter(weights, logits=logits)
            )
        layers.append(layer)
        layer_of[ns] = layer
        if ns.chs:
            inputs[layer] = [layer_of[child] for child in ns.chs]
    return SymbolicCircuit(layers, inputs, [layer_of[pc.root]])


def _parameter(probs: np.ndarray, *, logits: bool) -> Any:
    """Probabilities over the last axis: as they are, or as a softmax of logits."""
    from cirkit.symbolic.initializers import ConstantTensorInitializer
    from cirkit.symbolic.parameters import Parameter, SoftmaxParameter, TensorParameter

    values = np.log(probs) if logits else probs
    tensor = TensorParameter(*probs.shape, initializer=ConstantTensorInitializer(values))
    if logits:
        return Parameter.from_unary(SoftmaxParameter(probs.shape), tensor)
    return Parameter.from_input(tensor)
