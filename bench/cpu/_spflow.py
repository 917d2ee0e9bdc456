"""SPFlow: a torch module for each node vector, as in its own HCLTs; float32."""

from __future__ import annotations

from typing import Any

import numpy as np

from bench.cpu._contest import Contender, Task
from bench.cpu._dag import check_elementwise, leaf_probs, sum_weights
from bench.cpu._torch import with_best_threads
from jaxjuice import Circuit
from jaxjuice.nodes import InputNodes, ProductNodes


def build(pc: Circuit, params: dict, x: np.ndarray, learning_rate: float) -> Contender:
    """Translates the circuit. Its EM step has neither step size nor pseudocount."""
    import torch
    from spflow.learn.expectation_maximization import expectation_maximization

    data = torch.as_tensor(x, dtype=torch.float32)
    module = _module(pc, params)
    begin = {name: value.clone() for name, value in module.state_dict().items()}

    def log_likelihoods() -> np.ndarray:
        with torch.no_grad():
            return module.log_likelihood(data).reshape(-1).double().numpy()

    def make_adam() -> Any:
        return torch.optim.Adam(module.parameters(), lr=learning_rate, fused=True)

    adam = make_adam()

    def run_adam() -> None:
        adam.zero_grad()
        (-module.log_likelihood(data).mean()).backward()
        adam.step()

    def reset() -> None:
        nonlocal adam
        module.load_state_dict(begin)
        adam = make_adam()

    def run_em() -> None:
        expectation_maximization(module, data, max_steps=1)

    return with_best_threads(
        {
            "log-likelihood": Task(log_likelihoods, log_likelihoods, reset),
            "EM step": Task(run_em, log_likelihoods, reset),
            "Adam step": Task(run_adam, log_likelihoods, reset),
        }
    )


def _module(pc: Circuit, params: dict) -> Any:
    import torch
    from spflow.meta import Scope
    from spflow.modules.leaves import Categorical
    from spflow.modules.products import ElementwiseProduct
    from spflow.modules.sums import Sum

    modules: dict[Any, Any] = {}
    for ns in pc.root:
        children = [modules[child] for child in ns.chs]
        if isinstance(ns, InputNodes):
            probs = torch.as_tensor(leaf_probs(pc, params, ns).copy())
            # Its checks of arguments are off: they cost time, and the data are legal.
            modules[ns] = Categorical(
                Scope([ns.var]), probs=probs[None, :, None], validate_args=False
            )
        elif isinstance(ns, ProductNodes):
            check_elementwise(ns)
            modules[ns] = ElementwiseProduct(children)
        else:
            weights = torch.as_tensor(sum_weights(pc, params, ns).T.copy())
            modules[ns] = Sum(children, weights=weights[None, :, :, None])
    return modules[pc.root]
