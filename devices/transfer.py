"""Folders on their way to a device and back: what they are called there, and the archive that carries them.

A pushed folder is named by the digest of its files' names and contents. It travels as a tar archive through the
device's shell, which every kind of connection has, and is compared by SHA-256 on arrival.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import subprocess
import tarfile
from collections.abc import Mapping
from pathlib import Path


def digests(folder: Path) -> dict[str, str]:
    """SHA-256 of every file of a folder, by its path in there."""
    found = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        with path.open("rb") as file:
            found[str(path.relative_to(folder))] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


def is_link(path: Path) -> bool:
    """Whether a path is a symbolic link to a folder."""
    return path.is_symlink() and path.is_dir()


def name(found: Mapping[str, str]) -> str:
    """What a folder with these files is called on the device."""
    return hashlib.sha256(repr(sorted(found.items())).encode()).hexdigest()[:20]


def parse(text: str) -> dict[str, str]:
    """The digests that `sha256sum` printed, by path."""
    pairs = (line.split(maxsplit=1) for line in text.splitlines())
    return {path.removeprefix("./"): digest for digest, path in pairs}


def size(folder: Path) -> int:
    """Bytes of all files."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def write(folder: Path, process: subprocess.Popen[bytes]) -> None:
    """Write a folder as an archive to the standard input of a process; why the process took no more, it says itself."""
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        # Plain headers: the tar of older phones knows no extended ones.
        with tarfile.open(fileobj=process.stdin, mode="w|", format=tarfile.GNU_FORMAT) as archive:
            for path in sorted(p for p in folder.rglob("*") if p.is_file()):
                archive.add(path.resolve(), str(path.relative_to(folder)), filter=_plain)
        process.stdin.flush()


def extract(data: bytes, folder: Path) -> None:
    """Unpack an archive of plain files."""
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        archive.extractall(folder, filter="data")


def _plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mtime = 0
    entry.mode = 0o755 if entry.mode & os.X_OK else 0o644
    return entry
