"""Operators that others define: local functions, and functions of the standard without rules of ours, are inlined.

The definition of a standard operator becomes a local function of the model, one a node since it may depend on the
types of the node's operands, and onnx's inliner inlines it; until nothing is left. Large initializers stay out of the
inliner's sight, because it works on the serialized model, which must not exceed 2 GB.
"""

import functools
import math
from collections.abc import Iterator, Mapping
from typing import Any

import onnx
import onnx.inliner

from sod2.errors import UnsupportedError
from sod2.ops import OPS

_SMALL = 1 << 10  # elements of an initializer that the inliner sees
_DEPTH = 8  # functions within functions
_DOMAIN = "sod2.definition"

Types = Mapping[str, onnx.TypeProto]


@functools.cache
def _without_rules() -> frozenset[tuple[str, str]]:
    """Domain and name of the standard's functions that have no rules here."""
    schemas: Any = onnx.defs.get_all_schemas_with_history()
    defined = {(s.domain, s.name) for s in schemas if s.has_function or s.has_context_dependent_function}
    return frozenset(defined - set(OPS.table))


def inlined(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model without functions: none of its own, and none of the standard that has no rules here."""
    if not model.functions and not any(True for _ in _calls(model.graph)):
        return model
    light, heavy = without_data(model)
    for _ in range(_DEPTH):
        _declare(light)
        if not light.functions:
            break
        light = onnx.inliner.inline_local_functions(light, convert_version=True)
    else:
        raise UnsupportedError(f"functions of model {model.graph.name!r} are nested; up to {_DEPTH} levels are inlined")
    light.graph.initializer.extend(heavy)
    return light


def without_data(model: onnx.ModelProto) -> tuple[onnx.ModelProto, list[onnx.TensorProto]]:
    """A copy whose large initializers are inputs, and these, to be put back among the initializers.

    They are not copied, nor asked for their size: protobuf says that of no message above 2 GB.
    """
    light = _copy(model, "graph")
    light.graph.CopyFrom(_copy(model.graph, "initializer"))
    heavy = []
    named = {v.name for v in model.graph.input}
    for t in model.graph.initializer:
        if math.prod(t.dims) <= _SMALL or t.data_type == onnx.TensorProto.STRING:
            light.graph.initializer.append(t)
            continue
        heavy.append(t)
        if t.name not in named:
            light.graph.input.append(onnx.helper.make_tensor_value_info(t.name, t.data_type, t.dims))
    return light, heavy


def _copy(message: Any, without: str) -> Any:
    """A message of the same type with all fields but one."""
    return type(message)(**{field.name: value for field, value in message.ListFields() if field.name != without})


def _calls(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """The nodes of a graph and its sub-graphs that stand for a definition."""
    for node in graph.node:
        if ("" if node.domain == "ai.onnx" else node.domain, node.op_type) in _without_rules():
            yield node
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from _calls(inner)


def _declare(model: onnx.ModelProto) -> None:
    """Make every call of a definition one of a local function."""
    calls = list(_calls(model.graph))
    types: Types = _types(model.graph, onnx.shape_inference.infer_shapes(model).graph) if calls else {}
    versions = {("" if o.domain == "ai.onnx" else o.domain): o.version for o in model.opset_import}
    for number, node in enumerate(calls):
        domain = "" if node.domain == "ai.onnx" else node.domain
        schema = onnx.defs.get_schema(node.op_type, versions[domain], domain)
        body = _definition(schema, node, types, versions[""])
        if body is None:  # it depends on a size that is not known: the analysis will say that the operator has no rule
            continue
        body.domain, body.name = _DOMAIN, f"{node.op_type}_{number}"
        del body.opset_import[:]
        body.opset_import.extend(model.opset_import)
        _default_attributes(schema, node)
        node.domain, node.op_type = body.domain, body.name
        model.functions.append(body)
    if calls and _DOMAIN not in versions:
        model.opset_import.append(onnx.helper.make_opsetid(_DOMAIN, 1))


def _types(*graphs: onnx.GraphProto) -> dict[str, onnx.TypeProto]:
    found: dict[str, onnx.TypeProto] = {}
    for graph in graphs:
        found.update((v.name, v.type) for v in (*graph.input, *graph.value_info, *graph.output))
        for t in graph.initializer:
            found[t.name] = onnx.helper.make_tensor_type_proto(t.data_type, t.dims)
        for node in graph.node:
            found.update(_types(*(a.g for a in node.attribute if a.type == onnx.AttributeProto.GRAPH)))
    return found


def _definition(schema: Any, node: onnx.NodeProto, types: Types, opset: int) -> onnx.FunctionProto | None:
    """The body of an operator that suits the node and the model's opset; None when there is none."""
    body = onnx.FunctionProto()
    plain = [v for v in schema.function_opset_versions if v <= opset]
    dependent = [v for v in schema.context_dependent_function_opset_versions if v <= opset]
    if plain:
        body.ParseFromString(schema.get_function_with_opset_version(max(plain)))
    elif dependent:
        operands = [types.get(t, onnx.TypeProto()).SerializeToString() for t in node.input]
        found = schema.get_context_dependent_function_with_opset_version(
            max(dependent), node.SerializeToString(), operands
        )
        body.ParseFromString(found)
    return body if body.node else None


def _default_attributes(schema: Any, node: onnx.NodeProto) -> None:
    """Give the node the defaults of the attributes that it leaves out: the definition refers to them."""
    given = {a.name for a in node.attribute}
    for name, attribute in schema.attributes.items():
        if name not in given and attribute.default_value.type:
            node.attribute.append(attribute.default_value)
