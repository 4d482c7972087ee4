"""The models' numbers, against each network written out in float64 from its weights by their names."""

import functools
import math

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto

from models import MODELS, build, conformer, sam, sde
from models.codebert import CONFIGS as CODEBERT
from models.inputs import concrete_shape, contents, generator
from models.probe import Probe
from tests.plain_layers import (
    Array,
    Weights,
    conv,
    cubic,
    dense,
    gelu,
    group_norm,
    linear_resize,
    norm,
    relu,
    rows,
    silu,
    softmax,
    weights_of,
)


@functools.cache
def tiny(name: str) -> ModelProto:
    """The small variant, built once."""
    return build(name, "tiny")


def run(model: ModelProto, inputs: dict[str, Array]) -> list[Array]:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, inputs)


def draw(name: str, **sizes: int) -> dict[str, Array]:
    """Inputs of a tiny model."""
    shapes = {value.name: concrete_shape(value, sizes) for value in tiny(name).graph.input}
    return contents(MODELS[name], "tiny", shapes, generator("test"))


def close(got: Array, expected: Array, tolerance: float = 1e-5) -> None:
    np.testing.assert_allclose(got, expected, atol=tolerance * max(1.0, np.abs(expected).max()))


# CodeBERT.


def codebert_in_numpy(w: Weights, ids: Array, mask: Array, heads: int, layers: int) -> Array:
    present = ids[0] != 1
    positions = np.where(present, 1 + np.cumsum(present), 1)
    x = w["embeddings.word_embeddings.weight"][ids[0]] + w["embeddings.position_embeddings.weight"][positions]
    x = norm(w, x + w["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm", 1e-5)
    for layer in range(layers):
        name = f"encoder.layer.{layer}"
        parts = [np.split(dense(w, x, f"{name}.attention.self.{r}"), heads, -1) for r in ("query", "key", "value")]
        mixed = []
        for q, k, v in zip(*parts, strict=True):
            mixed.append(softmax(np.where(mask[0] != 0, q @ k.T / math.sqrt(q.shape[-1]), -np.inf)) @ v)
        attended = dense(w, np.concatenate(mixed, -1), f"{name}.attention.output.dense")
        x = norm(w, x + attended, f"{name}.attention.output.LayerNorm", 1e-5)
        y = dense(w, gelu(dense(w, x, f"{name}.intermediate.dense")), f"{name}.output.dense")
        x = norm(w, x + y, f"{name}.output.LayerNorm", 1e-5)
    return x[None]


@pytest.mark.parametrize(("length", "padding"), [(1, 0), (2, 0), (33, 0), (12, 5)])
def test_codebert(length: int, padding: int) -> None:
    config = CODEBERT["tiny"]
    inputs = draw("codebert", T=length)
    if padding:
        inputs["input_ids"][0, -padding:] = 1
        inputs["attention_mask"][0, -padding:] = 0
    w = weights_of(tiny("codebert"))
    expected = codebert_in_numpy(w, *inputs.values(), heads=config.heads, layers=config.layers)
    np.testing.assert_allclose(run(tiny("codebert"), inputs)[0], expected, atol=2e-5)


# YOLO-V6.


def test_yolov6_decodes_cells_in_order_of_level_row_column() -> None:
    model = tiny("yolov6")
    height, width = 64, 96
    inputs = draw("yolov6", h=height // 32, w=width // 32)
    (split,) = (node for node in model.graph.node if node.op_type == "Split")
    values, _ = Probe(model, values=[split.input[0]]).run(inputs)
    output = run(model, inputs)[0]
    assert output.shape == (1, 21 * 2 * 3, 10)
    distances = iter(values[split.input[0]][0])
    rows = iter(output[0])
    for stride in (8, 16, 32):
        for i in range(height // stride):
            for j in range(width // stride):
                left, top, right, bottom = next(distances)
                x, y, w, h, objectness, *scores = next(rows)
                centre = (j + 0.5 + (right - left) / 2, i + 0.5 + (bottom - top) / 2)
                assert (x, y) == pytest.approx(np.multiply(centre, stride), rel=1e-4, abs=1e-3)
                assert (w, h) == pytest.approx(np.multiply((left + right, top + bottom), stride), rel=1e-4, abs=1e-3)
                assert objectness == 1
                assert all(0 < score < 1 for score in scores)


def test_yolov6_refuses_a_size_that_is_no_multiple_of_32() -> None:
    with pytest.raises(Exception, match="Concat"):
        run(tiny("yolov6"), {"images": np.zeros((1, 3, 224, 240), np.float32)})


# StableDiffusion encoder.


def sde_in_numpy(w: Weights, x: Array, config: sde.Config) -> Array:
    def normed(x: Array, name: str) -> Array:
        return group_norm(w, x, name, config.groups, 1e-6)

    def residual(x: Array, name: str) -> Array:
        y = conv(w, silu(normed(x, f"{name}.norm1")), f"{name}.conv1")
        y = conv(w, silu(normed(y, f"{name}.norm2")), f"{name}.conv2")
        return y + (conv(w, x, f"{name}.conv_shortcut") if f"{name}.conv_shortcut.weight" in w else x)

    x = conv(w, x, "encoder.conv_in")
    for level in range(4):
        name = f"encoder.down_blocks.{level}"
        for index in range(config.blocks):
            x = residual(x, f"{name}.resnets.{index}")
        if level < 3:
            x = conv(w, x, f"{name}.downsamplers.0.conv", 2, (0, 0, 1, 1))
    x = residual(x, "encoder.mid_block.resnets.0")
    name = "encoder.mid_block.attentions.0"
    tokens = normed(x, f"{name}.group_norm").reshape(len(x), -1).T
    q, k, v = (dense(w, tokens, f"{name}.{role}") for role in ("to_q", "to_k", "to_v"))
    x = x + dense(w, softmax(q @ k.T / math.sqrt(len(x))) @ v, f"{name}.to_out.0").T.reshape(x.shape)
    x = residual(x, "encoder.mid_block.resnets.1")
    x = conv(w, silu(normed(x, "encoder.conv_norm_out")), "encoder.conv_out")
    return conv(w, x, "quant_conv")[:4]


@pytest.mark.parametrize("size", [(8, 8), (40, 24), (51, 77)])
def test_sde(size: tuple[int, int]) -> None:
    inputs = draw("sde", H=size[0], W=size[1])
    got = run(tiny("sde"), inputs)[0]
    assert got.shape == (1, 4, size[0] // 8, size[1] // 8)
    close(got[0], sde_in_numpy(weights_of(tiny("sde")), inputs["images"][0], sde.CONFIGS["tiny"]), 1e-4)


# Conformer.


def conformer_in_numpy(w: Weights, x: Array, length: int, config: conformer.Config) -> Array:
    width, heads = config.width, config.heads

    def feed_forward(x: Array, name: str) -> Array:
        y = norm(w, x, f"{name}.0", 1e-5)
        return dense(w, silu(dense(w, y, f"{name}.1.linear")), f"{name}.4.linear")

    def attention(x: Array, name: str) -> Array:
        x = norm(w, x, f"{name}.layer_norm", 1e-5)
        name = f"{name}.attention"
        steps, size = len(x), width // heads
        q, k, v = (
            dense(w, x, f"{name}.{r}_proj.linear").reshape(steps, heads, size) for r in ("query", "key", "value")
        )
        mixed = np.zeros((steps, heads, size))
        for i in range(steps):
            scores = np.zeros((heads, steps))
            for j in range(steps):
                angles = (i - j) * 10_000.0 ** (-np.arange(0, width, 2) / width)
                code = np.stack([np.sin(angles), np.cos(angles)], axis=1).reshape(width)
                p = dense(w, code, f"{name}.pos_proj.linear").reshape(heads, size)
                scores[:, j] = ((q[i] + w[f"{name}.u_bias"]) * k[j] + (q[i] + w[f"{name}.v_bias"]) * p).sum(-1)
            scores /= math.sqrt(size)
            scores[:, max(0, (length - 3) // 4) :] = -1e4
            mixed[i] = np.einsum("hj,jhs->hs", softmax(scores), v)
        return dense(w, mixed.reshape(steps, width), f"{name}.out_proj.linear")

    def line(x: Array, name: str, groups: int = 1) -> Array:
        weight = {f"{name}.weight": w[f"{name}.weight"][:, :, None], f"{name}.bias": w[f"{name}.bias"]}
        return conv(weight, x[:, None], name, groups=groups)[:, 0]

    def convolution(x: Array, name: str) -> Array:
        value, gate = np.split(line(norm(w, x, f"{name}.0", 1e-5).T, f"{name}.2.conv"), 2)
        y = line(value / (1 + np.exp(-gate)), f"{name}.4.conv", groups=width)
        return line(silu(y), f"{name}.7.conv").T

    for index in (0, 2):
        x = relu(conv(w, x if x.ndim == 3 else x[None], f"encoder.conv_subsample.sequential.{index}", 2, (0,) * 4))
    x = dense(w, x.transpose(1, 0, 2).reshape(x.shape[1], -1), "encoder.input_projection.0")
    for block in range(config.blocks):
        name = f"encoder.layers.{block}.sequential"
        x = x + feed_forward(x, f"{name}.0.module.sequential") / 2
        x = x + attention(x, f"{name}.1.module")
        x = x + convolution(x, f"{name}.2.module.sequential")
        x = x + feed_forward(x, f"{name}.3.module.sequential") / 2
        x = norm(w, x, f"{name}.4", 1e-5)
    return np.log(softmax(dense(w, x, "fc.linear")))


@pytest.mark.parametrize(("frames", "length"), [(7, 7), (11, 11), (38, 38), (50, 30)])
def test_conformer(frames: int, length: int) -> None:
    """The last case has padding behind its frames of speech."""
    inputs = draw("conformer", T=frames) | {"length": np.array([length])}
    got = run(tiny("conformer"), inputs)[0]
    assert got.shape[1] == (frames - 3) // 4
    w = weights_of(tiny("conformer"))
    close(got[0], conformer_in_numpy(w, inputs["features"][0], length, conformer.CONFIGS["tiny"]), 2e-5)


# SegmentAnything.


def sam_encoder_in_numpy(w: Weights, image: Array, config: sam.Config) -> Array:
    size = config.width // config.heads
    x = conv(w, image, "image_encoder.patch_embed.proj", 16, (0,) * 4).transpose(1, 2, 0)
    table = cubic(w["image_encoder.pos_embed"][0], x.shape[0]).transpose(1, 0, 2)
    x = x + cubic(table, x.shape[1]).transpose(1, 0, 2)

    def attention(x: Array, name: str) -> Array:
        h, width = x.shape[:2]
        q, k, v = np.split(dense(w, x, f"{name}.qkv").reshape(h, width, 3 * config.heads, size), 3, axis=2)
        down, across = (
            linear_resize(w[f"{name}.rel_pos_{side}"], 2 * n - 1) for side, n in zip("hw", (h, width), strict=True)
        )
        y = np.zeros((h, width, config.heads, size))
        for i in range(h):
            for j in range(width):
                scores = np.einsum("nc,klnc->nkl", q[i, j], k) / math.sqrt(size)
                scores += (q[i, j] @ down[i - np.arange(h) + h - 1].T)[:, :, None]
                scores += (q[i, j] @ across[j - np.arange(width) + width - 1].T)[:, None, :]
                shares = softmax(scores.reshape(config.heads, -1)).reshape(scores.shape)
                y[i, j] = np.einsum("nkl,klnc->nc", shares, v)
        return dense(w, y.reshape(h, width, -1), f"{name}.proj")

    def windows(x: Array, name: str) -> Array:
        side = config.window
        padded = np.pad(x, ((0, -x.shape[0] % side), (0, -x.shape[1] % side), (0, 0)))
        for i in range(0, padded.shape[0], side):
            for j in range(0, padded.shape[1], side):
                part = padded[i : i + side, j : j + side]
                padded[i : i + side, j : j + side] = attention(part, name)
        return padded[: x.shape[0], : x.shape[1]]

    for index in range(config.depth):
        name = f"image_encoder.blocks.{index}"
        attend = attention if index in config.whole else windows
        x = x + attend(norm(w, x, f"{name}.norm1", 1e-6), f"{name}.attn")
        y = gelu(dense(w, norm(w, x, f"{name}.norm2", 1e-6), f"{name}.mlp.lin1"))
        x = x + dense(w, y, f"{name}.mlp.lin2")
    y = x.transpose(2, 0, 1)
    for index in (0, 2):
        y = norm(w, conv(w, y, f"image_encoder.neck.{index}"), f"image_encoder.neck.{index + 1}", 1e-6, axis=0)
    return y


@pytest.mark.parametrize("size", [(16, 16), (80, 48), (64, 112), (256, 256)])
def test_sam_encoder(size: tuple[int, int]) -> None:
    """At 256 the tables have the picture's size; at the others they are interpolated and windows are padded."""
    inputs = draw("sam", H=size[0], W=size[1])
    (features,) = {
        node.input[0] for node in tiny("sam").graph.node if node.op_type == "Add" and node.input[1].startswith("Expand")
    }
    values, _ = Probe(tiny("sam"), [features]).run(inputs)
    w = weights_of(tiny("sam"))
    close(values[features][0], sam_encoder_in_numpy(w, inputs["images"][0], sam.CONFIGS["tiny"]), 5e-5)


def sam_decoder_in_numpy(
    w: Weights, features: Array, inputs: dict[str, Array], config: sam.Config
) -> tuple[Array, Array]:
    """Masks before their resizing (4, 4h, 4w), and scores (4,)."""
    width, heads = config.decoder.width, config.decoder.heads
    h, breadth = features.shape[1:]

    def code(places: Array) -> Array:
        name = "prompt_encoder.pe_layer.positional_encoding_gaussian_matrix"
        angles = 2 * math.pi * ((2 * places - 1) @ w[name])
        return np.concatenate([np.sin(angles), np.cos(angles)], -1)

    def attention(name: str, q: Array, k: Array, v: Array) -> Array:
        q, k, v = (dense(w, x, f"{name}.{role}_proj") for role, x in zip("qkv", (q, k, v), strict=True))
        parts = [np.split(x, heads, -1) for x in (q, k, v)]
        mixed = [softmax(a @ b.T / math.sqrt(a.shape[-1])) @ c for a, b, c in zip(*parts, strict=True)]
        return dense(w, np.concatenate(mixed, -1), f"{name}.out_proj")

    def network(x: Array, name: str) -> Array:
        x = relu(rows(w, relu(rows(w, x, f"{name}.layers.0")), f"{name}.layers.1"))
        return rows(w, x, f"{name}.layers.2")

    image_size = np.array(inputs["images"].shape[:1:-1])
    points = []
    for place, label in zip(inputs["point_coords"][0], inputs["point_labels"][0], strict=True):
        known = "not_a_point_embed" if label == -1 else f"point_embeddings.{int(label)}"
        learned = w[f"prompt_encoder.{known}.weight"][0]
        points.append(learned if label == -1 else learned + code((place + 0.5) / image_size))
    tokens = np.concatenate([w["mask_decoder.iou_token.weight"], w["mask_decoder.mask_tokens.weight"], points])
    token_code = tokens
    picture = (features + w["prompt_encoder.no_mask_embed.weight"].reshape(-1, 1, 1)).reshape(width, -1).T
    grid = np.stack(np.meshgrid((np.arange(breadth) + 0.5) / breadth, (np.arange(h) + 0.5) / h), -1)
    picture_code = code(grid).reshape(-1, width)
    for layer in range(2):
        name = f"mask_decoder.transformer.layers.{layer}"
        coded = tokens if layer == 0 else tokens + token_code
        attended = attention(f"{name}.self_attn", coded, coded, tokens)
        tokens = norm(w, attended if layer == 0 else tokens + attended, f"{name}.norm1", 1e-5)
        sides = (tokens + token_code, picture + picture_code, picture)
        tokens = norm(w, tokens + attention(f"{name}.cross_attn_token_to_image", *sides), f"{name}.norm2", 1e-5)
        hidden = dense(w, relu(dense(w, tokens, f"{name}.mlp.lin1")), f"{name}.mlp.lin2")
        tokens = norm(w, tokens + hidden, f"{name}.norm3", 1e-5)
        sides = (picture + picture_code, tokens + token_code, tokens)
        picture = norm(w, picture + attention(f"{name}.cross_attn_image_to_token", *sides), f"{name}.norm4", 1e-5)
    sides = (tokens + token_code, picture + picture_code, picture)
    tokens = tokens + attention("mask_decoder.transformer.final_attn_token_to_image", *sides)
    tokens = norm(w, tokens, "mask_decoder.transformer.norm_final_attn", 1e-5)

    def double(x: Array, name: str) -> Array:
        y = np.einsum("chw,coij->ohiwj", x, w[f"{name}.weight"])
        return y.reshape(y.shape[0], 2 * x.shape[1], -1) + w[f"{name}.bias"][:, None, None]

    name = "mask_decoder.output_upscaling"
    x = norm(w, double(picture.T.reshape(width, h, breadth), f"{name}.0"), f"{name}.1", 1e-6, axis=0)
    upscaled = gelu(double(gelu(x), f"{name}.3"))
    vectors = [network(tokens[1 + i], f"mask_decoder.output_hypernetworks_mlps.{i}") for i in range(4)]
    return np.einsum("mc,chw->mhw", vectors, upscaled), network(tokens[0], "mask_decoder.iou_prediction_head")


@pytest.mark.parametrize(("size", "label"), [((16, 48), 1), ((80, 48), 0), ((112, 64), 1)])
def test_sam_decoder(size: tuple[int, int], label: int) -> None:
    inputs = draw("sam", H=size[0], W=size[1])
    inputs["point_labels"][0, 0] = label
    w, config = weights_of(tiny("sam")), sam.CONFIGS["tiny"]
    features = sam_encoder_in_numpy(w, inputs["images"][0], config)
    masks, scores = sam_decoder_in_numpy(w, features, inputs, config)
    got_masks, got_scores = run(tiny("sam"), inputs)
    resized = linear_resize(linear_resize(masks.transpose(1, 2, 0), size[0]).transpose(1, 0, 2), size[1])
    close(got_masks[0], resized.transpose(2, 1, 0), 1e-4)
    close(got_scores[0], scores, 1e-4)


def test_sam_ignores_where_the_padding_point_lies() -> None:
    inputs = draw("sam", H=64, W=64)
    moved = inputs | {"point_coords": inputs["point_coords"] + np.array([[[0, 0], [17, 5]]], np.float32)}
    for got, expected in zip(run(tiny("sam"), moved), run(tiny("sam"), inputs), strict=True):
        np.testing.assert_array_equal(got, expected)
