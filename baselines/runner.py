"""The runner's side of the protocol (engine.py states it), shared by the Python engines.

A runner script implements `Backend` and calls `main`. It runs in its own environment, so this module is copied into the
bundle beside it and needs nothing but numpy. What is measured, and in which order, is decided here, once:

1. `start`: load the model, and find out what it keeps.
2. The first inference of a sample: `bind` (if the engine has such a step), `stage` (the copy of inputs, outside the
   latency), `infer`. Further ones: `discard` the last outputs, `stage` where the engine overwrites its inputs, `infer`.
3. Peak bytes over those of the loaded model and of the staged inputs; beside them, as a cross-check that no ratio is
   made of, VmHWM: the largest resident size of the whole process, weights and libraries included.

An engine that packs weights or compiles kernels when it meets a shape (`packs_late`) would have these counted as
intermediates. After its first inference of a sample, when the latency is taken, it is asked to `trim` itself to what is
not an intermediate, that is the new base, and one more untimed inference gives the peak.

Threads are counted by their processor time (`busy_threads`), since engines start threads that never work. Linux only.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import json
import os
import sys
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TextIO

import numpy as np

COUNTED_CALLS, COUNTED, SHARE = 50, 0.03, 0.25
"""How many calls threads are counted over, in which part of them, and with which share of the work."""
COUNTING_S = 30.0
"""How long to wait for the last of the threads that were asked for, which other processes may keep from running."""

Arrays = list[np.ndarray]
Run = Callable[[int, int, Path | None], list[dict[str, Any]]]
"""Runs a sample so many times; a line for each inference. Outputs of the last go to the folder."""


class Hook:
    """The preloaded counter of live bytes (sod2/runtime/memhook.c)."""

    def __init__(self) -> None:
        library = ctypes.CDLL(None)
        if not hasattr(library, "sod2_hook_live"):
            raise RuntimeError("the memory hook is not preloaded: start with LD_PRELOAD=./libmemhook.so")
        self.live, self.peak, self.reset = library.sod2_hook_live, library.sod2_hook_peak, library.sod2_hook_reset
        self.live.restype = self.peak.restype = ctypes.c_int64
        self.reset.restype = None

    def settled(self) -> int:
        """Live bytes without Python's garbage."""
        gc.collect()
        return int(self.live())


class Backend(ABC):
    """One engine with the bundle's model. Arrays are inputs in the model's order; outputs likewise."""

    engine: str
    version: str
    threads: int
    """Threads that work, counted; known after `start`."""
    samples: Path
    """Folder of the samples, and `smallest`, the one that the harness begins with; set before `start`."""
    smallest: int
    packs_late = False
    """Whether an inference at a new shape leaves packed weights or compiled kernels behind; then `trim` is needed."""
    restages = False
    """Whether an inference destroys the inputs, so that they must be staged before each."""
    reserved_bytes = 0
    """What `start` left allocated for intermediates to come, an arena for example; it counts as theirs."""
    unscheduled: float | None = None
    """Share of the engine's time in code that has no schedule, of engines that can tell; known after `start`."""

    @abstractmethod
    def load(self, threads: int) -> None:
        """Load the model, ready to bind, and count the threads."""

    @abstractmethod
    def unload(self) -> None:
        """Drop everything that `load` made."""

    def start(self, threads: int, smallest: Arrays, hook: Hook) -> tuple[int, int]:
        """Load the model; returns the bytes that it keeps, and the nanoseconds that loading took.

        `smallest` are the inputs of the smallest sample, for engines that have to run before they can tell.
        """
        self.load(threads)
        loaded = hook.settled()
        self.unload()
        # By what unloading frees: loading also allocates what the library needs once and keeps.
        weight_bytes = loaded - hook.settled()
        start = time.perf_counter_ns()
        self.load(threads)
        return weight_bytes, time.perf_counter_ns() - start

    def prepare(self, sample: int, arrays: Arrays) -> None:  # noqa: B027 - engines without it have nothing to do
        """Whatever a sample needs before it can be measured; untimed."""

    def bind(self, sample: int, arrays: Arrays) -> bool:
        """Prepare for the shapes of a sample; False when the engine has no such step."""
        return False

    @abstractmethod
    def stage(self, arrays: Arrays) -> int:
        """Put the inputs where the engine reads them; returns the bytes of the copies that this made."""

    @abstractmethod
    def infer(self) -> None:
        """Run once; afterwards the host can read the outputs in the model's layout."""

    @abstractmethod
    def outputs(self) -> Arrays:
        """Outputs of the last inference."""

    def discard(self) -> None:  # noqa: B027 - engines without it have nothing to do
        """Drop the outputs of the last inference, where the engine lets the caller hold them; untimed."""

    def release(self) -> None:  # noqa: B027 - engines without it have nothing to do
        """Drop the inputs and outputs of the last sample, where the engine lets the caller hold them."""

    def trim(self) -> None:  # noqa: B027 - engines without it have nothing to do
        """Free intermediates that are kept for the next inference; called when `packs_late`."""

    def packed_bytes(self) -> int:
        """Weights packed since `start`, of engines that can tell; they are no intermediates."""
        return 0

    def own_bytes(self) -> int | None:
        """The engine's own report of its peak of intermediates, or None."""
        return None

    def phases_ns(self) -> dict[str, int] | None:
        """Where the time of the last change of shape went, by the engine's phases, or None."""
        return None


class Runner:
    """A backend, the sample that is bound to it, and the bytes that are no intermediates."""

    def __init__(self, backend: Backend, samples: Path, threads: int) -> None:
        self.backend = backend
        self.samples = samples
        self.hook = Hook()
        backend.samples, backend.smallest = samples, _smallest(samples)
        smallest = load_sample(self.samples, backend.smallest)
        self.weight_bytes, self.load_ns = backend.start(threads, smallest, self.hook)
        del smallest
        self.loaded = self.hook.settled() - backend.reserved_bytes
        self.base = self.loaded
        self.sample: int | None = None
        self.staged: Arrays = []
        self.copied = 0

    def run(self, sample: int, repeats: int, folder: Path | None) -> list[dict[str, Any]]:
        """Run a sample `repeats` times; one line for each. Outputs of the last go to `folder`."""
        lines = []
        for repeat in range(repeats):
            first = repeat == 0 and sample != self.sample
            line = self._first(sample) if first else self._again()
            lines.append({"sample": sample, "repeat": repeat, "first": first, **line})
        if folder is not None:
            save_outputs(folder, sample, self.backend.outputs())
        return lines

    def _first(self, sample: int) -> dict[str, Any]:
        """The first inference of a sample, its bind included."""
        backend, hook = self.backend, self.hook
        self.sample, self.staged = None, []
        backend.release()
        before = hook.settled()
        self.staged = load_sample(self.samples, sample)
        self.base = self.loaded + hook.settled() - before
        backend.prepare(sample, self.staged)
        hook.reset()
        _reset_resident_peak()
        start = time.perf_counter_ns()
        bind_ns = time.perf_counter_ns() - start if backend.bind(sample, self.staged) else 0
        line = self._inference(bind_ns)
        line["phases_ns"] = backend.phases_ns()
        if backend.packs_late:
            backend.trim()
            self.base = hook.settled() - self.copied
            hook.reset()
            line["peak_bytes"] = self._inference(0)["peak_bytes"]
        self.sample = sample
        return line

    def _again(self) -> dict[str, Any]:
        self.backend.discard()
        self.hook.reset()
        _reset_resident_peak()
        return self._inference(0, stage=self.backend.restages)

    def _inference(self, bind_ns: int, stage: bool = True) -> dict[str, Any]:
        start = time.perf_counter_ns()
        if stage:
            self.copied = self.backend.stage(self.staged)
        staged = time.perf_counter_ns()
        self.backend.infer()
        end = time.perf_counter_ns()
        return {
            "latency_ns": end - staged + bind_ns,
            "copy_ns": staged - start,
            "bind_ns": bind_ns,
            "peak_bytes": int(self.hook.peak()) - self.base - self.copied - self.backend.packed_bytes(),
            "own_bytes": self.backend.own_bytes(),
            "hwm_bytes": _resident_peak(),
        }


def load_sample(samples: Path, sample: int) -> Arrays:
    """Inputs of a sample; FileNotFoundError when there are none."""
    files = sorted(samples.glob(f"{sample}.*.npy"), key=lambda path: int(path.name.split(".")[1]))
    if not files:
        raise FileNotFoundError(f"{samples} has no inputs of sample {sample}")
    return [_aligned(np.load(file)) for file in files]


def _aligned(array: np.ndarray) -> np.ndarray:
    """The same in memory that begins with a cache line, as in SoD²'s bench: numpy's own begins 16 bytes behind one."""
    memory = np.empty(array.nbytes + 64, np.uint8)
    begin = -memory.ctypes.data % 64
    found = memory[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
    found[...] = array
    return found


def save_outputs(folder: Path, sample: int, outputs: Arrays) -> None:
    """Put the outputs of a sample where the harness compares them."""
    folder.mkdir(parents=True, exist_ok=True)
    for k, value in enumerate(outputs):
        np.save(folder / f"{sample}.{k}.npy", value)


def busy_threads(work: Callable[[], object], wanted: int) -> int:
    """Threads of this process that share a call of `work`: the most that do in at least COUNTED of the calls.

    A thread has a share when it spends at least SHARE of the busiest one's processor time. Calls are looked at one by
    one because an engine may use other threads of its pool each time; not all of them count, because other processes
    may keep a thread from running. Ends when the wanted number is seen, after COUNTING_S at the latest.
    """
    work()  # threads that start on first use are there from now on
    calls: Counter[int] = Counter()
    count, start = 0, time.perf_counter()
    while calls.total() < COUNTED_CALLS or (count != wanted and time.perf_counter() < start + COUNTING_S):
        before = processor_times()
        work()
        spent = [now - before.get(thread, 0) for thread, now in processor_times().items()]
        calls[sum(ns >= SHARE * max(spent) for ns in spent)] += 1
        count = max(n for n in calls if sum(calls[k] for k in calls if k >= n) >= COUNTED * calls.total())
    return count


def processor_times() -> dict[int, int]:
    """Processor time of every thread of this process in nanoseconds; a thread that ends meanwhile is left out."""
    times = {}
    for thread in _threads():
        with contextlib.suppress(OSError):  # EINVAL: no such thread any more
            times[thread] = _processor_time(thread)
    return times


def thread_count() -> int:
    """Threads that this process has."""
    return len(_threads())


def _threads() -> list[int]:
    return [int(name) for name in os.listdir("/proc/self/task")]


def _reset_resident_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")  # proc(5): resets VmHWM to the resident size


def _resident_peak() -> int:
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])


def _processor_time(thread: int) -> int:
    """Processor time of a thread of this process in nanoseconds, by Linux's number of its clock."""
    return time.clock_gettime_ns((~thread << 3) | 6)


def _smallest(samples: Path) -> int:
    """The sample whose inputs are the smallest; the harness begins with it."""
    sizes: dict[int, int] = {}
    for file in samples.glob("*.npy"):
        index = int(file.name.split(".")[0])
        sizes[index] = sizes.get(index, 0) + file.stat().st_size
    if not sizes:
        raise FileNotFoundError(f"{samples} holds no samples, which are files <i>.<k>.npy")
    return min(sizes, key=lambda index: (sizes[index], index))


def serve(make: Callable[[], Backend], samples: Path, threads: int, commands: TextIO, answers: TextIO) -> None:
    """Load the bundle's model and obey commands until `quit` or the end of input."""

    def start() -> tuple[dict[str, Any], Run]:
        backend = make()
        runner = Runner(backend, samples, threads)
        about = {
            "engine": backend.engine,
            "version": backend.version,
            "threads": backend.threads,
            "weight_bytes": runner.weight_bytes,
            "load_ns": runner.load_ns,
            "unscheduled": backend.unscheduled,
        }
        return about, runner.run

    converse(start, commands, answers)


def converse(start: Callable[[], tuple[dict[str, Any], Run]], commands: TextIO, answers: TextIO) -> None:
    """The protocol itself: what `start` says of the engine, then what its function answers, until `quit`."""

    def answer(line: dict[str, Any]) -> None:
        answers.write(json.dumps(line) + "\n")
        answers.flush()

    try:
        about, run = start()
        answer({"ready": True, **about})
        for line in commands:
            match line.split():
                case ["run", sample, repeats, *folder] if len(folder) < 2:
                    for result in run(int(sample), int(repeats), Path(folder[0]) if folder else None):
                        answer(result)
                case ["quit"]:
                    return
                case _:
                    answer({"error": f"unknown command {line.strip()!r}"})
    except Exception as error:
        answer({"error": " ".join(str(error).split()) or type(error).__name__})
        sys.exit(1)


@functools.cache
def take_output() -> TextIO:
    """The real standard output, for the protocol alone: whatever else prints goes to standard error from now on."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return answers


def main(make: Callable[[], Backend], arguments: Sequence[str]) -> None:
    """Entry of a runner script: `arguments` are the folder of samples and the number of threads."""
    serve(make, Path(arguments[0]), int(arguments[1]), sys.stdin, take_output())
