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
from typing import Any

import numpy as np

from sod2 import loops
from sod2.analysis import Analysis, input_symbols
from sod2.errors import ModelError, UnsupportedError
from sod2.graph import Graph, Guard, Loop, Node, Requirement
from sod2.lattice import NAC, UNDEF, DimFact, Shape, Undef, known, refine, refine_value
from sod2.loops import Varying
from sod2.lower_bounds import bounded, lower_bounds
from sod2.minting import (
    Minted,
    Minting,
    Origin,
    limits,
    sources,
    unknown_elements,
    wanted_dims,
    wanted_elements,
    with_elements,
)
from sod2.ops import OPS
from sod2.ops.op import UNKNOWN_DTYPE, Fact, Op, TensorValue
from sod2.symbolic import Dim, DimTooLargeError, as_dim, eq, symbol

__all__ = ["Analysis", "analyze", "constant_fact"]

_MAX_VALUE = 1024  # elements of a value that is propagated; shape arithmetic is far smaller


def constant_fact(array: np.ndarray) -> Fact:
    """The fact of a tensor whose content is known when compiling."""
    return Fact(array.dtype, tuple(as_dim(n) for n in array.shape), array)


@dataclass
class _Solver:
    graph: Graph
    facts: dict[str, Fact] = field(default_factory=dict)
    requirements: dict[tuple[Dim, Dim, Guard], Requirement] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    impossible: dict[str, Guard] = field(default_factory=dict)  # branches' nodes that can't run, with their guards
    open: dict[str, Shape] = field(default_factory=dict)  # what the rules give of outputs whose shape they leave open
    minted: dict[str, Minted] = field(default_factory=dict)
    counted: set[Origin] = field(default_factory=set)  # the dims that have a minted symbol
    taken: set[str] = field(default_factory=set)  # names of the input dims' symbols
    lows: Mapping[str, int] = field(default_factory=dict)  # proved lower bounds of symbols, of an earlier round
    varying: Mapping[str, Varying] = field(default_factory=dict)  # of loops' states, as earlier rounds showed
    carried: dict[Origin, Dim] = field(default_factory=dict)  # symbols of what differs from trip to trip

    def start(self) -> None:
        """Inputs are what the file declares of them, constants are known, the rest is undef."""
        self.taken = input_symbols(self.graph)
        self.requirements.update({(r.left, r.right, r.guard): r for r in self.graph.required})
        for name, array in self.graph.constants.items():
            self.facts[name] = constant_fact(array)
        for value in self.graph.inputs:
            self.facts[value.name] = Fact(value.dtype, value.shape if value.shape is not None else NAC)
            if value.shape is None:
                self.reasons[value.name] = "the file declares no rank for this input"

    def operands(self, tensors: Sequence[str]) -> list[Fact | None] | None:
        """Facts of the operands, or None while one of them has not been reached."""
        if any(t and t not in self.facts for t in tensors):
            return None
        return [self.facts[t] if t else None for t in tensors]

    def require(self, node: Node, pairs: Sequence[tuple[Dim, Dim]], guard: Guard) -> None:
        for left, right in pairs:
            if eq(left, right) is not True:
                self.requirements.setdefault((left, right, guard), Requirement(left, right, node.name, guard))

    def needed(self) -> tuple[Requirement, ...]:
        """The requirements without those that hold already because they do so outside of the branch."""
        outside = {key: [(*key[:2], key[2][:k]) for k in range(len(key[2]))] for key in self.requirements}
        return tuple(r for key, r in self.requirements.items() if self.requirements.keys().isdisjoint(outside[key]))

    def update(self, node: Node, tensor: str, fact: Fact) -> bool:
        """Join a new truth about a tensor; True when the stored fact became better."""
        old = self.facts.get(tensor)
        if old is None:
            self.facts[tensor] = fact
            return True
        shape, equalities = refine(old.shape, fact.shape)
        shape = self.earliest(old.shape, shape)
        value, _ = refine_value(old.value, fact.value)
        self.require(node, equalities, _guard(node, tensor))
        if shape == old.shape and _same_value(value, old.value):
            return False
        self.facts[tensor] = Fact(old.dtype, shape, value)
        return True

    def forward(self, node: Node, op: Op, x: list[Fact | None]) -> list[Fact]:
        dtypes = self.dtypes(node, op, x)
        try:
            shapes = op.shape(node, x)
        except (UnsupportedError, DimTooLargeError) as error:
            return self.degrade(node, dtypes, str(error))
        if UNKNOWN_DTYPE in dtypes:
            return [Fact(t, s) for t, s in zip(dtypes, shapes, strict=True)]
        y: list[Fact | None] = [Fact(t, s) for t, s in zip(dtypes, shapes, strict=True)]
        values = op.value(node, x, y)
        facts = [Fact(t, s, _small(v)) for t, s, v in zip(dtypes, shapes, values, strict=True)]
        for tensor, fact in zip(node.outputs, facts, strict=True):
            if tensor and fact.shape is NAC:
                self.reasons.setdefault(tensor, f"{node.op} {node.name!r}: its rank depends on execution")
            elif tensor and isinstance(fact.shape, tuple) and any(d is NAC for d in fact.shape):
                self.reasons.setdefault(tensor, f"{node.op} {node.name!r} ({op.dynamism(node, x).value})")
        return facts

    def dtypes(self, node: Node, op: Op, x: Sequence[Fact | None]) -> list[np.dtype[Any]]:
        """Element types of the outputs; unknown ones where the operator refuses, which is the reason of the outputs."""
        try:
            return op.dtype(node, x)
        except UnsupportedError as error:
            for tensor in node.outputs:
                self.reasons.setdefault(tensor, str(error))
            return [UNKNOWN_DTYPE] * len(node.outputs)

    def degrade(self, node: Node, dtypes: Sequence[np.dtype], reason: str) -> list[Fact]:
        for tensor in node.outputs:
            self.reasons.setdefault(tensor, reason)
        return [Fact(t, NAC) for t in dtypes]

    def blocked(self, node: Node, op: Op, x: list[Fact | None]) -> bool:
        """Whether an operand of unknown rank leaves the ordinary rules nothing to work on."""
        return node.op not in ("Switch", "Combine") and any(f is not None and f.rank is None for f in x)

    def visit(self, node: Node) -> set[str]:
        """Apply both transfers of a node; returns the tensors whose facts changed."""
        if node.op in ("LoopBegin", "LoopEnd"):
            return self.visit_loop(node)
        op = OPS(node)
        x = self.operands(node.inputs)
        if x is None:
            return set()
        if self.blocked(node, op, x):
            origin = next(t for t, f in zip(node.inputs, x, strict=True) if f is not None and f.rank is None)
            new = self.degrade(
                node, self.dtypes(node, op, x), self.reasons.get(origin, f"{origin!r} has no declared rank")
            )
        elif node.name in self.impossible:
            return set()
        else:
            try:
                new = self.forward(node, op, x)
            except ModelError as error:
                if not node.guard:
                    raise
                self.impossible[node.name] = node.guard
                new = self.degrade(node, self.dtypes(node, op, x), str(error))
        named = [(t, f) for t, f in zip(node.outputs, new, strict=True) if t]
        self.open.update((t, f.shape) for t, f in named)
        changed = {t for t, f in named if self.update(node, t, f)}
        if self.blocked(node, op, x) or node.name in self.impossible:
            return changed
        y: list[Fact | None] = [self.facts[t] if t else None for t in node.outputs]
        self.require(node, op.guards(node, x, y), node.guard)
        return changed | self.backward(node, op, x, y)

    def backward(self, node: Node, op: Op, x: list[Fact | None], y: list[Fact | None]) -> set[str]:
        changed = set()
        for tensor, old, shape in zip(node.inputs, x, op.shape_back(node, x, y), strict=True):
            if not tensor or old is None or isinstance(shape, Undef) or tensor in self.graph.constants:
                continue
            if self.update(node, tensor, Fact(old.dtype, self.backwards(node, tensor, old.shape, shape), UNDEF)):
                changed.add(tensor)
        return changed

    # ---- loops ---------------------------------------------------------------------------------------------------

    def visit_loop(self, node: Node) -> set[str]:
        """Both nodes of a loop at once: what comes out depends on what goes in."""
        loop = self.graph.loop_of(node)
        if self.operands(loop.begin.inputs) is None:
            return set()
        self.require(loop.begin, loops.required(loop, self.facts), loop.begin.guard)
        found = loops.facts(loop, self.facts, self.varying, self.carry, self.is_inside)
        reason = f"it differs from trip to trip of {loop.iteration!r}"
        self.reasons.update({t: self.reasons.get(t, reason) for t, f in found.items() if not known(f.shape)})
        return {tensor for tensor, fact in found.items() if self.update(node, tensor, fact)}

    def is_inside(self, loop: Loop, dim: DimFact) -> bool:
        names = dim.symbols() & self.minted.keys() if isinstance(dim, Dim) else ()
        return loops.is_inside(self.graph, loop, [self.minted[name].tensor for name in names])

    def carry(self, tensor: str, axis: int) -> Dim:
        """The symbol of a dim that differs from trip to trip."""
        origin = tensor, axis
        if origin not in self.carried:
            self.carried[origin] = self.mint(origin, "carried")
        return self.carried[origin]

    def waiting(self, node: Node) -> list[str]:
        """The stacked outputs of a loop whose shape is not known."""
        stacks = self.graph.loop_of(node).stacks if node.op == "LoopEnd" else ()
        return [stacked for _, stacked in stacks if not known(self.facts[stacked].shape)]

    def mint_trips(self, node: Node) -> set[str]:
        """Name the trip count that the stacked outputs of a loop wait for."""
        if not self.waiting(node):
            return set()
        loop = self.graph.loop_of(node)
        unknown = unknown_elements(self.facts[loop.trip]) if loop.trip and loops.only_counts(loop, self.facts) else []
        return self.name_elements(sources(self.graph, self.facts, loop.trip, unknown)) if unknown else set()

    def mint_stacked(self, node: Node) -> set[str]:
        """Name the dims of stacked outputs that are known behind the loop only."""
        waiting = self.waiting(node)
        for tensor in waiting:
            shape = self.facts[tensor].shape
            if isinstance(shape, tuple):
                dims = tuple(d if isinstance(d, Dim) else self.carry(tensor, k) for k, d in enumerate(shape))
                self.facts[tensor] = replace(self.facts[tensor], shape=dims)
        return set(waiting)

    # ---- minted symbols ------------------------------------------------------------------------------------------

    def is_minted(self, dim: DimFact) -> bool:
        return bool(self.minted) and isinstance(dim, Dim) and not self.minted.keys().isdisjoint(dim.symbols())

    def earliest(self, old: Shape, new: Shape) -> Shape:
        """`new`, but a dim known from the inputs alone stays: whatever waits for no execution is better."""
        if not self.minted or not isinstance(old, tuple) or not isinstance(new, tuple):
            return new
        return tuple(
            a if isinstance(a, Dim) and self.is_minted(b) and not self.is_minted(a) else b
            for a, b in zip(old, new, strict=True)
        )

    def backwards(self, node: Node, tensor: str, old: Shape, claim: Shape) -> Shape:
        """What of a claim may become a fact: no minted dims, because a tensor may exist before they are known, and
        nothing that a loop's body claims of a tensor outside, because there may be no trip. The equalities are
        required."""
        outside = set(self.graph.within(node.guard)) - set(self.graph.within(self.graph.guard_of(tensor)))
        if not isinstance(claim, tuple) or not (outside or any(map(self.is_minted, claim))):
            return claim
        if isinstance(old, tuple) and len(old) == len(claim):
            pairs = zip(old, claim, strict=True)
            self.require(
                node, [(a, b) for a, b in pairs if isinstance(a, Dim) and isinstance(b, Dim) and a != b], node.guard
            )
        if outside and not isinstance(old, tuple):
            return UNDEF
        return tuple(UNDEF if outside or self.is_minted(d) else d for d in claim)

    def mint(self, origin: Origin, kind: str) -> Dim:
        """A new symbol; a quote tells it from a symbol of the input dims that has the name already."""
        tensor, index = origin
        name = f"{tensor}[{index}]" if kind == "value" else f"{tensor}.{index}"
        while name in self.taken:
            name += "'"
        low, high = limits(self.facts[tensor].dtype) if kind == "value" else (0, None)
        low = 0 if tensor in self.graph.loops else low  # trips are counted from 0 on
        dim = symbol(name, max(low, self.lows.get(name, low)), high)
        self.minted[name] = Minted(dim, tensor, index, kind)
        return dim

    def is_open(self, node: Node) -> bool:
        """Whether a node's rule leaves the shape of an output open, also with the facts of now."""
        if all(known(self.open.get(t, ())) for t in node.outputs):
            return False
        self.settle([node])
        return not all(known(self.open.get(t, ())) for t in node.outputs)

    def mint_elements(self, node: Node) -> set[str]:
        """Name the numbers that define the shapes of a node's outputs; returns the tensors they are read from."""
        if not self.is_open(node):
            return set()
        return self.name_elements(wanted_elements(self.graph, self.facts, node))

    def name_elements(self, origins: Sequence[Origin]) -> set[str]:
        """Mint symbols for elements; returns the tensors they are read from."""
        found: dict[str, dict[int, Dim]] = {}
        for tensor, k in origins:
            found.setdefault(tensor, {})[k] = self.mint((tensor, k), "value")
        for tensor, symbols in found.items():
            self.facts[tensor] = with_elements(self.facts[tensor], symbols)
        return set(found)

    def mint_dims(self, node: Node) -> set[str]:
        """Name the dims that a node's operator counts; returns the tensors that have them. What a consumer requires of
        such a dim is not known before it is counted, but checked then."""
        x = self.operands(node.inputs)
        wanted = wanted_dims(node, x, self.open) if x is not None and self.is_open(node) else []
        for group in wanted:
            dim = self.mint(group[0], "dim")
            self.counted.update(group)
            for t, k in group:
                shape = self.facts[t].shape
                assert isinstance(shape, tuple)
                if isinstance(required := shape[k], Dim):
                    self.require(node, [(required, dim)], node.guard)
                else:
                    self.facts[t] = replace(self.facts[t], shape=(*shape[:k], dim, *shape[k + 1 :]))
        return {t for group in wanted for t, _ in group}

    def unchecked(self) -> frozenset[str]:
        """Tensors with a dim that only their consumers require: no rule finds it, and no check could."""
        found = set()
        suspects = [node for node in self.graph.nodes if self.is_open(node)]
        for tensor in (t for node in suspects for t in node.outputs if t and known(self.facts[t].shape)):
            shape = self.open[tensor]
            axes = enumerate(shape if isinstance(shape, tuple) else (shape,))
            if any(not isinstance(d, Dim) and (tensor, k) not in self.counted for k, d in axes):
                found.add(tensor)
        return frozenset(found)

    # ---- the worklist --------------------------------------------------------------------------------------------

    def around(self, tensor: str) -> list[Node]:
        """The nodes that a new fact about a tensor concerns."""
        maker = self.graph.producer.get(tensor)
        return [*self.graph.consumers.get(tensor, ()), *([maker] if maker is not None else [])]

    def settle(self, nodes: Sequence[Node]) -> None:
        """Apply transfers, starting with `nodes`, until nothing changes."""
        queue = deque(nodes)
        queued = {n.name for n in queue}
        while queue:
            node = queue.popleft()
            queued.discard(node.name)
            for tensor in self.visit(node):
                for other in self.around(tensor):
                    if other is not node and other.name not in queued:
                        queued.add(other.name)
                        queue.append(other)


def _guard(node: Node, tensor: str) -> Guard:
    """The branches in which a fact that a node brings holds: an output of Switch exists in its branch only."""
    if node.op != "Switch" or tensor not in node.outputs:
        return node.guard
    return (*node.guard, (node.inputs[0], tensor == node.outputs[0]))


def _small(value: TensorValue) -> TensorValue:
    """A value that is worth following; numpy's functions give scalars for arrays without dims."""
    value = np.asarray(value) if isinstance(value, np.generic) else value
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
    lows: Mapping[str, int] = {}
    found = _all_trips(graph, lows)
    requirements = _by_text(found)
    while lows != (lows := lower_bounds(found, lows)):
        found = _all_trips(bounded(graph, lows), lows)
        requirements = _by_text(found) | requirements
    return replace(found, requirements=tuple(requirements.values()))


def _by_text(found: Analysis) -> dict[tuple[str, str, Guard], Requirement]:
    """Requirements by what they say and where; bounds are no part of the text."""
    return {(str(r.left), str(r.right), r.guard): r for r in found.requirements}


def _all_trips(graph: Graph, lows: Mapping[str, int]) -> Analysis:
    """The fixed point under assumptions about the loops' states that hold in every trip."""
    varying: dict[str, Varying] = {}
    while True:
        found = _fixed_point(graph, lows, varying)
        lower = {t: v for loop in graph.loops.values() for t, v in loops.descended(loop, found.facts, varying).items()}
        if lower == varying:
            return found
        varying = lower


def _fixed_point(graph: Graph, lows: Mapping[str, int], varying: Mapping[str, Varying]) -> Analysis:
    """All facts; what they leave open is minted node by node, in topological order, where that makes dims known."""
    solver = _Solver(graph, lows=lows, varying=varying)
    solver.start()
    solver.settle(graph.nodes)
    for node in graph.nodes:
        for mint in (solver.mint_elements, solver.mint_dims, solver.mint_trips, solver.mint_stacked):
            changed = mint(node)
            solver.settle([n for tensor in sorted(changed) for n in solver.around(tensor)])
    unchecked = solver.unchecked()
    open_facts = {t for t, f in solver.facts.items() if not known(f.shape) or f.dtype == UNKNOWN_DTYPE}
    reasons = {t: why for t, why in solver.reasons.items() if t in unchecked or t in open_facts}
    minting = Minting(graph, solver.facts, solver.minted)
    return Analysis(graph, solver.facts, solver.needed(), reasons, minting, varying, unchecked, solver.impossible)
