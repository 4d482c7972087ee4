"""Views: Reshape, Squeeze, Unsqueeze, Flatten, Identity, Dropout. Output 0 is the input's bytes under another shape.

The -1 of a Reshape is the quotient of two products of dims. Dims copied by a 0 are cancelled first (also unknown ones),
then the quotient is taken symbolically; where the products don't divide provably, a guard says that they must. When a
product may be unknown the dim is NAC. A target that only execution tells may be -1 or 0 too: its dims are counted.

`at` pairs runs of input dims with runs of output dims that have the same number of elements; only inside a run with
several input dims an index is divided.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from sod2.errors import ModelError, UnsupportedError
from sod2.graph import Node
from sod2.lattice import NAC, UNDEF, Nac, Shape, Undef
from sod2.ops.attributes import axes_of, given_axes, normal_axis, present
from sod2.ops.axes import axis_guards, axis_values, dropped, inserted
from sod2.ops.lift import Element, constant_integers, integers, known_shape, lift, product
from sod2.ops.op import Array, Counting, Emitter, Facts, Index, MappingType, Op, TensorValue, register
from sod2.symbolic import Dim, as_dim, eq, exact_div, floordiv, ge, maximum, minimum

Examples = Iterable[tuple[Mapping[str, Any], Sequence[Array | None]]]
Runs = list[tuple[range, range]]


def pair_runs(source: Sequence[Dim], target: Sequence[Dim]) -> Runs:
    """Shortest runs of dims, in order, that hold equally many elements; what can't be told apart is one last run."""
    runs: Runs = []
    i = j = 0
    while i < len(source) or j < len(target):
        lengths = (
            (a, b) for total in range(1, len(source) + len(target) + 1) for a in range(total + 1) for b in [total - a]
        )
        a, b = next(
            (
                (a, b)
                for a, b in lengths
                if i + a <= len(source)
                and j + b <= len(target)
                and eq(math.prod(source[i : i + a], start=as_dim(1)), math.prod(target[j : j + b], start=as_dim(1)))
            ),
            (len(source) - i, len(target) - j),
        )
        runs.append((range(i, i + a), range(j, j + b)))
        i, j = i + a, j + b
    return runs


def view_index(e: Emitter, index: Sequence[Index], source: Sequence[Dim], target: Sequence[Dim]) -> list[Index]:
    """The index into a dense tensor of shape `source` for an index into its view under `target`."""
    result: list[Index] = []
    for inner, outer in pair_runs(source, target):
        linear = e.position(0)
        for j in outer:
            linear = linear * target[j] + index[j]
        result += _divided(e, linear, [source[i] for i in inner])
    return result


def _divided(e: Emitter, linear: Index, dims: Sequence[Dim]) -> list[Index]:
    wide = [i for i, d in enumerate(dims) if d != 1]
    if len(wide) <= 1:
        return [linear if i in wide else e.position(0) for i in range(len(dims))]
    text = e.local(np.dtype(np.int64), e.c(linear))
    result: list[Index] = []
    for i, dim in enumerate(dims):
        stride = math.prod(dims[i + 1 :], start=as_dim(1))
        quotient = text if stride == 1 else f"({text} / {e.c(stride)})"
        result.append(
            e.opaque(quotient if i == wide[0] else f"({quotient} % {e.c(dim)})") if dim != 1 else e.position(0)
        )
    return result


class View(Op):
    """Base of the views: the value is the input's under the output's shape."""

    is_view = True
    mapping = MappingType.REORGANIZE

    def value(self, node: Node, x: Facts, y: Facts) -> list[TensorValue]:
        source, out = x[0], y[0]
        assert source is not None and out is not None
        shape = known_shape(out.shape)
        rest: list[TensorValue] = [NAC] * (len(node.outputs) - 1)
        if isinstance(source.value, Undef):
            return [UNDEF, *rest]
        if not isinstance(source.value, np.ndarray) or shape is None or math.prod(shape) != source.value.size:
            return [NAC, *rest]
        return [source.value.reshape(shape), *rest]

    def at(self, node: Node, e: Emitter, index: Sequence[Index], x: Facts, y: Facts) -> str:
        assert x[0] is not None and y[0] is not None
        return e.load(0, view_index(e, index, x[0].dims, y[0].dims))


@register()
class Reshape(View):
    """Another shape for the same elements; 0 copies a dim (unless allowzero), -1 is inferred."""

    shape_inputs = (1,)

    def moves_rows(self, node: Node, x: Facts, y: Facts) -> bool:
        """Rows of one length in the same order."""
        assert x[0] is not None and y[0] is not None
        return bool(x[0].dims and y[0].dims) and eq(x[0].dims[-1], y[0].dims[-1]) is True

    def shape(self, node: Node, x: Facts) -> list[Shape]:
        assert x[0] is not None and isinstance(x[0].shape, tuple) and x[1] is not None
        if isinstance(x[1].value, Undef):
            return [UNDEF]
        target = integers(x[1])
        if target is None:
            return [NAC]
        dims, inferred = self._target_dims(node, x[0].shape, target)
        if counted := self._counted(node, target):
            return [tuple(NAC if i in counted else d for i, d in enumerate(dims))]
        if inferred is not None:
            dims[inferred] = lift(_quotient, *self._products(node, x[0].shape, target, dims, inferred))
        return [tuple(dims)]

    def _is_code(self, node: Node, target: Element) -> bool:
        """Whether a target may come out as -1 or 0, which mean something else: a number that only execution tells."""
        least = 0 if node.attrs.get("allowzero", 0) else 1
        return isinstance(target, Dim) and target.is_signed and ge(target, least) is not True

    def _counted(self, node: Node, target: Sequence[Element]) -> list[int]:
        """The dims that are left to `count`: those, and a -1 beside them."""
        codes = [i for i, t in enumerate(target) if self._is_code(node, t)]
        return [i for i, t in enumerate(target) if i in codes or (codes and isinstance(t, Dim) and t == -1)]

    def _copies(self, node: Node, target: Element) -> bool:
        return isinstance(target, Dim) and target == 0 and not node.attrs.get("allowzero", 0)

    def _target_dims(
        self, node: Node, source: tuple[Element, ...], target: Sequence[Element]
    ) -> tuple[list[Element], int | None]:
        """The output's dims with 1 in the place of -1, and that place."""
        dims = list(target)
        inferred = [i for i, t in enumerate(target) if isinstance(t, Dim) and t == -1]
        if len(inferred) > 1:
            raise ModelError(
                f"Reshape (node {node.name!r}): the target has {len(inferred)} dims of -1; at most one is allowed"
            )
        for i, t in enumerate(target):
            if self._copies(node, t):
                if i >= len(source):
                    raise ModelError(
                        f"Reshape (node {node.name!r}): dim {i} is to be copied from a tensor of rank {len(source)}"
                    )
                dims[i] = source[i]
        if inferred:
            dims[inferred[0]] = as_dim(1)
        return dims, inferred[0] if inferred else None

    def _products(
        self, node: Node, source: tuple[Element, ...], target: Sequence[Element], dims: Sequence[Element], inferred: int
    ) -> tuple[Element, Element]:
        """Numbers of elements of the input and of the output's other dims, without the dims that are copied."""
        copied = {i for i, t in enumerate(target) if self._copies(node, t)}
        given = [d for i, d in enumerate(source) if i not in copied]
        others = [d for i, d in enumerate(dims) if i not in copied and i != inferred]
        return product(given), product(others)

    def guards(self, node: Node, x: Facts, y: Facts) -> list[tuple[Dim, Dim]]:
        source, sizes, out = x[0], x[1], y[0]
        target = integers(sizes)
        if source is None or not isinstance(source.shape, tuple) or out is None or not isinstance(out.shape, tuple):
            return []
        pairs: list[tuple[Dim, Dim]] = []
        for i, t in enumerate(target or ()):
            if isinstance(t, Dim) and not t.is_constant and not self._is_code(node, t):
                pairs += self._sign_guards(node, t, source.shape[i] if i < len(source.shape) else NAC)
        before, after = product(source.shape), product(out.shape)
        if isinstance(before, Dim) and isinstance(after, Dim) and eq(before, after) is not True:
            pairs.append((after, before))
        return pairs

    def _sign_guards(self, node: Node, target: Dim, copied: Element) -> list[tuple[Dim, Dim]]:
        """A symbolic target is taken as a size: it must not come out as -1, and as 0 only where that copies a 0."""
        if node.attrs.get("allowzero", 0) or target == copied:
            pair = (maximum(target, 0), target)
        elif isinstance(copied, Dim) and ge(target, 0) and ge(copied, 1) is not True:
            pair = (minimum(copied, 1) * (1 - minimum(target, 1)), as_dim(0))
        else:
            pair = (maximum(target, 1), target)
        return [] if eq(*pair) is True else [pair]

    def count(self, node: Node, k: Counting, x: Facts, y: Facts) -> str:
        """The dims of a target that only execution tells, by the meaning of its numbers."""
        assert x[0] is not None
        source, target = x[0].dims, [t for t in integers(x[1]) or [] if isinstance(t, Dim)]
        copies = "0" if node.attrs.get("allowzero", 0) else "target[i] == 0"
        return "\n".join(
            [
                f"const int64_t source[] = {{{', '.join([*map(k.c, source), '0'])}}};",
                f"int64_t target[] = {{{', '.join(map(k.c, target))}}};",
                "int64_t inferred = -1, given = 1, others = 1; /* elements, without the dims that are copied */",
                "int overflow = 0;",
                f"for (int64_t i = 0; i < {len(source)}; i++)",
                f"  if (i >= {len(target)} || !({copies})) given = sod2_mul(given, source[i], &overflow);",
                f"for (int64_t i = 0; i < {len(target)}; i++) {{",
                f"  if (target[i] < -1 || (target[i] == -1 && inferred >= 0) || ({copies} && i >= {len(source)}))",
                f"    {k.refuse('a target of Reshape below -1, with two -1, or with a 0 that copies no dim')}",
                f"  if ({copies}) target[i] = source[i];",
                "  else if (target[i] == -1) inferred = i;",
                "  else others = sod2_mul(others, target[i], &overflow);",
                "}",
                f"if (inferred >= 0 && others == 0) {k.refuse('a target of Reshape with -1 beside 0')}",
                "if (inferred >= 0) target[inferred] = given / others;",
                *(f"{k.minted(0, i)} = target[{i}];" for i in self._counted(node, target)),
            ]
        )

    def shape_back(self, node: Node, x: Facts, y: Facts) -> list[Shape]:
        """A single unknown dim of the input follows from the number of elements."""
        claims: list[Shape] = [UNDEF] * len(node.inputs)
        source, out = x[0], y[0]
        if source is None or out is None or not isinstance(source.shape, tuple) or not isinstance(out.shape, tuple):
            return claims
        unknown = [i for i, d in enumerate(source.shape) if not isinstance(d, Dim)]
        total = product(out.shape)
        others = product(d for d in source.shape if isinstance(d, Dim))
        if len(unknown) == 1 and isinstance(total, Dim) and isinstance(others, Dim):
            quotient = exact_div(total, others)
            claim: list[Element] = [UNDEF] * len(source.shape)
            claim[unknown[0]] = UNDEF if quotient is None else quotient
            claims[0] = tuple(claim)
        return claims

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        x, shape = arrays
        assert x is not None and shape is not None
        dims = [int(n) for n in shape]
        if not node.attrs.get("allowzero", 0):
            dims = [x.shape[i] if n == 0 else n for i, n in enumerate(dims)]
        return [x.reshape(dims)]

    def examples(self) -> Examples:
        x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
        for target in ([4, 6], [0, -1], [-1], [0, 0, 2, -1], [2, 3, 1, 4, 1], [3, 2, 4]):
            yield {}, [x, np.array(target, np.int64)]
        yield {"allowzero": 1}, [np.zeros((0, 3), np.float32), np.array([3, 0], np.int64)]
        yield {}, [np.zeros((0, 3), np.float32), np.array([0, 3, 1], np.int64)]
        yield {}, [np.ones((1, 1), np.float32), np.zeros(0, np.int64)]
        yield {}, [np.arange(6), np.array([2, -1], np.int64)]


def _quotient(total: Dim, others: Dim) -> Dim | None:
    if others.is_constant and others == 0:
        return None
    exact = exact_div(total, others, nonzero=True)
    return floordiv(total, others, nonzero=True) if exact is None else exact


@register()
class Squeeze(View):
    """Drops dims of 1: those of `axes`, or all. Without axes the rank is known only when every dim is decided."""

    shape_inputs = (1,)

    def _dropped(self, node: Node, x: Facts) -> tuple[int, ...] | Nac:
        assert x[0] is not None and isinstance(x[0].shape, tuple)
        axes = axes_of(node, x, 1, len(x[0].shape))
        if axes is not None:
            return axes
        kept = node.attrs.get("kept", ())  # ranks.py: in this branch they are not 1
        ones = [i not in kept and (eq(d, 1) if isinstance(d, Dim) else None) for i, d in enumerate(x[0].shape)]
        return NAC if None in ones else tuple(i for i, one in enumerate(ones) if one)

    def shape(self, node: Node, x: Facts) -> list[Shape]:
        assert x[0] is not None and isinstance(x[0].shape, tuple)
        found = self._dropped(node, x)
        if isinstance(found, Nac):
            axes = axis_values(present(x, 1), len(x[0].shape)) if present(x, 1) is not None else None
            return [NAC if axes is None else dropped(x[0].shape, axes)]
        return [tuple(d for i, d in enumerate(x[0].shape) if i not in found)]

    def guards(self, node: Node, x: Facts, y: Facts) -> list[tuple[Dim, Dim]]:
        assert x[0] is not None and isinstance(x[0].shape, tuple)
        found = self._dropped(node, x)
        if isinstance(found, Nac):
            return axis_guards(present(x, 1), len(x[0].shape))
        return [(d, as_dim(1)) for i in found if isinstance(d := x[0].shape[i], Dim) and d != 1]

    def shape_back(self, node: Node, x: Facts, y: Facts) -> list[Shape]:
        claims: list[Shape] = [UNDEF] * len(node.inputs)
        if x[0] is None or not isinstance(x[0].shape, tuple) or y[0] is None or not isinstance(y[0].shape, tuple):
            return claims
        found = self._dropped(node, x)
        if not isinstance(found, Nac):
            kept = iter(y[0].shape)
            claims[0] = tuple(as_dim(1) if i in found else next(kept) for i in range(len(x[0].shape)))
        return claims

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        assert arrays[0] is not None
        axes = given_axes(node, arrays, 1)
        return [arrays[0].squeeze() if axes is None else arrays[0].squeeze(axes)]

    def examples(self) -> Examples:
        x = np.arange(6, dtype=np.float32).reshape(1, 2, 1, 3, 1)
        yield {}, [x]
        yield {}, [x, np.array([0, -1], np.int64)]
        yield {}, [x, np.array([2], np.int64)]
        yield {}, [np.zeros((0, 1), np.float32), np.array([1], np.int64)]
        yield {}, [np.array([[5]]), np.array([0], np.int64)]


@register()
class Unsqueeze(View):
    """Inserts dims of 1 at `axes`, counted in the output."""

    shape_inputs = (1,)

    def _inserted(self, node: Node, x: Facts) -> tuple[int, ...] | Nac:
        assert x[0] is not None and isinstance(x[0].shape, tuple)
        given = node.attrs["axes"] if "axes" in node.attrs else constant_integers(present(x, 1))
        if given is None:
            return NAC
        return tuple(normal_axis(node, int(a), len(x[0].shape) + len(given)) for a in given)

    def shape(self, node: Node, x: Facts) -> list[Shape]:
        assert x[0] is not None and isinstance(x[0].shape, tuple)
        given = self._inserted(node, x)
        if isinstance(given, Nac):
            length = None if len(x) < 2 or x[1] is None else known_shape(x[1].shape)
            if length is None:
                return [NAC]
            rank = len(x[0].shape) + math.prod(length)
            axes = axis_values(x[1], rank)
            return [(NAC,) * rank if axes is None else inserted(x[0].shape, axes)]
        dims = iter(x[0].shape)
        return [tuple(as_dim(1) if i in given else next(dims) for i in range(len(x[0].shape) + len(given)))]

    def shape_back(self, node: Node, x: Facts, y: Facts) -> list[Shape]:
        claims: list[Shape] = [UNDEF] * len(node.inputs)
        if x[0] is None or not isinstance(x[0].shape, tuple) or y[0] is None or not isinstance(y[0].shape, tuple):
            return claims
        given = self._inserted(node, x)
        if not isinstance(given, Nac):
            claims[0] = tuple(d for i, d in enumerate(y[0].shape) if i not in given)
        return claims

    def guards(self, node: Node, x: Facts, y: Facts) -> list[tuple[Dim, Dim]]:
        return axis_guards(present(x, 1), y[0].rank) if y[0] is not None and y[0].rank is not None else []

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        axes = given_axes(node, arrays, 1)
        assert arrays[0] is not None and axes is not None
        return [np.expand_dims(arrays[0], axes)]

    def examples(self) -> Examples:
        x = np.arange(6, dtype=np.float32).reshape(2, 3)
        for axes in ([0], [1, -1], [2, 0], []):
            yield {}, [x, np.array(axes, np.int64)]
        yield {}, [np.zeros((0,), np.int64), np.array([1], np.int64)]
        yield {}, [np.array(3), np.array([0], np.int64)]


@register()
class Flatten(View):
    """A matrix: the dims before `axis` by those from it on."""

    def _axis(self, node: Node, rank: int) -> int:
        axis = int(node.attrs.get("axis", 1))
        return rank if axis == rank else normal_axis(node, axis, max(rank, 1))

    def shape(self, node: Node, x: Facts) -> list[Shape]:
        assert x[0] is not None and isinstance(x[0].shape, tuple)
        axis = self._axis(node, len(x[0].shape))
        return [(product(x[0].shape[:axis]), product(x[0].shape[axis:]))]

    def shape_back(self, node: Node, x: Facts, y: Facts) -> list[Shape]:
        """A side that is one dim is that dim."""
        if x[0] is None or not isinstance(x[0].shape, tuple) or y[0] is None or not isinstance(y[0].shape, tuple):
            return [UNDEF]
        rank = len(x[0].shape)
        axis = self._axis(node, rank)
        claim: list[Element] = [UNDEF] * rank
        if axis == 1:
            claim[0] = y[0].shape[0]
        if axis == rank - 1:
            claim[-1] = y[0].shape[1]
        return [tuple(claim)]

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        x = arrays[0]
        assert x is not None
        axis = self._axis(node, x.ndim)
        return [x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))]

    def examples(self) -> Examples:
        x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
        for axis in (0, 1, 2, 3, -1):
            yield {"axis": axis}, [x]
        yield {}, [np.zeros((2, 0, 3), np.float32)]
        yield {}, [np.zeros((5,), np.float32)]


@register()
class Identity(View):
    """The input itself."""

    mapping = MappingType.ONE_TO_ONE

    def shape(self, node: Node, x: Facts) -> list[Shape]:
        assert x[0] is not None
        return [x[0].shape] * len(node.outputs)

    def shape_back(self, node: Node, x: Facts, y: Facts) -> list[Shape]:
        return [UNDEF if y[0] is None else y[0].shape] + [UNDEF] * (len(node.inputs) - 1)

    def at(self, node: Node, e: Emitter, index: Sequence[Index], x: Facts, y: Facts) -> str:
        return e.load(0, index)

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        assert arrays[0] is not None
        return [arrays[0].copy()]

    def examples(self) -> Examples:
        yield {}, [np.arange(6, dtype=np.float32).reshape(2, 3)]
        yield {}, [np.zeros((0, 3), np.int64)]


@register()
class Dropout(Identity):
    """The identity: this is an inference engine. The mask, if asked for, is all true."""

    def dtype(self, node: Node, x: Facts) -> list[np.dtype[Any]]:
        return [*super().dtype(node, x)[:1], np.dtype(np.bool_)][: len(node.outputs)]

    def shape(self, node: Node, x: Facts) -> list[Shape]:
        mode = present(x, 2)
        if mode is not None and constant_integers(mode) != [0]:
            raise UnsupportedError(f"Dropout (node {node.name!r}) with training_mode {mode.value}; false is supported")
        return super().shape(node, x)

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        assert arrays[0] is not None
        return [arrays[0].copy(), np.ones(arrays[0].shape, bool)][: len(node.outputs)]

    def examples(self) -> Examples:
        for shape in ((2, 3), (0, 3), ()):
            yield {}, [np.ones(shape, np.float32)]
