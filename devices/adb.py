"""The driver of Android devices: the adb program (adbutils brings one along) and its server.

The address is a serial number as `adb devices` prints it, or HOST:PORT of a device that listens on the network, which
is connected to when it is not yet. The shell service in its second version (Android 7 and newer) keeps standard output
and error apart and is safe for binary data; without a terminal a hang-up reaches the shell alone, so that processes are
ended by the agent. A server on another port is selected by adb's own variable ANDROID_ADB_SERVER_PORT.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator

import adbutils

from devices.driver import DeviceLost, Driver

ANSWER_S = 20
ADVICE = {
    "unauthorized": "unlock it and allow USB debugging from this computer",
    "offline": "it does not answer: replug the cable, or switch USB debugging off and on",
    "not found": "plug it in, switch USB debugging on, and compare its serial with `adb devices`",
}


class Adb(Driver):
    """An Android device."""

    folder = "/data/local/tmp/sod2"

    def shell(self, script: str) -> list[str]:
        return [*self._adb("shell"), "-T", script]

    def trouble(self) -> str | None:
        said = self._say("get-state")
        if said != "device" and ":" in self.address:
            self._say("connect", self.address, select=False)
            said = self._say("get-state")
        if said == "device":
            return None
        advice = next((text for state, text in ADVICE.items() if state in said), "see `adb devices -l`")
        return f"adb says of {self.address} '{said}': {advice}"

    @contextlib.contextmanager
    def forward(self, port: int) -> Iterator[int]:
        said = self._say("forward", "tcp:0", f"tcp:{port}")
        if not said.isdecimal():
            raise DeviceLost(f"adb forwards no port to {self.address}: {said}")
        try:
            yield int(said)
        finally:
            self._say("forward", "--remove", f"tcp:{said}")  # gone already where the phone is

    def _adb(self, *words: str, select: bool = True) -> list[str]:
        return [adbutils.adb_path(), *(("-s", self.address) if select else ()), *words]

    def _say(self, *words: str, select: bool = True) -> str:
        """The first line that adb prints for a command, without `error: ` and without news of its server."""
        try:
            result = subprocess.run(
                self._adb(*words, select=select), capture_output=True, text=True, timeout=ANSWER_S, check=False
            )
        except subprocess.TimeoutExpired:
            return f"no answer within {ANSWER_S} s"
        lines = [line for line in (result.stdout + result.stderr).splitlines() if line and not line.startswith("* ")]
        return lines[0].removeprefix("error: ") if lines else f"nothing, status {result.returncode}"


DRIVER = Adb
