"""onnxruntime on Android: its arm64 library, from the package that carries it, and a runner in C (ort_runner.c).

The library and its headers are those of an .aar file: the one that $SOD2_ORT_AAR names (onnxruntime-android of Maven),
or the one inside the npm package below, which npm fetches once.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tarfile
import tempfile
import zipfile
from pathlib import Path

from baselines import android
from baselines.bundle import relative
from baselines.engine import HOOK, BuildFailed, Unsupported
from baselines.environment import ENVIRONMENTS

PACKAGE = "com.github.asus4.onnxruntime@0.4.9"  # the only one of npm that has the library itself: release 1.29.0
MEMBER = "package/Plugins/Android/onnxruntime.aar"
GIVEN = "SOD2_ORT_AAR"
LIBRARY = "libonnxruntime.so"
RUNTIME = HOOK.parent
FOLDER = Path(__file__).parent
SOURCES = (FOLDER / "ort_runner.c", RUNTIME / "npy.c", RUNTIME / "protocol.c", HOOK)


def place_runner(out: Path, arena: bool, optimise: bool) -> list[str]:
    """Put the runner and the library into the bundle's folder, beside model.onnx; returns the bundle's command.

    Raises Unsupported where the library cannot be had, ToolchainError where the runner cannot be built.
    """
    found = package()
    (out / "lib").symlink_to(relative(found / "lib", out))
    android.link_program(SOURCES, [found / "headers"], [found / "lib" / LIBRARY], out / "ort_runner")
    return ["./ort_runner", f"-{'a' * arena}{'o' * optimise}"]


def package() -> Path:
    """A folder with `headers` and `lib`, unpacked when it does not exist yet.

    Unsupported or BuildFailed where it cannot be had.
    """
    given = os.environ.get(GIVEN)
    key = f"{Path(given).name}-{_digest(Path(given))}" if given else PACKAGE.replace("@", "-")
    folder = ENVIRONMENTS / f"ort-android-{key}"
    ENVIRONMENTS.mkdir(parents=True, exist_ok=True)
    with (ENVIRONMENTS / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            with tempfile.TemporaryDirectory(dir=ENVIRONMENTS) as work:
                _unpack(Path(given) if given else _fetch(Path(work)), Path(work, "unpacked"))
                Path(work, "unpacked").rename(folder)
    return folder.absolute()


def _digest(archive: Path) -> str:
    if not archive.is_file():
        raise Unsupported(f"${GIVEN} is '{archive}', which is no file: give the .aar of onnxruntime-android")
    with archive.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:12]


def _fetch(work: Path) -> Path:
    """Fetch the package by npm; returns the .aar in it."""
    if shutil.which("npm") is None:
        raise Unsupported(
            f"its library for Android comes with npm, which is not installed: install it, or set ${GIVEN} to the .aar"
            " of Maven's com.microsoft.onnxruntime:onnxruntime-android"
        )
    run = subprocess.run(["npm", "pack", "--silent", PACKAGE], cwd=work, capture_output=True, text=True, check=False)
    if run.returncode != 0:
        lines = run.stderr.strip().splitlines() or [f"status {run.returncode}"]
        raise BuildFailed(f"`npm pack {PACKAGE}` failed: {lines[-1]}; set ${GIVEN} to an .aar of onnxruntime-android")
    with tarfile.open(work / run.stdout.split()[-1]) as archive:
        archive.extract(MEMBER, work, filter="data")
    return work / MEMBER


def _unpack(archive: Path, folder: Path) -> None:
    with zipfile.ZipFile(archive) as content:
        for name in content.namelist():
            wanted = {f"jni/arm64-v8a/{LIBRARY}": folder / "lib"}.get(name)
            if name.startswith("headers/") and not name.endswith("/"):
                wanted = folder / "headers"
            if wanted is not None:
                wanted.mkdir(parents=True, exist_ok=True)
                (wanted / Path(name).name).write_bytes(content.read(name))
    if not (folder / "lib" / LIBRARY).exists() or not (folder / "headers").exists():
        raise Unsupported(f"{archive} has no headers and jni/arm64-v8a/{LIBRARY}: give the .aar of onnxruntime-android")
