"""Optimizers: expectation maximization as optax transformations of flows.

`optax.adam` and its kind train `pc.to_unconstrained(params)` and need nothing from here.
"""

from jaxjuice.optim._accumulate import AccumulateState as AccumulateState, accumulate as accumulate
from jaxjuice.optim._anemone import AnemoneState as AnemoneState, anemone as anemone
from jaxjuice.optim._conditional_m_step import conditional_m_step as conditional_m_step
from jaxjuice.optim._em import (
    EMState as EMState,
    full_batch_em as full_batch_em,
    mini_batch_em as mini_batch_em,
)
from jaxjuice.optim._m_step import m_step as m_step, sum_m_step as sum_m_step
from jaxjuice.optim._transformation import FlowTransformation as FlowTransformation
