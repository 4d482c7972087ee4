"""The device contract: a place with files and processes, held by one measurement at a time.

A device is a YAML file (`host.yaml`) naming a driver, and a driver is a module of this folder whose `DRIVER` is the
subclass below. The harness knows nothing else of it: it pushes folders, starts a command that speaks JSON lines, and
pulls results. The scheduler's resource (Snakefile) keeps two jobs of one workflow apart; `lock` also holds between two
checkouts, or a workflow and a run by hand, because a measurement shared with another job is no measurement.
"""

from __future__ import annotations

import fcntl
import importlib
import subprocess
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import jsonschema
import yaml

FOLDER = Path(__file__).parent


class DeviceError(Exception):
    """The device or its file is wrong; never the fault of an engine."""


class Device(ABC):
    """One device; subclasses are the drivers."""

    exclusive: ClassVar[bool]
    """True when a measurement must have the machine that runs the workflow to itself."""

    def __init__(self, name: str, title: str, processors: Sequence[str], threads: int | None) -> None:
        self.name = name
        self.title = title
        self.processors = tuple(processors)
        self._threads = threads

    @property
    def threads(self) -> int:
        """Threads that every engine is asked to run with."""
        return self._threads or self.cpus()

    @abstractmethod
    def cpus(self) -> int:
        """CPUs that a process on the device may use."""

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """What a reader of a row must know of the device: processor, system, governor, load."""

    @abstractmethod
    def push(self, folder: Path) -> str:
        """Copy a folder to the device and return its path there."""

    @abstractmethod
    def pull(self, folder: str) -> Path:
        """Bring a folder of the device here and return where it lies."""

    @abstractmethod
    def scratch(self) -> str:
        """A new empty folder on the device for outputs, as a path there."""

    @abstractmethod
    def start(self, command: Sequence[str], folder: str, stderr: int) -> subprocess.Popen[bytes]:
        """Start a bundle's command in `folder`, standard input and output piped, standard error to a descriptor."""

    @abstractmethod
    def resident_bytes(self, process: subprocess.Popen[bytes]) -> int:
        """Resident memory of the process, for the memory limit; 0 when it is gone."""

    @abstractmethod
    def pause(self, process: subprocess.Popen[bytes]) -> None:
        """Keep the process off the processors (idle thread pools spin) until `resume`."""

    @abstractmethod
    def resume(self, process: subprocess.Popen[bytes]) -> None:
        """Let a paused process run again."""

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the device; waits, and says so, while another run has it. The kernel frees it if the holder dies."""
        path = Path(tempfile.gettempdir()) / f"sod2-device-{self.name}.lock"
        with path.open("a") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                print(f"waiting for device {self.name}: another measurement holds {path}", file=sys.stderr, flush=True)
                fcntl.flock(handle, fcntl.LOCK_EX)
            yield


def names() -> tuple[str, ...]:
    """Devices that have a file."""
    return tuple(sorted(p.stem for p in FOLDER.glob("*.yaml") if p.name != "device.schema.yaml"))


def load(name: str) -> Device:
    """The device of `devices/NAME.yaml`; raises DeviceError when there is none or its file is wrong."""
    if name not in names():
        raise DeviceError(f"device '{name}' has no file devices/{name}.yaml; known devices: {', '.join(names())}")
    facts: Mapping[str, Any] = yaml.safe_load((FOLDER / f"{name}.yaml").read_text()) or {}
    schema = yaml.safe_load((FOLDER / "device.schema.yaml").read_text())
    error = jsonschema.exceptions.best_match(jsonschema.Draft202012Validator(schema).iter_errors(facts))
    if error is not None:
        where = "".join(f".{part}" for part in error.absolute_path)
        raise DeviceError(f"devices/{name}.yaml{where}: {error.message}")
    return _driver(str(facts["driver"]))(name, facts["title"], facts["processors"], facts.get("threads"))


def _driver(name: str) -> type[Device]:
    known = sorted(p.stem for p in FOLDER.glob("*.py") if p.stem not in ("__init__", "device"))
    if name not in known:
        raise DeviceError(f"driver '{name}' has no module devices/{name}.py; known drivers: {', '.join(known)}")
    driver: type[Device] = importlib.import_module(f"devices.{name}").DRIVER
    return driver
