"""Which runs a figure needs, and whether the configuration makes sense at all.

The configuration is the default file with the user's overlays merged in. `check` fills the schema's defaults and turns
a typo, an unknown model, device, engine, option or figure into one sentence before any job starts.
"""

from __future__ import annotations

import difflib
import fcntl
import importlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import jsonschema
import yaml

from baselines import engine
from devices import device
from figures.needs import Needs
from models import MODELS

FOLDER = Path(__file__).parent
SCHEMA = FOLDER.parent / "config" / "config.schema.yaml"
LOCK = Path(".snakemake/workflow.lock")

PERCENTILES = (1, 25, 50, 75, 100)
"""Of the input's size; the selection `percentiles` has `protocol.samples` samples at each, in this order."""
SELECTIONS = ("quantiles", "random", "percentiles", "descending")
"""How samples are chosen; `descending` are quantiles that are visited from the largest on, all others ascending."""

Config = dict[str, Any]


class ConfigError(Exception):
    """The configuration is wrong; the message says where and what would be accepted."""


class WorkflowBusy(Exception):
    """Another workflow runs in this folder."""


def figures() -> tuple[str, ...]:
    """Figures that have a module here."""
    return tuple(sorted(p.stem for p in FOLDER.glob("*.py") if "\ndef table(" in p.read_text()))


def check(config: Config) -> None:
    """Fill the defaults of the schema into `config`; raises ConfigError when it is not what the schema and the
    modules of the repository accept. A `device` is short for `devices` with that one (`--config device=s21`)."""
    if "device" in config:
        config["devices"] = [config.pop("device")]
    schema = yaml.safe_load(SCHEMA.read_text())
    error = jsonschema.exceptions.best_match(jsonschema.Draft202012Validator(schema).iter_errors(config))
    if error is not None:
        raise ConfigError(_sentence(error))
    for settings in config["engines"].values():
        for key, rule in schema["properties"]["engines"]["additionalProperties"]["properties"].items():
            if "default" in rule:
                settings.setdefault(key, rule["default"])
    for sentence in _unknown(config):
        raise ConfigError(sentence)


def needs(figure: str) -> Needs:
    """What the module of a figure says of itself."""
    stated: Needs = getattr(importlib.import_module(f"figures.{figure}"), "NEEDS", Needs())
    return stated


def models(config: Config, figure: str) -> tuple[str, ...]:
    """The models of a figure."""
    return needs(figure).models or tuple(config["models"])


def runs(config: Config, figure: str) -> list[str]:
    """Files of rows that a figure is drawn from: its models on every processor of every device.

    Raises ConfigError when the configuration lacks an engine that the figure is about.
    """
    if figure not in figures():
        raise ConfigError(unknown("figure", figure, "a target", figures()))
    for sentence in _missing_engines(config, figure):
        raise ConfigError(sentence)
    selection = needs(figure).selection or config["protocol"]["selection"]
    return [
        f"results/runs/{name}/{processor}/{selection}/{model}.jsonl"
        for name in config["devices"]
        for processor in device.load(name).processors
        for model in models(config, figure)
    ]


def model_files(config: Config, figure: str) -> list[str]:
    """ONNX files that a table counts layers and parameters of."""
    return [f"results/models/{model}.onnx" for model in models(config, figure)]


def protocol(config: Config, selection: str) -> Config:
    """The protocol of the runs of one selection of samples."""
    return {**config["protocol"], "selection": selection}


def sampling(config: Config, selection: str) -> str:
    """The arguments of datasets/sample.py that draw a selection."""
    count = config["protocol"]["samples"]
    if selection == "percentiles":  # all sizes of the last percent below each
        steps = [(p - 1 + (k + 0.5) / count) / 100 for p in PERCENTILES for k in range(count)]
        return f"--quantiles {','.join(f'{q:.5f}' for q in steps)}"
    return f"--count {count}" + (" --random" if selection == "random" else "")


def own_data(config: Config, model: str) -> list[str]:
    """The arguments of datasets/sample.py that name the folder from which a model's contents are drawn, if any."""
    data: str | dict[str, str] = config.get("data", {})
    folder = data if isinstance(data, str) else data.get(model)
    return [] if folder is None else ["--data", folder]


def unknown(kind: str, name: str, where: str, accepted: Sequence[str]) -> str:
    """The sentence about a name that stands for nothing."""
    close = difflib.get_close_matches(name, accepted)
    hint = f"did you mean {' or '.join(close)}? " if close else ""
    return f"unknown {kind} '{name}' in {where}; {hint}known: {', '.join(accepted)}"


def hold_workflow() -> None:
    """Hold this folder for one workflow until the process ends, however it ends; raises WorkflowBusy.

    Snakemake's own lock survives a kill and must then be removed by hand, so the profile turns it off.
    """
    LOCK.parent.mkdir(exist_ok=True)
    handle = LOCK.open("w")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise WorkflowBusy(f"another workflow runs in {Path.cwd()}: wait for it or stop it") from None
    _HELD.append(handle)


_HELD: list[object] = []  # open for as long as the process lives


def _unknown(config: Mapping[str, Any]) -> Iterator[str]:
    """A sentence for every name in the configuration that stands for nothing."""
    data: str | dict[str, str] = config.get("data", {})
    known: tuple[tuple[str, list[str], tuple[str, ...]], ...] = (
        ("model", config["models"], tuple(MODELS)),
        ("device", config["devices"], device.names()),
        ("figure", config["figures"], figures()),
        ("model", [] if isinstance(data, str) else list(data), tuple(MODELS)),
    )
    for folder in [data] if isinstance(data, str) else data.values():
        if not Path(folder).is_dir():
            yield f"data folder '{folder}' in the configuration does not exist: an existing folder is wanted"
    for kind, listed, accepted in known:
        yield from (unknown(kind, name, "the configuration", accepted) for name in listed if name not in accepted)
    for name, settings in config["engines"].items():
        yield from (
            f"engines.{name}.tables: {unknown('table', table, 'the configuration', figures())}"
            for table in settings["tables"]
            if table not in figures()
        )
        try:
            engine.check_options(settings["adapter"], settings["options"])
        except engine.EngineError as error:
            yield f"engines.{name}: {error}"
    for figure in config["figures"]:
        yield from _missing_engines(config, figure)


def _missing_engines(config: Mapping[str, Any], figure: str) -> Iterator[str]:
    """A sentence for every engine that a figure is about and the configuration lacks."""
    for adapter, options in needs(figure).engines:
        present = [e["options"] for e in config["engines"].values() if e["adapter"] == adapter]
        if not any(options.items() <= chosen.items() for chosen in present):
            wanted = " and ".join([f"adapter {adapter}", *(f"option {k}: {v}" for k, v in options.items())])
            overlay = needs(figure).overlay or figure
            yield f"figure {figure} needs an engine with {wanted}, which --configfile config/{overlay}.yaml adds"


def _sentence(error: jsonschema.ValidationError) -> str:
    """One sentence for what the schema refuses, with the path of the key."""
    where = ".".join(map(str, error.absolute_path))
    value, rule = json.dumps(error.instance), cast(Any, error.validator_value)
    if error.validator == "additionalProperties":
        accepted = cast(Any, error.schema)["properties"]
        (key, *_) = [key for key in cast(Any, error.instance) if key not in accepted]
        path = f"{where}.{key}" if where else key
        return f"unknown key '{path}' in the configuration; accepted there: {', '.join(accepted)}"
    if error.validator == "type":
        return f"'{where}' in the configuration is {value}, which is not of type {rule}"
    if error.validator == "enum":
        return f"'{where}' in the configuration is {value}; accepted: {', '.join(map(str, rule))}"
    return f"'{where}' in the configuration is wrong: {error.message}"
