"""Many small models in one library: one run of the C compiler instead of hundreds.

The generated files are concatenated, with a number behind every file-level name, and linked with the runtime once. The
runtime runs one program, so the one to load is copied there first; loaded models of a batch must not be mixed. C is
optimised little: such models run once.
"""

import ctypes
import functools
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import onnx

from sod2 import Options, compiler
from sod2.artifact import CompiledModel
from sod2.codegen import model as model_c
from sod2.codegen.target import Target, compile_objects, default_cache, host, link_shared, runtime_objects
from sod2.errors import ToolchainError

_DEFINED = re.compile(
    r"^(?:SOD2_DECIDE\(|(?:SOD2_INLINE|static|const sod2_program|enum \{)\b[^=({;]*?\*?)(\w+)(?:\[\])? ?[=({)]",
    re.MULTILINE,
)  # what a generated file defines at its top level
_FIXED = {"CHOICES"}
_HEAD = """#define sod2_main sod2_declared
#include "generated.h"
#undef sod2_main
"""


@functools.cache
def target() -> Target:
    """This machine with a compiler that optimises little."""
    found = host()
    return replace(found, cflags=tuple("-O1" if flag == "-O3" else flag for flag in found.cflags))


def prepare() -> None:
    """Compile the runtime: what every batch needs, once."""
    runtime_objects(target(), default_cache() / "objects")


def numbered(source: str, number: int) -> str:
    """A generated file whose file-level names end in a number, without its include."""
    names = {m[1] for m in _DEFINED.finditer(source)} | _FIXED
    pattern = rf"(?<![.\w>\"])({'|'.join(sorted(names, key=len, reverse=True))})\b"
    return re.sub(pattern, rf"\1_{number}", source).replace('#include "generated.h"', "")


class Batch:
    """Models compiled together; `problems` says of some why they could not be compiled. Options of all, or by name."""

    def __init__(
        self,
        folder: Path,
        sources: Mapping[str, onnx.ModelProto],
        options: Options | Mapping[str, Options] | None = None,
    ) -> None:
        self.folder = folder
        self.numbers: dict[str, int] = {}
        self.problems: dict[str, str] = {}
        parts: dict[str, str] = {}
        for name, source in sources.items():
            try:
                chosen = options[name] if isinstance(options, Mapping) else options or Options()
                parts[name] = self._emit(name, source, chosen)
            except Exception as error:  # also one that is no error of ours, which must not hide the other models
                self.problems[name] = f"{type(error).__name__}: {' '.join(str(error).split())}"
        for name, error in self._refused(parts).items():
            self.problems[name] = f"ToolchainError: {' '.join(str(error).split())}"
            del parts[name]
        self.numbers = {name: self.numbers[name] for name in parts}
        runtime = runtime_objects(target(), default_cache() / "objects")
        link_shared(target(), [self._compiled(parts), *runtime], self.folder / "batch.so")

    def _emit(self, name: str, source: onnx.ModelProto, options: Options) -> str:
        emission = compiler.emit(source, options, target())
        number = len(self.numbers)
        digest = emission.weights.digest()
        text = numbered(model_c.source(emission, digest, options.dmp), number)
        home = self.folder / str(number)
        home.mkdir(parents=True)
        emission.weights.write(home / "weights.bin", digest)
        (home / "manifest.json").write_text(json.dumps(dict.fromkeys(("code", "tables", "target", "weight_bytes"))))
        (home / "model.so").symlink_to(self.folder / "batch.so")
        self.numbers[name] = number
        return text

    def _refused(self, parts: Mapping[str, str]) -> dict[str, ToolchainError]:
        """The models whose code the C compiler refuses, found by halving."""
        try:
            self._compiled(parts)
        except ToolchainError as error:
            names = list(parts)
            if len(names) == 1:
                return {names[0]: error}
            halves = names[: len(names) // 2], names[len(names) // 2 :]
            return {n: e for half in halves for n, e in self._refused({n: parts[n] for n in half}).items()}
        return {}

    def _compiled(self, parts: Mapping[str, str]) -> Path:
        """The object of some models; it is cached."""
        programs = "".join(
            f"  if (number == {k}) sod2_main = sod2_main_{k};\n" for k in (self.numbers[n] for n in parts)
        )
        source = self.folder / "batch.c"
        source.write_text(
            f"{_HEAD}{''.join(parts.values())}\nsod2_program sod2_main;\n"
            f"void batch_select(int number);\nvoid batch_select(int number) {{\n  (void)number;\n{programs}}}\n"
        )
        (found,) = compile_objects(target(), [source], [], self.folder / "objects")
        return found

    def load(self, name: str, threads: int = 1) -> CompiledModel:
        """One of the models, which has no problem; use it before the next one is loaded."""
        number = self.numbers[name]
        ctypes.CDLL(str(self.folder / "batch.so")).batch_select(number)
        return CompiledModel(self.folder / str(number), threads)
