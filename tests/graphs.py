"""Tiny ONNX models in ONNX's text form, for several test modules, and the oracle that runs them.

model("float[N, 4] x", "float[N, 4] y", "y = Relu(x)")
"""

from collections.abc import Mapping

import numpy as np
import onnx
import onnxruntime

Arrays = Mapping[str, np.ndarray]
OPSET = 21


def model(inputs: str, outputs: str, body: str, stored: Arrays | None = None, opset: int = OPSET) -> onnx.ModelProto:
    """A model of one graph `g`; `stored` become initializers, which keeps arrays out of the text."""
    text = f'<ir_version: 10, opset_import: ["" : {opset}]> g ({inputs}) => ({outputs}) {{ {body} }}'
    built = onnx.parser.parse_model(text)
    built.graph.initializer.extend(onnx.numpy_helper.from_array(a, name) for name, a in (stored or {}).items())
    return built


def session(source: onnx.ModelProto) -> onnxruntime.InferenceSession:
    """onnxruntime without its graph optimisations, so that every intermediate keeps its meaning."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(source.SerializeToString(), options, providers=["CPUExecutionProvider"])


def expected(source: onnx.ModelProto, inputs: Arrays) -> dict[str, np.ndarray]:
    """What onnxruntime computes."""
    names = [o.name for o in source.graph.output]
    return dict(zip(names, session(source).run(None, dict(inputs)), strict=True))


def assert_close(actual: Arrays, wanted: Arrays, tolerance: float = 1e-4, floor: float = 1e-30) -> None:
    """Same names, shapes and dtypes; floats within `tolerance` of each output's scale, the rest exactly.

    `floor` is the least scale: what is left of numbers of order one that cancel is noise.
    """
    assert list(actual) == list(wanted)
    for name, right in wanted.items():
        found = actual[name]
        assert (found.shape, found.dtype) == (right.shape, right.dtype), name
        if right.dtype.kind == "f":
            scale = np.abs(right[np.isfinite(right)], dtype=np.float64).max(initial=floor)
            np.testing.assert_allclose(found, right, rtol=0, atol=tolerance * scale, err_msg=name)
        else:
            np.testing.assert_array_equal(found, right, err_msg=name)


def random(dtype: np.dtype | type, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Standard normal floats, integers in -4..4, or booleans."""
    rng = np.random.default_rng([seed, *shape])
    kind = np.dtype(dtype).kind
    if kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    return (rng.standard_normal(shape) if kind == "f" else rng.integers(-4, 5, shape)).astype(dtype)
