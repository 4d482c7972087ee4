"""The result of RDP: a read-only table of facts about every tensor, and what the later passes ask of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from sod2 import admissible
from sod2.errors import UnsupportedError
from sod2.graph import Graph, Guard, Node, Requirement
from sod2.lattice import NAC, Shape, known
from sod2.loops import Varying
from sod2.minting import Minted, Minting, symbols_in
from sod2.ops import OPS
from sod2.ops.op import UNKNOWN_DTYPE, Array, Dynamism, Fact
from sod2.symbolic import Dim, DimTooLargeError, evaluate


@dataclass(frozen=True)
class Analysis:
    """The fixed point: a read-only table of facts, the requirements found on the way, and why a tensor is nac."""

    graph: Graph
    facts: Mapping[str, Fact]
    requirements: tuple[Requirement, ...]
    reasons: Mapping[str, str]
    minting: Minting
    varying: Mapping[str, Varying] = field(default_factory=dict)  # loops' states that differ from trip to trip
    unchecked: frozenset[str] = frozenset()  # tensors with a dim that consumers require and nothing could check
    impossible: Mapping[str, Guard] = field(default_factory=dict)  # branches' nodes that can't run, with their guards

    def __getitem__(self, tensor: str) -> Fact:
        return self.facts[tensor]

    def of(self, tensors: Sequence[str]) -> list[Fact | None]:
        """Facts of a node's operands, None for an absent one."""
        return [self.facts[t] if t else None for t in tensors]

    def alternatives(self, tensor: str) -> tuple[str, str, str] | None:
        """Predicate and two tensors that an output of several ranks is one of (ranks.py); None for other tensors."""
        node = self.graph.producer.get(tensor)
        if node is None or node.op != "Combine" or self.facts[tensor].rank is not None:
            return None
        predicate, a, b = node.inputs
        return predicate, a, b

    @cached_property
    def results(self) -> tuple[str, ...]:
        """The tensors that are read behind the last step: the outputs, and for one of several ranks what it may be."""
        found: dict[str, None] = {}
        pending = list(self.graph.outputs)
        while pending:
            tensor = pending.pop(0)
            choice = self.alternatives(tensor)
            if choice is None:
                found[tensor] = None
            pending += choice or ()
        return tuple(found)

    def made(self, node: Node) -> Shape:
        """The shape of a node's first output without what its consumers require of it: if the node vanishes, nothing
        checks that any more."""
        if not self.requirements:
            return self.facts[node.outputs[0]].shape
        try:
            return OPS(node).shape(node, self.of(node.inputs))[0]
        except (UnsupportedError, DimTooLargeError):
            return NAC

    def dims(self, tensor: str) -> tuple[Dim, ...]:
        """A shape that has to be known before execution; UnsupportedError names the tensor and why it is not."""
        if self.facts[tensor].dtype == UNKNOWN_DTYPE and tensor in self.reasons:
            raise UnsupportedError(self.reasons[tensor])
        shape = self.facts[tensor].shape
        if known(shape) and tensor not in self.unchecked:
            return self.facts[tensor].dims
        reason = self.reasons.get(tensor, "its operand's shape is not known")
        raise UnsupportedError(f"the shape of tensor {tensor!r} exists only after execution: {reason}")

    @property
    def minted(self) -> Mapping[str, Minted]:
        """The symbols that only execution tells, by name, in topological order of their origins."""
        return self.minting.minted

    def known(self, tensor: str) -> Array | None:
        """The value that code may write without running the tensor's producer, else None.

        A tensor that minted symbols are read from has to be computed, although its value is an expression over them.
        """
        return None if tensor in self.minting.origins else self.facts[tensor].known_value

    def dynamism(self, node: Node) -> Dynamism:
        """The node's class (paper, Table 2); naming numbers that only execution tells makes no ISDOS of an ISVDOS."""
        op = OPS(node)
        found = op.dynamism(node, self.of(node.inputs))
        values = [self.facts[t] for i, t in enumerate(node.inputs) if t and i in op.shape_inputs]
        told = any(not self.minted.keys().isdisjoint(symbols_in(f, with_value=True)) for f in values)
        return Dynamism.ISVDOS if told and found is not Dynamism.EDO else found

    @cached_property
    def symbols(self) -> tuple[str, ...]:
        """The symbols of the input dims, sorted."""
        return tuple(sorted(input_symbols(self.graph)))

    def bind(self, shapes: Mapping[str, Sequence[int]]) -> dict[str, int]:
        """Symbol values for concrete input shapes; see admissible.bind for the errors."""
        return admissible.bind(self.graph, shapes)

    def shapes(
        self, shapes: Mapping[str, Sequence[int]], minted: Mapping[str, int] | None = None
    ) -> dict[str, tuple[int, ...] | None]:
        """Every tensor's shape at these input shapes; None where only execution tells: `minted` are values it told."""
        symbols = self.bind(shapes) | dict(minted or {})
        return {t: _evaluate(f.shape, symbols) for t, f in self.facts.items()}

    def admissible(self, shapes: Mapping[str, Sequence[int]]) -> str | None:
        """None when the model accepts these input shapes, else the sentence that says what it accepts."""
        return admissible.refusal(self.graph, self.requirements, shapes)


def input_symbols(graph: Graph) -> set[str]:
    """Names of the symbols of the input dims."""
    return {name for v in graph.inputs for d in v.shape or () for name in d.symbols()}


def _evaluate(shape: Shape, symbols: Mapping[str, int]) -> tuple[int, ...] | None:
    if not isinstance(shape, tuple) or not all(isinstance(d, Dim) and d.symbols() <= symbols.keys() for d in shape):
        return None
    return tuple(evaluate(d, symbols) for d in shape if isinstance(d, Dim))
