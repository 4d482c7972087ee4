"""Compile an ONNX file for TVM's Relax VM, by the Python of TVM's environment:

    python tvm_compile.py model.onnx model.so THREADS scheduled|stock [TRIPLE CORE LINKER...]

For this machine, or by cross-compilation for another one, whose linker takes a C compiler's `-shared -o OUT OBJECTS`.

Writes the library, and model.json: {"dims": [[input, axis, factor], ...], "scheduled", "unscheduled": [names of the
functions that keep TVM's own code]}. The VM cannot solve 32 h for h, so symbols that occur only multiplied are one more
argument of `main`, a shape; "dims" says how to get each from the inputs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import onnx
import tvm  # type: ignore[import-not-found]
from tvm import relax, tirx  # type: ignore[import-not-found]
from tvm.target import codegen  # type: ignore[import-not-found]
from tvm_import import import_model, symbols  # type: ignore[import-not-found]
from tvm_schedules import LEGALIZE, apply  # type: ignore[import-not-found]


def add_dims(module: Any) -> list[list[int]]:
    """Give `main` a last argument with the symbols that no dim of an input is; returns how to compute each."""
    main = module["main"]
    shapes = [list(parameter.ty.shape) for parameter in main.params]
    plain = [dim for shape in shapes for dim in shape if isinstance(dim, tvm.ir.Var)]
    hidden = [s for s in symbols([p.ty for p in main.params]) if not any(s.same_as(dim) for dim in plain)]
    if not hidden:
        return []
    dims = relax.Var("dims", relax.ShapeType(hidden))
    module["main"] = relax.Function(
        [*main.params, dims], main.body, main.ret_ty, is_pure=main.is_pure, attrs=main.attrs
    )
    return [_source(symbol, shapes) for symbol in hidden]


def _source(symbol: Any, shapes: list[list[Any]]) -> list[int]:
    """[input, axis, factor] of a dim that is the symbol times a factor."""
    for k, shape in enumerate(shapes):
        for axis, dim in enumerate(shape):
            linear = tvm.sym.detect_linear_equation(dim, [symbol])  # [factor, rest], or [] when it is not
            if len(linear) == 2 and all(isinstance(part, tirx.IntImm) for part in linear):
                factor, rest = (int(part) for part in linear)
                if factor > 0 and rest == 0:
                    return [k, axis, factor]
    raise NotImplementedError(f"symbol '{symbol.name}' of the inputs' shapes occurs in no dim as a plain multiple")


def processor(machine: list[str]) -> dict[str, str]:
    """TVM's words for the processor: this machine's, or that of [triple, core, ...]."""
    if not machine:
        return {"mcpu": codegen.llvm_get_system_cpu()}
    return {"mtriple": machine[0], "mcpu": machine[1]}


def compile_model(
    model: onnx.ModelProto, threads: int, scheduled: bool, machine: list[str]
) -> tuple[Any, dict[str, Any]]:
    """The executable, and the facts for model.json."""
    target = tvm.target.Target({"kind": "llvm", **processor(machine), "num-cores": threads})
    module = import_model(model)
    facts: dict[str, Any] = {"dims": add_dims(module), "scheduled": scheduled, "unscheduled": []}
    t = relax.transform
    # TVM shares common subexpressions of sizes through a variable of floats, at which its own code generator fails
    # (bilinear Resize to symbolic sizes); LLVM shares them again.
    with target, tvm.transform.PassContext(config={"tirx.disable_cse_tir": True}):
        for step in (
            t.ConvertToDataflow(),  # the importer does it for `main` alone, and only dataflow is fused
            t.DecomposeOpsForInference(),
            t.CanonicalizeBindings(),
            t.FoldConstant(),
            t.LegalizeOps(dict(LEGALIZE) if scheduled else None),
            t.AnnotateTIROpPattern(),
            t.FoldConstant(),  # packs the weights
            t.FuseOps(),
            t.FuseTIR(),
            t.DeadCodeElimination(),
        ):
            module = step(module)
        if scheduled:
            facts["unscheduled"] = apply(module)
        return _build(module, target), facts


def _build(module: Any, target: Any) -> Any:
    """The executable; reshapes of intermediates are copies where TVM cannot prove the sizes of some divisible."""
    try:
        relax.transform.RewriteDataflowReshape()(module)  # by itself, as a question; the build does it again
    except tvm.error.InternalError:
        context = tvm.transform.PassContext.current()
        with tvm.transform.PassContext(config=context.config, disabled_pass=["RewriteDataflowReshape"]):
            return tvm.compile(module, target=target)
    return tvm.compile(module, target=target)


def linker(command: Sequence[str]) -> Callable[[str, Sequence[str]], None]:
    """What TVM calls to link objects into a library; its own takes no command of several words."""

    def link(out: str, objects: Sequence[str]) -> None:
        subprocess.run([*command, "-shared", "-o", out, *objects], check=True)

    return link


def main(arguments: list[str]) -> None:
    """Compile one file."""
    source, out, threads, pipeline, *machine = arguments
    executable, facts = compile_model(onnx.load(source), int(threads), pipeline == "scheduled", machine)
    executable.export_library(out, fcompile=linker(machine[2:]) if machine else None)
    Path(out).with_suffix(".json").write_text(json.dumps(facts) + "\n")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except Exception:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)  # before destructors warn of what is left unfinished: the error stays the last line
