"""The C toolchain: search order, flags, the object cache, linking, errors; zig's compiler for real."""

import ctypes
import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sod2.codegen import target as toolchain
from sod2.codegen.target import compile_objects, host, link_executable, link_shared, runtime_objects
from sod2.errors import ToolchainError

ZIG = f"{sys.executable} -m ziglang cc"
COMPILERS = [
    pytest.param(name, marks=pytest.mark.skipif(shutil.which(name) is None, reason=f"{name} is not installed"))
    for name in ("gcc", "clang")
]
COMPILERS.append(
    pytest.param(
        ZIG, id="zig", marks=pytest.mark.skipif(not importlib.util.find_spec("ziglang"), reason="no ziglang package")
    )
)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A function that needs the prelude, libm and a header of its own."""
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "factor.h").write_text("#define FACTOR 2\n")
    text = '#include "kernel.h"\n#include "factor.h"\nint twice(int x) { return (int)(FACTOR * pow(x, 1.0)); }\n'
    (folder / "twice.c").write_text(text)
    return folder / "twice.c"


@pytest.fixture
def main(tmp_path: Path) -> Path:
    path = tmp_path / "main.c"
    path.write_text('#include <stdio.h>\nint twice(int);\nint main(void) { printf("%d\\n", twice(21)); return 0; }\n')
    return path


@pytest.mark.parametrize("cc", COMPILERS)
def test_library_and_program(cc: str, source: Path, main: Path, tmp_path: Path) -> None:
    target = host(cc)
    objects = compile_objects(target, [source, main], [source.parent], tmp_path / "cache")
    library = link_shared(target, objects[:1], tmp_path / "out" / "libtwice.so")
    assert ctypes.CDLL(str(library)).twice(21) == 42
    program = link_executable(target, objects, tmp_path / "out" / "twice")
    assert subprocess.run([program], capture_output=True, text=True, check=True).stdout == "42\n"
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["libtwice.so", "twice"]


@pytest.mark.parametrize("cc", COMPILERS)
def test_geometry_is_that_of_the_runtime(cc: str, tmp_path: Path) -> None:
    """A program compiled with the target's flags sees the sizes that the target states."""
    target = host(cc)
    path = tmp_path / "sizes.c"
    path.write_text(
        '#include <stdio.h>\n#include "tile.h"\n'
        'int main(void) { printf("%d %d %d", SOD2_VL, SOD2_MR, SOD2_NR); return (int)sizeof(vf) != SOD2_VL * 4; }\n'
    )
    program = link_executable(target, compile_objects(target, [path], [], tmp_path), tmp_path / "sizes")
    printed = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    assert printed == f"{target.lanes} {target.mr} {target.nr}"
    assert target.lanes == {"avx512": 16, "avx2": 8, "neon": 4, "portable": 4}[target.isa]


def test_cache(source: Path, tmp_path: Path) -> None:
    target = host()
    cache = tmp_path / "cache"

    def build() -> tuple[Path, int]:
        [path] = compile_objects(target, [source], [source.parent], cache)
        return path, path.stat().st_mtime_ns

    first = build()
    assert build() == first
    (source.parent / "factor.h").write_text("#define FACTOR 3\n")
    second = build()
    assert second[0] != first[0]
    source.write_text(source.read_text() + "int more;\n")
    third = build()
    assert third[0] not in (first[0], second[0])
    assert {path.suffix for path in cache.iterdir()} == {".o"}
    flags = toolchain.Target(**{**vars(target), "cflags": (*target.cflags, "-DX=1")})
    assert compile_objects(flags, [source], [source.parent], cache)[0] != third[0]


def test_order_of_objects_is_that_of_sources(tmp_path: Path) -> None:
    sources = [tmp_path / f"part{i}.c" for i in (3, 1, 2)]
    for path in sources:
        path.write_text(f"int {path.stem};\n")
    names = [path.name.split("-")[0] for path in compile_objects(host(), sources, [], tmp_path / "cache")]
    assert names == ["part3", "part1", "part2"]
    assert compile_objects(host(), [], [], tmp_path / "cache") == []


def test_compiler_error(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.c", tmp_path / "bad.c"
    good.write_text("int good;\n")
    bad.write_text("int bad(void) { return nothing; }\n" * 100)
    with pytest.raises(ToolchainError, match=r"bad\.c") as caught:
        compile_objects(host(), [good, bad], [], tmp_path / "cache")
    assert "nothing" in str(caught.value)
    assert len(str(caught.value).splitlines()) <= 10
    assert not list((tmp_path / "cache").glob("bad*"))


def test_link_error(main: Path, tmp_path: Path) -> None:
    target = host()
    objects = compile_objects(target, [main], [], tmp_path / "cache")
    with pytest.raises(ToolchainError, match="twice"):
        link_executable(target, objects, tmp_path / "out" / "program")
    assert list((tmp_path / "out").iterdir()) == []


def test_search_order(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("gcc", "clang", "cc", "mine", "other"):
        program = tmp_path / name
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("SOD2_CC", "mine -m64")
    monkeypatch.setenv("CC", "other")
    assert toolchain.toolchain() == ("mine", "-m64")
    monkeypatch.delenv("SOD2_CC")
    assert toolchain.toolchain() == ("other",)
    monkeypatch.delenv("CC")
    for name in ("gcc", "clang", "cc"):
        assert toolchain.toolchain() == (name,)
        (tmp_path / name).unlink()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if name == "ziglang" else None)
    assert toolchain.toolchain() == (sys.executable, "-m", "ziglang", "cc")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ToolchainError, match="install gcc or clang"):
        toolchain.toolchain()


def test_missing_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOD2_CC", "no-such-compiler -x")
    with pytest.raises(ToolchainError, match=r"\$SOD2_CC is 'no-such-compiler -x'"):
        toolchain.toolchain()
    with pytest.raises(ToolchainError, match="no-such-compiler"):
        host("no-such-compiler")


def test_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SOD2_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert toolchain.default_cache() == Path.home() / ".cache" / "sod2"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert toolchain.default_cache() == tmp_path / "sod2"
    monkeypatch.setenv("SOD2_CACHE", str(tmp_path / "here"))
    assert toolchain.default_cache() == tmp_path / "here"


def test_runtime_objects() -> None:
    """The runtime compiles; the bench program, which has a main function and replaces malloc, is not part of it."""
    names = [path.name.split("-")[0] for path in runtime_objects(host(), toolchain.default_cache())]
    assert names == sorted(
        path.stem for path in toolchain.RUNTIME.glob("*.c") if path.name not in toolchain.BENCH_SOURCES
    )


def test_sanitizers_stop_a_program(tmp_path: Path) -> None:
    if host().cc[0] not in ("gcc", "clang"):
        pytest.skip("needs gcc or clang")
    target = host(sanitize=True)
    path = tmp_path / "wild.c"
    path.write_text("int main(int n, char **a) { volatile int x[2] = {0}; (void)a; return x[n + 1]; }\n")
    program = link_executable(target, compile_objects(target, [path], [], tmp_path), tmp_path / "wild")
    result = subprocess.run([program], capture_output=True, text=True, check=False)
    assert result.returncode != 0
    assert "out of bounds" in result.stderr or "overflow" in result.stderr


def test_zig_cannot_sanitize() -> None:
    with pytest.raises(ToolchainError, match="zig has no address sanitizer"):
        host(ZIG, sanitize=True)
