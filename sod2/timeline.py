"""A run as a trace that Perfetto and chrome://tracing draw: each step with its time, and the bytes live while it ran.

The bytes are those of the plan at the bound shape, scratch included, rounded up as the arena does. Steps of branches
that were not taken are left out. A step of a loop appears once, with the time of all its trips.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sod2.artifact import CompiledModel
from sod2.graph import Array


def trace(model: CompiledModel, inputs: Mapping[str, Array]) -> dict[str, Any]:
    """One run in the Trace Event Format; times in microseconds, steps one after the other."""
    model.run(inputs)  # the first run at a shape touches the arena for the first time
    steps, live = model.profile(inputs), model.live_bytes()
    events: list[dict[str, Any]] = [_named("process_name", model.manifest["name"]), _named("thread_name", "steps")]
    now = 0.0
    for (name, nanoseconds), bytes_ in zip(steps, live, strict=True):
        if not nanoseconds:
            continue
        common = {"pid": 1, "tid": 1, "ts": now}
        events.append({**common, "ph": "X", "name": name, "dur": nanoseconds / 1e3, "args": {"live bytes": bytes_}})
        events.append({**common, "ph": "C", "name": "live memory", "args": {"bytes": bytes_}})
        now += nanoseconds / 1e3
    events.append({"pid": 1, "tid": 1, "ts": now, "ph": "C", "name": "live memory", "args": {"bytes": 0}})
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _named(what: str, name: str) -> dict[str, Any]:
    return {"pid": 1, "tid": 1, "ph": "M", "name": what, "args": {"name": name}}


def write(found: Mapping[str, Any], path: Path) -> None:
    """The trace as JSON, complete or not at all."""
    partial = path.with_name(f".{path.name}.tmp")
    partial.write_text(json.dumps(found))
    partial.rename(path)
