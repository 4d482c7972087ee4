"""The C that anchors emit, compiled and run on every example: against numpy's reference, with constant and run-time
weights, at symbolic and at constant dims, with and without an epilogue, on 1 and 2 threads with identical bits."""

import ctypes
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from native import build, pointer, scratch

from sod2.codegen.target import host
from sod2.graph import Node
from sod2.lattice import NAC
from sod2.ops import OPS, Fact
from sod2.ops.anchor import Anchor, Bias
from sod2.packing import Tile
from sod2.symbolic import Dim, as_dim, symbol, to_c

RUNTIME = [
    *("threads.c", "tile.c", "gemm.c", "conv.c", "conv_panel.c", "conv_pixel.c", "conv_dot.c", "conv_transpose.c"),
    *("depthwise.c", "strips.c", "strip_lines.c", "winograd.c", "rows.c", "pool.c", "lstm.c", "attention.c"),
    *("conv_taps.c", "reduce_nd.c", "scan.c", "recurrent.c", "scatter.c", "linear.c", "causal_conv.c", "nest.c"),
    *("group_norm.c", "rows_double.c", "lstm_double.c", "recurrent_double.c"),
]
HEADERS = (
    *("conv.h", "gemm.h", "group_norm.h", "kernels.h", "reduce_nd.h", "recurrent.h", "scatter.h", "linear.h"),
    "causal_conv.h",
)
CTYPES = {"float32": "float", "float64": "double", "int32": "int32_t", "int64": "int64_t"}
OUTPUTS = {"LSTM": 3, "GRU": 2, "RNN": 2, "CausalConvWithState": 2, "LayerNormalization": 3}
CONSTANTS = {  # which inputs are constants, in turn
    "Conv": [(1, 2)],
    "ConvTranspose": [(1, 2)],
    "MatMul": [(), (1,)],
    "Gemm": [(), (1,), (1, 2)],
    "CumSum": [(1,)],
}

# An epilogue that adds a tensor of the output's size, and the store that every epilogue has to make.
EPILOGUE = """
typedef struct addition { const float *addend; float *y; int64_t rows, cols; } addition;
static void add(const void *args, const float *tile, int64_t ld, int64_t batch, int64_t row, int64_t rows,
                int64_t col, int64_t cols) {
  const addition *a = args;
  for (int64_t i = 0; i < rows; i++)
    for (int64_t j = 0; j < cols; j++) {
      const int64_t at = (batch * a->rows + row + i) * a->cols + col + j;
      a->y[at] = tile[i * ld + j] + a->addend[at];
    }
}
"""


@dataclass
class Probe:
    """A Call whose operands are the arguments of a C function; `binding` evaluates scratch and choices."""

    node: Node
    x: list[Fact | None]
    y: list[Fact]
    symbols: list[str]
    tile: Tile
    fused: bool
    binding: bool = False
    end: Node | None = None
    versions: tuple[str, ...] = ("panel",)
    weights: list[np.ndarray] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)  # declarations and, when binding, decisions, in order
    scratches: int = 0
    choices: int = 0

    def pointer(self, operand: int) -> str:
        fact = self.x[operand]
        assert fact is not None
        return "NULL" if self.binding else f"((const {CTYPES[fact.dtype.name]} *)in[{operand}])"

    def result(self, output: int = 0) -> str:
        return "NULL" if self.binding else f"(({CTYPES[self.y[output].dtype.name]} *)out[{output}])"

    def c(self, value: Dim | int) -> str:
        return to_c(as_dim(value), lambda name: f"sym[{self.symbols.index(name)}]")

    def packed(self, operand: int, layout: str, pack: Callable[[], np.ndarray]) -> str:
        self.weights.append(np.ascontiguousarray(pack()))
        return f"w[{len(self.weights) - 1}]"

    def scratch(self, text: str) -> str:
        self.scratches += 1
        self.decide(f"bytes[{self.scratches - 1}] = {text};")
        return f"scratch[{self.scratches - 1}]"

    def choice(self, text: str) -> str:
        self.choices += 1
        self.decide(f"plan[{self.choices - 1}] = {text};")
        return f"plan[{self.choices - 1}]"

    def epilogue(self) -> tuple[str, str]:
        return ("add", "addition") if self.fused else ("NULL", "NULL")

    def touched(self) -> str:
        return f"{{{self.result()}, NULL}}"

    def setup(self, text: str) -> None:
        self.lines.append(text)

    def decide(self, text: str) -> None:
        if self.binding:
            self.lines.append(text)


@dataclass
class Case:
    """One example of an anchor under one choice of constants, dims and epilogue."""

    op: Anchor
    node: Node
    arrays: list[np.ndarray | None]
    constants: tuple[int, ...]
    symbolic: bool
    fused: bool
    versions: tuple[str, ...] = ()  # of a convolution

    def facts(self) -> tuple[list[Fact | None], list[str], list[int]]:
        """Facts of the inputs, and the symbols in them with their values."""
        facts: list[Fact | None] = []
        env: dict[str, int] = {}
        for i, array in enumerate(self.arrays):
            if array is None:
                facts.append(None)
                continue
            dims = tuple(map(as_dim, array.shape))
            constant = i in (*self.constants, *self.op.shape_inputs)
            if self.symbolic and not constant:
                names = [f"i{i}d{k}" for k in range(array.ndim)]
                env.update(zip(names, array.shape, strict=True))
                dims = tuple(map(symbol, names))
            facts.append(Fact(array.dtype, dims, array if constant else NAC))
        return facts, list(env), list(env.values())

    def probe(self, binding: bool) -> tuple[Probe, str]:
        """The text of one of the two functions of a call."""
        x, names, _ = self.facts()
        y = [Fact(t, s) for t, s in zip(self.op.dtype(self.node, x), self.op.shape(self.node, x), strict=True)]
        end = self.node if self.op.rectifies and not self.fused else None
        probe = Probe(self.node, x, y, names, host().tile, self.fused, binding, end, self.versions)
        return probe, self.op.call(self.node, probe, x, y)

    def source(self, number: int) -> tuple[str, list[np.ndarray], int]:
        """C functions bind_<number> and run_<number>, the packed weights, and how many scratch buffers there are."""
        bound, _ = self.probe(binding=True)
        running, statements = self.probe(binding=False)
        head = "int overflow = 0, *o = &overflow; (void)o, (void)sym, (void)w, (void)plan;"
        bind = [
            head,
            "(void)threads, (void)bytes;",
            "const void *addition = NULL; (void)addition;",
            "const int64_t allowance = 0; (void)allowance;",
        ]
        bind += bound.lines
        run = [
            head,
            "(void)in, (void)out, (void)scratch, (void)pool, (void)addition;",
            *running.lines,
            statements,
        ]
        arguments = "const int64_t *sym, const float *const *w, int64_t *plan, "
        text = (
            f"void bind_{number}({arguments}int threads, int64_t *bytes) {{\n{chr(10).join(bind)}\n}}\n"
            f"void run_{number}({arguments}const void *const *in, void *const *out, void *const *scratch,\n"
            f"    const addition *addition, sod2_pool *pool) {{\n{chr(10).join(run)}\n}}\n"
        )
        return text, running.weights, running.scratches


def takes_epilogue(op: Anchor, node: Node, x: list[Fact | None]) -> bool:
    y = [Fact(t, s) for t, s in zip(op.dtype(node, x), op.shape(node, x), strict=True)]
    return op.space(node, x, y) is not None


def versions_of(node: Node, arrays: list[np.ndarray | None]) -> list[tuple[str, ...]]:
    """Every version of a convolution that can run this one, alone and all together."""
    if node.op != "Conv" or (weights := arrays[1]) is None:
        return [()]
    found = ["panel", "pixel", "dot"]
    group = node.attrs.get("group", 1)
    unit = all(v == 1 for name in ("strides", "dilations") for v in node.attrs.get(name, ()))
    if group > 1 and weights.shape[1] == 1:
        found.append("depthwise")
    if weights.shape[2:] == (3, 3) and unit and group == 1:
        found += ["wino2", "wino4", "wino6"]
    if weights.shape[2:] == (7, 7) and list(node.attrs.get("strides", ())) == [2, 2] and group == 1:
        found.append("wino3")
    if len(weights) == 1 and group == 1 and all(v == 1 for v in node.attrs.get("strides", ())):
        found.append("taps")
    return [*((v,) for v in found), tuple(found)]


def cases() -> Iterator[Case]:
    for (domain, name), op in sorted(OPS.table.items()):
        if not isinstance(op, Anchor) or not op.has_call:
            continue
        for attrs, arrays in op.examples():
            if any(a is not None and (a.dtype.name not in CTYPES or a.ndim == 5) for a in arrays):
                continue
            inputs = tuple("" if a is None else f"x{i}" for i, a in enumerate(arrays))
            node = Node("n", name, inputs, tuple(f"y{i}" for i in range(OUTPUTS.get(name, 1))), attrs, (), domain)
            for constants, symbolic, versions in product(
                CONSTANTS.get(name, [()]), (False, True), versions_of(node, list(arrays))
            ):
                case = Case(op, node, list(arrays), constants, symbolic, False, versions)
                if not op.is_anchor(node, case.facts()[0]):  # it runs as an element expression
                    continue
                yield case
                if takes_epilogue(op, node, case.facts()[0]):
                    yield replace(case, fused=True)


CASES = [c for c in cases() if c.fused or c.op.rectifies or c.op.bias(c.node, c.facts()[0]) is None]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> tuple[ctypes.CDLL, list[list[np.ndarray]], list[int]]:
    """All cases in one library, their packed weights and their numbers of scratch buffers."""
    folder: Path = tmp_path_factory.mktemp("anchors")
    texts, weights, scratches = zip(*(case.source(i) for i, case in enumerate(CASES)), strict=True)
    includes = "".join(f'#include "{h}"\n' for h in HEADERS)
    source = folder / "anchors.c"
    quick = "#pragma GCC optimize (0)\n"  # these functions only fill structs: a thousand of them shall compile at once
    source.write_text(quick + includes + EPILOGUE + "".join(texts))
    loaded = build(RUNTIME, [str(source)], folder)
    loaded.sod2_pool_create.argtypes = [ctypes.c_int]
    return loaded, list(weights), list(scratches)


def pointers(arrays: list[Any]) -> Any:
    return (ctypes.c_void_p * max(1, len(arrays)))(*(pointer(a) for a in arrays))


def addend(case: Case, bias: Bias | None, shape: tuple[int, ...]) -> np.ndarray:
    """What the epilogue adds: random numbers and the bias."""
    total = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    if bias is None:
        return total
    operand = case.arrays[bias.operand]
    assert operand is not None
    view = [1] * len(shape)
    for d, n in zip(bias.dims, operand.shape, strict=True):
        view[d] = n
    return (total + bias.scale * operand.reshape(view)).astype(np.float32)


def execute(case: Case, number: int, library: Any, threads: int) -> tuple[list[np.ndarray], np.ndarray | None]:
    """Bind and run a case; its outputs, and what its epilogue added besides the bias."""
    loaded, weights, scratches = library
    x, _, values = case.facts()
    expected = case.op.reference(case.node, *case.arrays)
    outputs = [np.full(e.shape, 7, e.dtype) for e in expected]
    sym, plan, sizes = (np.zeros(32, np.int64) for _ in range(3))
    sym[: len(values)] = values
    packed = pointers(weights[number])
    getattr(loaded, f"bind_{number}")(pointer(sym), packed, pointer(plan), threads, pointer(sizes))
    held = [scratch(int(sizes[i])) for i in range(scratches[number])]
    addition, extra, args = None, None, None
    if case.fused:
        y = [Fact(e.dtype, tuple(map(as_dim, e.shape))) for e in expected]
        space = case.op.space(case.node, x, y)
        assert space is not None
        bias = case.op.bias(case.node, x)
        total, extra = addend(case, bias, expected[0].shape), addend(case, None, expected[0].shape)
        rows, cols = (math.prod(expected[0].shape[a:b]) for a, b in ((space[0], space[1]), (space[1], None)))
        args = (ctypes.c_int64 * 4)(total.ctypes.data, outputs[0].ctypes.data, rows, cols)
        addition = ctypes.byref(args)
    pool = loaded.sod2_pool_create(threads)
    inputs = [None if a is None else np.ascontiguousarray(a) for a in case.arrays]
    run: Callable[..., None] = getattr(loaded, f"run_{number}")
    tensors = pointers(inputs), pointers(outputs), pointers(held)
    run(pointer(sym), packed, pointer(plan), *tensors, addition, ctypes.c_void_p(pool))
    loaded.sod2_pool_free(ctypes.c_void_p(pool))
    return outputs, extra


def label(case: Case) -> str:
    kind = "symbolic" if case.symbolic else "constant"
    return f"{case.node.op}-{kind}-{'epilogue' if case.fused else 'store'}"


@pytest.mark.parametrize("number", range(len(CASES)), ids=[f"{label(c)}-{i}" for i, c in enumerate(CASES)])
def test_emitted_call(number: int, library: Any) -> None:
    """The kernel's result is the reference's, to rounding, and does not depend on the number of threads."""
    case = CASES[number]
    outputs, extra = execute(case, number, library, 1)
    expected = case.op.reference(case.node, *case.arrays)
    if extra is not None:
        expected[0] = expected[0] + extra
    for got, right in zip(outputs, expected, strict=True):
        scale = float(np.abs(right[np.isfinite(right)]).max(initial=1.0))
        np.testing.assert_allclose(got, right, rtol=0, atol=1e-4 * scale if right.dtype.kind == "f" else 0)
    again, _ = execute(case, number, library, 2)
    for got, same in zip(outputs, again, strict=True):
        assert got.tobytes() == same.tobytes()
