"""The thread pool under ThreadSanitizer: every chunk of every job runs once, see threads_stress.c."""

import dataclasses
import subprocess
from pathlib import Path

import pytest

import sod2
from sod2.codegen import target as toolchain


def test_stress(tmp_path: Path) -> None:
    host = toolchain.host()
    flag = ("-fsanitize=thread",)
    target = dataclasses.replace(host, cflags=(*host.cflags, *flag), ldflags=(*host.ldflags, *flag))
    sources = [Path(__file__).parent / "threads_stress.c", toolchain.RUNTIME / "threads.c"]
    objects = toolchain.compile_objects(target, sources, (), tmp_path)
    try:
        toolchain.link_executable(target, objects, tmp_path / "stress")
    except sod2.ToolchainError as error:
        pytest.skip(f"no thread sanitizer: {error}")
    done = subprocess.run([tmp_path / "stress"], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
