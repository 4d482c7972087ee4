"""Element types: every one through loads, stores, arithmetic, comparison, movement and casts, against numpy."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper

from sod2 import reference
from sod2.dtypes import ELEMENT_TYPES, is_float
from sod2.frontend import load
from tests.batch import Batch, prepare

NAMES = {dtype.name: dtype for dtype in ELEMENT_TYPES}
NUMBERS = [name for name in NAMES if name != "bool"]
ARITHMETIC = ("Add", "Sub", "Mul", "Max", "Min")
SHAPES = ((2, 3), (1, 3)), ((0, 3), (1, 3)), ((2, 1), (2, 3))


def graph(nodes: list[onnx.NodeProto], dtype: np.dtype, outputs: dict[str, np.dtype]) -> onnx.ModelProto:
    """A model of two matrices a and b with symbolic dims."""
    given = [helper.make_tensor_value_info(n, number(dtype), [f"{n}0", f"{n}1"]) for n in "ab"]
    results = [helper.make_tensor_value_info(n, number(d), None) for n, d in outputs.items()]
    return helper.make_model(helper.make_graph(nodes, "g", given, results), ir_version=10)


def number(dtype: np.dtype) -> int:
    return helper.np_dtype_to_tensor_dtype(dtype)


def arithmetic(name: str) -> onnx.ModelProto:
    """All binary operators on one dtype, fused and apart; what is compared is of numbers that every type holds."""
    dtype = NAMES[name]
    nodes = [helper.make_node(op, ["a", "b"], [op]) for op in ARITHMETIC]
    nodes += [helper.make_node("Less", ["a", "b"], ["less"]), helper.make_node("Where", ["less", "a", "b"], ["where"])]
    nodes += [helper.make_node("Transpose", ["Add"], ["turned"]), helper.make_node("Mul", ["Add", "Sub"], ["square"])]
    outputs = {**dict.fromkeys((*ARITHMETIC, "where", "turned", "square"), dtype), "less": np.dtype(bool)}
    return graph(nodes, dtype, outputs)


def casts(name: str) -> onnx.ModelProto:
    """One dtype to all others."""
    nodes = [helper.make_node("Cast", ["a"], [f"to_{t}"], to=number(d)) for t, d in NAMES.items()]
    nodes += [helper.make_node("Identity", ["b"], ["same"])]
    return graph(nodes, NAMES[name], {**{f"to_{t}": d for t, d in NAMES.items()}, "same": NAMES[name]})


MODELS = {f"arithmetic {n}": arithmetic(n) for n in NUMBERS} | {f"casts {n}": casts(n) for n in NAMES}


@pytest.fixture(scope="module")
def batch() -> Iterator[Batch]:
    prepare()
    with tempfile.TemporaryDirectory() as folder:
        yield Batch(Path(folder), MODELS)


def arrays(name: str, shapes: tuple[tuple[int, ...], ...]) -> dict[str, np.ndarray]:
    """Small numbers, with halves for floats and negative ones where the type has them."""
    dtype, rng = NAMES[name.split()[1]], np.random.default_rng(3)
    low = 0 if dtype.kind in "ub" else -5
    made = {}
    for n, shape in zip("ab", shapes, strict=True):
        whole = rng.integers(low, 6, shape)
        made[n] = (whole / 2 if is_float(dtype) else whole).astype(dtype)
    return made


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_dtype(batch: Batch, name: str, shapes: tuple[tuple[int, ...], ...]) -> None:
    assert name not in batch.problems, batch.problems[name]
    inputs = arrays(name, shapes)
    with np.errstate(all="ignore"):
        wanted = reference.run(load(MODELS[name]), inputs)
    for key, found in batch.load(name).run(inputs).items():
        assert (found.dtype, found.shape) == (wanted[key].dtype, wanted[key].shape), key
        np.testing.assert_array_equal(found.astype(np.float64), wanted[key].astype(np.float64), err_msg=key)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16], ids=["float16", "bfloat16"])
def test_kernels_of_16_bits(dtype: type, tmp_path: Path) -> None:
    """A product, a bias, a Softmax and a reduction compute in float and round to 16 bits in between."""
    weights = np.random.default_rng(4).standard_normal((3, 5)).astype(dtype)
    nodes = [
        helper.make_node("MatMul", ["a", "w"], ["m"]),
        helper.make_node("Add", ["m", "c"], ["s"]),
        helper.make_node("Softmax", ["s"], ["p"]),
        helper.make_node("ReduceSum", ["s"], ["r"], keepdims=0),
    ]
    source = graph(nodes, np.dtype(dtype), dict.fromkeys("spr", np.dtype(dtype)))
    source.graph.initializer.extend(onnx.numpy_helper.from_array(a, n) for n, a in (("w", weights), ("c", weights[0])))
    batch = Batch(tmp_path, {"m": source})
    assert batch.problems == {}
    inputs = {"a": np.ones((4, 3), dtype), "b": np.ones((1, 1), dtype)}
    wanted = reference.run(load(source), inputs)
    for key, found in batch.load("m").run(inputs).items():
        assert found.dtype == wanted[key].dtype
        np.testing.assert_allclose(found.astype(float), wanted[key].astype(float), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16], ids=["float16", "bfloat16"])
def test_batch_normalization_of_16_bits(dtype: type, tmp_path: Path) -> None:
    """An element expression: no Cast is put around it."""
    random = np.random.default_rng(5)
    stored = {name: random.uniform(0.5, 2, 3).astype(dtype) for name in ("scale", "bias", "mean", "variance")}
    node = helper.make_node("BatchNormalization", ["a", *stored], ["y"])
    source = graph([node], np.dtype(dtype), {"y": np.dtype(dtype)})
    source.graph.initializer.extend(onnx.numpy_helper.from_array(a, n) for n, a in stored.items())
    batch = Batch(tmp_path, {"m": source})
    assert batch.problems == {}
    inputs = {"a": random.standard_normal((4, 3)).astype(dtype), "b": np.ones((1, 1), dtype)}
    found, wanted = batch.load("m").run(inputs)["y"], reference.run(load(source), inputs)["y"]
    assert found.dtype == wanted.dtype
    np.testing.assert_allclose(found.astype(float), wanted.astype(float), rtol=1e-2)
