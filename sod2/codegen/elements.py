"""From the element expressions of a group to the C of its loop body.

A group is evaluated by pulling: each output element asks its operator's `at`, which loads its inputs, which are either
memory or the result of another node of the group. A value is bound to one local per (tensor, index), so a tensor that
is used twice is computed once. Dims never appear as expressions in a kernel: each distinct one is a parameter n0, n1
..., and each tensor in memory a pointer p0, p1 ..., numbered in order of first use. Two groups that differ only in
names and sizes therefore give the same text, and one kernel serves both.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from sod2.codegen.index import Affine, offset
from sod2.dtypes import element_type, is_float
from sod2.graph import Node
from sod2.ops import OPS
from sod2.ops.op import Emitter, Fact, Index
from sod2.rdp import Analysis
from sod2.symbolic import Dim, as_dim, eq, minimum


def c_string(text: str) -> str:
    """A C string literal; everything but plain ASCII in octal."""
    plain = "".join(chr(b) if 32 <= b < 127 and chr(b) not in '"\\?' else f"\\{b:03o}" for b in text.encode())
    return f'"{plain}"'


def literal(value: Any, dtype: np.dtype[Any]) -> str:
    """A C constant of the type that elements of this dtype are computed with."""
    if is_float(dtype):
        suffix = "f" if dtype.itemsize <= 4 else ""
        if np.isnan(value):
            return "NAN"
        if np.isinf(value):
            return "INFINITY" if value > 0 else "(-INFINITY)"
        text = repr(float(value))
        return f"({text}{suffix})" if text.startswith("-") else f"{text}{suffix}"
    kind, number = element_type(dtype).value, int(value)
    if number == -(2**63):
        return f"(({kind})INT64_MIN)"
    return f"(({kind}){'U' if number >= 2**63 else ''}INT64_C({number}))"


Addend = tuple[str, tuple[int, ...], float]  # tensor, output dim of each of its dims, factor: the bias of an anchor


@dataclass
class Access:
    """A load or store of one element: which pointer, and where."""

    pointer: str
    index: Affine


@dataclass
class Body:
    """The statements of one loop iteration under construction, and everything they refer to."""

    analysis: Analysis
    producers: Mapping[str, Node]  # tensors computed inside the group
    anchor: str = ""  # the tensor that an anchor's kernel hands over in a tile
    addend: Addend | None = None
    space: tuple[Dim, ...] = ()  # the dims that the loops run over
    pointers: dict[str, str] = field(default_factory=dict)  # tensor -> p0, p1, ...
    dims: dict[Dim, str] = field(default_factory=dict)  # dim -> n0, n1, ...
    accesses: list[Access] = field(default_factory=list)
    statements: list[str] = field(default_factory=list)
    pinned: set[int] = field(default_factory=set)
    bound: dict[tuple[str, str], str] = field(default_factory=dict)

    def dim(self, value: Dim | int) -> str:
        """C name of a dim: a literal, or one of the kernel's parameters."""
        value = as_dim(value)
        if value.is_constant:
            return f"INT64_C({int(value)})" if abs(int(value)) > 2**31 - 1 else str(int(value))
        return self.dims.setdefault(value, f"n{len(self.dims)}")

    def pointer(self, tensor: str) -> str:
        return self.pointers.setdefault(tensor, f"p{len(self.pointers)}")

    def local(self, ctype: str, text: str) -> str:
        """Bind an expression to a fresh local; a local stays itself."""
        if re.fullmatch(r"v\d+", text):
            return text
        name = f"v{len(self.statements)}"
        self.statements.append(f"const {ctype} {name} = {text};")
        return name

    def fold(self, ctype: str, start: str, extents: Sequence[str], step: Callable[[list[Affine], str], str]) -> str:
        """Name of a local that is `start` and then, once for each index below `extents`, what `step` makes of it."""
        name = f"v{len(self.statements)}"
        self.statements.append(f"{ctype} {name} = {start};")
        outside, index = dict(self.bound), []
        for extent in extents:
            variable = f"r{len(self.statements)}"
            self.statements.append(f"for (int64_t {variable} = 0; {variable} < {extent}; {variable}++) {{")
            index.append(Affine({}, text=((variable, as_dim(1)),)))
        result = step(index, name)
        self.statements.append(f"{name} = {result};")
        self.statements += ["}"] * len(extents)
        self.bound = outside
        return name

    def access(self, tensor: str, index: Sequence[Affine], dims: Sequence[Dim]) -> str:
        """Placeholder @k@ of an access's C text; the loop nest fills it in when its axes are decided."""
        alike = [next((s for s in self.space if eq(d, s) is True), d) for d in dims]  # one form of equal dims
        self.accesses.append(Access(self.pointer(tensor), offset(index, alike)))
        return f"@{len(self.accesses) - 1}@"

    def value(self, tensor: str, index: Sequence[Affine]) -> str:
        """Name of the local that holds one element of a tensor."""
        fact = self.analysis[tensor]
        key = tensor, repr(index)
        if key not in self.bound:
            self.bound[key] = self._bind(tensor, fact, index)
        return self.bound[key]

    def _bind(self, tensor: str, fact: Fact, index: Sequence[Affine]) -> str:
        self.analysis.dims(tensor)  # raises where the shape or the element type is not known
        kind = element_type(fact.dtype)
        ctype = kind.value
        if tensor == self.anchor:
            return self._anchor_value(ctype, index)
        node = self.producers.get(tensor)
        if node is not None:
            x, y = self.analysis.of(node.inputs), self.analysis.of(node.outputs)
            operands = _Operands(self, node, node.outputs.index(tensor))
            text = OPS(node).at(node, cast(Emitter, operands), cast(Sequence[Index], index), x, y)
            return self.local(ctype, kind.rounded.format(text))  # fusion must not change what a node gives
        known = fact.known_value
        if known is not None and known.size == 1:
            return self.local(ctype, self.constant(known.reshape(-1)[0], fact.dtype))
        return self.local(ctype, kind.load.format(self.access(tensor, index, fact.dims)))

    def _anchor_value(self, ctype: str, index: Sequence[Affine]) -> str:
        if self.addend is None:
            return self.local(ctype, "tile[j]")
        tensor, dims, factor = self.addend
        own, space = self.analysis[tensor].dims, self.analysis[self.anchor].dims
        at = tuple(index[k] * _moves(d, space[k]) for d, k in zip(own, dims, strict=True))
        scale = "" if factor == 1.0 else f"{literal(factor, np.dtype(np.float32))} * "
        return self.local(ctype, f"tile[j] + {scale}{self.value(tensor, at)}")

    def constant(self, value: Any, dtype: np.dtype[Any]) -> str:
        return f"({element_type(dtype).value}){self.dim(value)}" if isinstance(value, Dim) else literal(value, dtype)

    def store(self, tensor: str, value: str, index: Sequence[Affine]) -> None:
        """Write one element, held by the local `value`, of a tensor of the group to memory."""
        fact = self.analysis[tensor]
        stored = element_type(fact.dtype).store.format(value)
        self.statements.append(f"{self.access(tensor, index, fact.dims)} = {stored};")


def _moves(dim: Dim, extent: Dim) -> Dim:
    """1 where an operand's dim runs along its extent, 0 where it is 1 and broadcast; decided at run time if need be."""
    if dim == as_dim(1) or eq(dim, extent) is True:
        return as_dim(int(dim != as_dim(1)))
    return as_dim(1) if eq(dim, 1) is False else minimum(dim - 1, 1)


@dataclass(frozen=True)
class _Operands:
    """The Emitter that a node's `at` sees: its inputs by number."""

    body: Body
    node: Node
    output: int

    def load(self, operand: int, index: Sequence[Affine]) -> str:
        return self.body.value(self.node.inputs[operand], tuple(index))

    def position(self, dim: Dim | int) -> Affine:
        return Affine({}, as_dim(dim))

    def opaque(self, text: str) -> Affine:
        return Affine({}, text=((f"({text})", as_dim(1)),))

    def c(self, value: "Affine | Dim | int") -> str:
        if not isinstance(value, Affine):
            return self.body.dim(value)
        self.body.pinned.update(value.terms)
        return f"({render(value, {k: f'i{k}' for k in value.terms}, self.body)})"

    def element(self, dtype: np.dtype[Any]) -> str:
        return element_type(dtype).value

    def local(self, dtype: np.dtype[Any], text: str) -> str:
        return self.body.local(element_type(dtype).value, text)

    def fold(
        self,
        dtype: np.dtype[Any],
        start: str,
        extents: Sequence["Affine | Dim | int"],
        step: Callable[[list[Affine], str], str],
    ) -> str:
        return self.body.fold(element_type(dtype).value, start, [self.c(n) for n in extents], step)

    def only_if(self, condition: str) -> None:
        self.body.statements.append(f"if (!({condition})) continue;")


def render(index: Affine, variables: Mapping[int, str], body: Body) -> str:
    """C text of an index, given the variable of each axis it depends on."""
    parts = []
    for axis, coefficient in index.terms.items():
        factor = body.dim(coefficient)
        parts.append(variables[axis] if factor == "1" else f"{variables[axis]} * {factor}")
    if index.base != as_dim(0):
        parts.append(body.dim(index.base))
    for text, coefficient in index.text:
        factor = body.dim(coefficient)
        parts.append(text if factor == "1" else f"{text} * {factor}")
    return " + ".join(parts) or "0"
