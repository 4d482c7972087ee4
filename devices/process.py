"""A program on a device, run by the agent (agent.c): lines in and out, paused and resumed, always ended.

Pipes lead to a process here that holds the connection. What the agent prints when the program has ended tells an end
from a lost connection, which no exit status does reliably.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from types import TracebackType

from devices.driver import DeviceLost

CONTROL = b"\x01"
STOPPED = CONTROL + b"stopped\n"
STATUS = CONTROL + b"status "
ANSWER_S = 30.0
END_S = 10.0


class Process:
    """A program that runs under the agent; `words` is the command here that reaches it."""

    def __init__(self, words: Sequence[str], device: str) -> None:
        self._device = device
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process; `kill` closes it
        self._process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, bufsize=0, start_new_session=True
        )

    def __enter__(self) -> Process:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def send(self, line: bytes) -> None:
        """Write a line to the program; BrokenPipeError when it has ended."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + b"\n")

    def read(self, seconds: float) -> bytes | None:
        """What the program printed: b"" when it has ended, None when there was nothing within so many seconds."""
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], max(0.0, seconds))[0]:
            return None
        return os.read(self._process.stdout.fileno(), 1 << 16)

    def pause(self) -> None:
        """Keep the program off the processors (idle thread pools spin) until `resume`. It must owe no answer.

        A program that has ended meanwhile is found out by the next `read`; raises DeviceLost when nothing answers.
        """
        try:
            self.send(CONTROL + b"stop")
        except BrokenPipeError:
            return
        deadline, answer = time.monotonic() + ANSWER_S, b""
        while not answer.endswith(STOPPED):
            data = self.read(deadline - time.monotonic())
            if data is None:
                raise DeviceLost(f"device {self._device}: did not stop a program within {ANSWER_S:g} s")
            if not data:
                return
            answer += data

    def resume(self) -> None:
        """Let a paused program run again; BrokenPipeError when it has ended."""
        self.send(CONTROL + b"cont")

    def end(self) -> str:
        """How the program ended, with the last line that it printed to standard error.

        Raises DeviceLost when it was the connection that ended.
        """
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            return "closed its output without ending"
        self._log.seek(0)
        text, mark, status = self._log.read().rpartition(STATUS)
        said = [line for line in text.decode(errors="replace").splitlines() if line.strip()]
        if not mark:
            trailer = status.decode(errors="replace").strip().splitlines()
            raise DeviceLost(
                f"device {self._device}: the connection broke off while a program ran"
                + (f": {trailer[-1]}" if trailer else "")
            )
        number = int(status)
        how = f"died of {signal.Signals(number - 128).name}" if number > 128 else f"ended with status {number}"
        return f"{how}: {said[-1].strip()}" if said else how

    def wait(self, seconds: float) -> bool:
        """Whether the program ends by itself within so many seconds."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        """End the program and all that it started, at once: the end of its input makes the agent do so."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        if not self.wait(END_S):
            self._process.kill()
            self._process.wait()
        self._log.close()
