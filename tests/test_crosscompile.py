"""Compiling for other machines: which compiler is taken, and that its static programs compute and count the same.

The oracles are onnxruntime for the numbers and the host's own bench for the memory. Programs for aarch64 run under
qemu's user emulation; they are slow tests, since zig's first link for a system takes minutes.
"""

from __future__ import annotations

import importlib.util
import json
import platform
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
import onnxruntime
import pytest

from baselines import android
from datasets.sample import Sampler
from models import MODELS, build
from models.inputs import quantile_sizes
from sod2 import __main__ as command_line
from sod2.codegen import crosscompilers, target
from sod2.compiler import Options
from sod2.compiler import build as compile_model
from sod2.errors import ToolchainError

QEMU = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")
GCC = shutil.which("aarch64-linux-gnu-gcc")
PT_INTERP = 3
MODEL = "skipnet"
CORES = {"android-arm64": "cortex-a73", "linux-aarch64": "cortex-a76"}
here_x86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="runs x86-64 programs, this machine does not")
needs_qemu = pytest.mark.skipif(QEMU is None, reason="qemu-aarch64-static is not installed (apt: qemu-user-static)")


# ---- which compiler ----


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Make PATH hold programs of these names and nothing else, no zig, no NDK."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for variable in ("ANDROID_NDK_HOME", "ANDROID_NDK_ROOT", "ANDROID_HOME"):
        monkeypatch.delenv(variable, raising=False)

    def provide(*names: str) -> None:
        for name in names:
            (tmp_path / name).write_text("#!/bin/sh\n")
            (tmp_path / name).chmod(0o755)

    return provide


def links(*commands: str) -> crosscompilers.Links:
    """A probe that these compilers pass."""
    return lambda command, flags: command[0] in commands


def test_search_order(programs: Callable[..., None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gcc = "aarch64-linux-gnu-gcc"
    programs("clang", gcc, "mine")
    find = crosscompilers.find
    assert find("linux-aarch64", ("mine", "-x"), True, links("mine")).command == ("mine", "-x")
    found = find("android-arm64", None, True, links("clang", gcc))
    assert found.command == ("clang", "--target=aarch64-linux-gnu")
    assert found.ldflags == ("-static",)
    assert find("android-arm64", None, True, links(gcc)).command == (gcc,)  # a clang without a C library is passed over
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if name == "ziglang" else None)
    zig = find("android-arm64", None, True, links())
    assert zig.command[:6] == (sys.executable, "-m", "ziglang", "cc", "-target", "aarch64-linux-musl")
    assert find("linux-aarch64", None, False, links()).command[5] == "aarch64-linux-gnu.2.17"
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    clang = tmp_path / "ndk" / "27.1" / "toolchains" / "llvm" / "prebuilt" / "linux-x86_64" / "bin" / "clang"
    clang.parent.mkdir(parents=True)
    clang.touch()
    monkeypatch.setenv("ANDROID_HOME", str(tmp_path))
    ndk = find("android-arm64", None, True, links(str(clang)))
    assert (ndk.command, ndk.ldflags) == ((str(clang), "--target=aarch64-linux-android24"), ("-pie",))
    with pytest.raises(ToolchainError, match=r"no C compiler for linux-aarch64 was found: run `pip install ziglang`"):
        find("linux-aarch64", None, True, links())


@needs_qemu
@pytest.mark.skipif(GCC is None, reason="aarch64-linux-gnu-gcc is not installed (apt: gcc-aarch64-linux-gnu)")
def test_an_ndk_compiles(programs: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder laid out as Google's, with another compiler in it; it is told what an NDK's has to be told."""
    clang = tmp_path / "ndk" / "toolchains" / "llvm" / "prebuilt" / "linux-x86_64" / "bin" / "clang"
    clang.parent.mkdir(parents=True)
    clang.write_text(
        '#!/bin/sh\n[ "$1" = --target=aarch64-linux-android24 ] || exit 1\nshift\n'
        f'for word; do shift; [ "$word" = -pie ] && word=-static; set -- "$@" "$word"; done\nexec {GCC} "$@"\n'
    )
    clang.chmod(0o755)
    monkeypatch.setenv("ANDROID_NDK_HOME", str(tmp_path / "ndk"))
    machine = target.cross("android-arm64", "cortex-a76")
    assert (machine.cc[0], machine.isa, machine.shared) == (str(clang), "neon", False)
    source = tmp_path / "main.c"
    source.write_text('#include <stdio.h>\nint main(void) { puts("by the NDK"); }\n')
    program = target.link_executable(
        machine, target.compile_objects(machine, [source], (), tmp_path / "cache"), tmp_path / "main"
    )
    assert QEMU is not None
    assert subprocess.run([QEMU, str(program)], capture_output=True, text=True, check=True).stdout == "by the NDK\n"
    library = tmp_path / "libmain.so"
    objects = map(str, (tmp_path / "cache").glob("*.o"))
    subprocess.run([*android.library_linker(), "-shared", "-o", str(library), *objects], check=True)
    assert not needs_loader(library)


def test_the_machines_own_compiler_serves_its_own_architecture(programs: Callable[..., None]) -> None:
    programs("gcc")
    system = next(name for name, machine in crosscompilers.SYSTEMS.items() if machine == platform.machine())
    assert crosscompilers.find(system, None, True, links("gcc")).command == ("gcc",)
    with pytest.raises(ToolchainError, match="has no cross-compiler; known systems: android-arm64, linux-aarch64"):
        crosscompilers.find("beos", None, True, links("gcc"))


def test_the_core_is_told_in_each_compilers_words() -> None:
    gcc, zig = (crosscompilers.CrossCompiler("aarch64", ("cc",), (), zig=zig) for zig in (False, True))
    assert gcc.cpu_flags("cortex-x1") == ("-mcpu=cortex-x1",)
    assert gcc.cpu_flags(None) == ("-march=armv8-a",)
    assert zig.cpu_flags("cortex-x1") == ("-mcpu=cortex_x1",)
    assert zig.cpu_flags(None) == ("-mcpu=baseline",)
    assert crosscompilers.CrossCompiler("x86_64", ("cc",), ()).cpu_flags("x86-64-v3") == ("-march=x86-64-v3",)


def test_mistakes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ToolchainError, match="cc is 'no-such-cc', which is not a program"):
        target.cross("linux-aarch64", cc="no-such-cc")
    with pytest.raises(ToolchainError, match="failed on a first program"):
        target.cross("linux-aarch64", cc="false")
    assert command_line.main(["compile", "m.onnx", "-o", str(tmp_path / "m"), "--cpu", "cortex-x1"]) == 1
    assert capsys.readouterr().err == "sod2: --cpu and --cc describe another machine: give --target too\n"


@here_x86
def test_instruction_set_follows_the_core() -> None:
    found = {cpu: target.cross("linux-x86_64", cpu) for cpu in (None, "x86-64-v3", "x86-64-v4")}
    assert [machine.isa for machine in found.values()] == ["portable", "avx2", "avx512"]
    assert all(not machine.shared for machine in found.values())
    with pytest.raises(ToolchainError, match="failed on the preprocessor"):
        target.cross("linux-x86_64", "cortex-x1")


# ---- what is compiled ----


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A folder with a model, the inputs of its smallest and largest sample, and the outputs of onnxruntime.

    Emulation is slow: of a full-size model only the smallest sample.
    """

    def make(name: str, variant: Literal["tiny", "full"] = "tiny") -> Path:
        folder = tmp_path_factory.mktemp(name)
        onnx.save(build(name, variant), folder / "model.onnx")
        session = onnxruntime.InferenceSession(str(folder / "model.onnx"), providers=["CPUExecutionProvider"])
        sampler = Sampler(name, variant)
        quantiles = (0.0, 1.0) if variant == "tiny" else (0.0,)
        for index, sizes in enumerate(quantile_sizes(MODELS[name].symbols, quantiles, 0)):
            inputs = sampler.sample(sizes, 0, index)[0]
            for k, argument in enumerate(session.get_inputs()):
                np.save(folder / f"{index}.{k}.npy", np.ascontiguousarray(inputs[argument.name]))
            for k, value in enumerate(session.run(None, inputs)):
                np.save(folder / f"want.{index}.{k}.npy", value)
        return folder

    return make


def bench(command: list[str], samples: Path, outputs: Path) -> list[dict[str, Any]]:
    """Lines of a bench executable that runs all samples, after a check of the outputs."""
    outputs.mkdir()
    words = "".join(f"run {index} 1 {outputs}\n" for index in range(len([*samples.glob("?.0.npy")]))) + "quit\n"
    run = subprocess.run([*command, str(samples), "2"], input=words, capture_output=True, text=True, check=True)
    for file in sorted(samples.glob("want.*.npy")):
        want, got = np.load(file), np.load(outputs / file.name.removeprefix("want."))
        assert np.abs(got - want).max() <= 1e-4 * np.abs(want).max()
    return [json.loads(line) for line in run.stdout.splitlines()]


def needs_loader(program: Path) -> bool:
    """Whether a 64-bit ELF file has a segment that names a dynamic loader."""
    data = program.read_bytes()
    (offset,) = struct.unpack_from("<Q", data, 32)
    size, number = struct.unpack_from("<HH", data, 54)
    return any(struct.unpack_from("<I", data, offset + k * size)[0] == PT_INTERP for k in range(number))


@here_x86
def test_a_static_program_computes_and_counts_the_same(samples: Callable[..., Path], tmp_path: Path) -> None:
    folder = samples(MODEL)
    host = compile_model(folder / "model.onnx", Options(), target.host(), tmp_path / "host")
    arguments = ["compile", str(folder / "model.onnx"), "-o", str(tmp_path / "static")]
    assert command_line.main([*arguments, "--target", "linux-x86_64", "--cpu", "x86-64-v3"]) == 0
    static = tmp_path / "static"
    assert sorted(path.name for path in static.iterdir()) == ["bench", "manifest.json", "model.c", "weights.bin"]
    assert not needs_loader(static / "bench")
    want = bench([str(host / "bench")], folder, tmp_path / "host-outputs")
    got = bench([str(static / "bench")], folder, tmp_path / "static-outputs")
    assert got[0]["threads"] == 2
    for ours, theirs in zip(got[1:], want[1:], strict=True):
        # Scratch depends on the instruction set's tiles, the rest does not.
        assert ours["peak_bytes"] == pytest.approx(theirs["peak_bytes"], rel=0.3)
        assert ours["peak_bytes"] >= ours["own_bytes"]


@needs_qemu
@pytest.mark.slow
@pytest.mark.parametrize("name", ["codebert", "yolov6", "skipnet"])
@pytest.mark.parametrize(("system", "variant"), [*((system, "tiny") for system in CORES), ("android-arm64", "full")])
def test_aarch64_gives_the_same_numbers(
    system: str, variant: str, name: str, samples: Callable[..., Path], tmp_path: Path
) -> None:
    folder = samples(name, variant)
    machine = target.cross(system, CORES[system])
    assert machine.isa == "neon"
    built = compile_model(folder / "model.onnx", Options(), machine, tmp_path / "built")
    assert QEMU is not None
    lines = bench(
        [QEMU, "-cpu", CORES[system].replace("a73", "a57"), str(built / "bench")], folder, tmp_path / "outputs"
    )
    assert len(lines) == (3 if variant == "tiny" else 2)
    assert all(line["peak_bytes"] > 0 for line in lines[1:])
