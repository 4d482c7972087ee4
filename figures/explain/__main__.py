"""Write docs/lattice.svg, docs/fusion.svg and docs/transfer.md: `python -m figures.explain [FOLDER]`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from figures.explain import fusion, lattice, transfer

DOCS = Path(__file__).parents[2] / "docs"


def texts() -> dict[str, str]:
    """Contents by file name."""
    return {"lattice.svg": lattice.picture(), "fusion.svg": fusion.picture(), "transfer.md": transfer.tables()}


def main(arguments: Sequence[str]) -> None:
    """Write the files into a folder, docs/ by default."""
    folder = Path(arguments[0]) if arguments else DOCS
    for name, text in texts().items():
        (folder / name).write_text(text)


if __name__ == "__main__":
    main(sys.argv[1:])
