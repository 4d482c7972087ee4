"""What the analysis does with what it has no rule for, and with sizes that no machine can hold."""

import numpy as np
import pytest

import sod2
from tests.graphs import model

I64 = np.int64
PARTLY = model(
    "float[N] x, float[M] z",
    "float[?] y, float[?] w, float[?] v",
    "h = Relu(x) y = StringNormalizer(h) v = Neg(y) w = Add(h, z)",
)


def test_an_operator_without_rules_leaves_the_rest() -> None:
    """Its outputs, and what depends on them, are nac with the reason; everything else is analysed."""
    facts = sod2.analyze(PARTLY)
    assert str(facts["w"].shape[0]) == "bcast(M, N)"
    assert facts["y"].rank is None and facts["v"].rank is None
    assert "StringNormalizer" in facts.reasons["y"] and "StringNormalizer" in facts.reasons["v"]
    assert facts.shapes({"x": (3,), "z": (1,)})["w"] == (3,)
    with pytest.raises(sod2.UnsupportedError, match=r"operator StringNormalizer .* is not supported"):
        sod2.compile(PARTLY)


def test_a_type_that_is_not_computed_with() -> None:
    """The shape is known all the same; compiling says which type."""
    source = model("float[N] x", "float[?] y", "h = Cast <to = 17> (x) y = Cast <to = 1> (h)")
    assert sod2.analyze(source).shapes({"x": (4,)})["h"] == (4,)
    with pytest.raises(sod2.UnsupportedError, match="element type 17"):
        sod2.compile(source)


@pytest.mark.parametrize(
    ("inputs", "body", "sizes"),
    [
        ("float[1, 1] x", "y = Tile(x, r)", [2**33, 2**33]),
        ("float[N, N] x", "y = Tile(x, r)", [2**33, 2**33]),
        ("float[1, 1] x", "y = Expand(x, r)", [2**32, 2**32]),
        ("float[N, 1] x", "y = Expand(x, r)", [2**32, 2**32]),
    ],
)
def test_sizes_that_overflow(inputs: str, body: str, sizes: list[int]) -> None:
    """Refused before anything is allocated."""
    source = model(inputs, "float[?, ?] y", body, {"r": I64(sizes)})
    sod2.analyze(source)
    with pytest.raises((sod2.UnsupportedError, sod2.InputError)):
        sod2.compile(source).run({"x": np.ones((1, 1), np.float32)})


def test_unknown_dims_are_distinct() -> None:
    """`?`, an empty name and -1 say nothing about one another."""
    source = model("float[A, B] x, float[C, D] z", "float[?, ?] y", "y = Add(x, z)")
    for value, texts in zip(source.graph.input, (("?", ""), ("-1", "?")), strict=True):
        for dim, text in zip(value.type.tensor_type.shape.dim, texts, strict=True):
            dim.dim_param = text
    facts = sod2.analyze(source)
    assert len(facts.symbols) == 4
    assert facts.shapes({"x": (2, 1), "z": (1, 3)})["y"] == (2, 3)


def test_declared_intermediate_shapes_are_no_facts() -> None:
    """A wrong declaration changes nothing."""
    source = model("float[N] x", "float[N] y", "h = Concat <axis = 0> (x, x) y = Relu(h)")
    assert sod2.analyze(source).shapes({"x": (3,)})["y"] == (6,)
