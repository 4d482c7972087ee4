"""One engine's process: started, given its turns, held to its limits, and stopped.

Everything that can go wrong inside the process ends as EngineFailure with a sentence: it died (signal or status, with
the error it printed), gave no answer in time, grew beyond the memory limit, or printed what is not the protocol.
The agent of the device (devices/agent.c) watches the memory, since address-space limits would also refuse reservations
that are never touched. A connection that breaks off is no failure of the engine: it stays DeviceLost.
"""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from devices.device import Device, DeviceLost

READY = ("engine", "version", "threads", "weight_bytes", "load_ns")
INFERENCE = ("first", "latency_ns", "bind_ns", "copy_ns", "peak_bytes", "own_bytes")
OPTIONAL = ("unscheduled", "hwm_bytes", "phases_ns")
"""What an engine may say beside these, in either line."""

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
        self._process = device.start([*command, samples, str(threads)], device.files.push(folder), limits.memory_bytes)
        try:
            self.ready = self._answer(time.monotonic() + limits.seconds, READY)
            if self.ready["threads"] != threads:
                raise EngineFailure(f"runs with {self.ready['threads']} threads where {threads} were asked for")
            self._process.pause()
        except (EngineFailure, DeviceLost):
            self.kill()
            raise

    def run(self, sample: int, repeats: int, outputs: str | None = None) -> list[Answer]:
        """Give the engine a turn; returns its lines, one per inference. Ends the process when it fails."""
        words = ["run", str(sample), str(repeats), *([outputs] if outputs else [])]
        deadline = time.monotonic() + self._limits.seconds
        try:
            self._send(" ".join(words))
            lines = [self._answer(deadline, INFERENCE) for _ in range(repeats)]
            self._process.pause()
        except (EngineFailure, DeviceLost):
            self.kill()
            raise
        return lines

    def pull(self, outputs: str) -> Path:
        """Move the outputs of the last turn here; returns their folder, for the caller to empty."""
        return self._device.files.pull(outputs)

    def close(self) -> None:
        """Ask the process to quit, and make sure that it does."""
        # It had its turns, and what it measured is already here: how it ends does not matter.
        with contextlib.suppress(EngineFailure, DeviceLost):
            self._send("quit")
            self._process.wait(10)
        self.kill()

    def kill(self) -> None:
        """End the process at once."""
        self._process.kill()

    def _send(self, line: str) -> None:
        """Let the paused process run again, and give it a line."""
        try:
            self._process.resume()
            self._process.send(line.encode())
        except BrokenPipeError:
            raise EngineFailure(self._process.end()) from None

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
        while b"\n" not in self._unread:
            data = self._process.read(deadline - time.monotonic())
            if data is None:
                raise EngineFailure(f"gave no answer within {self._limits.seconds:g} s")
            if not data:
                raise EngineFailure(self._process.end())
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        return line.decode(errors="replace")
