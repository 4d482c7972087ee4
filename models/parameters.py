"""Parameters of a model under construction, and the assembly of the finished ONNX file.

A model is composed with spox. Its parameters enter the composition as graph inputs, so that no weight is copied or
type-checked while the graph grows; `Parameters.assemble` then turns them into initializers and tidies the graph into
what an exporter writes: constants are initializers, spox's connecting `Identity` nodes are gone, shapes of
intermediates are declared as far as ONNX's own inference finds them.

Every array is drawn from a generator keyed by (seed, parameter name): a parameter's value depends on nothing else, so
adding a layer does not move the others. Names are those of the upstream checkpoint; where a BatchNorm has been folded
into its convolution the convolution keeps its name and gains a bias, and the two BatchNorm vectors are counted but
not stored. Matrices applied by MatMul are stored (in, out), the transpose of the checkpoint's `Linear.weight`.

`load` replaces the random values by those of a checkpoint (see models/checkpoint.py). Calibration then has no say:
BatchNorm statistics are the checkpoint's, and gates compare with zero.
"""

import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import spox
from onnx import ModelProto, numpy_helper

from models.assembly import declare_shapes, drop_connecting_identities, hoist_constants, scalar_loop_counters
from models.statistics import EPSILON, Batch

SEED = 2024
CALIBRATION = Path(__file__).parent / "calibration"

Draw = Callable[[np.random.Generator], np.ndarray]


def normal(shape: Sequence[int], std: float, mean: float = 0.0) -> Draw:
    """Independent normal float32 values of the given mean and standard deviation."""

    def draw(generator: np.random.Generator) -> np.ndarray:
        values = generator.standard_normal(tuple(shape), dtype=np.float32)
        values *= np.float32(std)
        values += np.float32(mean)
        return values

    return draw


def constant(value: float) -> Draw:
    """One number in place of random ones, float32."""
    return lambda _: np.full((), value, np.float32)


@dataclass(frozen=True)
class Folding:
    """A layer into whose weight and bias an affine map of its output channels is folded.

    `weight` (out, ...) and `bias` (out,) are the layer's own; `measure` makes calibration vectors from the layer's
    output over a batch; `affine` gives scale and shift per output channel from the calibration.
    """

    weight: Callable[[], np.ndarray]
    bias: Callable[[], np.ndarray] | None
    measure: Callable[[Batch], dict[str, np.ndarray]]
    affine: Callable[[], tuple[np.ndarray, np.ndarray]]

    def folded_weight(self) -> np.ndarray:
        """The weight of the layer and the map in one."""
        weight = self.weight()
        scale = np.broadcast_to(self.affine()[0], weight.shape[:1])
        return weight * scale.reshape(-1, *[1] * (weight.ndim - 1))

    def folded_bias(self) -> np.ndarray:
        """The bias of the layer and the map in one."""
        scale, shift = self.affine()
        return np.asarray(shift if self.bias is None else self.bias() * scale + shift)


class Parameters:
    """Declares the parameters of one model; `calibration` holds the measured vectors of its random weights.

    `upstream` are the checkpoint's parameters and `buffers` its running statistics, by name with their shapes;
    `foldings` are the folded layers by the name of their weight.
    """

    def __init__(self, calibration: Mapping[str, np.ndarray] | None = None, seed: int = SEED) -> None:
        self.calibration = dict(calibration or {})
        self.upstream: dict[str, tuple[int, ...]] = {}
        self.buffers: dict[str, tuple[int, ...]] = {}
        self.foldings: dict[str, Folding] = {}
        self._seed = seed
        self._checkpoint: Mapping[str, np.ndarray] | None = None
        self._variables: dict[str, spox.Var] = {}
        self._arrays: dict[str, Callable[[], np.ndarray]] = {}

    def count(self) -> int:
        """Number of scalar parameters in the upstream checkpoint of this architecture."""
        return sum(math.prod(shape) for shape in self.upstream.values())

    @property
    def loaded(self) -> bool:
        """Whether the values are a checkpoint's."""
        return self._checkpoint is not None

    def load(self, checkpoint: Mapping[str, np.ndarray]) -> None:
        """Take every parameter and buffer from `checkpoint`, which has them all in their shapes, instead of drawing."""
        self._checkpoint = checkpoint

    def reserve(self, name: str, shape: Sequence[int]) -> None:
        """Count an upstream parameter which the exported graph does not hold under that name."""
        if name in self.upstream:
            raise ValueError(f"parameter {name!r} is declared twice")
        self.upstream[name] = tuple(shape)

    def draw(self, name: str, draw: Draw) -> np.ndarray:
        """The value of parameter `name`: the checkpoint's, or one that depends on the seed and the name only."""
        if self._checkpoint is not None:
            return self._checkpoint[name]
        return draw(np.random.default_rng([self._seed, zlib.crc32(name.encode())]))

    def declare(self, name: str, shape: Sequence[int], draw: Draw, *, transposed: bool = False) -> spox.Var:
        """A float32 parameter, drawn by `draw`; with `transposed` the checkpoint has the transpose of this matrix."""
        self.reserve(name, shape[::-1] if transposed else shape)

        def array() -> np.ndarray:
            value = self.draw(name, draw)
            return value.T if transposed and self._checkpoint is not None else value

        return self.derive(name, shape, array)

    def derive(self, name: str, shape: Sequence[int], array: Callable[[], np.ndarray]) -> spox.Var:
        """A float32 initializer computed from checkpoint parameters that are reserved elsewhere."""
        if name in self._variables:
            raise ValueError(f"initializer {name!r} is declared twice")
        self._arrays[name] = array
        self._variables[name] = spox.argument(spox.Tensor(np.float32, tuple(shape)))
        return self._variables[name]

    def fold(self, name: str, shape: Sequence[int], folding: Folding) -> tuple[spox.Var, spox.Var]:
        """Weight (of the given shape) and bias of a folded layer."""
        weight = f"{name}.weight"
        self.foldings[weight] = folding
        return (
            self.derive(weight, shape, folding.folded_weight),
            self.derive(f"{name}.bias", shape[:1], folding.folded_bias),
        )

    def statistics(self, norm: str) -> tuple[np.ndarray, np.ndarray]:
        """Running mean of a BatchNorm, and the root of its running variance + epsilon."""
        if self._checkpoint is not None:
            variance = self._checkpoint[f"{norm}.running_var"]
            return self._checkpoint[f"{norm}.running_mean"], np.sqrt(variance + np.float32(EPSILON))
        return self.calibration[f"{norm}.mean"], self.calibration[f"{norm}.std"]

    def calibrated(self, name: str, untouched: float) -> np.ndarray:
        """A calibration vector, or the value that leaves a checkpoint's numbers as they are."""
        return np.full((), untouched, np.float32) if self._checkpoint is not None else self.calibration[name]

    def threshold(self, index: int) -> spox.Var:
        """What gate `index` compares with, a scalar: zero with a checkpoint, the calibrated value without."""

        def array() -> np.ndarray:
            values = self.calibrated("gates.threshold", 0.0)
            return values[index] if values.ndim else values

        return self.derive(f"gates.{index}.threshold", (), array)

    def array(self, name: str) -> np.ndarray:
        """The value of an initializer, float32."""
        return np.ascontiguousarray(self._arrays[name](), dtype=np.float32).reshape(self._variables_shape(name))

    def _variables_shape(self, name: str) -> tuple[int, ...]:
        shape = self._variables[name].unwrap_tensor().shape
        assert shape is not None
        return tuple(int(extent) for extent in shape)  # type: ignore[arg-type]

    def graph(self, name: str, inputs: Mapping[str, spox.Var], outputs: Mapping[str, spox.Var]) -> ModelProto:
        """The model without the arrays of its parameters, whose names are free in it."""
        model = spox.build({**inputs, **self._variables}, dict(outputs))
        model.graph.name = name
        del model.graph.input[len(inputs) :]
        hoist_constants(model.graph)
        scalar_loop_counters(model.graph)
        drop_connecting_identities(model.graph)
        return model

    def assemble(self, name: str, inputs: Mapping[str, spox.Var], outputs: Mapping[str, spox.Var]) -> ModelProto:
        """The finished model: graph inputs `inputs`, every declared parameter an initializer with its array."""
        model = self.graph(name, inputs, outputs)
        for parameter in self._arrays:
            model.graph.initializer.append(numpy_helper.from_array(self.array(parameter), parameter))
        _drop_pool_indices(model)
        declare_shapes(model)
        return model


def _drop_pool_indices(model: ModelProto) -> None:
    """Remove the second output of MaxPool: exporters declare it only where it is read, and it slows engines down."""
    for node in model.graph.node:
        if node.op_type == "MaxPool" and len(node.output) == 2:
            del node.output[1:]


def read_calibration(name: str, variant: str) -> dict[str, np.ndarray]:
    """The committed calibration of a model's random weights, as float32 vectors by name."""
    path = CALIBRATION / f"{name}-{variant}.npz"
    if not path.is_file():
        raise FileNotFoundError(f"{path.name} is missing: `python -m models calibrate {name}` writes it")
    with np.load(path) as stored:
        return {key: stored[key].astype(np.float32) for key in stored.files}
