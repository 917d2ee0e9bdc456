"""What every layer's products run in on an NVIDIA GPU, and why."""

from dataclasses import dataclass

from jaxjuice import ops
from jaxjuice.compiler import Program, SumLayer, align_columns
from jaxjuice.ops import Propagation


@dataclass(frozen=True)
class LayerPlan:
    """How the products of one layer run on an NVIDIA GPU.

    Attributes:
        stage: index of the layer's stage in the program.
        num_nodes, num_children: of one product `[batch, num_children] x [num_children, num_nodes]`.
        num_products: how many a pass takes, without padding.
        path: "dense" or "sparse", as the rule of `ops.is_dense` has it, or "maxima": no products.
        reason: why, in words.
        forward, backward: what the products run in: names of `jax.lax.DotAlgorithmPreset`, or
            "float32"; empty for maxima.
    """

    stage: int
    num_nodes: int
    num_children: int
    num_products: int
    path: str
    reason: str
    forward: str
    backward: str


@dataclass(frozen=True)
class Plan:
    """The plan of all layers for one batch size; prints as a table."""

    batch_size: int
    layers: tuple[LayerPlan, ...]

    def __str__(self) -> str:
        rows = [("layer", "products", "path", "why", "forward", "backward")]
        for layer in self.layers:
            shapes = f"[{self.batch_size}, {layer.num_children}] x [{layer.num_children}, "
            products = f"{layer.num_products} of {shapes}{layer.num_nodes}]"
            what = layer.path, layer.reason, layer.forward, layer.backward
            rows.append((f"sum, stage {layer.stage}", products, *what))
        return align_columns(rows)


def make_plan(program: Program, batch_size: int, propagation: Propagation, precision: str) -> Plan:
    """The plan of a program's layers, in the order of the forward pass."""
    layers = (
        _plan_layer(index, layer, batch_size, propagation, precision)
        for index, stage in enumerate(program.stages)
        for layer in stage
    )
    return Plan(batch_size, tuple(layers))


def describe_path(layer: SumLayer) -> str:
    """The path of a layer's products in the pass forward, for every batch size at once."""
    if layer.block_nodes < ops.DENSE_NODES:
        return "sparse"
    return f"dense from batch {-(-ops.DENSE_CHILD_VALUES // layer.num_children)}"


def _plan_layer(
    index: int, layer: SumLayer, batch: int, propagation: Propagation, precision: str
) -> LayerPlan:
    nodes, children = layer.block_nodes, layer.num_children
    products = int(layer.weights.real.sum()) * layer.num_blocks
    if propagation.is_max:
        return LayerPlan(index, nodes, children, products, "maxima", "MPE", "", "")
    dense = ops.is_dense(nodes, children, batch, propagation)
    role: ops.Role = "dense_forward" if dense else "forward"
    forward, backward = (
        "float32" if preset is None else preset.name
        for preset in (ops.algorithm(precision, r, batch) for r in (role, "backward"))
    )
    path, reason = "sparse", f"{children * batch} child values < {ops.DENSE_CHILD_VALUES}"
    if dense:
        path, reason = "dense", f"{nodes} nodes, {children * batch} child values"
    elif propagation.algorithm != "LL":
        reason = propagation.algorithm
    elif nodes < ops.DENSE_NODES:
        reason = f"{nodes} nodes < {ops.DENSE_NODES}"
    return LayerPlan(index, nodes, children, products, path, reason, forward, backward)
