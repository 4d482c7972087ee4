"""Linear and cubic Resize wherever the axes lie, by the kernel and by element expressions, against onnxruntime.

onnxruntime resizes the last two of four axes; others are brought there for it and back.
"""

import numpy as np
import onnx
import pytest

import sod2
from tests.graphs import assert_close, expected, model, random

KEPT = {"a": 2, "b": 3}
SIZES = (((4, 5), (7, 3)), ((1, 9), (6, 40)), ((20, 33), (5, 33)), ((3, 1), (3, 1)))
MODES = (
    'mode = "linear"',
    'mode = "linear", coordinate_transformation_mode = "align_corners"',
    'mode = "linear", coordinate_transformation_mode = "asymmetric"',
    'mode = "cubic"',
    'mode = "cubic", coordinate_transformation_mode = "pytorch_half_pixel", cubic_coeff_a = -0.5',
    'mode = "cubic", exclude_outside = 1',
)
PLACES = {"abHW": True, "aHWb": True, "HWab": True, "aHbW": False}  # and whether the kernel takes it
EPILOGUE = "e = Relu(r) y = Sub(e, half)"


def resize(mode: str, place: str, axes: str, behind: str) -> onnx.ModelProto:
    """Those axes to the sizes of `z`, and what is behind."""
    dims = ", ".join(str(KEPT.get(axis, axis)) for axis in place)
    places = [place.index(axis) for axis in axes]
    body = f"k = Shape(z) r = Resize <{mode}, axes = {places}> (x, , , k) {behind}"
    target = ", ".join("PQ"[: len(axes)])
    return model(f"float[{dims}] x, float[{target}] z", "float[?, ?, ?, ?] y", body, {"half": np.float32([0.5])})


def check(mode: str, place: str, axes: str, behind: str, by_kernel: bool) -> None:
    oracle, kept = resize(mode, "abHW", axes, behind), "abHW"
    ours = [sod2.compile(resize(mode, place, axes, behind), threads=threads) for threads in (1, 2)]
    assert ("sod2_resize_run" in (ours[0].folder / "model.c").read_text()) == by_kernel
    for size, out in SIZES:
        x = random("f4", (2, 3, *size))
        target = np.zeros([out["HW".index(axis)] for axis in axes], np.float32)
        wanted = expected(oracle, {"x": x, "z": target})["y"].transpose([kept.index(a) for a in place])
        given = {"x": np.ascontiguousarray(x.transpose([kept.index(a) for a in place])), "z": target}
        first, second, again = (m.run(given)["y"] for m in (*ours, ours[1]))
        assert_close({"y": first}, {"y": wanted}, 1e-5)
        assert first.tobytes() == second.tobytes() == again.tobytes()


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("mode", MODES)
def test_two_axes(mode: str, place: str) -> None:
    check(mode, place, "HW", "y = Identity(r)", PLACES[place])


@pytest.mark.parametrize("place", ["abHW", "abWH", "HabW"])
@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_one_axis(mode: str, place: str) -> None:
    check(f'mode = "{mode}"', place, "H", EPILOGUE, by_kernel=True)


@pytest.mark.parametrize("place", PLACES)
def test_epilogue(place: str) -> None:
    """What is fused behind the kernel."""
    check('mode = "linear"', place, "HW", EPILOGUE, PLACES[place])
