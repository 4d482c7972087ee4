"""A device: a place with files and processes, held by one measurement at a time.

It is a YAML file (`host.yaml`) that names a driver, the connection (driver.py); everything else is the same for all and
made of shell scripts and one small program, the agent (agent.c). When the connection breaks off, what can be repeated
is repeated once the device is back, and a sentence says so when it stays away.

The scheduler's resource (Snakefile) keeps two jobs of one workflow apart; `lock` also holds between two checkouts, or a
workflow and a run by hand, because a measurement shared with another job is no measurement. It goes by the device's
address, whatever its file is called, and is a lock of this machine: two machines, or two addresses, do not see it.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import jsonschema
import yaml

from devices import facts
from devices.driver import DeviceError, DeviceLost, Driver
from devices.files import Files, Pushed, Shared
from devices.process import Process
from devices.steady import Steady

if TYPE_CHECKING:
    from sod2.codegen.target import Target

FOLDER = Path(__file__).parent
SOURCES = Path(__file__).parent
ATTEMPTS = 3
RETURN_S = 180.0
"""How long a lost device may take to come back; a phone boots in a minute or two."""
SILENCE_S = 3600
"""A program is ended on the device when nothing has come from here for so long: the last resort over ssh."""
STATUS = "sod2-status "
# Snakemake exports these with the rule's thread count into every job; an engine is told its threads explicitly.
THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "GOTO_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)

Result = TypeVar("Result")


class Device:
    """One device, as its file describes it; `cores` selects one of the sets of CPUs that the file names.

    Programs are compiled for `platform` (None: this machine) and the core `cpu` by the command `cc` (None: any). The
    device's own Python is `python` (None: it has none). `programs` are folders here, by adapter, with what the maker of
    an engine has for such devices and no package brings.
    """

    def __init__(self, name: str, settings: Mapping[str, Any], cores: str = "all") -> None:
        self.name = name
        self.settings = settings
        self.title: str = settings["title"]
        self.processors: tuple[str, ...] = tuple(settings["processors"])
        self.platform: str | None = settings.get("platform")
        self._kind = _driver(settings["driver"])
        self._driver: Driver | None = None
        self.files: Files = Shared() if self._kind.shares_files else Pushed(self, self._kind.folder)
        if cores not in (sets := settings.get("cores", {"all": {}})):
            raise DeviceError(f"devices/{name}.yaml has no cores '{cores}'; its sets: {', '.join(sets)}")
        self._cores: Mapping[str, Any] = sets[cores]
        self.cpu: str | None = self._cores.get("cpu")
        self.cc: str | None = settings.get("cc")
        self.python: str | None = settings.get("python")
        self.programs: Mapping[str, str] = settings.get("programs", {})

    @property
    def android(self) -> bool:
        """Whether its shared libraries are Android's: no wheel's, and none that a static program loads."""
        return self.platform == "android-arm64"

    @property
    def exclusive(self) -> bool:
        """True when a measurement must have the machine that runs the workflow to itself."""
        return self._kind.exclusive

    @property
    def threads(self) -> int:
        """Threads that every engine is asked to run with: the file's number, or one for each CPU it may use."""
        if given := self.settings.get("threads"):
            return int(given)
        return int(self._cores["mask"], 16).bit_count() if self._cores else len(os.sched_getaffinity(0))

    @property
    def driver(self) -> Driver:
        """The connection; raises DeviceError when the address is not in the environment."""
        if self._driver is None:
            variable = self.settings.get("address")
            if variable is not None and not os.environ.get(variable):
                raise DeviceError(
                    f"device {self.name}: set ${variable} to its address, as devices/{self.name}.yaml says"
                )
            self._driver = self._kind(os.environ[variable] if variable else "")
        return self._driver

    def target(self, static: bool = True) -> Target:
        """What is compiled for this device by: programs, or with `static` false libraries to preload (GNU C library).

        Raises ToolchainError when nothing here can.
        """
        # Here, so that reading the configuration does not load the compiler.
        from sod2.codegen import target  # noqa: PLC0415

        return target.host() if self.platform is None else target.cross(self.platform, self.cpu, self.cc, static)

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the device; waits, and says so, while another run has it. The kernel frees it if the holder dies."""
        identity = re.sub(r"[^A-Za-z0-9.-]", "-", self.driver.address or "host")
        path = Path(tempfile.gettempdir()) / f"sod2-device-{identity}.lock"
        with path.open("a") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                _say(f"waiting for device {self.name}: another measurement holds {path}")
                fcntl.flock(handle, fcntl.LOCK_EX)
            yield

    # ---- scripts ----------------------------------------------------------------------------------------------------

    def run(self, script: str, write: Callable[[subprocess.Popen[bytes]], None] | None = None) -> bytes:
        """Standard output of a script; `write` feeds its standard input.

        Raises DeviceLost when the connection broke off, DeviceError with the script's last words when it failed.
        """
        words = self.driver.shell(f'({script}\n); echo "{STATUS}$?" >&2')
        feed = subprocess.PIPE if write else subprocess.DEVNULL
        with tempfile.TemporaryFile() as errors:
            with subprocess.Popen(words, stdin=feed, stdout=subprocess.PIPE, stderr=errors) as process:
                if write is not None:
                    write(process)
                output, _ = process.communicate()
            errors.seek(0)
            said, mark, status = errors.read().decode(errors="replace").rpartition(STATUS)
        lines = (said if mark else status).strip().splitlines()
        if not mark:
            why = self.driver.trouble() or f"the connection broke off{': ' + lines[-1] if lines else ''}"
            raise DeviceLost(f"device {self.name}: {why}")
        if int(status) != 0:
            raise DeviceError(f"device {self.name}: {lines[-1] if lines else f'{script!r} ended with {int(status)}'}")
        return output

    def repeat(self, action: Callable[[], Result], renew: Callable[[], None] = lambda: None) -> Result:
        """The result of an action, which is repeated after `renew` when the device was lost and came back."""
        for _ in range(ATTEMPTS - 1):
            try:
                return action()
            except DeviceLost as loss:
                self.recover(loss)
                renew()
        return action()

    def recover(self, loss: DeviceLost) -> None:
        """Wait until a lost device answers again; raises DeviceError when it does not."""
        _say(f"{loss}; waiting for it to come back")
        deadline = time.monotonic() + RETURN_S
        while (trouble := self.driver.trouble()) is not None:
            if time.monotonic() > deadline:
                raise DeviceError(f"device {self.name} was lost and not back within {RETURN_S:g} s: {trouble}")
            time.sleep(0.5)
        _say(f"device {self.name} is back")

    def connect(self) -> None:
        """Raise DeviceError when the device does not answer or is not the one that its file describes."""
        if (trouble := self.driver.trouble()) is not None:
            raise DeviceError(f"device {self.name}: {trouble}")
        found = self.facts()
        for key, accepted in self.settings.get("expect", {}).items():
            if not str(found.get(key, "")).startswith(tuple(accepted)):
                raise DeviceError(
                    f"device {self.name}: its {key} is '{found.get(key, 'not told')}', devices/{self.name}.yaml says"
                    f" {' or '.join(accepted)}"
                )

    def facts(self) -> dict[str, Any]:
        """What a reader of a row must know of the device: processor, system, governor, temperatures, load."""
        script = (SOURCES / "facts.sh").read_text()
        return facts.parse(self.repeat(lambda: self.run(script)).decode(errors="replace"))

    # ---- programs ---------------------------------------------------------------------------------------------------

    def start(self, command: Sequence[str], home: str, memory_bytes: int) -> Process:
        """Start a command in a pushed folder on the device's CPUs; it is ended when it grows beyond the limit.

        Raises DeviceError when the agent cannot be built or pushed.
        """
        flags = ["-m", str(memory_bytes), "-t", str(SILENCE_S)]
        if "mask" in self._cores:
            flags += ["-a", str(self._cores["mask"])]
        agent = self.tool("agent")
        run = f"unset {' '.join(THREAD_VARIABLES)} && exec {shlex.join([agent, *flags, *command])}"
        return Process(self.driver.shell(f"cd {shlex.quote(self.files.absolute(home))} && {run}"), self.name)

    def tool(self, name: str, runtime: Sequence[str] = ()) -> str:
        """Path on the device of a program that is compiled for it from devices/NAME.c and files of sod2/runtime."""
        from sod2.codegen import target  # noqa: PLC0415 - as in `target`

        compiled = self.target()
        cache = target.default_cache()
        sources = [SOURCES / f"{name}.c", *(target.RUNTIME / part for part in runtime)]
        built = target.compile_objects(compiled, sources, (), cache / "objects")
        folder = cache / "tools" / "+".join(path.stem for path in built)
        if not (folder / name).exists():
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=cache) as building:  # elsewhere: others may be pushing the folder
                target.link_executable(compiled, built, Path(building) / name)
                (Path(building) / name).replace(folder / name)
        return f"{self.files.push(folder)}/{name}"

    def canary_ns(self) -> int:
        """Nanoseconds of the canary (canary.c) on the last of the device's CPUs, which is its fastest."""
        cpu = int(self._cores["mask"], 16).bit_length() - 1
        program = self.files.absolute(self.tool("canary"))
        return int(self.repeat(lambda: self.run(f"{program} {cpu}")))

    def limits(self) -> dict[str, Any]:
        """What it does at most: `flops` a second of its threads, cycles a second of a CPU (`clock`), and `bandwidth`,
        bytes read a second by size of set.

        A fraction of a second. Noise of the machine can only lower what is found, but for the clock, a difference.
        """
        program = self.files.absolute(self.tool("limits", ("roofline.c", "threads.c")))
        command = f"{program} {self.threads} {self._cores.get('mask', '')}"
        flops, clock, *bandwidth = map(float, self.repeat(lambda: self.run(command)).split())
        return {"flops": flops, "clock": clock, "bandwidth": bandwidth}

    def steady(self) -> Steady:
        """The watch over its speed; does nothing for a device whose file has no `steady`."""
        return Steady(self, self.settings.get("steady"))


def names() -> tuple[str, ...]:
    """Devices that have a file."""
    return tuple(sorted(p.stem for p in FOLDER.glob("*.yaml") if p.name != "device.schema.yaml"))


def load(name: str, cores: str = "all") -> Device:
    """The device of `devices/NAME.yaml`, not yet contacted; raises DeviceError when there is none or it is wrong."""
    if name not in names():
        raise DeviceError(f"device '{name}' has no file devices/{name}.yaml; known devices: {', '.join(names())}")
    settings: Mapping[str, Any] = yaml.safe_load((FOLDER / f"{name}.yaml").read_text()) or {}
    schema = yaml.safe_load((FOLDER / "device.schema.yaml").read_text())
    error = jsonschema.exceptions.best_match(jsonschema.Draft202012Validator(schema).iter_errors(settings))
    if error is not None:
        where = "".join(f".{part}" for part in error.absolute_path)
        raise DeviceError(f"devices/{name}.yaml{where}: {error.message}")
    return Device(name, settings, cores)


def _driver(name: str) -> type[Driver]:
    known = sorted(p.stem for p in SOURCES.glob("*.py") if "\nDRIVER = " in p.read_text())
    if name not in known:
        raise DeviceError(f"driver '{name}' has no module devices/{name}.py; known drivers: {', '.join(known)}")
    driver: type[Driver] = importlib.import_module(f"devices.{name}").DRIVER
    return driver


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
