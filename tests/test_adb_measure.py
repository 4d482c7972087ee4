"""Measuring on a phone over adb: whatever happens to the cable, no row is lost and nothing is left behind."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import yaml
from fake_phone import FakePhone
from fake_phone_server import DEVICES, adb_server, settings

from baselines import rows
from baselines.__main__ import main
from baselines.engine import Bundle
from baselines.measure import Measurement, Protocol
from baselines.rows import Row
from devices import device as devices
from devices.device import Device, DeviceError

RUNNER = Path(__file__).with_name("stand_in_runner.py")
PROTOCOL = Protocol(samples=2, selection="quantiles", seed=0, repeats=2, time_limit_s=20, memory_limit_gib=1)


@pytest.fixture(scope="module", autouse=True)
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with adb_server(tmp_path_factory.mktemp("adb")):
        yield


@pytest.fixture
def phone(tmp_path: Path) -> Iterator[FakePhone]:
    with FakePhone(tmp_path / "phone", "s21") as phone:
        yield phone


@pytest.fixture
def device(phone: FakePhone, monkeypatch: pytest.MonkeyPatch) -> Device:
    monkeypatch.setenv("PHONE_UNDER_TEST", phone.address)
    device = Device("s21", settings("s21", "PHONE_UNDER_TEST"))
    device.connect()
    return device


@pytest.fixture
def samples(tmp_path: Path) -> Path:
    """Two samples of y = 2 x, one of them without an element."""
    folder = tmp_path / "samples"
    (folder / "reference").mkdir(parents=True)
    for i, size in enumerate((3, 0)):
        x = np.arange(1, size + 1, dtype=np.float32)
        np.save(folder / f"{i}.0.npy", x)
        np.save(folder / "reference" / f"{i}.0.npy", 2 * x)
    index = [{"shapes": [[size]], "path": None, "macs": size, "macs_all": size} for size in (3, 0)]
    (folder / "samples.json").write_text(json.dumps(index))
    return folder


def bundle(tmp_path: Path, name: str, behaviour: str = "good") -> Path:
    folder = tmp_path / name
    folder.mkdir()
    Bundle(name, "stand-in", "1", {}, 1e-4, [sys.executable, str(RUNNER), behaviour]).write(folder)
    return folder


def measurement(device: Device, samples: Path) -> Measurement:
    return Measurement(device, "cpu", model="double", variant="tiny", samples=samples, protocol=PROTOCOL)


def check(found: list[Row], phone: FakePhone, engines: int) -> None:
    """Every inference has its row, and the phone is as it was."""
    assert [(row.sample, row.repeat) for row in found] == [
        (sample, repeat) for sample in (1, 0) for _ in range(engines) for repeat in range(3)
    ]
    assert {(row.status, row.error) for row in found} == {("ok", 0.0)}
    assert {row.facts["model"] for row in found} == {"SM-G991U"}
    assert all(row.facts["throttled"] is None and len(row.facts["canary_ns"]) == 2 for row in found)
    assert phone.root.setting()[-1] == "false"
    assert not (phone.root.data / "sod2" / "scratch").exists()
    assert not list((phone.root.data / "sod2").glob("*.part"))


def test_rows_of_two_engines(device: Device, phone: FakePhone, samples: Path, tmp_path: Path) -> None:
    found = list(measurement(device, samples).rows([bundle(tmp_path, "one"), bundle(tmp_path, "two")]))
    check(found, phone, 2)
    assert phone.root.setting() == ["true", "false"]


def test_a_failing_engine_costs_its_rows_only(device: Device, samples: Path, tmp_path: Path) -> None:
    found = list(measurement(device, samples).rows([bundle(tmp_path, "bad", "crash"), bundle(tmp_path, "good")]))
    bad = [row for row in found if row.status != "ok"]
    assert [(row.engine, row.sample, row.reason) for row in bad] == [("bad", 1, "died of SIGSEGV: the last words")]
    assert len(found) == 10


@pytest.mark.parametrize("fault", [FakePhone.pull_cable, lambda phone: phone.away(1.0)], ids=["cable", "reboot"])
def test_lost_in_the_middle(
    fault: Callable[[FakePhone], None], device: Device, phone: FakePhone, samples: Path, tmp_path: Path
) -> None:
    running = measurement(device, samples).rows([bundle(tmp_path, "one"), bundle(tmp_path, "two")])
    found = [next(running)]
    fault(phone)
    found += running
    check(found, phone, 2)


def test_lost_during_an_inference(device: Device, phone: FakePhone, samples: Path, tmp_path: Path) -> None:
    def pull() -> None:
        deadline = time.monotonic() + 20
        while not list(phone.root.data.rglob("inferring")):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        phone.pull_cable()

    with ThreadPoolExecutor(1) as pool:
        pulled = pool.submit(pull)
        check(
            list(measurement(device, samples).rows([bundle(tmp_path, "one", "slow"), bundle(tmp_path, "two")])),
            phone,
            2,
        )
        pulled.result(10)


def test_lost_for_good(
    device: Device, phone: FakePhone, samples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "RETURN_S", 1.0)
    found = measurement(device, samples).rows([bundle(tmp_path, "one")])
    first = next(found)
    phone.away()
    with pytest.raises(DeviceError, match="device s21 was lost and not back within 1 s: adb says of 127"):
        rows.write(tmp_path / "out.jsonl", [first, *found])
    assert not list(tmp_path.glob("out*"))
    deadline = time.monotonic() + 10
    while phone.root.setting()[-1] != "false":  # the phone puts it back by itself
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_throttled_rows_are_repeated_and_flagged(
    device: Device, phone: FakePhone, samples: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    phone.root.heat(45)
    found = list(measurement(device, samples).rows([bundle(tmp_path, "one")]))
    assert len(found) == 6
    assert {row.facts["throttled"] for row in found} == {"45 °C warm, where 34 are allowed"}
    assert capfd.readouterr().err.count("sample 1/2 round 3/3") == 3


def test_two_measurements_never_share_a_phone(
    phone: FakePhone, device: Device, samples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two commands at once, whatever the phone is called in their configurations."""
    monkeypatch.setattr(devices, "FOLDER", tmp_path)
    (tmp_path / "device.schema.yaml").write_text((DEVICES / "device.schema.yaml").read_text())
    protocol = json.dumps(dataclasses.asdict(PROTOCOL))
    commands = []
    for name in ("mine", "yours"):
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(settings("s21", "PHONE_UNDER_TEST")))
        folder, out = bundle(tmp_path, f"bundle-{name}", name), tmp_path / f"{name}.jsonl"
        words = f"measure {folder} --samples {samples} --out {out} --device {name} --processor cpu --model double"
        commands.append([*words.split(), "--variant", "tiny", "--protocol", protocol])
    with ThreadPoolExecutor() as pool:
        assert list(pool.map(main, commands)) == [0, 0]
    assert [len(rows.read([tmp_path / f"{name}.jsonl"])) for name in ("mine", "yours")] == [6, 6]
    assert phone.root.setting() == ["true", "false"] * 2  # one ended before the other began
