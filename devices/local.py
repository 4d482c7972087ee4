"""The driver of the machine that runs the workflow: folders stay where they are, processes are children.

Between its turns an engine is stopped by SIGSTOP, since thread pools of some engines spin for a while after an
inference and would take the processors from whoever is measured next. A stopped child cannot notice that its parent
died, so the kernel is asked (`PR_SET_PDEATHSIG`) to kill it then. Linux only.
"""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from devices.device import Device

PR_SET_PDEATHSIG = 1
# Snakemake exports these with the rule's thread count into every job; an engine is told its threads explicitly.
THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "GOTO_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)
_LIBC = ctypes.CDLL(None, use_errno=True)


class Local(Device):
    """This machine."""

    exclusive = True

    def cpus(self) -> int:
        return len(os.sched_getaffinity(0))

    def facts(self) -> dict[str, Any]:
        return {
            "cpu": _cpu_model(),
            "cpus": self.cpus(),
            "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            "system": f"{platform.system()} {platform.release()} {platform.machine()}",
            "governor": _read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
            "khz": _read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq"),
            "millidegrees": _read("/sys/class/thermal/thermal_zone0/temp"),
            "load": round(os.getloadavg()[0], 2),
        }

    def push(self, folder: Path) -> str:
        return str(folder.resolve())

    def pull(self, folder: str) -> Path:
        return Path(folder)

    def scratch(self) -> str:
        return tempfile.mkdtemp(prefix="sod2-outputs-")

    def start(self, command: Sequence[str], folder: str, stderr: int) -> subprocess.Popen[bytes]:
        environment = {k: v for k, v in os.environ.items() if k not in THREAD_VARIABLES}
        return subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            bufsize=0,
            preexec_fn=_die_with_parent,  # noqa: PLW1509 - the measuring process has no other threads
        )

    def resident_bytes(self, process: subprocess.Popen[bytes]) -> int:
        try:
            pages = Path(f"/proc/{process.pid}/statm").read_text().split()[1]
        except (FileNotFoundError, ProcessLookupError, IndexError):
            return 0
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def pause(self, process: subprocess.Popen[bytes]) -> None:
        process.send_signal(signal.SIGSTOP)

    def resume(self, process: subprocess.Popen[bytes]) -> None:
        process.send_signal(signal.SIGCONT)


DRIVER = Local


def _die_with_parent() -> None:
    _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _read(path: str) -> str | None:
    """A one-line file of the kernel; None where this machine has no such file (virtual machines have no governor)."""
    try:
        return Path(path).read_text().strip()
    except OSError:
        return None


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("model name", "Hardware"):
            return value.strip()
    return platform.machine()
