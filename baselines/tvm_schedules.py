"""CPU schedules for Relax functions with symbolic shapes, which TVM 0.27's wheel lacks (it has them for GEMV only).

What a careful user adds through TVM's public interfaces; without it code is scalar and on one thread, 60 to 90 times
slower. Convolutions and matrix products are legalised to tensor expressions whose symbolic axis is padded to a register
tile of MR x NR, so that the inner loops have no predicates, over weights that are packed at compile time. Then each
fused function is scheduled: register tiles with the epilogue fused into them, rows of reductions in parallel, the rest
inlined and in parallel. One code for all shapes; nothing is tuned per shape.

Limits: products that have no tile (convolutions with groups or of one dimension, odd matrix products) get parallel rows
of TVM's scalar code at best, and functions that no schedule fits keep it as it is; `apply` names both.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tvm  # type: ignore[import-not-found]
from tvm import s_tir, te, tirx  # type: ignore[import-not-found]
from tvm.relax.transform import legalize_ops  # type: ignore[import-not-found]

MR, NR = 6, 16
"""Register tile: MR positions by NR channels."""
TILED = ("tile", "split_tile", "flat_tile")
"""Names of the accumulators: a padded axis; one cut into tiles by the expression; one cut by the schedule."""
PRODUCT = {"conv", "matmul"}
"""Words in the names of functions whose time is that of a product, and which need a tile to be fast."""
FUSES_EPILOGUES = {"op_pattern": 4}
OPAQUE = {"op_pattern": 8}
SPATIAL = 0  # iteration type of axes that are not reduced


def _ceil_div(a: Any, b: int) -> Any:
    return _simple((a + (b - 1)) // b)


def _simple(value: Any) -> Any:
    """Simplified, since TVM compares symbolic extents as they are written."""
    return value if isinstance(value, int) else tvm.sym.Analyzer().simplify(value)


def _or_zero(condition: Any, value: Any, dtype: str) -> Any:
    return tirx.if_then_else(condition, value, tirx.const(0.0, dtype))


def _pack_conv(w: Any) -> Any:
    """(F, C, KH, KW) to (F / NR, C, KH, KW, NR), padded by zeros."""
    filters, channels, height, width = w.shape
    return te.compute(
        (_ceil_div(filters, NR), channels, height, width, NR),
        lambda fo, c, i, j, fi: _or_zero(fo * NR + fi < filters, w[fo * NR + fi, c, i, j], w.dtype),
        name="packed",
    )


def _pack_matrix(w: Any) -> Any:
    """(K, N) to (N / NR, K, NR), padded by zeros."""
    depth, columns = w.shape
    return te.compute(
        (_ceil_div(columns, NR), depth, NR),
        lambda no, k, ni: _or_zero(no * NR + ni < columns, w[k, no * NR + ni], w.dtype),
        name="packed",
    )


def _conv(filters: int, strides: Sequence[int], padding: Sequence[int], dilation: Sequence[int]) -> Callable[..., Any]:
    """2-D convolution of NCHW images by packed weights."""
    (sh, sw), (top, left, bottom, right), (dh, dw) = strides, padding, dilation

    def compute(x: Any, w: Any) -> Any:
        batch, channels, height, width = x.shape
        blocks, _, kh, kw, _ = w.shape
        rows = _simple((height + top + bottom - dh * (kh - 1) - 1) // sh + 1)
        columns = _simple((width + left + right - dw * (kw - 1) - 1) // sw + 1)
        tiles = _ceil_div(columns, MR)
        padded_rows = _simple((rows - 1) * sh + dh * (kh - 1) + 1)
        padded_columns = _simple((tiles * MR - 1) * sw + dw * (kw - 1) + 1)

        def pad(n: Any, c: Any, y: Any, q: Any) -> Any:
            inside = tirx.all(y >= top, y < height + top, q >= left, q < width + left)
            return _or_zero(inside, x[n, c, y - top, q - left], x.dtype)

        image = te.compute((batch, channels, padded_rows, padded_columns), pad, name="padded")
        c, i, j = te.reduce_axis((0, channels), "c"), te.reduce_axis((0, kh), "i"), te.reduce_axis((0, kw), "j")

        def product(n: Any, y: Any, fo: Any, q: Any, fi: Any) -> Any:
            return te.sum(image[n, c, y * sh + i * dh, q * sw + j * dw] * w[fo, c, i, j, fi], axis=[c, i, j])

        # TVM proves that the tiles cover the result of a plain symbol as one axis, and of an expression as two.
        if isinstance(columns, tvm.ir.Var | tirx.IntImm):
            shape = (batch, rows, blocks, _simple(tiles * MR), NR)
            flat = te.compute(shape, product, name="tile")
            return te.compute(
                (batch, filters, rows, columns), lambda n, f, y, q: flat[n, y, f // NR, q, f % NR], name="crop"
            )
        split = te.compute(
            (batch, rows, blocks, tiles, MR, NR),
            lambda n, y, fo, qo, qi, fi: product(n, y, fo, qo * MR + qi, fi),
            name="split_tile",
        )
        return te.compute(
            (batch, filters, rows, columns),
            lambda n, f, y, q: split[n, y, f // NR, q // MR, q % MR, f % NR],
            name="crop",
        )

    return compute


def _by_packed(columns: int) -> Callable[..., Any]:
    """(..., M, K) by packed weights. Only M is padded: over a fused axis TVM would infer a wrong region."""

    def compute(x: Any, w: Any) -> Any:
        *lead, rows, depth = x.shape
        count = len(lead)
        padded = _simple(_ceil_div(rows, MR) * MR)
        left = te.compute((*lead, padded, depth), lambda *at: _or_zero(at[-2] < rows, x(*at), x.dtype), name="padded")
        k = te.reduce_axis((0, depth), "k")
        tile = te.compute(
            (w.shape[0], *lead, padded, NR),
            lambda *at: te.sum(left(*at[1 : count + 1], at[count + 1], k) * w[at[0], k, at[-1]], axis=k),
            name="tile",
        )
        return te.compute(
            (*lead, rows, columns), lambda *at: tile(at[-1] // NR, *at[:count], at[-2], at[-1] % NR), name="crop"
        )

    return compute


def _batched(x: Any, w: Any) -> Any:
    """(..., M, K) by (..., K, N), N symbolic too: the padded axis of N stays flat, or cover cannot be proved."""
    *lead, rows, depth = x.shape
    columns, count = w.shape[-1], len(lead)
    padded_rows, padded_columns = _simple(_ceil_div(rows, MR) * MR), _simple(_ceil_div(columns, NR) * NR)
    left = te.compute((*lead, padded_rows, depth), lambda *at: _or_zero(at[-2] < rows, x(*at), x.dtype), name="padded")
    right = te.compute(
        (*lead, depth, padded_columns), lambda *at: _or_zero(at[-1] < columns, w(*at), w.dtype), name="padded_right"
    )
    k = te.reduce_axis((0, depth), "k")
    tile = te.compute(
        (*lead, padded_rows, padded_columns),
        lambda *at: te.sum(left(*at[:count], at[count], k) * right(*at[:count], k, at[-1]), axis=k),
        name="flat_tile",
    )
    return te.compute((*lead, rows, columns), tile, name="crop")


def _legal_conv(builder: Any, call: Any) -> Any:
    attrs = call.attrs
    image = attrs.data_layout == "NCHW" and attrs.kernel_layout == "OIHW" and len(call.args[0].ty.shape) == 4
    if attrs.groups != 1 or not image:
        return legalize_ops.nn._nn_conv2d(builder, call)
    x, w = call.args
    packed = builder.emit_te(_pack_conv, w, primfunc_name_hint="packed", primfunc_attrs=OPAQUE)
    settings = ([int(v) for v in values] for values in (attrs.strides, attrs.padding, attrs.dilation))
    compute = _conv(int(w.ty.shape[0]), *settings)
    return builder.call_te(compute, x, packed, primfunc_name_hint="conv2d", primfunc_attrs=FUSES_EPILOGUES)


def _legal_matmul(builder: Any, call: Any) -> Any:
    x, w = call.args
    left, right = x.ty.shape, w.ty.shape
    if len(right) == 2 and len(left) >= 2 and all(isinstance(dim, tirx.IntImm) for dim in right):
        packed = builder.emit_te(_pack_matrix, w, primfunc_name_hint="packed", primfunc_attrs=OPAQUE)
        compute = _by_packed(int(right[1]))
        return builder.call_te(compute, x, packed, primfunc_name_hint="matmul", primfunc_attrs=FUSES_EPILOGUES)
    if len(left) == len(right) > 2:
        return builder.call_te(_batched, x, w, primfunc_name_hint="matmul", primfunc_attrs=FUSES_EPILOGUES)
    return legalize_ops.linear_algebra._matmul(builder, call)


LEGALIZE: Mapping[str, Callable[[Any, Any], Any]] = {"relax.nn.conv2d": _legal_conv, "relax.matmul": _legal_matmul}
"""For relax.transform.LegalizeOps."""


def apply(module: Any) -> list[str]:
    """Schedule every function of a lowered module in place; returns the names of those that keep TVM's scalar code."""
    unscheduled = []
    for name, function in list(module.functions.items()):
        if isinstance(function, tirx.PrimFunc):
            try:
                schedule, blocks = _schedule(function)
            except (s_tir.schedule.ScheduleError, RuntimeError):  # how TVM says that a step does not fit
                unscheduled.append(name.name_hint)
            else:
                module[name] = schedule.mod["main"].with_attr("tirx.is_scheduled", True)
                if PRODUCT & set(re.findall("[a-z]+", name.name_hint)) and not set(TILED) & set(blocks):
                    unscheduled.append(name.name_hint)
    return unscheduled


def _schedule(function: Any) -> tuple[Any, list[str]]:
    """The scheduled function, and the names of its blocks as they were."""
    schedule = s_tir.Schedule(function)
    root = schedule.get_sblock("root")
    blocks = schedule.get_child_blocks(root)
    names = [schedule.get(block).name_hint for block in blocks]
    if set(TILED) & set(names):
        _tiled(schedule, dict(zip(names, blocks, strict=True)), names)
    elif all(_injective(schedule, block) for block in blocks):
        for block in blocks[:-1]:
            _attempt(schedule.compute_inline, block)
        for block in schedule.get_child_blocks(root):
            _parallel(schedule, block)
    else:
        _rows(schedule, blocks)
    return schedule, names


def _attempt(step: Callable[..., Any], *arguments: Any) -> bool:
    """Take a step of a schedule that may not fit; a step that does not fit changes nothing."""
    try:
        step(*arguments)
    except (s_tir.schedule.ScheduleError, RuntimeError):
        return False
    return True


def _rows(schedule: Any, blocks: Sequence[Any]) -> None:
    """Reductions (softmax, normalisation, mean): a row per parallel iteration."""
    last = blocks[-1]
    spatial = [_spatial(schedule, block) - _injective(schedule, block) for block in blocks]
    if _injective(schedule, last) and min(spatial) >= 1:
        loops = schedule.get_loops(last)[: min(spatial)]
        row = schedule.fuse(*loops) if len(loops) > 1 else loops[0]
        schedule.parallel(row)
        for block in reversed(blocks[:-1]):
            _attempt(lambda moved: schedule.compute_at(moved, row, preserve_unit_loops=True), block)
        return
    for block in blocks:
        if _injective(schedule, block):
            _parallel(schedule, block)
        elif loops := schedule.get_loops(block)[: _spatial(schedule, block)]:
            schedule.parallel(schedule.fuse(*loops) if len(loops) > 1 else loops[0])


def _tiled(schedule: Any, blocks: dict[str, Any], names: list[str]) -> None:
    """Register tiles: parallel over blocks of channels and rows, the tile unrolled and vectorised, epilogues fused."""
    key = next(name for name in TILED if name in blocks)
    tile = blocks[key]
    result = _inline_epilogue(schedule, list(blocks.values())[names.index(key) + 1 :], blocks["crop"])
    spatial = _spatial(schedule, tile)
    loops, reduced = schedule.get_loops(tile)[:spatial], schedule.get_loops(tile)[spatial:]
    if key == "split_tile":
        *outer, tiles, position, channel = loops
    elif key == "flat_tile":
        block, channel = schedule.split(loops[-1], [None, NR])
        schedule.reorder(block, loops[-2], channel)
        outer = [*loops[:-2], block]
        tiles, position = schedule.split(loops[-2], [None, MR])
    else:
        *outer, padded, channel = loops
        tiles, position = schedule.split(padded, [None, MR])
    schedule.reorder(*outer, tiles, *reduced, position, channel)
    store = schedule.cache_write(tile, 0, "local")
    schedule.reverse_compute_at(store, tiles)
    fused = key != "flat_tile" and _attempt(schedule.reverse_compute_at, result, outer[-1])
    schedule.parallel(schedule.fuse(*outer) if len(outer) > 1 else outer[0])
    schedule.vectorize(channel)
    schedule.unroll(position)
    extent = schedule.get(reduced[-1]).extent
    if len(reduced) == 3 and isinstance(extent, tirx.IntImm) and int(extent) <= 3:
        schedule.unroll(reduced[-1])
    start = schedule.decompose_reduction(tile, reduced[0])
    schedule.vectorize(schedule.get_loops(store)[-1])
    schedule.unroll(schedule.get_loops(store)[-2])
    _attempt(schedule.unroll, schedule.get_loops(start)[-2])
    for name in ("padded", "padded_right"):
        if name in blocks:
            _parallel(schedule, blocks[name], vectorize=False)
    if not fused:
        _parallel(schedule, result)


def _inline_epilogue(schedule: Any, after: Sequence[Any], crop: Any) -> Any:
    """Inline what follows the tile into one block, which is returned: the last, or the crop where that does not fit."""
    if all(_attempt(schedule.compute_inline, block) for block in after[:-1]):
        return after[-1]
    for block in after[1:]:
        schedule.reverse_compute_inline(block)
    return crop


def _spatial(schedule: Any, block: Any) -> int:
    return sum(axis.iter_type == SPATIAL for axis in schedule.get(block).iter_vars)


def _injective(schedule: Any, block: Any) -> bool:
    return all(axis.iter_type == SPATIAL for axis in schedule.get(block).iter_vars)


def _parallel(schedule: Any, block: Any, vectorize: bool = True) -> None:
    """Parallel outer loops; the innermost vectorised where its extent is a known multiple of 8."""
    loops = schedule.get_loops(block)
    if not loops:
        return
    vector = None
    extent = schedule.get(loops[-1]).extent
    if vectorize and len(loops) > 1 and isinstance(extent, tirx.IntImm) and int(extent) % 8 == 0:
        outer, vector = schedule.split(loops[-1], [None, 16 if int(extent) % 16 == 0 else 8])
        loops = [*loops[:-1], outer]
    outer_loops = loops[:-1] if len(loops) > 1 else loops
    schedule.parallel(schedule.fuse(*outer_loops) if len(outer_loops) > 1 else outer_loops[0])
    if vector is not None:
        schedule.vectorize(vector)
