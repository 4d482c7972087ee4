"""Folders on a device: where bundles and samples lie there, and how they come and go.

Where a device shares this machine's files, they stay where they are. Elsewhere they are pushed by the digest of their
content, so never twice: free space is checked first, every file's SHA-256 afterwards, and a folder appears complete or
not at all. A folder's path is given as programs see it, which are started in a folder beside it.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from devices import transfer
from devices.driver import DeviceError, DeviceLost

if TYPE_CHECKING:
    from devices.device import Device


class Files(ABC):
    """The folders of one device."""

    @abstractmethod
    def push(self, source: Path) -> str:
        """Copy a folder to the device and return its path there."""

    @abstractmethod
    def absolute(self, path: str) -> str:
        """A path that `push` or `scratch` gave, as scripts see it."""

    @abstractmethod
    def scratch(self) -> str:
        """A new empty folder on the device for outputs."""

    @abstractmethod
    def pull(self, path: str) -> Path:
        """Move the files of a scratch folder here; returns the folder that they lie in, for the caller to empty."""

    @abstractmethod
    def remove(self, path: str) -> None:
        """Remove a scratch folder."""

    @abstractmethod
    def clean(self) -> None:
        """Remove all that was ever pushed."""


class Shared(Files):
    """Files of this machine."""

    def push(self, source: Path) -> str:
        return str(source.resolve())

    def absolute(self, path: str) -> str:
        return path

    def scratch(self) -> str:
        return tempfile.mkdtemp(prefix="sod2-outputs-")

    def pull(self, path: str) -> Path:
        return Path(path)

    def remove(self, path: str) -> None:
        shutil.rmtree(path)

    def clean(self) -> None:
        """Nothing was pushed."""


class Pushed(Files):
    """Files of a device with a disk of its own; `home` is the folder there that holds them all."""

    def __init__(self, device: Device, home: str) -> None:
        self._device = device
        self._home = home
        self._pulled: Path | None = None

    def push(self, source: Path) -> str:
        """As Files says. A symbolic link in it to another folder becomes one there: what is shared is pushed once."""
        links = {path.name: self.push(path.resolve()) for path in sorted(source.iterdir()) if transfer.is_link(path)}
        digests = transfer.digests(source)
        name = transfer.name(digests | links)
        self._device.repeat(lambda: self._place(source, digests, links, name))
        return f"../{name}"

    def _place(self, source: Path, digests: Mapping[str, str], links: Mapping[str, str], name: str) -> None:
        """Push a folder as `name` unless it is there."""
        run, home = self._device.run, self._home
        state = run(
            f"mkdir -p {home} && cd {home} && if [ -d {name} ]; then echo there; else rm -rf *.part; df -kP .; fi"
        )
        if state.split() == [b"there"]:
            return
        needed, free = transfer.size(source), int(state.splitlines()[-1].split()[3]) * 1024
        if needed > free:
            raise DeviceError(
                f"device {self._device.name} has {free / 2**20:.0f} MiB free in {home}, and {source} needs"
                f" {needed / 2**20:.0f}: make room, e.g. by `python -m devices clean {self._device.name}`"
            )
        part = f"{home}/{name}.part"
        run(f"mkdir {part} && tar -xf - -C {part}", lambda process: transfer.write(source, process))
        arrived = run(f"cd {part} && find . -type f -exec sha256sum {{}} +")
        if transfer.parse(arrived.decode()) != digests:
            raise DeviceLost(f"device {self._device.name} got {source} with other content")
        linked = "".join(f"ln -s {target} {part}/{link} && " for link, target in links.items())
        run(f"{linked}mv {part} {home}/{name}")

    def absolute(self, path: str) -> str:
        return f"{self._home}/{path.removeprefix('../')}"

    def scratch(self) -> str:
        self._pulled = Path(tempfile.mkdtemp(prefix="sod2-outputs-"))
        self._device.repeat(lambda: self._device.run(f"mkdir -p {self._home} && cd {self._home} && {_EMPTY}"))
        return f"../{_SCRATCH}"

    def pull(self, path: str) -> Path:
        assert self._pulled is not None
        transfer.extract(self._device.run(f"tar -cf - -C {self.absolute(path)} ."), self._pulled)
        self._device.run(f"cd {self._home} && {_EMPTY}")
        return self._pulled

    def remove(self, path: str) -> None:
        assert self._pulled is not None
        shutil.rmtree(self._pulled)
        with contextlib.suppress(DeviceLost):  # the next measurement empties it anyway
            self._device.run(f"rm -rf {self.absolute(path)}")

    def clean(self) -> None:
        self._device.run(f"rm -rf {self._home}")


_SCRATCH = "scratch"  # one is enough: a device is held by one measurement
_EMPTY = f"rm -rf {_SCRATCH} && mkdir {_SCRATCH}"
