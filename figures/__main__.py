"""Command line of the figures: `python -m figures table6 --config JSON --out figures/table6 --rows FILES`."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from baselines import rows
from devices import device
from figures import layout, matrix


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw one figure as PDF, CSV and Markdown; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m figures", description=__doc__)
    parser.add_argument("figure", choices=matrix.figures())
    parser.add_argument("--config", type=json.loads, required=True, help="the checked configuration, as JSON")
    parser.add_argument("--out", type=Path, required=True, help="where to write, without suffix")
    parser.add_argument("--rows", type=Path, nargs="+", required=True, help="files of rows")
    options = parser.parse_args(arguments)
    try:
        matrix.check(options.config)
        measured = rows.read(options.rows)
        module = importlib.import_module(f"figures.{options.figure}")
        devices = [device.load(name) for name in options.config["devices"]]
        tables = [module.table(options.config, measured, each) for each in devices]
    except (matrix.ConfigError, device.DeviceError, ValueError, FileNotFoundError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if len(devices) > 1:
        tables = [layout.with_column(table, "Device", each.title) for table, each in zip(tables, devices, strict=True)]
    layout.write(tables, options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
