"""Loop nests around a group's body: element kernels over a whole tensor, and epilogues over an anchor's tiles.

An element kernel walks the group's space in rows of its innermost collapsed axis; rows are handed to the threads in
chunks. An epilogue receives tiles of (batch, row, column), so its accesses must step uniformly within each of the
three; fusion.py fuses nothing else.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from string import Template

from sod2.codegen.elements import Addend, Body, render
from sod2.codegen.index import Affine, Axis, collapse
from sod2.dtypes import element_type
from sod2.errors import UnsupportedError
from sod2.graph import Node
from sod2.rdp import Analysis
from sod2.symbolic import Dim, constant, eq

_ONE = constant(1)
_TEMPLATES = Path(__file__).parent / "templates"
_NEST = Template((_TEMPLATES / "nest.c.in").read_text())
_EPILOGUE = Template((_TEMPLATES / "epilogue.c.in").read_text())
_LINES = Template((_TEMPLATES / "lines.c.in").read_text())
_NORMALISED = "(x[j] - a.shift) * a.factor + a.offset"
_LOAD = re.compile(r"const \w+ v\d+ = (?:\(\w+\)|\w+\()?@(\d+)@\)?;")  # a local that only loads one element


@dataclass(frozen=True)
class Kernel:
    """C of one kernel named `@name@`, and its operands: tensors behind p0.., dims behind n0.., extents first."""

    source: str
    tensors: tuple[str, ...]
    dims: tuple[Dim, ...]
    extents: tuple[Dim, ...] = ()  # element kernels: outer axes then the inner one


def body_of(
    nodes: Sequence[Node], outputs: Sequence[str], analysis: Analysis, anchor: str = "", addend: Addend | None = None
) -> Body:
    """Emit the loop body that computes and stores `outputs` over the space of the last one."""
    producers = {t: n for n in nodes for t in n.outputs}
    body = Body(analysis, producers, anchor, addend, analysis[anchor or outputs[-1]].dims)
    index = tuple(Affine.axis(k) for k in range(len(analysis[outputs[-1]].dims)))
    values = [body.value(tensor, index) for tensor in outputs]  # all loads before the first store: an output may lie
    for tensor, value in zip(outputs, values, strict=True):  # on the bytes of an operand
        body.store(tensor, value, index)
    return body


def _pointer_lines(body: Body, outputs: Sequence[str], analysis: Analysis) -> list[str]:
    lines = []
    for tensor, name in body.pointers.items():
        const = "" if tensor in outputs else "const "
        lines.append(f"{const}{element_type(analysis[tensor].dtype).memory} *{name} = z->p[{name[1:]}];")
    return lines


def _dim_lines(body: Body) -> list[str]:
    return [f"const int64_t {name} = z->n[{name[1:]}];" for name in body.dims.values()]


def _indent(lines: Sequence[str], depth: int) -> str:
    return "\n".join(f"{'  ' * depth}{line}" for line in lines)


def _split(index: Affine, inner: Axis) -> tuple[Affine, Affine]:
    """The part of an access that is fixed along the inner axis, and the part that moves with it."""
    own = {k: c for k, c in index.terms.items() if k in inner.members}
    rest = {k: c for k, c in index.terms.items() if k not in inner.members}
    last = {inner.members[-1]: own[inner.members[-1]]} if inner.members and inner.members[-1] in own else {}
    return Affine(rest, index.base), Affine(last, text=index.text)


def element_kernel(nodes: Sequence[Node], outputs: Sequence[str], analysis: Analysis) -> Kernel:
    """A kernel over the whole space of a group of element expressions."""
    body = body_of(nodes, outputs, analysis)
    space = analysis[outputs[-1]].dims
    axes = collapse(space, [a.index for a in body.accesses], frozenset(body.pinned))
    *outer, inner = axes
    names = {axis.members[-1]: f"i{axis.members[-1]}" for axis in axes if axis.members}
    variable = names[inner.members[-1]] if inner.members else "i"
    for access in body.accesses:  # pointers to the row, before the inner loop
        access.index = _collapsed(access.index, axes)
    rows, statements = _place(body, inner, names)
    decompose = _decompose(outer, body)
    source = _NEST.substitute(
        operands=_indent(_pointer_lines(body, outputs, analysis) + _dim_lines(body), 1),
        row=_indent(decompose + rows, 2),
        axis=variable,
        body=_indent(statements, 3),
    )
    return Kernel(source, tuple(body.pointers), tuple(body.dims), tuple(a.extent for a in axes))


def _collapsed(index: Affine, axes: Sequence[Axis]) -> Affine:
    """Keep one term per collapsed axis: that of its innermost member, whose variable stands for the whole."""
    kept = {axis.members[-1] for axis in axes if axis.members}
    return Affine({k: c for k, c in index.terms.items() if k in kept}, index.base, index.text)


def _decompose(outer: Sequence[Axis], body: Body) -> list[str]:
    """Indices of the outer axes from the row number."""
    if not outer:
        return []
    lines = ["int64_t row = sod2_nest_row(z, item);"]
    for axis in reversed(outer[1:]):
        name, extent = f"i{axis.members[-1]}", body.dim(axis.extent)
        lines += [f"const int64_t {name} = row % {extent};", f"row /= {extent};"]
    lines.append(f"const int64_t i{outer[0].members[-1]} = row;")
    used = [f"(void)i{axis.members[-1]};" for axis in outer]
    return lines + used


def _place(body: Body, inner: Axis, names: dict[int, str]) -> tuple[list[str], list[str]]:
    """Row pointers (declared before the inner loop) and the statements with their accesses filled in.

    Loads that do not move with the inner axis become scalars before the loop: the compiler could not hoist them past
    the stores of the loop.
    """
    rows: list[str] = []
    text: dict[str, str] = {}
    for number, access in enumerate(body.accesses):
        fixed, moving = _split(access.index, inner)
        base = render(fixed, names, body)
        pointer = access.pointer if base == "0" else f"({access.pointer} + {base})"
        text[f"@{number}@"] = f"{pointer}[{render(moving, names, body)}]"
    statements: list[str] = []
    for line in body.statements:
        filled = re.sub(r"@\d+@", lambda m: text[m[0]], line)
        loaded = _LOAD.fullmatch(line)
        invariant = loaded and _split(body.accesses[int(loaded[1])].index, inner)[1] == Affine({})
        (rows if invariant else statements).append(filled)
    return rows, statements


def classes(rank: int, space: tuple[int, int]) -> tuple[range, range, range]:
    """The output dims behind the batch, the rows and the columns of an anchor's tiles."""
    row, col = space
    return range(row), range(row, col), range(col, rank)


def _uniform(index: Affine, members: range, extents: Sequence[Dim]) -> Dim:
    """The step of an access over several dims walked as one; fusion.py fuses no other."""
    kept = [k for k in members if extents[k] != _ONE]
    if not kept:
        return constant(0)
    for outer, inner in pairwise(kept):
        expected = index.terms.get(inner, constant(0)) * extents[inner]
        if eq(index.terms.get(outer, constant(0)), expected) is not True:
            raise UnsupportedError(f"an epilogue is not uniform over dims {extents[outer]} and {extents[inner]}")
    return index.terms.get(kept[-1], constant(0))


def epilogue_kernel(
    nodes: Sequence[Node],
    outputs: Sequence[str],
    analysis: Analysis,
    anchor: str,
    space: tuple[int, int],
    *,
    addend: Addend | None = None,
) -> Kernel:
    """The function that an anchor kernel calls for each tile of its result; `addend` is the anchor's bias."""
    body = body_of(nodes, outputs, analysis, anchor, addend)
    extents = analysis[anchor].dims
    text: dict[str, str] = {}
    fixed: set[str] = set()
    for number, access in enumerate(body.accesses):
        steps = [_uniform(access.index, members, extents) for members in classes(len(extents), space)]
        parts = [
            f"{name} * {body.dim(s)}" if s != _ONE else name
            for name, s in zip(("batch", "row", "col"), steps, strict=True)
            if s != constant(0)
        ]
        base = " + ".join(parts)
        pointer = f"({access.pointer} + {base})" if base else access.pointer
        column = steps[2]
        moves = "0" if column == constant(0) else "j" if column == _ONE else f"j * {body.dim(column)}"
        text[f"@{number}@"] = f"{pointer}[{moves}]"
        if moves == "0":
            fixed.add(f"@{number}@")
    before: list[str] = []
    statements: list[str] = []
    for line in body.statements:
        loaded = _LOAD.fullmatch(line)
        filled = re.sub(r"@\d+@", lambda m: text[m[0]], line)
        (before if loaded and f"@{loaded[1]}@" in fixed else statements).append(filled)
    source = _EPILOGUE.substitute(
        operands=_indent(_pointer_lines(body, outputs, analysis) + _dim_lines(body), 1),
        row=_indent(before, 1),
        body=_indent(statements, 2),
    )
    return Kernel(source, tuple(body.pointers), tuple(body.dims))


def lines_kernel(nodes: Sequence[Node], result: str, analysis: Analysis, anchor: str) -> str:
    """C of lines of `result` from those of what `anchor` normalises; operands behind that are numbers."""
    body = body_of(nodes, (result,), analysis, anchor)
    statements = [re.sub(r"@\d+@", "y[j]", line).replace("tile[j]", _NORMALISED) for line in body.statements]
    return _LINES.substitute(body=_indent(statements, 3))
