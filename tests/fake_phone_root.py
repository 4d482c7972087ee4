"""The folder that a fake phone's commands see: two flavours of phone, their facts, programs in place of Android's.

Paths of the phone in a script (/data/local/tmp, /sys, some of /proc) are replaced by those of the folder, which needs
neither root nor anything installed. Programs run on this machine, so that the phone has as many CPUs, and programs for
the phone must be compiled for this machine, or for aarch64 where the kernel hands these to qemu (package
qemu-user-static, with binfmt_misc). Frequencies, temperatures and settings are files.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

MAPPED = ("/data/local/tmp", "/sys/", "/proc/cpuinfo", "/proc/loadavg")

PROGRAMS = {
    "getprop": 'sed -n "s/^$1=//p" "$PHONE/build.prop"',
    "dumpsys": """case "$1" in
battery) printf 'Current Battery Service state:\\n  USB powered: true\\n  level: 83\\n  temperature: %s\\n' \
"$(cat "$PHONE/state/battery")";;
thermalservice) printf 'IsStatusOverride: false\\nThermal Status: %s\\n' "$(cat "$PHONE/state/thermal")";;
esac""",
    "settings": "echo 1",
    "cmd": """[ "$1 $2" = "power set-fixed-performance-mode-enabled" ] || exit 1
echo "$3" >>"$PHONE/state/fixed_performance" """,
    "df": """echo "Filesystem 1024-blocks Used Available Capacity Mounted on"
echo "/dev/block/dm-37 112000000 50000000 $(cat "$PHONE/state/free_kib") 45% /data" """,
}


@dataclass(frozen=True)
class Flavour:
    """What is particular to a phone: `clusters` are (CPUs, largest frequency in kHz).

    Where aarch64 programs run here by emulation, they find the instructions of the core `qemu`.
    """

    properties: dict[str, str]
    hardware: str
    clusters: tuple[tuple[int, int], ...]
    qemu: str


FLAVOURS = {
    "s21": Flavour(
        {
            "ro.product.name": "o1sxeea",
            "ro.product.model": "SM-G991U",
            "ro.product.device": "o1q",
            "ro.soc.model": "SM8350",
            "ro.board.platform": "lahaina",
            "ro.build.version.release": "13",
            "ro.build.fingerprint": "samsung/o1q/o1q:13/TP1A/G991U:user/release-keys",
        },
        "Qualcomm Technologies, Inc SM8350",
        ((4, 1804800), (3, 2419200), (1, 2841600)),
        "cortex-a76",
    ),
    "sd835": Flavour(
        {
            "ro.product.name": "walleye",
            "ro.product.model": "Pixel 2",
            "ro.product.device": "walleye",
            "ro.board.platform": "msm8998",
            "ro.build.version.release": "9",
            "ro.build.fingerprint": "google/walleye/walleye:9/PQ3A/5674421:user/release-keys",
        },
        "Qualcomm Technologies, Inc MSM8998",
        ((4, 1900800), (4, 2361600)),
        "cortex-a57",  # as an A73: nothing newer than ARMv8.0
    ),
}


class Root:
    """The folder of one phone."""

    def __init__(self, folder: Path, flavour: Flavour) -> None:
        self.folder = folder
        self.properties = flavour.properties
        self.qemu = flavour.qemu
        self.data = folder / "data/local/tmp"
        self.data.mkdir(parents=True)
        self.write("build.prop", "".join(f"{key}={value}\n" for key, value in flavour.properties.items()))
        self.write("proc/cpuinfo", f"processor\t: 0\nHardware\t: {flavour.hardware}\n")
        self.write("proc/loadavg", "0.25 0.20 0.15 1/2000 4242\n")
        core = 0
        for count, khz in flavour.clusters:
            for _ in range(count):
                for name, value in (("cpuinfo_max_freq", khz), ("scaling_max_freq", khz), ("scaling_cur_freq", 300000)):
                    self.write(f"sys/devices/system/cpu/cpu{core}/cpufreq/{name}", f"{value}\n")
                self.write(f"sys/devices/system/cpu/cpu{core}/cpufreq/scaling_governor", "schedutil\n")
                core += 1
        for number, (zone, millidegrees) in enumerate((("cpu-0-0", 38200), ("battery", 30100))):
            self.write(f"sys/class/thermal/thermal_zone{number}/type", f"{zone}\n")
            self.write(f"sys/class/thermal/thermal_zone{number}/temp", f"{millidegrees}\n")
        self.cool()
        self.write("state/free_kib", "50000000\n")
        for name, script in PROGRAMS.items():
            self.program(name, script)

    def write(self, path: str, text: str) -> None:
        """A file of the phone."""
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def program(self, name: str, script: str) -> None:
        """A program of the phone, before those of the machine."""
        self.write(f"bin/{name}", f"#!/bin/sh\n{script}\n")
        (self.folder / "bin" / name).chmod(0o755)

    def heat(self, celsius: float, status: int = 0) -> None:
        """Temperature of the battery, and Android's thermal status."""
        self.write("state/battery", f"{round(celsius * 10)}\n")
        self.write("state/thermal", f"{status}\n")

    def cool(self) -> None:
        """A phone at rest."""
        self.heat(30.1)

    def setting(self) -> list[str]:
        """Values that the fixed-performance mode was set to, one after the other."""
        file = self.folder / "state/fixed_performance"
        return file.read_text().split() if file.exists() else []

    def command(self, script: str) -> list[str]:
        """What runs a script of the phone here."""
        for path in MAPPED:
            script = script.replace(path, f"{self.folder}{path}")
        return ["/bin/sh", "-c", script]

    @property
    def environment(self) -> dict[str, str]:
        """The variables of its shell: nothing of the host's."""
        path = f"{self.folder}/bin:{os.defpath}:/usr/local/bin"
        return {"PATH": path, "PHONE": str(self.folder), "HOME": "/", "QEMU_CPU": self.qemu}
