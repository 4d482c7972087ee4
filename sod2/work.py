"""What every step of a plan has to do at least: floating-point operations and bytes of memory, over the symbols.

Convolutions, products, attention and recurrent layers count two operations for a multiply-add of their direct
algorithm; nodes that only move elements none; others one for each element of their largest tensor, since memory bounds
them whatever they compute. Bytes are those of the operands that lie in memory, each read or written once; what picks
from a larger tensor reads as much as it writes. Winograd needs fewer multiply-adds: `reduction` is by how much at most,
of the versions that are kept.

A sum of products is kept as its factors, which are short however deep a model is, and a manifest has them as text.
Limits: steps inside loops have no work, since their trips are not counted; sizes that only execution tells have no
value in a manifest.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from sod2.fusion import Group
from sod2.graph import Node
from sod2.ops import OPS
from sod2.ops.attention import known, sides
from sod2.ops.op import Fact, MappingType
from sod2.packing import winograd_reduction
from sod2.rdp import Analysis
from sod2.storage import Copy, Stack, Step
from sod2.symbolic import Dim, as_dim, evaluate, parse

Product = tuple[Dim, ...]
_MOVING = (MappingType.REORGANIZE, MappingType.SHUFFLE)
_PICKING = ("Gather", "GatherElements", "GatherND", "Slice", "Split")


@dataclass(frozen=True)
class Work:
    """Sums of products over the symbols; `reduction` divides the operations of the cheapest kept algorithm."""

    flops: tuple[Product, ...] = ()
    bytes: tuple[Product, ...] = ()
    reduction: float = 1.0

    def text(self) -> dict[str, object]:
        """As a manifest has it."""
        sums = {"flops": self.flops, "bytes": self.bytes}
        written = {name: [[str(d) for d in product] for product in total] for name, total in sums.items()}
        return {**written, "reduction": self.reduction}


def value(total: Sequence[Sequence[str]], symbols: Mapping[str, int]) -> int | None:
    """A sum of a manifest at these values of the symbols; None where one of them has none."""
    try:
        return sum(math.prod(evaluate(parse(factor), symbols) for factor in product) for product in total)
    except KeyError:
        return None


def of_step(step: Step, analysis: Analysis, versions: Mapping[str, Sequence[str]]) -> Work | None:
    """The work of one step: no operation and no byte for one that only learns or arranges sizes, None in a loop."""
    if any(entry in analysis.graph.loops for entry, _ in step.guard):
        return None
    match step:
        case Group():
            groups = [step.lead, step] if step.lead is not None else [step]
            inner = set(step.lead.outputs) if step.lead is not None else set()
            reduction = max(_reduction(versions.get(node.name, ())) for g in groups for node in g.nodes)
            return Work(
                tuple(product for g in groups for node in g.nodes if (product := _flops(node, analysis))),
                tuple(product for g in groups for product in _traffic(g, analysis, inner)),
                reduction,
            )
        case Copy() | Stack():
            moved = _bytes(analysis[step.source])
            return Work((), (moved, moved))
        case _:
            return Work()


def _reduction(versions: Sequence[str]) -> float:
    """Multiply-adds of the direct algorithm over those of the version with the fewest."""
    tiles = [int(v.removeprefix("wino")) for v in versions if v.startswith("wino")]
    return max(map(winograd_reduction, tiles), default=1.0)


def _elements(fact: Fact) -> Product:
    return tuple(d for d in fact.dims if d != 1) or (as_dim(1),)


def _bytes(fact: Fact) -> Product:
    return (as_dim(fact.dtype.itemsize), *_elements(fact))


def _traffic(group: Group, analysis: Analysis, inner: set[str]) -> list[Product]:
    """What passes between a group and memory; tensors of `inner` do not."""
    written = [_bytes(analysis[t]) for t in group.outputs if t not in inner]
    picked = {node.inputs[0] for node in group.nodes if node.op in _PICKING}
    read = [_bytes(analysis[t]) for t in group.inputs if t not in inner and t not in picked]
    return [*read, *(written if picked & set(group.inputs) else ()), *written]


def _flops(node: Node, analysis: Analysis) -> Product:
    op = OPS(node)
    if op.is_view or op.mapping in _MOVING or node.op in _PICKING:
        return ()
    x, y = analysis.of(node.inputs), analysis.of(node.outputs)
    if rule := _COUNTED.get((node.domain, node.op)):
        return (as_dim(2), *rule(node, x, y))
    tensors = [_elements(f) for f in (*x, *y) if f is not None and isinstance(f.shape, tuple) and f.dims]
    return max(tensors, key=_size, default=())


def _size(product: Product) -> int:
    """A size by which tensors are compared: that at symbols of a typical value."""
    return math.prod(evaluate(d, dict.fromkeys(d.symbols(), 64)) for d in product)


Facts = Sequence[Fact | None]
Rule = Callable[[Node, Facts, Facts], Product]


def _dims(facts: Facts, index: int) -> tuple[Dim, ...]:
    fact = facts[index]
    assert fact is not None, "an operand that the operator must have"
    return fact.dims


def _convolution(_: Node, x: Facts, y: Facts) -> Product:
    return (*_dims(y, 0), *_dims(x, 1)[1:])


def _transposed(_: Node, x: Facts, __: Facts) -> Product:
    return (*_dims(x, 0), *_dims(x, 1)[1:])


def _product(_: Node, x: Facts, y: Facts) -> Product:
    return (*_dims(y, 0), _dims(x, 0)[-1])


def _gemm(node: Node, x: Facts, y: Facts) -> Product:
    return (*_dims(y, 0), _dims(x, 0)[0 if node.attrs.get("transA") else 1])


def _attention(node: Node, x: Facts, __: Facts) -> Product:
    """All products, over as many features: scores, what relative positions add to them, and sums of values."""
    q, k, v = (sides(node, name, _dims(x, i)) for i, name in enumerate("qkv"))
    products = 2 if len(x) > 6 and x[6] is not None else 1
    features = known(q.features) * products + known(v.features)
    return (known(q.batch), known(q.heads), known(q.rows), known(k.rows), features)


def _recurrent(_: Node, x: Facts, __: Facts) -> Product:
    """All gates of every step: W [directions, gates * hidden, width], R [directions, gates * hidden, hidden]."""
    steps, batch, width = _dims(x, 0)
    directions, rows, hidden = _dims(x, 2)
    return (steps, batch, directions, rows, width + hidden)


_COUNTED: Mapping[tuple[str, str], Rule] = {
    ("", "Conv"): _convolution,
    ("", "ConvTranspose"): _transposed,
    ("", "MatMul"): _product,
    ("", "Gemm"): _gemm,
    ("", "LSTM"): _recurrent,
    ("", "GRU"): _recurrent,
    ("", "RNN"): _recurrent,
    ("sod2", "Attention"): _attention,
}
