"""One engine's process: started, given its turns, held to its limits, and stopped.

Everything that can go wrong inside the process ends as EngineFailure with a sentence: it died (signal or status, with
the error it printed), gave no answer in time, grew beyond the memory limit, or printed what is not the protocol.
Limits are watched from outside between reads, since address-space limits would also refuse reservations that are never
touched.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from devices.device import Device

WATCH_S = 0.1
READY = ("engine", "version", "threads", "weight_bytes", "load_ns")
INFERENCE = ("first", "latency_ns", "bind_ns", "copy_ns", "peak_bytes", "own_bytes")

Answer = dict[str, Any]


class EngineFailure(Exception):
    """The engine's process failed; the message is the reason of its rows."""


@dataclass(frozen=True)
class Limits:
    """What one answer of an engine may take."""

    seconds: float
    memory_bytes: int


class Session:
    """A running bundle."""

    def __init__(
        self, device: Device, folder: Path, command: list[str], *, samples: str, threads: int, limits: Limits
    ) -> None:
        self._device = device
        self._limits = limits
        self._unread = b""
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process; `kill` closes it
        try:
            self._process = device.start([*command, samples, str(threads)], device.push(folder), self._log.fileno())
        except OSError as error:
            raise EngineFailure(f"could not be started: {error.strerror}: {command[0]}") from error
        try:
            self.ready = self._answer(time.monotonic() + limits.seconds, READY)
            if self.ready["threads"] != threads:
                raise EngineFailure(f"runs with {self.ready['threads']} threads where {threads} were asked for")
        except EngineFailure:
            self.kill()
            raise
        device.pause(self._process)

    def run(self, sample: int, repeats: int, outputs: str | None = None) -> list[Answer]:
        """Give the engine a turn; returns its lines, one per inference. Kills the process when it fails."""
        words = ["run", str(sample), str(repeats), *([outputs] if outputs else [])]
        deadline = time.monotonic() + self._limits.seconds
        try:
            self._device.resume(self._process)
            self._send(" ".join(words))
            lines = [self._answer(deadline, INFERENCE) for _ in range(repeats)]
            self._device.pause(self._process)
        except EngineFailure:
            self.kill()
            raise
        return lines

    def close(self) -> None:
        """Ask the process to quit, and make sure that it does."""
        if self._process.poll() is None:
            self._device.resume(self._process)
            try:
                self._send("quit")
                self._process.wait(timeout=10)
            except (EngineFailure, subprocess.TimeoutExpired):
                pass  # it had its chance; what it measured is already here
        self.kill()

    def kill(self) -> None:
        """End the process at once."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        self._log.close()

    def _send(self, line: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line.encode() + b"\n")
        except BrokenPipeError:
            raise EngineFailure(self._death()) from None

    def _answer(self, deadline: float, fields: tuple[str, ...]) -> Answer:
        """The next line of the process, which must be JSON with these fields."""
        line = self._line(deadline)
        try:
            answer = json.loads(line)
        except ValueError:
            answer = None
        if isinstance(answer, dict) and "error" in answer:
            raise EngineFailure(str(answer["error"]))
        if not isinstance(answer, dict) or not all(name in answer for name in fields):
            raise EngineFailure(f"printed {line[:80]!r}, which is not a line with {', '.join(fields)}")
        return answer

    def _line(self, deadline: float) -> str:
        assert self._process.stdout is not None
        while b"\n" not in self._unread:
            if select.select([self._process.stdout], [], [], WATCH_S)[0]:
                data = os.read(self._process.stdout.fileno(), 1 << 16)
                if not data:
                    raise EngineFailure(self._death())
                self._unread += data
            if time.monotonic() > deadline:
                raise EngineFailure(f"gave no answer within {self._limits.seconds:g} s")
            if self._device.resident_bytes(self._process) > self._limits.memory_bytes:
                raise EngineFailure(f"took more than {self._limits.memory_bytes / 2**30:.3g} GiB of memory")
        line, _, self._unread = self._unread.partition(b"\n")
        return line.decode(errors="replace")

    def _death(self) -> str:
        """How the process ended, with the last line that it printed to standard error."""
        try:
            status = self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            return "closed its output without ending"
        how = f"died of {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return f"{how}: {lines[-1].strip()}" if lines else how
