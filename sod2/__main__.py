"""Command line of the compiler: compile, run, explain, memory, bench, tune. `sod2 COMMAND --help` tells the rest."""

import argparse
import statistics
import sys
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from sod2 import checking, compiler, footprint, roofline, timeline, tune, versions
from sod2.artifact import CompiledModel, load, read_manifest
from sod2.codegen import crosscompilers
from sod2.codegen.target import cross, host
from sod2.compiler import Options, Plan
from sod2.errors import Error, InputError
from sod2.graph import Array
from sod2.lattice import Nac, Undef, kind
from sod2.rdp import Analysis


def _options(arguments: argparse.Namespace) -> Options:
    return Options(
        fusion=arguments.fusion,
        sep=not arguments.no_sep,
        dmp=not arguments.no_dmp,
        mvc=not arguments.no_mvc,
        control=arguments.control,
        weight_budget=arguments.weight_budget,
        tolerance=arguments.tolerance,
        scratch_budget=_bytes(arguments.scratch_budget) or 0,
    )


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--fusion", choices=("none", "static", "rdp"), default="rdp", help="facts that fusion may use")
    parser.add_argument("--no-sep", action="store_true", help="keep the file's order of execution")
    parser.add_argument("--no-dmp", action="store_true", help="place buffers by best fit in order of first use")
    parser.add_argument("--no-mvc", action="store_true", help="one version of each hot kernel")
    parser.add_argument("--control", choices=("switch", "all"), default="switch", help="run the taken branch, or all")
    _add_budgets(parser)
    parser.add_argument(
        "--scratch-budget",
        metavar="BYTES",
        help="by how much scratch may raise the peak where kernels are faster, as 1MB",
    )


def _add_budgets(parser: argparse.ArgumentParser) -> None:
    """What versions of convolutions are chosen within."""
    parser.add_argument(
        "--weight-budget",
        type=float,
        default=Options.weight_budget,
        help="packed weights, as a multiple of the raw ones",
    )
    parser.add_argument(
        "--tolerance",
        type=float,
        default=Options.tolerance,
        help="error that faster convolutions may add, as a part of an output's scale",
    )


_BUDGET = "most bytes of the arena, such as 64MB or 64MiB: tensors are computed twice for it, or a shape is refused"
AddParser = Callable[..., argparse.ArgumentParser]  # of the commands


def _file(text: str) -> Path:
    """The path of a file to be written."""
    path = Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is a folder; the name of a file is expected")
    return path


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sod2", description="Compile and run neural networks of dynamic shape and control flow."
    )
    add_parser = parser.add_subparsers(dest="command", required=True).add_parser

    compile_ = add_parser("compile", help="compile an ONNX model into an artifact folder")
    compile_.add_argument("model", type=Path)
    compile_.add_argument("-o", "--output", type=Path, required=True, help="artifact folder; replaced when it exists")
    compile_.add_argument("--target", choices=tuple(crosscompilers.SYSTEMS), help="another machine; default: this one")
    compile_.add_argument("--cpu", help="its core by the C compiler's name, e.g. cortex-x1; default: any")
    compile_.add_argument("--cc", help="command of the cross-compiler; default: the first that is found")
    compile_.add_argument("--tuned", type=Path, help="block sizes of kernels that `sod2 tune` found for the machine")
    compile_.add_argument("--memory-budget", metavar="SIZE", help=_BUDGET)
    _add_options(compile_)

    _add_reports(add_parser)

    run = add_parser("run", help="run a model or artifact once and print or save its outputs")
    run.add_argument("model", type=Path, help="an .onnx file or an artifact folder")
    run.add_argument(
        "inputs", nargs="*", metavar="NAME=FILE.npy|NAME=DxDx...", help="a file, or a shape for random data"
    )
    run.add_argument("-o", "--output", type=_file, help="write the outputs to this .npz file")
    run.add_argument("--threads", type=int, default=1)
    run.add_argument(
        "--check", action="store_true", help="compare every predicted shape with the one found (an .onnx file)"
    )

    bench = add_parser("bench", help="time a model at given input shapes")
    bench.add_argument("model", type=Path, help="an .onnx file or an artifact folder")
    bench.add_argument("inputs", nargs="*", metavar="NAME=FILE.npy|NAME=DxDx...")
    bench.add_argument("--threads", type=int, default=1)
    bench.add_argument("--repeats", type=int, default=20)

    for command in (run, bench):
        command.add_argument("--profile", action="store_true", help="print every step, and how near its limit it is")
        command.add_argument("--timeline", type=_file, help="the same and the live bytes as a file for ui.perfetto.dev")
    _add_tune(add_parser)
    return parser


def _add_reports(add_parser: AddParser) -> None:
    """What is told without a run."""
    explain = add_parser("explain", help="show what the analysis proves about every tensor, and the plans")
    explain.add_argument("model", type=Path)
    explain.add_argument(
        "--fusion", action="store_true", dest="show_fusion", help="groups, and why others were not fused"
    )
    explain.add_argument("--memory", action="store_true", help="buffers with symbolic sizes and live ranges")
    explain.add_argument(
        "--versions", action="store_true", help="versions of convolutions, their error, and what larger budgets save"
    )
    _add_budgets(explain)
    explain.add_argument("--memory-budget", metavar="SIZE", help="--memory, and of the plans that need less")
    explain.add_argument("--control", choices=("switch", "all"), default="switch")

    memory = add_parser("memory", help="memory over a range of input sizes, before anything runs")
    memory.add_argument("model", type=Path, help="an .onnx file")
    memory.add_argument(
        "--range", nargs="+", default=[], metavar="SYMBOL=LOW:HIGH[:STEP]", help="one for each symbol of the input dims"
    )
    memory.add_argument("--budget", metavar="SIZE", help="say which sizes fit so many bytes, such as 64MB or 64MiB")
    memory.add_argument("--png", type=_file, help="draw the arena over one symbol or two into this file")
    memory.add_argument("--threads", type=int, default=1, help="scratch of some kernels grows with the threads")
    _add_options(memory)


def _add_tune(add_parser: AddParser) -> None:
    tuning = add_parser("tune", help="search the block sizes of kernels that are best for a model here")
    tuning.add_argument("model", type=Path, help="an .onnx file")
    tuning.add_argument("inputs", nargs="*", metavar="NAME=FILE.npy|NAME=DxDx...")
    tuning.add_argument(
        "-o", "--output", type=_file, required=True, help="what is found, for compile --tuned; continued when it exists"
    )
    tuning.add_argument("--threads", type=int, default=1)
    tuning.add_argument("--candidates", type=int, default=60, help="how many are measured, those of the file included")
    _add_options(tuning)


def _opened(path: Path, threads: int) -> CompiledModel:
    """A loaded artifact, compiled first when the path is a model file."""
    return load(path, threads) if path.is_dir() else compiler.compile(path, threads=threads)


def _inputs(model: CompiledModel, given: Sequence[str]) -> dict[str, Array]:
    """Arrays from NAME=FILE.npy or NAME=shape; random ones are reproducible."""
    declared = {t["name"]: np.dtype(t["dtype"]) for t in model.manifest["inputs"]}
    arrays: dict[str, Array] = {}
    for text in given:
        name = max((n for n in declared if text.startswith(f"{n}=")), key=len, default=None)  # both may have a "="
        if name is None:
            named = text.rpartition("=")[0] or text
            raise InputError(f"the model has no input {named!r}; its inputs are {', '.join(map(repr, declared))}")
        if name in arrays:
            raise InputError(f"input {name!r} is given again as {text!r}; one value is accepted")
        arrays[name] = _array(name, text[len(name) + 1 :], declared[name])
    return arrays


def _array(name: str, value: str, dtype: np.dtype[np.generic]) -> Array:
    if value.endswith(".npy"):
        if not Path(value).is_file():
            raise InputError(f"input {name!r}: file {value!r} does not exist")
        try:
            with Path(value).open("rb") as file:
                return np.asarray(np.lib.format.read_array(file))
        except (ValueError, EOFError) as error:
            raise InputError(f"input {name!r}: {value!r} is not a readable .npy file ({error})") from None
    sizes = value.split("x") if value else []
    if not all(d.isdecimal() for d in sizes):
        raise InputError(f"input {name!r}: {value!r} is neither an .npy file nor a shape such as 1x3x224x224")
    shape = [int(d) for d in sizes]
    random = np.random.default_rng(0)
    try:
        return random.standard_normal(shape).astype(dtype) if dtype.kind == "f" else np.ones(shape, dtype)
    except (ValueError, MemoryError):
        raise InputError(f"input {name!r}: there is no memory for an array of {value}; give a smaller shape") from None


def _compile(arguments: argparse.Namespace) -> None:
    started = time.perf_counter()
    if arguments.target is None and (arguments.cpu or arguments.cc):
        raise Error("--cpu and --cc describe another machine: give --target too")
    target = cross(arguments.target, arguments.cpu, arguments.cc) if arguments.target else host()
    if arguments.tuned:
        target = replace(target, tuned=tune.read(arguments.tuned))
    options = replace(_options(arguments), memory_budget=_bytes(arguments.memory_budget))
    out = compiler.build(arguments.model, options, target, arguments.output)
    manifest = read_manifest(out)
    print(
        f"{out}: {manifest['steps']} steps, {manifest['kernels']} generated kernels, "
        f"{manifest['weight_bytes'] / 2**20:.1f} MiB of weights, {manifest['error']:.0e} error by versions, "
        f"{_leaner(manifest)}"
        f"{time.perf_counter() - started:.1f} s"
    )


def _bytes(text: str | None) -> int | None:
    return None if text is None else footprint.parse_bytes(text)


def _leaner(manifest: Mapping[str, Any]) -> str:
    """How many plans a memory budget may choose from beside the plain one."""
    if manifest["options"]["memory_budget"] is None:
        return ""
    steps = ", ".join(str(table["steps"]) for table in manifest["tables"])
    return f"leaner plans of {steps} steps, " if steps else "no leaner plan, "


def _run(arguments: argparse.Namespace) -> None:
    model = _opened(arguments.model, arguments.threads)
    inputs = _inputs(model, arguments.inputs)
    outputs = model.run(inputs)
    for name, array in outputs.items():
        print(
            f"{name}: {array.dtype}{list(array.shape)}, mean {array.mean():.6g}"
            if array.size
            else f"{name}: {array.dtype}{list(array.shape)}"
        )
    _show_steps(model, inputs, arguments, 1)
    if arguments.check:
        _check(arguments.model, inputs, outputs)
    if arguments.output:
        _save(outputs, arguments.output)


def _save(outputs: Mapping[str, Array], path: Path) -> None:
    """A file as np.savez writes it, which takes no array that is called `file`."""
    partial = path.with_name(f"{path.name}.tmp.npz")
    with zipfile.ZipFile(partial, "w") as archive:
        for name, array in outputs.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, array, allow_pickle=False)
    partial.rename(path)


def _check(path: Path, inputs: dict[str, Array], outputs: dict[str, Array]) -> None:
    """Print the self-check of a run and how far its outputs are from the reference; an Error for a wrong prediction."""
    if path.is_dir():
        raise Error(f"{str(path)!r} is an artifact, in which no analysis is; --check takes the .onnx file")
    report = checking.check(compiler.analyze(path), inputs)
    print(report)
    for name, array in outputs.items():
        wanted = report.values[name]
        scale = float(np.abs(wanted, dtype=np.float64).max(initial=0)) or 1.0
        apart = float(np.abs(array.astype(np.float64) - wanted).max(initial=0)) / scale
        print(f"{name}: {apart:.1e} of its scale away from the reference")
    if report.wrong:
        raise Error(f"{len(report.wrong)} predictions of {str(path)!r} are wrong")


def _show_steps(model: CompiledModel, inputs: dict[str, Array], arguments: argparse.Namespace, repeats: int) -> None:
    """What --profile and --timeline ask for."""
    if arguments.profile:
        print(*roofline.report(*roofline.measure(model, inputs, repeats)), sep="\n")
    if arguments.timeline:
        timeline.write(timeline.trace(model, inputs, repeats), arguments.timeline)


def _tensor_lines(analysis: Analysis) -> Iterator[str]:
    """One line per tensor: shape, class of the lattice, dynamism of its operator, and what blocked a nac."""
    for value in analysis.graph.inputs:
        yield f"{value.name}: {analysis[value.name]}  input"
    for node in analysis.graph.nodes:
        dynamism = analysis.dynamism(node).name
        for tensor in node.outputs:
            if tensor:
                reason = f"  blocked by {analysis.reasons[tensor]}" if tensor in analysis.reasons else ""
                yield f"{tensor}: {analysis[tensor]}  {_class(analysis, tensor)}  {node.op} {dynamism}{reason}"


def _class(analysis: Analysis, tensor: str) -> str:
    """The weakest class among the dims: a tensor is known only as far as all of them are."""
    shape = analysis[tensor].shape
    if isinstance(shape, Nac | Undef):
        return str(shape)
    order = ("undef", "nac", "op-inferred constant", "symbolic constant", "known constant")
    return min((kind(d) for d in shape), key=order.index, default="known constant")


def _version_lines(plan: Plan, options: Options) -> Iterator[str]:
    """Versions of each convolution, their error, and how much of the expected time larger budgets would save."""
    target = host()
    layers = list(versions.layers(plan.fusion.groups, plan.analysis, target.tile))
    kept = compiler.kept_versions(plan, options, target)
    for layer in layers:
        yield f"{layer.name}: {', '.join(kept[layer.name])}"
    yield f"error expected of them: {versions.model_error(plan.graph, kept):.1e} of the outputs' scale"
    time = sum(layer.cost(kept[layer.name]) for layer in layers)
    for name in ("weight_budget", "tolerance"):
        larger = compiler.kept_versions(plan, replace(options, **{name: 2 * getattr(options, name)}), target)
        saved = time - sum(layer.cost(larger[layer.name]) for layer in layers)
        yield f"twice the {name}: {saved / max(time, 1):.1%} less time for them"


def _explain(arguments: argparse.Namespace) -> None:
    options = Options(
        control=arguments.control,
        weight_budget=arguments.weight_budget,
        tolerance=arguments.tolerance,
        memory_budget=_bytes(arguments.memory_budget),
    )
    asked = arguments.show_fusion or arguments.memory or arguments.memory_budget or arguments.versions
    plan = compiler.plan(arguments.model, options) if asked else None
    if plan is not None and arguments.show_fusion:
        print(plan.fusion)
    if plan is not None and (arguments.memory or arguments.memory_budget):
        print(plan.storage, *plan.tables, sep="\n")
    if plan is not None and arguments.versions:
        print("\n".join(_version_lines(plan, options)))
    if plan is None:
        analysis = compiler.analyze(arguments.model, arguments.control)
        print("\n".join(_tensor_lines(analysis)))
        for minted in analysis.minted.values():
            print(f"minted {minted}")
        for r in analysis.requirements:
            told = analysis.minted.keys().isdisjoint(r.left.symbols() | r.right.symbols())
            print(f"requires {r}" if told else f"requires at run time {r}")


def _memory(arguments: argparse.Namespace) -> None:
    options = _options(arguments)
    budget = _bytes(arguments.budget)
    plan = compiler.plan(arguments.model, options)
    ranges = footprint.parse_ranges(arguments.range, plan.analysis.symbols)
    print(f"live peak, any path:          {footprint.formula(plan.storage).live_peak} bytes")
    print(f"live peak, outside branches:  {footprint.outside_branches(plan.storage)} bytes")
    model = compiler.compile(arguments.model, options, arguments.threads)
    found = footprint.scan(model, plan.analysis, ranges)
    worst = found.worst
    where = ", ".join(f"{k}={v}" for k, v in worst.symbols.items())
    print(f"largest arena:                {(worst.arena or 0) / 2**20:.2f} MiB at {where or 'the only size'}")
    step = footprint.largest_step(plan.storage, plan.analysis, worst.symbols)
    print(f"of it, the largest step's:    {step / 2**20:.2f} MiB, below which no order and no placement is")
    print(f"packed weights:               {model.stats.weight_bytes / 2**20:.2f} MiB")
    print(f"{len(found.points)} sizes were tried; {sum(p.arena is None for p in found.points)} the model refuses")
    if budget is not None:
        fitting = found.fitting(budget)
        if not plan.storage.blocks:  # outside the arena no budget can be kept
            lean = compiler.compile(arguments.model, replace(options, memory_budget=budget), arguments.threads)
            fitting = footprint.by_table(lean, footprint.scan(lean, plan.analysis, ranges))
        print(f"within {arguments.budget}:", *fitting, sep="\n  ")
    if arguments.png:
        footprint.draw(found, arguments.png, plan.graph.name, budget)


def _bench(arguments: argparse.Namespace) -> None:
    model = _opened(arguments.model, arguments.threads)
    inputs = _inputs(model, arguments.inputs)
    model.run(inputs)
    first = model.stats.bind_ns
    times = []
    for _ in range(max(1, arguments.repeats)):
        started = time.perf_counter_ns()
        model.run(inputs)
        times.append((time.perf_counter_ns() - started) / 1e6)
    stats = model.stats
    print(
        f"{len(times)} runs, {stats.threads} threads: median {statistics.median(times):.3f} ms, "
        f"min {min(times):.3f}, max {max(times):.3f}"
    )
    print(
        f"bind {first / 1e3:.0f} us, arena {stats.arena_bytes / 2**20:.2f} MiB, "
        f"live peak {stats.live_bytes / 2**20:.2f} MiB"
    )
    _show_steps(model, inputs, arguments, arguments.repeats)


def _tune(arguments: argparse.Namespace) -> None:
    options, target = _options(arguments), host()
    inputs = _inputs(compiler.compile(arguments.model, options, arguments.threads), arguments.inputs)
    emission = compiler.emit(arguments.model, options, target)
    measure = tune.measuring(emission, asdict(options), inputs, arguments.threads)
    subject = tune.subject(arguments.model.name, inputs, arguments.threads, target)
    macros = tune.used("\n".join(emission.functions))
    search = tune.Search(arguments.output, subject, tune.shipped(target), measure, macros)
    best = search.run(arguments.candidates, lambda line: print(line, flush=True))
    print(f"{arguments.output}: {search.changes(best.values) or 'the shipped values'}, {best.cost:.3f} of their time")


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; errors of the user end in one sentence and status 1."""
    arguments = _parser().parse_args(argv)
    commands = {
        "compile": _compile,
        "run": _run,
        "explain": _explain,
        "memory": _memory,
        "bench": _bench,
        "tune": _tune,
    }
    try:
        commands[arguments.command](arguments)
    except (Error, OSError) as error:
        print(f"sod2: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
