"""A run as a trace that Perfetto and chrome://tracing draw: each step with its time, how near its limit that is
(roofline.py), and the bytes live while it ran.

The live bytes are those of the plan at the bound shape, scratch included, rounded up as the arena does. Steps of
branches that were not taken are left out. A step of a loop appears once, with the time of all its trips.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sod2 import roofline
from sod2.artifact import CompiledModel
from sod2.graph import Array


def trace(model: CompiledModel, inputs: Mapping[str, Array], repeats: int = 1) -> dict[str, Any]:
    """The Trace Event Format; times in microseconds, steps one after the other, each the shortest of the repeats."""
    (steps, _), live = roofline.measure(model, inputs, repeats), model.live_bytes()
    events: list[dict[str, Any]] = [_named("process_name", model.manifest["name"]), _named("thread_name", "steps")]
    now = 0.0
    for step, bytes_ in zip(steps, live, strict=True):
        if not step.ns:
            continue
        common = {"pid": 1, "tid": 1, "ts": now}
        arguments = {"live bytes": bytes_, **_rates(step)}
        events.append({**common, "ph": "X", "name": step.name, "dur": step.ns / 1e3, "args": arguments})
        events.append({**common, "ph": "C", "name": "live memory", "args": {"bytes": bytes_}})
        now += step.ns / 1e3
    events.append({"pid": 1, "tid": 1, "ts": now, "ph": "C", "name": "live memory", "args": {"bytes": 0}})
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _rates(step: roofline.StepTime) -> dict[str, float]:
    """GFLOP/s, GB/s and the share of the limit; nothing where the step's sizes are not known."""
    if step.flops is None or step.bytes is None or step.limit_ns is None:
        return {}
    return {"GFLOP/s": step.flops / step.ns, "GB/s": step.bytes / step.ns, "of limit": step.limit_ns / step.ns}


def _named(what: str, name: str) -> dict[str, Any]:
    return {"pid": 1, "tid": 1, "ph": "M", "name": what, "args": {"name": name}}


def write(found: Mapping[str, Any], path: Path) -> None:
    """The trace as JSON, complete or not at all."""
    partial = path.with_name(f".{path.name}.tmp")
    partial.write_text(json.dumps(found))
    partial.rename(path)
