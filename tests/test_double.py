"""float64: every operator that the standard allows it for, on its own examples, in the accuracy of double; and those
with kernels on random shapes against numpy, with the shapes that are proved for float32.

Which operators refuse it is derived from running them all.
"""

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import sod2
from sod2.graph import Node
from sod2.ops import OPS, Op
from tests.batch import Batch, prepare
from tests.graphs import model
from tests.test_ops import _output_count as output_count

REFUSED = {  # for reasons that are none of the type
    "GatherND": "its rank depends on execution",
    "LayerNormalization": "gives statistics and has a broadcast scale",
}
SAME = {"BitCast"}  # its example tells the width of an element
OUTPUTS = {"LSTM": 3, "GRU": 2, "RNN": 2, "LayerNormalization": 3}
WIDER = 1 + 2.0**-30  # makes numbers that are no floats
TOLERANCE = 1e-12


@dataclass(frozen=True)
class Case:
    """One example of an operator, with doubles for floats where the standard allows them."""

    op: Op
    node: Node
    arrays: Sequence[np.ndarray | None]

    @property
    def given(self) -> dict[str, np.ndarray]:
        """The inputs; those that define shapes are stored in the model."""
        pairs = zip(self.node.inputs, self.arrays, strict=True)
        return {n: a for i, (n, a) in enumerate(pairs) if a is not None and i not in self.op.shape_inputs}

    def expected(self) -> dict[str, np.ndarray]:
        with np.errstate(all="ignore"):
            return dict(zip(self.node.outputs, self.op.reference(self.node, *self.arrays), strict=True))

    def model(self) -> onnx.ModelProto:
        """The node alone; every dim is a symbol."""
        node = self.node
        inputs = [value(n, a, [f"{n}d{k}" for k in range(a.ndim)]) for n, a in self.given.items()]
        stored = [
            numpy_helper.from_array(a, n)
            for n, a in zip(node.inputs, self.arrays, strict=True)
            if a is not None and n not in self.given
        ]
        made = helper.make_node(node.op, node.inputs, node.outputs, domain=node.domain, **node.attrs)
        outputs = [value(n, a, None) for n, a in self.expected().items()]
        opsets = [helper.make_opsetid("", onnx.defs.onnx_opset_version())]
        opsets += [helper.make_opsetid(node.domain, 1)] if node.domain else []
        graph = helper.make_graph([made], "g", inputs, outputs, stored)
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def value(name: str, array: np.ndarray, dims: list[str] | None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), dims)


def doubled(op: Op, arrays: Sequence[np.ndarray | None]) -> list[np.ndarray | None] | None:
    """The operands of an example in double; None where none of them becomes one."""
    if not onnx.defs.has(op.name, op.domain):
        return None
    formal = onnx.defs.get_schema(op.name, domain=op.domain).inputs
    made: list[np.ndarray | None] = []
    for i, a in enumerate(arrays):
        wide = a is not None and a.dtype == np.float32 and "tensor(double)" in formal[min(i, len(formal) - 1)].types
        made.append(a.astype(np.float64) * WIDER if wide and a is not None else a)
    return None if all(a is b for a, b in zip(arrays, made, strict=True)) else made


def as_stored(attribute: Any) -> Any:
    """An attribute as a model stores it, in float."""
    if isinstance(attribute, list):
        return [as_stored(a) for a in attribute]
    return float(np.float32(attribute)) if isinstance(attribute, float) else attribute


def _cases() -> Iterator[tuple[str, Case]]:
    for (domain, name), op in sorted(OPS.table.items()):
        for i, (attrs, given) in enumerate(() if name in SAME else op.examples()):
            arrays = doubled(op, given)
            if arrays is None:
                continue
            inputs = tuple("" if a is None else f"x{k}" for k, a in enumerate(arrays))
            outputs = tuple(f"y{k}" for k in range(OUTPUTS.get(name) or output_count(op, attrs, arrays)))
            stored = {key: as_stored(attribute) for key, attribute in attrs.items()}
            yield f"{domain}{name}-{i}", Case(op, Node("n", name, inputs, outputs, stored, (), domain), arrays)


CASES = dict(_cases())

# ---- kernels on random shapes ----------------------------------------------------------------------------------------

Arrays = Mapping[str, np.ndarray]
Formula = Callable[..., np.ndarray]
EPSILON = float(np.float32(1e-3))
SHAPES = [(2, 4, 5, 6), (1, 6, 1, 1), (0, 2, 3, 4), (3, 2, 17, 40), (1, 8, 1, 70), (65, 2, 3, 3), (2, 2, 2, 3000)]


def normal(x: np.ndarray, axes: tuple[int, ...], centred: bool = True) -> np.ndarray:
    shifted = x - x.mean(axis=axes, keepdims=True) if centred else x
    return shifted / np.sqrt((shifted**2).mean(axis=axes, keepdims=True) + EPSILON)


def softmax(x: np.ndarray, axis: int) -> np.ndarray:
    power = np.exp(x - x.max(axis=axis, keepdims=True, initial=-np.inf))
    return power / power.sum(axis=axis, keepdims=True)


def grouped(x: np.ndarray, scale: np.ndarray, bias: np.ndarray) -> np.ndarray:
    n, c, *rest = x.shape
    apart = normal(x.reshape(n, 2, c // 2, *rest), tuple(range(2, x.ndim + 1)))
    return apart.reshape(x.shape) * channels(scale) + channels(bias)


def channels(a: np.ndarray) -> np.ndarray:
    return a.reshape(-1, 1, 1)


def windows(x: np.ndarray, outside: float) -> np.ndarray:
    """Of 3x3 at stride 2 with a border of 1: [N, C, h, w, 3, 3]."""
    padded = np.pad(x, [(0, 0), (0, 0), (1, 1), (1, 1)], constant_values=outside)
    return np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))[:, :, ::2, ::2]


WINDOW = "kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]"
EPS = "epsilon = 0.001"
KERNELS: dict[str, tuple[str, Formula]] = {  # x [N, C, H, W]; s, b and v [C], v positive; w [W]
    "softmax": ("Softmax<axis = 3>(x)", lambda x, s, b, v, w: softmax(x, 3)),
    "softmax of columns": ("Softmax<axis = 1>(x)", lambda x, s, b, v, w: softmax(x, 1)),
    "logarithm": ("LogSoftmax<axis = 2>(x)", lambda x, s, b, v, w: np.log(softmax(x, 2))),
    "layer": (f"LayerNormalization<axis = 3, {EPS}>(x, w, w)", lambda x, s, b, v, w: normal(x, (3,)) * w + w),
    "root": (f"RMSNormalization<axis = 3, {EPS}>(x, w)", lambda x, s, b, v, w: normal(x, (3,), centred=False) * w),
    "instance": (
        f"InstanceNormalization<{EPS}>(x, s, b)",
        lambda x, s, b, v, w: normal(x, (2, 3)) * channels(s) + channels(b),
    ),
    "group": (f"GroupNormalization<num_groups = 2, {EPS}>(x, s, b)", lambda x, s, b, v, w: grouped(x, s, b)),
    "batch": (
        f"BatchNormalization<{EPS}>(x, s, b, b, v)",
        lambda x, s, b, v, w: (x - channels(b)) / np.sqrt(channels(v) + EPSILON) * channels(s) + channels(b),
    ),
    "mean": ("GlobalAveragePool(x)", lambda x, s, b, v, w: x.mean(axis=(2, 3), keepdims=True)),
    "largest": ("GlobalMaxPool(x)", lambda x, s, b, v, w: x.max(axis=(2, 3), keepdims=True)),
    "max": (f"MaxPool<{WINDOW}>(x)", lambda x, s, b, v, w: windows(x, -np.inf).max(axis=(4, 5))),
    "average": (
        f"AveragePool<{WINDOW}>(x)",
        lambda x, s, b, v, w: windows(x, 0).sum(axis=(4, 5)) / windows(np.ones_like(x), 0).sum(axis=(4, 5)),
    ),
    "power": (f"LpPool<{WINDOW}>(x)", lambda x, s, b, v, w: np.sqrt((windows(x, 0) ** 2).sum(axis=(4, 5)))),
}


def kernel_model(name: str, dtype: str = "double") -> onnx.ModelProto:
    operands = f"{dtype}[N, C, H, W] x, {', '.join(f'{dtype}[C] {n}' for n in 'sbv')}, {dtype}[W] w"
    return model(operands, f"{dtype}[?, ?, ?, ?] y", f"y = {KERNELS[name][0]}", opset=23)


@pytest.fixture(scope="module")
def batch() -> Iterator[Batch]:
    prepare()
    models = {name: case.model() for name, case in CASES.items()} | {name: kernel_model(name) for name in KERNELS}
    with tempfile.TemporaryDirectory() as folder:
        yield Batch(Path(folder), models)


def both(batch: Batch, name: str, inputs: Arrays) -> dict[str, np.ndarray]:
    """The outputs, whose bits are the same on one thread and on two."""
    found, again = (batch.load(name, threads).run(inputs) for threads in (1, 2))
    for key, array in found.items():
        np.testing.assert_array_equal(array, again[key], err_msg=key)
    return found


def check(name: str, found: np.ndarray, wanted: np.ndarray) -> None:
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape), name
    if wanted.dtype != np.float64:
        np.testing.assert_allclose(found, wanted, rtol=1e-6, err_msg=name)
        return
    scale = np.abs(wanted[np.isfinite(wanted)]).max(initial=1)
    np.testing.assert_allclose(found, wanted, rtol=TOLERANCE, atol=TOLERANCE * scale, err_msg=name)


def test_who_refuses(batch: Batch) -> None:
    """No operator refuses doubles."""
    assert {CASES[name].op.name for name in batch.problems} == set(REFUSED)
    for name, problem in batch.problems.items():
        assert REFUSED[CASES[name].op.name] in problem


@pytest.mark.parametrize("name", CASES)
def test_an_example(batch: Batch, name: str) -> None:
    if name in batch.problems:
        pytest.skip(batch.problems[name])
    case = CASES[name]
    wanted = case.expected()
    for key, found in both(batch, name, case.given).items():
        check(key, found, wanted[key])


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel(batch: Batch, name: str, shape: tuple[int, ...]) -> None:
    assert name not in batch.problems, batch.problems[name]
    random = np.random.default_rng(shape)
    c, w = shape[1], shape[3]
    inputs = {"x": random.standard_normal(shape), **{n: random.standard_normal(c) for n in "sb"}}
    inputs |= {"v": random.uniform(0.5, 2, c), "w": random.standard_normal(w)}
    check(name, both(batch, name, inputs)["y"], KERNELS[name][1](**inputs))


@pytest.mark.parametrize("name", KERNELS)
def test_same_facts(name: str) -> None:
    double, single = (sod2.analyze(kernel_model(name, dtype)) for dtype in ("double", "float"))
    assert double["y"].shape == single["y"].shape
    assert double["y"].dtype == np.float64 and single["y"].dtype == np.float32


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_max_pool_of_bytes(dtype: type, tmp_path: Path) -> None:
    element = np.dtype(dtype).name
    source = model(f"{element}[N, C, H, W] x", f"{element}[?, ?, ?, ?] y", f"y = MaxPool<{WINDOW}>(x)")
    x = np.random.default_rng(1).integers(np.iinfo(dtype).min, np.iinfo(dtype).max, (2, 3, 9, 8)).astype(dtype)
    found = both(Batch(tmp_path, {"m": source}), "m", {"x": x})["y"]
    np.testing.assert_array_equal(found, windows(x, np.iinfo(dtype).min).max(axis=(4, 5)))
