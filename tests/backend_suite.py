"""ONNX's own node tests (onnx.backend.test), compiled and run: with their dims as given, and with every one a symbol.

Decides a verdict for each case: None when all outputs are the expected ones within the case's own tolerance, else one
sentence. Cases are those that numpy can feed: tensors of numbers, bfloat16 or text; no sequences, optionals and types
of less than a byte. They are compiled in batches; each runs in a process of its own, so that a crash is a verdict too.

The length of an input that holds a shape or axes is the rank of something, and so is the last dim of the indices of
GatherND: these stay as they are.

    python -m tests.backend_suite             compare with the list of refusals, tests/backend_refusals.txt
    python -m tests.backend_suite --write     write that list anew
    python -m tests.backend_suite test_add    the verdicts of the cases named
"""

import argparse
import functools
import json
import os
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx.backend.test.case.test_case import TestCase
from onnx.backend.test.loader import load_model_tests

import sod2
from sod2.artifact import CompiledModel
from sod2.ops import OPS
from tests.batch import Batch, prepare

REFUSALS = Path(__file__).with_name("backend_refusals.txt")
MODES = ("fixed", "symbolic")
BATCH = 64  # models compiled together


@dataclass(frozen=True)
class Run:
    """One case in one mode."""

    name: str
    mode: str

    def __str__(self) -> str:
        return f"{self.name} {self.mode}"

    def model(self) -> onnx.ModelProto:
        """The model to compile."""
        given = cases()[self.name].model
        if self.mode == "fixed":
            return given
        operator = cases().get(self.name.split("_expanded")[0])  # the one whose definition the case is
        return symbolic(given, [*given.graph.node, *(operator.model.graph.node if operator else ())])


@functools.cache
def cases() -> dict[str, TestCase]:
    """The cases that numpy can feed, by name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loaded = load_model_tests(kind="node")
    return {case.name: case for case in loaded if all(_is_array(a) for a in _arrays(case))}


def _arrays(case: TestCase) -> list[object]:
    return [array for inputs, outputs in case.data_sets for array in (*inputs, *outputs)]


def _is_array(array: object) -> bool:
    return isinstance(array, np.ndarray | np.generic)


def runs() -> list[Run]:
    """Every case in both modes."""
    return [Run(name, mode) for name in sorted(cases()) for mode in MODES]


def symbolic(model: onnx.ModelProto, readers: Sequence[onnx.NodeProto]) -> onnx.ModelProto:
    """The model with a symbol of its own for every dim of every input, and nothing declared of other tensors.

    `readers` tell which inputs hold a shape.
    """
    renamed = onnx.ModelProto()
    renamed.CopyFrom(model)
    del renamed.graph.value_info[:]
    ranks = {t for node in readers for t in _shape_inputs(node)}
    depths = {node.input[1] for node in readers if node.op_type == "GatherND"}
    for number, value in enumerate(renamed.graph.input):
        if value.name in ranks:
            continue
        dims = value.type.tensor_type.shape.dim
        for axis, dim in enumerate(dims[:-1] if value.name in depths else dims):
            dim.dim_param = f"d{number}_{axis}"
    for value in renamed.graph.output:
        value.type.tensor_type.ClearField("shape")
    return renamed


def _shape_inputs(node: onnx.NodeProto) -> list[str]:
    op = OPS.table.get((node.domain, node.op_type))
    return [node.input[i] for i in (op.shape_inputs if op else ()) if i < len(node.input)]


def _check(case: TestCase, compiled: CompiledModel) -> str:
    """What is wrong with the outputs; nothing when they are the expected ones."""
    names = [v.name for v in case.model.graph.input]
    try:
        for inputs, outputs in case.data_sets:
            found = compiled.run({n: np.asarray(a) for n, a in zip(names, inputs, strict=True)})
            for array, wanted in zip(found.values(), outputs, strict=True):
                _compare(array, np.asarray(wanted), case)
    except (sod2.Error, AssertionError) as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())}"
    return ""


def _compare(found: np.ndarray, wanted: np.ndarray, case: TestCase) -> None:
    assert found.dtype == wanted.dtype, f"dtype {found.dtype} instead of {wanted.dtype}"
    assert found.shape == wanted.shape, f"shape {found.shape} instead of {wanted.shape}"
    if found.dtype.name == "bfloat16":
        found, wanted = found.astype(np.float32), wanted.astype(np.float32)
    np.testing.assert_allclose(found, wanted, rtol=case.rtol, atol=case.atol)


def in_a_process(function: Callable[[], str]) -> str:
    """The text that a function gives in a forked process; a sentence when that process dies."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        try:
            text = function()
        except BaseException as error:  # the child must not return into its parent's code; the parent reports it
            text = f"{type(error).__name__} is no error of ours: {error}"
        with os.fdopen(write, "w") as pipe:
            pipe.write(text)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    return f"the process ended with status {status}" if status else text


def _batch(selected: Sequence[Run]) -> dict[Run, str | None]:
    """The verdicts of some cases, compiled together."""

    def work() -> str:
        with tempfile.TemporaryDirectory() as folder:
            batch = Batch(Path(folder), {str(run): run.model() for run in selected})
            found = dict(batch.problems)
            for run in selected:
                if str(run) in batch.numbers:
                    found[str(run)] = in_a_process(lambda run=run: _check(cases()[run.name], batch.load(str(run))))
            return json.dumps(found)

    text = in_a_process(work)
    if not text.startswith("{"):
        return dict.fromkeys(selected, text)
    found = json.loads(text)
    return {run: " ".join(found[str(run)].split())[:200] or None for run in selected}


def verdicts(selected: Sequence[Run], workers: int = 2) -> dict[Run, str | None]:
    """For each run None when it passes, else the sentence that says why not."""
    cases()
    prepare()
    parts = [selected[k : k + BATCH] for k in range(0, len(selected), BATCH)]
    with ThreadPoolExecutor(workers) as pool:
        return {run: text for found in pool.map(_batch, parts) for run, text in found.items()}


def refusals() -> dict[Run, str]:
    """The verdicts that are expected, from the list in the repository."""
    lines = (line.split(" ", 2) for line in REFUSALS.read_text().splitlines() if not line.startswith("#"))
    return {Run(name, mode): text for name, mode, text in lines}


def surprises(selected: Sequence[Run]) -> list[str]:
    """What differs from the list: a case that fails although it should pass, or passes although it should not."""
    expected = refusals()
    found = []
    for run, text in verdicts(selected).items():
        if (text is None) != (run not in expected):
            found.append(f"{run}: {text or f'passes, but is listed: {expected[run]}'}")
    return found


def _write(found: Iterable[tuple[Run, str | None]]) -> None:
    lines = ["# Cases of the ONNX node suite that are not met, and why: python -m tests.backend_suite --write"]
    lines += [f"{run} {text}" for run, text in found if text]
    REFUSALS.write_text("\n".join(lines) + "\n")


def _main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.backend_suite", description=__doc__)
    parser.add_argument("names", nargs="*", help="cases to run; all by default")
    parser.add_argument("--write", action="store_true", help="write the list of refusals anew")
    options = parser.parse_args(arguments)
    selected = [run for run in runs() if not options.names or run.name in options.names]
    started = time.monotonic()
    found = verdicts(selected)
    for mode in MODES:
        passed = Counter(text is None for run, text in found.items() if run.mode == mode)
        print(f"{mode}: {passed[True]} of {passed[True] + passed[False]} pass")
    print(f"{time.monotonic() - started:.0f} s")
    if options.write:
        _write(found.items())
        return 0
    for run, text in found.items():
        if options.names or (text is None) != (run not in refusals()):
            print(f"{run}: {text or 'passes'}")
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
