"""A linux-aarch64 board without a board: a virtual machine of qemu-system-aarch64 that is reached by ssh.

Its file system is in memory, made of Debian's packages for arm64. Needs Debian, qemu-system-arm and an ssh client.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import shutil
import socket
import stat
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import arm64_packages
from arm64_packages import Unavailable

QEMU = shutil.which("qemu-system-aarch64")
TOOLS = ("qemu-system-aarch64", "ssh", "ssh-keygen")
PACKAGES = ("linux-image-cloud-arm64", "busybox-static", "dropbear-bin", "python3", "libstdc++6")
# In the order in which the kernel takes them.
MODULES = (
    *("virtio_ring", "virtio", "failover", "net_failover", "virtio_pci_legacy_dev", "virtio_pci_modern_dev"),
    *("virtio_pci", "virtio_mmio", "virtio_net"),
)
LEFT_OUT = ("boot", "usr/share/doc", "usr/share/man", "usr/share/locale", "lib/modules", "usr/lib/modules")
BOOT_S = 180
INIT = """#!/bin/busybox sh
export PATH=/bin:/sbin:/usr/bin:/usr/sbin
/bin/busybox mkdir -p /proc /sys /dev /tmp /run /var/tmp
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t sysfs sysfs /sys
/bin/busybox mount -t devtmpfs dev /dev
/bin/busybox mount -t tmpfs tmpfs /tmp
/bin/busybox mount -t tmpfs tmpfs /var/tmp
/bin/busybox mkdir -p /dev/pts /dev/shm
/bin/busybox mount -t devpts devpts /dev/pts
/bin/busybox mount -t tmpfs tmpfs /dev/shm
for name in $(/bin/busybox --list); do [ -e /bin/$name ] || /bin/busybox ln -s busybox /bin/$name; done
for name in MODULES; do [ -e /modules/$name.ko ] && /bin/busybox insmod /modules/$name.ko; done
ifconfig lo 127.0.0.1 up
ifconfig eth0 10.0.2.15 netmask 255.255.255.0 up
dropbearkey -t ed25519 -f /tmp/key >/dev/null 2>&1
exec dropbear -F -E -r /tmp/key -p 22
"""


@contextlib.contextmanager
def board(folder: Path, cache: Path) -> Iterator[str]:
    """A running machine; yields the version of its Python. `folder`/bin/ssh is an ssh that knows it as `board`.

    Packages are kept in `cache`. Raises Unavailable.
    """
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        raise Unavailable(f"not installed: {', '.join(missing)} (apt: qemu-system-arm, openssh-client)")
    root = arm64_packages.unpacked(cache, PACKAGES)
    kernel = next((root / "boot").glob("vmlinuz-*"))
    python = next(path.name for path in sorted((root / "usr/bin").glob("python3.*")))
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / "key")], check=True)
    _initial_files(root, (folder / "key.pub").read_bytes(), folder / "initrd")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    _ssh(folder, port)
    command = [
        *(str(QEMU), "-M", "virt", "-cpu", "cortex-a76", "-smp", "2", "-m", "3072", "-nographic", "-no-reboot"),
        *("-kernel", str(kernel), "-initrd", str(folder / "initrd"), "-append", "console=ttyAMA0 quiet panic=-1"),
        *("-netdev", f"user,id=n,restrict=on,hostfwd=tcp:127.0.0.1:{port}-:22"),
        *("-device", "virtio-net-pci,netdev=n,romfile="),
    ]
    with (folder / "console").open("wb") as console:
        machine = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=console, stderr=console)
    try:
        _wait(folder, machine)
        yield python
    finally:
        machine.kill()
        machine.wait()


def _ssh(folder: Path, port: int) -> None:
    """An ssh that knows the machine."""
    (folder / "bin").mkdir()
    (folder / "ssh_config").write_text(
        f"Host board\nHostName 127.0.0.1\nPort {port}\nUser root\nIdentityFile {folder}/key\nIdentitiesOnly yes\n"
        f"StrictHostKeyChecking no\nUserKnownHostsFile /dev/null\nLogLevel ERROR\n"
    )
    (folder / "bin" / "ssh").write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder}/ssh_config "$@"\n')
    (folder / "bin" / "ssh").chmod(0o755)


def _wait(folder: Path, machine: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + BOOT_S
    login = [str(folder / "bin" / "ssh"), "-o", "BatchMode=yes", "-o", "ConnectTimeout=5", "board", "true"]
    while subprocess.run(login, capture_output=True, check=False).returncode != 0:
        if machine.poll() is not None or time.monotonic() > deadline:
            lines = (folder / "console").read_text(errors="replace").splitlines()[-5:]
            raise Unavailable(f"the virtual machine does not answer: {' / '.join(lines)}")
        time.sleep(0.5)


def _initial_files(root: Path, key: bytes, out: Path) -> None:
    """The file system that the kernel starts from; folders come before what is in them."""
    with gzip.open(out, "wb", compresslevel=1) as file:
        archive = Cpio(file)
        for path in sorted(root.rglob("*")):
            name = str(path.relative_to(root))
            if not any(name == folder or name.startswith(f"{folder}/") for folder in LEFT_OUT):
                archive.copy(name, path)
        for folder in ("modules", "proc", "sys", "dev", "etc", "var", "var/tmp"):
            archive.add(folder, stat.S_IFDIR | 0o755)
        for folder in ("root", "root/.ssh"):
            archive.add(folder, stat.S_IFDIR | 0o700)
        for module in MODULES:
            for path in root.rglob(f"{module}.ko"):
                archive.copy(f"modules/{path.name}", path)
        archive.add("bin/sh", stat.S_IFLNK | 0o777, b"busybox")
        archive.add("init", stat.S_IFREG | 0o755, INIT.replace("MODULES", " ".join(MODULES)).encode())
        archive.add("etc/passwd", stat.S_IFREG | 0o644, b"root:x:0:0:root:/root:/bin/sh\n")
        archive.add("etc/shells", stat.S_IFREG | 0o644, b"/bin/sh\n")
        archive.add("root/.ssh/authorized_keys", stat.S_IFREG | 0o600, key)
        archive.add("TRAILER!!!", 0)


class Cpio:
    """Writes an archive of the format `newc`, which the kernel unpacks; everything belongs to root."""

    def __init__(self, file: BinaryIO | gzip.GzipFile) -> None:
        self._file = file
        self._entries = 0

    def copy(self, name: str, path: Path) -> None:
        """A file, folder or link as it is."""
        mode = path.lstat().st_mode
        if path.is_symlink():
            self.add(name, mode, os.readlink(path).encode())
        elif path.is_dir() or path.is_file():
            self.add(name, mode, path.read_bytes() if path.is_file() else b"")

    def add(self, name: str, mode: int, data: bytes = b"") -> None:
        """One entry: a number of its own, mode, owner, group, links, time, size, devices, length of the name."""
        self._entries += 1
        label = name.encode() + b"\0"
        fields = (self._entries, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(label), 0)
        head = b"070701" + b"".join(b"%08X" % field for field in fields) + label
        self._file.write(head + bytes(-len(head) % 4) + data + bytes(-len(data) % 4))
