"""Table 2: what determines the output of every live ONNX operator, derived from the operators' rules.

An operator with rules is asked for its class at a node about whose operands nothing is known but their ranks. One that
the standard defines by others has the class that the analysis finds: that of ONNX's own example of it, with a symbol
for every dim. Nothing is stored. Operators without rules (on strings, say) are counted apart.
"""

from __future__ import annotations

import functools
import warnings
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx.backend.test.loader import load_model_tests

import sod2
from baselines.rows import Row
from devices.device import Device
from figures.layout import Cell, Column, Table
from figures.needs import Needs
from sod2.graph import Node
from sod2.lattice import known
from sod2.ops import OPS, Dynamism, Fact
from sod2.symbolic import symbol

NEEDS = Needs(models=())
TITLE = "Table 2. Live operators of ONNX by what determines their output."
NO_RULE = "no rule"
PAPER_TOTAL = 150  # operators that the paper classifies; the counts of its classes are lost

# Control flow is read as the nodes that the paper's graph has in its place.
_STANDS_FOR = {"If": "Combine", "Loop": "LoopEnd", "Scan": "LoopEnd"}
_CAPTION = (
    "ISDO: input shape determines output; ISDOS: input shape determines output shape; ISVDOS: input shape and value"
    " determine output shape; EDO: execution determines output. A node's class falls as the analysis learns the values"
    " of its operands. {live} live operators of opset {opset}; the paper classifies {paper}."
)


def classes() -> dict[str, str]:
    """The class of every live operator of the ai.onnx domain, by name; NO_RULE where nothing tells."""
    live = sorted(s.name for s in onnx.defs.get_all_schemas() if not s.domain and not s.deprecated)
    return {name: _class(name) for name in live}


def _class(name: str) -> str:
    op = OPS.table.get(("", _STANDS_FOR.get(name, name)))
    if op is None:
        return _of_definition(name)
    schema = onnx.defs.get_schema(name)
    inputs = tuple(f"x{k}" for k in range(max(schema.min_input, min(schema.max_input, 8))))
    node = Node(name, name, inputs, tuple(f"y{k}" for k in range(schema.min_output)))
    facts = [Fact(np.dtype(np.int64), (symbol(f"n{k}"),)) for k in range(len(inputs))]
    return op.dynamism(node, facts).name


def _of_definition(name: str) -> str:
    """The most dynamic class among the outputs of ONNX's example of an operator that is inlined."""
    schema: Any = onnx.defs.get_schema(name)
    model = _examples().get(name)
    if model is None or not (schema.has_function or schema.has_context_dependent_function):
        return NO_RULE
    try:
        facts = sod2.analyze(model)
    except sod2.UnsupportedError:
        return NO_RULE
    kinds = {m.kind for m in facts.minted.values()}
    outputs = [facts[t] for t in facts.graph.outputs]
    if "dim" in kinds or not all(known(f.shape) for f in outputs):
        return Dynamism.EDO.name
    if "value" in kinds:
        return Dynamism.ISVDOS.name
    return (Dynamism.ISDO if all(f.known_value is not None for f in outputs) else Dynamism.ISDOS).name


@functools.cache
def _examples() -> dict[str, onnx.ModelProto]:
    """ONNX's smallest example of each operator, with a symbol for every dim of its inputs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = load_model_tests(kind="node")
    found: dict[str, onnx.ModelProto] = {}
    for case in cases:
        nodes = case.model.graph.node
        if len(nodes) == 1 and not nodes[0].domain and nodes[0].op_type not in found:
            found[nodes[0].op_type] = _symbolic(case.model)
    return found


def _symbolic(model: onnx.ModelProto) -> onnx.ModelProto:
    copied = onnx.ModelProto()
    copied.CopyFrom(model)
    for number, value in enumerate(copied.graph.input):
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            dim.dim_param = f"d{number}_{axis}"
    return copied


def table(config: dict[str, Any], rows: Sequence[Row], device: Device) -> Table:
    """One line an operator, then the counts; the same for every device."""
    found = classes()
    counts = Counter(found.values())
    order = [*(d.name for d in Dynamism), NO_RULE]
    body = [
        [Cell(name), Cell(found[name]), Cell("rules" if ("", name) in OPS.table else "definition")]
        for name in sorted(found, key=lambda n: (order.index(found[n]), n))
    ]
    summary = [[Cell(kind), Cell(str(counts[kind]), counts[kind]), Cell()] for kind in order]
    summary.append([Cell("all"), Cell(str(len(found)), len(found)), Cell()])
    caption = _CAPTION.format(live=len(found), opset=onnx.defs.onnx_opset_version(), paper=PAPER_TOTAL)
    columns = [Column((text,), numeric=False) for text in ("Operator", "Class", "From")]
    return Table(TITLE, columns, body, summary, [], caption)
