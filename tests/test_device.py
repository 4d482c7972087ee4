"""Devices without a phone: the agent, device files, facts, what is pushed, the ssh driver over a stand-in for ssh."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import onnx
import pytest
import yaml

from baselines import engine
from devices import __main__ as command_line
from devices import device as devices
from devices import facts, transfer
from devices.device import Device, DeviceError, DeviceLost, load, names
from models import build

ROOT = Path(__file__).parents[1]
GIB = 2**30


def state(pid: int) -> str:
    """State of a process by the kernel's letter; "" when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):  # the latter between opening and reading
        return ""


def until(condition: Any) -> None:
    for _ in range(600):
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError("never came true")


# ---- the agent ----


def test_a_paused_program_and_its_children_do_not_run(tmp_path: Path) -> None:
    script = "sleep 60 & echo $$ $!; while read line; do echo $line; done"
    with load("host").start(["sh", "-c", script], str(tmp_path), GIB) as process:
        pids = [int(word) for word in (process.read(10) or b"").split()]
        process.pause()
        process.pause()
        assert state(pids[0]) == "T"
        until(lambda: state(pids[1]) == "T")  # the kernel stops each when it next runs
        process.resume()
        process.send(b"hello")
        assert process.read(10) == b"hello\n"
    until(lambda: all(state(pid) in ("", "Z") for pid in pids))


def test_nothing_outlives_a_killed_harness(tmp_path: Path) -> None:
    child = (
        "import sys, time; from devices.device import load\n"
        "process = load('host').start(['sh', '-c', 'echo $$; exec sleep 60'], '.', 2**30)\n"
        "print(process.read(20).decode(), flush=True); process.pause(); print('paused', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", child], cwd=ROOT, stdout=subprocess.PIPE, text=True) as harness:
        assert harness.stdout is not None
        pid = int(harness.stdout.readline())
        harness.stdout.readline()
        assert harness.stdout.readline() == "paused\n"
        harness.send_signal(signal.SIGKILL)
    until(lambda: state(pid) in ("", "Z"))


def test_silence_ends_a_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "SILENCE_S", 1)
    with load("host").start(["sleep", "60"], str(tmp_path), GIB) as process:
        assert process.read(10) == b""
        assert process.end() == "died of SIGKILL"


def test_cpus_of_the_file(tmp_path: Path) -> None:
    cpu = max(os.sched_getaffinity(0))
    file = {"driver": "local", "title": "one core", "processors": ["cpu"], "cores": {"all": {"mask": f"{1 << cpu:x}"}}}
    device = Device("one", file)
    assert device.threads == 1
    with device.start(["sh", "-c", "nproc"], str(tmp_path), GIB) as process:
        assert process.read(10) == b"1\n"
    away = Device("none", file | {"cores": {"all": {"mask": "8000000000000000"}}})
    with away.start(["true"], str(tmp_path), GIB) as process:
        assert b"the CPUs of mask 8000000000000000 cannot be used" in (process.read(10) or b"")


def test_schedulers_variables_do_not_reach_an_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    with load("host").start(["sh", "-c", 'echo "<$OMP_NUM_THREADS>"'], str(tmp_path), GIB) as process:
        assert process.read(10) == b"<>\n"


# ---- files and facts ----


def test_shipped_device_files() -> None:
    assert set(names()) >= {"host", "s21", "sd835", "raspberrypi"}
    for name in names():
        for cores in load(name).settings.get("cores", {"all": {}}):
            assert load(name, cores).threads >= 1
    assert (load("s21").threads, load("s21", "big").threads, load("s21", "one").cpu) == (8, 4, "cortex-x1")
    with pytest.raises(DeviceError, match=r"devices/host\.yaml has no cores 'big'; its sets: all"):
        load("host", "big")


PHONE = {"driver": "adb", "title": "P", "processors": ["cpu"], "address": "P", "platform": "android-arm64"}
WHOLE = PHONE | {"cores": {"all": {"mask": "f"}}}
STEADY = {"celsius": 30, "wait_s": 1, "drift": 0.1, "attempts": 1}


@pytest.mark.parametrize(
    ("file", "message"),
    [
        (PHONE, r"devices/p\.yaml: 'cores' is a required property"),
        (PHONE | {"cores": {"big": {"mask": "f0"}}}, r"devices/p\.yaml\.cores: 'all' is a required property"),
        (PHONE | {"cores": {"all": {"mask": "0xff"}}}, r"devices/p\.yaml\.cores\.all\.mask: '0xff' does not match"),
        (PHONE | {"cores": {"all": {"mask": "f"}}, "serial": "x"}, r"'serial' was unexpected"),
        (
            PHONE | {"cores": {"all": {"mask": "f"}}, "platform": "ios"},
            r"devices/p\.yaml\.platform: 'ios' is not one of",
        ),
        (
            PHONE | {"cores": {"all": {"mask": "f"}}, "steady": STEADY | {"set": "x"}},
            "'restore' is a dependency of 'set'",
        ),
    ],
)
def test_mistakes_in_a_device_file(
    file: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "device.schema.yaml").write_text((devices.FOLDER / "device.schema.yaml").read_text())
    (tmp_path / "p.yaml").write_text(yaml.safe_dump(file))
    monkeypatch.setattr(devices, "FOLDER", tmp_path)
    with pytest.raises(DeviceError, match=message):
        load("p")


def test_facts_of_this_machine(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # a lock of its own: this machine may be measuring
    told = load("host").facts()
    assert told["cpus"] == len(os.sched_getaffinity(0))
    assert told["memory_bytes"] == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert told["system"] == f"{os.uname().sysname} {os.uname().release} {os.uname().machine}"
    assert command_line.main(["facts", "host"]) == 0
    assert f'"cpus": {told["cpus"]}' in capsys.readouterr().out
    assert command_line.main(["facts", "hots"]) == 1
    assert capsys.readouterr().err.startswith("error: device 'hots' has no file devices/hots.yaml; known devices: host")


def test_parsed_facts() -> None:
    told = facts.parse(
        "cpu=A=B\nmax_khz=5 7 \nlimit_khz=5 7\nzone.cpu=-1500\nzone.broken=n/a\n"
        "memory_kib=2\n\nload=0.5\ngovernor=b a b \n"
    )
    assert told == {
        "governor": "a b", "cpu": "A=B", "max_khz": [5, 7], "limit_khz": [5, 7], "celsius": {"cpu": -1.5},
        "memory_bytes": 2048, "load": 0.5,
    }  # fmt: skip
    assert facts.parse("") == {"governor": None, "load": None, "cpu": None}
    assert facts.parse("system=Linux\nsoc=SM8350\n")["cpu"] == "SM8350"


def test_throttling_and_warmth() -> None:
    assert facts.throttling({}) is None
    assert facts.throttling({"thermal_status": 0, "max_khz": [5, 7], "limit_khz": [5, 7]}) is None
    assert facts.throttling({"max_khz": [5, 7], "limit_khz": [5, 6]}) == "core 1 is limited to 6 of 7 kHz"
    assert facts.warmth({}) is None
    assert facts.warmth({"celsius": {"a": 40.0, "b": 50.0}}) == 50
    assert facts.warmth({"celsius": {"a": 40.0}, "battery_celsius": 30.5}) == 30.5


def test_a_folder_is_named_by_its_content(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    for folder in (one, two):
        (folder / "sub").mkdir(parents=True)
        (folder / "sub" / "empty").touch()
        (folder / "a").write_text("a")
    assert transfer.name(transfer.digests(one)) == transfer.name(transfer.digests(two))
    assert transfer.size(one) == 1
    (two / "sub" / "empty").rename(two / "sub" / "other")
    assert transfer.name(transfer.digests(one)) != transfer.name(transfer.digests(two))
    assert transfer.name(transfer.digests(tmp_path / "one" / "sub" / "none")) == transfer.name({})


# ---- ssh ----

SSH = """#!/bin/sh
echo "$@" >>"$0.log"
[ -e "$0.down" ] && { echo "ssh: connect to host pi port 22: No route to host" >&2; exit 255; }
while [ "$1" = -o ]; do shift 2; done
shift
exec sh -c "$1"
"""


@pytest.fixture
def board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Device:
    """A board that a program in place of ssh reaches: this machine's shell."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "ssh").write_text(SSH)
    (tmp_path / "bin" / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    monkeypatch.setenv("BOARD_UNDER_TEST", "user@pi")
    cores = {"all": {"mask": f"{1 << min(os.sched_getaffinity(0)):x}", "cpu": "x86-64-v3"}}
    board = Device(
        "pi",
        {"driver": "ssh", "title": "Pi", "processors": ["cpu"], "address": "BOARD_UNDER_TEST",
         "platform": "linux-x86_64", "cores": cores},
    )  # fmt: skip
    monkeypatch.setattr(type(board.driver), "folder", str(tmp_path / "there"))
    monkeypatch.setattr(devices, "RETURN_S", 0.5)
    return board


def test_ssh(board: Device, tmp_path: Path) -> None:
    board.connect()
    (tmp_path / "bundle").mkdir()
    (tmp_path / "bundle" / "it's").write_text("quoted")
    there = board.files.push(tmp_path / "bundle")
    outputs = board.files.scratch()
    with board.start(["cp", "it's", outputs], there, GIB) as process:
        assert process.read(10) == b""
        assert process.end() == "ended with status 0"
    assert [path.read_text() for path in board.files.pull(outputs).iterdir()] == ["quoted"]
    assert board.canary_ns() > 0
    board.files.clean()
    assert not (tmp_path / "there").exists()
    log = (tmp_path / "bin" / "ssh.log").read_text()
    assert "ControlMaster=auto" in log
    assert "BatchMode=yes" in log


def test_ssh_without_its_board(board: Device, tmp_path: Path) -> None:
    (tmp_path / "bin" / "ssh.down").touch()
    with pytest.raises(DeviceError, match="device pi: ssh says of user@pi 'ssh: connect to host pi port 22: No route"):
        board.connect()
    with pytest.raises(DeviceError, match=r"device pi was lost and not back within 0\.5 s: ssh says of user@pi"):
        board.facts()
    process = board.driver.shell("true")
    assert process[0] == "ssh"
    with pytest.raises(DeviceLost, match="No route to host"):
        board.run("true")


# ---- engines for a device that is not this machine ----


@pytest.mark.parametrize(
    ("adapter", "reason"),
    [
        ("ort", "its packages run under Python, and devices/p.yaml names none (key 'python')"),
        ("mnn", "its packages run under Python, and devices/p.yaml names none (key 'python')"),
        ("tvm", "its packages run under Python, and devices/p.yaml names none (key 'python')"),
        ("openvino", "adapter 'openvino' builds for this machine alone, and e is asked for p"),
    ],
)
def test_engines_that_a_board_does_not_run(adapter: str, reason: str, tmp_path: Path) -> None:
    onnx.save(build("skipnet", "tiny"), tmp_path / "model.onnx")
    (tmp_path / "out").mkdir()
    built = engine.build(
        tmp_path / "out", name="e", adapter=adapter, options={}, model=tmp_path / "model.onnx",
        device=Device("p", WHOLE | {"platform": "linux-aarch64"}), processor="cpu",
    )  # fmt: skip
    assert built.unsupported == reason
    assert built.command == []
