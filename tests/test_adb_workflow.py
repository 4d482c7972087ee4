"""The smoke workflow on two fake phones at once, through the real adb server: build, push, measure, draw.

Both engines are what a phone would run, under emulation of the phones' cores: SoD²'s static executable, and
onnxruntime's library for Android with our runner.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import smoke
from fake_phone import FakePhone
from fake_phone_server import adb_server, android_library, needs_emulator, phone_packages, settings

PHONES = {
    "s21": {"model": "SM-G991U", "board": "lahaina", "android": "13", "battery_percent": 83, "battery_celsius": 30.1},
    "sd835": {"model": "Pixel 2", "board": "msm8998", "android": "9", "battery_percent": 83, "battery_celsius": 30.1},
}
FASTEST_KHZ = {"s21": 2841600, "sd835": 2361600}
LIMIT_S = 300
TOLERANCES = {"sod2": 1e-4, "ort": 1e-4}


@pytest.fixture
def phones(tmp_path: Path) -> Iterator[dict[str, FakePhone]]:
    (tmp_path / "home").mkdir()
    with (
        adb_server(tmp_path / "home"),
        FakePhone(tmp_path / "s21", "s21") as first,
        FakePhone(tmp_path / "sd835", "sd835") as second,
    ):
        yield {"s21": first, "sd835": second}


@pytest.mark.slow
@needs_emulator
def test_smoke_on_two_phones_at_once(
    phones: dict[str, FakePhone], tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    android_library()
    files = {}
    for name, phone in phones.items():
        phone.root.become_arm64(phone_packages(request.config))
        monkeypatch.setenv(f"FAKE_{name.upper()}", phone.address)
        files[name] = settings(name, f"FAKE_{name.upper()}", emulated=True)
    copy = smoke.checkout(tmp_path, files, ("sod2", "ort"))
    before = processor_seconds()
    smoke.run(copy)
    # Of a machine that has nothing else to do: tests must not fail because others work too.
    assert (processor_seconds() - before) / len(os.sched_getaffinity(0)) < LIMIT_S
    for name, facts in PHONES.items():
        found = smoke.check(copy, name, TOLERANCES)
        assert {row.engine for row in found} == set(TOLERANCES)
        for row in found:
            assert {key: row.facts[key] for key in facts} == facts
            assert (row.facts["governor"], row.facts["max_khz"][-1]) == ("schedutil", FASTEST_KHZ[name])
        assert {row.version for row in found if row.engine == "ort"} == {
            "1.29.0, runner built without the NDK (experimental)"
        }
    assert phones["s21"].root.setting() == ["true", "false"] * len(smoke.MODELS)
    assert phones["sd835"].root.setting() == []
    assert overlap(phones["s21"], phones["sd835"]), "the phones were measured one after the other"


@pytest.mark.slow
@needs_emulator
def test_two_workflows_share_no_phone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Started at once in two checkouts, they measure one after the other."""
    (tmp_path / "home").mkdir()
    with adb_server(tmp_path / "home"), FakePhone(tmp_path / "s21", "s21") as phone:
        monkeypatch.setenv("FAKE_S21", phone.address)
        files = {"s21": settings("s21", "FAKE_S21", emulated=True)}
        copies = [smoke.checkout(tmp_path / owner, files, ("sod2",)) for owner in ("mine", "yours")]
        with ThreadPoolExecutor() as pool:
            list(pool.map(smoke.run, copies))
    for copy in copies:
        smoke.check(copy, "s21", {"sod2": TOLERANCES["sod2"]})
    # Every measurement holds the phone's clock while it has the phone.
    assert phone.root.setting() == ["true", "false"] * len(copies) * len(smoke.MODELS)


def processor_seconds() -> float:
    """Of this process and all that it started and that has ended: the workflow, and the phones' programs."""
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(usage.ru_utime + usage.ru_stime for usage in map(resource.getrusage, kinds))


def overlap(first: FakePhone, second: FakePhone) -> bool:
    """Whether both phones ran engines at the same time."""
    spans = [(min(times), max(times)) for times in (engine_starts(first), engine_starts(second))]
    return spans[0][0] < spans[1][1] and spans[1][0] < spans[0][1]


def engine_starts(phone: FakePhone) -> list[float]:
    return [at for at, script in phone.scripts if "/agent " in script]
