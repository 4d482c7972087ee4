"""Draw the input samples of a model: `python datasets/sample.py MODEL OUT.npz --count 10 --seed 0`.

Default protocol: `--count` samples at evenly spaced quantiles of the distribution of input sizes, the smallest and the
largest admissible size included (`--quantiles 0,0.5,1` names them). With `--random`, the paper's protocol: sizes drawn
uniformly. `--sizes H=224,W=320` (repeatable) names them outright. Sizes are described in models/inputs.py and are a
function of the seed.

Contents are real ones from installed packages where some serve (models/package_data.py), or else generated
(models/inputs.py; always with `--generated`); with `--data FOLDER` they are pictures, recordings or code of one's own
(models/own_data.py). They are a function of the seed and of those files.

OUT.npz holds the array `<i>.<input>` for each input of sample i, and `facts`: a JSON list with, per sample,
    sizes      value of each symbolic dim
    shapes     shape of each input, by name
    source     the file and the part of it, or what was generated for which data set by which seed
    path       one character per gate: 1 ran the then-branch, 0 the else-branch, - not reached; null without gates
    margins    compared value minus threshold per gate, in standard deviations of the calibration (null: not reached)
    redrawn    how often the contents were drawn again
    macs       multiply-adds on that path;  macs_all: with all branches
Contents are drawn again while a reached gate's margin is below 0.001 standard deviations, or an element of a reached
mask below 0.0001: two engines that round differently could decide differently there. OUT.npz is renamed into place when
it is complete.
"""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from models import MODELS, build, find, gate_spread
from models.flops import count, executed, shaped_values
from models.gates import decisions, gates, masks, path_string, reached
from models.inputs import (
    admissible_sizes,
    concrete_shape,
    contents,
    generator,
    quantile_sizes,
    random_sizes,
    read_dataset,
)
from models.own_data import Files, of_folder
from models.package_data import installed
from models.probe import Probe

CLEAR = 1e-3  # smallest admissible margin, in standard deviations of the gate's logit
MASK_CLEAR = 1e-4  # the same for an element of a mask, of which there are thousands
ATTEMPTS = 100


class Sampler:
    """Draws samples of one model; runs the model once for each draw to see its path and count its multiply-adds.

    Contents come from `files`, or are generated without any.
    """

    def __init__(self, name: str, variant: str, files: Files | None = None) -> None:
        self.model = find(name, variant)
        self._variant = variant
        self._files = files
        description = read_dataset(self.model.dataset)
        self._source = f"{description['source']} for {description['name']}"
        self._graph = build(name, variant)
        self._gates = gates(self._graph)
        weights = {tensor.name for tensor in self._graph.graph.initializer}
        self._inputs = [value for value in self._graph.graph.input if value.name not in weights]
        self._masks = masks(self._graph)
        observed = [value for gate in self._gates for value in gate.values] + [mask.value for mask in self._masks]
        self._probe = Probe(self._graph, observed, shaped_values(self._graph))
        self._spread = gate_spread(name, variant)

    def sample(self, sizes: dict[str, int], seed: int, index: int) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Arrays and facts of sample `index` at the given sizes."""
        shapes = {value.name: concrete_shape(value, sizes) for value in self._inputs}
        for attempt in range(ATTEMPTS):
            arrays, source = self._contents(shapes, seed, index, attempt)
            facts, clear = self._observe(arrays)
            if clear:
                return arrays, {"sizes": sizes, "shapes": shapes, "source": source, "redrawn": attempt, **facts}
        raise ValueError(f"{self.model.title} decides too narrowly at {sizes}: {ATTEMPTS} contents were drawn in vain")

    def _contents(
        self, shapes: dict[str, tuple[int, ...]], seed: int, index: int, attempt: int
    ) -> tuple[dict[str, np.ndarray], str]:
        """Input arrays and where they come from."""
        rng = generator("contents", seed, index, attempt)
        if self._files is not None:
            return self._files.draw(shapes, rng)
        return contents(self.model, self._variant, shapes, rng), f"{self._source}, seed {seed}, sample {index}"

    def _observe(self, arrays: dict[str, np.ndarray]) -> tuple[dict[str, Any], bool]:
        """Path, margins and multiply-adds of one set of inputs; and whether all decisions are clear ones."""
        values, shapes = self._probe.run(arrays)
        path = decisions(self._gates, values)
        margins = [
            gate.margin(values) / float(spread) if gate.name in path else None
            for gate, spread in zip(self._gates, self._spread, strict=True)
        ]
        masked = [mask.margin(values) for mask in self._masks if reached(mask.inside, path)]
        clear = (
            all(margin is None or abs(margin) >= CLEAR for margin in margins)
            and min(masked, default=np.inf) >= MASK_CLEAR
        )
        counts = count(self._graph, shapes)
        facts = {
            "path": path_string(self._gates, path) if self._gates else None,
            "margins": margins,
            "macs": executed(self._graph, counts, path),
            "macs_all": sum(counts.values()),
        }
        return facts, clear


def draw(
    name: str, variant: str, sizes: list[dict[str, int]], seed: int, files: Files | None = None
) -> dict[str, np.ndarray]:
    """The contents of the samples file for samples of the given sizes."""
    sampler = Sampler(name, variant, files)
    content: dict[str, np.ndarray] = {}
    facts = []
    for index, size in enumerate(sizes):
        arrays, fact = sampler.sample(size, seed, index)
        content |= {f"{index}.{key}": array for key, array in arrays.items()}
        facts.append(fact)
    return content | {"facts": np.array(json.dumps(facts))}


def write(out: Path, content: dict[str, np.ndarray]) -> None:
    """Write the samples file under a temporary name and rename it."""
    partial = out.with_name(f"{out.name}.partial")
    with partial.open("wb") as file:
        np.savez(file, **content)  # type: ignore[arg-type]
    os.replace(partial, out)


def choose_sizes(options: argparse.Namespace) -> list[dict[str, int]]:
    """The sizes that the command line asks for."""
    symbols = find(options.model, options.variant).symbols
    if options.sizes:
        if options.count not in (None, len(options.sizes)):
            raise ValueError(f"--count {options.count} contradicts {len(options.sizes)} times --sizes")
        return [admissible_sizes(symbols, sizes) for sizes in options.sizes]
    if options.random:
        return [random_sizes(symbols, generator("random sizes", options.seed, i)) for i in range(options.count or 50)]
    quantiles = options.quantiles
    if quantiles is None:
        quantiles = np.linspace(0, 1, options.count or 10).tolist()
    elif options.count not in (None, len(quantiles)):
        raise ValueError(f"--count {options.count} contradicts the {len(quantiles)} values of --quantiles")
    return quantile_sizes(symbols, quantiles, options.seed)


def choose_files(options: argparse.Namespace) -> Files | None:
    """The files that contents are to come from, None where they are to be generated."""
    model = find(options.model, options.variant)
    if options.data is not None:
        return of_folder(options.data, model, options.variant)
    return None if options.generated else installed(model, options.variant)


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError(text)
    return value


def _quantiles(text: str) -> list[float]:
    return [float(part) for part in text.split(",")]


def _sizes(text: str) -> dict[str, int]:
    return {symbol: int(value) for symbol, value in (part.split("=") for part in text.split(","))}


_positive.__name__ = "positive integer"  # argparse names the type in its messages
_quantiles.__name__ = "list of numbers"
_sizes.__name__ = "list of SYMBOL=VALUE"


def main(arguments: list[str] | None = None) -> int:
    """Draw and write the samples; the status is 2, with one sentence on stderr, when the arguments cannot be used."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help=", ".join(sorted(MODELS)))
    parser.add_argument("out", type=Path, help="samples file to write, .npz")
    parser.add_argument("--variant", default="full", help="full, tiny, or another one of the model")
    parser.add_argument("--count", type=_positive, help="number of samples (10 at quantiles, 50 at random)")
    parser.add_argument("--seed", type=int, default=0)
    origin = parser.add_mutually_exclusive_group()
    origin.add_argument("--data", type=Path, help="folder of pictures, recordings or code to take contents from")
    origin.add_argument("--generated", action="store_true", help="take no contents from installed packages")
    protocol = parser.add_mutually_exclusive_group()
    protocol.add_argument("--quantiles", type=_quantiles, help="quantiles of the size distribution, comma-separated")
    protocol.add_argument("--sizes", type=_sizes, action="append", help="e.g. H=224,W=320; repeatable")
    protocol.add_argument("--random", action="store_true", help="draw sizes uniformly (the paper's protocol)")
    options = parser.parse_args(arguments)
    try:
        if not options.out.parent.is_dir():
            raise ValueError(f"folder {str(options.out.parent)!r} of the samples file does not exist")
        sizes = choose_sizes(options)
        write(options.out, draw(options.model, options.variant, sizes, options.seed, choose_files(options)))
    except (ValueError, OSError) as error:
        print(f"sample.py: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
