"""Compilers for machines other than this one: which there are, and how each is told the system and the core.

They are tried in this order, and the first that links a program is taken: a compiler that the caller names; Clang and
GCC with a GNU C library of the system installed beside them (Debian's gcc-aarch64-linux-gnu; on this machine's own
architecture the ordinary compiler); zig, which brings musl and so needs nothing else; for Android, Google's NDK
($ANDROID_NDK_HOME, $ANDROID_NDK_ROOT, $ANDROID_HOME/ndk/*).

A static Linux executable runs on Android, where the kernel is the same and no library of the system is then used; with
musl also under the system-call filter of apps. The NDK links dynamically against Android's own C library, since static
executables of it break on older devices.

Zig builds its C library on the first link for a system, which takes minutes once; linking is kept free of the core's
name, which would make it do so again for every core.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from sod2.errors import ToolchainError

SYSTEMS = {"android-arm64": "aarch64", "linux-aarch64": "aarch64", "linux-x86_64": "x86_64"}
ANDROID_API = 24  # Android 7, the first with everything that the runtime uses
_GLIBC = "2.17"  # the oldest that a library made by zig is loaded by
_LINK = {True: ("-static",), False: ("-fPIC",)}

Links = Callable[[tuple[str, ...], tuple[str, ...]], bool]


@dataclass(frozen=True)
class CrossCompiler:
    """A compiler's command that produces code for another system."""

    machine: str  # aarch64 | x86_64
    command: tuple[str, ...]
    ldflags: tuple[str, ...]
    zig: bool = False

    def cpu_flags(self, cpu: str | None) -> tuple[str, ...]:
        """Flags that select a core; without one, the least that every machine of the architecture has."""
        if self.zig:
            return (f"-mcpu={cpu.replace('-', '_') if cpu else 'baseline'}",)
        if self.machine == "aarch64":
            return (f"-mcpu={cpu}",) if cpu else ("-march=armv8-a",)
        return (f"-march={cpu or 'x86-64'}",)


def find(system: str, named: tuple[str, ...] | None, static: bool, links: Links) -> CrossCompiler:
    """The first compiler for the system of which `links(command, flags)` holds; only `named` when it is given."""
    if system not in SYSTEMS:
        raise ToolchainError(f"system {system!r} has no cross-compiler; known systems: {', '.join(SYSTEMS)}")
    machine = SYSTEMS[system]
    for compiler in [_described(machine, named, static)] if named else _installed(system, machine, static):
        # Zig is known to link, and its first link takes minutes.
        if compiler.zig or links(compiler.command, compiler.ldflags):
            return compiler
    package = machine.replace("_", "-")
    raise ToolchainError(
        f"no C compiler for {system} was found: run `pip install ziglang`, or install gcc-{package}-linux-gnu"
        + (", or set $ANDROID_NDK_HOME" if system.startswith("android") else "")
    )


def _described(machine: str, command: tuple[str, ...], static: bool) -> CrossCompiler:
    """What a compiler that the user names is, told by its words."""
    if any(part == "ziglang" or Path(part).name == "zig" for part in command):
        return _zig(machine, command, static)
    android = any("android" in part for part in command)
    return CrossCompiler(machine, command, ("-pie",) if android and static else _LINK[static])


def _installed(system: str, machine: str, static: bool) -> Iterator[CrossCompiler]:
    triple = f"{machine}-linux-gnu"
    if shutil.which("clang"):
        yield CrossCompiler(machine, ("clang", f"--target={triple}"), _LINK[static])
    for name in (f"{triple}-gcc", *(("gcc",) if machine == platform.machine() else ())):
        if shutil.which(name):
            yield CrossCompiler(machine, (name,), _LINK[static])
    if importlib.util.find_spec("ziglang"):
        yield _zig(machine, (sys.executable, "-m", "ziglang", "cc"), static)
    if system.startswith("android") and static and (clang := ndk()) is not None:
        yield CrossCompiler(machine, (str(clang), f"--target={machine}-linux-android{ANDROID_API}"), ("-pie",))


def _zig(machine: str, command: tuple[str, ...], static: bool) -> CrossCompiler:
    libc = "musl" if static else f"gnu.{_GLIBC}"
    whole = (*command, "-target", f"{machine}-linux-{libc}", "-fno-sanitize=undefined", "-g0")
    return CrossCompiler(machine, whole, _LINK[static], zig=True)


def ndk() -> Path | None:
    """The newest NDK's clang."""
    given = [os.environ[name] for name in ("ANDROID_NDK_HOME", "ANDROID_NDK_ROOT") if os.environ.get(name)]
    folders = [Path(folder) for folder in given]
    if sdk := os.environ.get("ANDROID_HOME"):
        folders += sorted(Path(sdk, "ndk").glob("*"), reverse=True)
    for folder in folders:
        for clang in sorted(folder.glob("toolchains/llvm/prebuilt/*/bin/clang")):
            return clang
    return None
