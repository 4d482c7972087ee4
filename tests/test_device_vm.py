"""The smoke workflow on a linux-aarch64 machine over ssh, a virtual one: minutes, and a download of 100 MB at first."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import smoke
import virtual_board
import yaml
from arm64_packages import Unavailable

TOLERANCES = {"sod2": 1e-4, "ort": 1e-4}


@pytest.mark.slow
def test_smoke_on_a_virtual_board(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = request.config.cache.mkdir("arm64")
    file = yaml.safe_load((smoke.ROOT / "devices" / "raspberrypi.yaml").read_text())
    try:
        with virtual_board.board(tmp_path, cache) as python:
            monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
            monkeypatch.setenv("BOARD_UNDER_TEST", "board")
            file |= {"address": "BOARD_UNDER_TEST", "python": python, "expect": {"model": ["linux,dummy-virt"]}}
            file["cores"] = {"all": {"mask": "3", "cpu": file["cores"]["all"]["cpu"]}}
            file["steady"] |= {"wait_s": 1, "drift": 100}
            copy = smoke.checkout(tmp_path, {"raspberrypi": file}, tuple(TOLERANCES))
            smoke.run(copy)
    except Unavailable as reason:
        pytest.skip(str(reason))
    found = smoke.check(copy, "raspberrypi", TOLERANCES)
    assert {row.facts["system"].split()[-1] for row in found} == {"aarch64"}
