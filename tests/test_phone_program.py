"""Engines by their makers' programs: what these print, as recorded, and stand-ins measured on the fake phone."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from fake_phone import FakePhone
from fake_phone_server import adb_server, settings

from baselines import engine, phone_program
from baselines.engine import Bundle
from baselines.measure import Measurement, Protocol
from baselines.phone_program import BenchmarkModel, ModuleBasic
from baselines.samples import Sample
from baselines.session import EngineFailure
from devices.device import Device
from models import build

PROTOCOL = Protocol(samples=2, selection="quantiles", seed=0, repeats=2, time_limit_s=20, memory_limit_gib=1)
# Of mobilenetv2-7 with 10 runs, from MNN's documentation of its tools.
MNN_PRINTS = """Test mobilenetv2-7.mnn from input info: onnx
input
output: output
Use extra forward type: 0
precision=0 in main, 291
cacheFileName=s .tempcache in main, 292
Load Cache file error.
before compare output: (1, 1000, )
Write output output to output/0.txt
memoryInMB=f 22.605423 in main, 428
Avg= 9.946699 ms, min= 9.472000 ms, max= 10.227000 ms
"""
# Of two releases of benchmark_model, on a phone: with and without a level before each line.
TFLITE_PRINTS = """STARTING!
Graph: [/data/local/tmp/yolov5s_fp32_640.tflite]
count=50 first=249042 curr=250889 min=247067 max=254474 avg=249684 std=1442

Inference timings in us: Init: 16242, First inference: 360262, Warmup (avg): 304586, Inference (avg): 249684
"""
TFLITE_PRINTS_LEVELS = """INFO: count=50 first=1249964 curr=1240143 min=1238588 max=1252566 avg=1.24027e+06 std=2565 p5=1238753
INFO: Inference timings in us: Init: 5579, First inference: 1357602, Warmup (avg): 1.3576e+06, Inference (avg): 1.24027e+06
"""  # noqa: E501


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A bundle's folder but for the program."""
    folder = tmp_path / "bundle"
    folder.mkdir()
    content = {"inputs": ["x", "y"], "outputs": ["z"], "xnnpack": False, "models": "models"}
    (folder / "settings.json").write_text(json.dumps(content))
    return folder


def test_what_module_basic_prints(folder: Path) -> None:
    program = ModuleBasic(folder)
    told = program.parse(MNN_PRINTS, first=True)
    names = ("first", "latency_ns", "own_bytes", "peak_bytes")
    assert [told[name] for name in names] == [False, 9946699, 23703504, None]
    with pytest.raises(EngineFailure, match=r"ModuleBasic\.out tells no time: Error: can't load module"):
        program.parse("Test m.mnn\nError: can't load module\n", first=True)
    with pytest.raises(EngineFailure, match="it printed nothing"):
        program.parse("", first=False)


def test_what_benchmark_model_prints(folder: Path) -> None:
    program = BenchmarkModel(folder)
    first, again = (program.parse(TFLITE_PRINTS, first) for first in (True, False))
    assert (first["first"], first["latency_ns"], first["bind_ns"]) == (True, (16242 + 360262) * 1000, 16242000)
    assert (again["first"], again["latency_ns"], again["bind_ns"]) == (False, 249684000, 0)
    assert program.parse(TFLITE_PRINTS_LEVELS, first=False)["latency_ns"] == 1240270000
    with pytest.raises(EngineFailure, match="benchmark_model tells no times: ERROR: Failed to load"):
        program.parse("STARTING!\nERROR: Failed to load\n", first=True)


def test_inputs_and_arguments(folder: Path, tmp_path: Path) -> None:
    sample = Sample(0, ((2, 1), (0,)), "01", None, None)
    arrays = [np.array([[1.5], [-2]], np.float32), np.array([], np.int64)]
    (tmp_path / "mnn").mkdir()
    ModuleBasic(folder).write_inputs(sample, arrays, tmp_path / "mnn")
    assert (tmp_path / "mnn" / "x.txt").read_text().split() == ["1.5", "-2"]
    assert (tmp_path / "mnn" / "y.txt").read_text() == ""
    told = json.loads((tmp_path / "mnn" / "input.json").read_text())
    assert told == {"inputs": [{"name": "x", "shape": [2, 1]}, {"name": "y", "shape": [0]}], "outputs": ["z"]}
    words = ModuleBasic(folder).arguments("../b", "../i", sample, 8)
    assert words == ["../b/model.mnn", "../i", "0", "0", "1", "8", "1"]
    (folder / "models").mkdir()
    (folder / "models" / "2x1-0-01.tflite").write_bytes(b"TFL3")
    (tmp_path / "tflite").mkdir()
    BenchmarkModel(folder).write_inputs(sample, arrays, tmp_path / "tflite")
    assert (tmp_path / "tflite" / "0.bin").read_bytes() == arrays[0].tobytes()
    words = BenchmarkModel(folder).arguments("../b", "../i", sample, 8)
    assert {"--graph=../i/model.tflite", "--input_layer_shape=2,1:0", "--use_xnnpack=false"} < set(words)
    like = [np.zeros((2, 1), np.float32), np.zeros(3, np.int64)]
    (tmp_path / "output.bin").write_bytes(arrays[0].tobytes() + np.arange(3).tobytes())
    outputs = BenchmarkModel(folder).read_outputs(tmp_path, like)
    assert [array.tolist() for array in outputs] == [[1.5, -2], [0, 1, 2]]
    (first,) = BenchmarkModel(folder).read_outputs(tmp_path, like[:1])  # the rest is what gates decide
    assert first.tolist() == [1.5, -2]
    assert BenchmarkModel(folder).read_outputs(tmp_path, [*like, like[0]]) == []  # shorter than the reference's


# ---- on the fake phone ----

STAND_IN = """#!/bin/sh
[ "$LD_LIBRARY_PATH" = "${0%/*}" ] || exit 9
awk '{print 2 * $1}' "$2/x.txt" >output/0.txt
echo "memoryInMB=f 1.5 in main, 428"
echo "Avg= 0.25 ms, min= 0.2 ms, max= 0.3 ms" >&2
"""


@pytest.fixture
def phone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakePhone]:
    (tmp_path / "home").mkdir()
    with adb_server(tmp_path / "home"), FakePhone(tmp_path / "phone", "s21") as phone:
        monkeypatch.setenv("PHONE_UNDER_TEST", phone.address)
        yield phone


def test_rows_of_a_program(phone: FakePhone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside an engine that speaks the protocol; two samples of y = 2 x."""
    samples = tmp_path / "samples"
    (samples / "reference").mkdir(parents=True)
    for i, size in enumerate((3, 2)):
        x = np.arange(1, size + 1, dtype=np.float32)
        np.save(samples / f"{i}.0.npy", x)
        np.save(samples / "reference" / f"{i}.0.npy", 2 * x)
    index = [{"shapes": [[size]], "path": None, "macs": size, "macs_all": size} for size in (3, 2)]
    (samples / "samples.json").write_text(json.dumps(index))
    given = tmp_path / "given"
    given.mkdir()
    (given / "ModuleBasic.out").write_text(STAND_IN)
    (given / "ModuleBasic.out").chmod(0o755)
    file = settings("s21", "PHONE_UNDER_TEST") | {"programs": {"mnn": "$GIVEN"}}
    monkeypatch.setenv("GIVEN", str(given))
    (tmp_path / "mnn").mkdir()
    android = Device("s21", file | {"platform": "android-arm64"})
    command = phone_program.choose("mnn", "ModuleBasic.out", android, tmp_path / "mnn")
    device = Device("s21", file)
    device.connect()
    (tmp_path / "mnn" / "settings.json").write_text('{"inputs": ["x"], "outputs": ["y"]}')
    Bundle("mnn", "mnn", "1", {}, 1e-2, command).write(tmp_path / "mnn")
    (tmp_path / "other").mkdir()
    runner = Path(__file__).with_name("stand_in_runner.py")
    Bundle("other", "stand-in", "1", {}, 1e-4, [sys.executable, str(runner), "good"]).write(tmp_path / "other")
    measurement = Measurement(device, "cpu", model="double", variant="tiny", samples=samples, protocol=PROTOCOL)
    found = list(measurement.rows([tmp_path / "mnn", tmp_path / "other"]))
    own = [row for row in found if row.engine == "mnn"]
    assert [row.reason for row in found if row.reason] == []
    assert [(row.sample, row.repeat, row.error, row.latency_ns, row.own_bytes) for row in own] == [
        (sample, repeat, 0.0, 250000, 3 << 19) for sample in (1, 0) for repeat in range(3)
    ]
    assert len(found) == 12
    assert not (phone.root.data / "sod2" / "scratch").exists()


def test_a_program_that_fails(phone: FakePhone, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "given").mkdir()
    (tmp_path / "given" / "ModuleBasic.out").write_text("#!/bin/sh\necho 'CANNOT LINK EXECUTABLE'\nexit 1\n")
    (tmp_path / "given" / "ModuleBasic.out").chmod(0o755)
    (folder / "program").symlink_to(tmp_path / "given")
    (tmp_path / "samples").mkdir()
    np.save(tmp_path / "samples" / "0.0.npy", np.ones(1, np.float32))
    np.save(tmp_path / "samples" / "0.1.npy", np.ones(1, np.float32))
    index = [{"shapes": [[1], [1]], "path": None, "macs": 1, "macs_all": 1}]
    (tmp_path / "samples" / "samples.json").write_text(json.dumps(index))
    device = Device("s21", settings("s21", "PHONE_UNDER_TEST"))
    session = phone_program.ProgramSession(
        device, folder, ["program/ModuleBasic.out"], samples=tmp_path / "samples", outputs=device.files.scratch(),
        threads=1, limits=PROTOCOL.limits,
    )  # fmt: skip
    with pytest.raises(EngineFailure, match="ended with status 1: CANNOT LINK EXECUTABLE"):
        session.run(0, 1)


@pytest.mark.parametrize(
    ("adapter", "programs", "reason"),
    [
        ("mnn", {}, r"mnn has no package for android-arm64: name a folder with ModuleBasic\.out for android-arm64 and"
         r" its libraries in devices/p\.yaml \(programs: \{mnn: FOLDER\}\)"),
        ("mnn", {"mnn": "/nowhere"}, r"/nowhere has no ModuleBasic\.out: name a folder"),
        ("tflite", {}, r"tflite has no package for android-arm64: name a folder with benchmark_model"),
        ("tvm", {}, "tvm has no package for android-arm64: name a folder with tvm_rpc for android-arm64 and its"),
    ],
)  # fmt: skip
def test_what_a_phone_without_programs_says(
    adapter: str, programs: dict[str, str], reason: str, tmp_path: Path
) -> None:
    onnx.save(build("codebert", "tiny"), tmp_path / "model.onnx")
    (tmp_path / "out").mkdir()
    file = {"driver": "adb", "title": "P", "processors": ["cpu"], "address": "P", "platform": "android-arm64"}
    device = Device("p", file | {"cores": {"all": {"mask": "f"}}, "programs": programs})
    built = engine.build(
        tmp_path / "out", name="e", adapter=adapter, options={}, model=tmp_path / "model.onnx", device=device,
        processor="cpu",
    )  # fmt: skip
    assert built.unsupported is not None
    assert re.match(reason, built.unsupported)
