"""Operators of com.microsoft that exporters leave in models, as nodes of the standard's operators.

Small operators of our own help: Scale multiplies by an attribute, SwapLast exchanges the last two dims of a tensor of
any rank (ops/scale.py), RecurrentWeights are an LSTM's, made of quantised ones (ops/recurrent_weights.py).
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from sod2.graph import Node

DOMAIN = "com.microsoft"
_SKIP_EPSILON = 9.999999960041972e-13  # the default of SkipLayerNormalization


@dataclass
class _Chain:
    """The nodes that one node becomes, and fresh names for the tensors between them."""

    node: Node
    nodes: list[Node] = field(default_factory=list)

    def add(self, op: str, *inputs: str, output: str = "", domain: str = "", **attrs: object) -> str:
        """Append a node of one output, which is new unless it is given; returns the output."""
        name = f"{self.node.name}:{len(self.nodes)}"
        self.nodes.append(Node(name, op, inputs, (output or name,), attrs, self.node.guard, domain))
        return output or name

    def sum(self, *inputs: str, output: str = "") -> str:
        """The sum of the inputs that are there, which may be the only one."""
        present = [t for t in inputs if t]
        if len(present) == 1:
            return self.add("Identity", *present, output=output) if output else present[0]
        total = present[0]
        for k, t in enumerate(present[1:], start=2):
            total = self.add("Add", total, t, output=output if k == len(present) else "")
        return total


def _input(node: Node, i: int) -> str:
    return node.inputs[i] if i < len(node.inputs) else ""


def _output(node: Node, i: int) -> str:
    return node.outputs[i] if i < len(node.outputs) else ""


def fused_matmul(node: Node) -> list[Node]:
    """alpha * A' B', either operand with its last two dims swapped."""
    chain = _Chain(node)
    sides = [
        chain.add("SwapLast", t, domain="sod2") if node.attrs.get(name, 0) else t
        for t, name in zip(node.inputs, ("transA", "transB"), strict=True)
    ]
    alpha = float(node.attrs.get("alpha", 1.0))
    if alpha == 1.0:
        chain.add("MatMul", *sides, output=node.outputs[0])
    else:
        chain.add("Scale", chain.add("MatMul", *sides), output=node.outputs[0], domain="sod2", alpha=alpha)
    return chain.nodes


def gelu(approximate: str) -> Callable[[Node], list[Node]]:
    """Gelu of the input plus an optional bias."""

    def lower(node: Node) -> list[Node]:
        chain = _Chain(node)
        chain.add("Gelu", chain.sum(*node.inputs), output=node.outputs[0], approximate=approximate)
        return chain.nodes

    return lower


def quick_gelu(node: Node) -> list[Node]:
    """x * sigmoid(alpha x)."""
    chain = _Chain(node)
    chain.add("Swish", node.inputs[0], output=node.outputs[0], alpha=float(node.attrs.get("alpha", 1.702)))
    return chain.nodes


def skip_layer_norm(node: Node) -> list[Node]:
    """LayerNormalization of input + skip + bias; the fourth output is that sum."""
    chain = _Chain(node)
    total = chain.sum(node.inputs[0], node.inputs[1], _input(node, 4), output=_output(node, 3))
    inputs = tuple(t for t in (total, node.inputs[2], _input(node, 3)) if t)
    attrs = {"axis": -1, "epsilon": float(node.attrs.get("epsilon", _SKIP_EPSILON))}
    outputs = (node.outputs[0], _output(node, 1), _output(node, 2))
    return [*chain.nodes, Node(f"{node.name}:norm", "LayerNormalization", inputs, outputs, attrs, node.guard)]


def skip_rms_norm(node: Node) -> list[Node]:
    """RMSNormalization of input + skip + bias; the fourth output is that sum."""
    chain = _Chain(node)
    total = chain.sum(node.inputs[0], node.inputs[1], _input(node, 3), output=_output(node, 3))
    epsilon = float(node.attrs.get("epsilon", _SKIP_EPSILON))
    chain.add("RMSNormalization", total, node.inputs[2], output=node.outputs[0], axis=-1, epsilon=epsilon)
    return chain.nodes


def rms_norm(node: Node) -> list[Node]:
    """onnxruntime's SimplifiedLayerNormalization is RMSNormalization."""
    chain = _Chain(node)
    attrs = {name: node.attrs[name] for name in ("axis", "epsilon") if name in node.attrs}
    chain.add("RMSNormalization", *node.inputs[:2], output=node.outputs[0], **attrs)
    return chain.nodes


def dynamic_quantize_lstm(node: Node) -> list[Node]:
    """LSTM of float weights, whose products see their operands rounded to 8 bits."""
    chain = _Chain(node)
    w, r = (
        chain.add("RecurrentWeights", node.inputs[k], *node.inputs[first : first + 2], domain="sod2")
        for k, first in ((1, 8), (2, 10))
    )
    attrs = {**node.attrs, "quantised": 1}
    inputs = (node.inputs[0], w, r, *node.inputs[3:8])
    return [*chain.nodes, Node(node.name, "LSTM", inputs, node.outputs, attrs, node.guard)]


LOWERED: dict[tuple[str, str], Callable[[Node], list[Node]]] = {
    (DOMAIN, "FusedMatMul"): fused_matmul,
    (DOMAIN, "Gelu"): gelu("none"),
    (DOMAIN, "BiasGelu"): gelu("none"),
    (DOMAIN, "FastGelu"): gelu("tanh"),
    (DOMAIN, "QuickGelu"): quick_gelu,
    (DOMAIN, "SkipLayerNormalization"): skip_layer_norm,
    (DOMAIN, "SkipSimplifiedLayerNormalization"): skip_rms_norm,
    (DOMAIN, "DynamicQuantizeLSTM"): dynamic_quantize_lstm,
    ("", "SimplifiedLayerNormalization"): rms_norm,
}
