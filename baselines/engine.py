"""The engine contract: how a model becomes a bundle, and the rules that every runner measures by.

An engine is a module of this folder whose `ENGINE` is an instance of the class below; the name of the module is the
`adapter` of the configuration. Its `build` fills a folder that runs on a device by one command, the *bundle*. Started
in that folder with two more words, a folder of samples (`<i>.<k>.npy`: input k, in the model's order, of sample i) and
a number of threads, the command speaks JSON lines:

    prints    {"ready": true, "engine", "version", "threads", "weight_bytes", "load_ns"}
    reads     run I N [OUTPUTS]
    prints    N times {"sample", "repeat", "first", "latency_ns", "copy_ns", "bind_ns", "peak_bytes", "own_bytes"}
    reads     quit

Either line may also have `unscheduled`, the second `hwm_bytes` and `phases_ns` (rows.py says what they mean).
A failure is {"error": "one sentence"} and a non-zero status. With OUTPUTS, the outputs of the last inference lie there
as `<I>.<k>.npy` before its line is printed. Everything else that an engine prints goes to standard error.

Rules of measuring, the same for every engine:

* `latency_ns` runs from inputs in the engine's own buffers to outputs that the host can read in the model's layout.
  The first inference of a sample includes whatever a new shape costs (bind, resize, planning), given apart in
  `bind_ns` when the engine does it in a step of its own. Staging the inputs is `copy_ns`, outside the latency.
* `peak_bytes` is the peak of live bytes (heap and anonymous mappings, counted by runtime/memhook.c, preloaded or
  linked) during the inference and its bind, over the bytes that are live without any intermediate: those of the loaded
  model and of the staged inputs. Outputs, scratch and arenas count. Memory that an engine keeps from one inference to
  the next is memory it holds, so it counts too: an arena that never shrinks shows the largest sample so far. Samples
  are visited by ascending size, so this is the engine's own need, never a leftover of a larger sample. (Where first
  runs at new shapes are measured, figures/first_run.py, sizes descend, and nobody looks at the peak.)
* `weight_bytes` is what the loaded model keeps live (packed weights and the engine's description of the graph).
* `threads` is counted by the runner, not repeated from the request.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from devices.device import Device

FOLDER = Path(__file__).parent
ROOT = FOLDER.parent
HOOK = ROOT / "sod2" / "runtime" / "memhook.c"
PRELOAD = ("env", "LD_PRELOAD=./libmemhook.so")
"""Words before the command of a bundle that holds the hook; `env` itself is not hooked, its child is."""

Options = Mapping[str, object]


class EngineError(Exception):
    """An engine or an option of it does not exist."""


class Unsupported(Exception):
    """The engine cannot run this model, processor or option; the message says why. Not a failure."""


class BuildFailed(Exception):
    """The engine's own converter or compiler failed; costs the engine its row, never the run."""


class Engine(ABC):
    """One engine; stateless."""

    elsewhere: ClassVar[bool] = False
    """Whether bundles can be built for devices that are not this machine."""

    tolerance: ClassVar[float] = 1e-2
    """Largest error, as a share of the output's scale, that still counts as the right answer."""

    options: ClassVar[Mapping[str, tuple[object, ...]]] = {}
    """Options of the configuration and the values that each accepts."""

    sources: ClassVar[tuple[str, ...]] = ()
    """Files beside the module, as patterns from the repository's root, whose change makes a bundle stale."""

    def prepare(self, folder: Path, samples: Path) -> None:  # noqa: B027 - most engines need nothing of a sample
        """Add to a bundle what it needs of the samples in a folder, before it goes to the device; untimed.

        Raises BuildFailed.
        """

    @abstractmethod
    def version(self) -> str:
        """Version of the framework that `build` puts into the bundle."""

    @abstractmethod
    def build(self, model: Path, device: Device, processor: str, options: Options, out: Path) -> list[str]:
        """Fill the folder `out` for this ONNX file and return the command to run in it.

        Raises Unsupported or BuildFailed; any other exception is trouble of the harness and stops the run.
        """


@dataclass(frozen=True)
class Bundle:
    """What `bundle.json` says of a bundle's folder."""

    engine: str
    adapter: str
    version: str
    options: dict[str, object]
    tolerance: float
    command: list[str] = dataclasses.field(default_factory=list)
    unsupported: str | None = None
    failed: str | None = None
    build_ns: int | None = None

    def write(self, folder: Path) -> None:
        (folder / "bundle.json").write_text(json.dumps(dataclasses.asdict(self), indent=2) + "\n")

    @classmethod
    def read(cls, folder: Path) -> Bundle:
        return cls(**json.loads((folder / "bundle.json").read_text()))


def adapters() -> tuple[str, ...]:
    """Names of the modules here that define an engine."""
    return tuple(sorted(p.stem for p in FOLDER.glob("*.py") if "\nENGINE = " in p.read_text()))


def load(adapter: str) -> Engine:
    """The engine of `baselines/ADAPTER.py`; raises EngineError when there is none."""
    if adapter not in adapters():
        raise EngineError(f"adapter '{adapter}' has no engine in baselines/; known adapters: {', '.join(adapters())}")
    engine: Engine = importlib.import_module(f"baselines.{adapter}").ENGINE
    return engine


def check_options(adapter: str, options: Options) -> None:
    """Raise EngineError for an option or a value that the engine does not accept."""
    accepted = load(adapter).options
    for name, value in options.items():
        if name not in accepted:
            raise EngineError(f"adapter '{adapter}' has no option '{name}'; its options: {', '.join(accepted)}")
        # By type too, since 1 == True in Python.
        if not any(value == choice and type(value) is type(choice) for choice in accepted[name]):
            choices = ", ".join(json.dumps(choice) for choice in accepted[name])
            raise EngineError(
                f"option '{name}' of adapter '{adapter}' is {json.dumps(value)}; accepted values: {choices}"
            )


def build(
    out: Path, *, name: str, adapter: str, options: Options, model: Path, device: Device, processor: str
) -> Bundle:
    """Build the bundle of one engine into the existing folder `out`; unsupported and failed builds are bundles too."""
    check_options(adapter, options)
    engine = load(adapter)
    bundle = Bundle(name, adapter, engine.version(), dict(options), engine.tolerance)
    try:
        if device.platform is not None and not engine.elsewhere:
            raise Unsupported(
                f"adapter '{adapter}' builds for this machine alone, and {name} is asked for {device.name}"
            )
        started = time.monotonic_ns()
        command = engine.build(model, device, processor, options, out)
        bundle = dataclasses.replace(bundle, command=command, build_ns=time.monotonic_ns() - started)
    except Unsupported as reason:
        bundle = dataclasses.replace(bundle, unsupported=str(reason))
    except BuildFailed as reason:
        bundle = dataclasses.replace(bundle, failed=f"build failed: {reason}")
    bundle.write(out)
    return bundle


def prepare(bundle: Bundle, folder: Path, samples: Path) -> None:
    """Have the engine of a bundle prepare for samples; raises BuildFailed."""
    if bundle.adapter in adapters():
        load(bundle.adapter).prepare(folder, samples)


def add_hook(out: Path, device: Device) -> None:
    """Compile the counter of live bytes for the device into the bundle `out`, to be preloaded by PRELOAD."""
    # Here, so that reading the configuration does not load the compiler.
    from sod2.codegen import target  # noqa: PLC0415

    machine = device.target(static=False)
    objects = target.compile_objects(machine, [HOOK], (), target.default_cache() / "objects")
    target.link_shared(machine, objects, out / "libmemhook.so")


def fingerprint(adapter: str) -> str:
    """Digest of everything in the repository that a bundle of this engine is made by; changes make it stale."""
    return digest(f"baselines/{adapter}.py", "baselines/engine.py", "sod2/runtime/memhook.c", *load(adapter).sources)


def digest(*patterns: str) -> str:
    """Digest of the files that match the patterns (from the repository's root), names included."""
    state = hashlib.sha256()
    for path in sorted({p for pattern in patterns for p in ROOT.glob(pattern) if p.is_file()}):
        state.update(str(path.relative_to(ROOT)).encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return state.hexdigest()[:16]
