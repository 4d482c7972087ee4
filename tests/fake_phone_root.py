"""The folder that a fake phone's commands see: two flavours of phone, their facts, programs in place of Android's.

Paths of the phone in a script (/data/local/tmp, /sys, some of /proc) are replaced by those of the folder, which needs
neither root nor anything installed. Programs run on this machine, so that the phone has as many CPUs, and are compiled
for it. Where the kernel hands programs for aarch64 to qemu (package qemu-user-static, with binfmt_misc), the phone can
become one of arm64, with its shell and tools and a stand-in of Android's C library (`become_arm64`); such programs see
the folder's /sys and /proc/cpuinfo by qemu's own redirection. Frequencies, temperatures and settings are files.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from baselines import android
from sod2.codegen import target

PACKAGES = ("mksh", "busybox-static", "musl")
# What the harness's scripts, and those of the programs below, call.
TOOLS = (
    *("awk", "cat", "cp", "cut", "echo", "env", "find", "grep", "head", "kill", "ln", "ls", "mkdir", "mv", "nproc"),
    *("printf", "ps", "rm", "sed", "sha256sum", "sleep", "sort", "tail", "tar", "tr", "true", "uname", "wc"),
)
MAPPED = ("/data/local/tmp", "/sys/", "/proc/cpuinfo", "/proc/loadavg")

PROGRAMS = {
    "getprop": r"""sed 's/^\([^=]*\)=\(.*\)/[\1]: [\2]/' "$PHONE/build.prop" """,
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
    """What is particular to a phone: `clusters` are (CPUs, largest frequency in kHz, implementer and part of the core).

    Where aarch64 programs run here by emulation, they find the instructions of the core `qemu`.
    """

    properties: dict[str, str]
    hardware: str
    clusters: tuple[tuple[int, int, int, int], ...]
    features: str
    qemu: str


FEATURES = "fp asimd evtstrm aes pmull sha1 sha2 crc32"  # of ARMv8.0
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
        ((4, 1804800, 0x41, 0xD05), (3, 2419200, 0x41, 0xD41), (1, 2841600, 0x41, 0xD44)),
        f"{FEATURES} atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp",
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
        ((4, 1900800, 0x51, 0x801), (4, 2361600, 0x51, 0x800)),
        FEATURES,
        "cortex-a57",  # as an A73: nothing newer than ARMv8.0
    ),
}


class Root:
    """The folder of one phone."""

    def __init__(self, folder: Path, flavour: Flavour) -> None:
        self.folder = folder
        self.tools: Path | None = None
        self.properties = flavour.properties
        self.qemu = flavour.qemu
        self.data = folder / "data/local/tmp"
        self.data.mkdir(parents=True)
        self.write("build.prop", "".join(f"{key}={value}\n" for key, value in flavour.properties.items()))
        self.write("proc/loadavg", "0.25 0.20 0.15 1/2000 4242\n")
        self._cpus(flavour)
        for number, (zone, millidegrees) in enumerate((("cpu-0-0", 38200), ("battery", 30100))):
            self.write(f"sys/class/thermal/thermal_zone{number}/type", f"{zone}\n")
            self.write(f"sys/class/thermal/thermal_zone{number}/temp", f"{millidegrees}\n")
        self.cool()
        self.write("state/free_kib", "50000000\n")
        for name, script in PROGRAMS.items():
            self.program(name, script)

    def _cpus(self, flavour: Flavour) -> None:
        """What the kernel tells of the cores; engines crash when there is less of it than on a phone."""
        cpuinfo, first = "", 0
        for count, khz, implementer, part in flavour.clusters:
            cores = range(first, first + count)
            first += count
            siblings = f"{cores[0]}-{cores[-1]}"
            for core in cores:
                cpuinfo += (
                    f"processor\t: {core}\nBogoMIPS\t: 38.40\nFeatures\t: {flavour.features}\n"
                    f"CPU implementer\t: {implementer:#x}\nCPU architecture: 8\nCPU variant\t: 0x1\n"
                    f"CPU part\t: {part:#x}\nCPU revision\t: 0\n\n"
                )
                for name, value in (
                    *(("cpufreq/" + name, khz) for name in ("cpuinfo_max_freq", "scaling_max_freq")),
                    *(("cpufreq/" + name, 300000) for name in ("cpuinfo_min_freq", "scaling_cur_freq")),
                    ("cpufreq/scaling_governor", "schedutil"),
                    ("cpufreq/related_cpus", " ".join(map(str, cores))),
                    ("online", 1),
                    ("topology/physical_package_id", 0),
                    ("topology/core_id", core),
                    ("topology/core_siblings_list", siblings),
                    ("topology/core_siblings", f"{sum(1 << c for c in cores):02x}"),
                    ("topology/thread_siblings_list", core),
                    ("topology/thread_siblings", f"{1 << core:02x}"),
                ):
                    self.write(f"sys/devices/system/cpu/cpu{core}/{name}", f"{value}\n")
        for name in ("present", "possible", "online"):
            self.write(f"sys/devices/system/cpu/{name}", f"0-{first - 1}\n")
        self.write("proc/cpuinfo", f"{cpuinfo}Hardware\t: {flavour.hardware}\n")

    def become_arm64(self, packages: Path) -> None:
        """Give the phone the shell and tools of arm64, and what programs made for Android's C library need.

        `packages` holds those of PACKAGES, unpacked. Android's shell is mksh too; its C library is played by musl, with
        the names that this lacks (android_libc.c).
        """
        self.tools = self.folder / "system/bin"
        for folder in ("bin", "lib64", "etc"):
            (self.folder / "system" / folder).mkdir(parents=True)
        shutil.copy(packages / "usr/lib/klibc/bin/mksh", self.tools / "sh")
        shutil.copy(packages / "bin/busybox", self.tools / "busybox")
        for name in TOOLS:
            (self.tools / name).symlink_to("busybox")
        shutil.copy(packages / "lib/aarch64-linux-musl/libc.so", self.tools / "linker64")
        self.write("system/etc/ld-musl-aarch64.path", "/system/lib64\n")
        machine = android.zig()
        source = Path(__file__).with_name("android_libc.c")
        # No builtins: a calloc written as malloc and memset would become a call of itself.
        plain = dataclasses.replace(machine, cflags=(*machine.cflags, "-fno-builtin"))
        objects = target.compile_objects(plain, [source], (), target.default_cache() / "objects")
        for name in ("liblog.so", "libandroid.so"):
            android.link_library(machine, objects, name, self.folder / "system/lib64" / name)
        for name, script in PROGRAMS.items():
            self.program(name, script)

    def write(self, path: str, text: str) -> None:
        """A file of the phone."""
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def program(self, name: str, script: str) -> None:
        """A program of the phone, before those of the machine."""
        shell = "/bin/sh" if self.tools is None else f"{self.tools}/sh"
        self.write(f"bin/{name}", f"#!{shell}\n{script}\n")
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
        return ["/bin/sh" if self.tools is None else f"{self.tools}/sh", "-c", script]

    @property
    def environment(self) -> dict[str, str]:
        """The variables of its shell: nothing of the host's."""
        path = f"{self.folder}/bin:{self.tools or f'{os.defpath}:/usr/local/bin'}"
        emulation = {
            "QEMU_CPU": self.qemu,
            "QEMU_LD_PREFIX": str(self.folder),
            "QEMU_SET_ENV": "LD_PRELOAD=/system/lib64/liblog.so",  # static programs do not see it
        }
        return {"PATH": path, "PHONE": str(self.folder), "HOME": "/", **emulation}
