"""model.c: steps, tables and the functions through which the runtime binds shapes and runs (runtime/program.h)."""

from collections.abc import Sequence
from pathlib import Path
from string import Template

import onnx

from sod2.admissible import affine
from sod2.codegen import stream
from sod2.codegen.elements import c_type
from sod2.codegen.steps import Emission, c_string
from sod2.graph import Guard
from sod2.storage import Copy, Materialize, Step
from sod2.symbolic import Dim

_MODEL = Template((Path(__file__).parent / "templates" / "model.c.in").read_text())


def emit(emission: Emission) -> None:
    """Write every step of the plan into the emission."""
    for number, step in enumerate(emission.storage.steps):
        if isinstance(step, Copy):
            emission.copy(number, step)
        elif isinstance(step, Materialize):
            emission.materialize(number, step)
        elif step.lead is not None:
            stream.emit(emission, number, step.lead, step)
        elif step.anchor is not None:
            emission.anchor(number, step, step.anchor)
        else:
            emission.elements(number, step)
    for tensor in emission.analysis.graph.outputs:  # a constant one is among the weights, digested next
        emission.analysis.dims(tensor)
        emission.address(tensor)
    for tensor in (*(v.name for v in emission.analysis.graph.inputs), *emission.analysis.graph.outputs):
        c_type(emission.analysis[tensor].dtype)  # raises for one that C has not


def source(emission: Emission, digest: str, peak_first: bool) -> str:
    """The text of model.c; `digest` names the weights it was generated with."""
    analysis, storage = emission.analysis, emission.storage
    graph = analysis.graph
    ranges = [(b.first, b.last) for b in storage.buffers] + [(k, k) for _, k in emission.scratch]
    dims, guards = _dim_rules(emission), _guards(emission)
    results = _results(emission)  # before the sizes are written: it adds to them
    return _MODEL.substitute(
        name=_comment(graph.name),
        quoted=c_string(graph.name),
        kernels="\n".join(text.replace("@name@", name) for text, name in emission.kernels.items()),
        steps="\n".join(emission.functions),
        run=_run(storage.steps, emission),
        sizers="\n".join(emission.sizers.values()),
        sizes=_sizes(emission),
        dims="".join(f"{d}, " for d in dims),
        dim_count=len(dims),
        guards="".join(f"{c_string(text)}, " for text, _ in guards),
        guard_count=len(guards),
        sides="".join(f"  if (index == {k}) {{ {sides} }}\n" for k, (_, sides) in enumerate(guards)),
        results=results,
        ranges=", ".join(f"{{{first}, {last}}}" for first, last in ranges) or "{0}",
        tables=_tables(emission),
        weight_bytes=emission.weights.size,
        weight_digest=digest,
        inputs=len(graph.inputs),
        outputs=len(graph.outputs),
        symbols=len(analysis.symbols),
        choice_count=emission.choices,
        choices=emission.choices + len(emission.expressions),
        buffers=len(ranges),
        step_count=len(storage.steps),
        peak_first=int(peak_first),
    )


def _comment(text: str) -> str:
    return text.encode("ascii", "replace").decode().replace("*/", "")


def _guard_of(step: Step) -> Guard:
    return () if isinstance(step, Materialize) else step.guard


def _run(steps: Sequence[Step], emission: Emission) -> str:
    """Calls of the steps, nested in one `if` per contiguous branch."""
    lines: list[str] = []
    checks = _branch_checks(emission)
    open_guard: Guard = ()
    for number, step in enumerate(steps):
        guard = _guard_of(step)
        common = 0
        while common < min(len(guard), len(open_guard)) and guard[common] == open_guard[common]:
            common += 1
        for depth in range(len(open_guard), common, -1):
            lines.append(f"{'  ' * depth}}}")
        for depth in range(common, len(guard)):
            predicate, branch = guard[depth]
            test = f"*(const uint8_t *){emission.address(predicate)}"
            lines.append(f"{'  ' * (depth + 1)}if ({'' if branch else '!'}{test}) {{")
            lines += [f"{'  ' * (depth + 2)}{check}" for check in checks.get(guard[: depth + 1], ())]
        open_guard = guard
        lines.append(f"{'  ' * (len(guard) + 1)}SOD2_RUN({number}, step_{number});")
    lines += [f"{'  ' * depth}}}" for depth in range(len(open_guard), 0, -1)]
    return "".join(f"{line}\n" for line in lines)


def _sizes(emission: Emission) -> str:
    buffers, steps = len(emission.storage.buffers), len(emission.storage.steps)
    lines = [f"plan[CHOICES + {k}] = {emission.formula(d)};" for d, k in emission.expressions.items()]
    lines += [f"bytes[{k}] = {emission.formula(b.size)};" for k, b in enumerate(emission.storage.buffers)]
    if emission.sizers:
        lines.append(f"int64_t allowance[{steps + 1}];")
        lines.append(f"sod2_allowances({buffers}, {steps}, ranges, bytes, allowance);")
    arguments = "sym, weights, threads, plan, bytes"
    lines += [f"bind_{number}({arguments}, allowance[{number}]);" for number in emission.sizers]
    return "".join(f"  {line}\n" for line in lines)


def _dim_rules(emission: Emission) -> list[str]:
    """One entry per symbolic input dim: position among all dims, input, axis, symbol, scale, base, text."""
    rules, position = [], 0
    for k, value in enumerate(emission.analysis.graph.inputs):
        for axis, dim in enumerate(value.shape or ()):
            if not dim.is_constant:
                name, scale, base = affine(dim)
                number = emission.symbols[name]
                rules.append(f"{{{position}, {k}, {axis}, {number}, {scale}, {base}, {c_string(str(dim))}}}")
            position += 1
    return rules


def _guards(emission: Emission) -> list[tuple[str, str]]:
    """Text and C of each requirement that every run has to meet."""
    known = set(emission.symbols)
    found = []
    for r in emission.analysis.requirements:
        if r.guard or not (r.left.symbols() | r.right.symbols()) <= known:
            continue
        sides = f"*left = {emission.formula(r.left)}; *right = {emission.formula(r.right)};"
        found.append((f"{r.left} must equal {r.right} (node {r.node})", sides))
    return found


def _branch_checks(emission: Emission) -> dict[Guard, list[str]]:
    """C that leaves the run where a branch is entered whose requirements these sizes do not meet."""
    found: dict[Guard, list[str]] = {}
    for r in emission.analysis.requirements:
        if r.guard and (r.left.symbols() | r.right.symbols()) <= emission.symbols.keys():
            text = c_string(f"{r.left} must equal {r.right} (node {r.node})")
            check = f"if ({emission.size(r.left)} != {emission.size(r.right)}) return {text};"
            found.setdefault(r.guard, []).append(check)
    return found


def _results(emission: Emission) -> str:
    analysis = emission.analysis
    lines = []
    for k, tensor in enumerate(analysis.graph.outputs):
        dims: Sequence[Dim] = analysis[tensor].dims
        sets = " ".join(f"tensor->dims[{i}] = {emission.size(d)};" for i, d in enumerate(dims))
        lines.append(f"  if (index == {k}) {{ tensor->data = {emission.address(tensor)}; {sets} }}\n")
    return "".join(lines)


def _tables(emission: Emission) -> str:
    analysis = emission.analysis
    graph = analysis.graph
    lines = []
    entries: dict[str, list[str]] = {"inputs": [], "outputs": []}
    shapes = [("inputs", v.name, v.dtype, v.shape or ()) for v in graph.inputs]
    shapes += [("outputs", t, analysis[t].dtype, analysis[t].dims) for t in graph.outputs]
    for k, (kind, name, dtype, dims) in enumerate(shapes):
        sizes = ", ".join(str(int(d)) if d.is_constant else "-1" for d in dims) or "0"
        lines.append(f"static const int64_t shape_{k}[] = {{{sizes}}};")
        code = int(onnx.helper.np_dtype_to_tensor_dtype(dtype))
        entries[kind].append(f"{{{c_string(name)}, {code}, {len(dims)}, shape_{k}}}")
    for kind, rows in entries.items():
        lines.append(f"static const sod2_io {kind}[] = {{{', '.join(rows) or '{0}'}}};")
    names = ", ".join(c_string(step_name(s)) for s in emission.storage.steps) or "NULL"
    lines.append(f"static const char *const step_names[] = {{{names}}};")
    return "\n".join(lines)


def step_name(step: Step) -> str:
    """How reports and profiles call a step."""
    if isinstance(step, Copy | Materialize):
        return step.name
    return f"{'+'.join(n.op for n in step.nodes)} {step.name}"
