"""Geometry of sliding windows: where convolutions and pools place their windows, and how many there are.

All formulas are those of the ONNX operator specification, over symbolic sizes: NOTSET and VALID divide rounding down,
or up with `ceil_mode`, where the last window must start inside the tensor or its leading padding; SAME_UPPER and
SAME_LOWER make ceil(size / stride) windows and split the padding that this needs, the odd element behind and in front.
A window that is longer than the padded tensor makes the model invalid: `fits` is the guard. Pools are different, as
engines round the quotient towards zero: a tensor that is too short by less than a stride still has one window, cut off
at its end, and one that is too short by less than two has none. An axis of no elements is refused.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sod2.errors import ModelError
from sod2.graph import Node
from sod2.symbolic import Dim, DimLike, as_dim, ceildiv, maximum, minimum

_CUT_OFF = ("MaxPool", "AveragePool", "LpPool")  # operators whose windows may end beyond the tensor


@dataclass(frozen=True)
class Axis:
    """Windows along one spatial axis: `out` windows of `kernel` elements, `dilation` apart, every `stride` elements
    over `size` elements with `begin` and `end` elements of padding."""

    size: Dim
    kernel: Dim
    stride: int
    dilation: int
    begin: Dim
    end: Dim
    out: Dim
    overhang: int = 0  # elements by which the first window may reach beyond the padding

    @property
    def extent(self) -> Dim:
        """Elements from the first to the last of one window."""
        return (self.kernel - 1) * self.dilation + 1

    @property
    def fits(self) -> tuple[Dim, Dim]:
        """Two dims that are equal when a window fits into the padded axis."""
        least = self.extent - self.overhang
        return minimum(self.size + self.begin + self.end, least), least


def ints(node: Node, name: str, count: int, default: int) -> list[int]:
    """An attribute of one integer per spatial axis (two for pads, hence `count`); `default` for each when absent."""
    values = [int(v) for v in node.attrs.get(name, [default] * count)]
    if len(values) != count:
        raise ModelError(f"{name}={values} of {node.op} (node {node.name!r}) needs {count} integers")
    return values


def auto_pad(node: Node) -> str:
    """The padding mode: NOTSET, VALID, SAME_UPPER or SAME_LOWER."""
    mode = node.attrs.get("auto_pad", "NOTSET")
    if mode not in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"):
        raise ModelError(
            f"auto_pad={mode!r} of {node.op} (node {node.name!r}) is not one of NOTSET, VALID, SAME_UPPER, SAME_LOWER"
        )
    return str(mode)


def window_of(node: Node, kernel: DimLike) -> Dim:
    """The elements of a window along one axis; ModelError when there is none."""
    kernel = as_dim(kernel)
    if kernel.is_constant and int(kernel) < 1:
        raise ModelError(
            f"{node.op} (node {node.name!r}) has windows of {kernel} elements along an axis, not of 1 or more"
        )
    return kernel


def axis(node: Node, i: int, rank: int, size: DimLike, kernel: DimLike) -> Axis:
    """Windows along spatial axis `i` of `rank`, from the node's strides, dilations, pads, auto_pad and ceil_mode."""
    size, kernel = as_dim(size), window_of(node, kernel)
    stride, dilation = ints(node, "strides", rank, 1)[i], ints(node, "dilations", rank, 1)[i]
    extent = (kernel - 1) * dilation + 1
    mode = auto_pad(node)
    if mode.startswith("SAME"):
        out = ceildiv(size, stride)
        total = maximum((out - 1) * stride + extent - size, 0)
        begin = total // 2 if mode == "SAME_UPPER" else total - total // 2
        return Axis(size, kernel, stride, dilation, begin, total - begin, out)
    pads = ints(node, "pads", 2 * rank, 0) if mode == "NOTSET" else [0] * (2 * rank)
    begin, end = as_dim(pads[i]), as_dim(pads[rank + i])
    room = size + begin + end - extent
    overhang = min(2 * stride - 1, int(extent - begin - end) - 1) if node.op in _CUT_OFF else 0
    if node.attrs.get("ceil_mode", 0):
        out = minimum(ceildiv(room, stride) + 1, ceildiv(size + begin, stride))
    elif node.op in _CUT_OFF:
        out = maximum(room // stride + 1, minimum(maximum(room + stride, 0), 1))
    else:
        out = room // stride + 1
    return Axis(size, kernel, stride, dilation, begin, end, out, overhang)


def axes(node: Node, sizes: Sequence[DimLike], kernel: Sequence[DimLike]) -> list[Axis]:
    """Windows along every spatial axis."""
    return [axis(node, i, len(sizes), s, k) for i, (s, k) in enumerate(zip(sizes, kernel, strict=True))]


def transposed_axis(node: Node, i: int, rank: int, size: DimLike, kernel: DimLike) -> Axis:
    """A transposed convolution's axis: `size` windows are written into `out` elements, of which `begin` are cut off in
    front and `end` behind (a negative `end` are elements that no window reaches)."""
    size, kernel = as_dim(size), window_of(node, kernel)
    stride, dilation = ints(node, "strides", rank, 1)[i], ints(node, "dilations", rank, 1)[i]
    extra = ints(node, "output_padding", rank, 0)[i]
    full = (size - 1) * stride + extra + (kernel - 1) * dilation + 1
    mode = auto_pad(node)
    if "output_shape" in node.attrs:
        out = as_dim([int(v) for v in node.attrs["output_shape"]][-rank:][i])
    elif mode.startswith("SAME"):
        out = minimum(size * stride, full)
    else:
        pads = ints(node, "pads", 2 * rank, 0) if mode == "NOTSET" else [0] * (2 * rank)
        begin, end = as_dim(pads[i]), as_dim(pads[rank + i])
        return Axis(size, kernel, stride, dilation, begin, end - extra, full - begin - end)
    total = maximum(full - out, 0)
    begin = total // 2 if mode == "SAME_UPPER" else total - total // 2
    return Axis(size, kernel, stride, dilation, begin, full - extra - out - begin, out)
