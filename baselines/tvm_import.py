"""ONNX to Relax with symbolic shapes: TVM 0.27's importer, mended where it stops at the models of this repository.

* `If`: the importer emits both bodies before the `If`, so both always run. Here each branch becomes a private function
  of the values it captures and of their symbolic dims, which is called by the branch: only the taken one runs.
* Arithmetic with single dims (`Shape` with start and end), `Resize` to symbolic sizes, `Range` between symbolic
  numbers, and `Reshape` of a symbolic scalar to a vector.
* What it lacks is written out by other operators before (tvm_lower.py).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any
from unittest import mock

import onnx
from onnx import GraphProto
from tvm import relax, tirx  # type: ignore[import-not-found]
from tvm.ir import GenericConst, is_prim_expr  # type: ignore[import-not-found]
from tvm.relax.frontend.onnx import onnx_frontend as frontend  # type: ignore[import-not-found]
from tvm_lower import lower  # type: ignore[import-not-found]

Inputs = Sequence[Any]


def import_model(model: onnx.ModelProto) -> Any:
    """The Relax module of an ONNX model; `main` takes its inputs in order."""
    lower(model)
    # The importer has no hooks for its operators and branches: its own functions are replaced while it works.
    numbers = itertools.count()
    branch = frontend.ONNXGraphImporter._convert_subgraph
    converters = {
        **frontend._get_convert_map(),
        "Concat": _Concat,
        "Range": _Range,
        "Reshape": _Reshape,
        "Resize": _Resize,
        "Shape": _Shape,
        "Slice": _Slice,
        "Squeeze": _Squeeze,
    }

    def outlined(self: Any, builder: Any, graph: GraphProto) -> Any:
        return _outline(lambda: branch(self, builder, graph), builder, f"branch_{next(numbers)}")

    with (
        mock.patch.object(frontend.ONNXGraphImporter, "_convert_subgraph", outlined),
        mock.patch.object(frontend, "_get_convert_map", lambda: converters),
    ):
        return frontend.from_onnx(model)


def _outline(convert: Any, builder: Any, name: str) -> Any:
    """Make what `convert` emits a function of the module, and return the call of it."""
    builder._begin_binding_block()
    try:
        result = convert()
    finally:
        block = builder._end_block()
    body = relax.SeqExpr([block], result)
    captured = list(relax.analysis.free_vars(body))
    types = [value.ty for value in captured] + [result.ty] + [binding.var.ty for binding in block.bindings]
    dims = symbols(types)
    shape = [relax.Var("dims", relax.ShapeType(dims))] if dims else []
    function = relax.Function([*captured, *shape], body, result.ty, is_pure=True)
    target = builder.add_func(relax.utils.copy_with_new_vars(function), name)
    return relax.Call(target, [*captured, *([relax.ShapeExpr(dims)] if dims else [])])


def symbols(types: Sequence[Any]) -> list[Any]:
    """Symbolic dims in the shapes of these types, each once."""
    found: list[Any] = []
    for kind in types:
        if isinstance(kind, relax.TensorType) and kind.shape is not None:
            for dim in kind.shape:
                for symbol in tirx.analysis.undefined_vars(dim):
                    if not any(symbol.same_as(known) for known in found):
                        found.append(symbol)
    return found


class _Shape(frontend.Shape):  # type: ignore[misc]
    """`Shape` of one dim is a number: the importer computes with symbolic numbers, not with vectors of one."""

    @classmethod
    def _impl_v15(cls, bb: Any, inputs: Inputs, attr: Any, params: Any) -> Any:
        shape = super()._impl_v15(bb, inputs, attr, params)
        one = isinstance(shape, relax.ShapeExpr) and len(shape.values) == 1
        return shape.values[0] if one else shape


def _vectors(inputs: Inputs) -> Inputs:
    """The inputs with numbers as the vectors of one that the model has."""
    values = (relax.ShapeExpr([value]) if is_prim_expr(value) else value for value in inputs)
    return type(inputs)(values)  # the importer's own list, in which missing inputs are None


class _Concat(frontend.Concat):  # type: ignore[misc]
    """`Concat` of dims to a shape."""

    @classmethod
    def _impl_v13(cls, bb: Any, inputs: Inputs, attr: Any, params: Any) -> Any:
        return super()._impl_v13(bb, _vectors(inputs), attr, params)


class _Slice(frontend.Slice):  # type: ignore[misc]
    """`Slice` up to a dim."""

    @classmethod
    def _impl_v13(cls, bb: Any, inputs: Inputs, attr: Any, params: Any) -> Any:
        return super()._impl_v13(bb, _vectors(inputs), attr, params)


class _Squeeze(frontend.Squeeze):  # type: ignore[misc]
    """`Squeeze` of a dim to a number, which it is already."""

    @classmethod
    def _impl_v13(cls, bb: Any, inputs: Inputs, attr: Any, params: Any) -> Any:
        return inputs[0] if is_prim_expr(inputs[0]) else super()._impl_v13(bb, inputs, attr, params)


class _Range(frontend.Range):  # type: ignore[misc]
    """`Range` by 1 or -1 between symbolic numbers has their difference as its dim; the importer makes a new one."""

    @classmethod
    def _impl_v12(cls, bb: Any, inputs: Inputs, attr: Any, params: Any) -> Any:
        start, limit, delta = (_number(frontend.get_constant(value, params)) for value in inputs)
        if not any(is_prim_expr(value) for value in (start, limit)) or delta not in (1, -1):
            return super()._impl_v12(bb, inputs, attr, params)
        if delta == 1:
            return relax.op.arange(start, limit, 1, "int64")
        return relax.op.flip(relax.op.arange(limit + 1, start + 1, 1, "int64"), 0)


class _Reshape(frontend.Reshape):  # type: ignore[misc]
    """`Reshape` of a symbolic scalar to a vector of one element, a value for shapes."""

    @classmethod
    def _impl_v13(cls, bb: Any, inputs: Inputs, attr: Any, params: Any) -> Any:
        target = frontend.get_constant(inputs[1], params)
        if is_prim_expr(inputs[0]) and isinstance(target, GenericConst) and target.value.numpy().size == 1:
            return relax.ShapeExpr([inputs[0]])
        return super()._impl_v13(bb, inputs, attr, params)


class _Resize(frontend.Resize):  # type: ignore[misc]
    """`Resize` of images (NCHW) to symbolic sizes."""

    @classmethod
    def _impl_v18(cls, bb: Any, inputs: Inputs, attr: Any, params: Any) -> Any:
        sizes = frontend.get_constant(inputs[3], params) if len(inputs) > 3 and inputs[3] is not None else None
        if not isinstance(sizes, relax.ShapeExpr) or all(isinstance(v, tirx.IntImm) for v in sizes.values):
            return super()._impl_v18(bb, inputs, attr, params)
        mode = attr.get("mode", b"nearest").decode()
        return relax.op.image.resize2d(
            inputs[0],
            size=relax.ShapeExpr(list(sizes.values)[2:]),
            roi=[0.0] * 4,
            layout="NCHW",
            method="nearest_neighbor" if mode == "nearest" else mode,
            coordinate_transformation_mode=attr.get("coordinate_transformation_mode", b"half_pixel").decode(),
            rounding_method=attr.get("nearest_mode", b"round_prefer_floor").decode(),
            cubic_alpha=attr.get("cubic_coeff_a", -0.75),
            cubic_exclude=attr.get("exclude_outside", 0),
            extrapolation_value=attr.get("extrapolation_value", 0.0),
        )


def _number(value: Any) -> Any:
    """A constant of one element as the number that it is; others as they are."""
    one = isinstance(value, GenericConst) and value.value.numpy().size == 1
    return value.value.numpy().item() if one else value
