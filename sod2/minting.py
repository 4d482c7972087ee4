"""Names for what only execution tells: minted symbols, where they come from, and the points at which they are known.

A dim that an operator finds by counting (the rows of NonZero) and an integer that defines a shape (the target of a
Reshape, computed or given as an input) become symbols like those of the input dims. With them every rule works
unchanged on what lies behind. RDP mints after its fixed point, in the order of the nodes, only where a dim would stay
nac otherwise (rdp.py).

- `dim`: one of the dims of a node whose operator counts (`Op.count`); named `tensor.axis`, 0 or more.
- `value`: an element of a small integer tensor; named `tensor[index]`, any number of its dtype. It is minted at the
  deepest tensor from which the value rules carry it to where it is needed, so that one number has one name.
- `carried`: a dim of a loop's state that differs from trip to trip, or of what comes out of such a loop. The first kind
  is known where a trip begins, the second behind the loop.

A `Mint` is the step that learns the symbols of one origin. What is sized by them runs behind it: `Minting.awaited`.
Limits: values of at most MAX_ELEMENTS elements; a rank that execution decides stays nac.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from sod2.errors import UnsupportedError
from sod2.graph import Graph, Guard, Node
from sod2.lattice import Nac, Shape, known
from sod2.ops import OPS
from sod2.ops.lift import known_shape
from sod2.ops.op import Fact, Facts
from sod2.symbolic import Dim, DimTooLargeError, symbol

MAX_ELEMENTS = 64

Origin = tuple[str, int]  # a tensor, and the axis or the position of the element


@dataclass(frozen=True)
class Minted:
    """A symbol whose value only execution tells: dim or element `index` of `tensor`. `kind`: dim, value or carried."""

    symbol: Dim
    tensor: str
    index: int
    kind: str

    @property
    def name(self) -> str:
        """The symbol's name."""
        (name,) = self.symbol.symbols()
        return name

    def __str__(self) -> str:
        what = {"dim": "counted dim", "value": "element", "carried": "carried dim"}[self.kind]
        return f"{self.symbol}: {what} {self.index} of {self.tensor}"


@dataclass(frozen=True, eq=False)
class Mint:
    """The step that learns symbols: `node` counts the dims of its outputs, or (None) elements of `tensor` are read.

    `inputs` are the tensors it reads, `outputs` a name that stands for the symbols where steps are ordered.
    """

    name: str
    node: Node | None
    minted: tuple[Minted, ...]
    inputs: tuple[str, ...]
    guard: Guard

    @property
    def outputs(self) -> tuple[str, ...]:
        """What everything reads that is sized by the symbols."""
        return (self.name,)


# ---- what to mint ----------------------------------------------------------------------------------------------------


def limits(dtype: np.dtype[Any]) -> tuple[int, int]:
    """Least and largest value of an integer or boolean dtype."""
    return (0, 1) if dtype.kind == "b" else (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))


def unknown_elements(fact: Fact | None) -> list[int]:
    """Positions of the elements that have no expression, in a tensor whose elements can be minted; else none."""
    shape = known_shape(fact.shape) if fact is not None and fact.dtype.kind in "iub" else None
    if fact is None or shape is None or int(np.prod(shape)) > MAX_ELEMENTS:
        return []
    if not isinstance(fact.value, np.ndarray):
        return list(range(int(np.prod(shape))))
    return [k for k, e in enumerate(fact.value.flat) if isinstance(e, Nac)]


def with_elements(fact: Fact, symbols: Mapping[int, Dim]) -> Fact:
    """The fact with some elements of its value replaced."""
    shape = known_shape(fact.shape)
    assert shape is not None
    value = np.empty(int(np.prod(shape)), dtype=object)
    value[:] = list(fact.value.flat) if isinstance(fact.value, np.ndarray) else [fact.value] * value.size
    for k, dim in symbols.items():
        value[k] = dim
    return Fact(fact.dtype, fact.shape, value.reshape(shape))


def wanted_elements(graph: Graph, facts: Mapping[str, Fact], node: Node) -> list[Origin]:
    """The elements to mint so that the shapes of a node's outputs, which its rule leaves open, may become known."""
    op = OPS(node)
    found: dict[Origin, None] = {}
    for i in op.shape_inputs:
        tensor = node.inputs[i] if i < len(node.inputs) else ""
        positions = unknown_elements(facts.get(tensor))
        if positions:
            found.update(dict.fromkeys(sources(graph, facts, tensor, positions)))
    return list(found)


def sources(graph: Graph, facts: Mapping[str, Fact], tensor: str, positions: Sequence[int]) -> list[Origin]:
    """The deepest elements from which value rules compute those of `tensor` at `positions`."""
    below = _carriers(graph, facts, tensor, positions)
    if below is None:
        return [(tensor, k) for k in positions]
    by_tensor: dict[str, list[int]] = {}
    for operand, k in below:
        by_tensor.setdefault(operand, []).append(k)
    return [o for operand, ks in by_tensor.items() for o in sources(graph, facts, operand, sorted(ks))]


def _carriers(graph: Graph, facts: Mapping[str, Fact], tensor: str, positions: Sequence[int]) -> list[Origin] | None:
    """The elements of the producer's operands that the elements of `tensor` are expressions of; None if they are not.

    Found by trying: every unknown element of the operands gets a symbol, and the producer's value rule is asked.
    """
    node = graph.producer.get(tensor)
    if node is None:
        return None
    x: list[Fact | None] = [facts[t] if t else None for t in node.inputs]
    tried: dict[str, Origin] = {}
    for i, operand in enumerate(node.inputs):
        fact = x[i]
        unknown = unknown_elements(fact)
        if fact is not None and unknown:
            symbols = {k: symbol(f"{operand}[{k}]?", *limits(fact.dtype)) for k in unknown}
            x[i] = with_elements(fact, symbols)
            tried.update({f"{operand}[{k}]?": (operand, k) for k in unknown})
    if not tried:
        return None
    y: list[Fact | None] = [facts[t] if t else None for t in node.outputs]
    try:
        value = OPS(node).value(node, x, y)[node.outputs.index(tensor)]
    except (UnsupportedError, ZeroDivisionError, DimTooLargeError):
        return None
    if not isinstance(value, np.ndarray):
        return None
    elements = [value.flat[k] for k in positions]
    if not all(isinstance(e, Dim) for e in elements):
        return None
    names = sorted({name for e in elements for name in e.symbols() if name in tried})
    return [tried[name] for name in names] if names and len(names) <= MAX_ELEMENTS else None


def wanted_dims(node: Node, x: Facts, ruled: Mapping[str, Shape]) -> list[list[Origin]]:
    """Dims that a node's operator counts, those of one number together; `ruled` is what its shape rule gives."""
    op = OPS(node)
    if not op.counts or not all(f is None or known(f.shape) for f in x):
        return []
    found: list[Origin] = []
    for tensor in node.outputs:
        shape = ruled.get(tensor, ())
        if isinstance(shape, tuple):
            found += [(tensor, axis) for axis, d in enumerate(shape) if not isinstance(d, Dim)]
    return [found] if op.one_count and found else [[origin] for origin in found]


# ---- when it is known ------------------------------------------------------------------------------------------------


def symbols_in(fact: Fact, with_value: bool) -> set[str]:
    """Names of the symbols in a tensor's dims, and in its value."""
    dims = [d for d in fact.shape if isinstance(d, Dim)] if isinstance(fact.shape, tuple) else []
    if with_value and isinstance(fact.value, np.ndarray) and fact.value.dtype == object:
        dims += [e for e in fact.value.flat if isinstance(e, Dim)]
    return {name for d in dims if not d.is_constant for name in d.symbols()}


@dataclass(frozen=True)
class Minting:
    """The mints of an analysed graph, and what waits for them."""

    graph: Graph
    facts: Mapping[str, Fact]
    minted: Mapping[str, Minted]

    @cached_property
    def origins(self) -> frozenset[str]:
        """The tensors that elements are read from: they are computed although their value is an expression."""
        return frozenset(m.tensor for m in self.minted.values() if m.kind == "value")

    @cached_property
    def mints(self) -> tuple[Mint, ...]:
        """One for each origin that counts or is read, in topological order."""
        members: dict[str, list[Minted]] = {}
        for m in self.minted.values():
            node = self.graph.producer.get(m.tensor)
            if m.kind == "dim" and node is not None:
                members.setdefault(f"count:{node.name}", []).append(m)
            elif m.kind == "value":
                members.setdefault(f"read:{m.tensor}", []).append(m)
            elif node is not None:
                members.setdefault(f"{'trip' if node.op == 'LoopBegin' else 'exit'}:{node.name}", []).append(m)
        return tuple(self._mint(name, tuple(ms)) for name, ms in members.items())

    def _mint(self, name: str, minted: tuple[Minted, ...]) -> Mint:
        node = self.graph.producer.get(minted[0].tensor)
        guard = self.graph.guard_of(minted[0].tensor)
        if minted[0].kind == "value":
            return Mint(name, None, minted, (minted[0].tensor,), guard)
        assert node is not None
        if node.op == "LoopBegin":  # sizes of the trip that begins
            return Mint(name, None, minted, node.outputs[:1], guard)
        if node.op == "LoopEnd":  # sizes of what comes out
            return Mint(name, None, minted, tuple(dict.fromkeys(m.tensor for m in minted)), guard)
        return Mint(name, node, minted, tuple(t for t in node.inputs if t), guard)

    @cached_property
    def by_symbol(self) -> Mapping[str, Mint]:
        """The mint that learns each symbol."""
        return {m.name: mint for mint in self.mints for m in mint.minted}

    @cached_property
    def by_node(self) -> Mapping[str, Mint]:
        """The mint of each node that counts."""
        return {mint.node.name: mint for mint in self.mints if mint.node is not None}

    @cached_property
    def read(self) -> frozenset[str]:
        """The tensors that mints read: they lie in memory."""
        return frozenset(t for mint in self.mints for t in mint.inputs)

    def of_symbols(self, names: Iterable[str]) -> tuple[Mint, ...]:
        """The mints of these symbols; other symbols have none."""
        return tuple(dict.fromkeys(self.by_symbol[n] for n in sorted(names) if n in self.by_symbol))

    def awaited(self, node: Node) -> tuple[Mint, ...]:
        """The mints behind which a node runs: those of the symbols in its operands and in its results' dims, and its
        own, also where a dim that it counts is required to be something else: that is checked there."""
        tensors = [(t, True) for t in node.inputs if t] + [(t, False) for t in node.outputs if t]
        own = self.by_node.get(node.name)
        found = dict.fromkeys((*self._of_facts(tensors), *((own,) if own is not None else ())))
        return tuple(m for m in found if m.minted[0].kind != "carried" or m.minted[0].tensor not in node.outputs)

    def awaited_by(self, tensor: str) -> tuple[Mint, ...]:
        """The mints behind which the dims and the value of a tensor are known."""
        return self._of_facts([(tensor, tensor not in self.origins)])

    def before(self, mint: Mint) -> tuple[Mint, ...]:
        """The mints behind which a mint is taken: those of the symbols in what it reads."""
        found = self._of_facts([(t, mint.node is not None) for t in mint.inputs])
        return tuple(m for m in found if m is not mint)

    def _of_facts(self, tensors: Iterable[tuple[str, bool]]) -> tuple[Mint, ...]:
        if not self.minted:
            return ()
        names: set[str] = set()
        for tensor, with_value in tensors:
            names |= symbols_in(self.facts[tensor], with_value)
        return self.of_symbols(names)

    def closure(self, mints: Iterable[Mint]) -> tuple[Mint, ...]:
        """The mints and all that come before them."""
        found: dict[Mint, None] = {}
        pending = list(mints)
        while pending:
            mint = pending.pop()
            if mint not in found:
                found[mint] = None
                pending += self.before(mint)
        return tuple(found)

    def upstream(self, node: Node) -> tuple[str, ...]:
        """Tensors that mints read before the node can run: what it depends on besides its operands."""
        return self._upstream.get(node.name, ())

    @cached_property
    def _upstream(self) -> Mapping[str, tuple[str, ...]]:
        nodes = self.graph.nodes if self.minted else ()
        closures = {node.name: self.closure(self.awaited(node)) for node in nodes}
        return {name: tuple(dict.fromkeys(t for m in mints for t in m.inputs)) for name, mints in closures.items()}
