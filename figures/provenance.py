"""The sentences under a table that let a reader judge it: where, with what, how often, how steady, how right."""

from __future__ import annotations

from collections.abc import Sequence

from baselines.rows import Row
from devices.device import Device
from figures import data


def caption(device: Device, rows: Sequence[Row]) -> str:
    """Device, versions, protocol, spread and largest errors of the rows of one device, from one or more runs."""
    good = [row for row in data.select(rows, device=device.name) if row.status == "ok"]
    if not good:
        return f"No engine gave a result on {device.title}."
    return " ".join([_where(device, good), _what(good), _how(good), _steady(good), _right(good), _when(good)])


def _where(device: Device, rows: Sequence[Row]) -> str:
    facts = rows[0].facts
    threads = _list(sorted({str(row.threads) for row in rows}))
    title = device.title[0].upper() + device.title[1:]
    sentence = f"{title}: {facts['cpu']}, {facts['cpus']} CPUs, {facts['system']}; {threads} threads."
    load = max(float(row.facts["load"] or 0) for row in rows)
    if load > int(facts["cpus"]) / 2:
        sentence += f" The machine was not idle: load {load:g} before a run."
    if slow := {(row.model, row.sample) for row in rows if row.facts.get("throttled") is not None}:
        sentence += f" Samples that were measured while it was throttled: {len(slow)}."
    return sentence


def _what(rows: Sequence[Row]) -> str:
    engines: dict[str, str] = {}
    for row in rows:
        options = ", ".join(f"{name}: {str(value).lower()}" for name, value in sorted(row.options.items()))
        engines[row.engine] = f"{row.engine} {row.version}" + (f" ({options})" if options else "")
    return f"Engines: {_list(list(engines.values()))}; float32."


def _how(rows: Sequence[Row]) -> str:
    protocol = rows[0].protocol
    chosen = {
        "random": "drawn at random",
        "quantiles": "at fixed quantiles of the input size",
        "percentiles": "and percentile of the input size",
        "descending": "at fixed quantiles of the input size, the largest first",
    }[str(protocol["selection"])]
    tiny = " The models are the tiny variants, for testing the workflow." if rows[0].variant == "tiny" else ""
    slow = protocol.get("slow_s")
    fewer = f" (one where the first took over {slow:g} s)" if slow is not None else ""
    count = protocol.get("inferences", 1)
    turns = f", each of {count} inferences in a row of which the first does not count" if count > 1 else ""
    return (
        f"{protocol['samples']} samples a model {chosen} (seed {protocol['seed']}), per sample the first run and"
        f" {protocol['repeats']} repeats{fewer}{turns}, engines interleaved.{tiny}"
    )


def _steady(rows: Sequence[Row]) -> str:
    latencies = data.latencies(rows)
    shares = latencies["spread"][latencies["repeats"] > 1]
    if shares.empty:
        return "One repeat: no spread."
    return (
        f"Spread of repeats (interquartile range over median): {shares.median():.1%} in the middle,"
        f" {shares.max():.1%} at worst."
    )


def _right(rows: Sequence[Row]) -> str:
    errors: dict[str, float] = {}
    for row in rows:
        errors[row.engine] = max(errors.get(row.engine, 0.0), row.error or 0.0)
    parts = [f"{engine} {error:.1g}" for engine, error in errors.items()]
    return f"Largest error against the reference, of the output's scale: {_list(parts)}."


def _when(rows: Sequence[Row]) -> str:
    return f"Measured {min(row.started for row in rows)[:10]} at revision {_list(sorted({row.git for row in rows}))}."


def _list(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
