"""The configuration: the defaults and every overlay are accepted, every typo is one sentence."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from devices import device
from figures import matrix, targets

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
        for settings in (e for e in engines.values() if e.get("adapter") == "sod2" and "table6" in e.get("tables", [])):
            assert len(settings["options"]) == 1
            toggles |= {f"{name}={value}": path for name, value in settings["options"].items()}
    expected = {"fusion=none", "fusion=static", "sep=False", "dmp=False", "mvc=False", "control=all", "tuned=True"}
    assert set(toggles) == expected


def test_one_device_by_its_short_form() -> None:
    config = default() | {"device": "s21"}
    matrix.check(config)
    assert config["devices"] == ["s21"]
    assert "device" not in config


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
            "unknown key 'model' in the configuration; accepted there: devices, models, variant, ",
        ),
        (
            lambda c: c["protocol"].update(repeat=3),
            "unknown key 'protocol.repeat' in the configuration; accepted there: samples, selection, seed, repeats, ",
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
        (
            lambda c: c.update(models=["bert"]),
            "unknown model 'bert' in the configuration; did you mean codebert? known: ",
        ),
        (lambda c: c.update(devices=["nokia"]), "unknown device 'nokia' in the configuration; known: "),
        (
            lambda c: c.update(figures=["table66"]),
            "unknown figure 'table66' in the configuration; did you mean table6 or ",
        ),
        (
            lambda c: c.update(figures=["figure9"]),
            "figure figure9 needs an engine with adapter sod2 and option control: all, which --configfile"
            " config/figure9.yaml adds",
        ),
        (
            lambda c: c["engines"]["ort"].update(adapter="onnx"),
            "engines.ort: adapter 'onnx' has no engine in baselines/; known adapters: ",
        ),
        (
            lambda c: c["engines"]["sod2"].update(options={"sep": "false"}),
            "engines.sod2: option 'sep' of adapter 'sod2' is \"false\"; accepted values: true, false",
        ),
        (
            lambda c: c["engines"]["ort"].update(tables=["lattice"]),
            "engines.ort.tables: unknown table 'lattice' in the configuration; known: ",
        ),
        (lambda c: c["engines"].pop("sod2"), "'engines' in the configuration is wrong: 'sod2' is a required property"),
        (
            lambda c: c.update(data={"resnet": "."}),
            "unknown model 'resnet' in the configuration; did you mean ranet or skipnet? known: ",
        ),
        (
            lambda c: c.update(data={"yolov6": "/no/pictures"}),
            "data folder '/no/pictures' in the configuration does not exist",
        ),
        (lambda c: c.update(data="/no/pictures"), "data folder '/no/pictures' in the configuration does not exist"),
        (lambda c: c.update(data=3), "'data' in the configuration is 3"),
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
    folder = "results/runs/host/cpu"
    assert matrix.runs(config, "table6") == [f"{folder}/quantiles/{model}.jsonl" for model in config["models"]]
    assert matrix.runs(config, "table7") == [f"{folder}/percentiles/yolov6.jsonl"]
    with pytest.raises(matrix.ConfigError, match="unknown figure 'table77' in a target; did you mean table7"):
        matrix.runs(config, "table77")


@pytest.mark.parametrize("figure", matrix.figures())
def test_a_figures_own_overlay_has_the_engines_that_it_needs(figure: str) -> None:
    needs = matrix.needs(figure)
    if not needs.engines:
        return
    overlay = yaml.safe_load((FOLDER / f"{needs.overlay or figure}.yaml").read_text())
    config = merge(merge(default(), overlay), {"figures": [figure]})
    matrix.check(config)
    assert matrix.runs(config, figure)


@pytest.mark.parametrize(
    ("target", "sentence"),
    [
        ("figures/tabel6.pdf", "unknown figure 'tabel6' in the target figures/tabel6.pdf; did you mean table6 or "),
        ("results/models/bert.onnx", "unknown model 'bert' in the target results/models/bert.onnx; did you mean codeb"),
        ("results/runs/s21/cpu/quantiles/sam.jsonl", "unknown device 's21' in the target results/runs/s21/cpu/quanti"),
        ("results/runs/host/tpu/quantiles/sam.jsonl", "unknown processor 'tpu' in the target results/runs/host/tpu/q"),
        ("results/samples/all/sam.npz", "unknown selection 'all' in the target results/samples/all/sam.npz; known: q"),
        ("results/bundles/host/cpu/orrt/sam", "unknown engine 'orrt' in the target results/bundles/host/cpu/orrt/sam"),
        ("table6", "no rule makes 'table6'; targets are 'all' and figures/{figure}.pdf, "),
    ],
)
def test_a_target_that_no_rule_makes(target: str, sentence: str) -> None:
    config = default()
    assert targets.explain(config, target).startswith(sentence)
    assert re.fullmatch(targets.strays(config), target)


def test_targets_that_rules_make_are_no_strays() -> None:
    config = default()
    chosen = {"device": "host", "processor": "cpu", "engine": "ort", "model": "sam", "figure": "table5"}
    for form in targets.TARGETS:
        assert not re.fullmatch(targets.strays(config), form.format(**chosen, selection="random"))


def test_percentiles_have_samples_of_their_own() -> None:
    config = default()
    config["protocol"]["samples"] = 2
    (name, values) = matrix.sampling(config, "percentiles").split()
    quantiles = [float(q) for q in values.split(",")]
    assert name == "--quantiles"
    assert len(quantiles) == 2 * len(matrix.PERCENTILES)
    for i, q in enumerate(quantiles):
        percentile = matrix.PERCENTILES[i // 2]
        assert percentile - 1 <= 100 * q <= percentile
    assert matrix.sampling(config, "quantiles") == "--count 2"
    assert matrix.sampling(config, "random") == "--count 2 --random"


def test_device_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert device.load("host").processors == ("cpu",)
    monkeypatch.setattr(device, "FOLDER", tmp_path)
    (tmp_path / "device.schema.yaml").write_text((FOLDER.parent / "devices" / "device.schema.yaml").read_text())
    (tmp_path / "pi.yaml").write_text("{driver: local, title: Pi, processors: [cpu], thread: 3}")
    with pytest.raises(device.DeviceError, match=r"devices/pi\.yaml: .*'thread' was unexpected"):
        device.load("pi")
    place = "address: PI, platform: linux-aarch64, cores: {all: {mask: f}}"
    (tmp_path / "pi.yaml").write_text(f"{{driver: serial, title: Pi, processors: [cpu], {place}}}")
    with pytest.raises(device.DeviceError, match=r"driver 'serial' has no module devices/serial\.py"):
        device.load("pi")
    with pytest.raises(device.DeviceError, match=r"device 'po' has no file devices/po\.yaml; known devices: pi"):
        device.load("po")


def test_own_data_is_for_every_model_or_for_those_named(tmp_path: Path) -> None:
    config = default()
    assert matrix.own_data(config, "yolov6") == []
    for data, expected in ((str(tmp_path), ["--data", str(tmp_path)]), ({"codebert": str(tmp_path)}, [])):
        config["data"] = data
        matrix.check(config)
        assert matrix.own_data(config, "yolov6") == expected
        assert matrix.own_data(config, "codebert") == ["--data", str(tmp_path)]
