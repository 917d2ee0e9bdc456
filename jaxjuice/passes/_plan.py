"""What every layer's products run in on an NVIDIA GPU, and why."""

from dataclasses import dataclass

from jaxjuice import ops
from jaxjuice.compiler import Program, SumLayer, align_columns
from jaxjuice.ops import Propagation, kernels
from jaxjuice.passes._fused import is_fusable
from jaxjuice.passes._fused_layers import multiplies_in_parts


@dataclass(frozen=True)
class LayerPlan:
    """How the products of one layer run on an NVIDIA GPU.

    Attributes:
        stage: index of the layer's stage in the program.
        num_nodes, num_children: of one product `[batch, num_children] x [num_children, num_nodes]`.
        num_products: how many a pass takes, without padding.
        path: "dense" or "sparse", as the rule of `ops.is_dense` has it, or "maxima": no products.
        reason: why, in words.
        forward, backward: what the mode asks of the products: names of
            `jax.lax.DotAlgorithmPreset`, or "float32"; empty for maxima.
        runs_on: "XLA"; in fused steps, for products of the Triton kernels, how many in bfloat16
            stand for one: "Triton, 1 and 3" forward and backward.
    """

    stage: int
    num_nodes: int
    num_children: int
    num_products: int
    path: str
    reason: str
    forward: str
    backward: str
    runs_on: str


@dataclass(frozen=True)
class Plan:
    """The plan of all layers for one batch size; prints as a table.

    Attributes:
        batch_size: samples.
        fused: whether passes run in fused steps, where Triton does (see `jaxjuice.compile`).
        layers: in the order of the forward pass.
    """

    batch_size: int
    fused: bool
    layers: tuple[LayerPlan, ...]

    def __str__(self) -> str:
        rows = [("layer", "products", "path", "why", "forward", "backward", "runs on")]
        for layer in self.layers:
            shapes = f"[{self.batch_size}, {layer.num_children}] x [{layer.num_children}, "
            products = f"{layer.num_products} of {shapes}{layer.num_nodes}]"
            what = layer.path, layer.reason, layer.forward, layer.backward, layer.runs_on
            rows.append((f"sum, stage {layer.stage}", products, *what))
        how = "fused steps of Triton kernels" if self.fused else "XLA's own operations"
        return f"{align_columns(rows)}\non an NVIDIA GPU, in float32: {how}"


def make_plan(
    program: Program, batch_size: int, propagation: Propagation, precision: str, *, fusable: bool
) -> Plan:
    """The plan of a program's layers.

    Args:
        program: the program.
        batch_size: samples.
        propagation, precision: as in `Walk`.
        fusable: whether passes may run in fused steps.
    """
    fused = fusable and propagation == ops.LL and is_fusable(program)
    layers = (
        _plan_layer(index, layer, batch_size, propagation, precision, fused)
        for index, stage in enumerate(program.stages)
        for layer in stage
    )
    return Plan(batch_size, fused, tuple(layers))


def describe_path(layer: SumLayer) -> str:
    """The path of a layer's products in the pass forward, for every batch size at once."""
    if layer.block_nodes < ops.DENSE_NODES:
        return "sparse"
    return f"dense from batch {-(-ops.DENSE_CHILD_VALUES // layer.num_children)}"


def _plan_layer(
    index: int, layer: SumLayer, batch: int, propagation: Propagation, precision: str, fused: bool
) -> LayerPlan:
    nodes, children = layer.block_nodes, layer.num_children
    products = int(layer.weights.real.sum()) * layer.num_blocks
    if propagation.is_max:
        return LayerPlan(index, nodes, children, products, "maxima", "MPE", "", "", "XLA")
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
    runs_on = "XLA"
    if fused and multiplies_in_parts(layer, precision, batch):
        ways = (kernels.products(precision, r, batch) for r in (role, "backward"))
        runs_on = "Triton, {} and {}".format(*(way.number for way in ways))
    return LayerPlan(index, nodes, children, products, path, reason, forward, backward, runs_on)
