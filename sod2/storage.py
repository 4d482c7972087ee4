"""The plan of memory: the steps that run, the buffers they use, and the home of every tensor (made by sharing.py)."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from sod2.errors import UnsupportedError
from sod2.fusion import Group
from sod2.graph import Guard, Loop, Node
from sod2.minting import Mint
from sod2.rdp import Analysis
from sod2.symbolic import Dim, DimTooLargeError, as_dim, constant

JOINTS = ("Combine", "LoopBegin", "LoopEnd")  # operators that are no steps themselves; sharing.py decides on copies
_ZERO = constant(0)


@dataclass(frozen=True)
class Copy:
    """Tensor `source` to tensor `target`, when `guard` holds: an alternative of a Combine, or a part of a Concat.

    `offset`: bytes of the target before it. `like`: a tensor of as many bytes, where the source is a spare buffer.
    """

    name: str
    source: str
    target: str
    guard: Guard
    offset: Dim = _ZERO
    like: str = ""


@dataclass(frozen=True)
class Materialize:
    """Write a small tensor whose value is an expression over the symbols, because a kernel reads it from memory."""

    name: str
    tensor: str
    guard: Guard = ()


@dataclass(frozen=True)
class Carry:
    """Give the states whose size differs from trip to trip what the next trip begins with: what they are initialised
    with when the loop `begins`, else what the body gives back. Rows of outputs that lie in blocks are appended too."""

    name: str
    loop: Loop
    begins: bool
    guard: Guard


@dataclass(frozen=True)
class Hold:
    """Make room in a block for a tensor that is computed there."""

    name: str
    tensor: str
    guard: Guard


@dataclass(frozen=True)
class Stack:
    """Tensor `source` of every trip to its row of the stacked output `target`; `iteration` counts the rows."""

    name: str
    source: str
    target: str
    iteration: str
    guard: Guard


Step = Group | Copy | Materialize | Mint | Stack | Carry | Hold
Thing = Group | Node | Mint  # what is ordered: groups, Combine nodes and mints


@dataclass(frozen=True)
class Place:
    """Home of a tensor: `input`, `constant`, `buffer` or `block`, its number or name there, and the bytes before it.

    A row of a stacked output has, for each (iteration, stride) of `rows`, `stride` more bytes before it for every trip
    that the tensor `iteration` counts.
    """

    kind: str
    number: int = 0
    name: str = ""
    offset: Dim = _ZERO
    rows: tuple[tuple[str, Dim], ...] = ()


@dataclass(frozen=True)
class Buffer:
    """Bytes of the arena that live from step `first` to step `last`."""

    name: str
    size: Dim
    first: int
    last: int


@dataclass(frozen=True)
class Storage:
    """The steps that run, the buffers they use, and the home of every tensor that is read or written."""

    steps: tuple[Step, ...]
    buffers: tuple[Buffer, ...]
    places: Mapping[str, Place]
    blocks: Mapping[str, int] = field(default_factory=dict)  # tensors outside the arena: the first of their blocks

    def __str__(self) -> str:
        lines = [f"{b.name}: {b.size} bytes, steps {b.first}..{b.last}" for b in self.buffers]
        lines += [f"{tensor}: outside the arena, block {k}" for tensor, k in self.blocks.items()]
        mints = [(k, step) for k, step in enumerate(self.steps) if isinstance(step, Mint)]
        for stage, (k, mint) in enumerate(mints, 1):
            lines.append(f"stage {stage} behind step {k}, {mint.name}: {', '.join(m.name for m in mint.minted)}")
        return "\n".join(lines)


def byte_size(analysis: Analysis, tensor: str) -> Dim:
    """Bytes of a dense tensor, symbolic."""
    fact = analysis[tensor]
    total = as_dim(fact.dtype.itemsize)
    try:
        for dim in analysis.dims(tensor):
            total = total * dim
    except DimTooLargeError as error:
        raise UnsupportedError(f"the size of tensor {tensor!r} is too long an expression: {error}") from None
    return total
