"""Functions that JAX traces when it lowers them, so that those never lowered cost nothing."""

from collections.abc import Callable
from typing import Any

import jax
import jax.core
from jax.extend.core import Primitive
from jax.interpreters import mlir

_late_call = Primitive("late_call")
_late_call.multiple_results = True


def late(function: Callable[..., Any], out: Any) -> Callable[..., Any]:
    """`function`, traced once JAX lowers a call.

    A branch for another platform than the one that is compiled for is never lowered: tracing the
    plain JAX of all kernels took four fifths of the time that JAX needs to trace a circuit.

    Args:
        function: of trees of arrays. It must not hold tracers.
        out: what it returns, as `jax.ShapeDtypeStruct`.

    Returns:
        A function of the same trees of arrays, without derivatives and `vmap`.
    """
    leaves, structure = jax.tree.flatten(out)
    shapes = tuple(jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves)

    def call(*arguments: Any) -> Any:
        arrays, of_arguments = jax.tree.flatten(arguments)

        def flat(*arrays: Any) -> Any:
            return function(*jax.tree.unflatten(of_arguments, arrays))

        return jax.tree.unflatten(structure, _late_call.bind(*arrays, function=flat, out=shapes))

    return call


@_late_call.def_abstract_eval
def _(*arrays: Any, function: Callable[..., Any], out: tuple[jax.ShapeDtypeStruct, ...]):
    del arrays, function
    return [jax.core.ShapedArray(leaf.shape, leaf.dtype) for leaf in out]


def _flat(*arrays: Any, function: Callable[..., Any], out: tuple[jax.ShapeDtypeStruct, ...]):
    leaves = jax.tree.leaves(function(*arrays))
    found = tuple((leaf.shape, leaf.dtype) for leaf in leaves)
    wanted = tuple((leaf.shape, leaf.dtype) for leaf in out)
    assert found == wanted, f"the kernel returns {wanted}, its plain form {found}"
    return leaves


mlir.register_lowering(_late_call, mlir.lower_fun(_flat, multiple_results=True))
