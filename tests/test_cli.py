"""Inputs of a run and the command line: what is refused, with one sentence, status 1, and nothing half written."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

import models
import sod2
from sod2.__main__ import main
from tests.graphs import model


@pytest.fixture(scope="module")
def compiled() -> sod2.CompiledModel:
    return sod2.compile(model("float[N, 4] x, int64[N] i", "float[N, 4] y", "y = Relu(x)"))


GOOD = {"x": np.ones((2, 4), np.float32), "i": np.zeros(2, np.int64)}
BAD_INPUTS = {
    "missing": ({"x": GOOD["x"]}, "'i' is missing"),
    "unknown": ({**GOOD, "q": GOOD["i"]}, "'q'"),
    "rank": ({**GOOD, "x": GOOD["i"].astype(np.float32)}, "'x' has rank 1"),
    "dtype": ({**GOOD, "x": GOOD["x"].astype(np.float64)}, "float64"),
    "constant dim": ({**GOOD, "x": np.ones((2, 5), np.float32)}, "dim 1 is 5"),
    "two sizes of one symbol": ({**GOOD, "i": np.zeros(3, np.int64)}, "'i' is 3"),
    "not an array": ({**GOOD, "x": "hello"}, "'x' has dtype"),
}


@pytest.mark.parametrize(("inputs", "offender"), BAD_INPUTS.values(), ids=BAD_INPUTS)
def test_bad_inputs(compiled: sod2.CompiledModel, inputs: dict, offender: str) -> None:
    """Each is refused, and the model runs on afterwards."""
    with pytest.raises(sod2.InputError, match=offender) as caught:
        compiled.run(inputs)
    assert "\n" not in str(caught.value)
    np.testing.assert_array_equal(compiled.run(GOOD)["y"], GOOD["x"])


def test_inputs_of_any_layout(compiled: sod2.CompiledModel) -> None:
    """Strided, transposed, read-only and empty arrays are ordinary inputs."""
    base = np.random.default_rng(0).standard_normal((8, 6)).astype(np.float32)
    for x in (base[:6:2, :4], base.T[:4, :4], np.broadcast_to(np.float32(2), (3, 4)), np.empty((0, 4), np.float32)):
        inputs = {"x": x, "i": np.zeros(len(x), np.int64)}
        np.testing.assert_array_equal(compiled.run(inputs)["y"], np.maximum(x, 0))


def test_outputs_are_fresh(compiled: sod2.CompiledModel) -> None:
    first = compiled.run(GOOD)["y"]
    compiled.run({**GOOD, "x": -GOOD["x"]})
    np.testing.assert_array_equal(first, GOOD["x"])


def test_inadmissible_shape() -> None:
    """YOLO-V6 takes multiples of 32: the analysis and the compiled model say so alike."""
    source = models.build("yolov6", "tiny")
    sentence = sod2.analyze(source).admissible({"images": (1, 3, 650, 640)})
    assert sentence is not None
    assert "650" in sentence and "32*h" in sentence and "'images'" in sentence
    assert sod2.analyze(source).admissible({"images": (1, 3, 640, 640)}) is None
    with pytest.raises(sod2.InputError, match=r"650.*32\*h"):
        sod2.compile(source).run({"images": np.zeros((1, 3, 650, 640), np.float32)})


def test_sizes_beyond_64_bits() -> None:
    """Overflow in shape arithmetic is an error before any allocation, never a wrapped size."""
    tiled = sod2.compile(model("float[N] x", "float[?] y", "y = Tile(x, k)", {"k": np.int64([2**33])}))
    for size in (2**20, 2**30, 2**40, 2**62):
        with pytest.raises(sod2.Error):
            tiled.peak_bytes({"x": (size,)})
            tiled.run({"x": np.ones(size, np.float32)})
    with pytest.raises(sod2.InputError):
        tiled.peak_bytes({"x": (2**70,)})
    wide = {"k": np.int64([2**32, 2**32, 1])}
    with pytest.raises(sod2.Error, match="fit"):
        sod2.compile(model("float[N] x", "float[?, ?, ?] y", "y = Expand(x, k)", wide))


@pytest.mark.parametrize("threads", [0, -1, 2000])
def test_threads(compiled: sod2.CompiledModel, threads: int) -> None:
    with pytest.raises(sod2.InputError, match=str(threads)):
        sod2.load(compiled.folder, threads)


@pytest.mark.parametrize(
    "field",
    [
        {"fusion": "all"},
        {"control": ""},
        {"sep": "false"},
        {"mvc": 1},
        {"weight_budget": 0.5},
        {"scratch_budget": -1},
        {"scratch_budget": 2**63},
        {"memory_budget": 2**64 + 1},
        {"tolerance": 0},
    ],
)
def test_options(field: dict) -> None:
    with pytest.raises(sod2.Error, match=next(iter(field))):
        sod2.Options(**field)


# ---- command line ----------------------------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "m.onnx"
    onnx.save(model("float[N, 4] x", "float[N, 4] y", "y = Relu(x)"), path)
    return path


def test_commands(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """compile, run, explain and bench, on a file and on an artifact."""
    out, result = tmp_path / "m.sod2", tmp_path / "out.npz"
    assert main(["compile", str(file), "-o", str(out)]) == 0
    assert main(["compile", str(file), "-o", str(out), "--no-sep", "--fusion", "none"]) == 0  # replaces it
    assert {p.name for p in out.iterdir()} == {"manifest.json", "model.c", "weights.bin", "model.so", "bench"}
    x = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    assert main(["run", str(out), f"x={tmp_path / 'x.npy'}", "-o", str(result), "--profile"]) == 0
    np.testing.assert_array_equal(np.load(result)["y"], np.maximum(x, 0))
    assert main(["explain", str(file)]) == 0
    assert "float32[N, 4]" in capsys.readouterr().out
    assert main(["explain", str(file), "--fusion", "--memory"]) == 0
    assert main(["explain", str(file), "--versions", "--tolerance", "1e-4"]) == 0
    assert "0.0e+00 of the outputs' scale" in capsys.readouterr().out
    assert main(["bench", str(out), "x=5x4", "--repeats", "2"]) == 0
    assert "median" in capsys.readouterr().out


BAD_COMMANDS = {
    "missing model": (["run", "missing.onnx"], "missing.onnx"),
    "not an artifact": (["run", "."], "manifest.json"),
    "image": (["compile", "image.onnx", "-o", "out"], "image.onnx"),
    "rank": (["compile", "reshape.onnx", "-o", "out"], "rank depends on execution"),
    "explain a missing one": (["explain", "missing.onnx"], "missing.onnx"),
    "input name": (["run", "m.onnx", "q=2x4"], "'q'"),
    "input shape": (["run", "m.onnx", "x=2x5"], "dim 1 is 5"),
    "input text": (["run", "m.onnx", "x=2x-4"], "2x-4"),
    "input file": (["run", "m.onnx", "x=none.npy"], "none.npy"),
    "input file's content": (["run", "m.onnx", "x=image.npy"], "image.npy"),
    "input archive": (["run", "m.onnx", "x=archive.npy"], "archive.npy"),
    "input larger than memory": (["run", "m.onnx", "x=99999999999999x4"], "99999999999999x4"),
    "input larger than arrays": (["run", "m.onnx", "x=99999999999999999999x4"], "99999999999999999999x4"),
    "input twice": (["run", "m.onnx", "x=2x4", "x=3x4"], "'x=3x4'"),
    "range twice": (["memory", "m.onnx", "--range", "N=1", "N=2"], "'N=2'"),
    "folder": (["explain", "folder"], "'folder' is no file"),
    "endless budget": (["compile", "m.onnx", "-o", "out", "--memory-budget", "inf"], "'inf'"),
    "empty budget": (["compile", "m.onnx", "-o", "out", "--memory-budget", ""], "''"),
    "range": (["memory", "m.onnx", "--range", "N=1:9223372036854775808"], "N=1:9223372036854775808"),
    "picture": (["memory", "m.onnx", "--range", "N=1:2", "--png", "p.xyz"], "'xyz'; accepted are"),
    "block sizes": (["compile", "m.onnx", "-o", "out", "--tuned", "values.json"], "has 3 as SOD2_PIXEL_BLOCK"),
    "no search": (["tune", "m.onnx", "x=1x4", "-o", "best.json"], "best.json"),
    "compiler": (["compile", "m.onnx", "-o", "out", "--target", "linux-aarch64", "--cc", '"gcc'], '"gcc'),
    "no compiler": (["compile", "m.onnx", "-o", "out", "--target", "linux-aarch64", "--cc", "true"], "SOD2_VL"),
    "manifest": (["run", "broken", "x=1x4"], "manifest.json"),
    "other manifest": (["run", "foreign", "x=1x4"], "code, tables, target, weight_bytes"),
    "output over another manifest": (["compile", "m.onnx", "-o", "foreign"], "no artifact"),
    "library": (["run", "other", "x=1x4"], "model.so"),
    "threads": (["run", "m.onnx", "x=2x4", "--threads", "1025"], "1025"),
    "threads beyond 32 bits": (["run", "m.onnx", "x=2x4", "--threads", "4294967297"], "4294967297"),
    "input missing": (["bench", "m.onnx"], "'x' is missing"),
    "output folder": (["compile", "m.onnx", "-o", "folder"], "no artifact"),
    "output file": (["compile", "m.onnx", "-o", "image.onnx"], "no artifact"),
}


@pytest.mark.parametrize(("arguments", "offender"), BAD_COMMANDS.values(), ids=BAD_COMMANDS)
def test_bad_commands(  # noqa: PLR0917 - fixtures
    file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    offender: str,
) -> None:
    """One sentence on stderr that names the offender, status 1, and no file that wasn't there before."""
    monkeypatch.chdir(tmp_path)
    Path("image.onnx").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(64))
    Path("image.npy").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(64))
    Path("folder").mkdir()
    Path("folder", "precious").write_text("kept")
    Path("archive.npy").write_bytes(b"PK\x03\x04" + bytes(64))
    Path("values.json").write_text('{"best": {"SOD2_PIXEL_BLOCK": 3}}')
    Path("best.json").write_text('{"best": {"SOD2_PIXEL_BLOCK": 28}}')
    marks = json.dumps(dict.fromkeys(("code", "tables", "target", "weight_bytes")))
    for name, manifest in (("broken", "{"), ("foreign", '{"tables": ["of a database"]}'), ("other", marks)):
        Path(name).mkdir()
        Path(name, "manifest.json").write_text(manifest)
        Path(name, "model.so").write_bytes(bytes(64))
    onnx.save(model("float[N] x, int64[K] k", "float[?] y", "y = Reshape(x, k)"), "reshape.onnx")
    before = sorted(tmp_path.rglob("*"))
    assert main(arguments) == 1
    message = capsys.readouterr().err
    assert offender in message
    assert message.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("name", ["", "folder"])
@pytest.mark.parametrize("option", ["--output", "--timeline"])
def test_files_to_be_written(  # noqa: PLR0917 - fixtures
    file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    option: str,
    name: str,
) -> None:
    """A folder is refused before anything runs."""
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    with pytest.raises(SystemExit):
        main(["run", str(file), "x=1x4", option, name])
    assert f"{name!r} is a folder" in capsys.readouterr().err


def test_names_that_are_awkward(tmp_path: Path) -> None:
    """Of inputs, outputs and files: a sign of equality, an argument of np.savez."""
    source, given, result = (tmp_path / name for name in ("m.onnx", "a=b.npy", "y.npz"))
    awkward = model("float[N] x, float[N] z", "float[N] y", "y = Add(x, z)")
    for tensors, names in ((awkward.graph.input, ("x", "x=y")), (awkward.graph.output, ("file",))):
        for tensor, name in zip(tensors, names, strict=True):
            tensor.name = name
    awkward.graph.node[0].input[1] = "x=y"
    awkward.graph.node[0].output[0] = "file"
    onnx.save(awkward, source)
    np.save(given, np.float32([1, 2]))
    assert main(["run", str(source), f"x={given}", f"x=y={given}", "-o", str(result)]) == 0
    np.testing.assert_array_equal(np.load(result)["file"], [2, 4])


def test_exit_status(tmp_path: Path) -> None:
    """As a process: status 1 and one line, no traceback."""
    command = [sys.executable, "-m", "sod2", "explain", str(tmp_path / "missing.onnx")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("sod2: ") and done.stderr.count("\n") == 1


def test_nothing_half_written(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A C compiler that fails leaves neither the artifact nor its temporary folder."""
    monkeypatch.setenv("SOD2_CC", "false")
    with pytest.raises(sod2.Error):
        sod2.compiler.build(file, sod2.Options(), sod2.codegen.target.host(), tmp_path / "out")
    assert [p.name for p in tmp_path.iterdir()] == [file.name]
