"""Weights of a checkpoint: the safetensors reader, what fits and what is refused, and what becomes of the numbers."""

import json
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from models import MODELS, __main__, build, checkpoint, declared
from models.inputs import concrete_shape, contents, generator
from tests.plain_layers import weights_of

Tensors = dict[str, np.ndarray]


def write(path: Path, tensors: Tensors, types: dict[str, str] | None = None, metadata: bool = True) -> Path:
    """A safetensors file, by the description of the format."""
    kinds = {"float32": "F32", "float16": "F16", "float64": "F64", "int64": "I64"}
    header: dict[str, object] = {"__metadata__": {"format": "pt"}} if metadata else {}
    place = 0
    for name, array in tensors.items():
        kind = (types or {}).get(name, kinds.get(array.dtype.name, "BF16"))
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [place, place + array.nbytes]}
        place += array.nbytes
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(a.tobytes() for a in tensors.values()))
    return path


def random_checkpoint(name: str) -> Tensors:
    """Random tensors for everything that the small variant declares."""
    p = declared(name, "tiny")
    rng = np.random.default_rng(5)
    tensors = {}
    for key, shape in (p.upstream | p.buffers).items():
        values = rng.normal(0, 0.2, shape).astype(np.float32)
        tensors[key] = np.abs(values) + np.float32(0.5) if key.endswith("running_var") else values
    return tensors


def test_reads_every_type_scalars_and_empty_tensors(tmp_path: Path) -> None:
    wide = np.array([1.5, -2.25, 3e38], np.float32)
    tensors = {
        "half": np.array([[1, 2.5]], np.float16),
        "double": np.array([1 / 3]),
        "scalar": np.array(7, np.int64),
        "empty": np.zeros((0, 3), np.float32),
        "brain": (wide.view(np.uint32) >> 16).astype(np.uint16),
    }
    read = checkpoint.read(write(tmp_path / "w.safetensors", tensors))
    assert set(read) == set(tensors)
    for key in ("half", "double", "scalar", "empty"):
        np.testing.assert_array_equal(read[key], tensors[key])
        assert read[key].shape == tensors[key].shape
    np.testing.assert_allclose(read["brain"], wide, rtol=2**-8)
    assert checkpoint.read(write(tmp_path / "nothing.safetensors", {}, metadata=False)) == {}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "no safetensors file: its header does not fit into 0 bytes"),
        (b"\x00" * 7, "no safetensors file"),
        (b"PK\x03\x04" + b"\xff" * 40, "no safetensors file: its header does not fit"),
        ((4).to_bytes(8, "little") + b"{{{{", "its header is no JSON"),
        ((2).to_bytes(8, "little") + b"[]", "its header is no JSON object"),
    ],
)
def test_refuses_other_files(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "w.bin"
    path.write_bytes(data)
    with pytest.raises(ValueError, match=message):
        checkpoint.read(path)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"dtype": "F8_E4M3", "shape": [1], "data_offsets": [0, 4]}, "F8_E4M3"),
        ({"dtype": "F32", "shape": [3], "data_offsets": [0, 4]}, "'x' .* does not fit its bytes"),
        ({"dtype": "F32", "shape": [1]}, "data_offsets"),
    ],
)
def test_refuses_a_tensor_that_its_header_describes_wrongly(tmp_path: Path, entry: object, message: str) -> None:
    text = json.dumps({"x": entry}).encode()
    path = tmp_path / "w.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(4))
    with pytest.raises(ValueError, match=message):
        checkpoint.read(path)


@pytest.mark.parametrize("prefix", ["", "module.", "net.0."])
def test_fit_reports_what_is_unused_and_strips_a_common_prefix(prefix: str) -> None:
    tensors = {prefix + key: value for key, value in random_checkpoint("codebert").items()}
    tensors |= {"pooler.dense.weight": np.zeros(1), prefix + "bn.num_batches_tracked": np.zeros(())}
    fit = checkpoint.fit(declared("codebert", "tiny"), tensors)
    assert fit.extra == ["pooler.dense.weight"]
    assert fit.report() == f"loaded {len(tensors) - 2} tensors, left 1 unused: pooler.dense.weight"


def test_fit_names_what_is_missing_or_of_another_shape() -> None:
    tensors = random_checkpoint("convnet_aig")
    tensors["fc.weight"] = tensors["fc.weight"].T
    with pytest.raises(ValueError, match=r"'fc.weight' has shape \[256, 10\]: \[10, 256\] is wanted"):
        checkpoint.fit(declared("convnet_aig", "tiny"), tensors)
    missing = {key: value for key, value in tensors.items() if "running" not in key}
    with pytest.raises(ValueError, match=r"tensors are missing in the weights: bn1.running_mean, .* and \d+ more"):
        checkpoint.fit(declared("convnet_aig", "tiny"), missing)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_every_model_is_built_from_a_checkpoint_of_its_own_names(name: str) -> None:
    tensors = random_checkpoint(name)
    model = build(name, "tiny", tensors)
    assert all(np.isfinite(value).all() for value in weights_of(model).values())
    shapes = {v.name: concrete_shape(v, {s: e.low for s, e in MODELS[name].symbols.items()}) for v in model.graph.input}
    inputs = contents(MODELS[name], "tiny", shapes, generator("test"))
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    assert all(np.isfinite(output).all() for output in session.run(None, inputs))


def test_batch_norm_of_a_checkpoint_is_folded_from_its_running_statistics() -> None:
    tensors = random_checkpoint("convnet_aig")
    stored = weights_of(build("convnet_aig", "tiny", tensors))
    gain = tensors["bn1.weight"] / np.sqrt(tensors["bn1.running_var"] + 1e-5)
    np.testing.assert_allclose(stored["conv1.weight"], tensors["conv1.weight"] * gain[:, None, None, None], rtol=1e-5)
    np.testing.assert_allclose(
        stored["conv1.bias"], tensors["bn1.bias"] - tensors["bn1.running_mean"] * gain, rtol=1e-4, atol=1e-6
    )
    name = "layer1.0.fc1"
    gain = tensors[f"{name}bn.weight"] / np.sqrt(tensors[f"{name}bn.running_var"] + 1e-5)
    shift = tensors[f"{name}bn.bias"] + (tensors[f"{name}.bias"] - tensors[f"{name}bn.running_mean"]) * gain
    np.testing.assert_allclose(stored[f"{name}.bias"], shift, rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(stored["layer1.0.fc2.bias"], tensors["layer1.0.fc2.bias"])  # no calibrated shift


def test_matrices_and_lstm_of_a_checkpoint_take_our_layout() -> None:
    tensors = random_checkpoint("codebert")
    key = "encoder.layer.0.intermediate.dense.weight"
    assert tensors[key].shape == (256, 128)
    np.testing.assert_array_equal(weights_of(build("codebert", "tiny", tensors))[key], tensors[key].T)
    tensors = random_checkpoint("skipnet")
    stored = weights_of(build("skipnet", "tiny", tensors))
    i, f, c, o = np.split(tensors["control.rnn.weight_ih_l0"], 4)
    np.testing.assert_array_equal(stored["control.rnn.weight_ih_l0"][0], np.concatenate([i, o, f, c]))
    assert stored["gates.0.threshold"] == 0


def test_export_with_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "w.safetensors", random_checkpoint("yolov6") | {"detect.proj": np.zeros(3, np.float32)})
    out = tmp_path / "net.onnx"
    assert __main__.main(["export", "yolov6", str(out), "--variant", "tiny", "--weights", str(path)]) == 0
    assert "left 1 unused: detect.proj" in capsys.readouterr().out
    assert out.is_file()
    write(path, {"backbone.stem.weight": np.zeros(3, np.float32)})
    assert (
        __main__.main(["export", "yolov6", str(tmp_path / "b.onnx"), "--variant", "tiny", "--weights", str(path)]) == 2
    )
    assert "tensors are missing in the weights" in capsys.readouterr().err
    assert sorted(file.name for file in tmp_path.iterdir()) == ["net.onnx", "w.safetensors"]
