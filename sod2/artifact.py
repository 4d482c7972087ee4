"""Artifacts: the folder a model is compiled into, and the loaded model that Python runs.

manifest.json   inputs, outputs, options, target, versions
model.c         the generated code, readable; with a memory budget table1.c and so on are the plans that need less
weights.bin     packed constants, mapped and shared at run time
model.so        for Python and for any program that links sod2.h; not when compiled for another machine
bench           a program of its own that runs samples and measures

A folder is written under a temporary name and renamed when it is complete.
"""

import _ctypes
import ctypes
import functools
import hashlib
import itertools
import json
import operator
import os
import shutil
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from sod2 import versions, work
from sod2.codegen import model as model_c
from sod2.codegen.steps import Emission
from sod2.codegen.target import (
    BENCH_SOURCES,
    RUNTIME,
    compile_objects,
    default_cache,
    link_executable,
    link_shared,
    runtime_objects,
)
from sod2.errors import BudgetError, Error, InputError, ModelError
from sod2.graph import Array
from sod2.memory import live_usage
from sod2.storage import Step

_LOADED = itertools.count(1)  # libraries
_MAX_RANK = 8
_MARKS = {"code", "tables", "target", "weight_bytes"}  # by which a manifest is known


@functools.cache
def code_digest() -> str:
    """Digest of the compiler's own sources: another version of sod2 never finds this one's builds in the cache."""
    digest = hashlib.sha256()
    root = Path(__file__).parent
    for path in sorted(p for p in root.rglob("*") if p.suffix in (".py", ".c", ".h", ".in")):
        digest.update(str(path.relative_to(root)).encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def write(
    emission: Emission,
    peak_first: bool,
    options: Mapping[str, Any],
    out: Path,
    *,
    leaner: Sequence[Emission] = (),
    budget: int = 0,
) -> Path:
    """Write and compile all files of an artifact; returns `out`, which appears only when it is complete.

    `leaner` are the further tables of a memory `budget` (bytes; 0: none), which have the weights of the first.
    """
    if not _replaceable(out):
        raise Error(f"{str(out)!r} exists and is no artifact; give a new name, or an artifact to replace")
    out.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        digest = emission.weights.digest()
        emission.weights.write(work / "weights.bin", digest)
        sources = [work / (f"table{k}.c" if k else "model.c") for k in range(1 + len(leaner))]
        for k, (path, table) in enumerate(zip(sources, (emission, *leaner), strict=True)):
            path.write_text(model_c.source(table, digest, peak_first, table=k, more=k < len(leaner), budget=budget))
        _compile(emission, sources, work)
        manifest = {**_manifest(emission, options), "tables": list(map(_schedule, leaner))}
        (work / "manifest.json").write_text(json.dumps(manifest, indent=1, sort_keys=True))
        if out.exists():
            shutil.rmtree(out)
        work.rename(out)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return out


def _replaceable(out: Path) -> bool:
    """Whether nothing is lost that isn't an artifact."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return True
    try:
        read_manifest(out)
    except ModelError:
        return False
    return True


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of an artifact; ModelError if the folder is none. Others have a manifest.json too."""
    path = folder / "manifest.json"
    if not path.is_file():
        raise ModelError(f"{str(folder)!r} is not an artifact: it has no manifest.json")
    try:
        found = json.loads(path.read_text())
    except ValueError as error:
        raise ModelError(f"{str(path)!r} is no manifest of an artifact ({error}); compile the model") from None
    if not isinstance(found, dict) or not found.keys() >= _MARKS:
        raise ModelError(f"{str(path)!r} is no manifest of an artifact, which has {', '.join(sorted(_MARKS))}")
    return found


def _compile(emission: Emission, sources: Sequence[Path], folder: Path) -> None:
    target, cache = emission.target, default_cache() / "objects"
    library = runtime_objects(target, cache)
    model = compile_objects(target, sources, [], cache)
    program = compile_objects(target, [RUNTIME / name for name in BENCH_SOURCES], [], cache)
    if target.shared:
        link_shared(target, [*model, *library], folder / "model.so")
    link_executable(target, [*program, *model, *library], folder / "bench", hooked=True)


def _manifest(emission: Emission, options: Mapping[str, Any]) -> dict[str, Any]:
    analysis, target = emission.analysis, emission.target
    graph = analysis.graph
    inputs = [(v.name, v.dtype, v.shape) for v in graph.inputs]
    outputs = [(t, analysis[t].dtype, analysis[t].shape) for t in graph.outputs]
    return {
        "name": graph.name,
        "inputs": [_tensor(*entry) for entry in inputs],
        "outputs": [_tensor(*entry) for entry in outputs],
        "options": dict(options),
        "target": {
            "name": target.name,
            "isa": target.isa,
            "compiler": list(target.cc),
            "tuned": dict(target.tuned),
        },
        "code": code_digest(),
        "kernels": len(emission.kernels),
        "weight_bytes": emission.weights.size,
        "error": versions.model_error(graph, emission.versions),
        **_schedule(emission),
    }


def _schedule(emission: Emission) -> dict[str, Any]:
    """What differs between the tables of a memory budget."""
    steps = emission.storage.steps
    return {"steps": len(steps), "work": [_work(step, emission) for step in steps]}


def _work(step: Step, emission: Emission) -> dict[str, object] | None:
    found = work.of_step(step, emission.analysis, emission.versions)
    return found.text() if found is not None else None


def _tensor(name: str, dtype: np.dtype[Any], shape: Any) -> dict[str, Any]:
    dims = [str(d) for d in shape] if isinstance(shape, tuple) else None
    return {"name": name, "dtype": dtype.name, "shape": dims}


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("dtype", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("dims", ctypes.c_int64 * _MAX_RANK),
        ("data", ctypes.c_void_p),
    )


class Stats(ctypes.Structure):
    """sod2_stats of sod2.h: bytes and nanoseconds of the bound shape."""

    _fields_ = (
        ("arena_bytes", ctypes.c_int64),
        ("live_bytes", ctypes.c_int64),
        ("reserved_bytes", ctypes.c_int64),
        ("weight_bytes", ctypes.c_int64),
        ("bind_ns", ctypes.c_int64),
        ("threads", ctypes.c_int32),
        ("table", ctypes.c_int32),
    )


class Buffer(ctypes.Structure):
    """sod2_buffer of sod2.h: a buffer of the bound plan, live at the steps first..last, and its place in the arena."""

    first: int
    last: int
    bytes: int
    offset: int
    _fields_ = (
        ("first", ctypes.c_int32),
        ("last", ctypes.c_int32),
        ("bytes", ctypes.c_int64),
        ("offset", ctypes.c_int64),
    )


class Limits(ctypes.Structure):
    """sod2_limits of sod2.h: what the machine does at most, a second."""

    flops: float
    clock: float
    bandwidth: Sequence[float]
    _fields_ = (("flops", ctypes.c_double), ("clock", ctypes.c_double), ("bandwidth", ctypes.c_double * 12))


class CompiledModel:
    """A loaded artifact. Not safe for use by several threads at once; its own threads are inside."""

    def __init__(self, folder: str | Path, threads: int = 1) -> None:
        self.folder = Path(folder)
        self.manifest = read_manifest(self.folder)
        if ctypes.c_int(threads).value != threads:
            raise InputError(f"threads is {threads}, which does not fit 32 bits")
        self._library = _library(self.folder / "model.so")
        self._handle = ctypes.c_void_p()
        self._free = weakref.finalize(self, _unload, self._library, self._handle)
        path = os.fsencode(self.folder / "weights.bin")
        self._check(self._library.sod2_load(path, threads, ctypes.byref(self._handle)))
        self._inputs = [self._library.sod2_input(self._handle, k) for k in range(self._count("input"))]

    def _count(self, kind: str) -> int:
        return int(getattr(self._library, f"sod2_{kind}_count")(self._handle))

    def _check(self, status: int) -> None:
        if status:
            message = self._library.sod2_message().decode()
            raise {1: ModelError, 2: InputError, 4: BudgetError}.get(status, Error)(message)

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run once; arrays must have the declared dtype. Returns fresh arrays, keyed by output name."""
        arrays = self._arranged(inputs)
        self._bind([a.shape for a in arrays])
        pointers = (ctypes.c_void_p * len(arrays))(*(a.ctypes.data for a in arrays))
        self._check(self._library.sod2_run(self._handle, pointers))
        found = [self._library.sod2_output(self._handle, k) for k in range(self._count("output"))]
        return {t.name.decode(): _array(t) for t in found}

    def peak_bytes(self, shapes: Mapping[str, Sequence[int]]) -> int:
        """Arena bytes that a run at these input shapes needs: intermediates, scratch and outputs.

        Sizes that only execution tells are not in it; behind a run `stats.arena_bytes` says what that one needed.
        """
        names = [t.name.decode() for t in self._inputs]
        self._check_names(shapes)
        self._bind([tuple(shapes[n]) for n in names])
        return int(self.stats.arena_bytes)

    @property
    def stats(self) -> Stats:
        """Sizes and times at the bound shape."""
        found: Stats = self._library.sod2_get_stats(self._handle)
        return found

    @property
    def work(self) -> list[Any]:
        """The work of every step of the bound plan, as the manifest has it (work.py)."""
        found: list[Any] = [self.manifest, *self.manifest["tables"]][self.stats.table]["work"]
        return found

    def profile(self, inputs: Mapping[str, Array]) -> list[tuple[str, int]]:
        """(step, nanoseconds) of one run; 0 for a step whose branch was not taken."""
        self._library.sod2_profile(self._handle, 1)
        try:
            self.run(inputs)
            count = self._library.sod2_step_count(self._handle)
            times = self._library.sod2_step_ns(self._handle)
            return [(self._library.sod2_step_name(self._handle, k).decode(), int(times[k])) for k in range(count)]
        finally:
            self._library.sod2_profile(self._handle, 0)

    def limits(self) -> Limits:
        """What this machine does at most with the model's threads, measured now; takes a fraction of a second."""
        found = Limits()
        if self._library.sod2_measure_limits(self.stats.threads, ctypes.byref(found)):
            raise Error("no memory or threads for measuring what this machine does at most")
        return found

    def buffers(self) -> list[Buffer]:
        """The buffers of the bound plan, scratch included."""
        count = self._library.sod2_buffer_count(self._handle)
        return [self._library.sod2_get_buffer(self._handle, k) for k in range(count)]

    def live_bytes(self) -> list[int]:
        """Bytes that are live while each step of the bound plan runs, scratch included, rounded as the arena does."""
        found = self.buffers()
        usage = live_usage([(b.first, b.last) for b in found], [b.bytes for b in found])
        return usage + [0] * (self._library.sod2_step_count(self._handle) - len(usage))

    def _check_names(self, given: Mapping[str, Any]) -> None:
        wanted = [t.name.decode() for t in self._inputs]
        for name in given:
            if name not in wanted:
                raise InputError(f"the model has no input {name!r}; its inputs are {', '.join(map(repr, wanted))}")
        for name in wanted:
            if name not in given:
                raise InputError(f"input {name!r} is missing; the model's inputs are {', '.join(map(repr, wanted))}")

    def _arranged(self, inputs: Mapping[str, Array]) -> list[Array]:
        """The arrays in the model's order, dense; InputError for a wrong name, dtype or rank."""
        self._check_names(inputs)
        arrays = []
        for tensor in self._inputs:
            name = tensor.name.decode()
            array, dtype = np.asarray(inputs[name]), onnx.helper.tensor_dtype_to_np_dtype(tensor.dtype)
            if array.dtype != dtype:
                raise InputError(f"input {name!r} has dtype {array.dtype}; the model takes {dtype}")
            arrays.append(np.ascontiguousarray(array).reshape(array.shape))
        return arrays

    def _bind(self, shapes: Sequence[Sequence[int]]) -> None:
        for tensor, shape in zip(self._inputs, shapes, strict=True):
            if len(shape) != tensor.rank:
                name = tensor.name.decode()
                raise InputError(
                    f"input {name!r} has rank {len(shape)} (shape {list(shape)}); the model takes rank {tensor.rank}"
                )
        flat = [operator.index(n) for shape in shapes for n in shape]
        if any(not -(2**63) <= n < 2**63 for n in flat):
            raise InputError(f"input shapes {[list(s) for s in shapes]} have a dim that does not fit 64 bits")
        self._check(self._library.sod2_bind(self._handle, (ctypes.c_int64 * max(len(flat), 1))(*flat)))


def _array(tensor: _Tensor) -> Array:
    """A copy of an output."""
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.dtype)
    shape = tuple(tensor.dims[: tensor.rank])
    array: Array = np.empty(shape, dtype)
    if array.nbytes:
        ctypes.memmove(array.ctypes.data, tensor.data, array.nbytes)
    return array


def _library(path: Path) -> ctypes.CDLL:
    """Loads a file by a spelling of its path that no other has: the loader takes one that it knows for what it loaded
    from there, even if that file was replaced since."""
    spelling = "".join("/." if digit == "1" else "/" for digit in f"{next(_LOADED):b}")
    try:
        library = ctypes.CDLL(f"{path.parent.absolute()}{spelling}/{path.name}")
    except OSError as error:
        reason = str(error).rpartition(": ")[2]
        raise ModelError(f"{str(path)!r} is no library for this machine ({reason}); compile the model") from None
    handle = ctypes.c_void_p
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "sod2_load": (ctypes.c_int, [ctypes.c_char_p, ctypes.c_int, ctypes.POINTER(handle)]),
        "sod2_bind": (ctypes.c_int, [handle, ctypes.POINTER(ctypes.c_int64)]),
        "sod2_run": (ctypes.c_int, [handle, ctypes.POINTER(ctypes.c_void_p)]),
        "sod2_free": (None, [handle]),
        "sod2_input_count": (ctypes.c_int, [handle]),
        "sod2_output_count": (ctypes.c_int, [handle]),
        "sod2_input": (_Tensor, [handle, ctypes.c_int]),
        "sod2_output": (_Tensor, [handle, ctypes.c_int]),
        "sod2_get_stats": (Stats, [handle]),
        "sod2_message": (ctypes.c_char_p, []),
        "sod2_step_count": (ctypes.c_int, [handle]),
        "sod2_step_name": (ctypes.c_char_p, [handle, ctypes.c_int]),
        "sod2_profile": (None, [handle, ctypes.c_int]),
        "sod2_measure_limits": (ctypes.c_int, [ctypes.c_int, ctypes.POINTER(Limits)]),
        "sod2_step_ns": (ctypes.POINTER(ctypes.c_int64), [handle]),
        "sod2_buffer_count": (ctypes.c_int, [handle]),
        "sod2_get_buffer": (Buffer, [handle, ctypes.c_int]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name, None)
        if function is None:
            raise ModelError(f"{str(path)!r} has no {name}, so it is of another sod2 than this one; compile the model")
        function.restype, function.argtypes = result, arguments
    return library


def _unload(library: ctypes.CDLL, handle: ctypes.c_void_p) -> None:
    """Free the model and close its library, which ctypes never does."""
    library.sod2_free(handle)
    _ctypes.dlclose(library._handle)


def load(folder: str | Path, threads: int = 1) -> CompiledModel:
    """Load an artifact from disk; `threads` includes the calling one."""
    return CompiledModel(folder, threads)
