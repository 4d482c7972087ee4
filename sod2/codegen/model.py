"""model.c: steps, tables and the functions through which the runtime binds shapes and runs (runtime/program.h)."""

from collections.abc import Sequence
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
import onnx

from sod2 import depth as depths
from sod2 import streaming
from sod2.admissible import affine
from sod2.codegen import loops, on_load, stream
from sod2.codegen.elements import c_string
from sod2.codegen.steps import Emission
from sod2.dtypes import element_type
from sod2.errors import UnsupportedError
from sod2.fusion import Group
from sod2.graph import Guard, Requirement
from sod2.minting import Mint
from sod2.rdp import Analysis
from sod2.storage import Carry, Copy, Hold, Materialize, Stack, Step
from sod2.symbolic import Dim

_TEMPLATES = Path(__file__).parent / "templates"
_MODEL = Template((_TEMPLATES / "model.c.in").read_text())
_DECISIONS = Template((_TEMPLATES / "decisions.c.in").read_text())


def emit(emission: Emission) -> None:
    """Write every step of the plan into the emission."""
    for number, step in enumerate(emission.storage.steps):
        _emit_step(emission, number, step)
    for tensor in emission.analysis.results:  # a constant one is among the weights, digested next
        emission.analysis.dims(tensor)
        emission.address(tensor)
    for tensor in (*(v.name for v in emission.analysis.graph.inputs), *emission.analysis.graph.outputs):
        element_type(emission.analysis[tensor].dtype)  # raises for one that C has not


def _emit_step(emission: Emission, number: int, step: Step) -> None:
    match step:
        case Copy():
            emission.copy(number, step)
        case Materialize():
            emission.materialize(number, step)
        case Mint():
            emission.mint(number, step)
        case Stack():
            loops.stack(emission, number, step)
        case Carry():
            loops.carry(emission, number, step)
        case Hold():
            loops.hold(emission, number, step)
        case _:
            _emit_group(emission, number, step)


def _emit_group(emission: Emission, number: int, group: Group) -> None:
    if group.lead is not None:
        write = on_load.emit if streaming.is_norm(group.lead) else stream.emit
        write(emission, number, group.lead, group)
    elif group.anchor is not None:
        emission.anchor(number, group, group.anchor)
    else:
        emission.elements(number, group)


def source(
    emission: Emission, digest: str, peak_first: bool, *, table: int = 0, more: bool = False, budget: int = 0
) -> str:
    """The text of model.c; `digest` names the weights it was generated with.

    With a memory `budget` a model has several tables, a file each; `more` tells whether one follows this.
    """
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
        decisions=_decisions(emission),
        sizes=_sizes(emission, 0),
        stages=_stages(emission, guards),
        follower=f"extern const sod2_program {_program_name(table + 1)};\n" if more else "",
        program=_program_name(table),
        depths=_depths(emission),
        stage_fields=_depth_fields(emission) + _stage_fields(emission) + _budget_fields(budget, table, more),
        dims="".join(f"{d}, " for d in dims),
        dim_count=len(dims),
        guards="".join(f"{c_string(text)}, " for _, text, _ in guards),
        guard_count=sum(stage == 0 for stage, _, _ in guards),
        sides="".join(f"  if (index == {k}) {{ {sides} }}\n" for k, (_, _, sides) in enumerate(guards)),
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


def _run(steps: Sequence[Step], emission: Emission) -> str:
    """Calls of the steps, nested in one `if` per contiguous branch and one `for` per loop."""
    lines: list[str] = []
    checks = _branch_checks(emission)
    open_guard: Guard = ()
    loop_names, deepest = emission.analysis.graph.loops, max(_depth_of(emission), default=0)
    reached = 0  # the stage whose symbols are known
    for number, step in enumerate(steps):
        guard = step.guard
        common = 0
        while common < min(len(guard), len(open_guard)) and guard[common] == open_guard[common]:
            common += 1
        for depth in range(len(open_guard), common, -1):
            lines.append(f"{'  ' * depth}}}")
        for depth in range(common, len(guard)):
            lines.append(f"{'  ' * (depth + 1)}{_opening(*guard[depth], emission)} {{")
            entered = depths.of_guard(guard[: depth + 1], loop_names)
            if guard[depth][0] not in loop_names and entered <= deepest:
                lines.append(f"{'  ' * (depth + 2)}SOD2_ENTER({entered});")
            found = checks.get(guard[: depth + 1], ())
            lines += [f"{'  ' * (depth + 2)}{check}" for stage, check in found if stage <= reached]
        open_guard = guard
        call = f"SOD2_RUN({number}, step_{number});"
        if isinstance(step, Mint):
            reached += 1
            call = f"SOD2_MINT({number}, step_{number}, {reached});"
        elif isinstance(step, Carry | Hold):
            call = f"SOD2_CARRY({number}, step_{number});"
        lines.append(f"{'  ' * (len(guard) + 1)}{call}")
    lines += [f"{'  ' * depth}}}" for depth in range(len(open_guard), 0, -1)]
    return "".join(f"{line}\n" for line in lines)


def _opening(predicate: str, branch: bool, emission: Emission) -> str:
    """What executes the block of a guard's entry: once if a predicate has the value, or once for each trip."""
    loop = emission.analysis.graph.loops.get(predicate)
    if loop is None:
        return f"if ({'' if branch else '!'}*(const uint8_t *){emission.address(predicate)})"
    return loops.opening(emission, loop)


def _sizes(emission: Emission, stage: int) -> str:
    """What is evaluated at a stage: the expressions, sizes and decisions that are known from there on."""
    lines: list[str] = []
    shared: dict[str, str] = {}

    def share(operation: str) -> str:
        if operation not in shared:
            shared[operation] = f"v{len(shared)}"
            lines.append(f"const int64_t {shared[operation]} = {operation};")
        return shared[operation]

    sizes = [(f"plan[CHOICES + {k}]", d) for d, k in emission.expressions.items()]
    sizes += [(f"bytes[{k}]", b.size) for k, b in enumerate(emission.storage.buffers)]
    for place, dim in sizes:
        if emission.stage(dim) == stage:
            value = emission.formula(dim, share)
            lines.append(f"{place} = {value};")
    stages = [emission.stage_of_step(number) for number in emission.decisions]
    first, last = sum(s < stage for s in stages), sum(s <= stage for s in stages)
    if first < last:
        lines.append(f"decide({first}, {last}, sym, weights, threads, plan, bytes);")
    return "".join(f"  {line}\n" for line in lines)


def _decisions(emission: Emission) -> str:
    """The functions that decide when sizes are known, and the table of decisions, by stage; empty without any."""
    if not emission.decisions:
        return ""
    unused = (
        "  (void)number, (void)sym, (void)plan, (void)weights, (void)threads, (void)allowance, (void)choice, "
        "(void)scratch;\n"
    )
    functions = "".join(f"SOD2_DECIDE({name}) {{\n{unused}{body}\n}}\n" for body, name in emission.deciders.items())
    entries = []
    last: dict[tuple[str, int, int], int] = {}  # decider, numbers and stage -> their last decision so far
    for k, step in enumerate(sorted(emission.decisions, key=emission.stage_of_step)):
        d = emission.decisions[step]
        alike = d.decider, d.number, emission.stage_of_step(step)
        back = k - last.get(alike, k)
        last[alike] = k
        places = step, d.number, d.choice, d.scratch, back, d.choices, d.scratches
        entries.append(f"{{{d.decider}, {', '.join(map(str, places))}}},\n")
    numbers = "".join(f"{', '.join(map(str, row))},\n" for row in emission.numbers if row)
    return _DECISIONS.substitute(
        functions=functions, entries="".join(entries), numbers=numbers,
        buffers=len(emission.storage.buffers), steps=len(emission.storage.steps), more=emission.scratch_budget,
    )  # fmt: skip


def _stages(emission: Emission, guards: Sequence[tuple[int, str, str]]) -> str:
    """The function that checks and evaluates what a mint makes known, one case each; empty without mints."""
    if not emission.minted:
        return ""
    cases = []
    for stage in range(1, 1 + max(emission.stages.values())):
        numbers = [k for k, (s, _, _) in enumerate(guards) if s == stage]
        body = _sizes(emission, stage)
        if numbers:
            checked = f'sod2_check_guards(&rules, {numbers[0]}, {numbers[-1] + 1}, "inputs", sym, message, capacity)'
            body = f"  if ({checked}) return 1;\n{body}"
        cases.append(f"  case {stage}: {{\n{body}  break;\n  }}\n")
    buffers = [emission.stage(b.size) for b in emission.storage.buffers]
    stage_of = [*buffers, *(emission.stage_of_step(step) for _, step in emission.scratch)]
    return (
        f"static const int32_t stage_of[] = {{{', '.join(map(str, stage_of)) or '0'}}};\n"
        "static int stage(int number, const int64_t *sym, const char *weights, int threads, int64_t *plan,\n"
        "                 int64_t *bytes, int *o, char *message, int64_t capacity) {\n"
        "  (void)sym, (void)weights, (void)threads, (void)plan, (void)bytes, (void)o, (void)message, (void)capacity;\n"
        f"  switch (number) {{\n{''.join(cases)}  }}\n  return 0;\n}}\n"
    )


def _depth_of(emission: Emission) -> list[int]:
    """The depth of every buffer, scratch included."""
    storage, graph = emission.storage, emission.analysis.graph
    scratch = [depths.of_guard(storage.steps[step].guard, graph.loops) for _, step in emission.scratch]
    return [*depths.of_buffers(storage, emission.analysis.results, graph.loops), *scratch]


def _depths(emission: Emission) -> str:
    """The table of depths of a model with branches."""
    found = _depth_of(emission)
    return f"static const uint8_t depth_of[] = {{{', '.join(map(str, found))}}};\n" if any(found) else ""


def _depth_fields(emission: Emission) -> str:
    """The fields of the program that a model has where buffers lie deeper than its outermost level."""
    deepest = max(_depth_of(emission), default=0)
    return f"\n    .deepest = {deepest},\n    .depth_of = depth_of," if deepest else ""


def _stage_fields(emission: Emission) -> str:
    """The fields of the program that a model has whose execution mints symbols."""
    if not emission.minted:
        return ""
    fields = {"minted": len(emission.minted), "blocks": _blocks(emission), "stage_of": "stage_of", "stage": "stage"}
    return "".join(f"\n    .{name} = {value}," for name, value in fields.items())


def _program_name(table: int) -> str:
    """The C name of a plan: of the one that the runtime begins with, or of those that need less memory."""
    return f"sod2_table_{table}" if table else "sod2_main"


def _budget_fields(budget: int, table: int, more: bool) -> str:
    """The fields of the program that a model has with a memory budget."""
    follower = f"\n    .leaner = &{_program_name(table + 1)}," if more else ""
    return f"\n    .budget = INT64_C({budget}),{follower}" if budget else ""


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


def _blocks(emission: Emission) -> int:
    """Blocks of loops: two for a state, of which the first has a number in `Storage.blocks`."""
    return max(emission.storage.blocks.values(), default=-2) + 2


def _known(emission: Emission, requirement: Requirement) -> bool:
    """Whether the program learns all symbols of a requirement: those of nodes that do not run may be missing.

    Not so where code was left out because of the requirement: it has to be checked.
    """
    known = (requirement.left.symbols() | requirement.right.symbols()) <= emission.symbols.keys()
    if not known and requirement in emission.analysis.graph.required:
        said = f"{requirement.left} must equal {requirement.right}"
        raise UnsupportedError(f"node {requirement.node!r} leaves a branch that can't be checked: {said}")
    return known


def _at_stage(emission: Emission, requirement: Requirement) -> bool:
    """Whether a requirement is checked as soon as its symbols are known: they are minted under its guard, or it has
    none. Others are checked where the branch is entered."""
    guards = {0: ()} | {
        emission.stages[m.name]: mint.guard
        for mint in emission.analysis.minting.mints
        for m in mint.minted
        if m.name in emission.stages
    }
    here = guards[emission.stage(requirement.left, requirement.right)]
    return here[: len(requirement.guard)] == requirement.guard


def _guards(emission: Emission) -> list[tuple[int, str, str]]:
    """Stage, text and C of each requirement that is checked when its symbols are known, by stage."""
    found = []
    for r in emission.analysis.requirements:
        if _known(emission, r) and _at_stage(emission, r):
            sides = f"*left = {emission.formula(r.left)}; *right = {emission.formula(r.right)};"
            found.append((emission.stage(r.left, r.right), f"{r.left} must equal {r.right} (node {r.node})", sides))
    return sorted(found, key=lambda entry: entry[0])


def _branch_checks(emission: Emission) -> dict[Guard, list[tuple[int, str]]]:
    """Stage and C that leaves the run where a branch is entered whose requirements these sizes do not meet."""
    found: dict[Guard, list[tuple[int, str]]] = {}
    for r in emission.analysis.requirements:
        if r.guard and _known(emission, r) and not _at_stage(emission, r):
            text = c_string(f"{r.left} must equal {r.right} (node {r.node})")
            check = f"if ({emission.size(r.left)} != {emission.size(r.right)}) return {text};"
            found.setdefault(r.guard, []).append((emission.stage(r.left, r.right), check))
    return found


def _results(emission: Emission) -> str:
    outputs = emission.analysis.graph.outputs
    return "".join(f"  if (index == {k}) {{ {_result(emission, t)} }}\n" for k, t in enumerate(outputs))


def _result(emission: Emission, tensor: str) -> str:
    """C that tells where an output lies, and its dims; with its rank where it has one of several."""
    choice = emission.analysis.alternatives(tensor)
    if choice is not None:
        predicate, a, b = choice
        test = f"*(const uint8_t *){emission.address(predicate)}"
        taken, other = (f"tensor->rank = {_rank(emission, t)}{_result(emission, t)}" for t in (a, b))
        return f"if ({test}) {{ {taken} }} else {{ {other} }}"
    sets = " ".join(f"tensor->dims[{i}] = {emission.size(d)};" for i, d in enumerate(emission.analysis.dims(tensor)))
    return f"tensor->data = {emission.address(tensor)}; {sets}"


def _rank(emission: Emission, tensor: str) -> str:
    """C of a rank and the end of its statement; a choice among others sets its own."""
    rank = emission.analysis[tensor].rank
    return f"{0 if rank is None else rank}; "


def _tables(emission: Emission) -> str:
    analysis = emission.analysis
    graph = analysis.graph
    lines = []
    entries: dict[str, list[str]] = {"inputs": [], "outputs": []}
    shapes: list[tuple[str, str, np.dtype[Any], tuple[Dim, ...] | None]] = [
        ("inputs", v.name, v.dtype, v.shape or ()) for v in graph.inputs
    ]
    shapes += [("outputs", t, analysis[t].dtype, _declared(analysis, t)) for t in graph.outputs]
    for k, (kind, name, dtype, dims) in enumerate(shapes):
        sizes = ", ".join(str(int(d)) if d.is_constant else "-1" for d in dims or ()) or "0"
        lines.append(f"static const int64_t shape_{k}[] = {{{sizes}}};")
        code = int(onnx.helper.np_dtype_to_tensor_dtype(dtype))
        entries[kind].append(f"{{{c_string(name)}, {code}, {-1 if dims is None else len(dims)}, shape_{k}}}")
    for kind, rows in entries.items():
        lines.append(f"static const sod2_io {kind}[] = {{{', '.join(rows) or '{0}'}}};")
    names = ", ".join(c_string(step_name(s)) for s in emission.storage.steps) or "NULL"
    lines.append(f"static const char *const step_names[] = {{{names}}};")
    return "\n".join(lines)


def _declared(analysis: Analysis, output: str) -> tuple[Dim, ...] | None:
    """The dims of an output, None where it has one of several ranks."""
    return None if analysis.alternatives(output) is not None else analysis.dims(output)


def step_name(step: Step) -> str:
    """How reports and profiles call a step."""
    if isinstance(step, Copy | Materialize | Mint | Stack | Carry | Hold):
        return step.name
    return f"{'+'.join(n.op for n in step.nodes)} {step.name}"
