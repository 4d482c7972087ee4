"""Debian's packages for arm64, fetched by apt into a folder of its own and unpacked there, not installed."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

FETCH_S = 600


class Unavailable(Exception):
    """The packages, or what is made of them, cannot be had on this machine; the message says why."""


def unpacked(cache: Path, packages: Sequence[str], recursive: bool = True) -> Path:
    """A folder below `cache` with these packages and, if `recursive`, what they need; made when it is not there."""
    root = cache / "-".join(packages)
    with (cache / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not root.exists():
            _fetch(root, packages, recursive)
    return root


def _fetch(root: Path, packages: Sequence[str], recursive: bool) -> None:
    missing = [tool for tool in ("apt-get", "dpkg-deb") if shutil.which(tool) is None]
    if missing:
        raise Unavailable(f"no Debian: {' and '.join(missing)} not installed")
    apt, part = root.with_name(f"{root.name}.apt"), root.with_name(f"{root.name}.part")
    for folder in (apt, part):
        shutil.rmtree(folder, ignore_errors=True)
    for name in ("etc/apt", "var/lib/apt/lists/partial", "var/cache/apt/archives/partial", "var/lib/dpkg"):
        (apt / name).mkdir(parents=True)
    (apt / "var/lib/dpkg/status").touch()
    for source in Path("/etc/apt").glob("sources.list*"):
        (shutil.copytree if source.is_dir() else shutil.copy)(source, apt / "etc/apt" / source.name)
    (apt / "apt.conf").write_text(
        f'Dir "{apt}";\nDir::Etc::trustedparts "/etc/apt/trusted.gpg.d";\nAPT::Architecture "arm64";\n'
        'APT::Architectures {"arm64";};\nAPT::Sandbox::User "root";\n'
    )
    archives = apt / "var/cache/apt/archives"
    _apt(apt, archives, "update")
    how = ["install", "--download-only", "--yes", "--no-install-recommends"] if recursive else ["download"]
    _apt(apt, archives, *how, *packages)
    for package in sorted(archives.glob("*.deb")):
        subprocess.run(["dpkg-deb", "-x", str(package), str(part)], check=True)
    part.rename(root)
    shutil.rmtree(apt)


def _apt(apt: Path, folder: Path, *words: str) -> None:
    environment = os.environ | {"APT_CONFIG": str(apt / "apt.conf")}
    command = ["apt-get", "-qq", *words]
    try:
        run = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=FETCH_S
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(f"apt-get {words[0]} for arm64 did not end within {FETCH_S} s") from None
    if run.returncode != 0:
        raise Unavailable(f"apt-get {words[0]} for arm64 failed: {run.stderr.strip()[-300:]}")
