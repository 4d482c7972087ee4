"""The configuration: the defaults and every overlay are accepted, every typo is one sentence."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from devices import device
from figures import matrix

FOLDER = Path(__file__).parents[1] / "config"
OVERLAYS = sorted(path for path in FOLDER.glob("*.yaml") if path.name not in ("config.yaml", "config.schema.yaml"))


def merge(base: dict[str, Any], overlay: dict[str, Any]) -> dict[str, Any]:
    """What snakemake does with --configfile: dictionaries merge, everything else is replaced."""
    merged = dict(base)
    for key, value in overlay.items():
        nested = isinstance(value, dict) and isinstance(base.get(key), dict)
        merged[key] = merge(base[key], value) if nested else value
    return merged


def default() -> dict[str, Any]:
    config: dict[str, Any] = yaml.safe_load((FOLDER / "config.yaml").read_text())
    return config


@pytest.mark.parametrize("overlay", [None, *OVERLAYS], ids=lambda path: path.stem if path else "default")
def test_shipped_configurations(overlay: Path | None) -> None:
    config = default() if overlay is None else merge(default(), yaml.safe_load(overlay.read_text()))
    matrix.check(config)
    assert all("options" in engine and "tables" in engine for engine in config["engines"].values())


def test_every_toggle_has_an_overlay_of_one_engine() -> None:
    toggles: dict[str, object] = {}
    for path in OVERLAYS:
        engines = yaml.safe_load(path.read_text()).get("engines", {})
        for settings in (e for e in engines.values() if e["adapter"] == "sod2" and e["tables"] != ["control"]):
            assert len(settings["options"]) == 1
            toggles |= {f"{name}={value}": path for name, value in settings["options"].items()}
    expected = {"fusion=none", "fusion=static", "sep=False", "dmp=False", "mvc=False", "control=all"}
    assert set(toggles) == expected


def test_overlays_combine() -> None:
    config = default()
    for name in ("no-sep", "no-mvc", "paper"):
        config = merge(config, yaml.safe_load((FOLDER / f"{name}.yaml").read_text()))
    matrix.check(config)
    assert {"sod2", "sod2-no-sep", "sod2-no-mvc", "ort"} <= set(config["engines"])
    assert config["protocol"] | {"samples": 50, "repeats": 50, "selection": "random"} == config["protocol"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda c: c.update(model=["codebert"]),
            "unknown key 'model' in the configuration; accepted there: devices, models, variant, engines, protocol, "
            "figures",
        ),
        (
            lambda c: c["protocol"].update(repeat=3),
            "unknown key 'protocol.repeat' in the configuration; accepted there: samples, selection, seed, repeats, "
            "time_limit_s, memory_limit_gib",
        ),
        (
            lambda c: c["protocol"].update(repeats="3"),
            "'protocol.repeats' in the configuration is \"3\", which is not of type integer",
        ),
        (
            lambda c: c["protocol"].update(selection="all"),
            "'protocol.selection' in the configuration is \"all\"; accepted: quantiles, random",
        ),
        (lambda c: c["protocol"].update(samples=0), "'protocol.samples' in the configuration is wrong: 0 is less than"),
        (lambda c: c.update(models=["bert"]), "unknown model 'bert' in the configuration; known: "),
        (lambda c: c.update(devices=["s21"]), "unknown device 's21' in the configuration; known: "),
        (lambda c: c.update(figures=["table66"]), "unknown figure 'table66' in the configuration; known: "),
        (
            lambda c: c["engines"]["ort"].update(adapter="onnx"),
            "engines.ort: adapter 'onnx' has no engine in baselines/; known adapters: ",
        ),
        (
            lambda c: c["engines"]["sod2"].update(options={"sep": "false"}),
            "engines.sod2: option 'sep' of adapter 'sod2' is \"false\"; accepted values: true, false",
        ),
        (
            lambda c: c["engines"]["ort"].update(tables=["table9"]),
            "engines.ort.tables: unknown table 'table9' in the configuration; known: ",
        ),
        (lambda c: c["engines"].pop("sod2"), "'engines' in the configuration is wrong: 'sod2' is a required property"),
        (lambda c: c.update(variant="big"), "'variant' in the configuration is \"big\"; accepted: full, tiny"),
    ],
)
def test_a_mistake_is_one_sentence(change: Callable[[dict[str, Any]], object], message: str) -> None:
    config = default()
    change(config)
    with pytest.raises(matrix.ConfigError) as error:
        matrix.check(config)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def test_a_figure_needs_every_model_on_every_processor() -> None:
    config = default()
    assert matrix.runs(config, "table6") == [f"results/runs/host/cpu/{model}.jsonl" for model in config["models"]]
    with pytest.raises(matrix.ConfigError, match="unknown figure 'table7'"):
        matrix.runs(config, "table7")


def test_device_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert device.load("host").processors == ("cpu",)
    monkeypatch.setattr(device, "FOLDER", tmp_path)
    (tmp_path / "device.schema.yaml").write_text((FOLDER.parent / "devices" / "device.schema.yaml").read_text())
    (tmp_path / "pi.yaml").write_text("{driver: local, title: Pi, processors: [cpu], thread: 3}")
    with pytest.raises(device.DeviceError, match=r"devices/pi\.yaml: .*'thread' was unexpected"):
        device.load("pi")
    (tmp_path / "pi.yaml").write_text("{driver: serial, title: Pi, processors: [cpu], threads: 3}")
    with pytest.raises(device.DeviceError, match=r"driver 'serial' has no module devices/serial\.py"):
        device.load("pi")
    with pytest.raises(device.DeviceError, match=r"device 'po' has no file devices/po\.yaml; known devices: pi"):
        device.load("po")
