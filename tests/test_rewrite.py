"""Rewriting: every rule of the table, on graphs generated from its left side, against the graph as it was."""

from collections.abc import Iterator

import numpy as np
import onnx
import pytest

from sod2 import frontend, rdp, reference, rewrite
from sod2.graph import Graph
from sod2.rewrite import Pattern, parse
from sod2.rewrite_rules import RULES, Rule
from sod2.symbolic import evaluate
from tests.graphs import assert_close, model

_SHAPES = ((3, 4), (1, 4), (3, 1), (4,), (2, 3, 4), (1,))
_INTEGERS = {  # operands that are no data: (operator, position) -> what stands there
    ("Expand", 1): [3, 4],
    ("Tile", 1): [3, 2],
    ("Gather", 1): [1],
    ("Slice", 1): [0],
    ("Slice", 2): [1],
    ("Slice", 3): [0],
    ("Slice", 4): [1],
    **{(f"Reduce{kind}", 1): [-1] for kind in ("Sum", "Mean", "Prod", "Max", "Min")},
}


def leaves(pattern: Pattern, above: str = "", place: int = 0) -> Iterator[tuple[str, str, int]]:
    """Every leaf with the operator that reads it, and the place there."""
    if pattern.leaf:
        yield pattern.leaf, above, place
    for k, operand in enumerate(pattern.operands):
        yield from leaves(operand, pattern.op, k)


def graph_of(rule: Rule, operator: str, seed: int) -> tuple[Graph, dict[str, np.ndarray]]:
    """A graph of the rule's left side with random shapes, and inputs for it."""
    rng = np.random.default_rng(seed)
    pattern = parse(rule.before)
    product = "MatMul" in rule.before
    inputs, stored, declared = {}, {}, []
    for leaf, above, place in leaves(pattern):
        shape = (4, 4) if product and leaf != "s" else () if leaf == "s" else _SHAPES[rng.integers(len(_SHAPES))]
        array = rng.uniform(0.5, 2.0, shape).astype(np.float32)
        if (above, place) in _INTEGERS:
            stored[leaf] = np.array(_INTEGERS[above, place], np.int64)
        elif not leaf[0].isalpha():
            stored[number(leaf)] = np.array(float(leaf), np.float32)
        elif leaf in ("c", "d", "e", "f", "s"):
            stored[leaf] = array
        elif leaf not in inputs:
            inputs[leaf] = (
                array.reshape(-1)[:1].reshape(1, 1) if "Expand" in rule.before or "Tile" in rule.before else array
            )
            declared.append(f"float[{', '.join(map(str, inputs[leaf].shape))}] {leaf}")
    lines: list[str] = []
    write(pattern, operator, lines)
    source = model(", ".join(declared), f"float[?] t{len(lines)}", " ".join(lines), stored)
    return frontend.load(source), inputs


def write(pattern: Pattern, operator: str, lines: list[str]) -> str:
    """Append the nodes of a pattern in ONNX's text form; returns the tensor."""
    if pattern.leaf:
        return pattern.leaf if pattern.leaf[0].isalpha() else number(pattern.leaf)
    operands = ", ".join([write(p, operator, lines) for p in pattern.operands])
    lines.append(f"t{len(lines) + 1} = {operator if pattern.op == 'F' else pattern.op}({operands})")
    return f"t{len(lines)}"


def number(text: str) -> str:
    """An identifier for a number."""
    return f"n{text.translate(str.maketrans('.-', 'pm'))}"


def total(graph: Graph) -> int:
    facts = rdp.analyze(graph).facts
    costs = [rewrite.cost(n, facts) for n in graph.nodes]
    return sum(evaluate(c, {}) for c in costs if c is not None)


def valid(rule: Rule, operator: str, seed: int) -> tuple[Graph, dict[str, np.ndarray], dict[str, np.ndarray]] | None:
    """A graph with inputs and what it computes; None where the drawn shapes do not go together."""
    try:
        graph, inputs = graph_of(rule, operator, seed)
        return graph, inputs, reference.run(graph, inputs)
    except (ValueError, IndexError, onnx.checker.ValidationError):
        return None


CASES = [(rule, operator) for rule in RULES for operator in rule.operators or ("",)]


@pytest.mark.parametrize(("rule", "operator"), CASES, ids=[f"{r}{' ' + o if o else ''}" for r, o in CASES])
def test_rule(rule: Rule, operator: str) -> None:
    """Wherever it fires the result is the same and the cost lower, and it fires somewhere."""
    fired = 0
    for seed in range(300):
        found = valid(rule, operator, seed)
        if found is None:
            continue
        graph, inputs, wanted = found
        better = rewrite.run(graph, (rule,))
        if better.nodes != graph.nodes:
            fired += 1
            assert total(better) < total(graph)
            assert_close(reference.run(better, inputs), wanted, 1e-5)
        if fired == 3:
            break
    assert fired


def test_symbolic_cost_decides() -> None:
    """x + x*y is cheaper as x*(y + 1) only where y is smaller than x, whatever N."""
    small = frontend.load(model("float[N, 4] x, float[4] y", "float[?] z", "a = Mul(x, y) z = Add(x, a)"))
    equal = frontend.load(model("float[N, 4] x, float[N, 4] y", "float[?] z", "a = Mul(x, y) z = Add(x, a)"))
    assert [n.op for n in rewrite.run(small).nodes] == ["Add", "Mul"]
    assert [n.op for n in rewrite.run(equal).nodes] == ["Mul", "Add"]


def test_other_readers_stop_a_rule() -> None:
    graph = frontend.load(
        model("float[N] x", "float[?] y, float[?] b", "a = Add(x, c) y = Add(a, d) b = Neg(a)", two_constants())
    )
    assert rewrite.run(graph).nodes == graph.nodes


def test_maximum_of_nothing() -> None:
    """N may be 0, and the maximum over it is then -infinity, which Exp would turn into 0."""
    text = "a = Exp(x) y = ReduceMax(a, axes)"
    stored = {"axes": np.array([0], np.int64)}
    open_, fixed = (frontend.load(model(f"float[{n}] x", "float[?] y", text, stored)) for n in ("N", "3"))
    assert [n.op for n in rewrite.run(open_).nodes] == ["Exp", "ReduceMax"]
    assert [n.op for n in rewrite.run(fixed).nodes] == ["ReduceMax", "Exp"]


def test_branches_stay_apart() -> None:
    graph = frontend.load(
        model(
            "float[N] x, bool p",
            "float[?] y",
            "a = Add(x, c) y = If (p) <then_branch = t () => (float[?] b) { b = Add(a, d) },"
            " else_branch = e () => (float[?] f) { f = Neg(a) }>",
            two_constants(),
        )
    )
    assert rewrite.run(graph).nodes == graph.nodes


def test_integers_divide_otherwise() -> None:
    """7 / 4 * 4 is 4, not 7."""
    stored = {"four": np.int64([4])}
    graph = frontend.load(model("int64[N] x", "int64[N] y", "a = Div(x, four) y = Mul(a, four)", stored))
    assert rewrite.run(graph).nodes == graph.nodes


def test_equal_nodes_are_merged() -> None:
    graph = frontend.load(
        model(
            "float[N] x",
            "float[?] y",
            "a = Softmax(x) b = Softmax(x) c = Softmax<axis=0>(x) d = Mul(a, b) y = Mul(d, c)",
        )
    )
    merged = rewrite.merge_equal(graph)
    assert [n.op for n in merged.nodes] == ["Softmax", "Softmax", "Mul", "Mul"]
    x = np.linspace(0, 1, 5, dtype=np.float32)
    assert_close(reference.run(merged, {"x": x}), reference.run(graph, {"x": x}), 0)


def test_outputs_are_never_merged_away() -> None:
    graph = frontend.load(model("float[N] x", "float[?] y, float[?] z", "y = Neg(x) z = Neg(x)"))
    assert rewrite.run(graph).outputs == ("y", "z")
    assert len(rewrite.run(graph).nodes) == 2


def two_constants() -> dict[str, np.ndarray]:
    return {"c": np.float32([2]), "d": np.float32([3])}
