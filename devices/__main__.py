"""Command line: `python -m devices facts NAME` tells what a device says of itself, `clean` removes what was pushed."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from devices.device import load, names
from devices.driver import DeviceError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m devices", description=__doc__)
    parser.add_argument("command", choices=("facts", "clean"))
    parser.add_argument("device", help=f"one of {', '.join(names())}")
    options = parser.parse_args(arguments)
    try:
        device = load(options.device)
        with device.lock():
            device.connect()
            if options.command == "facts":
                print(json.dumps(device.facts(), indent=1))
            else:
                device.files.clean()
    except DeviceError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
