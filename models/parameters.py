"""Parameters of a model under construction, and the assembly of the finished ONNX file.

A model is composed with spox. Its parameters enter the composition as graph inputs, so that no weight is copied or
type-checked while the graph grows; `Parameters.assemble` then turns them into initializers and tidies the graph into
what an exporter writes: constants are initializers, spox's connecting `Identity` nodes are gone, intermediates carry
no shape annotations.

Every array is drawn from a generator keyed by (seed, parameter name): a parameter's value depends on nothing else, so
adding a layer does not move the others. Names are those of the upstream checkpoint; where a BatchNorm has been folded
into its convolution the convolution keeps its name and gains a bias, and the two BatchNorm vectors are counted but
not stored. Matrices applied by MatMul are stored (in, out), the transpose of the checkpoint's `Linear.weight`.
"""

import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import spox
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, numpy_helper

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


class Parameters:
    """Declares the parameters of one model; `calibration` holds the measured vectors of its random weights."""

    def __init__(self, calibration: Mapping[str, np.ndarray] | None = None, seed: int = SEED) -> None:
        self.calibration = dict(calibration or {})
        self.upstream: dict[str, tuple[int, ...]] = {}
        self._seed = seed
        self._variables: dict[str, spox.Var] = {}
        self._arrays: dict[str, Callable[[], np.ndarray]] = {}

    def count(self) -> int:
        """Number of scalar parameters in the upstream checkpoint of this architecture."""
        return sum(math.prod(shape) for shape in self.upstream.values())

    def reserve(self, name: str, shape: Sequence[int]) -> None:
        """Count an upstream parameter which the exported graph does not hold under that name."""
        if name in self.upstream:
            raise ValueError(f"parameter {name!r} is declared twice")
        self.upstream[name] = tuple(shape)

    def draw(self, name: str, draw: Draw) -> np.ndarray:
        """The value of parameter `name`: depends on the seed and the name only."""
        return draw(np.random.default_rng([self._seed, zlib.crc32(name.encode())]))

    def declare(self, name: str, shape: Sequence[int], draw: Draw) -> spox.Var:
        """A float32 parameter of the checkpoint, drawn by `draw`."""
        self.reserve(name, shape)
        return self.derive(name, shape, lambda: self.draw(name, draw))

    def derive(self, name: str, shape: Sequence[int], array: Callable[[], np.ndarray]) -> spox.Var:
        """A float32 initializer computed from checkpoint parameters that are reserved elsewhere."""
        if name in self._variables:
            raise ValueError(f"initializer {name!r} is declared twice")
        self._arrays[name] = array
        self._variables[name] = spox.argument(spox.Tensor(np.float32, tuple(shape)))
        return self._variables[name]

    def assemble(self, name: str, inputs: Mapping[str, spox.Var], outputs: Mapping[str, spox.Var]) -> ModelProto:
        """The finished model: graph inputs `inputs`, every declared parameter an initializer with its array."""
        model = spox.build({**inputs, **self._variables}, dict(outputs))
        graph = model.graph
        graph.name = name
        del graph.input[len(inputs) :]
        _hoist_constants(graph)
        _drop_connecting_identities(graph)
        for parameter, array in self._arrays.items():
            value = np.ascontiguousarray(array(), dtype=np.float32)
            graph.initializer.append(numpy_helper.from_array(value, parameter))
        return model


def read_calibration(name: str, variant: str) -> dict[str, np.ndarray]:
    """The committed calibration of a model's random weights, as float32 vectors by name."""
    path = CALIBRATION / f"{name}-{variant}.npz"
    if not path.is_file():
        raise FileNotFoundError(f"{path.name} is missing: `python -m models calibrate {name}` writes it")
    with np.load(path) as stored:
        return {key: stored[key].astype(np.float32) for key in stored.files}


def subgraphs(node: NodeProto) -> list[GraphProto]:
    """The bodies of a control-flow node, in attribute order."""
    return [attribute.g for attribute in node.attribute if attribute.type == AttributeProto.GRAPH]


def rename(graph: GraphProto, names: Mapping[str, str]) -> None:
    """Replace value names where they are used or produced, in the graph and in every nested body."""
    for node in graph.node:
        for names_of in (node.input, node.output):
            for position, name in enumerate(names_of):
                if name in names:
                    names_of[position] = names[name]
        for body in subgraphs(node):
            rename(body, names)


def _hoist_constants(graph: GraphProto) -> None:
    """Turn the Constant nodes of all levels into initializers of the outermost graph, equal ones shared."""
    shared: dict[tuple[int, tuple[int, ...], bytes], str] = {}
    renamed: dict[str, str] = {}

    def collect(level: GraphProto) -> None:
        kept = []
        for node in level.node:
            if node.op_type == "Constant":
                tensor = node.attribute[0].t
                key = (tensor.data_type, tuple(tensor.dims), numpy_helper.to_array(tensor).tobytes())
                if key not in shared:
                    shared[key] = f"constant_{len(shared)}"
                    tensor.name = shared[key]
                    graph.initializer.append(tensor)
                renamed[node.output[0]] = shared[key]
            else:
                kept.append(node)
                for body in subgraphs(node):
                    collect(body)
        del level.node[:]
        level.node.extend(kept)

    collect(graph)
    rename(graph, renamed)


def _drop_connecting_identities(graph: GraphProto) -> None:
    """Remove each Identity that only gives an output its name; one that forwards a captured value has to stay."""
    outputs = {output.name for output in graph.output}
    produced = {name for node in graph.node for name in node.output}
    renamed: dict[str, str] = {}
    kept = []
    for node in graph.node:
        for body in subgraphs(node):
            _drop_connecting_identities(body)
        source = node.input[0] if node.input else ""
        connects = node.op_type == "Identity" and node.output[0] in outputs and source in produced
        if connects and source not in renamed and source not in outputs:
            renamed[source] = node.output[0]
        else:
            kept.append(node)
    nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in kept]
    del graph.node[:]
    graph.node.extend(nodes)
    rename(graph, renamed)
