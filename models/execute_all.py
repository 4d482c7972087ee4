"""Control flow by execution of everything: each `If` becomes both of its branches and a `Where`.

This is the form in which the paper ran the frameworks that cannot skip: all branches are computed, the unwanted
results are stripped. The rewritten graph is flat, gives equal numbers, and costs the sum of all branches.

Bodies are inlined innermost first; a name inside a body that is taken elsewhere in the graph gets a suffix. The i-th
output of `If` named N becomes the `Where` node N (i = 0) or N_i, with the output's own name. Bodies of Loop and Scan
keep their place and have their own Ifs rewritten inside.

Limits: both branches must give tensors of one shape at run time (`Where` would broadcast or fail otherwise), a
predicate is a scalar, and neither branch may fail on inputs for which the other one is meant. `Where` takes every
element type, but onnxruntime implements it for numbers and strings only, not for bool.
"""

from collections.abc import Iterator

import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, helper

from models.assembly import rename, subgraphs


def execute_all(model: ModelProto) -> ModelProto:
    """A copy of `model` without `If`. Raises ValueError when an `If` gives something other than tensors."""
    result = ModelProto()
    result.CopyFrom(model)
    _Flattening(result.graph).rewrite(result.graph)
    return result


def walk(graph: GraphProto) -> Iterator[NodeProto]:
    """All nodes of a graph and of its nested bodies, a control-flow node before its bodies."""
    for node in graph.node:
        yield node
        for body in subgraphs(node):
            yield from walk(body)


class _Flattening:
    """Keeps the names in use while bodies move into the graphs around them."""

    def __init__(self, graph: GraphProto) -> None:
        self._taken = {value.name for value in (*graph.input, *graph.initializer)}
        self._taken |= {name for node in graph.node for name in node.output}
        self._nodes = {node.name for node in graph.node}
        # A fresh name must differ from those of bodies that are still nested: they may hold uses of the renamed value.
        self._anywhere = {name for node in walk(graph) for name in (*node.output, *node.input, node.name)}

    def rewrite(self, graph: GraphProto) -> None:
        """Replace every `If` of the graph, and of the bodies in it, in place."""
        nodes: list[NodeProto] = []
        for node in graph.node:
            if node.op_type == "If" and node.domain in ("", "ai.onnx"):
                nodes.extend(self._inline(graph, node))
            else:
                for body in subgraphs(node):
                    self.rewrite(body)
                nodes.append(node)
        flat = [_copy(node) for node in nodes]
        del graph.node[:]
        graph.node.extend(flat)

    def _inline(self, graph: GraphProto, node: NodeProto) -> list[NodeProto]:
        """Both branches' nodes, followed by one Where per output; branch initializers move to `graph`."""
        bodies = {attribute.name: attribute.g for attribute in node.attribute if attribute.type == AttributeProto.GRAPH}
        nodes: list[NodeProto] = []
        results: dict[str, list[str]] = {}
        for branch in ("then_branch", "else_branch"):
            body = bodies[branch]
            for value in body.output:
                if not value.type.HasField("tensor_type"):
                    raise ValueError(f"If {node.name!r} gives {value.name!r}, which is no tensor: Where takes tensors")
            self._claim(body)
            self.rewrite(body)
            nodes.extend(body.node)
            graph.initializer.extend(body.initializer)
            results[branch] = [value.name for value in body.output]
        for index, output in enumerate(node.output):
            if output:
                name = node.name if index == 0 else f"{node.name}_{index}"
                operands = [node.input[0], results["then_branch"][index], results["else_branch"][index]]
                nodes.append(helper.make_node("Where", operands, [output], name))
        return nodes

    def _claim(self, body: GraphProto) -> None:
        """Make the names which a branch defines unique in the graph it moves into."""
        defined = [value.name for value in body.initializer]
        defined += [name for node in body.node for name in node.output if name]
        renamed = {name: self._unique(name, self._taken) for name in defined}
        clashing = {old: new for old, new in renamed.items() if old != new}
        rename(body, clashing)
        for value in (*body.initializer, *body.output):
            value.name = clashing.get(value.name, value.name)
        for node in body.node:
            node.name = self._unique(node.name, self._nodes)

    def _unique(self, name: str, taken: set[str]) -> str:
        candidate, number = name, 1
        while candidate in taken or (candidate != name and candidate in self._anywhere):
            candidate, number = f"{name}_{number}", number + 1
        taken.add(candidate)
        return candidate


def _copy(node: NodeProto) -> NodeProto:
    """A copy that outlives the graph which owns the node."""
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    return copy
