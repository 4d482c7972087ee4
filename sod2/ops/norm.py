"""Normalisations: LayerNormalization, RMSNormalization, InstanceNormalization, GroupNormalization and
BatchNormalization (inference).

BatchNormalization is an element expression, since its statistics are inputs. The others have row kernels: one for each
of floats (runtime/rows.c), one for all of doubles (rows_double.c).
GroupNormalization takes one scale per channel (opset 21); opset 18's one per group is refused.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from sod2.dtypes import BY_NUMBER
from sod2.errors import ModelError, UnsupportedError
from sod2.graph import Node
from sod2.lattice import UNDEF, Shape
from sod2.ops.anchor import (
    Anchor,
    backwards,
    count,
    dims_of,
    f32,
    in_float,
    initializer,
    is_double,
    known_dims,
    must_equal,
    proved_shape,
    require_float32,
)
from sod2.ops.attributes import axis_of, present
from sod2.ops.elementwise import CType, broadcast_index
from sod2.ops.op import Array, Call, Emitter, Fact, Facts, Index, MappingType, Op, register
from sod2.symbolic import Dim, as_dim, eq

_FLOAT32 = 1  # onnx.TensorProto.FLOAT


def epsilon_of(node: Node) -> float:
    """The attribute epsilon; 1e-5 by default."""
    return float(node.attrs.get("epsilon", 1e-5))


def pointer_or_null(k: Call, x: Facts, i: int) -> str:
    """C pointer of an optional input."""
    return "NULL" if present(x, i) is None else k.pointer(i)


def double_norm(node: Node, k: Call, x: Facts, rows: Dim, n: Dim, **others: object) -> str:
    """The call of the kernel of doubles; `others` are fields of its struct."""
    fields: dict[str, object] = {"rows": k.c(rows), "n": k.c(n), "period": 1, "step": 0, "span": 1, "centred": 1}
    fields |= {"epsilon": repr(epsilon_of(node)), "x": k.pointer(0), "scale": k.pointer(1)}
    fields |= {"bias": pointer_or_null(k, x, 2), "y": k.result(), **others}
    k.setup(initializer("g", "sod2_normalisation_double", **fields))
    return "sod2_normalise_double(&g, pool);"


@register()
class LayerNormalization(Anchor):
    """Normalises over the dims from `axis` on; the outputs are y and optionally mean and 1/sqrt(variance + epsilon)."""

    mapping = MappingType.MANY_TO_MANY

    def dtype(self, node: Node, x: Facts) -> list[np.dtype[Any]]:
        assert x[0] is not None
        stash = BY_NUMBER[int(node.attrs.get("stash_type", _FLOAT32))]
        return [x[0].dtype, stash, stash][: len(node.outputs)]

    def shape(self, node: Node, x: Facts) -> list[Shape]:
        dims = dims_of(x[0])
        axis = axis_of(node, len(dims), -1)
        statistics: Shape = (*dims[:axis], *[as_dim(1)] * (len(dims) - axis))
        return [dims, statistics, statistics][: len(node.outputs)]

    def shape_back(self, node: Node, x: Facts, y: Facts) -> list[Shape]:
        return backwards(node, [with_scale(proved_shape(y[0]), x[1])])

    def guards(self, node: Node, x: Facts, y: Facts) -> list[tuple[Dim, Dim]]:
        return operand_guards(x)

    def is_anchor(self, node: Node, x: Facts) -> bool:
        """The kernels take a scale and a bias as large as what is normalised."""
        return (in_float(x) or is_double(x)) and is_full(x, axis_of(node, len(dims_of(x[0])), -1))

    def at(self, node: Node, e: Emitter, index: Sequence[Index], x: Facts, y: Facts) -> str:
        assert x[0] is not None and y[0] is not None
        if any(node.outputs[1:]):
            raise UnsupportedError(
                f"{node.op} (node {node.name!r}) gives statistics and has a broadcast scale; "
                "with a scale of the normalised dims they are supported"
            )
        axis = axis_of(node, len(x[0].dims), -1)
        sizes, wide = x[0].dims[axis:], np.dtype(np.float64)
        n = f"(double){e.c(count(sizes))}"

        def other(k: Sequence[Any]) -> str:
            return e.load(0, [*index[:axis], *k])

        total = e.fold(wide, "0", sizes, lambda k, total: f"{total} + {other(k)}")
        mean = e.local(wide, f"{total} / {n}")
        square = e.fold(wide, "0", sizes, lambda k, total: f"{total} + ({other(k)} - {mean}) * ({other(k)} - {mean})")
        value = f"({e.load(0, index)} - {mean}) / sqrt({square} / {n} + {epsilon_of(node)!r})"
        for i, sign in ((1, "*"), (2, "+")):
            if (fact := present(x, i)) is not None:
                value = f"{value} {sign} {e.load(i, broadcast_index(e, index, fact, y[0]))}"
        return f"(({e.element(x[0].dtype)})({value}))"

    def call(self, node: Node, k: Call, x: Facts, y: Facts) -> str:
        dims = known_dims(x[0])
        axis = axis_of(node, len(dims), -1)
        require_full(node, x, axis)
        wanted = [i for i, name in enumerate(node.outputs) if name]
        require_float32(node, *(y[i] for i in wanted if i > 0))
        results = [k.result(i) if i in wanted else "NULL" for i in range(3)]
        if is_double(x):
            mean, inv_std = results[1:]
            return double_norm(node, k, x, count(dims[:axis]), count(dims[axis:]), mean=mean, inv_std=inv_std)
        require_float32(node, *x)
        operands = ", ".join([k.pointer(0), k.pointer(1), pointer_or_null(k, x, 2), *results])
        return (
            f"sod2_layer_norm({operands}, {k.c(count(dims[:axis]))}, {k.c(count(dims[axis:]))}, "
            f"{f32(epsilon_of(node))}, {', '.join(k.epilogue())}, pool);"
        )

    def space(self, node: Node, x: Facts, y: Facts) -> tuple[int, int] | None:
        return None if any(node.outputs[1:]) or is_double(x) else (0, axis_of(node, len(known_dims(y[0])), -1))

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        x, scale, *rest = arrays
        assert x is not None and scale is not None
        axes = tuple(range(int(node.attrs.get("axis", -1)) % x.ndim, x.ndim))
        wide = x.astype(np.float64)
        mean = wide.mean(axis=axes, keepdims=True)
        inverse = 1 / np.sqrt(((wide - mean) ** 2).mean(axis=axes, keepdims=True) + epsilon_of(node))
        y = (wide - mean) * inverse * scale
        if rest and rest[0] is not None:
            y = y + rest[0]
        stash = BY_NUMBER[int(node.attrs.get("stash_type", _FLOAT32))]
        return [y.astype(x.dtype), mean.astype(stash), inverse.astype(stash)][: len(node.outputs)]

    def examples(self) -> Iterable[tuple[Mapping[str, Any], Sequence[Array | None]]]:
        random = np.random.default_rng(13)
        cases: list[tuple[Mapping[str, Any], tuple[int, ...], int]] = [
            ({}, (2, 3, 40), 2),
            ({"axis": 1, "epsilon": 1e-3}, (2, 3, 4), 1),
            ({"axis": -2}, (2, 3, 4), 1),
            ({}, (1, 1), 1),
            ({}, (0, 5), 1),
        ]
        for attributes, shape, axis in cases:
            x, scale, bias = (random.standard_normal(s).astype(np.float32) for s in (shape, shape[axis:], shape[axis:]))
            yield attributes, [x, scale, bias]
            yield attributes, [x, scale]
        x = random.standard_normal((2, 3, 4)).astype(np.float32)
        yield {"axis": 1}, [x, np.arange(4, dtype=np.float32), np.ones(4, np.float32)]
        yield {"axis": 1}, [x.astype(np.float64), np.ones(4), np.arange(4.0)]


def is_full(x: Facts, axis: int) -> bool:
    """Whether scale and bias are not broadcast along the normalised dims, as far as that is known."""
    dims = dims_of(x[0])[axis:]
    for fact in x[1:]:
        own = dims_of(fact) if fact is not None else dims
        padded = (as_dim(1),) * (len(dims) - len(own)) + own
        if any(d == 1 and target != 1 for d, target in zip(padded[len(padded) - len(dims) :], dims, strict=True)):
            return False
    return True


def require_full(node: Node, x: Facts, axis: int) -> None:
    """UnsupportedError where scale or bias would have to be broadcast along the normalised dims, which the kernel does
    not do. A dim that is not provably 1 is guarded to be that of x."""
    normalised = known_dims(x[0])[axis:]
    for fact in x[1:]:
        dims = known_dims(fact) if fact is not None else normalised
        padded = (as_dim(1),) * (len(normalised) - len(dims)) + dims
        if any(d == 1 != target for d, target in zip(padded[-len(normalised) :], normalised, strict=True)):
            raise UnsupportedError(
                f"{node.op} (node {node.name!r}) has a scale or bias {fact} that would be broadcast over {normalised}"
            )


def operand_guards(x: Facts) -> list[tuple[Dim, Dim]]:
    """Each dim of scale and bias is 1 or that of x."""
    pairs: list[tuple[Dim, Dim]] = []
    for fact in x[1:]:
        if fact is not None:
            for d, target in zip(reversed(dims_of(fact)), reversed(dims_of(x[0])), strict=False):
                pairs += must_equal(d, target) if d != 1 else []
    return pairs


def with_scale(shape: Shape, scale: Fact | None) -> Shape:
    """What the scale's dims prove about x, whose shape is proved to be `shape`: a dim that can't be 1 is that of x."""
    if not isinstance(shape, tuple) or scale is None or not isinstance(scale.shape, tuple):
        return shape
    dims = list(shape)
    for k, d in enumerate(reversed(scale.shape[-len(shape) :] if shape else ()), start=1):
        if isinstance(d, Dim) and eq(d, 1) is False:
            dims[-k] = d
    return tuple(dims)


@register()
class RMSNormalization(Anchor):
    """x / sqrt(mean of squares + epsilon) * scale over the dims from `axis` on."""

    mapping = MappingType.MANY_TO_MANY

    def shape(self, node: Node, x: Facts) -> list[Shape]:
        dims = dims_of(x[0])
        axis_of(node, len(dims), -1)
        return [dims]

    def shape_back(self, node: Node, x: Facts, y: Facts) -> list[Shape]:
        return backwards(node, [with_scale(proved_shape(y[0]), x[1])])

    def guards(self, node: Node, x: Facts, y: Facts) -> list[tuple[Dim, Dim]]:
        return operand_guards(x)

    def call(self, node: Node, k: Call, x: Facts, y: Facts) -> str:
        dims = known_dims(x[0])
        axis = axis_of(node, len(dims), -1)
        require_full(node, x, axis)
        if is_double(x):
            return double_norm(node, k, x, count(dims[:axis]), count(dims[axis:]), centred=0)
        require_float32(node, *x)
        sizes = f"{k.c(count(dims[:axis]))}, {k.c(count(dims[axis:]))}"
        end = f"{f32(epsilon_of(node))}, {', '.join(k.epilogue())}, pool"
        return f"sod2_rms_norm({k.pointer(0)}, {k.pointer(1)}, {k.result()}, {sizes}, {end});"

    def space(self, node: Node, x: Facts, y: Facts) -> tuple[int, int] | None:
        return None if is_double(x) else (0, axis_of(node, len(known_dims(y[0])), -1))

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        x, scale = arrays
        assert x is not None and scale is not None
        axes = tuple(range(int(node.attrs.get("axis", -1)) % x.ndim, x.ndim))
        wide = x.astype(np.float64)
        return [
            (wide / np.sqrt((wide * wide).mean(axis=axes, keepdims=True) + epsilon_of(node)) * scale).astype(x.dtype)
        ]

    def examples(self) -> Iterable[tuple[Mapping[str, Any], Sequence[Array | None]]]:
        random = np.random.default_rng(14)
        for attributes, shape, axis in [
            ({}, (2, 3, 40), 2),
            ({"axis": 1}, (2, 3, 4), 1),
            ({}, (1, 1), 1),
            ({}, (0, 5), 1),
        ]:
            yield attributes, [random.standard_normal(s).astype(np.float32) for s in (shape, shape[axis:])]


class ChannelNormalization(Anchor):
    """Rules of normalisations whose scale and bias run along dim 1 of x [N, C, spatial...]."""

    mapping = MappingType.MANY_TO_MANY

    def groups(self, node: Node, channels: Dim) -> Dim:
        """Number of groups of channels that share statistics."""
        raise NotImplementedError

    def shape(self, node: Node, x: Facts) -> list[Shape]:
        return [dims_of(x[0])]

    def shape_back(self, node: Node, x: Facts, y: Facts) -> list[Shape]:
        return backwards(node, [proved_shape(y[0])])

    def guards(self, node: Node, x: Facts, y: Facts) -> list[tuple[Dim, Dim]]:
        channels = dims_of(x[0])[1]
        return [pair for f in x[1:] if f is not None for pair in must_equal(channels, dims_of(f)[0])]

    def call(self, node: Node, k: Call, x: Facts, y: Facts) -> str:
        if is_double(x):
            n, c, *sizes = known_dims(x[0])
            groups, spatial = self.groups(node, c), count(sizes)
            own = as_dim(1) if groups == c else c // groups
            fields = {"period": k.c(groups), "step": k.c(own), "span": k.c(spatial)}
            return double_norm(node, k, x, n * groups, own * spatial, **fields)
        k.setup(self.declare(node, k, x))
        return f"sod2_group_norm(&norm, {k.result()}, {', '.join(k.epilogue())}, pool);"

    def affine_bytes(self, k: Call, x: Facts) -> str:
        """C of the size of what the statistics come to, a sod2_affine for each channel of each image."""
        n, c, *_ = known_dims(x[0])
        return f"(int64_t)sizeof(sod2_affine) * {k.c(n * c)}"

    def declare(self, node: Node, k: Call, x: Facts, **more: str) -> str:
        """C declaration of the argument struct `norm`; with `more` fields, of a result computed on load."""
        require_float32(node, *x)
        n, c, *sizes = known_dims(x[0])
        dims = {"batch": n, "channels": c, "groups": self.groups(node, c), "spatial": count(sizes)}
        fields = {"x": k.pointer(0), "scale": k.pointer(1), "bias": k.pointer(2)}
        fields |= {name: k.c(d) for name, d in dims.items()}
        return initializer("norm", "sod2_norm", **fields, epsilon=f32(epsilon_of(node)), **more)

    def space(self, node: Node, x: Facts, y: Facts) -> tuple[int, int] | None:
        return None if is_double(x) else (1, 2)

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        x, scale, bias = arrays
        assert x is not None and scale is not None and bias is not None
        groups = int(self.groups(node, as_dim(x.shape[1])))
        wide = x.astype(np.float64).reshape(x.shape[0], groups, -1)
        mean, variance = wide.mean(axis=2, keepdims=True), wide.var(axis=2, keepdims=True)
        normal = ((wide - mean) / np.sqrt(variance + epsilon_of(node))).reshape(x.shape)
        shape = (1, -1, *[1] * (x.ndim - 2))
        return [(normal * scale.reshape(shape) + bias.reshape(shape)).astype(x.dtype)]


@register()
class InstanceNormalization(ChannelNormalization):
    """Each channel of each image has its own statistics."""

    def groups(self, node: Node, channels: Dim) -> Dim:
        return channels

    def examples(self) -> Iterable[tuple[Mapping[str, Any], Sequence[Array | None]]]:
        random = np.random.default_rng(15)
        for attributes, shape in [({}, (2, 3, 4, 5)), ({"epsilon": 1e-2}, (1, 4, 9)), ({}, (1, 1, 2, 2))]:
            yield attributes, [random.standard_normal(s).astype(np.float32) for s in (shape, shape[1:2], shape[1:2])]


@register()
class GroupNormalization(ChannelNormalization):
    """num_groups runs of channels have their own statistics."""

    def groups(self, node: Node, channels: Dim) -> Dim:
        return as_dim(int(node.attrs["num_groups"]))

    def guards(self, node: Node, x: Facts, y: Facts) -> list[tuple[Dim, Dim]]:
        channels = dims_of(x[0])[1]
        if x[1] is not None and dims_of(x[1])[0] == self.groups(node, as_dim(0)) != channels:
            raise UnsupportedError(
                f"GroupNormalization (node {node.name!r}) has one scale per group; one per channel is supported"
            )
        return super().guards(node, x, y)

    def examples(self) -> Iterable[tuple[Mapping[str, Any], Sequence[Array | None]]]:
        random = np.random.default_rng(16)
        for groups, shape in [(2, (2, 6, 4, 5)), (1, (1, 4, 9)), (4, (1, 4, 2, 2)), (1, (1, 1, 1, 1))]:
            arrays = [random.standard_normal(s).astype(np.float32) for s in (shape, shape[1:2], shape[1:2])]
            yield {"num_groups": groups}, arrays


@register()
class BatchNormalization(Op):
    """(x - mean) / sqrt(variance + epsilon) * scale + bias along dim 1, with given statistics (inference)."""

    mapping = MappingType.ONE_TO_ONE
    cost = 4

    def shape(self, node: Node, x: Facts) -> list[Shape]:
        if node.attrs.get("training_mode", 0):
            raise UnsupportedError(
                f"BatchNormalization (node {node.name!r}) is in training mode; inference is supported"
            )
        return [dims_of(x[0]), *[dims_of(x[3])] * (len(node.outputs) - 1)]

    def shape_back(self, node: Node, x: Facts, y: Facts) -> list[Shape]:
        shape = proved_shape(y[0])
        channels: Shape = shape[1:2] if isinstance(shape, tuple) and len(shape) > 1 else UNDEF
        return backwards(node, [shape, *[channels] * 4])

    def guards(self, node: Node, x: Facts, y: Facts) -> list[tuple[Dim, Dim]]:
        dims = dims_of(x[0])
        if len(dims) < 2:
            raise ModelError(f"BatchNormalization (node {node.name!r}) of {x[0]} needs two dims or more")
        return [pair for f in x[1:] if f is not None for pair in must_equal(dims[1], dims_of(f)[0])]

    def at(self, node: Node, e: Emitter, index: Sequence[Index], x: Facts, y: Facts) -> str:
        assert x[0] is not None
        c = CType(x[0].dtype, e.element(x[0].dtype))
        value = e.load(0, index)
        scale, bias, mean, variance = (e.load(i, index[1:2]) for i in range(1, 5))
        root = c.functions(f"~sqrt({variance} + {c.number(epsilon_of(node))})")
        return f"(({value} - {mean}) * ({scale} / {root}) + {bias})"

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        x = arrays[0]
        assert x is not None
        shape = (1, -1, *[1] * (x.ndim - 2))
        scale, bias, mean, variance = (a.astype(np.float64).reshape(shape) for a in arrays[1:] if a is not None)
        return [((x - mean) / np.sqrt(variance + epsilon_of(node)) * scale + bias).astype(x.dtype)]

    def examples(self) -> Iterable[tuple[Mapping[str, Any], Sequence[Array | None]]]:
        random = np.random.default_rng(17)
        for attributes, shape in [({}, (2, 3, 4, 5)), ({"epsilon": 1e-2}, (1, 4)), ({}, (1, 1, 1, 1)), ({}, (0, 2, 3))]:
            x, scale, bias, mean = (random.standard_normal(s).astype(np.float32) for s in (shape, *[shape[1:2]] * 3))
            yield attributes, [x, scale, bias, mean, random.uniform(0.5, 2, shape[1]).astype(np.float32)]
