"""Each baseline's own Python environment: made once from the header of its runner script.

A runner begins with the inline metadata of PEP 723, every distribution pinned exactly. The environment is named by the
digest of that header, so changed pins make a new one and the old one keeps serving old bundles. It is made by uv under
a temporary name and renamed; concurrent builds wait for the first. Its Python is then started directly: `uv run` would
be counted by the memory hook too.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import uv
from packaging.specifiers import SpecifierSet

ENVIRONMENTS = Path("results/envs")


class NoInterpreter(Exception):
    """No installed Python satisfies what a script requires; the message says what to install."""


def header(script: Path) -> str:
    """The PEP 723 block of a script, comment signs removed; ValueError when it has none."""
    block = re.search(r"^# /// script\n((?:#.*\n)+?)# ///$", script.read_text(), re.MULTILINE)
    if block is None:
        raise ValueError(f"{script} has no PEP 723 header, which must pin the packages of its environment")
    return re.sub(r"^# ?", "", block[1], flags=re.MULTILINE)


def pinned(script: Path, distribution: str) -> str:
    """Version to which the script's header pins a distribution."""
    pin = re.search(rf'"{re.escape(distribution)}==([^"]+)"', header(script))
    if pin is None:
        raise ValueError(f"{script} does not pin {distribution} by ==")
    return pin[1]


def python(script: Path) -> Path:
    """Path of the interpreter of the script's environment, which is created when it does not exist yet."""
    name = script.stem.removesuffix("_runner")
    folder = ENVIRONMENTS / f"{name}-{hashlib.sha256(header(script).encode()).hexdigest()[:12]}"
    ENVIRONMENTS.mkdir(parents=True, exist_ok=True)
    with (ENVIRONMENTS / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            _create(script, folder)
    return folder / "bin" / "python"


def packages(script: Path, machine: str, python: str) -> Path:
    """A folder with what the script's header pins, as wheels for another machine (`aarch64`) and its `python3.N`."""
    name = script.stem.removesuffix("_runner")
    version = Path(python).name.removeprefix("python")
    digest = hashlib.sha256(header(script).encode()).hexdigest()[:12]
    folder = ENVIRONMENTS / f"{name}-{digest}-{machine}-{version}"
    ENVIRONMENTS.mkdir(parents=True, exist_ok=True)
    with (ENVIRONMENTS / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            part = folder.with_name(f"{folder.name}.part")
            shutil.rmtree(part, ignore_errors=True)
            system = ["--python-platform", f"{machine}-manylinux_2_28", "--python-version", version]
            command = [uv.find_uv_bin(), "pip", "install", "--quiet", "--only-binary", ":all:", *system]
            subprocess.run([*command, "--target", str(part), "-r", str(script)], check=True)
            os.rename(part, folder)
    return folder


def _create(script: Path, folder: Path) -> None:
    # A virtual environment can be renamed: nothing in it but console scripts, which are not used, knows its path.
    part = folder.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    tool = uv.find_uv_bin()
    subprocess.run([tool, "venv", "--quiet", "--python", interpreter_for(script), str(part)], check=True)
    interpreter = str(part / "bin" / "python")
    # Compiled now: where Python is told to write no bytecode, every start of an engine would compile its packages.
    install = [tool, "pip", "install", "--quiet", "--compile-bytecode", "--python", interpreter, "-r", str(script)]
    subprocess.run(install, check=True)
    os.rename(part, folder)


def interpreter_for(script: Path) -> str:
    """An installed Python that satisfies the script's `requires-python`: the one that runs this where it can.

    Raises NoInterpreter. Looks in PATH and among pyenv's versions; downloads none.
    """
    required = SpecifierSet(tomllib.loads(header(script))["requires-python"])
    candidates = [sys.executable]
    names = [f"python3.{minor}" for minor in range(20, 8, -1)]
    candidates += [path for name in names if (path := shutil.which(name)) is not None]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates += [str(path) for path in sorted(pyenv.glob("*/bin/python3"))]
    for candidate in candidates:
        probe = [candidate, "-c", "import platform; print(platform.python_version())"]
        result = subprocess.run(probe, capture_output=True, text=True, check=False)
        if result.returncode == 0 and required.contains(result.stdout.strip()):
            return candidate
    raise NoInterpreter(f"{script.name} needs Python {required}, and none is installed: install one, e.g. by pyenv")
