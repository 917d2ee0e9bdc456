"""What every layer's products run in on an NVIDIA GPU, and why."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from jaxjuice import ops
from jaxjuice.compiler import SumLayer, align_columns
from jaxjuice.ops import Propagation, kernels
from jaxjuice.passes._fused import is_fusable
from jaxjuice.passes._fused_layers import (
    forward_role,
    layers_in_parts,
    multiplies_in_parts,
    plan_launches,
    splits_where_read,
)
from jaxjuice.passes._walk import Walk


@dataclass(frozen=True)
class LayerPlan:
    """How the products of one layer run on an NVIDIA GPU.

    Attributes:
        stage: index of the layer's stage in the program.
        num_rows, num_nodes, num_children: of one product `[num_rows, num_children] x [num_children,
            num_nodes]`. A row is a sample or, of scales that are mixtures, a rank of one: once for
            values and once for Z.
        num_products: how many a pass takes, without padding.
        path: "dense" or "sparse", as the rule of `ops.is_dense` has it, or "maxima": no products;
            "by pair" where each sample has weights of its own, and so no product has two rows.
        reason: why, in words; of scaled layers, their parameterization.
        forward, backward: what the mode asks of the products: names of
            `jax.lax.DotAlgorithmPreset`, or "float32"; empty for maxima. By pair, of the products
            that make the scale, if any do.
        runs_on: "XLA"; in fused steps, for products of the Triton kernels, how many in bfloat16
            stand for one: "Triton, 1 and 3" forward and backward.
        launches, launches_with_flows: in how many groups the products start, one group after
            another, in a pass forward without flows, and with flows in both passes each. Fused
            steps that do not depend on one another start together, as far as there is room.
        splits_weights: whether Triton's products split float32 weights where they read them, if no
            flows follow. If not, and with flows, a pass over the weights does it before.
    """

    stage: int
    num_rows: int
    num_nodes: int
    num_children: int
    num_products: int
    path: str
    reason: str
    forward: str
    backward: str
    runs_on: str
    launches: int
    launches_with_flows: int
    splits_weights: bool


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
        rows = [
            ("layer", "products", "path", "why", "forward", "backward", "runs on", "launches",
             "weights are split"),
        ]  # fmt: skip
        for layer in self.layers:
            shapes = f"[{layer.num_rows}, {layer.num_children}] x [{layer.num_children}, "
            products = f"{layer.num_products} of {shapes}{layer.num_nodes}]"
            what = layer.path, layer.reason, layer.forward, layer.backward, layer.runs_on
            launches = f"{layer.launches}"
            if layer.launches_with_flows != layer.launches:
                launches += f", with flows {layer.launches_with_flows}"
            split = "where read; with flows, before" if layer.splits_weights else "before"
            if layer.runs_on == "XLA":
                split = ""
            rows.append((f"sum, stage {layer.stage}", products, *what, launches, split))
        how = "fused steps of Triton kernels" if self.fused else "XLA's own operations"
        return f"{align_columns(rows)}\non an NVIDIA GPU, in float32: {how}"


def make_plan(walk: Walk, batch_size: int, *, fusable: bool) -> Plan:
    """The plan of a program's layers.

    Args:
        walk: the program, its settings, and what is scaled.
        batch_size: samples.
        fusable: whether passes may run in fused steps, which those with scaled layers do not.
    """
    program, how = walk.program, (walk.propagation, walk.precision)
    fused = fusable and walk.propagation == ops.LL and not walk.scales and is_fusable(program)
    layers = tuple(
        _plan_layer(index, layer, batch_size, *how)
        if scale is None
        else _plan_scaled_layer(index, layer, batch_size, *how)
        for index, stage in enumerate(program.stages)
        for layer, scale in zip(stage, walk.layer_scales(index), strict=True)
    )
    if fused:
        layers = tuple(_in_fused_steps(walk, layers, batch_size))
    return Plan(batch_size, fused, layers)


def describe_path(layer: SumLayer) -> str:
    """The path of a layer's products in the pass forward, for every batch size at once."""
    if layer.block_nodes < ops.DENSE_NODES:
        return "sparse"
    return f"dense from batch {-(-ops.DENSE_CHILD_VALUES // layer.num_children)}"


def _plan_layer(
    index: int, layer: SumLayer, batch: int, propagation: Propagation, precision: str
) -> LayerPlan:
    nodes, children = layer.block_nodes, layer.num_children
    size = batch, nodes, children, int(layer.weights.real.sum()) * layer.num_blocks
    on_xla = "XLA", layer.num_steps, layer.num_steps, False
    if propagation.is_max:
        return LayerPlan(index, *size, "maxima", "MPE", "", "", *on_xla)
    dense = ops.is_dense(nodes, children, batch, propagation)
    role: ops.Role = "dense_forward" if dense else "forward"
    forward, backward = (_algorithm(precision, r, batch) for r in (role, "backward"))
    path, reason = "sparse", f"{children * batch} child values < {ops.DENSE_CHILD_VALUES}"
    if dense:
        path, reason = "dense", f"{nodes} nodes, {children * batch} child values"
    elif propagation.algorithm != "LL":
        reason = propagation.algorithm
    elif nodes < ops.DENSE_NODES:
        reason = f"{nodes} nodes < {ops.DENSE_NODES}"
    return LayerPlan(index, *size, path, reason, forward, backward, *on_xla)


def _in_fused_steps(walk: Walk, plans: tuple[LayerPlan, ...], batch: int) -> Iterator[LayerPlan]:
    """The plans of layers, if passes run in fused steps."""
    in_parts = layers_in_parts(walk, batch).items()
    splitting = {name for name, layers in in_parts if splits_where_read(walk, layers, batch, False)}
    plan = iter(plans)
    for stage in walk.program.stages:
        alone, with_flows = (
            plan_launches(walk, stage, batch, save).lists for save in (False, True)
        )
        for layer, units, more in zip(stage, alone, with_flows, strict=True):
            found = replace(
                next(plan),
                launches=units.num_launches,
                launches_with_flows=more.num_launches,
            )
            if multiplies_in_parts(layer, walk.precision, batch):
                roles: tuple[ops.Role, ...] = (forward_role(layer, batch), "backward")
                ways = (kernels.products(walk.precision, role, batch).number for role in roles)
                found = replace(
                    found,
                    runs_on="Triton, {} and {}".format(*ways),
                    splits_weights=layer.weights.group in splitting,
                )
            yield found


def _plan_scaled_layer(
    index: int, layer: SumLayer, batch: int, propagation: Propagation, precision: str
) -> LayerPlan:
    assert layer.scaled is not None
    kind = layer.scaled.parameterization
    nodes, children = layer.block_nodes, layer.num_children
    products = int(layer.weights.real.sum()) * layer.num_blocks
    is_mixture, shared = kind.is_mixture, kind.nodes_per_scale
    if propagation.algorithm != "LL":
        is_mixture, shared = False, 1
    path, rows, reason = "sparse", batch, type(kind).__name__
    role: ops.Role = "forward"
    if is_mixture:
        rank: int = kind.rank  # pyright: ignore[reportAttributeAccessIssue]
        rows, reason = 2 * rank * batch, f"{reason}, {rank} ranks"
        if ops.is_dense(nodes, children, rows, propagation):
            path, role = "dense", "dense_forward"
    elif shared > 1:
        products, nodes = products * (nodes // shared), shared
        reason = f"{reason}, {shared} nodes a gate"
    else:
        path = "by pair"
    forward, backward = (_algorithm(precision, r, batch) for r in (role, "backward"))
    if path == "by pair":
        factors = kind.factor_precision(precision)
        forward = "" if factors is None else _algorithm(factors, "forward", batch)
        backward = "" if factors is None else backward
    if propagation.algorithm != "LL":
        reason = f"{reason}, {propagation.algorithm}"
    size, what = (rows, nodes, children, products), (path, reason, forward, backward)
    return LayerPlan(index, *size, *what, "XLA", layer.num_steps, layer.num_steps, False)


def _algorithm(precision: str, role: ops.Role, batch: int) -> str:
    preset = ops.algorithm(precision, role, batch)
    return "float32" if preset is None else preset.name
