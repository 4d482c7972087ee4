"""Programs and libraries that need Android's own C library, as those must that go with libraries made for Android.

The compiler is Google's NDK where there is one (crosscompilers.py says where it is looked for). Where there is none,
zig compiles with musl's headers and links against empty libraries that have the names of Android's functions: a program
that needs a name that is not in LIBRARIES does not link. What that asks of a source: no types or constants that C
libraries define differently (errno is taken care of, sysconf and pthreads are not). Such programs have been run on no
real phone yet: they are experimental, and the macro ANDROID_NOTE, which a program adds to its version, says so.

An executable's names come before those of the libraries that it uses, so that memhook.c is simply linked in.
"""

from __future__ import annotations

import dataclasses
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from sod2.codegen import crosscompilers, target
from sod2.codegen.target import Target

SYSTEM = "android-arm64"
TRIPLE = "aarch64-linux-android"
LINKER = (sys.executable, "-m", "ziglang", "ld.lld")
START = Path(__file__).with_name("android_start.c")
LIBRARIES = {
    "libc.so": """
        __errno __libc_init abort calloc clock_gettime closedir exit fclose fflush fgetc fgets fopen fprintf
        fputc fread free fwrite getline getpagesize malloc malloc_usable_size memalign memcpy memmove memset
        opendir printf putchar puts readdir realloc snprintf sprintf sscanf stderr stdin stdout strchr
        strcmp strcspn strerror strncmp strspn strstr strtol strtoll syscall vsnprintf write
    """,
    "libdl.so": "dlsym",
}
"""Functions that programs may use, which Android has since crosscompilers.ANDROID_API, by library."""
PAGES = ("-z", "max-page-size=16384")


def link_program(sources: Sequence[Path], include: Sequence[Path], libraries: Sequence[Path], out: Path) -> None:
    """Compile C files and link them with shared libraries for Android, which lie in the folder `lib` beside `out`.

    Raises ToolchainError.
    """
    cache = target.default_cache() / "objects"
    if (clang := crosscompilers.ndk()) is not None:
        machine = _machine(f"{clang} --target={TRIPLE}{crosscompilers.ANDROID_API}", note="")
        flags = ("-pie", "-rdynamic", "-Wl,-rpath,$ORIGIN/lib", "-ldl")
        objects = target.compile_objects(machine, sources, include, cache)
        target.link_executable(dataclasses.replace(machine, ldflags=flags), [*objects, *libraries], out)
        return
    machine = zig()
    objects = target.compile_objects(machine, [START, *sources], include, cache)
    flags = (
        *("-pie", "--dynamic-linker=/system/bin/linker64", "--hash-style=both", "-z", "now", *PAGES),
        *("--export-dynamic", "-rpath", "$ORIGIN/lib", "--allow-shlib-undefined"),
    )
    target.link_executable(_linker(machine, flags), [*objects, *libraries, *map(_stub, LIBRARIES)], out)


def library_linker() -> list[str]:
    """The command that links other compilers' objects into a library: `-shared -o OUT OBJECTS...` are to follow.

    The library needs Android's libc.so and libm.so by name; whether they have what it uses, only Android's loader says.
    """
    if (clang := crosscompilers.ndk()) is not None:
        return [str(clang), f"--target={TRIPLE}{crosscompilers.ANDROID_API}", "-lm"]
    stubs = [str(_stub(name)) for name in ("libc.so", "libm.so")]
    return [*LINKER, *stubs, "--hash-style=both", *PAGES]


def zig() -> Target:
    """The compiler without an NDK: position-independent code that needs nothing of zig's own C library."""
    command = f"{sys.executable} -m ziglang cc"
    return _machine(command, note=", runner built without the NDK (experimental)")


def link_library(machine: Target, objects: Sequence[Path], name: str, out: Path) -> Path:
    """Link objects of `zig()` into a shared library that programs know as `name`; returns `out`."""
    return target.link_executable(_linker(machine, ("-shared", "-soname", name)), objects, out)


def _machine(command: str, note: str) -> Target:
    """A compiler for the system; code for all its cores, since these programs only call others."""
    machine = target.cross(SYSTEM, cc=command)
    flags = ("-USOD2_STATIC", "-DSOD2_BIONIC", "-fno-stack-protector", f'-DANDROID_NOTE="{note}"')
    return dataclasses.replace(machine, cflags=(*machine.cflags, *flags))


def _linker(machine: Target, flags: tuple[str, ...]) -> Target:
    return dataclasses.replace(machine, cc=LINKER, ldflags=flags)


def _stub(library: str) -> Path:
    """A library that has the names of Android's and does nothing."""
    machine, cache = zig(), target.default_cache() / "objects"
    bare = dataclasses.replace(machine, cflags=(*machine.cflags, "-ffreestanding", "-fno-builtin", "-w"))
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, f"{library}.c")
        source.write_text("".join(f"void {name}(void) {{}}\n" for name in LIBRARIES.get(library, "").split()))
        objects = target.compile_objects(bare, [source], (), cache)
    return link_library(machine, objects, library, cache / "android" / library)
