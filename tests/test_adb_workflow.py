"""The smoke workflow on two fake phones at once, through the real adb server: build, push, measure, draw."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from fake_phone import FakePhone
from fake_phone_server import adb_server, settings

from baselines import rows

ROOT = Path(__file__).parents[1]
LEFT_OUT = shutil.ignore_patterns(".*", "results", "docs", "tests", "__pycache__", "*.egg-info", "*.pdf", "table*.csv")
MODELS = ("codebert", "yolov6", "skipnet")
PHONES = {"s21": "SM-G991U", "sd835": "Pixel 2"}
LIMIT_S = 300
PYTHON = Path(sys.executable).with_name(f"python3.{sys.version_info.minor}")


@pytest.fixture
def phones(tmp_path: Path) -> Iterator[dict[str, FakePhone]]:
    (tmp_path / "home").mkdir()
    with (
        adb_server(tmp_path / "home"),
        FakePhone(tmp_path / "s21", "s21") as first,
        FakePhone(tmp_path / "sd835", "sd835") as second,
    ):
        yield {"s21": first, "sd835": second}


@pytest.fixture
def checkout(tmp_path: Path, phones: dict[str, FakePhone], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the repository whose phones are the fake ones: SoD² and onnxruntime, the tables of memory and time."""
    checkout = Path(shutil.copytree(ROOT, tmp_path / "checkout", ignore=LEFT_OUT))
    for name, phone in phones.items():
        monkeypatch.setenv(f"FAKE_{name.upper()}", phone.address)
        file = settings(name, f"FAKE_{name.upper()}") | {"python": str(PYTHON)}
        (checkout / "devices" / f"{name}.yaml").write_text(yaml.safe_dump(file))
    config = yaml.safe_load((checkout / "config" / "config.yaml").read_text())
    config["engines"] = {name: config["engines"][name] for name in ("sod2", "ort")}
    config |= {"devices": list(phones), "figures": ["table5", "table6"]}
    (checkout / "config" / "config.yaml").write_text(yaml.safe_dump(config))
    return checkout


@pytest.mark.slow
@pytest.mark.skipif(not PYTHON.exists(), reason=f"{PYTHON} is missing, the phone's Python for onnxruntime")
def test_smoke_on_two_phones_at_once(checkout: Path, phones: dict[str, FakePhone]) -> None:
    begin = time.monotonic()
    command = [sys.executable, "-m", "snakemake", "all", "--cores", "4", "--configfile", "config/smoke.yaml"]
    run = subprocess.run(
        command, cwd=checkout, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    assert run.returncode == 0, run.stdout[-4000:]
    assert time.monotonic() - begin < LIMIT_S
    for name, model in PHONES.items():
        files = sorted((checkout / "results" / "runs" / name).rglob("*.jsonl"))
        assert [file.stem for file in files] == sorted(MODELS)
        for file in files:
            found = rows.read([file])
            assert [row.reason for row in found if row.status != "ok"] == []
            assert len(found) == 2 * 9
            assert max(row.error or 0.0 for row in found) <= 1e-4  # against the host's reference
            assert {row.facts["model"] for row in found} == {model}
            assert all(row.peak_bytes and row.latency_ns and len(row.facts["canary_ns"]) == 2 for row in found)
    assert phones["s21"].root.setting() == ["true", "false"] * len(MODELS)
    assert phones["sd835"].root.setting() == []
    assert (checkout / "figures" / "table6.pdf").read_bytes().startswith(b"%PDF")
    assert overlap(phones["s21"], phones["sd835"]), "the phones were measured one after the other"


def overlap(first: FakePhone, second: FakePhone) -> bool:
    """Whether both phones ran engines at the same time."""
    spans = [(min(times), max(times)) for times in (engine_starts(first), engine_starts(second))]
    return spans[0][0] < spans[1][1] and spans[1][0] < spans[0][1]


def engine_starts(phone: FakePhone) -> list[float]:
    return [at for at, script in phone.scripts if "/agent " in script]
