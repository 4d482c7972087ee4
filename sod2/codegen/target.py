"""The C compiler and the machine it compiles for.

Decides which compiler is used, its flags and the vector geometry, and turns C files into objects, shared libraries and
executables. `host()` describes this machine, `cross()` (crosscompilers.py finds the compiler) another one: the
instruction set is what the compiler itself defines under -march=native or for the CPU that is named, and the sizes of
the register tile are read from runtime/tile.h by its preprocessor, so that Python and C cannot disagree.

Objects are cached by content: the digest covers the source, every header on the include path, the compiler, its flags
and every macro it predefines (which holds its version and, under -march=native, the CPU's features). Files are written
under a temporary name and renamed, so that a cache may be shared by concurrent builds. Nothing is ever evicted.

Toolchains: GCC >= 12, Clang >= 15, or the Clang inside the pip package `ziglang`, which brings its own C library and
linker and so needs nothing else on the machine. Unix only.
"""

import functools
import hashlib
import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from sod2.codegen import crosscompilers
from sod2.errors import ToolchainError
from sod2.packing import Tile

RUNTIME = Path(__file__).resolve().parent.parent / "runtime"

# Contraction to fused multiply-adds is on; -ffast-math never is: runtime/vmath.h depends on exact rounding and on NaN.
_COMMON = (
    "-std=gnu11",
    "-O3",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=fast",
    "-fno-semantic-interposition",
    "-fPIC",
    "-Wall",
)
_SANITIZE = ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer", "-g")
_ERROR_LINES = 8
# What memhook.c counts.
_HOOKED = (
    *("malloc", "calloc", "realloc", "reallocarray", "free", "memalign", "aligned_alloc", "posix_memalign"),
    *("valloc", "pvalloc", "mmap", "mmap64", "munmap", "mremap"),
)


@dataclass(frozen=True)
class Target:
    """A machine as the code generator sees it, and the commands that compile for it."""

    name: str
    isa: str  # avx512 | avx2 | neon | portable
    lanes: int  # floats in a vector
    mr: int  # rows of the register tile
    nr: int  # columns of the register tile
    apart: int  # percent that it takes longer where it reads many pages,
    crowded: int  # and for each MiB of Winograd's tiles beyond the first
    cc: tuple[str, ...]
    cflags: tuple[str, ...]
    ldflags: tuple[str, ...]
    shared: bool = True  # whether programs here can load libraries built for it; else only executables are made
    hookflags: tuple[str, ...] = ()  # what the linker needs beside memhook.c's object
    tuned: tuple[tuple[str, int], ...] = ()  # macros of runtime/tuning.h and their values, where not its own

    @property
    def tile(self) -> Tile:
        return Tile(self.lanes, self.mr, self.nr, self.apart, self.crowded)


def default_cache() -> Path:
    """Folder of cached objects: $SOD2_CACHE, else sod2 in $XDG_CACHE_HOME, else ~/.cache/sod2."""
    if folder := os.environ.get("SOD2_CACHE"):
        return Path(folder)
    if folder := os.environ.get("XDG_CACHE_HOME"):
        return Path(folder) / "sod2"
    return Path.home() / ".cache" / "sod2"


def toolchain() -> tuple[str, ...]:
    """The C compiler's command: $SOD2_CC, $CC, gcc, clang, cc, or zig from the Python package `ziglang`.

    Raises ToolchainError when there is none, or when a variable names a program that does not exist.
    """
    for variable in ("SOD2_CC", "CC"):
        if value := os.environ.get(variable):
            return _command(value, f"${variable}")
    for name in ("gcc", "clang", "cc"):
        if shutil.which(name):
            return (name,)
    if importlib.util.find_spec("ziglang"):
        return (sys.executable, "-m", "ziglang", "cc")
    raise ToolchainError("no C compiler was found: install gcc or clang, or run `pip install ziglang`")


def host(cc: str | None = None, sanitize: bool = False) -> Target:
    """This machine with the compiler `cc` (a command line; default: toolchain()).

    `sanitize` adds the address and undefined-behaviour sanitizers and debug information.
    """
    command = _command(cc, "cc") if cc else toolchain()
    return _host(command, sanitize)


def compile_objects(target: Target, sources: Sequence[Path], include: Sequence[Path], cache: Path) -> list[Path]:
    """Compile C files in parallel; returns one object in `cache` for each source, in order.

    Sources see the folders `include` and sod2/runtime. Raises ToolchainError with the compiler's first complaint.
    """
    folders = (*include, RUNTIME)
    shared = _digest(target, folders)
    cache.mkdir(parents=True, exist_ok=True)
    flags = [*target.cflags, *(f"-I{folder}" for folder in folders)]

    def build(source: Path) -> Path:
        text = source.read_bytes()
        defined = [f"-D{name}={value}" for name, value in target.tuned if name.encode() in text]
        digest = hashlib.sha256(shared + "".join(defined).encode() + text).hexdigest()[:32]
        out = cache / f"{source.stem}-{digest}.o"
        if not out.exists():
            _produce(target, [*flags, *defined, "-c", str(source)], out, str(source))
        return out

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        try:
            return list(pool.map(build, sources))
        except ToolchainError:
            pool.shutdown(cancel_futures=True)
            raise


# The bench program: its main function, .npy files, the lines to the harness, and the memory hook, which must not take
# over malloc in a library.
BENCH_SOURCES = ("bench.c", "memhook.c", "npy.c", "protocol.c")


def runtime_objects(target: Target, cache: Path) -> list[Path]:
    """Objects of the whole runtime but the bench program's own sources."""
    sources = sorted(path for path in RUNTIME.glob("*.c") if path.name not in BENCH_SOURCES)
    return compile_objects(target, sources, (), cache)


def link_shared(target: Target, objects: Sequence[Path], out: Path) -> Path:
    """Link objects into a shared library at `out`; returns `out`."""
    return _produce(target, ["-shared", *map(str, objects), *target.ldflags], out, out.name)


def link_executable(target: Target, objects: Sequence[Path], out: Path, hooked: bool = False) -> Path:
    """Link objects into a program at `out`; returns `out`. `hooked`: memhook.c is among them, to count its memory."""
    flags = [*(target.hookflags if hooked else ()), *target.ldflags]
    return _produce(target, [*map(str, objects), *flags], out, out.name)


def _command(text: str, origin: str) -> tuple[str, ...]:
    try:
        command = tuple(shlex.split(text))
    except ValueError:  # an open quotation
        command = ()
    if not command or shutil.which(command[0]) is None:
        raise ToolchainError(f"{origin} is {text!r}, which is not a program that can be run: give a C compiler")
    return command


@functools.cache
def _host(command: tuple[str, ...], sanitize: bool) -> Target:
    zig = _is_zig(command)
    if zig and sanitize:
        raise ToolchainError("zig has no address sanitizer: give gcc or clang for a sanitized build")
    flags = (*_COMMON, *(_zig_flags() if zig else ("-march=native",)), *(_SANITIZE if sanitize else ()))
    linker = (*(_zig_flags() if zig else ()), *(_SANITIZE if sanitize else ()), "-lm", "-lpthread")
    name = f"{platform.machine()}-{{isa}}{'-sanitize' if sanitize else ''}"
    return _described(name, command, flags, linker)


def cross(system: str, cpu: str | None = None, cc: str | None = None, static: bool = True) -> Target:
    """A machine that is not this one: one of crosscompilers.SYSTEMS, its core by the name for -mcpu.

    Without `cpu` the code runs on every CPU of the system; `cc` is a compiler's command line to use instead of a found
    one. Executables are static where the system allows; with `static` false, libraries for programs that are there can
    be made instead. Raises ToolchainError when no compiler for the system is found, or it does not know the core.
    """
    command = _command(cc, "cc") if cc else None
    found = crosscompilers.find(system, command, static, functools.partial(_links, cc is not None))
    flags = (*_COMMON, *(("-DSOD2_STATIC",) if static else ()), *found.cpu_flags(cpu))
    linker = (*found.ldflags, "-lm", "-lpthread")
    target = _described(f"{system}-{cpu or 'any'}-{{isa}}", found.command, flags, linker)
    hook = (f"-Wl,{','.join(f'--wrap={name}' for name in _HOOKED)}",)
    return replace(target, shared=False, hookflags=hook) if static else target


@functools.cache
def _links(named: bool, command: tuple[str, ...], flags: tuple[str, ...]) -> bool:
    """Whether a compiler makes a program, which takes a C library; a named one that does not, says why itself."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "probe.c")
        source.write_text("#include <pthread.h>\nint main(void) { return (int)sizeof(pthread_t) == 0; }\n")
        try:
            _run([*command, str(source), *flags, "-o", str(Path(folder, "probe"))], "a first program")
        except ToolchainError:
            if named:
                raise
            return False
    return True


def _described(name: str, command: tuple[str, ...], flags: tuple[str, ...], linker: tuple[str, ...]) -> Target:
    """The target of a compiler under these flags, by what it defines."""
    macros = _macros(command, flags)
    if "__AVX512F__" in macros:
        flags = (*flags, "-mprefer-vector-width=512")
        isa = "avx512"
    elif "__AVX2__" in macros:
        isa = "avx2"
    elif "__ARM_NEON" in macros:
        isa = "neon"
    else:
        isa = "portable"
    names = ("SOD2_VL", "SOD2_MR", "SOD2_NR", "SOD2_APART", "SOD2_CROWDED")
    lanes, rows, columns, apart, crowded = constants(command, flags, "tile.h", names)
    return Target(name.format(isa=isa), isa, lanes, rows, columns, apart, crowded, command, flags, linker)


def _is_zig(command: Sequence[str]) -> bool:
    return any(part == "ziglang" or Path(part).name == "zig" for part in command)


def _zig_flags() -> tuple[str, ...]:
    """A fixed target makes zig use the C library it carries, so that the machine needs no headers of its own.

    The name of a glibc target ends in the oldest version that the result must run on.
    """
    flags = ["-mcpu=native", "-fno-sanitize=undefined", "-g0"]
    if sys.platform == "linux":
        libc = "gnu.2.17" if platform.libc_ver()[0] == "glibc" else "musl"
        flags += ["-target", f"{platform.machine()}-linux-{libc}"]
    return tuple(flags)


@functools.cache
def constants(command: tuple[str, ...], flags: tuple[str, ...], header: str, names: tuple[str, ...]) -> tuple[int, ...]:
    """Macros of a header of the runtime, as this compiler sees them."""
    text = _preprocess(command, (*flags, f"-I{RUNTIME}"), f'#include "{header}"\nprobe {" ".join(names)}\n')
    values = text.split()[-len(names) :]
    if len(values) != len(names) or not all(value.isdecimal() for value in values):
        raise ToolchainError(f"runtime/{header} gives {values} for {', '.join(names)}: each must be an integer literal")
    return tuple(map(int, values))


@functools.cache
def _macros(command: tuple[str, ...], flags: tuple[str, ...]) -> dict[str, str]:
    """Every macro that the compiler predefines under these flags."""
    lines = _preprocess(command, (*flags, "-dM"), "").splitlines()
    parts = (line.split(maxsplit=2) for line in lines if line.startswith("#define"))
    return {part[1]: part[2] if len(part) > 2 else "" for part in parts}


def _preprocess(command: tuple[str, ...], flags: tuple[str, ...], text: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "probe.c")
        source.write_text(text)
        return _run([*command, *flags, "-E", "-P", str(source)], "the preprocessor")


def _digest(target: Target, folders: Sequence[Path]) -> bytes:
    """Digest of all that an object depends on besides its source."""
    state = hashlib.sha256(repr((target.cc, target.cflags)).encode())
    state.update(repr(sorted(_macros(target.cc, target.cflags).items())).encode())
    for folder in folders:
        for header in sorted(folder.glob("*.h")):
            state.update(header.name.encode() + b"\0" + hashlib.sha256(header.read_bytes()).digest())
    return state.digest()


def _produce(target: Target, arguments: Sequence[str], out: Path, subject: str) -> Path:
    """Run the compiler with its output renamed to `out` at the end."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=".build-") as folder:
        part = Path(folder, out.name)
        _run([*target.cc, *arguments, "-o", str(part)], subject)
        part.replace(out)
    return out


def _run(command: Sequence[str], subject: str) -> str:
    """Standard output of a compiler's command; ToolchainError with its first lines of stderr when it fails."""
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise ToolchainError(f"{command[0]} could not be started for {subject}: {error.strerror}") from error
    if result.returncode != 0:
        lines = result.stderr.strip().splitlines()[:_ERROR_LINES]
        raise ToolchainError(f"{command[0]} failed on {subject} (status {result.returncode}):\n" + "\n".join(lines))
    return result.stdout
