"""RDP: what it proves about tiny graphs, as goldens, and that whatever it proves is true."""

from collections.abc import Callable

import numpy as np
import onnx
import pytest

import sod2
from sod2.lattice import NAC
from sod2.rdp import Analysis
from tests.graphs import expected, model, random


def if_(then: str, other: str) -> str:
    return f"If (p) <then_branch = t () => (float[?] a) {{ {then} }}, else_branch = e () => (float[?] b) {{ {other} }}>"


ZERO = np.int64([0])
SPLIT = {"m": np.int64([-1]), "h": np.int64([4]), "zero": np.int64([0]), "one": np.int64([1]), "f": np.int64([8])}
GRAPHS: dict[str, onnx.ModelProto] = {
    "attention heads": model(
        "float[B, T, 32] x",
        "float[?, ?, ?, ?] y",
        """s = Shape(x) b = Slice(s, zero, one) n = Shape <start = 1, end = 2> (x)
           target = Concat <axis = 0> (b, n, h, f) r = Reshape(x, target) y = Transpose <perm = [0, 2, 1, 3]> (r)""",
        SPLIT,
    ),
    "reshape with -1": model(
        "float[N, 6, M] x", "float[?, ?] y", "t = Concat <axis = 0> (m, h) y = Reshape(x, t)", SPLIT
    ),
    "broadcast": model("float[N, M] x, float[A, M] z", "float[?, ?] y, float[?, ?] w", "y = Add(x, z) w = Mul(y, x)"),
    "backward": model(
        "float[N, K] x, float[J, 5] z", "float[?, ?] y", "y = MatMul(x, z)"
    ),
    "window": model(
        "float[1, 3, H, W] x",
        "float[?, ?, ?, ?] y",
        """c = Conv <strides = [2, 2], pads = [1, 1, 1, 1]> (x, k)
           y = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (c)""",
        {"k": np.zeros((8, 3, 3, 3), np.float32)},
    ),
    "branches that agree": model("float[N] x, bool p", "float[?] y", f"y = {if_('a = Neg(x)', 'b = Relu(x)')}"),
    "branches that differ": model(
        "float[N] x, bool p", "float[?] y", f"y = {if_('a = Neg(x)', 'b = Concat <axis = 0> (x, x)')}"
    ),
    "branch keeps its claims": model(
        "float[N, 4] x, float[K, 5] z, bool p",
        "float[?, ?] y",
        f"y = {if_('a = MatMul(x, z)', 'c = MatMul(x, w) b = Neg(c)')}".replace("float[?] ", "float[?, ?] "),
        {"w": np.zeros((4, 5), np.float32)},
    ),
}  # fmt: skip


def text(analysis: Analysis) -> str:
    lines = [f"{v.name}: {analysis[v.name]}  input" for v in analysis.graph.inputs]
    lines += [f"{t}: {analysis[t]}  {n.op}" for n in analysis.graph.nodes for t in n.outputs if t]
    lines += [f"requires {r}" + "".join(f" if {q} is {on}" for q, on in r.guard) for r in analysis.requirements]
    lines += [f"nac {t}: {why}" for t, why in sorted(analysis.reasons.items())]
    return "\n".join(lines)


@pytest.mark.parametrize("name", GRAPHS)
def test_facts(name: str, golden: Callable[[str, str], None]) -> None:
    golden(f"rdp {name}", text(sod2.analyze(GRAPHS[name])))


def test_an_untaken_branch_constrains_nothing() -> None:
    """K == 4 is needed by one branch only: shapes that break it are accepted, and run when the other is taken."""
    source = GRAPHS["branch keeps its claims"]
    facts = sod2.analyze(source)
    shapes = {"x": (2, 4), "z": (7, 5), "p": ()}
    assert facts.admissible(shapes) is None
    inputs = {"x": random("f4", (2, 4)), "z": random("f4", (7, 5)), "p": np.array(False)}
    np.testing.assert_allclose(sod2.compile(source).run(inputs)["y"], expected(source, inputs)["y"])


def test_combine_keeps_what_both_branches_say() -> None:
    """A dim in which they differ gets a name of its own; a rank in which they differ stays unknown."""
    facts = sod2.analyze(GRAPHS["branches that differ"])
    assert [str(d) for d in facts["y"].dims] == ["y.0"]
    assert [str(m) for m in facts.minted.values()] == ["y.0: counted dim 0 of y"]
    ranks = sod2.analyze(
        model("float[N] x, bool p", "float[?] y", f"y = {if_('a = Neg(x)', 'b = Unsqueeze(x, zero)')}", {"zero": ZERO})
    )
    assert ranks["y"].shape is NAC
    assert "Combine" in ranks.reasons["y"]


@pytest.mark.parametrize("n", [0, 1, 2, 7])
@pytest.mark.parametrize("a", [0, 1, 7])
def test_broadcast_takes_no_side(n: int, a: int) -> None:
    """Predicted where onnxruntime accepts, refused where it refuses."""
    source = GRAPHS["broadcast"]
    facts = sod2.analyze(source)
    inputs = {"x": random("f4", (n, 3)), "z": random("f4", (a, 3))}
    shapes = {k: v.shape for k, v in inputs.items()}
    try:
        wanted = expected(source, inputs)
    except Exception:  # onnxruntime's own classes
        assert facts.admissible(shapes) is not None
        return
    assert facts.admissible(shapes) is None
    assert {k: facts.shapes(shapes)[k] for k in wanted} == {k: v.shape for k, v in wanted.items()}
