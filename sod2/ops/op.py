"""What an operator is: one class with all its rules, and the registry that finds it.

An operator's dynamism (paper, Table 2) is derived, never stored: from which inputs' *values* its output's shape reads
(`shape_inputs`), whether the output's value depends on input values at all (`value_inputs`), whether the shape exists
only after execution (`execution`), and from what the analysis has proved about the node at hand.

Rules see facts, never graphs: `x` and `y` are lists of Fact for the node's inputs and outputs (None for an absent
optional one). A rule that cannot tell returns UNDEF (backward) or NAC (forward); it never guesses.
"""

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sod2.errors import UnsupportedError
from sod2.graph import Node
from sod2.lattice import NAC, UNDEF, Nac, Shape, Undef
from sod2.packing import Tile
from sod2.symbolic import Dim

Array = NDArray[Any]
TensorValue = Array | Undef | Nac


class Dynamism(enum.Enum):
    """What determines an operator's output (paper, Table 2)."""

    ISDO = "Input Shape Determined Output"
    ISDOS = "Input Shape Determined Output Shape"
    ISVDOS = "Input Shape & Value Determined Output Shape"
    EDO = "Execution Determined Output"


class MappingType(enum.Enum):
    """DNNFusion's mapping types: how elements of the output depend on elements of the input."""

    ONE_TO_ONE = "One-to-One"
    ONE_TO_MANY = "One-to-Many"
    MANY_TO_MANY = "Many-to-Many"
    REORGANIZE = "Reorganize"
    SHUFFLE = "Shuffle"


@dataclass(frozen=True)
class Fact:
    """What is proved about a tensor: dtype, symbolic shape (S-map) and, for small or constant tensors, value (V-map).

    `value` is an array of the tensor's shape: numbers, or (dtype object) `Dim`, int or NAC elements.
    """

    dtype: np.dtype[Any]
    shape: Shape
    value: TensorValue = NAC

    def __str__(self) -> str:
        shape = f"[{', '.join(map(str, self.shape))}]" if isinstance(self.shape, tuple) else str(self.shape)
        small = isinstance(self.value, np.ndarray) and self.value.size <= 8
        return f"{self.dtype}{shape}" + (f" = {_value_text(self.value)}" if small else "")

    @property
    def dims(self) -> tuple[Dim, ...]:
        """The shape when rank and every dim are known expressions; raises UnsupportedError otherwise."""
        if isinstance(self.shape, tuple) and all(isinstance(d, Dim) for d in self.shape):
            return self.shape  # type: ignore[return-value]
        raise UnsupportedError(f"a shape that is known before execution is needed here, but it is {self}")

    @property
    def rank(self) -> int | None:
        """Number of dims, None when unknown."""
        return len(self.shape) if isinstance(self.shape, tuple) else None

    @property
    def known_value(self) -> Array | None:
        """The value when every element is a number or a Dim, else None."""
        if not isinstance(self.value, np.ndarray):
            return None
        if self.value.dtype == object and any(isinstance(e, Nac | Undef) for e in self.value.flat):
            return None
        return self.value


def _value_text(value: TensorValue) -> str:
    return "[" + ", ".join(str(e) for e in np.asarray(value).ravel()) + "]"


Facts = Sequence[Fact | None]


class Index(Protocol):
    """An element index inside a generated loop nest: affine in the loop variables where possible (codegen/index.py)."""

    def __add__(self, other: "Index | Dim | int") -> "Index": ...
    def __mul__(self, other: "Dim | int") -> "Index": ...


class Emitter(Protocol):
    """What `Op.at` may ask of the code generator."""

    def load(self, operand: int, index: Sequence[Index]) -> str:
        """C expression of one element of input `operand`; its indices must be inside the input's bounds."""

    def position(self, dim: Dim | int) -> Index:
        """A constant index."""

    def opaque(self, text: str) -> Index:
        """An index computed by a C expression of type int64_t."""

    def c(self, value: "Index | Dim | int") -> str:
        """C expression (int64_t) of an index or a dim."""

    def element(self, dtype: np.dtype[Any]) -> str:
        """C type of an element."""

    def local(self, dtype: np.dtype[Any], text: str) -> str:
        """Bind a C expression to a fresh local of the given element type; returns its name."""

    @property
    def output(self) -> int:
        """Which output of the node is asked for."""

    def fold(
        self,
        dtype: np.dtype[Any],
        start: str,
        extents: Sequence["Index | Dim | int"],
        step: "Callable[[list[Any], str], str]",
    ) -> str:
        """A loop: the local that is returned is `start`, and for each index below `extents`, the last one fastest, it
        becomes step(index, local). Loads inside `step` may depend on the index."""

    def only_if(self, condition: str) -> None:
        """Inside the `step` of a fold: go on to the next index where the C condition doesn't hold."""


class Call(Protocol):
    """What `Op.call` may ask of the code generator: the C operands of one anchor kernel."""

    @property
    def tile(self) -> Tile:
        """The register tile that weights are packed for (runtime/tile.h)."""

    @property
    def versions(self) -> tuple[str, ...]:
        """The versions of the node's kernel that are kept (versions.py), among which `choice` picks by shape."""

    @property
    def end(self) -> Node | None:
        """The last node that the kernel computes itself: its own with its bias, or a Relu; None: an epilogue does."""

    def pointer(self, operand: int) -> str: ...
    def result(self, output: int = 0) -> str: ...
    def c(self, value: Dim | int) -> str: ...
    def packed(self, operand: int, layout: str, pack: Callable[[], Array]) -> str:
        """C pointer (const float *) to what `pack` returns, stored once in weights.bin under (operand, layout)."""

    def scratch(self, text: str) -> str:
        """Reserve scratch: `text` is a C expression of bytes evaluated at bind; returns the C pointer for the run."""

    def choice(self, text: str) -> str:
        """A decision taken when a shape is bound: `text` is a C expression of int64_t; returns its value for the run.

        In scope there: the struct declared so far, `threads`, and `allowance`, the bytes of scratch that cost no peak.
        """

    def epilogue(self) -> tuple[str, str]:
        """C expressions of the epilogue function and its arguments (NULL, NULL when nothing is fused)."""

    def touched(self) -> str:
        """C initializer of up to two pointers: tensors of the shape of output 0 that the epilogue reads or writes."""

    def setup(self, text: str) -> None:
        """C declarations visible to the step, to `scratch` and to `choice` (an argument struct of the kernel)."""


class Counting(Call, Protocol):
    """What `Op.count` may ask of the code generator: a Call, and where the numbers go."""

    def minted(self, output: int, axis: int) -> str:
        """C lvalue (int64_t) of the size of a dim that the operator counts."""

    def refuse(self, text: str) -> str:
        """C statement that ends the run: `text` says what the operator does not accept."""


UNKNOWN_DTYPE: np.dtype[Any] = np.dtype(np.void)  # of a tensor that an operator without rules writes


class Op:
    """Base of all operators: the defaults of the rules. An UnsupportedError names a rule that a subclass lacks."""

    name: str = ""
    domain: str = ""
    mapping: MappingType = MappingType.MANY_TO_MANY
    shape_inputs: tuple[int, ...] = ()
    value_inputs: bool = True
    execution: bool = False
    is_view: bool = False  # output 0 is input 0's bytes under another shape
    reads_outside: bool = False  # `at` may load element 0 of input 0 when that is empty, and discard it
    one_count: bool = False  # all dims that `count` finds are one number
    overwrites: int | None = None  # the operand whose bytes the kernel may write its result over
    any_dtype: bool = False  # the kernel moves bytes: it takes every element type
    cost: int = 1  # scalar operations per output element, roughly; 10 and more means "do not re-evaluate"

    def dynamism(self, node: Node, x: Facts) -> Dynamism:
        """The node's class under the facts at hand: known shape-defining values lower ISVDOS to ISDOS (paper, 3.1)."""
        if self.execution:
            return Dynamism.EDO
        unknown = [i for i in self.shape_inputs if i < len(x) and (f := x[i]) is not None and f.known_value is None]
        if unknown:
            return Dynamism.ISVDOS
        return Dynamism.ISDOS if self.value_inputs else Dynamism.ISDO

    def dtype(self, node: Node, x: Facts) -> list[np.dtype[Any]]:
        """Element types of all outputs; by default that of the first input."""
        first = next(f for f in x if f is not None)
        return [first.dtype] * len(node.outputs)

    def shape(self, node: Node, x: Facts) -> list[Shape]:
        """Forward S rule: shapes of all outputs. Input ranks are known tuples (NAC/UNDEF ranks are handled by RDP)."""
        raise UnsupportedError(f"operator {self.name} has no shape rule")

    def value(self, node: Node, x: Facts, y: Facts) -> list[TensorValue]:
        """Forward V rule, given the output facts with shapes filled in; NAC when unknown."""
        return [NAC] * len(node.outputs)

    def shape_back(self, node: Node, x: Facts, y: Facts) -> list[Shape]:
        """Backward S rule: what the outputs' shapes prove about each input's shape; UNDEF where nothing."""
        return [UNDEF] * len(node.inputs)

    def guards(self, node: Node, x: Facts, y: Facts) -> list[tuple[Dim, Dim]]:
        """Pairs of dims that must be equal for the node to be valid (beyond what the shapes already prove)."""
        return []

    def hands_on(self, node: Node, x: Facts, y: Facts) -> bool:
        """Whether output 0, which provably has the dims of input 0, then has its elements too."""
        return False

    def moves_rows(self, node: Node, x: Facts, y: Facts) -> bool:
        """Whether output 0 is made of whole rows of input 0, along the last axis of both, and of rows of zeros. It then
        changes places with what treats every row alike and makes zeros of zeros."""
        return False

    def at(self, node: Node, e: Emitter, index: Sequence[Index], x: Facts, y: Facts) -> str:
        """C expression of one element of output `e.output` at `index`, pulling its inputs through `e.load`."""
        raise UnsupportedError(f"operator {self.name} has no element expression")

    def call(self, node: Node, k: Call, x: Facts, y: Facts) -> str:
        """C statements that call this anchor's kernel from the runtime."""
        raise UnsupportedError(f"operator {self.name} has no kernel")

    def count(self, node: Node, k: Counting, x: Facts, y: Facts) -> str:
        """C statements that find the dims of the outputs which only execution tells and store them in `k.minted`.

        They run before `call`, when the inputs are there but the outputs are not.
        """
        raise UnsupportedError(f"operator {self.name} does not count")

    @property
    def counts(self) -> bool:
        """Whether the dims that execution decides can be found before the output is computed."""
        return type(self).count is not Op.count

    @property
    def has_at(self) -> bool:
        """Whether this operator is an element expression."""
        return type(self).at is not Op.at

    @property
    def aligned(self) -> bool:
        """Whether an output element reads its (broadcast) inputs at its own position only. DNNFusion's One-to-One does
        not tell: a Slice is One-to-One."""
        return self.has_at and self.mapping is MappingType.ONE_TO_ONE

    @property
    def has_call(self) -> bool:
        """Whether this operator has a kernel of its own."""
        return type(self).call is not Op.call

    def is_anchor(self, node: Node, x: Facts) -> bool:
        """Whether this node runs on the operator's kernel. One that also has an element expression may say no for
        element types that the kernel does not take."""
        return self.has_call

    def space(self, node: Node, x: Facts, y: Facts) -> tuple[int, int] | None:
        """For an anchor that takes an epilogue: (first row dim, first column dim) of output 0, whose dims before,
        between and after are the batch, rows and columns of the epilogue's tiles. None: it takes no epilogue."""
        return None

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        """numpy semantics of the operator: the oracle of every test."""
        raise UnsupportedError(f"operator {self.name} has no reference")

    def examples(self) -> Iterable[tuple[Mapping[str, Any], Sequence[Array | None]]]:
        """(attributes, input arrays): every generic test runs on these. Include one- and zero-sized dims."""
        return []


class Unknown(Op):
    """An operator that nothing is known of: analysis goes on around it, code can't be generated for it."""

    def __init__(self, node: Node) -> None:
        self.name, self.domain = node.op, node.domain

    def dtype(self, node: Node, x: Facts) -> list[np.dtype[Any]]:
        return [UNKNOWN_DTYPE] * len(node.outputs)

    def shape(self, node: Node, x: Facts) -> list[Shape]:
        domain = f" of domain {self.domain}" if self.domain else ""
        raise UnsupportedError(f"operator {self.name}{domain} (node {node.name!r}) is not supported")


@dataclass
class Registry:
    """Operators by (domain, name)."""

    table: dict[tuple[str, str], Op] = field(default_factory=dict)

    def __call__(self, node: Node) -> Op:
        """The operator of a node; one without rules when there is none."""
        found = self.table.get((node.domain, node.op))
        return Unknown(node) if found is None else found


OPS = Registry()


def register(*names: str, domain: str = "") -> Callable[[type[Op]], type[Op]]:
    """Class decorator: one instance of the class per operator name."""

    def add(cls: type[Op]) -> type[Op]:
        for name in names or (cls.__name__,):
            op = cls()
            op.name, op.domain = name, domain
            OPS.table[domain, name] = op
        return cls

    return add
