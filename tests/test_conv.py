"""Convolutions and transposed convolution of the runtime against float64, at 1 and 2 threads, and their cost model."""

import ctypes
import itertools
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest

from sod2 import conv_cost, packing, versions
from tests.plain_kernels import PTR, Conv, Image, Kernels, check, epilogue, pointer

# Relative to the largest output: sums of up to 2000 products in float32, and the transforms of Winograd.
TOLERANCE = {"panel": 3e-6, "pixel": 3e-6, "dot": 3e-6, "depthwise": 3e-6, "taps": 3e-6, "wino2": 5e-6, "wino4": 1e-5}
TOLERANCE |= {"wino3": 1e-5, "wino6": 4e-5}


@dataclass(frozen=True)
class Case:
    """One convolution: sizes, strides and dilations by axis, pads as top, left, bottom, right."""

    n: int
    ic: int
    oc: int
    size: tuple[int, int]
    kernel: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1

    def out(self) -> list[int]:
        return [
            (self.size[i] + self.pads[i] + self.pads[i + 2] - (self.kernel[i] - 1) * self.dilation[i] - 1)
            // self.stride[i] + 1
            for i in range(2)
        ]  # fmt: skip

    def conv(self, out: list[int], limit: int = 0) -> Conv:
        return Conv(
            self.n, self.ic, *self.size, self.oc, *out, self.groups, *self.kernel, *self.stride, *self.pads[:2],
            *self.dilation, scratch_limit=limit,
        )  # fmt: skip


def reference(case: Case, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Sum over taps in float64."""
    (sh, sw), (dh, dw), (oh, ow) = case.stride, case.dilation, case.out()
    top, left, bottom, right = case.pads
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (top, bottom), (left, right)))
    y = np.zeros((case.n, case.oc, oh, ow))
    inputs, outputs = case.ic // case.groups, case.oc // case.groups
    for group, ky, kx in itertools.product(range(case.groups), *map(range, case.kernel)):
        tap = padded[:, group * inputs :][:, :inputs, ky * dh :, kx * dw :][
            :, :, : (oh - 1) * sh + 1 : sh, : (ow - 1) * sw + 1 : sw
        ]
        rows = slice(group * outputs, (group + 1) * outputs)
        y[:, rows] += np.einsum("oc,nchw->nohw", w[rows, :, ky, kx].astype(np.float64), tap[:, :, :oh, :ow])
    return y


def run_conv(
    kernels: Kernels,
    conv: Conv,
    version: str,
    packed: np.ndarray,
    *,
    x: np.ndarray,
    pool: int,
    fused: SimpleNamespace | None = None,
    loaded: bool = False,
) -> np.ndarray:
    """The result; x passes through a prologue if `loaded`."""
    y = np.full((conv.n, conv.oc, conv.oh, conv.ow), np.nan, np.float32)
    index = packing.CONV_VERSIONS.index(version)
    image = Image(pointer(x), conv.ic, conv.ih * conv.iw)
    conv.x, conv.y = None if loaded else pointer(x), pointer(y)
    if loaded:
        conv.prologue = ctypes.cast(kernels.lib.test_prologue, PTR)
        conv.prologue_args = ctypes.addressof(image)
    conv.w[index] = pointer(packed)
    conv.epilogue = fused.function if fused else None
    conv.epilogue_args = ctypes.addressof(fused.args) if fused else None
    conv.touched[0] = pointer(fused.y) if fused else None
    size = kernels.lib.sod2_conv_scratch(ctypes.byref(conv), index, pool + 1)
    raw = np.full(size // 4 + 64, np.nan, np.float32)  # scratch of a previous run may hold anything
    aligned = raw.ctypes.data + (-raw.ctypes.data % 64)
    assert kernels.lib.sod2_conv_choose(ctypes.byref(conv), pool + 1) == index
    kernels.lib.sod2_conv_run(ctypes.byref(conv), index, PTR(aligned), kernels.pools[pool])
    assert np.isnan(raw[(aligned - raw.ctypes.data + size) // 4 :]).all(), "wrote behind its scratch"
    return fused.y if fused else y


def check_conv(kernels: Kernels, case: Case, version: str) -> None:
    rng = np.random.default_rng(abs(hash(case)) % 2**32)
    x = rng.standard_normal((case.n, case.ic, *case.size), np.float32)
    w = rng.standard_normal((case.oc, case.ic // case.groups, *case.kernel), np.float32)
    packed = packing.conv_weights(version, w, case.groups, kernels.tile)
    out = case.out()
    expected = reference(case, x, w)
    plain = [run_conv(kernels, case.conv(out), version, packed, x=x, pool=pool) for pool in (0, 1)]
    check(plain[0], expected, TOLERANCE[version])
    assert plain[0].tobytes() == plain[1].tobytes()
    for limit, pool in ((1, 0), (1, 1), (200_000, 1)):
        limited = run_conv(kernels, case.conv(out, limit), version, packed, x=x, pool=pool)
        assert limited.tobytes() == plain[0].tobytes()
    if case.stride == (1, 1) and case.kernel != (1, 1) and version not in ("depthwise", "taps"):
        loaded = run_conv(kernels, case.conv(out), version, packed, x=x, pool=1, loaded=True)
        assert loaded.tobytes() == plain[0].tobytes()
    shape = (case.n, case.oc, out[0] * out[1])
    for pool in (0, 1):
        conv, bias = case.conv(out), rng.standard_normal(case.oc, np.float32)
        conv.bias, conv.rectified = pointer(bias), pool
        y, least = run_conv(kernels, conv, version, packed, x=x, pool=pool), 0 if pool else -np.inf
        check(y, np.maximum(expected + bias[:, None, None], least), 2 * TOLERANCE[version])
        fused = epilogue(kernels, shape, by_row=True, rng=np.random.default_rng(5))
        y = run_conv(kernels, case.conv(out), version, packed, x=x, pool=pool, fused=fused)
        assert (fused.stores == 1).all()
        check(y, fused.expected(expected.reshape(shape)), 2 * TOLERANCE[version])


SINGLE = [
    Case(1, 512, 1, (7, 7), (3, 3), pads=(1, 1, 1, 1)),
    Case(3, 5, 1, (2, 1), (3, 3), pads=(1, 1, 1, 1)),
    Case(2, 33, 1, (9, 40), (5, 4), pads=(2, 0, 1, 3)),
    Case(1, 20, 1, (13, 17), (3, 2), pads=(0, 2, 4, 1), dilation=(2, 3)),
    Case(1, 3, 1, (4, 700), (2, 3), pads=(1, 0, 0, 1)),
    Case(1, 8, 1, (60, 60), (3, 3), pads=(1, 1, 1, 1)),  # more products than it is meant for
    Case(0, 8, 1, (6, 6), (3, 3)),
]
# Blocks of pixels of which a thread takes several pieces, whose dense copies the first of them makes.
COPIES = [
    Case(2, 128, 512, (12, 13), (1, 1), groups=2),
    Case(1, 48, 300, (23, 14), (3, 3), (1, 1), (1, 1, 1, 1)),
    Case(1, 96, 280, (40, 22), (1, 1), (2, 2)),
]
GENERAL = [
    Case(1, 3, 16, (23, 37), (3, 3), (2, 2), (1, 1, 1, 1)),
    Case(1, 3, 20, (29, 31), (7, 7), (2, 2), (3, 3, 3, 3)),
    Case(2, 5, 7, (9, 11), (3, 2), (1, 3), (2, 0, 1, 2)),
    Case(1, 17, 35, (13, 13), (1, 1)),
    Case(1, 40, 33, (7, 7), (1, 1)),
    Case(1, 70, 60, (28, 28), (1, 1)),
    Case(1, 300, 40, (14, 14), (1, 1)),
    Case(1, 16, 40, (15, 9), (1, 1), (2, 2)),
    Case(2, 24, 30, (40, 41), (1, 1), (2, 3), (1, 0, 0, 1)),
    Case(1, 600, 20, (3, 500), (1, 1), (2, 1)),
    Case(1, 6, 20, (130, 75), (1, 1), (2, 1), (1, 3, 0, 2)),
    Case(1, 40, 9, (140, 67), (3, 3), (2, 2), (1, 1, 1, 1)),
    Case(2, 6, 8, (70, 90), (3, 3), (2, 1), (1, 1, 1, 1), groups=2),
    Case(1, 2, 3, (3, 4200), (3, 3), (2, 1), (0, 1, 0, 1)),
    Case(1, 64, 70, (10, 10), (3, 3), (2, 2), (0, 0, 1, 1)),
    Case(1, 8, 6, (17, 19), (3, 3), (1, 1), (2, 2, 2, 2), (2, 2), groups=2),
    Case(2, 6, 6, (8, 40), (1, 5), (1, 1), (0, 2, 0, 2), groups=3),
    Case(1, 4, 3, (50, 50), (4, 4), (4, 4)),
    Case(1, 2, 3, (12, 70), (5, 3), (3, 2), (4, 1, 0, 1), (1, 4)),
    Case(1, 1, 1, (1, 1), (1, 1)),
    Case(1, 2, 2, (1, 200), (1, 3), (1, 1), (0, 1, 0, 1)),
    Case(0, 2, 2, (4, 4), (3, 3)),
    Case(1, 0, 2, (4, 4), (1, 1)),
    Case(1, 2, 0, (4, 4), (3, 3)),
    Case(1, 2, 3, (0, 4), (1, 1)),
    Case(1, 130, 50, (20, 24), (1, 1)),
    Case(1, 300, 9, (6, 5), (3, 3), (1, 1), (1, 1, 1, 1)),
    Case(1, 1024, 1, (7, 7), (3, 3), (1, 1), (1, 1, 1, 1)),  # one channel: threads share its panels
    Case(1, 150, 40, (7, 7), (3, 3), (2, 2), (1, 1, 1, 1)),  # a few pixels of several lines
    Case(1, 32, 24, (45, 208), (3, 3), (2, 2), (1, 1, 1, 1)),  # of little scratch: windows of a part of two lines
    Case(1, 70, 10, (1, 1), (1, 1)),
    Case(2, 700, 3, (1, 1), (1, 1)),
    Case(1, 500, 300, (1, 1), (1, 1)),
    Case(1, 130, 120, (2, 1), (3, 3), (1, 1), (1, 1, 1, 1), groups=2),
    *COPIES,
]
WINOGRAD = [
    Case(1, 16, 16, (14, 14), (3, 3), pads=(1, 1, 1, 1)),
    Case(1, 17, 35, (7, 7), (3, 3), pads=(1, 1, 1, 1)),
    Case(2, 33, 20, (37, 29), (3, 3), pads=(1, 1, 1, 1)),
    Case(1, 3, 5, (15, 131), (3, 3), pads=(1, 1, 1, 1)),
    Case(1, 20, 70, (13, 5), (3, 3), pads=(0, 2, 1, 0)),
    Case(1, 8, 8, (3, 3), (3, 3)),
    Case(1, 300, 40, (9, 9), (3, 3), pads=(1, 1, 1, 1)),
    Case(1, 2, 2, (1, 1), (3, 3), pads=(1, 1, 1, 1)),
    Case(0, 2, 2, (6, 6), (3, 3)),
    Case(1, 0, 2, (6, 6), (3, 3)),
    Case(1, 24, 16, (90, 60), (3, 3), pads=(1, 1, 1, 1)),
]
CROWDED = Case(1, 512, 16, (28, 28), (3, 3), pads=(1, 1, 1, 1))  # a row block of F(6) is 1.75 MiB
STEMS = [
    Case(1, 3, 64, (60, 73), (7, 7), (2, 2), (3, 3, 3, 3)),
    Case(2, 3, 20, (223, 31), (7, 7), (2, 2), (3, 3, 3, 3)),
    Case(1, 1, 5, (7, 8), (7, 7), (2, 2)),
    Case(1, 9, 33, (21, 300), (7, 7), (2, 2), (2, 0, 4, 5)),
    Case(2, 5, 2, (2, 1), (7, 7), (2, 2), (3, 3, 3, 3)),
    Case(0, 3, 4, (9, 9), (7, 7), (2, 2)),
    Case(1, 0, 4, (9, 9), (7, 7), (2, 2)),
]
DEPTHWISE = [
    Case(1, 9, 9, (20, 33), (3, 3), pads=(1, 1, 1, 1), groups=9),
    Case(2, 5, 10, (17, 90), (5, 5), (2, 2), (2, 2, 2, 2), groups=5),
    Case(1, 3, 6, (4, 17), (3, 3), pads=(1, 1, 1, 1), groups=3),
    Case(1, 3, 3, (3, 40), (3, 3), pads=(1, 0, 1, 2), groups=3),
    Case(2, 2, 2, (7, 1), (3, 3), pads=(1, 1, 1, 1), groups=2),
    Case(1, 4, 4, (1, 150), (1, 31), pads=(0, 15, 0, 15), groups=4),
    Case(1, 3, 3, (3, 8000), (3, 9), pads=(0, 4, 0, 4), groups=3),  # longer rows than a strip holds
    Case(1, 3, 3, (1, 22178), (1, 256), (1, 128), groups=3),
    Case(1, 3, 3, (11, 12), (3, 2), (3, 1), (0, 1, 2, 0), (2, 3), groups=3),
    Case(1, 2, 2, (1, 1), (1, 1), groups=2),
    Case(1, 2, 2, (500, 80), (3, 3), pads=(1, 1, 1, 1), groups=2),
    Case(0, 2, 2, (4, 4), (3, 3), groups=2),
    *(
        Case(2, 3, 3, size, (3, 3), (stride, stride), pads, groups=3)
        for stride in (1, 2)
        for size in ((1, 1), (7, 15), (9, 40), (13, 101))
        for pads in ((1, 1, 1, 1), (0, 2, 3, 20), (4, 18, 1, 0))
    ),
    *(
        Case(2, 3, 6, (3, width), (1, taps), (stride, 1), (0, left, 0, taps), groups=3)
        for taps, width, stride, left in (
            (1, 5, 1, 0),
            (4, 70, 1, 3),
            (17, 40, 2, 8),
            (16, 130, 1, 0),
            (33, 129, 1, 20),
            (70, 300, 1, 64),
        )
    ),
]


# A column stride of 2 splits both phases of a row at once: every padding and parity of the ends, and rows outside.
PAIRS = [
    Case(1, 2, 3, (height, width), (3, kernel), (2, 2), (top, left, 1, right))
    for height, width, kernel, top, left, right in [
        *((4, width, 3, 1, left, 1) for width in (1, 2, 33, 34, 65) for left in (0, 1, 2)),
        *((3, width, 2, 4, left, 3) for width in (5, 32) for left in (0, 3, 5)),
        *((5, 36, 4, 0, left, right) for left in (0, 4, 41) for right in (0, 40)),
    ]
] + [
    Case(1, 3, 2, (7, 38), (2, 3), (1, 2), (0, 2, 1, 1), (1, 3)),
    Case(2, 4, 4, (9, 35), (3, 3), (1, 2), (1, 1, 1, 1), groups=4),
    Case(1, 2, 3, (3, 1400), (3, 3), (2, 2), (1, 1, 1, 1)),
]


@pytest.mark.parametrize("case", PAIRS, ids=str)
def test_pairs_of_columns(kernels: Kernels, case: Case) -> None:
    check_conv(kernels, case, "panel")
    if case.groups == case.ic:
        check_conv(kernels, case, "depthwise")


@pytest.mark.parametrize("case", GENERAL + WINOGRAD, ids=str)
@pytest.mark.parametrize("version", ["panel", "pixel", "dot"])
def test_implicit_gemm(kernels: Kernels, case: Case, version: str) -> None:
    check_conv(kernels, case, version)


@pytest.mark.parametrize("case", WINOGRAD, ids=str)
@pytest.mark.parametrize("version", ["wino2", "wino4", "wino6"])
def test_winograd(kernels: Kernels, case: Case, version: str) -> None:
    check_conv(kernels, case, version)


@pytest.mark.parametrize("version", ["wino4", "wino6"])
def test_scratch_of_winograd_keeps_its_limit(kernels: Kernels, version: str) -> None:
    """Eight threads share a block where blocks of their own, for weights as large as these, would need more."""
    case, limit = Case(1, 256, 256, (56, 56), (3, 3), pads=(1, 1, 1, 1)), 3 << 20
    conv = case.conv(case.out(), limit)
    size = kernels.lib.sod2_conv_scratch(ctypes.byref(conv), packing.CONV_VERSIONS.index(version), 8)
    assert size < 1.02 * limit  # planes are padded


@pytest.mark.parametrize("version", ["panel", "pixel", "wino4"])
def test_a_relu_keeps_nan(kernels: Kernels, version: str) -> None:
    """Whole vectors of pixels, and a part of one."""
    case = Case(1, 16, 20, (11, 13), (3, 3), pads=(1, 1, 1, 1))
    x, bias = np.ones((1, 16, 11, 13), np.float32), np.full(20, np.nan, np.float32)
    packed = packing.conv_weights(version, np.ones((20, 16, 3, 3), np.float32), 1, kernels.tile)
    conv = case.conv(case.out())
    conv.bias, conv.rectified = pointer(bias), 1
    assert np.isnan(run_conv(kernels, conv, version, packed, x=x, pool=0)).all()


@pytest.mark.parametrize("channels", [32, 128, 512])
@pytest.mark.parametrize("version", ["wino2", "wino4", "wino6"])
def test_error_of_winograd_is_foreseen(kernels: Kernels, version: str, channels: int) -> None:
    """Root mean squares: that of the sums, as many times as the transforms' numbers are larger than results."""
    case = Case(1, channels, 16, (20, 20), (3, 3), pads=(1, 1, 1, 1))
    rng = np.random.default_rng(channels)
    x = rng.standard_normal((1, channels, 20, 20), np.float32)
    w = rng.standard_normal((16, channels, 3, 3), np.float32)
    packed = packing.conv_weights(version, w, 1, kernels.tile)
    expected = reference(case, x, w)
    error = run_conv(kernels, case.conv(case.out()), version, packed, x=x, pool=0).reshape(expected.shape) - expected
    assert np.sqrt((error**2).mean() / (expected**2).mean()) == pytest.approx(versions.layer_error([version]), rel=0.3)


@pytest.mark.parametrize("case", STEMS, ids=str)
def test_winograd_of_phases(kernels: Kernels, case: Case) -> None:
    check_conv(kernels, case, "wino3")


@pytest.mark.parametrize("case", DEPTHWISE, ids=str)
@pytest.mark.parametrize("version", ["depthwise", "panel"])
def test_depthwise(kernels: Kernels, case: Case, version: str) -> None:
    check_conv(kernels, case, version)


@pytest.mark.parametrize("case", SINGLE, ids=str)
@pytest.mark.parametrize("version", ["taps", "panel"])
def test_one_output_channel(kernels: Kernels, case: Case, version: str) -> None:
    check_conv(kernels, case, version)


# ---- cost model ---------------------------------------------------------------------------------------------------


def layer_of(case: Case) -> conv_cost.ConvLayer:
    height, width = case.out()
    return conv_cost.ConvLayer(
        case.n, case.ic, case.oc, case.groups, case.size, (height, width), case.kernel, case.stride, case.dilation,
        any(case.pads),
    )  # fmt: skip


PRICED = [*GENERAL, *WINOGRAD, *STEMS, *DEPTHWISE, *SINGLE, CROWDED]


@pytest.mark.parametrize("case", [c for c in PRICED if c.n], ids=str)
def test_cost_model_is_the_same_in_c_and_python(kernels: Kernels, case: Case) -> None:
    conv, layer = case.conv(case.out()), layer_of(case)
    if min(case.oc, *case.out()) == 0:
        return
    weights = np.ones(1, np.float32)
    times = {}
    for version in conv_cost.possible_versions(layer):
        index = packing.CONV_VERSIONS.index(version)
        conv.w[index] = pointer(weights)
        times[version] = kernels.lib.test_cost(ctypes.byref(conv), index)
        assert times[version] == pytest.approx(conv_cost.conv_cycles(version, layer, kernels.tile), rel=1e-12)
        w = np.zeros((case.oc, case.ic // case.groups, *case.kernel), np.float32)
        size = conv_cost.packed_floats(version, layer, kernels.tile)
        assert size == packing.conv_weights(version, w, case.groups, kernels.tile).size
    for threads in (1, 2):
        chosen = packing.CONV_VERSIONS[kernels.lib.sod2_conv_choose(ctypes.byref(conv), threads)]
        assert times[chosen] == min(times.values())


def test_choose_without_weights(kernels: Kernels) -> None:
    case = GENERAL[0]
    assert kernels.lib.sod2_conv_choose(ctypes.byref(case.conv(case.out())), 1) == -1


# ---- transposed convolution ---------------------------------------------------------------------------------------

TRANSPOSED = [
    Case(1, 20, 9, (10, 13), (2, 2), (2, 2)),
    Case(2, 6, 30, (5, 41), (2, 2), (2, 2), groups=2),
    Case(2, 6, 4, (7, 40), (3, 3), (2, 2), (1, 1, 0, 1), groups=2),
    Case(1, 5, 3, (6, 5), (4, 3), (1, 3), (2, 0, 1, 1), (2, 1)),
    Case(1, 3, 40, (1, 1), (5, 5)),
    Case(1, 70, 2, (3, 33), (1, 1), (3, 2)),
    Case(0, 2, 2, (3, 3), (2, 2)),
    Case(1, 2, 2, (0, 3), (2, 2), (2, 2)),
    Case(1, 0, 2, (3, 3), (2, 2), (2, 2)),
]


@pytest.mark.parametrize("case", TRANSPOSED, ids=str)
def test_conv_transpose(kernels: Kernels, case: Case) -> None:
    rng = np.random.default_rng(abs(hash(case)) % 2**32)
    x = rng.standard_normal((case.n, case.ic, *case.size), np.float32)
    w = rng.standard_normal((case.ic, case.oc // case.groups, *case.kernel), np.float32)
    (sh, sw), (dh, dw), (top, left, bottom, right) = case.stride, case.dilation, case.pads
    full = [max(0, (case.size[i] - 1) * case.stride[i] + (case.kernel[i] - 1) * case.dilation[i] + 1) for i in range(2)]
    sums = np.zeros((case.n, case.oc, *full))
    inputs, outputs = case.ic // case.groups, case.oc // case.groups
    for group, ky, kx in itertools.product(range(case.groups), *map(range, case.kernel)):
        rows = slice(group * inputs, (group + 1) * inputs)
        product = np.einsum("co,nchw->nohw", w[rows, :, ky, kx].astype(np.float64), x[:, rows])
        window = sums[:, group * outputs :][:, :outputs, ky * dh :, kx * dw :]
        window[:, :, : case.size[0] * sh : sh, : case.size[1] * sw : sw][:, :, : case.size[0], : case.size[1]] += (
            product
        )
    expected = sums[:, :, top : full[0] - bottom, left : full[1] - right]
    out = list(expected.shape[2:])
    packed = packing.conv_transpose(w, case.groups, kernels.tile.mr)
    results = []
    for pool in (0, 1):
        conv = case.conv(out)
        y = np.full(expected.shape, np.nan, np.float32)
        conv.x, conv.y, conv.w[0] = pointer(x), pointer(y), pointer(packed)
        scratch = np.full(
            kernels.lib.sod2_conv_transpose_scratch(ctypes.byref(conv), pool + 1) // 4 + 1, np.nan, np.float32
        )
        kernels.lib.sod2_conv_transpose_run(ctypes.byref(conv), PTR(pointer(scratch)), kernels.pools[pool])
        check(y, expected, 3e-6)
        results.append(y.tobytes())
    assert results[0] == results[1]
