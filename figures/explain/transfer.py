"""Transfer functions of RDP at work: what the rules of some operators answer, forwards and backwards, as Markdown.

Every line is computed: forward lines by analysing a model of one or two nodes, backward lines by asking the operator's
rule for what its output's shape proves about its inputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx

import sod2
from sod2.graph import Node
from sod2.lattice import UNDEF, DimFact
from sod2.ops import OPS
from sod2.ops.op import Fact
from sod2.symbolic import as_dim, symbol

FORWARD = (
    ("float[N, 3, H, W] x", "y = Shape(x)"),
    ("float[N, 4] x, float[M, 4] z", "y = Add(x, z)"),
    ("float[N, K] x, float[K, 8] z", "y = MatMul(x, z)"),
    ("float[1, 3, H, W] x, float[8, 3, 3, 3] w", "y = Conv<strides = [2, 2], pads = [1, 1, 1, 1]>(x, w)"),
    ("float[N, 4] x, float[M, 4] z", "y = Concat<axis = 0>(x, z)"),
    ("float[N, M] x, float[A, B, C] z", "n = Shape(z) y = Reshape(x, n)"),
    ("float[N, M] x", "y = NonZero(x)"),
    (
        "float[N, 4] x, bool c",
        "y = If(c)<then_branch = a () => (float[] p) { p = Relu(x) },"
        " else_branch = b () => (float[] q) { q = Concat<axis = 0>(x, x) }>",
    ),
)
_N, _K = symbol("N"), symbol("K")
_UNKNOWN: tuple[DimFact, ...] = (UNDEF, UNDEF)
BACKWARD: tuple[tuple[str, Mapping[str, object], tuple[DimFact, ...], tuple[DimFact, ...] | None], ...] = (
    ("Relu", {}, (_N, as_dim(8)), None),
    ("Transpose", {"perm": [1, 0]}, (_N, as_dim(8)), None),
    ("MatMul", {}, (_N, as_dim(8)), (_K, as_dim(8))),
    ("Add", {}, (_N, as_dim(8)), (as_dim(1), as_dim(8))),
    ("Concat", {"axis": 0}, (_N, as_dim(8)), (as_dim(3), as_dim(8))),
)


def tables() -> str:
    """Both tables."""
    return "\n".join([
        "# Transfer functions",
        "",
        "Written by `python -m figures.explain` from the compiler's own rules.",
        "",
        "## Forward",
        "",
        "What is known of the output (shape, and value where it is known too), and the operator's class under the facts"
        " of the example. A dim named after its tensor, like `y.0`, is nac: only execution tells it.",
        "",
        *_table(("operator", "inputs", "class", "output"), [_forward(*example) for example in FORWARD]),
        "",
        "## Backward",
        "",
        "What a known output shape proves about a first input of which only the rank is known.",
        "",
        *_table(("operator", "output", "second input", "first input"), [_backward(*example) for example in BACKWARD]),
        "",
    ])  # fmt: skip


def _forward(inputs: str, body: str) -> list[str]:
    kind = "int64[]" if "Shape(x)" in body or "NonZero" in body else "float[]"
    header = '<ir_version: 10, opset_import: ["" : 21]>'
    analysis = sod2.analyze(onnx.parser.parse_model(f"{header} example ({inputs}) => ({kind} y) {{ {body} }}"))
    node = analysis.graph.nodes[-1]
    kind = OPS(node).dynamism(node, [analysis[tensor] if tensor else None for tensor in node.inputs]).name
    return [f"`{body}`", f"`{inputs}`", kind, f"`{analysis['y']}`"]


def _backward(
    op: str, attrs: Mapping[str, object], output: Sequence[DimFact], second: Sequence[DimFact] | None
) -> list[str]:
    operands = [_fact(_UNKNOWN), *([_fact(second)] if second is not None else [])]
    node = Node("example", op, tuple("xz"[: len(operands)]), ("y",), attrs)
    first, *_ = OPS(node).shape_back(node, operands, [_fact(output)])
    settings = "".join(f" {name}={value}" for name, value in attrs.items())
    other = f"`{_shape(second)}`" if second is not None else ""
    return [f"`{op}{settings}`", f"`{_shape(output)}`", other, f"`{_shape(first)}`"]


def _fact(dims: Sequence[DimFact]) -> Fact:
    return Fact(np.dtype(np.float32), tuple(dims))


def _shape(shape: object) -> str:
    return f"[{', '.join(map(str, shape))}]" if isinstance(shape, tuple) else str(shape)


def _table(headers: Sequence[str], lines: Sequence[Sequence[str]]) -> list[str]:
    rows = [headers, ["---"] * len(headers), *lines]
    return [f"| {' | '.join(row)} |" for row in rows]
