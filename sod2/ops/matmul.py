"""Matrix products: MatMul (numpy's rules, batches broadcast) and Gemm (2-D, transposes, alpha, beta, C).

Both run on one kernel (runtime/gemm.c) that wants B packed in panels: a constant B is packed at compile time, any other
at run time into scratch. When one B serves all batches of A, the batches are folded into rows: one large product.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from sod2.dtypes import is_float
from sod2.errors import UnsupportedError
from sod2.graph import Node
from sod2.lattice import UNDEF, Shape, same_dims
from sod2.ops.anchor import (
    Anchor,
    Bias,
    backwards,
    count,
    dims_of,
    f32,
    in_float,
    initializer,
    known_dims,
    must_equal,
    proved,
    proved_shape,
    require_float32,
)
from sod2.ops.attributes import present
from sod2.ops.direct import accumulator
from sod2.ops.elementwise import CType, broadcast_back, broadcast_guards, broadcast_index, broadcast_shapes
from sod2.ops.lift import Element
from sod2.ops.op import Array, Call, Emitter, Fact, Facts, Index, MappingType, register
from sod2.packing import gemm_b
from sod2.symbolic import Dim, as_dim

Pair = tuple[Dim, Dim]


@register()
class MatMul(Anchor):
    """Batched matrix product; a 1-D operand is a row (left) or a column (right) whose dim of 1 is dropped again."""

    mapping = MappingType.MANY_TO_MANY

    def shape(self, node: Node, x: Facts) -> list[Shape]:
        a, b = dims_of(x[0]), dims_of(x[1])
        if not a or not b:
            raise UnsupportedError(f"MatMul (node {node.name!r}) of a scalar; operands have one dim or more")
        rows = () if len(a) == 1 else (a[-2],)
        columns = () if len(b) == 1 else (b[-1],)
        return [(*broadcast_shapes([a[:-2], b[:-2]]), *rows, *columns)]

    def shape_back(self, node: Node, x: Facts, y: Facts) -> list[Shape]:
        a, b = proved_shape(x[0]), proved_shape(x[1])
        if not isinstance(a, tuple) or not isinstance(b, tuple):
            return [UNDEF] * len(node.inputs)
        rows, columns = len(a) > 1, len(b) > 1
        batch = max(len(a), len(b), 2) - 2
        out = proved(y[0], batch + rows + columns)
        left, right = broadcast_back([a[:-2], b[:-2]], out[:batch])
        assert isinstance(left, tuple) and isinstance(right, tuple)
        inner = b[-2] if columns else b[0]
        return [
            (*left, *(out[batch : batch + 1] if rows else ()), inner),
            (*right, a[-1], *out[len(out) - columns :]),
        ]

    def guards(self, node: Node, x: Facts, y: Facts) -> list[tuple[Dim, Dim]]:
        a, b = dims_of(x[0]), dims_of(x[1])
        inner = must_equal(a[-1], b[0] if len(b) == 1 else b[-2])
        return inner + broadcast_guards([a[:-2], b[:-2]])

    def space(self, node: Node, x: Facts, y: Facts) -> tuple[int, int] | None:
        a, b = dims_of(x[0]), dims_of(x[1])
        if len(a) < 2 or len(b) < 2:
            return None
        batching = batch_of(x)
        rank = max(len(a), len(b))
        return None if batching is None else ((0 if batching == "rows" else rank - 2), rank - 1)

    def is_anchor(self, node: Node, x: Facts) -> bool:
        return in_float(x)

    def at(self, node: Node, e: Emitter, index: Sequence[Index], x: Facts, y: Facts) -> str:
        assert x[0] is not None and x[1] is not None
        total = product(e, index, x[0], x[1], dtype=accumulator(x[0].dtype), load=e.load)
        return f"(({e.element(x[0].dtype)}){total})"

    def call(self, node: Node, k: Call, x: Facts, y: Facts) -> str:
        require_float32(node, *x)
        a, b = known_dims(x[0]), known_dims(x[1])
        m = a[-2] if len(a) > 1 else as_dim(1)
        depth, n = b[-2:] if len(b) > 1 else (b[0], as_dim(1))
        batching = batch_of(x)
        before, panels = right_operand(node, k, x, (depth, n), (n, as_dim(1)))
        fields = {"m": m, "n": n, "k": depth, "lda": depth, "ldo": n}
        if batching == "rows":
            fields |= {"batch": as_dim(1), "m": count(a[:-2]) * m}
        else:
            own_a = depth * m if batching == "left" else as_dim(0)
            batch = {None: as_dim(1), "left": count(a[:-2]), "right": count(b[:-2])}[batching]
            fields |= {"batch": batch, "a_batch": own_a, "out_batch": m * n, "b_count": count(b[:-2])}
        shared = batching in ("rows", None)
        k.setup(gemm_struct(k, fields, "0" if shared else f"sod2_gemm_packed_floats({k.c(depth)}, {k.c(n)})"))
        if batching is None:
            return f"{before}{batch_loops(k, a, b, panels)}"
        return f"{before}g.b = {panels};\nsod2_gemm_run(&g, pool);"

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        a, b = arrays
        assert a is not None and b is not None
        wide = np.float64 if is_float(a.dtype) else a.dtype
        return [np.asarray(np.matmul(a.astype(wide), b.astype(wide))).astype(a.dtype)]

    def examples(self) -> Iterable[tuple[Mapping[str, Any], Sequence[Array | None]]]:
        random = np.random.default_rng(6)
        for left, right in [
            ((3, 4), (4, 5)),
            ((2, 3, 4), (4, 5)),
            ((2, 3, 4), (2, 4, 5)),
            ((3, 4), (2, 4, 5)),
            ((1, 3, 4), (2, 4, 5)),
            ((2, 3, 4), (1, 4, 5)),
            ((2, 1, 3, 4), (3, 4, 2)),
            ((2, 1, 3, 4), (1, 3, 4, 2)),
            ((2, 3, 5, 4), (3, 4, 2)),
            ((2, 3, 5, 4), (1, 3, 4, 2)),
            ((2, 3, 2, 5, 4), (3, 2, 4, 2)),
            ((2, 3, 5, 4), (2, 1, 4, 2)),
            ((4,), (4, 5)),
            ((3, 4), (4,)),
            ((4,), (4,)),
            ((4,), (2, 4, 3)),
            ((2, 3, 4), (4,)),
            ((1, 1), (1, 1)),
            ((0, 4), (4, 5)),
            ((3, 0), (0, 5)),
            ((1, 40), (40, 33)),
            ((17, 20), (20, 50)),
        ]:
            yield {}, [random.standard_normal(s).astype(np.float32) for s in (left, right)]
        for left, right in [((2, 1, 3, 4), (3, 4, 2)), ((4,), (2, 4, 3)), ((2, 3, 4), (4,)), ((3, 0), (0, 5))]:
            yield {}, [random.standard_normal(s) for s in (left, right)]
            yield {}, [random.integers(-9, 9, s, np.int32) for s in (left, right)]


def product(
    e: Emitter, index: Sequence[Index], a: Fact, b: Fact, *, dtype: np.dtype[Any], load: Callable[[int, list[Any]], str]
) -> str:
    """One element of a matrix product as an element expression: for element types that the kernel does not take."""
    rows, columns = len(a.dims) > 1, len(b.dims) > 1
    batch = index[: len(index) - rows - columns]
    row, column = index[len(batch) : len(batch) + rows], index[len(index) - columns :] if columns else []
    out = broadcast_shapes([a.dims[:-2], b.dims[:-2]])
    left, right = (
        broadcast_index(e, batch, Fact(f.dtype, f.dims[:-2]), Fact(f.dtype, out)) if len(f.dims) > 2 else []
        for f in (a, b)
    )

    def step(k: list[Any], total: str) -> str:
        return f"{total} + {load(0, [*left, *row, *k])} * {load(1, [*right, *k, *column])}"

    return e.fold(dtype, "0", [a.dims[-1]], step)


def batch_of(x: Facts) -> str | None:
    """How the kernel walks the batches: "rows" (one B for all: batches of A are more rows), "left" (each A takes the
    next B, in turn), "right" (one A for all B), or None when the broadcast is known only at run time or mixes these."""
    a, b = dims_of(x[0])[:-2], dims_of(x[1])[:-2]
    if not all(isinstance(d, Dim) for d in (*a, *b)):
        return None
    a, b = _without_ones(a), _without_ones(b)
    if all(d == 1 for d in b) and len(b) <= len(a):
        return "rows"
    if all(d == 1 for d in a) and len(a) <= len(b):
        return "right"
    if len(b) <= len(a) and same_dims(a[len(a) - len(b) :], b):
        return "left"
    return None


def _without_ones(batch: tuple[Element, ...]) -> tuple[Element, ...]:
    """Batch dims without leading ones, which change nothing."""
    return _without_ones(batch[1:]) if batch and batch[0] == 1 else batch


def gemm_struct(k: Call, sizes: Mapping[str, Dim], b_batch: str) -> str:
    """Declaration of the kernel's argument struct without B, which may only exist when the step runs."""
    epilogue, arguments = k.epilogue()
    fields: dict[str, object] = {"a_col": 1, **{name: k.c(value) for name, value in sizes.items()}}
    fields |= {"a": k.pointer(0), "b_batch": b_batch, "out": k.result(), "touched": k.touched()}
    return initializer("g", "sod2_gemm", **fields, epilogue=epilogue, epilogue_args=arguments)


def right_operand(node: Node, k: Call, x: Facts, size: Pair, step: Pair) -> tuple[str, str]:
    """Statements that pack B (and alpha) if that has to happen at run time, and the C pointer to the packed B.

    `size`: rows and columns of one batch of B; its element (i, j) lies at i * step[0] + j * step[1].
    """
    alpha = float(node.attrs.get("alpha", 1.0))
    transposed = bool(node.attrs.get("transB", 0))
    known = x[1].known_value if x[1] is not None else None
    if known is not None:
        matrix = known.reshape(*known.shape, 1) if known.ndim == 1 else known.T if transposed else known
        layout = f"gemm{' transposed' if transposed else ''}{f' * {alpha}' if alpha != 1 else ''}"
        stacked = matrix.reshape(math.prod(matrix.shape[:-2]), *matrix.shape[-2:])
        scaled = stacked if alpha == 1 else stacked * np.float32(alpha)
        return "", k.packed(1, layout, lambda: gemm_b(scaled, k.tile.nr))
    batches = count(known_dims(x[1])[:-2])
    sizes, steps = ", ".join(map(k.c, size)), ", ".join(map(k.c, step))
    floats = f"{k.c(batches)} * sod2_gemm_packed_floats({sizes})"
    scratch = k.scratch(f"{floats} * (int64_t)sizeof(float)")
    lines = [
        f"float *packed = {scratch};",
        f"for (int64_t i = 0; i < {k.c(batches)}; i++)",
        f"  sod2_gemm_pack_b({k.pointer(1)} + i * {k.c(size[0] * size[1])}, {sizes}, {steps},",
        f"                   packed + i * sod2_gemm_packed_floats({sizes}), pool);",
    ]
    if alpha != 1:
        lines.append(f"for (int64_t i = 0; i < {floats}; i++) packed[i] *= {f32(alpha)};")
    return "\n".join(lines) + "\n", "packed"


def batch_loops(k: Call, a: Sequence[Dim], b: Sequence[Dim], panels: str) -> str:
    """One product at a time, over batches whose broadcast is known only at run time or mixes both operands."""
    m = a[-2] if len(a) > 1 else as_dim(1)
    depth, n = b[-2:] if len(b) > 1 else (b[0], as_dim(1))
    out = [d for d in broadcast_shapes([tuple(a[:-2]), tuple(b[:-2])]) if isinstance(d, Dim)]
    loops = [f"for (int64_t i{i} = 0; i{i} < {k.c(d)}; i{i}++)" for i, d in enumerate(out)]

    def batch(dims: Sequence[Dim]) -> str:
        terms = []
        for i, d in enumerate(dims):
            step, index = count(dims[i + 1 :]), f"i{len(out) - len(dims) + i}"
            terms.append(f"({k.c(d)} == 1 ? 0 : {index} * {k.c(step)})")
        return " + ".join(terms) or "0"

    result = " + ".join(f"i{i} * {k.c(count(out[i + 1 :]))}" for i in range(len(out))) or "0"
    body = [
        f"g.a = {k.pointer(0)} + ({batch(a[:-2])}) * {k.c(m * depth)};",
        f"g.b = {panels} + ({batch(b[:-2])}) * sod2_gemm_packed_floats({k.c(depth)}, {k.c(n)});",
        f"g.touched[0] = g.out = {k.result()} + ({result}) * {k.c(m * n)};",
        "sod2_gemm_run(&g, pool);",
    ]
    return "\n".join([*loops, "{", *(f"  {line}" for line in body), "}"])


@register()
class Gemm(Anchor):
    """y = alpha * A' * B' + beta * C; C is the epilogue's bias."""

    mapping = MappingType.MANY_TO_MANY

    @staticmethod
    def _sides(node: Node, a: Sequence[Element], b: Sequence[Element]) -> tuple[Element, Element, Element, Element]:
        """m and k of A', k and n of B'."""
        m, k = reversed(a) if node.attrs.get("transA", 0) else a
        k_b, n = reversed(b) if node.attrs.get("transB", 0) else b
        return m, k, k_b, n

    def shape(self, node: Node, x: Facts) -> list[Shape]:
        m, _, _, n = self._sides(node, dims_of(x[0]), dims_of(x[1]))
        return [(m, n)]

    def shape_back(self, node: Node, x: Facts, y: Facts) -> list[Shape]:
        _, k, k_b, _ = self._sides(node, proved(x[0], 2), proved(x[1], 2))
        m, n = proved(y[0], 2)
        a = (k_b, m) if node.attrs.get("transA", 0) else (m, k_b)
        b = (n, k) if node.attrs.get("transB", 0) else (k, n)
        return backwards(node, [a, b])

    def guards(self, node: Node, x: Facts, y: Facts) -> list[tuple[Dim, Dim]]:
        m, k, k_b, n = self._sides(node, dims_of(x[0]), dims_of(x[1]))
        pairs = must_equal(k, k_b)
        if (c := present(x, 2)) is not None:
            joined = broadcast_shapes([dims_of(c), (m, n)])
            pairs += [pair for d, t in zip(joined, (m, n), strict=True) for pair in must_equal(d, t)]
            pairs += broadcast_guards([dims_of(c), (m, n)])
        return pairs

    def space(self, node: Node, x: Facts, y: Facts) -> tuple[int, int] | None:
        return 0, 1

    def bias(self, node: Node, x: Facts) -> Bias | None:
        c = present(x, 2)
        if c is None:
            return None
        rank = len(dims_of(c))
        return Bias(2, tuple(range(2 - rank, 2)), float(node.attrs.get("beta", 1.0)))

    def is_anchor(self, node: Node, x: Facts) -> bool:
        return in_float(x)

    def at(self, node: Node, e: Emitter, index: Sequence[Index], x: Facts, y: Facts) -> str:
        assert x[0] is not None and x[1] is not None and y[0] is not None
        row, column = index
        swapped = [bool(node.attrs.get(name, 0)) for name in ("transA", "transB")]

        def step(k: list[Any], total: str) -> str:
            a = e.load(0, [*k, row] if swapped[0] else [row, *k])
            return f"{total} + {a} * {e.load(1, [column, *k] if swapped[1] else [*k, column])}"

        wide = accumulator(x[0].dtype)
        c = CType(wide, e.element(wide))
        depth = x[0].dims[0 if swapped[0] else 1]
        total = f"{c.number(float(node.attrs.get('alpha', 1.0)))} * {e.fold(wide, '0', [depth], step)}"
        if (bias := present(x, 2)) is not None:
            addend = e.load(2, broadcast_index(e, index, bias, y[0]))
            total = f"{total} + {c.number(float(node.attrs.get('beta', 1.0)))} * {addend}"
        return f"(({e.element(x[0].dtype)})({total}))"

    def call(self, node: Node, k: Call, x: Facts, y: Facts) -> str:
        require_float32(node, *x)
        a, b = known_dims(x[0]), known_dims(x[1])
        m, depth = reversed(a) if node.attrs.get("transA", 0) else a
        one, n = as_dim(1), b[0] if node.attrs.get("transB", 0) else b[1]
        step = (one, depth) if node.attrs.get("transB", 0) else (n, one)
        before, panels = right_operand(node, k, x, (depth, n), step)
        left = {"lda": one, "a_col": m} if node.attrs.get("transA", 0) else {"lda": depth}
        k.setup(gemm_struct(k, {"batch": one, "m": m, "n": n, "k": depth, "ldo": n, **left}, "0"))
        return f"{before}g.b = {panels};\nsod2_gemm_run(&g, pool);"

    def reference(self, node: Node, *arrays: Array | None) -> list[Array]:
        a, b, *rest = arrays
        assert a is not None and b is not None
        wide = np.float64 if is_float(a.dtype) else a.dtype
        left = a.T if node.attrs.get("transA", 0) else a
        right = b.T if node.attrs.get("transB", 0) else b
        total = node.attrs.get("alpha", 1.0) * (left.astype(wide) @ right.astype(wide))
        if rest and rest[0] is not None:
            total = total + node.attrs.get("beta", 1.0) * rest[0].astype(wide)
        return [total.astype(a.dtype)]

    def examples(self) -> Iterable[tuple[Mapping[str, Any], Sequence[Array | None]]]:
        random = np.random.default_rng(7)
        cases: list[tuple[Mapping[str, Any], list[tuple[int, ...]]]] = [
            ({}, [(3, 4), (4, 5), (5,)]),
            ({"transB": 1}, [(3, 4), (5, 4), (5,)]),
            ({"transA": 1, "alpha": 0.5}, [(4, 3), (4, 5)]),
            ({"transA": 1, "transB": 1, "beta": 2.0}, [(4, 3), (5, 4), (3, 1)]),
            ({"alpha": 0.25, "beta": 0.5}, [(3, 4), (4, 5), (3, 5)]),
            ({"beta": 3.0}, [(3, 4), (4, 5), ()]),
            ({}, [(1, 4), (4, 5), (1, 5)]),
            ({}, [(1, 1), (1, 1), (1,)]),
            ({}, [(0, 4), (4, 5), (5,)]),
            ({}, [(3, 0), (0, 5), (5,)]),
        ]
        for attributes, shapes in cases:
            yield attributes, [np.asarray(random.standard_normal(s), np.float32) for s in shapes]
