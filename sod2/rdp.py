"""RDP: rank and dimension propagation (paper, section 3.2), a data-flow analysis over the extended graph.

Decides, for every tensor, the S-map (rank and dims) and the V-map (value, for shape arithmetic) as known, symbolic or
op-inferred constants over the symbols of the input dims. A worklist applies each node's forward transfer (shape, then
value) and backward transfer (what its outputs prove about its inputs) until nothing changes. `refine` joins two truths
about one tensor, so facts only ever move towards known ones and the fixed point exists; `meet` joins alternatives and
is used by Combine alone.

Soundness. What a branch proves stays in it: Switch has no backward transfer, so facts of an untaken branch never reach
a tensor outside. Equalities live beside the facts, as requirements: pairs of dims that must be equal for the model to
run, each with the node that needs it and that node's guard, so that only unconditional ones constrain the inputs. An
operator whose rule is missing degrades its outputs to nac with the reason; analysis itself never fails on a valid
model.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from sod2 import admissible
from sod2.admissible import Requirement
from sod2.errors import UnsupportedError
from sod2.graph import Graph, Guard, Node
from sod2.lattice import NAC, UNDEF, Shape, Undef, refine, refine_value
from sod2.ops import OPS
from sod2.ops.op import Fact, Op, TensorValue
from sod2.symbolic import Dim, as_dim, eq, evaluate, substitute, symbol

_MAX_BOUND = 512  # values of a symbol that are tried in search of its lower bound
_MAX_VALUE = 1024  # elements of a value that is propagated; shape arithmetic is far smaller


@dataclass(frozen=True)
class Analysis:
    """The fixed point: a read-only table of facts, the requirements found on the way, and why a tensor is nac."""

    graph: Graph
    facts: Mapping[str, Fact]
    requirements: tuple[Requirement, ...]
    reasons: Mapping[str, str]

    def __getitem__(self, tensor: str) -> Fact:
        return self.facts[tensor]

    def of(self, tensors: Sequence[str]) -> list[Fact | None]:
        """Facts of a node's operands, None for an absent one."""
        return [self.facts[t] if t else None for t in tensors]

    def dims(self, tensor: str) -> tuple[Dim, ...]:
        """A shape that has to be known before execution; UnsupportedError names the tensor and why it is not."""
        shape = self.facts[tensor].shape
        if isinstance(shape, tuple) and all(isinstance(d, Dim) for d in shape):
            return self.facts[tensor].dims
        reason = self.reasons.get(tensor, "its operand's shape is not known")
        raise UnsupportedError(f"the shape of tensor {tensor!r} exists only after execution: {reason}")

    @cached_property
    def symbols(self) -> tuple[str, ...]:
        """The symbols of the input dims, sorted."""
        dims = (d for v in self.graph.inputs for d in v.shape or ())
        return tuple(sorted({s for d in dims for s in d.symbols()}))

    def bind(self, shapes: Mapping[str, Sequence[int]]) -> dict[str, int]:
        """Symbol values for concrete input shapes; see admissible.bind for the errors."""
        return admissible.bind(self.graph, shapes)

    def shapes(self, shapes: Mapping[str, Sequence[int]]) -> dict[str, tuple[int, ...] | None]:
        """Every tensor's shape at these input shapes; None where only execution tells."""
        symbols = self.bind(shapes)
        return {t: _evaluate(f.shape, symbols) for t, f in self.facts.items()}

    def admissible(self, shapes: Mapping[str, Sequence[int]]) -> str | None:
        """None when the model accepts these input shapes, else the sentence that says what it accepts."""
        return admissible.refusal(self.graph, self.requirements, shapes)


def _evaluate(shape: Shape, symbols: Mapping[str, int]) -> tuple[int, ...] | None:
    if not isinstance(shape, tuple) or not all(isinstance(d, Dim) for d in shape):
        return None
    return tuple(evaluate(d, symbols) for d in shape if isinstance(d, Dim))


def constant_fact(array: np.ndarray) -> Fact:
    """The fact of a tensor whose content is known when compiling."""
    return Fact(array.dtype, tuple(as_dim(n) for n in array.shape), array)


@dataclass
class _Solver:
    graph: Graph
    facts: dict[str, Fact] = field(default_factory=dict)
    requirements: dict[tuple[Dim, Dim], Requirement] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)

    def start(self) -> None:
        """Inputs are what the file declares of them, constants are known, the rest is undef."""
        for name, array in self.graph.constants.items():
            self.facts[name] = constant_fact(array)
        for value in self.graph.inputs:
            self.facts[value.name] = Fact(value.dtype, value.shape if value.shape is not None else NAC)

    def operands(self, tensors: Sequence[str]) -> list[Fact | None] | None:
        """Facts of the operands, or None while one of them has not been reached."""
        if any(t and t not in self.facts for t in tensors):
            return None
        return [self.facts[t] if t else None for t in tensors]

    def require(self, node: Node, pairs: Sequence[tuple[Dim, Dim]], guard: Guard) -> None:
        for left, right in pairs:
            if eq(left, right) is True:
                continue
            old = self.requirements.get((left, right))
            if old is None or (old.guard and not guard):
                self.requirements[left, right] = Requirement(left, right, node.name, guard)

    def update(self, node: Node, tensor: str, fact: Fact) -> bool:
        """Join a new truth about a tensor; True when the stored fact became better."""
        old = self.facts.get(tensor)
        if old is None:
            self.facts[tensor] = fact
            return True
        shape, equalities = refine(old.shape, fact.shape)
        value, _ = refine_value(old.value, fact.value)
        self.require(node, equalities, _guard(node, tensor))
        if shape == old.shape and _same_value(value, old.value):
            return False
        self.facts[tensor] = Fact(old.dtype, shape, value)
        return True

    def forward(self, node: Node, op: Op, x: list[Fact | None]) -> list[Fact]:
        dtypes = op.dtype(node, x)
        try:
            shapes = op.shape(node, x)
        except UnsupportedError as error:
            return self.degrade(node, dtypes, str(error))
        y: list[Fact | None] = [Fact(t, s) for t, s in zip(dtypes, shapes, strict=True)]
        values = op.value(node, x, y)
        facts = [Fact(t, s, _small(v)) for t, s, v in zip(dtypes, shapes, values, strict=True)]
        for tensor, fact in zip(node.outputs, facts, strict=True):
            if tensor and fact.shape is NAC:
                self.reasons.setdefault(tensor, f"{node.op} {node.name!r}: its rank depends on execution")
            elif tensor and isinstance(fact.shape, tuple) and any(d is NAC for d in fact.shape):
                self.reasons.setdefault(tensor, f"{node.op} {node.name!r} ({op.dynamism(node, x).value})")
        return facts

    def degrade(self, node: Node, dtypes: Sequence[np.dtype], reason: str) -> list[Fact]:
        for tensor in node.outputs:
            self.reasons.setdefault(tensor, reason)
        return [Fact(t, NAC) for t in dtypes]

    def blocked(self, node: Node, op: Op, x: list[Fact | None]) -> bool:
        """Whether an operand of unknown rank leaves the ordinary rules nothing to work on."""
        return node.op not in ("Switch", "Combine") and any(f is not None and f.rank is None for f in x)

    def visit(self, node: Node) -> set[str]:
        """Apply both transfers of a node; returns the tensors whose facts changed."""
        op = OPS(node)
        x = self.operands(node.inputs)
        if x is None:
            return set()
        if self.blocked(node, op, x):
            origin = next(t for t, f in zip(node.inputs, x, strict=True) if f is not None and f.rank is None)
            new = self.degrade(node, op.dtype(node, x), self.reasons.get(origin, f"{origin!r} has no declared rank"))
        else:
            new = self.forward(node, op, x)
        named = [(t, f) for t, f in zip(node.outputs, new, strict=True) if t]
        changed = {t for t, f in named if self.update(node, t, f)}
        if self.blocked(node, op, x):
            return changed
        y: list[Fact | None] = [self.facts[t] if t else None for t in node.outputs]
        self.require(node, op.guards(node, x, y), node.guard)
        return changed | self.backward(node, op, x, y)

    def backward(self, node: Node, op: Op, x: list[Fact | None], y: list[Fact | None]) -> set[str]:
        changed = set()
        for tensor, old, shape in zip(node.inputs, x, op.shape_back(node, x, y), strict=True):
            if not tensor or old is None or isinstance(shape, Undef) or tensor in self.graph.constants:
                continue
            if self.update(node, tensor, Fact(old.dtype, shape, UNDEF)):
                changed.add(tensor)
        return changed


def _guard(node: Node, tensor: str) -> Guard:
    """The branches in which a fact that a node brings holds: an output of Switch exists in its branch only."""
    if node.op != "Switch" or tensor not in node.outputs:
        return node.guard
    return (*node.guard, (node.inputs[0], tensor == node.outputs[0]))


def _small(value: TensorValue) -> TensorValue:
    return NAC if isinstance(value, np.ndarray) and value.dtype == object and value.size > _MAX_VALUE else value


def _same_value(a: TensorValue, b: TensorValue) -> bool:
    if a is b:
        return True
    if not (isinstance(a, np.ndarray) and isinstance(b, np.ndarray)) or a.shape != b.shape or a.dtype != b.dtype:
        return False
    return all(p == q for p, q in zip(a.flat, b.flat, strict=True)) if a.dtype == object else np.array_equal(a, b, True)


def analyze(graph: Graph) -> Analysis:
    """Run RDP on a graph to its fixed point.

    What every run requires of a symbol (a window must fit: min(T + 2, 3) == 3) becomes the symbol's lower bound, and
    the analysis is repeated with it, because bounds decide comparisons. The requirements of all rounds are kept: they
    are checked when a shape is bound.
    """
    found, lows = _fixed_point(graph), dict[str, int]()
    requirements = {(r.left, r.right): r for r in found.requirements}
    while lows != (lows := _lower_bounds(found.requirements, lows)):
        found = _fixed_point(_bounded(graph, lows))
        requirements = {(r.left, r.right): r for r in found.requirements} | requirements
    return Analysis(found.graph, found.facts, tuple(requirements.values()), found.reasons)


def _lower_bounds(requirements: Sequence[Requirement], known: Mapping[str, int]) -> dict[str, int]:
    """Least value of each symbol that meets the unconditional requirements on it alone: smaller ones violate one."""
    lows = dict(known)
    for r in requirements:
        names = r.left.symbols() | r.right.symbols()
        if r.guard or len(names) != 1:
            continue
        (name,) = names
        start = lows.get(name, 0)
        values = range(start, start + _MAX_BOUND)
        lows[name] = next((k for k in values if _holds(r, {name: k})), start)
    return lows


def _holds(requirement: Requirement, symbols: Mapping[str, int]) -> bool:
    """Whether the two sides are equal there, or have no value."""
    try:
        return evaluate(requirement.left, symbols) == evaluate(requirement.right, symbols)
    except ZeroDivisionError:
        return True


def _bounded(graph: Graph, lows: Mapping[str, int]) -> Graph:
    """The graph with better lower bounds of its inputs' symbols."""
    table = {name: symbol(name, low) for name, low in lows.items()}
    inputs = tuple(
        replace(v, shape=None if v.shape is None else tuple(substitute(d, table) for d in v.shape))
        for v in graph.inputs
    )
    return replace(graph, inputs=inputs)


def _fixed_point(graph: Graph) -> Analysis:
    solver = _Solver(graph)
    solver.start()
    queue = deque(graph.nodes)
    queued = {n.name for n in queue}
    while queue:
        node = queue.popleft()
        queued.discard(node.name)
        for tensor in solver.visit(node):
            around = (*graph.consumers.get(tensor, ()), graph.producer.get(tensor))
            for other in around:
                if other is not None and other is not node and other.name not in queued:
                    queued.add(other.name)
                    queue.append(other)
    return Analysis(graph, solver.facts, tuple(solver.requirements.values()), solver.reasons)


def analyze_static(graph: Graph, full: Analysis) -> Analysis:
    """What a compiler without symbolic analysis knows (`fusion: static`): ranks, constant dims and the input's symbols.

    Shapes are found forward only and without values, as by onnx.shape_inference; every dim that would be an expression
    is a fresh symbol of the tensor that brings it, which element-wise operators hand on. The values are those of
    `full`, the analysis that the later passes use: all passes have to agree on which nodes run.
    """
    solver = _Static(graph)
    solver.start()
    for node in graph.nodes:
        solver.visit(node)
    facts = {t: replace(f, value=full[t].value) for t, f in solver.facts.items()}
    return Analysis(graph, facts, (), solver.reasons)


@dataclass
class _Static(_Solver):
    def update(self, node: Node, tensor: str, fact: Fact) -> bool:
        shape = fact.shape
        if isinstance(shape, tuple):
            shape = tuple(
                d if isinstance(d, Dim) and (d.is_constant or d.is_symbol) else symbol(f"{tensor}.{k}")
                for k, d in enumerate(shape)
            )
        numeric = isinstance(fact.value, np.ndarray) and fact.value.dtype != object
        self.facts[tensor] = Fact(fact.dtype, shape, fact.value if numeric else NAC)
        return True

    def backward(self, node: Node, op: Op, x: list[Fact | None], y: list[Fact | None]) -> set[str]:
        return set()
