"""Reading attributes and the inputs that replaced them: one place that knows the opset forms.

From opset 13 on, attributes such as `axes` became inputs, one operator at a time; both forms are accepted everywhere.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from sod2.dtypes import BY_NUMBER
from sod2.errors import ModelError, UnsupportedError
from sod2.graph import Node
from sod2.lattice import NAC, Nac
from sod2.ops.lift import constant_integers
from sod2.ops.op import Array, Facts


def dtype_of(node: Node, attribute: str, default: int | None = None) -> np.dtype[Any]:
    """The element type that an integer attribute names; UnsupportedError for one that isn't computed with."""
    number = node.attrs.get(attribute, default)
    if number not in BY_NUMBER:
        raise UnsupportedError(
            f"{node.op} (node {node.name!r}): element type {number} isn't supported; "
            f"{', '.join(d.name for d in BY_NUMBER.values())} are"
        )
    return BY_NUMBER[number]


def normal_axis(node: Node, axis: int, rank: int) -> int:
    """The axis counted from 0; ModelError when the rank has no such axis."""
    if not -rank <= axis < rank:
        raise ModelError(f"{node.op} (node {node.name!r}): axis {axis} is outside a tensor of rank {rank}")
    return axis % rank


def axis_of(node: Node, rank: int, default: int) -> int:
    """The `axis` attribute counted from 0."""
    return normal_axis(node, int(node.attrs.get("axis", default)), rank)


def present(items: Sequence[Any], position: int) -> Any:
    """items[position], None where the node has fewer inputs."""
    return items[position] if position < len(items) else None


def axes_of(node: Node, x: Facts, position: int, rank: int, name: str = "axes") -> tuple[int, ...] | Nac | None:
    """Axes from the attribute or from input `position`, counted from 0; NAC when not known, None when not given."""
    if name in node.attrs:
        return tuple(normal_axis(node, int(a), rank) for a in node.attrs[name])
    fact = present(x, position)
    if fact is None:
        return None
    axes = constant_integers(fact)
    return NAC if axes is None else tuple(normal_axis(node, a, rank) for a in axes)


def given_axes(node: Node, arrays: Sequence[Array | None], position: int, name: str = "axes") -> tuple[int, ...] | None:
    """Axes of a reference: the attribute, the array at `position`, or None."""
    if name in node.attrs:
        return tuple(int(a) for a in node.attrs[name])
    array = present(arrays, position)
    return None if array is None else tuple(int(a) for a in array.ravel())
