"""From a spox composition to the file an exporter writes: constants as initializers, no connecting `Identity` nodes,
shapes of intermediates declared."""

from collections.abc import Iterator, Mapping, Sequence

import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, helper, numpy_helper

READ_BYTES = 1024  # initializers up to this size may hold shapes, which the inference reads


def subgraphs(node: NodeProto) -> list[GraphProto]:
    """The bodies of a control-flow node, in attribute order."""
    return [attribute.g for attribute in node.attribute if attribute.type == AttributeProto.GRAPH]


def graphs(graph: GraphProto) -> Iterator[GraphProto]:
    """The graph and every graph inside it, outer ones first."""
    yield graph
    for node in graph.node:
        for body in subgraphs(node):
            yield from graphs(body)


def rename(graph: GraphProto, names: Mapping[str, str]) -> None:
    """Replace value names where they are used or produced, in the graph and in every nested body."""
    for node in graph.node:
        for names_of in (node.input, node.output):
            for position, name in enumerate(names_of):
                if name in names:
                    names_of[position] = names[name]
        for body in subgraphs(node):
            rename(body, names)


def declare_shapes(model: ModelProto) -> None:
    """Declare the shapes of intermediates that ONNX's own inference finds, as exporters do: engines fuse by them.

    Onnxruntime, for one, joins a residual sum and its LayerNorm only where it knows both operands to be of one shape.
    """
    light = ModelProto(ir_version=model.ir_version, opset_import=model.opset_import)
    light.graph.name = model.graph.name
    light.graph.node.extend(model.graph.node)
    light.graph.output.extend(model.graph.output)
    light.graph.input.extend(model.graph.input)
    for tensor in model.graph.initializer:
        if len(tensor.raw_data) <= READ_BYTES:
            light.graph.initializer.append(tensor)
        else:
            light.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    inferred = onnx.shape_inference.infer_shapes(light, data_prop=True)
    model.graph.value_info.extend(inferred.graph.value_info)


def scalar_loop_counters(graph: GraphProto) -> None:
    """Give every Loop a trip count, an iteration number and a condition without dims, as exporters do.

    spox gives each of them one dim of length 1. Constants are hoisted before, and the condition is one.
    """
    constants = {tensor.name: tensor for tensor in graph.initializer}
    nodes: list[NodeProto] = []
    for node in graph.node:
        if node.op_type == "Loop":
            count = f"{node.input[0]}_scalar"
            nodes.append(helper.make_node("Squeeze", [node.input[0]], [count], f"{node.name}_count"))
            node.input[0] = count
            del constants[node.input[1]].dims[:]
            (body,) = subgraphs(node)
            for value in (*body.input[:2], body.output[0]):
                del value.type.tensor_type.shape.dim[:]
        nodes.append(node)
    _replace_nodes(graph, nodes)


def _replace_nodes(graph: GraphProto, nodes: Sequence[NodeProto]) -> None:
    """Make these, some of which the graph owns, its nodes."""
    copies = [NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(copies)


def hoist_constants(graph: GraphProto) -> None:
    """Turn the Constant nodes of all levels into initializers of the outermost graph, equal ones shared."""
    shared: dict[tuple[int, tuple[int, ...], bytes], str] = {}
    renamed: dict[str, str] = {}

    def collect(level: GraphProto) -> None:
        kept = []
        for node in level.node:
            if node.op_type == "Constant":
                tensor = node.attribute[0].t
                key = (tensor.data_type, tuple(tensor.dims), numpy_helper.to_array(tensor).tobytes())
                if key not in shared:
                    shared[key] = f"constant_{len(shared)}"
                    tensor.name = shared[key]
                    graph.initializer.append(tensor)
                renamed[node.output[0]] = shared[key]
            else:
                kept.append(node)
                for body in subgraphs(node):
                    collect(body)
        del level.node[:]
        level.node.extend(kept)

    collect(graph)
    rename(graph, renamed)


def drop_connecting_identities(graph: GraphProto) -> None:
    """Remove each Identity that only gives an output its name; one that forwards a captured value has to stay."""
    outputs = {output.name for output in graph.output}
    produced = {name for node in graph.node for name in node.output}
    renamed: dict[str, str] = {}
    kept = []
    for node in graph.node:
        for body in subgraphs(node):
            drop_connecting_identities(body)
        source = node.input[0] if node.input else ""
        connects = node.op_type == "Identity" and node.output[0] in outputs and source in produced
        if connects and source not in renamed and source not in outputs:
            renamed[source] = node.output[0]
        else:
            kept.append(node)
    _replace_nodes(graph, kept)
    rename(graph, renamed)
