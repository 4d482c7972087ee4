"""What a device tells about itself (facts.sh), as a row keeps it; and whether it says that it is being throttled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_LISTS = ("max_khz", "limit_khz", "khz")
_NUMBERS = ("cpus", "battery_percent", "thermal_status")


def parse(text: str) -> dict[str, Any]:
    """Facts by name: frequencies as lists by core, temperatures in degrees Celsius by zone, memory in bytes."""
    facts: dict[str, Any] = {"governor": None, "load": None}
    zones: dict[str, float] = {}
    for line in text.splitlines():
        key, _, value = line.strip().partition("=")
        if key in _LISTS:
            facts[key] = [int(word) for word in value.split()]
        elif key in _NUMBERS:
            facts[key] = int(value)
        elif key == "load":
            facts[key] = float(value)
        elif key == "memory_kib":
            facts["memory_bytes"] = 1024 * int(value)
        elif key == "battery_decidegrees":
            facts["battery_celsius"] = int(value) / 10
        elif key.startswith("zone."):
            if value.lstrip("-").isdecimal():
                zones[key.removeprefix("zone.")] = int(value) / 1000
        elif key:
            facts[key] = value.strip()
    # The kernels of newer phones do not name their processor.
    named = (facts[key] for key in ("cpu", "soc", "board", "model", "system") if key in facts)
    governors = " ".join(sorted({*(facts["governor"] or "").split()})) or None
    return facts | {"governor": governors, "cpu": next(named, None)} | ({"celsius": zones} if zones else {})


def warmth(facts: Mapping[str, Any]) -> float | None:
    """Temperature in degrees Celsius: the battery's, else that of the hottest zone, else None."""
    if "battery_celsius" in facts:
        return float(facts["battery_celsius"])
    return max(facts.get("celsius", {}).values(), default=None)


def throttling(facts: Mapping[str, Any]) -> str | None:
    """Why a device that tells these facts is not at its full speed; None when nothing says so."""
    if facts.get("thermal_status", 0) > 0:
        return f"Android's thermal status is {facts['thermal_status']}"
    pairs = list(zip(facts.get("limit_khz", ()), facts.get("max_khz", ()), strict=False))
    for core, (limit, most) in enumerate(pairs):
        if limit < most:
            return f"core {core} is limited to {limit} of {most} kHz"
    return None
