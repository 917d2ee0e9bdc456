"""The cases, by name: every op at everyday and at odd shapes."""

from collections.abc import Callable
from functools import partial
from typing import Any

from tests.kernels import cases

CASES: dict[str, Callable[[], cases.Case]] = {}


def _add(make: Callable[..., cases.Case], name: str, **options: Any) -> None:
    CASES[f"{make.__name__}-{name}"] = partial(make, **options)


_JOINT, _APART = cases.exponentiate, cases.exponentiate_apart
for _make in (_JOINT, _APART):
    _add(_make, "one", batch=1, width=1, factors=1, units=1, elements=1)
    _add(_make, "small", batch=7, width=7, factors=5)
    _add(_make, "many-factors", batch=16, factors=9)
    _add(_make, "wide", batch=3, width=1000)
    _add(_make, "wider", batch=2, width=5000, elements=1)
    _add(_make, "offsets", offsets=True, batch=5)
    _add(_make, "lookups", lookups=True)
    _add(_make, "lookups-offsets", lookups=True, offsets=True, factors=5)
    _add(_make, "illegal", lookups=True, illegal=True, batch=7)
    _add(_make, "dead", dead=True, width=64)  # a full tile
    _add(_make, "logs", lookups=True, logs=True, illegal=True, batch=7)
    _add(_make, "by-sample", by_sample=True, lookups=True, units=3)
_add(_JOINT, "not-kept", keep=False)
_add(_JOINT, "parts", parts=2)
_add(_JOINT, "three-parts", parts=3, lookups=True, offsets=True)
_add(_JOINT, "elements-parts", elements=3, parts=2, in_place=False)
_add(_APART, "three-parts", parts=3)
_add(_JOINT, "other-array", in_place=False)
_add(_JOINT, "elements", elements=3, in_place=False)
_add(_JOINT, "elements-dead", elements=3, dead=True, keep=False, batch=7)
_add(_JOINT, "elements-offsets", elements=3, offsets=True, batch=7, width=7, factors=9)
_add(_JOINT, "elements-illegal", elements=3, lookups=True, illegal=True, batch=7, factors=5)
_add(_JOINT, "elements-wide", elements=2, width=5000, batch=2, lookups=True)

_PRODUCTS = cases.forward, cases.element_flows, cases.weight_gradient
_DENSE = cases.dense_forward, cases.dense_backward, cases.dense_gradient
for _make in _DENSE:
    _add(_make, "one", batch=1, nodes=1, units=1, width=1)
    _add(_make, "small", batch=7, nodes=7, width=7)
    _add(_make, "everyday", batch=32, nodes=32, width=64)
    _add(_make, "wide", width=1000, batch=7, nodes=20)
    _add(_make, "nodes", nodes=150, batch=70)
    _add(_make, "zeros", zeros=True)
for _make in _DENSE[:2]:
    _add(_make, "elements", elements=3)
_add(cases.dense_forward, "whole", whole=True, zeros=True)
_add(cases.dense_gradient, "tied", tied=True, multiply=True)
_add(cases.dense_gradient, "multiplied", multiply=True, width=64)
_add(cases.dense_gradient, "batch", batch=150)
_add(cases.dense_gradient, "huge", multiply=True, huge=True)
_add(cases.dense_backward, "huge", zeros=True, huge=True)
_add(cases.split, "two")
_add(cases.split, "three", parts=3, shape=(70, 100))
_add(cases.split, "one", parts=1, shape=(1,))
_add(cases.transpose, "everyday")
_add(cases.transpose, "one", shape=(1, 1, 1))
for _make in _PRODUCTS:
    _add(_make, "one", batch=1, width=1, units=1, nodes=1, blocks=2, elements=2, own=1)
    _add(_make, "small", batch=7, width=7)
    _add(_make, "everyday", batch=16, nodes=32)
    _add(_make, "wide", width=1000, blocks=2, elements=2, own=1, batch=7, units=1)
    _add(_make, "wider", width=5000, blocks=1, elements=1, own=1, batch=2, units=1, nodes=1)
    _add(_make, "nodes", nodes=130, blocks=2)
    _add(_make, "apart", spread=200.0)
    _add(_make, "one-block", blocks=1, elements=2, own=2)
    _add(_make, "unread", blocks=2, elements=9, own=2)
_add(cases.forward, "seven-blocks", blocks=7)  # whose shifts are looked at in two goes
_add(cases.forward, "many-blocks", blocks=21, elements=9, own=5)
_add(cases.forward, "one-step", one_step=True, units=3)
_add(cases.forward, "many-blocks-one-step", one_step=True, units=3, blocks=21, elements=9, own=5)
_add(cases.forward, "tiles", batch=300, nodes=130, blocks=2)
_add(cases.element_flows, "tiles", batch=150, nodes=20, width=270, blocks=2)
for _make in _PRODUCTS[1:]:
    _add(_make, "by-reader", by_reader=True)
    _add(_make, "by-reader-apart", by_reader=True, spread=200.0, units=3, batch=40)
    _add(_make, "by-reader-nodes", by_reader=True, nodes=130, blocks=2)
    _add(_make, "by-reader-unread", by_reader=True, blocks=2, elements=9, own=2)
_add(cases.weight_gradient, "by-reader-tied", by_reader=True, tied=True, multiply=True)
_add(cases.forward, "zeros", zeros=True)
_add(cases.element_flows, "zeros", zeros=True)
_add(cases.weight_gradient, "tied", tied=True)
_add(cases.weight_gradient, "multiplied", multiply=True)
_add(cases.weight_gradient, "batch", batch=70, blocks=2)
_add(cases.weight_gradient, "huge", multiply=True, huge=True)
_add(cases.element_flows, "huge", zeros=True, huge=True, spread=0.0)
_add(cases.scale_flows, "infinite", infinite=True)

for _elements in (1, 3):
    _add(cases.scale_flows, f"elements{_elements}", elements=_elements)
    _add(cases.scale_flows, f"wide{_elements}", elements=_elements, width=1500, batch=3)
_add(cases.scale_flows, "one", batch=1, width=1, units=1)

_add(cases.flow_ratio, "one", batch=1, nodes=1, units=1, reads=1)
_add(cases.flow_ratio, "small", batch=7, nodes=7, reads=2)
_add(cases.flow_ratio, "many-reads", batch=16, nodes=33, reads=9)
_add(cases.flow_ratio, "wide", batch=2, nodes=5000)
_add(cases.flow_ratio, "blocks", blocks=3)
_add(cases.flow_ratio, "pieces", pieces=4, reads=5)
_add(cases.flow_ratio, "blocks-pieces-offsets", blocks=2, pieces=3, offsets=True)
_add(cases.flow_ratio, "offsets", offsets=True)
_add(cases.flow_ratio, "not-kept", keep=False)
_add(cases.flow_ratio, "kept-alone", writes=False, blocks=3)
_add(cases.flow_ratio, "parts", parts=2, writes=False)
_add(cases.flow_ratio, "three-parts", parts=3, writes=False, pieces=2)

_add(cases.flow_ratio, "apart", blocks=3, own=2, parts=2, writes=False)
_add(cases.flow_ratio, "apart-pieces", blocks=4, own=3, parts=3, pieces=2, batch=5)

_add(cases.leaf_counts, "one", tables=1, copies=1, categories=1, batch=1, nodes=1, reads=1)
_add(cases.leaf_counts, "small", batch=7, nodes=7)
_add(cases.leaf_counts, "many-reads", reads=9, batch=3, tables=2)
_add(cases.leaf_counts, "many-reads-last", reads=6, first=3)
_add(cases.leaf_counts, "everyday")
_add(cases.leaf_counts, "pieces-offsets", pieces=2, offsets=True, reads=5, batch=5)
_add(cases.leaf_counts, "last", first=4)
_add(cases.leaf_counts, "wide", nodes=1500, batch=3, categories=2)
_add(cases.empty, "all")
for _make in (
    _JOINT,
    _APART,
    *_PRODUCTS,
    *_DENSE,
    cases.scale_flows,
    cases.flow_ratio,
    cases.leaf_counts,
):
    _add(_make, "no-samples", batch=0)

PRECISIONS = ("bf16", "tf32", "bf16x3", "fp32")
PRODUCTS: dict[str, Callable[..., cases.Case]] = {make.__name__: make for make in _PRODUCTS}
PRODUCTS |= {f"{make.__name__}-by-reader": partial(make, by_reader=True) for make in _PRODUCTS[1:]}
DENSE: dict[str, Callable[..., cases.Case]] = {make.__name__: make for make in _DENSE}
DENSE["dense_forward-whole"] = partial(cases.dense_forward, whole=True)
