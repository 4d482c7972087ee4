"""MatMul, Softmax and MatMul with what lies around them become one kernel, wherever the scale is applied."""

import numpy as np
import onnx
import pytest

import sod2
from tests.graphs import assert_close, expected, model, random

STORED = {"four": np.int64([0, -1, 2, 8]), "three": np.int64([0, -1, 16]), "c": np.float32(0.4)}
HEADS = "rq = Reshape(q, four) tq = Transpose <perm = [0, 2, 1, 3]> (rq) rk = Reshape(k, four) "
VALUES = """rv = Reshape(v, four) tv = Transpose <perm = [0, 2, 1, 3]> (rv) o = MatMul(p, tv)
            to = Transpose <perm = [0, 2, 1, 3]> (o) y = Reshape(to, three)"""
SWAPPED = "tk = Transpose <perm = [0, 2, 1, 3]> (rk) uk = Transpose <perm = [0, 1, 3, 2]> (tk) "
DIRECT = "uk = Transpose <perm = [0, 2, 3, 1]> (rk) "


def attention(keys: str, scores: str, mask: str = "") -> onnx.ModelProto:
    inputs = f"float[B, S, 16] q, float[B, T, 16] k, float[B, T, 16] v{mask}"
    body = f"{HEADS} {keys} {scores} p = Softmax <axis = -1> (t) {VALUES}"
    return model(inputs, "float[?, ?, ?] y", body, STORED)


FUSED = {
    "plain": attention(DIRECT, "t = MatMul(tq, uk)"),
    "scaled scores": attention(DIRECT, "s = MatMul(tq, uk) t = Mul(c, s)"),
    "scaled operands": attention(SWAPPED, "a = Mul(tq, c) b = Mul(uk, c) t = MatMul(a, b)"),
    "scaled keys and scores": attention(SWAPPED, "b = Mul(c, uk) s = MatMul(tq, b) t = Div(s, c)"),
    "mask": attention(DIRECT, "a = Mul(tq, c) s = MatMul(a, uk) t = Add(s, m)", ", float[B, 1, 1, T] m"),
}


def operators(source: onnx.ModelProto) -> list[str]:
    return [n.op for g in sod2.plan(source).fusion.groups for n in g.nodes]


@pytest.mark.parametrize("name", FUSED)
@pytest.mark.parametrize(("b", "s", "t"), [(2, 5, 7), (1, 1, 1), (1, 0, 3)])
def test_one_kernel(name: str, b: int, s: int, t: int) -> None:
    source = FUSED[name]
    assert operators(source) == ["Attention"]
    inputs = {"q": random("f4", (b, s, 16)), "k": random("f4", (b, t, 16)), "v": random("f4", (b, t, 16), 1)}
    if name == "mask":
        inputs["m"] = random("f4", (b, 1, 1, t))
    result = sod2.compile(source).run(inputs)
    if s:
        assert_close(result, expected(source, inputs))
    else:
        assert result["y"].shape == (b, 0, 16)


def test_scaled_operands_that_something_else_reads_stay() -> None:
    source = attention(DIRECT, "a = Mul(tq, c) t = MatMul(a, uk)")
    source.graph.output.append(onnx.helper.make_tensor_value_info("a", onnx.TensorProto.FLOAT, ["B", 2, "S", 8]))
    assert operators(source).count("Attention") == 1 and "Mul" in operators(source)
