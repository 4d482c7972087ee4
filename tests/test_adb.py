"""Devices over adb: a fake phone behind the real adb server, with every fault that a cable and a user can cause."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest
from fake_phone import FakePhone
from fake_phone_server import adb_server, needs_emulator, phone_packages, settings

from baselines.sod2 import Sod2
from devices import device as devices
from devices.device import Device, DeviceError, DeviceLost
from models import build

ROOT = Path(__file__).parents[1]
GIB = 2**30


@pytest.fixture(scope="module", autouse=True)
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with adb_server(tmp_path_factory.mktemp("adb")):
        yield


@pytest.fixture(params=["s21", "sd835"])
def flavour(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def phone(tmp_path: Path, flavour: str) -> Iterator[FakePhone]:
    with FakePhone(tmp_path / "phone", flavour) as phone:
        yield phone


@pytest.fixture
def device(phone: FakePhone, flavour: str, monkeypatch: pytest.MonkeyPatch) -> Device:
    monkeypatch.setenv("PHONE_UNDER_TEST", phone.address)
    monkeypatch.setattr(devices, "RETURN_S", 20)
    device = Device(flavour, settings(flavour, "PHONE_UNDER_TEST"))
    assert device.driver.trouble() is None
    return device


only_s21 = pytest.mark.parametrize("flavour", ["s21"])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a program, a file in a folder, an empty file and one of half a megabyte."""
    folder = tmp_path / "bundle"
    (folder / "deep" / "er").mkdir(parents=True)
    (folder / "run").write_text('#!/bin/sh\necho "ran $1"\n')
    (folder / "run").chmod(0o755)
    (folder / "deep" / "er" / "zero bytes").touch()
    (folder / "deep" / "large").write_bytes(os.urandom(1 << 19))
    return folder


def left(phone: FakePhone) -> list[str]:
    return sorted(path.name for path in (phone.root.data / "sod2").iterdir())


def test_it_is_the_phone_of_its_file(device: Device, flavour: str) -> None:
    device.connect()
    told = device.facts()
    assert (told["model"], told.get("soc"), told["android"]) == {
        "s21": ("SM-G991U", "SM8350", "13"),
        "sd835": ("Pixel 2", None, "9"),
    }[flavour]
    assert len(told["max_khz"]) == 8
    assert told["governor"] == "schedutil"
    assert told["battery_celsius"] == 30.1
    assert told["celsius"] == {"cpu-0-0": 38.2, "battery": 30.1}


@only_s21
def test_another_phone_is_refused(device: Device, phone: FakePhone) -> None:
    phone.root.write("build.prop", "ro.product.model=SM-G991B\nro.board.platform=exynos2100\n")
    with pytest.raises(DeviceError, match=r"s21: its board is 'exynos2100', devices/s21\.yaml says lahaina"):
        device.connect()


def test_push_once_run_and_pull(device: Device, phone: FakePhone, folder: Path) -> None:
    there = device.files.push(folder)
    place = phone.root.data / "sod2" / there.removeprefix("../")
    assert (place / "deep" / "large").read_bytes() == (folder / "deep" / "large").read_bytes()
    assert (place / "deep" / "er" / "zero bytes").stat().st_size == 0
    pushes = sum("tar -xf" in script for _, script in phone.scripts)
    assert device.files.push(folder) == there
    assert sum("tar -xf" in script for _, script in phone.scripts) == pushes
    (folder / "deep" / "large").write_bytes(b"other")
    assert device.files.push(folder) != there
    outputs = device.files.scratch()
    with device.start(["sh", "-c", f"./run 7; read line; echo $line > {outputs}/o"], there, GIB) as process:
        assert process.read(10) == b"ran 7\n"
        process.send(b"written")
        assert process.end() == "ended with status 0"
    (pulled,) = device.files.pull(outputs).iterdir()
    assert pulled.read_text() == "written\n"
    pulled.unlink()
    assert list(device.files.pull(outputs).iterdir()) == []
    device.files.remove(outputs)
    assert not pulled.parent.exists()
    assert not (phone.root.data / "sod2" / "scratch").exists()


@only_s21
def test_what_bundles_share_is_pushed_once(device: Device, phone: FakePhone, folder: Path, tmp_path: Path) -> None:
    places = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "name").write_text(name)
        (tmp_path / name / "shared").symlink_to("../bundle")
        places.append(phone.root.data / "sod2" / device.files.push(tmp_path / name).removeprefix("../"))
    assert [(place / "name").read_text() for place in places] == ["one", "two"]
    assert all((place / "shared" / "deep" / "large").stat().st_size == 1 << 19 for place in places)
    assert len(left(phone)) == 3


@only_s21
def test_streams_status_pause_and_limits(device: Device, folder: Path) -> None:
    there = device.files.push(folder)
    with device.start(["sh", "-c", "echo words >&2; exit 3"], there, GIB) as process:
        assert process.read(10) == b""
        assert process.end() == "ended with status 3: words"
    with device.start(["sh", "-c", "kill -SEGV $$"], there, GIB) as process:
        assert process.read(10) == b""
        assert process.end() == "died of SIGSEGV"
    with device.start(["sh", "-c", "while read line; do echo $line; done"], there, GIB) as process:
        process.pause()
        process.send(b"late")
        assert process.read(0.3) is None
        process.resume()
        assert process.read(10) == b"late\n"
    with device.start(["./nowhere"], there, GIB) as process:
        assert process.read(10) == b'{"error": "could not be started: No such file or directory: ./nowhere"}\n'
    with device.start(["sleep", "9"], there, 1) as process:
        assert process.read(10) == b'{"error": "took more than 9.31e-10 GiB of memory"}\n'


@only_s21
def test_nothing_lives_on_when_the_cable_is_pulled(device: Device, phone: FakePhone, folder: Path) -> None:
    there = device.files.push(folder)
    with device.start(["sh", "-c", "sleep 4711 & echo begun; sleep 4712"], there, GIB) as process:
        assert process.read(10) == b"begun\n"
        process.pause()
        phone.pull_cable()
        assert process.read(10) == b""
        with pytest.raises(DeviceLost, match="device s21: the connection broke off while a program ran"):
            process.end()
    assert gone("471[12]")


def gone(pattern: str) -> bool:
    """Whether no `sleep` with these seconds is left within some seconds."""
    for _ in range(100):
        if subprocess.run(["pgrep", "-f", f"^sleep {pattern}"], capture_output=True, check=False).returncode == 1:
            return True
        time.sleep(0.05)
    return False


@only_s21
def test_a_hung_program_is_ended(device: Device, folder: Path) -> None:
    with device.start(["sleep", "4713"], device.files.push(folder), GIB) as process:
        assert process.read(0.2) is None
    assert gone("4713")


def test_cable_pulled_during_a_push(
    device: Device, phone: FakePhone, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    phone.bytes_until_drop = 300_000
    there = device.files.push(folder)
    assert (phone.root.data / "sod2" / there.removeprefix("../") / "deep" / "large").stat().st_size == 1 << 19
    assert left(phone) == [there.removeprefix("../")]
    said = capfd.readouterr().err
    assert "waiting for it to come back" in said
    assert "is back" in said


@only_s21
def test_a_reboot_is_waited_for(device: Device, phone: FakePhone) -> None:
    phone.away(1.0)
    assert device.facts()["model"] == "SM-G991U"


@only_s21
def test_a_phone_that_stays_away(
    device: Device, phone: FakePhone, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "RETURN_S", 1.5)
    phone.away()
    with pytest.raises(DeviceError, match=r"device s21 was lost and not back within 1.5 s: adb says of 127.*'device"):
        device.files.push(folder)


@only_s21
def test_unauthorised_until_the_user_allows_it(device: Device, phone: FakePhone) -> None:
    phone.state = "unauthorized"
    phone.pull_cable()
    until(lambda: "unauthorized" in str(device.driver.trouble()))
    with pytest.raises(DeviceError, match=r"'device unauthorized\.': unlock it and allow USB debugging from this"):
        device.connect()
    threading.Timer(0.5, lambda: setattr(phone, "state", "device")).start()
    assert device.facts()["model"] == "SM-G991U"


@only_s21
def test_offline(device: Device, phone: FakePhone) -> None:
    phone.state = "offline"
    phone.pull_cable()
    until(lambda: device.driver.trouble() is not None)
    with pytest.raises(DeviceError, match="'device offline': it does not answer: replug the cable"):
        device.connect()


def until(condition: object) -> None:
    assert callable(condition)
    for _ in range(100):
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError("never came true")


@only_s21
def test_full_disk(device: Device, phone: FakePhone, folder: Path) -> None:
    phone.root.write("state/free_kib", "100\n")
    with pytest.raises(DeviceError, match=r"has 0 MiB free in /data/local/tmp/sod2, and .*bundle needs 1: make room"):
        device.files.push(folder)
    phone.root.write("state/free_kib", "100000\n")
    phone.root.program("tar", "head -c 70000 >/dev/null; echo 'tar: write: No space left on device' >&2; exit 1")
    with pytest.raises(DeviceError, match="device s21: tar: write: No space left on device"):
        device.files.push(folder)
    (phone.root.folder / "bin" / "tar").unlink()
    there = device.files.push(folder)
    assert left(phone) == [there.removeprefix("../")]  # and nothing half-written


@only_s21
def test_read_only_path(device: Device, phone: FakePhone, folder: Path) -> None:
    phone.root.program("mkdir", "echo \"mkdir: '$2': Read-only file system\" >&2; exit 1")
    with pytest.raises(DeviceError, match=r"device s21: mkdir: '.*': Read-only file system"):
        device.files.push(folder)


@only_s21
def test_damaged_on_its_way(device: Device, phone: FakePhone, folder: Path) -> None:
    phone.root.program("sha256sum", 'echo "0000  ./run"')
    with pytest.raises(DeviceLost, match=r"device s21 got .*bundle with other content"):
        device.files.push(folder)


def test_no_address(flavour: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_PHONE", raising=False)
    with pytest.raises(DeviceError, match=rf"set \$NO_PHONE to its address, as devices/{flavour}\.yaml says"):
        Device(flavour, settings(flavour, "NO_PHONE")).connect()


@only_s21
def test_fixed_performance_is_put_back(device: Device, phone: FakePhone) -> None:
    with device.steady():
        assert phone.root.setting() == ["true"]
    assert phone.root.setting() == ["true", "false"]


@only_s21
def test_fixed_performance_is_put_back_when_the_cable_is_pulled(device: Device, phone: FakePhone) -> None:
    with device.steady():
        phone.pull_cable()
        until(lambda: phone.root.setting() == ["true", "false"])


@only_s21
def test_fixed_performance_is_put_back_when_the_harness_is_killed(device: Device, phone: FakePhone) -> None:
    child = (
        "import json, sys, time; from devices.device import Device\n"
        "with Device('s21', json.loads(sys.argv[1])).steady(): print('held', flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", child, json.dumps(device.settings)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as harness:
        assert harness.stdout is not None
        assert harness.stdout.readline() == "held\n"
        assert phone.root.setting() == ["true"]
        harness.kill()
    until(lambda: phone.root.setting() == ["true", "false"])


@only_s21
def test_a_setting_that_the_phone_has_not(device: Device, phone: FakePhone) -> None:
    phone.root.program("cmd", "echo 'cmd: unknown command' >&2; exit 1")
    with pytest.raises(DeviceError, match="refuses `cmd power set-fixed-performance-mode-enabled true`: take it out"):
        device.steady().hold()


@only_s21
def test_throttling_is_flagged(device: Device, phone: FakePhone) -> None:
    steady = device.steady()
    steady.begin()
    conditions = steady.end()
    assert conditions["throttled"] is None
    assert all(nanoseconds > 0 for nanoseconds in conditions["canary_ns"])
    phone.root.heat(41)
    steady.begin()
    assert steady.end()["throttled"] == "41 °C warm, where 34 are allowed"
    phone.root.heat(30, status=2)
    steady.begin()
    assert steady.end()["throttled"] == "Android's thermal status is 2"
    phone.root.cool()
    phone.root.write("sys/devices/system/cpu/cpu7/cpufreq/scaling_max_freq", "1420800\n")
    steady.begin()
    assert steady.end()["throttled"] == "core 7 is limited to 1420800 of 2841600 kHz"


@only_s21
def test_a_slow_canary_is_flagged(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([100, 101, 120, 100])
    monkeypatch.setattr(device, "canary_ns", lambda: next(times))
    device.settings["steady"]["drift"] = 0.05
    steady = device.steady()
    steady.begin()
    assert steady.end()["throttled"] is None
    steady.begin()
    assert steady.end()["throttled"] == "the canary ran 20% slower than at best"


@pytest.mark.slow
@needs_emulator
def test_the_scripts_in_a_phones_own_shell(
    phone: FakePhone, flavour: str, folder: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that the harness runs there, under mksh with busybox's tools for arm64, programs compiled for the phone."""
    phone.root.become_arm64(phone_packages(request.config))
    monkeypatch.setenv("PHONE_UNDER_TEST", phone.address)
    device = Device(flavour, settings(flavour, "PHONE_UNDER_TEST", emulated=True))
    device.connect()
    told = device.facts()
    assert told["max_khz"][-1] == {"s21": 2841600, "sd835": 2361600}[flavour]
    assert (told["governor"], told["battery_celsius"]) == ("schedutil", 30.1)
    there = device.files.push(folder)
    assert left(phone) == [there.removeprefix("../")]
    outputs = device.files.scratch()
    with device.start(["sh", "-c", f"sh ./run 7; read line; echo $line > {outputs}/o"], there, GIB) as process:
        assert process.read(60) == b"ran 7\n"
        process.pause()
        process.resume()
        process.send(b"written")
        assert process.end() == "ended with status 0"
    assert [path.read_text() for path in device.files.pull(outputs).iterdir()] == ["written\n"]
    device.files.remove(outputs)
    with device.steady() as steady:
        steady.begin()
        assert steady.end()["throttled"] is None
        phone.pull_cable()
        if flavour == "s21":
            until(lambda: phone.root.setting() == ["true", "false"])
    device.repeat(device.files.clean)
    assert not (phone.root.data / "sod2").exists()


@pytest.mark.slow  # zig's first link for aarch64 takes minutes
@needs_emulator
@pytest.mark.parametrize("cpu", ["cortex-a57", "cortex-a76"])
def test_aarch64_programs_run_on_their_core_only(
    cpu: str, phone: FakePhone, flavour: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The agent, compiled for any core, starts a model compiled for one, which the older phone may not have."""
    monkeypatch.setenv("PHONE_UNDER_TEST", phone.address)
    onnx.save(build("skipnet", "tiny"), tmp_path / "model.onnx")
    device = Device(flavour, settings(flavour, "PHONE_UNDER_TEST", emulated=True))
    cores = {"all": device.settings["cores"]["all"] | {"cpu": cpu}}
    built_for = Device(flavour, dict(device.settings) | {"cores": cores})
    Sod2().build(tmp_path / "model.onnx", built_for, "cpu", {}, tmp_path / "b")
    device.connect()
    with device.start(["./bench", ".", "2"], device.files.push(tmp_path / "b"), GIB) as process:
        answer = process.read(60)
        if cpu == "cortex-a76" and flavour == "sd835":
            assert answer == b""
            assert process.end().startswith("died of SIGILL")
        else:
            assert b'"ready": true' in (answer or b"")
            process.send(b"quit")
            assert process.end() == "ended with status 0"
