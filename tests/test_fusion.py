"""Fusion plans of tiny graphs as goldens, with the reason of each refusal; what facts buy; what must never be fused."""

from collections.abc import Callable

import numpy as np
import pytest

import sod2
from sod2.fusion import FusionPlan
from tests.graphs import model

NORM = {k: np.ones(8, np.float32) for k in ("scale", "bias", "mean", "var")} | {"w": np.ones((8, 8, 3, 3), np.float32)}
CONV = "c = Conv <pads = [1, 1, 1, 1]> (x, w)"
GRAPHS = {
    "chain": model("float[N, M] x", "float[?, ?] y", "a = Neg(x) b = Exp(a) c = Add(b, a) y = Tanh(c)"),
    "epilogue": model(
        "float[1, 8, H, W] x", "float[?, ?, ?, ?] y", f"{CONV} s = Sigmoid(c) m = Mul(c, s) y = Add(m, x)", NORM
    ),
    "batch norm": model(
        "float[1, 8, H, W] x",
        "float[?, ?, ?, ?] y",
        f"{CONV} n = BatchNormalization(c, scale, bias, mean, var) y = Relu(n)",
        NORM,
    ),
    "maybe one": model("float[N, M] x, float[A, M] z", "float[?, ?] y", "a = Neg(x) b = Add(a, z) y = Exp(b)"),
    "shuffle": model("float[N, 4, M] x", "float[?, ?, ?] y", "a = Transpose <perm = [2, 0, 1]> (x) y = Neg(a)"),
    "reversed": model(
        "float[N] x",
        "float[?] y",
        "a = Softmax(x) b = Slice(a, s, e, z, s) y = Neg(b)",
        {"s": np.int64([-1]), "e": np.int64([-(2**31)]), "z": np.int64([0])},
    ),
    "branch": model(
        "float[N] x, bool p",
        "float[?] y",
        """a = Neg(x) y = If (p) <then_branch = t () => (float[?] u) { u = Exp(a) },
                                 else_branch = e () => (float[?] v) { v = Relu(a) }>""",
    ),
    "no cycle": model(
        "float[N, M] x", "float[?, ?] y", "a = Neg(x) s = Softmax(a) b = Exp(a) y = Mul(s, b)"
    ),
}  # fmt: skip


def plan(name: str, fusion: str = "rdp") -> FusionPlan:
    return sod2.plan(GRAPHS[name], sod2.Options(fusion=fusion)).fusion


@pytest.mark.parametrize("name", GRAPHS)
def test_plans(name: str, golden: Callable[[str, str], None]) -> None:
    golden(f"fusion {name}", "\n".join(f"{f}:\n{plan(name, f)}" for f in ("rdp", "static", "none")))


@pytest.mark.parametrize("name", GRAPHS)
def test_every_node_runs_once(name: str) -> None:
    """Groups partition the nodes, read what was written before, and never mix branches."""
    for fusion in ("rdp", "static", "none"):
        found = sod2.plan(GRAPHS[name], sod2.Options(fusion=fusion))
        nodes = [n.name for g in found.fusion.groups for n in (*(g.lead.nodes if g.lead else ()), *g.nodes)]
        assert len(nodes) == len(set(nodes))
        for group in found.fusion.groups:
            assert {n.guard for n in group.nodes} == {group.guard}


def test_richer_facts_fuse_no_less() -> None:
    for name in GRAPHS:
        counts = [len(plan(name, fusion).groups) for fusion in ("rdp", "static", "none")]
        assert counts == sorted(counts), name


def test_a_dim_that_may_be_one_is_no_successor() -> None:
    """bcast(A, N) is not provably N: an Add that follows a kernel over [N, M] starts a kernel of its own."""
    source = model("float[N, M] x, float[A, M] z", "float[?, ?] a, float[?, ?] y", "a = Exp(x) y = Add(a, z)")
    found = sod2.plan(source).fusion
    assert [len(g.nodes) for g in found.groups] == [1, 1]
    assert any("provably" in reason for reason in found.refusals.values())
