"""Rewriting by mathematical properties (DNNFusion): fewer operations for the same result. Rules are data.

A rule is a pair of patterns over operators. `x`, `y`, `z` are any tensors, `c` to `f` constants, `s` a constant of one
element, `F` one of the rule's operators, a number a constant of that value; an operator on the right keeps the
attributes of the same one on the left, `Op@k` those of the one with that label. Operands of Add and Mul match in either
order.

A match is taken when everything about it is proved: the nodes that disappear are read by nothing else and lie in the
same branch, the result has the same shape and dtype, and the symbolic cost does not grow for any size from 1 on and
falls for some. Constant sub-expressions cost nothing, since they are folded. Common sub-expressions are merged first.
Results are floats, since integers divide otherwise, and agree up to rounding; a rule may give a number where the
original overflowed or was NaN, and divisors beyond 2^126, whose reciprocals are subnormal, count as infinite.

Limits: one cost for all hardware (operations per element as in Op.cost, 2mnk for a product); rules apply greedily, in
the order of the file, until none does.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import permutations
from typing import Any

import numpy as np

from sod2 import rdp
from sod2.errors import Error
from sod2.frontend import without_dead
from sod2.graph import Array, Graph, Node
from sod2.ops import OPS
from sod2.ops.op import Fact
from sod2.peak import environments, sampled
from sod2.rdp import Analysis, constant_fact
from sod2.rewrite_rules import RULES, Rule
from sod2.simplify import fold_constants
from sod2.symbolic import Dim, constant, eq, ge, le, substitute, symbol

_COMMUTATIVE = ("Add", "Mul")
_ROUNDS = 8
_CONSTANTS = ("c", "d", "e", "f")
# Equal nodes of these are not equal: random numbers, and the marks of a loop's begin and end.
_DISTINCT = (
    *("RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Multinomial", "Bernoulli"),
    *("LoopBegin", "LoopEnd"),
)


@dataclass(frozen=True)
class Pattern:
    """An operator (`label` after @, if any) over patterns; a leaf has no operator but a name or a number."""

    op: str
    operands: tuple["Pattern", ...] = ()
    label: str = ""
    leaf: str = ""

    def __str__(self) -> str:
        return self.leaf or f"{self.op}({', '.join(map(str, self.operands))})"


@cache
def parse(text: str) -> Pattern:
    """Pattern of a text such as `Mul(Add(x, c), 2)`."""
    head, bracket, rest = text.strip().partition("(")
    if not bracket:
        return Pattern("", leaf=head)
    operands, depth, begin = [], 0, 0
    inside = rest[: rest.rindex(")")]
    for at, sign in enumerate(f"{inside},"):
        depth += (sign == "(") - (sign == ")")
        if sign == "," and not depth:
            operands.append(parse(inside[begin:at]))
            begin = at + 1
    op, _, label = head.partition("@")
    return Pattern(op, tuple(operands), label)


@dataclass
class _Match:
    """What a pattern's names stand for, and the nodes that it covers."""

    tensors: dict[str, str] = field(default_factory=dict)
    attrs: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    operator: str = ""  # what F is
    nodes: list[Node] = field(default_factory=list)

    def copy(self) -> "_Match":
        return _Match(dict(self.tensors), dict(self.attrs), self.operator, list(self.nodes))


@dataclass
class _Rewriter:
    graph: Graph
    analysis: Analysis
    rules: Mapping[str, Sequence[Rule]]  # by the operator at the root

    # ---- matching ------------------------------------------------------------------------------------------------

    def matches(self, rule: Rule, root: Node) -> Iterator[_Match]:
        """Every way to read `root` as the rule's left side."""
        pattern = parse(rule.before)
        operators = rule.operators or ("",)
        for operator in operators:
            yield from self._node(pattern, root, _Match(operator=operator))

    def _node(self, pattern: Pattern, node: Node, match: _Match) -> Iterator[_Match]:
        wanted = match.operator if pattern.op == "F" else pattern.op
        arity = len(pattern.operands)
        if node.op != wanted or node.domain or len(node.inputs) != arity or len(node.outputs) != 1:
            return
        found = match.copy()
        found.nodes.append(node)
        found.attrs[pattern.label or pattern.op] = node.attrs
        orders = permutations(range(arity)) if node.op in _COMMUTATIVE else [tuple(range(arity))]
        for order in orders:
            yield from self._operands(pattern.operands, [node.inputs[i] for i in order], found)

    def _operands(self, patterns: Sequence[Pattern], tensors: Sequence[str], match: _Match) -> Iterator[_Match]:
        if not patterns:
            yield match
            return
        for found in self._tensor(patterns[0], tensors[0], match):
            yield from self._operands(patterns[1:], tensors[1:], found)

    def _tensor(self, pattern: Pattern, tensor: str, match: _Match) -> Iterator[_Match]:
        if not pattern.leaf:
            node = self.graph.producer.get(tensor)
            if node is not None and node.guard == match.nodes[0].guard:
                yield from self._node(pattern, node, match)
        elif not tensor or not self._fits(pattern.leaf, tensor):
            return
        elif match.tensors.get(pattern.leaf, tensor) == tensor:
            found = match.copy()
            found.tensors[pattern.leaf] = tensor
            yield found

    def _fits(self, leaf: str, tensor: str) -> bool:
        """Whether a tensor may stand for a leaf: some names are constants, a number is that number."""
        array = self.graph.constants.get(tensor)
        if leaf in _CONSTANTS:
            return array is not None
        if leaf == "s":
            return array is not None and array.size == 1
        if leaf[0].isalpha():
            return True
        return array is not None and array.size == 1 and array.dtype.kind == "f" and array.item() == float(leaf)

    # ---- judging -------------------------------------------------------------------------------------------------

    def removed(self, match: _Match) -> list[Node]:
        """The matched nodes that nothing else reads."""
        names, gone = {n.name for n in match.nodes[:1]}, match.nodes[:1]
        for node in match.nodes[1:]:
            readers = self.graph.consumers.get(node.outputs[0], ())
            if node.outputs[0] not in self.graph.outputs and all(r.name in names for r in readers):
                names.add(node.name)
                gone.append(node)
        return gone

    def built(self, rule: Rule, match: _Match) -> tuple[list[Node], dict[str, Array], dict[str, Fact]] | None:
        """The right side as nodes, its new constants, and the facts of what it makes; None where a rule refuses."""
        root = match.nodes[0]
        if any(self.analysis[t].rank is None for t in match.tensors.values()):
            return None
        builder = _Builder(root, match, self.analysis)
        try:
            builder.build(parse(rule.after), root.outputs[0])
        except Error:
            return None
        return builder.nodes, builder.constants, builder.facts

    def gains(self, before: Sequence[Node], after: Sequence[Node], facts: Mapping[str, Fact]) -> bool:
        """Whether the cost falls: never more while no symbol is 0, and less at some sampled size."""
        old = _total([cost(n, self.analysis.facts) for n in before])
        new = _total([cost(n, {**self.analysis.facts, **facts}) for n in after])
        if old is None or new is None or old == new:
            return False
        old, new = (substitute(d, {name: symbol(name, 1) for name in d.symbols()}) for d in (old, new))
        if le(new, old) is not True:
            return False
        olds, news = sampled([old, new], environments([old, new]))
        return any(n < o for n, o in zip(news, olds, strict=True))

    def rewritten(self, root: Node) -> tuple[list[Node], list[Node], dict[str, Array]] | None:
        """By the first rule that improves what ends in `root`: the nodes that go, those that come, new constants."""
        rules = self.rules.get(root.op, ())
        if not rules or self.analysis[root.outputs[0]].dtype.kind != "f":
            return None
        for rule in rules:
            for match in self.matches(rule, root):
                result = self.built(rule, match) if self.admits(rule, match) else None
                if result is None:
                    continue
                nodes, constants, facts = result
                gone = self.removed(match)
                if self.same(root.outputs[0], facts[root.outputs[0]]) and self.gains(gone, nodes, facts):
                    return gone, nodes, constants
        return None

    def admits(self, rule: Rule, match: _Match) -> bool:
        """Whether the tensor that must have elements provably has some."""
        shape = self.analysis[match.tensors[rule.nonempty]].shape if rule.nonempty else ()
        return isinstance(shape, tuple) and all(isinstance(d, Dim) and ge(d, 1) is True for d in shape)

    def same(self, tensor: str, fact: Fact) -> bool:
        old = self.analysis[tensor]
        if fact.dtype != old.dtype or fact.rank is None or fact.rank != old.rank:
            return False
        return all(
            isinstance(a, Dim) and isinstance(b, Dim) and eq(a, b) is True
            for a, b in zip(old.shape, fact.shape, strict=True)  # type: ignore[arg-type]
        )


@dataclass
class _Builder:
    """Makes nodes of a pattern, with the facts of their results."""

    root: Node
    match: _Match
    analysis: Analysis
    nodes: list[Node] = field(default_factory=list)
    constants: dict[str, Array] = field(default_factory=dict)
    facts: dict[str, Fact] = field(default_factory=dict)

    def build(self, pattern: Pattern, output: str = "") -> str:
        """The tensor of a pattern, made where it has an operator."""
        if pattern.leaf:
            return self.match.tensors.get(pattern.leaf) or self.number(pattern.leaf)
        inputs = tuple(self.build(p) for p in pattern.operands)
        op = self.match.operator if pattern.op == "F" else pattern.op
        name = f"{self.root.name}~{len(self.nodes)}"
        attrs = self.match.attrs.get(pattern.label or pattern.op, {})
        node = Node(name, op, inputs, (output or f"{self.root.outputs[0]}~{len(self.nodes)}",), attrs, self.root.guard)
        x = [self.facts.get(t) or self.analysis.facts[t] for t in inputs]
        rule = OPS(node)
        self.facts[node.outputs[0]] = Fact(rule.dtype(node, x)[0], rule.shape(node, x)[0])
        self.nodes.append(node)
        return node.outputs[0]

    def number(self, text: str) -> str:
        name = f"{self.root.outputs[0]}~{text}"
        self.constants[name] = np.array(float(text), self.analysis[self.root.outputs[0]].dtype)
        self.facts[name] = constant_fact(self.constants[name])
        return name


def cost(node: Node, facts: Mapping[str, Fact]) -> Dim | None:
    """Scalar operations of a node, symbolic; 0 for a view and for constants, None where its shapes are not known."""
    if OPS(node).is_view or all(isinstance(facts[t].value, np.ndarray) for t in node.inputs if t):
        return constant(0)
    y, x = facts[node.outputs[0]], facts[node.inputs[0]]
    if not all(isinstance(f.shape, tuple) and all(isinstance(d, Dim) for d in f.shape) for f in (x, y)):
        return None
    if node.op == "MatMul":
        return _elements(y) * x.dims[-1] * 2
    counted = x if node.op.startswith("Reduce") else y
    return _elements(counted) * OPS(node).cost


def _elements(fact: Fact) -> Dim:
    total = constant(1)
    for dim in fact.dims:
        total = total * dim
    return total


def _total(costs: Sequence[Dim | None]) -> Dim | None:
    known = [c for c in costs if c is not None]
    return sum(known, constant(0)) if len(known) == len(costs) else None


def _by_root(rules: Sequence[Rule]) -> Mapping[str, Sequence[Rule]]:
    table: dict[str, list[Rule]] = {}
    for rule in rules:
        root = parse(rule.before).op
        for op in rule.operators if root == "F" else (root,):
            table.setdefault(op, []).append(rule)
    return table


def merge_equal(graph: Graph) -> Graph:
    """Common sub-expressions: of nodes with equal operator, operands, attributes and branches the first one stays."""
    first: dict[str, Node] = {}
    renamed: dict[str, str] = {}
    nodes = []
    for old in graph.nodes:
        guard = tuple((renamed.get(p, p), branch) for p, branch in old.guard)
        node = replace(old, inputs=tuple(renamed.get(t, t) for t in old.inputs), guard=guard)
        twin = first.setdefault(_identity(node), node) if node.op not in _DISTINCT else node
        if twin is not node and not set(node.outputs) & set(graph.outputs):
            renamed.update(zip(node.outputs, twin.outputs, strict=True))
        else:
            nodes.append(node)
    return replace(graph, nodes=tuple(nodes))


def _identity(node: Node) -> str:
    attrs = {k: (v.tobytes(), v.shape, str(v.dtype)) if isinstance(v, np.ndarray) else v for k, v in node.attrs.items()}
    absent = tuple(bool(t) for t in node.outputs)
    return repr((node.op, node.domain, node.inputs, sorted(attrs.items()), node.guard, absent))


def run(graph: Graph, rules: Sequence[Rule] = RULES, analyze: Callable[[Graph], Analysis] = rdp.analyze) -> Graph:
    """The graph after all rewritings that provably pay, given what `analyze` proves."""
    graph, by_root = merge_equal(graph), _by_root(rules)
    for _ in range(_ROUNDS):
        better = _round(_Rewriter(graph, analyze(graph), by_root))
        if better is graph:
            return graph
        graph = merge_equal(without_dead(fold_constants(better)))
    return graph


def _round(rewriter: _Rewriter) -> Graph:
    """One pass; a node that takes part in a rewriting waits for the next round to take part in another."""
    graph = rewriter.graph
    replaced: dict[str, list[Node]] = {}
    busy: set[str] = set()
    constants = dict(graph.constants)
    for root in reversed(graph.nodes):
        found = rewriter.rewritten(root) if root.name not in busy else None
        if found is None or any(n.name in busy for n in found[0]):
            continue
        gone, nodes, added = found
        busy.update(n.name for n in gone)
        replaced[root.name] = nodes
        constants.update(added)
    if not replaced:
        return graph
    result = tuple(n for old in graph.nodes for n in replaced.get(old.name, [old]))
    return replace(graph, nodes=result, constants=constants)
