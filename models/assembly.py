"""From a spox composition to the file an exporter writes: constants as initializers, no connecting `Identity` nodes."""

from collections.abc import Mapping

import onnx
from onnx import AttributeProto, GraphProto, NodeProto, numpy_helper


def subgraphs(node: NodeProto) -> list[GraphProto]:
    """The bodies of a control-flow node, in attribute order."""
    return [attribute.g for attribute in node.attribute if attribute.type == AttributeProto.GRAPH]


def rename(graph: GraphProto, names: Mapping[str, str]) -> None:
    """Replace value names where they are used or produced, in the graph and in every nested body."""
    for node in graph.node:
        for names_of in (node.input, node.output):
            for position, name in enumerate(names_of):
                if name in names:
                    names_of[position] = names[name]
        for body in subgraphs(node):
            rename(body, names)


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
    nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in kept]
    del graph.node[:]
    graph.node.extend(nodes)
    rename(graph, renamed)
