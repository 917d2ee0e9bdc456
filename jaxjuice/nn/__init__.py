"""Circuits as flax modules (needs flax): `CircuitModule` for nnx, `LinenCircuit` for linen."""

from jaxjuice.nn._linen import LinenCircuit as LinenCircuit
from jaxjuice.nn._module import CircuitModule as CircuitModule
