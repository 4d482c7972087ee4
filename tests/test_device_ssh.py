"""The ssh driver against a real server on this machine, where one is installed: a board without a board."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from devices import device as devices
from devices.device import Device, DeviceError, DeviceLost

SSHD = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")
SSH, KEYGEN = shutil.which("ssh"), shutil.which("ssh-keygen")
GIB = 2**30

MISSING = None in (SSHD, SSH, KEYGEN)
pytestmark = pytest.mark.skipif(MISSING, reason="sshd or ssh is not installed (apt: openssh-server)")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A server with keys of its own; yields its folder, in which `bin/ssh` is an ssh that knows it as `board`."""
    folder = tmp_path_factory.mktemp("ssh")
    for name in ("host", "user"):
        subprocess.run([str(KEYGEN), "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (folder / "sshd_config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder}/host\nAuthorizedKeysFile {folder}/user.pub\n"
        "StrictModes no\nUsePAM no\nPidFile none\nPasswordAuthentication no\nPermitRootLogin yes\n"
    )
    (folder / "ssh_config").write_text(
        f"Host board\nHostName 127.0.0.1\nPort {port}\nUser {getpass.getuser()}\nIdentityFile {folder}/user\n"
        f"IdentitiesOnly yes\nStrictHostKeyChecking no\nUserKnownHostsFile {folder}/known\n"
    )
    (folder / "bin").mkdir()
    (folder / "bin" / "ssh").write_text(f'#!/bin/sh\nexec {SSH} -F {folder}/ssh_config "$@"\n')
    (folder / "bin" / "ssh").chmod(0o755)
    with (folder / "log").open("w") as log:
        sshd = subprocess.Popen([str(SSHD), "-D", "-e", "-f", str(folder / "sshd_config")], stderr=log)
    if not answers(port, sshd):
        pytest.skip(f"sshd does not start here: {(folder / 'log').read_text().strip()}")
    yield folder
    sshd.terminate()
    sshd.wait(10)


def answers(port: int, sshd: subprocess.Popen[bytes]) -> bool:
    for _ in range(100):
        if sshd.poll() is not None:
            return False
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 0.2):
            return True
        time.sleep(0.05)
    return False


@pytest.fixture
def board(server: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    monkeypatch.setenv("PATH", f"{server}/bin:{os.environ['PATH']}")
    monkeypatch.setenv("BOARD_UNDER_TEST", "board")
    file = {
        "driver": "ssh",
        "title": "Board",
        "processors": ["cpu"],
        "address": "BOARD_UNDER_TEST",
        "platform": "linux-x86_64",
        "cores": {"all": {"mask": f"{1 << min(os.sched_getaffinity(0)):x}"}},
    }
    monkeypatch.setattr(devices._driver("ssh"), "folder", str(tmp_path / "there"))
    monkeypatch.setattr(devices, "RETURN_S", 10)
    board = Device("board", file)
    yield board
    control = [word for word in board.driver.shell("")[:-2] if word.startswith("Control")]
    options = [part for word in control for part in ("-o", word)]
    subprocess.run(["ssh", *options, "-O", "exit", "board"], capture_output=True, check=False)


def test_push_run_pull(board: Device, tmp_path: Path) -> None:
    board.connect()
    (tmp_path / "bundle").mkdir()
    (tmp_path / "bundle" / "it's").write_bytes(os.urandom(1 << 20))
    there = board.files.push(tmp_path / "bundle")
    outputs = board.files.scratch()
    with board.start(["sh", "-c", f'read line; cp "it\'s" {outputs}; echo words >&2; exit 3'], there, GIB) as process:
        process.pause()
        process.send(b"go")
        assert process.read(0.3) is None
        process.resume()
        assert process.read(10) == b""
        assert process.end() == "ended with status 3: words"
    (pulled,) = board.files.pull(outputs).iterdir()
    assert pulled.read_bytes() == (tmp_path / "bundle" / "it's").read_bytes()
    board.files.remove(outputs)
    board.files.clean()


def test_a_connection_that_breaks_off(board: Device, tmp_path: Path) -> None:
    (tmp_path / "bundle").mkdir()
    there = board.files.push(tmp_path / "bundle")
    with board.start(["sh", "-c", "echo $$ $(ps -o ppid= -p $PPID); sleep 4714"], there, GIB) as process:
        program, session = (int(word) for word in (process.read(10) or b"").split())
        os.kill(session, signal.SIGKILL)  # the server's end of the connection
        assert process.read(20) == b""
        with pytest.raises(DeviceLost, match="device board: the connection broke off while a program ran"):
            process.end()
    deadline = time.monotonic() + 10
    while Path(f"/proc/{program}").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert board.facts()["cpus"] >= 1  # the next command connects anew


def test_a_board_that_refuses(board: Device, server: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOARD_UNDER_TEST", "nobody@127.0.0.1")
    with pytest.raises(DeviceError, match=r"ssh says of nobody@127\.0\.0\.1 '.*': try `ssh nobody@127.0.0.1 true`"):
        Device("other", dict(board.settings)).connect()
