"""onnxruntime's library for Android with our runner, on the cores of both phones, against onnxruntime here."""

from __future__ import annotations

import json
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from fake_phone_root import FLAVOURS, Root
from fake_phone_server import android_library, needs_emulator, phone_packages
from onnx import TensorProto, helper

from baselines import ort_android
from baselines.engine import Unsupported

SIZES = (1, 0, 40)


def model() -> onnx.ModelProto:
    """y = relu(x w) of any number of rows, and how many rows there are as an integer without dims."""
    weights = onnx.numpy_helper.from_array(np.linspace(-1, 1, 3 * 5, dtype=np.float32).reshape(3, 5), "w")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("Relu", ["m"], ["y"]),
        helper.make_node("Size", ["x"], ["n"]),
    ]
    outputs = [
        helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 5]),
        helper.make_tensor_value_info("n", TensorProto.INT64, []),
    ]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3])], outputs, [weights]
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runner beside a model, and samples with what onnxruntime says of them here."""
    android_library()
    folder = tmp_path_factory.mktemp("bundle")
    onnx.save(model(), folder / "model.onnx")
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"), providers=["CPUExecutionProvider"])
    for i, size in enumerate(SIZES):
        x = np.random.default_rng(i).standard_normal((size, 3), np.float32)
        np.save(folder / f"{i}.0.npy", x)
        for k, value in enumerate(session.run(None, {"x": x})):
            np.save(folder / f"want.{i}.{k}.npy", value)
    assert ort_android.place_runner(folder, arena=True, optimise=True) == ["./ort_runner", "-ao"]
    return folder


def answers(bundle: Path, root: Root, settings: str, commands: str, threads: int = 2) -> list[dict[str, Any]]:
    words = ["./ort_runner", settings, ".", str(threads)]
    run = subprocess.run(
        words, cwd=bundle, env=root.environment, input=commands, capture_output=True, text=True, check=False
    )
    assert run.stdout, run.stderr[-500:]
    return [json.loads(line) for line in run.stdout.splitlines()]


@pytest.mark.slow
@needs_emulator
@pytest.mark.parametrize("flavour", FLAVOURS)
def test_right_on_both_phones(flavour: str, bundle: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    root = Root(tmp_path / "phone", FLAVOURS[flavour])
    root.become_arm64(phone_packages(request.config))
    outputs = tmp_path / "outputs"
    outputs.mkdir()
    commands = "".join(f"run {i} 2 {outputs}\n" for i in range(len(SIZES)))
    ready, *lines = answers(bundle, root, "-ao", f"{commands}quit\n")
    assert (ready["engine"], ready["threads"]) == ("onnxruntime", 2)
    assert ready["version"].startswith("1.29.0")
    assert 60 <= ready["weight_bytes"] < 1 << 20
    assert [(line["sample"], line["repeat"], line["first"]) for line in lines] == [
        (i, repeat, repeat == 0) for i in range(len(SIZES)) for repeat in range(2)
    ]
    assert all(line["latency_ns"] > 0 and line["peak_bytes"] > 0 for line in lines)
    for file in sorted(bundle.glob("want.*.npy")):
        want, got = np.load(file), np.load(outputs / file.name.removeprefix("want."))
        assert (got.shape, got.dtype) == (want.shape, want.dtype)
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@needs_emulator
def test_peaks_and_mistakes(bundle: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    root = Root(tmp_path / "phone", FLAVOURS["s21"])
    root.become_arm64(phone_packages(request.config))
    large = np.ones((20000, 3), np.float32)
    np.save(bundle / "9.0.npy", large)
    _, line = answers(bundle, root, "-o", "run 9 1\nquit\n")
    result = 20000 * 5 * 4
    assert result <= line["peak_bytes"] <= 3 * result + (1 << 20)  # y, and at most m beside it; x is not counted
    _, error = answers(bundle, root, "-o", "run 77 1\n")
    assert error == {"error": "cannot open ./77.0.npy: No such file or directory"}


def test_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what is needed of an archive is kept, once; what is no such archive is refused with a sentence."""
    monkeypatch.setattr(ort_android, "ENVIRONMENTS", tmp_path / "envs")
    archive = tmp_path / "ort.aar"
    with zipfile.ZipFile(archive, "w") as content:
        for name in ("headers/a.h", "jni/arm64-v8a/libonnxruntime.so", "jni/x86/libonnxruntime.so", "classes.jar"):
            content.writestr(name, name)
    monkeypatch.setenv(ort_android.GIVEN, str(archive))
    folder = ort_android.package()
    assert sorted(str(p.relative_to(folder)) for p in folder.rglob("*.*")) == ["headers/a.h", "lib/libonnxruntime.so"]
    assert (folder / "lib" / "libonnxruntime.so").read_text() == "jni/arm64-v8a/libonnxruntime.so"
    assert ort_android.package() == folder
    with zipfile.ZipFile(archive, "w") as content:
        content.writestr("classes.jar", "")
    with pytest.raises(Unsupported, match=r"ort\.aar has no headers and jni/arm64-v8a/libonnxruntime\.so: give the"):
        ort_android.package()
    assert [path.name for path in (tmp_path / "envs").iterdir() if path.is_dir()] == [folder.name]
    monkeypatch.setenv(ort_android.GIVEN, str(tmp_path / "none"))
    with pytest.raises(Unsupported, match=r"\$SOD2_ORT_AAR is '.*none', which is no file"):
        ort_android.package()
    monkeypatch.delenv(ort_android.GIVEN)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unsupported, match="comes with npm, which is not installed: install it, or set"):
        ort_android.package()
