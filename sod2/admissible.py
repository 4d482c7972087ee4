"""Which input shapes a model accepts, and the sentence for one that it does not.

A concrete shape gives the value of each symbol through the declared dims (`32*h` = 640 gives h = 20; 650 is refused).
Then every unconditional requirement of the analysis has to hold. Requirements of a branch constrain nothing: the branch
may not be taken.
"""

from collections.abc import Mapping, Sequence

from sod2.errors import InputError
from sod2.graph import Graph, Requirement, Value
from sod2.symbolic import Dim, as_dim, evaluate, substitute


def declared(value: Value) -> str:
    """The shape an input declares, as text."""
    return "any shape" if value.shape is None else f"[{', '.join(map(str, value.shape))}]"


def bind(graph: Graph, shapes: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """Symbol values for concrete input shapes; InputError names the input, the dim, its value and what is accepted."""
    _check_names(graph, shapes)
    symbols: dict[str, int] = {}
    for value in graph.inputs:
        if value.shape is None:
            continue
        shape = tuple(shapes[value.name])
        if len(shape) != len(value.shape):
            raise InputError(
                f"input {value.name!r} has rank {len(shape)} (shape {list(shape)}); the model takes {declared(value)}"
            )
        for axis, (dim, size) in enumerate(zip(value.shape, shape, strict=True)):
            _bind_dim(value, axis, dim, size, symbols)
    return symbols


def _check_names(graph: Graph, shapes: Mapping[str, Sequence[int]]) -> None:
    wanted = [v.name for v in graph.inputs]
    for name in shapes:
        if name not in wanted:
            raise InputError(
                f"the model has no input {name!r}; its inputs are {', '.join(map(repr, wanted)) or 'none'}"
            )
    for name in wanted:
        if name not in shapes:
            raise InputError(f"input {name!r} is missing; the model's inputs are {', '.join(map(repr, wanted))}")


def affine(dim: Dim) -> tuple[str, int, int]:
    """(symbol, scale, base) of an input dim that is scale * symbol + base."""
    (name,) = dim.symbols()
    base = int(substitute(dim, {name: as_dim(0)}))
    return name, int(substitute(dim, {name: as_dim(1)})) - base, base


def _bind_dim(value: Value, axis: int, dim: Dim, size: int, symbols: dict[str, int]) -> None:
    where = f"dim {axis} of input {value.name!r} is {size}"
    if dim.is_constant:
        if int(dim) != size:
            raise InputError(f"{where}; the model takes {int(dim)}")
        return
    name, scale, base = affine(dim)
    number, rest = divmod(size - base, scale)
    if rest or number < 0:
        raise InputError(f"{where}; the model takes {dim} with a whole number {name} >= 0")
    if symbols.setdefault(name, number) != number:
        raise InputError(f"{where}, but another dim gives {name} = {symbols[name]}; the model takes {dim} for both")


def refusal(graph: Graph, requirements: Sequence[Requirement], shapes: Mapping[str, Sequence[int]]) -> str | None:
    """None when the shapes are accepted, else one sentence."""
    try:
        symbols = bind(graph, shapes)
    except InputError as error:
        return str(error)
    for r in requirements:
        if r.guard or not (r.left.symbols() | r.right.symbols()) <= symbols.keys():
            continue
        left, right = evaluate(r.left, symbols), evaluate(r.right, symbols)
        if left != right:
            sizes = ", ".join(f"{n!r} {list(s)}" for n, s in shapes.items())
            return f"inputs {sizes} are not accepted: {r.left} = {left} must equal {r.right} = {right} ({r.node})"
    return None
