"""What a test needs beside a fake phone: an adb server of its own, and device files that lead to the phones."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import adbutils
import arm64_packages
import pytest
import yaml
from fake_phone_root import PACKAGES

from baselines import ort_android
from baselines.engine import BuildFailed, Unsupported

DEVICES = Path(__file__).parents[1] / "devices"
START_S = 20
PORT = "ANDROID_ADB_SERVER_PORT"


@contextlib.contextmanager
def adb_server(home: Path) -> Iterator[None]:
    """A server on a port of its own, with keys of its own in `home`; adb finds it while this is entered."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [adbutils.adb_path(), "-L", f"tcp:{port}", "nodaemon", "server"]
    private = {PORT: str(port), "HOME": str(home), "ADB_MDNS": "0"}
    with (home / "server.log").open("wb") as log:
        server = subprocess.Popen(command, env=os.environ | private, stdout=log, stderr=log)
    before = os.environ.get(PORT)
    try:
        _wait(port)
        os.environ[PORT] = str(port)
        yield
    finally:
        os.environ.pop(PORT, None)
        if before is not None:
            os.environ[PORT] = before
        server.terminate()
        server.wait(START_S)


EMULATOR = Path("/proc/sys/fs/binfmt_misc/qemu-aarch64")
needs_emulator = pytest.mark.skipif(
    not EMULATOR.exists(), reason=f"{EMULATOR} is missing (apt: qemu-user-static with binfmt-support)"
)


def android_library() -> None:
    """Have onnxruntime's library for Android fetched; skips the test where it cannot be had."""
    try:
        ort_android.package()
    except (BuildFailed, Unsupported) as reason:
        pytest.skip(str(reason))


def phone_packages(config: pytest.Config) -> Path:
    """What an arm64 phone is made of, kept in pytest's cache; skips the test where it cannot be had."""
    assert config.cache is not None
    try:
        return arm64_packages.unpacked(config.cache.mkdir("arm64"), PACKAGES, recursive=False)
    except arm64_packages.Unavailable as reason:
        pytest.skip(str(reason))


def settings(flavour: str, variable: str, emulated: bool = False) -> dict[str, Any]:
    """The device file of a phone, changed for one that is never waited for long and runs what this machine runs.

    An emulated phone keeps its platform and the core that programs are compiled for.
    """
    file: dict[str, Any] = yaml.safe_load((DEVICES / f"{flavour}.yaml").read_text())
    mask = f"{sum(1 << cpu for cpu in sorted(os.sched_getaffinity(0))[:2]):x}"
    file["steady"] |= {"wait_s": 0.2, "drift": 100}
    platform = file["platform"] if emulated else "linux-x86_64"
    cores = {"all": {"mask": mask, "cpu": file["cores"]["all"]["cpu"] if emulated else "x86-64-v3"}}
    return file | {"address": variable, "platform": platform, "cores": cores}


def _wait(port: int) -> None:
    deadline = time.monotonic() + START_S
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 0.2):
            return
        assert time.monotonic() < deadline, "the adb server did not start"
        time.sleep(0.05)
