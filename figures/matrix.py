"""Which runs a figure needs, and whether the configuration makes sense at all.

The configuration is the default file with the user's overlays merged in. `check` fills the schema's defaults and turns
a typo, an unknown model, device, engine, option or figure into one sentence before any job starts.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import jsonschema
import yaml

from baselines import engine
from devices import device
from models import MODELS

FOLDER = Path(__file__).parent
SCHEMA = FOLDER.parent / "config" / "config.schema.yaml"
LOCK = Path(".snakemake/workflow.lock")

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
    modules of the repository accept."""
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


def runs(config: Config, figure: str) -> list[str]:
    """Files of rows that a figure is drawn from: every model on every processor of every device."""
    if figure not in figures():
        raise ConfigError(_no("figure", figure, figures()))
    return [
        f"results/runs/{name}/{processor}/{model}.jsonl"
        for name in config["devices"]
        for processor in device.load(name).processors
        for model in config["models"]
    ]


def model_files(config: Config) -> list[str]:
    """ONNX files that a table counts layers and parameters of."""
    return [f"results/models/{model}.onnx" for model in config["models"]]


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
    known: tuple[tuple[str, list[str], tuple[str, ...]], ...] = (
        ("model", config["models"], tuple(MODELS)),
        ("device", config["devices"], device.names()),
        ("figure", config["figures"], figures()),
    )
    for kind, names, accepted in known:
        yield from (_no(kind, name, accepted) for name in names if name not in accepted)
    for name, settings in config["engines"].items():
        yield from (
            f"engines.{name}.tables: {_no('table', table, figures())}"
            for table in settings["tables"]
            if table not in figures()
        )
        try:
            engine.check_options(settings["adapter"], settings["options"])
        except engine.EngineError as error:
            yield f"engines.{name}: {error}"


def _no(kind: str, name: str, accepted: tuple[str, ...]) -> str:
    return f"unknown {kind} '{name}' in the configuration; known: {', '.join(accepted)}"


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
