"""Branches that cannot run: their predicate becomes a requirement, and what lies behind is analysed for the others."""

import numpy as np
import pytest

import sod2
from tests.graphs import assert_close, expected, model, random

WEIGHTS = {"w": random("f4", (1, 12, 4)), "r": random("f4", (1, 12, 3)), "one": np.array([1]), "zero": np.array([0])}
SQUEEZED = """size = Shape <start = 1, end = 2> (x) single = Equal(size, one)
    z = If (single) <then_branch = g () => (float[?, ?] a) { a = Squeeze(x, one) },
                     else_branch = h () => (float[?, ?, ?] b) { b = Identity(x) }>
    steps = Unsqueeze(z, zero) l, last = LSTM <hidden_size = 3> (steps, w, r)"""
NEGATED = (
    SQUEEZED.replace("single = Equal(size, one)", "same = Equal(size, one) single = Not(same)")
    .replace(
        "then_branch = g () => (float[?, ?] a) { a = Squeeze(x, one) }",
        "then_branch = g () => (float[?, ?, ?] a) { a = Identity(x) }",
    )
    .replace(
        "else_branch = h () => (float[?, ?, ?] b) { b = Identity(x) }",
        "else_branch = h () => (float[?, ?] b) { b = Squeeze(x, one) }",
    )
)
WEIGHTS_OF_CONV = {"v": random("f4", (5, 2, 3, 3)), "u": random("f4", (5, 5, 3, 3))}


@pytest.mark.parametrize("body", [SQUEEZED, NEGATED], ids=["equal", "not equal"])
def test_the_other_branch_is_required(body: str) -> None:
    """As torch exports a squeeze: the rank is known because an LSTM takes no other."""
    source = model("float[N, M, 4] x", "float[?, ?, ?] y", f"{body} y = Identity(last)", WEIGHTS)
    facts = sod2.analyze(source)
    assert [str(d) for d in facts["y"].dims] == ["1", "N", "3"]
    compiled = sod2.compile(source)
    for n in (1, 3):  # onnxruntime aborts on no batch
        inputs = {"x": random("f4", (n, 1, 4))}
        assert facts.admissible({"x": (n, 1, 4)}) is None
        assert_close(compiled.run(inputs), expected(source, inputs))
    for m in (0, 2):
        assert "must equal" in str(facts.admissible({"x": (3, m, 4)}))
        with pytest.raises(sod2.InputError, match="must equal"):
            compiled.run({"x": random("f4", (3, m, 4))})


def test_inside_a_branch() -> None:
    """It is required where that branch is taken, and nowhere else."""
    body = f"""y = If (p) <then_branch = t () => (float[?, ?, ?] c) {{ {SQUEEZED} c = Identity(last) }},
                          else_branch = e () => (float[?, ?, ?] d) {{ d = Neg(x) }}>"""
    source = model("bool p, float[N, M, 4] x", "float[?, ?, ?] y", body, WEIGHTS)
    compiled = sod2.compile(source)
    for p, m in ((True, 1), (False, 1), (False, 2), (False, 0), (True, 1)):
        inputs = {"p": np.array(p), "x": random("f4", (3, m, 4))}
        assert_close(compiled.run(inputs), expected(source, inputs))
    with pytest.raises(sod2.InputError, match="must equal"):
        compiled.run({"p": np.array(True), "x": random("f4", (3, 2, 4))})


def test_sizes_that_make_no_sense_where_no_one_goes() -> None:
    """Convolutions of a branch that is not taken may have less than no pixels."""
    body = """y = If (p) <then_branch = t () => (float[?, ?, ?, ?] c) { k = Conv(x, v) c = Conv(k, u) },
                          else_branch = e () => (float[?, ?, ?, ?] d) { d = Neg(x) }>"""
    source = model("bool p, float[N, 2, H, W] x", "float[?, ?, ?, ?] y", body, WEIGHTS_OF_CONV)
    compiled = sod2.compile(source)
    for p, size in ((True, 7), (False, 1), (False, 2), (False, 0), (False, 4), (True, 5)):
        inputs = {"p": np.array(p), "x": random("f4", (1, 2, size, size))}
        assert_close(compiled.run(inputs), expected(source, inputs))


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "LpPool"])
@pytest.mark.parametrize(
    ("kernel", "stride", "pad"), [(2, 2, 0), (3, 2, 0), (3, 3, 0), (2, 1, 0), (5, 2, 1), (3, 2, 1)]
)
def test_pools_of_less_than_a_window(op: str, kernel: int, stride: int, pad: int) -> None:
    """Onnxruntime, the oracle, rounds towards zero: one window that is cut off, or none; further away it refuses."""
    attributes = f"kernel_shape = [{kernel}], strides = [{stride}], pads = [{pad}, {pad}]"
    source = model("float[1, 2, N] x", "float[?, ?, ?] y", f"y = {op} <{attributes}> (x)")
    compiled = sod2.compile(source)
    for n in range(7):
        inputs = {"x": random("f4", (1, 2, n))}
        try:
            wanted = expected(source, inputs)
        except Exception:  # onnxruntime's own classes have no base of their own
            with pytest.raises(sod2.InputError):
                compiled.run(inputs)
        else:
            assert_close(compiled.run(inputs), wanted)
