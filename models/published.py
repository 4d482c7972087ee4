"""What is published of the models, or was counted on PyTorch's exports of them: the figures that ours are held against.

Parameters are those of the upstream checkpoint of the full variant; nodes are those of an export at opset 18, at all
levels: their number, and that of the operators which matter.
"""

PARAMETERS = {
    "sde": 34_163_592 + 72,
    "sam": 89_670_912 + 4_059_364,
    "conformer": 27_257_856 + 256_000,
    "codebert": 124_055_040,
    "yolov6": 4_646_940,
    "dgnet": 31_384_568,
    "skipnet": 44_875_501,
    "convnet_aig": 25_768_264,
    "ranet": 131_123_991,
    "blockdrop": 49_472_394,
    "lstm": 4 * 512 * (300 + 512 + 2),
    "tree_lstm": 4 * 150 * (300 + 1) + 5 * 150 * 300 + 5 * 151,
}

NODES = {  # of the PyTorch exports, at all levels
    "sde": (
        257,
        {"Reshape": 54, "Mul": 45, "Add": 37, "Conv": 28, "Shape": 25, "InstanceNormalization": 22, "Sigmoid": 21}
        | {"Transpose": 7, "MatMul": 6, "Softmax": 1},
    ),
    "sam": (
        1082,
        {"Add": 187, "Reshape": 164, "MatMul": 121, "Transpose": 108, "Mul": 68, "Slice": 52, "Unsqueeze": 43}
        | {"Squeeze": 38, "LayerNormalization": 33, "Einsum": 24, "GatherND": 24, "Pad": 8, "Resize": 2},
    ),
    "conformer": (
        1130,
        {"Add": 242, "MatMul": 194, "Transpose": 129, "Reshape": 117, "Mul": 98, "LayerNormalization": 80}
        | {"Sigmoid": 64, "Conv": 50, "Slice": 32, "Pad": 16, "Where": 16, "Softmax": 16, "Split": 16},
    ),
    "codebert": (
        442,
        {"Add": 123, "MatMul": 96, "Reshape": 48, "Transpose": 48, "Mul": 37, "LayerNormalization": 25, "Softmax": 12}
        | {"Erf": 12, "Shape": 2},
    ),
    "yolov6": (
        248,
        {"Conv": 69, "Relu": 54, "Concat": 21, "Reshape": 18, "Mul": 13, "Sigmoid": 12, "Expand": 10, "Shape": 7}
        | {"Range": 6, "MaxPool": 3, "ConvTranspose": 2},
    ),
    "dgnet": (  # 48 comparisons make masks, 16 are our block decisions
        614,
        {"If": 16, "Conv": 137, "Relu": 97, "Mul": 80, "GreaterOrEqual": 48 + 16, "Cast": 48, "ReduceMean": 33}
        | {"Resize": 32, "AveragePool": 16},
    ),
    "skipnet": (
        719,
        {"If": 32, "LSTM": 32, "Conv": 136, "Relu": 100, "Reshape": 97, "Slice": 62, "Gemm": 33, "ReduceMean": 33},
    ),
    "convnet_aig": (286, {"Conv": 85, "Relu": 81, "Gather": 32, "ReduceMean": 17, "Greater": 16, "If": 16}),
    "ranet": (1688, {"Resize": 204, "If": 7}),
    "blockdrop": (405, {"Conv": 116, "Relu": 109, "Add": 37, "Reshape": 35, "Gather": 33, "If": 33}),
}

SMALL_GMACS = [  # (model, value of every symbolic dim, 10^9 multiply-adds with all branches)
    ("sde", 64, 8.46),
    ("sam", 64, 5.31),
    ("conformer", 128, 1.23),
    ("codebert", 32, 2.74),
    ("yolov6", 7, 0.69),
    ("dgnet", 224, 4.10),
    ("skipnet", 224, 7.80),
    ("convnet_aig", 224, 4.09),
    ("blockdrop", 224, 8.04),
]
LARGE_GMACS = [
    ("sde", 128, 33.9),
    ("sde", 224, 104.2),
    ("sam", 128, 8.60),
    ("sam", 224, 17.78),
    ("conformer", 384, 3.87),
    ("codebert", 128, 11.2),
    ("codebert", 384, 35.3),
    ("yolov6", 20, 5.66),
    ("skipnet", 640, 63.7),
    ("convnet_aig", 640, 33.4),
    ("blockdrop", 640, 65.5),
]
SKIPPED_GMACS = {"dgnet": 0.491, "skipnet": 0.66, "convnet_aig": 0.48, "blockdrop": 0.72}  # GMAC at 224, no block run
