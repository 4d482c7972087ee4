"""The workloads with loops: their numbers against the equations in float64, their trees, their multiply-adds."""

import functools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import yaml
from onnx import ModelProto

import sod2
from models import MODELS, PAPER, build
from models.assembly import subgraphs
from models.flops import macs
from models.inputs import concrete_shape, contents, generator, random_tree
from tests.plain_layers import Array, Weights, weights_of


@functools.cache
def tiny(name: str, variant: str = "tiny") -> ModelProto:
    """A small variant, built once."""
    return build(name, variant)


def run(model: ModelProto, inputs: dict[str, Array]) -> list[Array]:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, inputs)


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def lstm_in_numpy(w: Weights, words: Array, layers: int) -> Array:
    """Hidden states of the last layer, (T, hidden)."""
    x = words
    for layer in range(layers):
        h = c = np.zeros(w[f"weight_hh_l{layer}"].shape[1])
        states = []
        for word in x:
            sums = w[f"weight_ih_l{layer}"] @ word + w[f"bias_ih_l{layer}"]
            i, f, g, o = np.split(sums + w[f"weight_hh_l{layer}"] @ h + w[f"bias_hh_l{layer}"], 4)
            c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
            h = sigmoid(o) * np.tanh(c)
            states.append(h)
        x = np.array(states)
    return x


@pytest.mark.parametrize("length", [1, 2, 17])
def test_lstm(length: int) -> None:
    words = generator("test", length).normal(size=(length, 12)).astype(np.float32)
    states, final = run(tiny("lstm"), {"words": words})
    expected = lstm_in_numpy(weights_of(tiny("lstm")), words.astype(np.float64), layers=2)
    np.testing.assert_allclose(states[:, 0], expected, atol=1e-6)
    np.testing.assert_array_equal(final, states[-1])


def test_lstm_of_no_word_keeps_its_first_state() -> None:
    states, final = run(tiny("lstm"), {"words": np.zeros((0, 12), np.float32)})
    assert states.shape == (0, 1, 16)
    assert not final.any()


def tree_in_numpy(w: Weights, words: Array, children: Array) -> Array:
    """Logits of the root, by recursion from the last node down."""
    w_i, w_o, w_u, w_f = np.split(w["cell.input.weight"], 4)
    b_i, b_o, b_u, b_f = np.split(w["cell.input.bias"], 4)
    u_i, u_o, u_u, u_l, u_r = np.split(w["cell.children.weight"], 5)

    def state(number: int) -> tuple[Array, Array]:
        if number == 0:
            return np.zeros(len(w_i)), np.zeros(len(w_i))
        x = words[number - 1]
        (h_l, c_l), (h_r, c_r) = (state(int(child)) for child in children[number - 1])
        h = np.concatenate([h_l, h_r])
        i, o = sigmoid(w_i @ x + u_i @ h + b_i), sigmoid(w_o @ x + u_o @ h + b_o)
        forget_l, forget_r = sigmoid(w_f @ x + u_l @ h + b_f), sigmoid(w_f @ x + u_r @ h + b_f)
        c = i * np.tanh(w_u @ x + u_u @ h + b_u) + forget_l * c_l + forget_r * c_r
        return o * np.tanh(c), c

    return w["output.weight"] @ state(len(words))[0] + w["output.bias"]


@pytest.mark.parametrize("variant", ["tiny", "tiny-padded"])
@pytest.mark.parametrize("rows", [1, 3, 9, 41])
def test_tree_lstm(rows: int, variant: str) -> None:
    for index in range(4):
        shapes = {"words": (rows, 12), "children": (rows, 2)}
        inputs = contents(MODELS["tree_lstm"], variant, shapes, generator("test", rows, index))
        count = int((inputs["children"][:, 0] >= 0).sum())
        (logits,) = run(tiny("tree_lstm", variant), inputs)
        real = (inputs[name][:count].astype(np.float64) for name in ("words", "children"))
        np.testing.assert_allclose(logits[0], tree_in_numpy(weights_of(tiny("tree_lstm")), *real), atol=1e-6)


def test_children_of_a_node_are_told_apart() -> None:
    words = generator("test").normal(size=(3, 12)).astype(np.float32)
    logits = [
        run(tiny("tree_lstm"), {"words": words, "children": np.array([[0, 0], [0, 0], pair])})[0]
        for pair in ([1, 2], [2, 1])
    ]
    assert np.abs(logits[0] - logits[1]).max() > 1e-4


def spans(rows: list[tuple[int, int]], number: int) -> Iterator[int]:
    """Numbers of the nodes of a subtree, in post-order."""
    for child in rows[number - 1]:
        if child:
            yield from spans(rows, child)
    yield number


@pytest.mark.parametrize("leaves", [1, 2, 3, 26])
def test_random_trees_are_binary_and_in_post_order(leaves: int) -> None:
    trees = [random_tree(leaves, generator("test", index)) for index in range(20)]
    for rows in trees:
        assert len(rows) == 2 * leaves - 1
        assert all((left == 0) == (right == 0) for left, right in rows)
        assert list(spans(rows, len(rows))) == list(range(1, 2 * leaves))
    assert len({tuple(rows) for rows in trees}) >= (1, 1, 2, 20)[[1, 2, 3, 26].index(leaves)]


def test_padding_leaves_every_size_of_tree_possible() -> None:
    shapes = {"words": (9, 12), "children": (9, 2)}
    drawn = [contents(MODELS["tree_lstm"], "tiny-padded", shapes, generator("test", i)) for i in range(60)]
    assert {int((inputs["children"][:, 0] >= 0).sum()) for inputs in drawn} == {1, 3, 5, 7, 9}
    for inputs in drawn:
        leaf = inputs["children"][:, 0] == 0
        assert not inputs["words"][~leaf].any()
        assert inputs["words"][leaf].all()


@pytest.mark.parametrize(("name", "variant"), [(n, v) for n in ("lstm", "tree_lstm") for v in MODELS[n].variants])
def test_loops_have_the_form_of_an_export(name: str, variant: str) -> None:
    model = build(name, variant)
    onnx.checker.check_model(model, full_check=True)
    (loop,) = (node for node in model.graph.node if node.op_type == "Loop")
    (body,) = subgraphs(loop)
    for value in (*body.input[:2], body.output[0]):  # iteration number, condition before and after the step
        assert value.type.tensor_type.HasField("shape")
        assert not value.type.tensor_type.shape.dim
    (condition,) = (tensor for tensor in model.graph.initializer if tensor.name == loop.input[1])
    assert not condition.dims


def test_multiply_adds_count_every_step_of_a_loop() -> None:
    words = np.zeros((7, 12), np.float32)
    assert sum(macs(tiny("lstm"), {"words": words}).values()) == 7 * 64 * (12 + 16 + 16 + 16)
    assert sum(macs(tiny("lstm"), {"words": words[:0]}).values()) == 0
    children = np.array([[0, 0], [0, 0], [1, 2], [-1, -1], [-1, -1], [-1, -1], [-1, -1]])
    counts = macs(tiny("tree_lstm", "tiny-padded"), {"words": words, "children": children})
    assert sum(counts.values()) == 3 * (40 * 12 + 50 * 20) + 3 * 10


def test_the_extra_suite_is_apart_from_the_papers_models() -> None:
    overlay = yaml.safe_load((Path(__file__).parents[1] / "config" / "extra.yaml").read_text())
    assert set(overlay["models"]) == set(MODELS) - set(PAPER)
    assert len(PAPER) == 10


@pytest.mark.parametrize(("name", "variant"), [("lstm", "tiny"), ("tree_lstm", "tiny"), ("tree_lstm", "tiny-padded")])
def test_sod2_runs_the_loops(name: str, variant: str) -> None:
    model = tiny(name, variant)
    compiled = sod2.compile(model)
    (symbol,) = MODELS[name].symbols
    fed = [value for value in model.graph.input if value.name in ("words", "children")]
    for rows in (1, 9, 3, 41, 9):
        shapes = {value.name: concrete_shape(value, {symbol: rows}) for value in fed}
        inputs = contents(MODELS[name], variant, shapes, generator("test", rows))
        got = compiled.run(inputs)
        for output, expected in zip(model.graph.output, run(model, inputs), strict=True):
            np.testing.assert_allclose(got[output.name], expected, atol=1e-6)
