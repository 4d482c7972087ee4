"""Whether a device keeps its speed: cooling, a setting for the time of a measurement, and the canary.

Phones slow down when they are warm. Before a sample is measured the device cools down to the file's temperature or for
the file's time; before and after, the canary (canary.c) is timed on its fastest core. A canary slower than the fastest
so far by more than the file's share, a temperature that was not reached, or a limit that the device itself states is
throttling: the sample is measured again, and when it does not get better, its rows say why. They are never dropped.

A setting (Android's fixed-performance mode) is held by a shell on the device that puts it back when its input ends, so
also when the run is killed or the cable is pulled. A device without `steady` in its file, as the host, is not watched.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from devices import facts
from devices.driver import DeviceError, DeviceLost

if TYPE_CHECKING:
    from devices.device import Device

LOOK_S = 5.0
END_S = 20.0


class Steady:
    """Watches one device during one measurement; enter it for the setting to hold."""

    def __init__(self, device: Device, rules: Mapping[str, Any] | None) -> None:
        self._device = device
        self._rules = rules
        self._holder: subprocess.Popen[bytes] | None = None
        self._best_ns: int | None = None
        self._before_ns = 0
        self._warm: str | None = None
        self._waited_s = 0.0

    @property
    def attempts(self) -> int:
        """How often a sample is measured until the device has kept its speed."""
        return int(self._rules["attempts"]) if self._rules else 1

    def __enter__(self) -> Steady:
        self.hold()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._release()

    def hold(self) -> None:
        """Apply the device's setting; again, when the connection was lost and took it along."""
        if self._rules is not None and "set" in self._rules:
            self._device.repeat(self._hold)

    def _hold(self) -> None:
        assert self._rules is not None
        self._release()
        apply, restore = self._rules["set"], self._rules["restore"]
        script = f"trap '' HUP; if {apply} >/dev/null; then echo held; cat >/dev/null; {restore}; else echo refused; fi"
        self._holder = subprocess.Popen(
            self._device.driver.shell(script), stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        assert self._holder.stdout is not None
        answer = self._holder.stdout.readline().strip()
        if answer == b"refused":
            raise DeviceError(f"device {self._device.name} refuses `{apply}`: take it out of its file")
        if answer != b"held":
            raise DeviceLost(f"device {self._device.name}: the connection broke off during `{apply}`")

    def _release(self) -> None:
        """Put the setting back."""
        if self._holder is None:
            return
        assert self._holder.stdin is not None
        assert self._holder.stdout is not None
        self._holder.stdin.close()
        try:
            self._holder.wait(END_S)
        except subprocess.TimeoutExpired:  # the connection hangs; the device does it when that ends
            self._holder.kill()
            self._holder.wait()
        self._holder.stdout.close()
        self._holder = None

    def begin(self) -> None:
        """Before a sample: cool down, and time the canary."""
        if self._rules is None:
            return
        start = time.monotonic()
        self._warm = self._too_warm()
        while self._warm is not None and time.monotonic() - start < self._rules["wait_s"]:
            print(f"device {self._device.name}: {self._warm}; waiting", file=sys.stderr, flush=True)
            time.sleep(min(LOOK_S, self._rules["wait_s"]))
            self._warm = self._too_warm()
        self._waited_s = round(time.monotonic() - start, 1)
        self._before_ns = self._canary()

    def end(self) -> dict[str, Any]:
        """After a sample: what its rows say of the device; `throttled` is None or the reason."""
        if self._rules is None:
            return {}
        after_ns = self._canary()
        assert self._best_ns is not None
        told = self._device.facts()
        slower = max(self._before_ns, after_ns) / self._best_ns - 1
        drift = f"the canary ran {slower:.0%} slower than at best" if slower > self._rules["drift"] else None
        return {
            "throttled": self._warm or facts.throttling(told) or drift,
            "canary_ns": [self._before_ns, after_ns],
            "cooled_s": self._waited_s,
            **{key: told[key] for key in ("khz", "battery_celsius", "celsius") if key in told},
        }

    def _canary(self) -> int:
        took = self._device.canary_ns()
        self._best_ns = min(took, self._best_ns or took)
        return took

    def _too_warm(self) -> str | None:
        assert self._rules is not None
        told = self._device.facts()
        warmth = facts.warmth(told)
        if warmth is not None and warmth > self._rules["celsius"]:
            return f"{warmth:g} °C warm, where {self._rules['celsius']:g} are allowed"
        return facts.throttling(told)
