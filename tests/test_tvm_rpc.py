"""TVM on a phone by its RPC server: the server's stand-in on the fake phone, behind the real adb server."""

from __future__ import annotations

import json
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from fake_phone import FakePhone
from fake_phone_server import adb_server, settings
from onnx import TensorProto, helper, numpy_helper

from baselines import engine, environment, tvm_rpc
from baselines.engine import Bundle
from baselines.measure import Measurement, Protocol
from baselines.session import EngineFailure
from devices import device as devices
from devices.device import Device
from devices.driver import DeviceError, DeviceLost

PROTOCOL = Protocol(samples=3, selection="quantiles", seed=0, repeats=2, time_limit_s=60, memory_limit_gib=1)
SIZES = (1, 7)
COMMAND = ["program/tvm_rpc"]
STAND_IN = Path(__file__).with_name("stand_in_tvm_rpc.py")
AARCH64 = 183


def halved() -> onnx.ModelProto:
    """y = relu(x w) of 2 h rows, of which every two are averaged: `h` is no dim of the input, but an argument."""
    weights = np.random.default_rng(0).standard_normal((3, 4), np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("Relu", ["m"], ["r"]),
        helper.make_node("AveragePool", ["r"], ["y"], kernel_shape=[2, 1], strides=[2, 1]),
    ]
    graph = helper.make_graph(
        nodes,
        "halved",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, "2*h", 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 1, "h", 4])],
        [numpy_helper.from_array(weights, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "m.onnx"
    onnx.save(halved(), path)
    return path


@pytest.fixture(scope="module")
def samples(model: Path) -> Path:
    folder = model.parent / "samples"
    (folder / "reference").mkdir(parents=True)
    for i, size in enumerate(SIZES):
        x = np.random.default_rng(i).standard_normal((1, 1, 2 * size, 3), np.float32)
        np.save(folder / f"{i}.0.npy", x)
        np.save(folder / "reference" / f"{i}.0.npy", onnxruntime.InferenceSession(model).run(None, {"x": x})[0])
    index = [{"shapes": [[1, 1, 2 * size, 3]], "path": None, "macs": size, "macs_all": size} for size in SIZES]
    (folder / "samples.json").write_text(json.dumps(index))
    return folder


@pytest.fixture(scope="module")
def bundle(model: Path) -> Path:
    """As for Android, but compiled for this machine, whose programs the fake phone runs."""
    folder = model.parent / "bundle"
    folder.mkdir()
    host = devices.load("host")
    built = engine.build(folder, name="tvm", adapter="tvm", options={}, model=model, device=host, processor="cpu")
    assert built.command, built.failed
    command = [*COMMAND, *tvm_rpc.place_client(folder)]
    Bundle("tvm", "tvm", built.version, {}, 1e-4, command).write(folder)
    (folder / "program").symlink_to(folder.parent / "given")
    (folder.parent / "given").mkdir()
    return folder


def give(bundle: Path, script: str) -> None:
    """Make this the phone's tvm_rpc."""
    program = bundle / "program" / "tvm_rpc"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


@pytest.fixture
def phone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakePhone]:
    (tmp_path / "home").mkdir()
    with adb_server(tmp_path / "home"), FakePhone(tmp_path / "phone", "s21") as phone:
        monkeypatch.setenv("PHONE_UNDER_TEST", phone.address)
        yield phone


@pytest.fixture
def device(phone: FakePhone) -> Device:
    device = Device("s21", settings("s21", "PHONE_UNDER_TEST"))
    device.connect()
    return device


def give_stand_in(bundle: Path) -> None:
    python = environment.python(tvm_rpc.RUNNER).absolute()
    give(bundle, f'[ "$TVM_NUM_THREADS" ] && exec {python} {STAND_IN} "$@"')


def start(device: Device, bundle: Path, samples: Path) -> tvm_rpc.RpcSession:
    command, outputs = Bundle.read(bundle).command, device.files.scratch()
    return tvm_rpc.RpcSession(
        device, bundle, command, samples=samples, outputs=outputs, threads=1, limits=PROTOCOL.limits
    )


def servers() -> list[str]:
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    return [line for line in listed.splitlines() if f"{STAND_IN} server" in line]


def test_rows(device: Device, phone: FakePhone, bundle: Path, samples: Path) -> None:
    """Right numbers at every size, times of the phone's clock, and nothing left on it."""
    give_stand_in(bundle)
    measurement = Measurement(device, "cpu", model="halved", variant="tiny", samples=samples, protocol=PROTOCOL)
    found = list(measurement.rows([bundle]))
    assert [row.reason for row in found if row.reason] == []
    assert [(row.sample, row.repeat) for row in found] == [(i, k) for i in range(len(SIZES)) for k in range(3)]
    assert all(row.error is not None and row.error <= 1e-5 for row in found)
    assert all(row.latency_ns and row.first is False and row.peak_bytes is None for row in found)
    assert {row.unscheduled for row in found} <= {0.0, None}
    assert all(row.version and row.version.endswith("server as given") for row in found)
    assert not (phone.root.data / "sod2" / "scratch").exists()
    assert servers() == []


def test_lost_in_the_middle(device: Device, phone: FakePhone, bundle: Path, samples: Path) -> None:
    """The connection is what failed, not the engine; when it is back, a new session works."""
    give_stand_in(bundle)
    session = start(device, bundle, samples)
    assert [line["latency_ns"] > 0 for line in session.run(0, 2)] == [True, True]
    phone.pull_cable()
    with pytest.raises(DeviceLost, match="the connection broke off while a program ran"):
        session.run(1, 1)
    session.kill()
    device.recover(DeviceLost("lost"))
    session = start(device, bundle, samples)
    assert len(session.run(1, 1)) == 1
    session.close()
    assert servers() == []


def test_a_server_that_ends(device: Device, bundle: Path, samples: Path) -> None:
    give(bundle, "echo 'CANNOT LINK EXECUTABLE: library \"libtvm_runtime.so\" not found' >&2; exit 1")
    with pytest.raises(EngineFailure, match=r"^tvm_rpc ended with status 1: CANNOT LINK EXECUTABLE: library"):
        start(device, bundle, samples)


def test_only_adb_forwards_ports() -> None:
    with pytest.raises(DeviceError, match="this machine is not reached by adb, which alone forwards port 7"):
        devices.load("host").driver.forward(7)


def test_a_library_for_android(model: Path, tmp_path: Path) -> None:
    """For the phone's processor, and in need of no other libraries than Android has."""
    (tmp_path / "given").mkdir()
    (tmp_path / "given" / "tvm_rpc").touch()
    (tmp_path / "out").mkdir()
    file = settings("s21", "P", emulated=True) | {"programs": {"tvm": str(tmp_path / "given")}}
    built = engine.build(
        tmp_path / "out", name="tvm", adapter="tvm", options={}, model=model, device=Device("s21", file),
        processor="cpu",
    )  # fmt: skip
    assert (built.command[0], built.command[2]) == ("program/tvm_rpc", "tvm_rpc_client.py")
    library = (tmp_path / "out" / "model.so").read_bytes()
    assert struct.unpack_from("<H", library, 18) == (AARCH64,)
    assert b"\0libm.so\0" in library
    assert b"libc.so.6" not in library
