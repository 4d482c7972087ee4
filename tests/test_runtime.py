"""The runtime over a hand-written program: C interface, plan cache, messages, the bench executable and its protocol.

The oracle of the numbers is numpy; of the memory, the sizes that tests/tiny_program.c declares.
"""

import ctypes
import json
import mmap
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from sod2.codegen import target
from sod2.codegen.target import RUNTIME

TESTS = Path(__file__).parent
WEIGHTS = np.array([1.5, -2.0, 0.25], np.float32)
DIGEST = b"0123456789abcdef0123456789abcdef"
OK, ERROR_FILE, ERROR_INPUT, ERROR_MEMORY = range(4)
MODEL = ("model.c", "plan.c", "mapping.c", "weights.c", "arena.c", "placing.c", "blocks.c", "threads.c")
BENCH = (*MODEL, "bench.c", "npy.c", "protocol.c")
PAGE = mmap.PAGESIZE
PLANS = int(re.findall(r"SOD2_PLANS (\d+)", (RUNTIME / "model.h").read_text())[0])


class Tensor(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("dtype", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("dims", ctypes.c_int64 * 8),
        ("data", ctypes.c_void_p),
    )


class Stats(ctypes.Structure):
    _fields_ = (
        ("arena_bytes", ctypes.c_int64),
        ("live_bytes", ctypes.c_int64),
        ("reserved_bytes", ctypes.c_int64),
        ("weight_bytes", ctypes.c_int64),
        ("bind_ns", ctypes.c_int64),
        ("threads", ctypes.c_int32),
    )


def header(digest: bytes = DIGEST, size: int = WEIGHTS.nbytes, magic: bytes = b"SOD2WTS1") -> bytes:
    return magic + size.to_bytes(8, "little") + digest + bytes(16)


def expected(x: np.ndarray, shift: np.ndarray) -> np.ndarray:
    return np.maximum(x * WEIGHTS + shift.astype(np.float32), 0)


def sample(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, 3), np.float32), rng.integers(-2, 3, 3)


def arena_bytes(n: int, threads: int) -> int:
    """Both matrices are live at the second step; the first holds one of them and 16 bytes a thread."""
    matrix, scratch = -(-12 * n // 64) * 64, -(-16 * threads // 64) * 64
    return matrix + max(matrix, scratch)


def objects(built: target.Target, folder: Path, names: Sequence[str], *others: Path) -> list[Path]:
    return target.compile_objects(built, [*(RUNTIME / name for name in names), *others], [TESTS], folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """weights.bin, and beside it the program as a shared library and as a bench executable."""
    folder = tmp_path_factory.mktemp("tiny")
    (folder / "weights.bin").write_bytes(header() + WEIGHTS.tobytes())
    host, program = target.host(), TESTS / "tiny_program.c"
    target.link_shared(host, objects(host, folder / "o", MODEL, program), folder / "tiny.so")
    target.link_executable(host, objects(host, folder / "o", (*BENCH, "memhook.c"), program), folder / "bench")
    return folder


@pytest.fixture(scope="module")
def library(folder: Path) -> ctypes.CDLL:
    library = ctypes.CDLL(str(folder / "tiny.so"))
    library.sod2_message.restype = ctypes.c_char_p
    library.sod2_step_name.restype = ctypes.c_char_p
    library.sod2_input.restype = library.sod2_output.restype = Tensor
    library.sod2_get_stats.restype = Stats
    library.sod2_step_ns.restype = ctypes.POINTER(ctypes.c_int64)
    return library


class Model:
    """A thin hold on the C interface."""

    def __init__(self, library: ctypes.CDLL, weights: Path, threads: int = 1) -> None:
        self.c, self.pointer = library, ctypes.c_void_p()
        self.status = library.sod2_load(str(weights).encode(), threads, ctypes.byref(self.pointer))

    def message(self) -> str:
        return self.c.sod2_message().decode()

    def stats(self) -> Stats:
        return self.c.sod2_get_stats(self.pointer)

    def bind(self, *dims: int) -> int:
        return self.c.sod2_bind(self.pointer, (ctypes.c_int64 * len(dims))(*dims))

    def run(self, x: np.ndarray | None, shift: np.ndarray) -> int:
        inputs = [None if array is None else array.ctypes.data for array in (x, shift)]
        return self.c.sod2_run(self.pointer, (ctypes.c_void_p * 2)(*inputs))

    def output(self, index: int) -> np.ndarray:
        tensor = self.c.sod2_output(self.pointer, index)
        shape = tuple(tensor.dims[: tensor.rank])
        size = int(np.prod(shape))
        return np.frombuffer(ctypes.string_at(tensor.data, 4 * size), np.float32).reshape(shape)

    def __call__(self, x: np.ndarray, shift: np.ndarray) -> np.ndarray:
        assert self.bind(*x.shape, *shift.shape) == OK, self.message()
        assert self.run(x, shift) == OK, self.message()
        return self.output(0)


@pytest.fixture
def model(library: ctypes.CDLL, folder: Path) -> Iterator[Model]:
    model = Model(library, folder / "weights.bin", threads=2)
    assert model.status == OK, model.message()
    yield model
    library.sod2_free(model.pointer)


@pytest.mark.parametrize("n", [0, 1, 5, 100, 1000, 100_000])
def test_runs_at_any_size(model: Model, n: int) -> None:
    x, shift = sample(n)
    np.testing.assert_allclose(model(x, shift), expected(x, shift), rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(model.output(1), x)  # this output is an input
    stats = model.stats()
    assert stats.arena_bytes == stats.live_bytes == arena_bytes(n, 2)
    assert stats.reserved_bytes == -(-stats.arena_bytes // PAGE) * PAGE
    assert (stats.threads, stats.weight_bytes) == (2, 12)


def test_history_changes_no_bit(model: Model) -> None:
    a, b = sample(1000), sample(3, seed=1)
    first = model(*a).tobytes()
    model(*b)
    assert model.stats().reserved_bytes == -(-arena_bytes(1000, 2) // PAGE) * PAGE  # kept for the next large shape
    assert model(*a).tobytes() == first


def test_the_plan_cache_is_bounded_and_forgets_the_oldest(model: Model) -> None:
    def is_remembered(n: int) -> bool:
        """Whether binding n leaves bind_ns alone; made certain by the clock having moved on between two binds."""
        before = model.stats().bind_ns
        assert model.bind(n, 3, 3) == OK
        return model.stats().bind_ns == before

    for n in range(100, 100 + PLANS):
        assert model.bind(n, 3, 3) == OK
    x, shift = sample(100)
    assert is_remembered(100)
    model(x, shift)  # the oldest becomes the newest
    assert model.bind(1000, 3, 4) != OK  # a refused one takes no place
    assert is_remembered(101)
    assert model.bind(1000, 3, 3) == OK  # one too many: 102 goes
    assert all(is_remembered(n) for n in (100, 101, *range(103, 100 + PLANS)))
    assert not is_remembered(102)
    np.testing.assert_allclose(model(*sample(101)), expected(*sample(101)), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(model(x, shift), expected(x, shift), rtol=1e-6, atol=1e-6)


def test_trim_gives_the_arena_back(model: Model) -> None:
    x, shift = sample(1000)
    model(x, shift)
    model.c.sod2_trim(model.pointer)
    assert model.stats().reserved_bytes == 0
    assert not model.c.sod2_output(model.pointer, 0).data
    assert model.run(x, shift) == OK  # still bound
    np.testing.assert_allclose(model.output(0), expected(x, shift), rtol=1e-6, atol=1e-6)


def test_profile_times_every_step(model: Model) -> None:
    assert [model.c.sod2_step_name(model.pointer, i) for i in range(-1, 3)] == [None, b"scale", b"relu", None]
    model.c.sod2_profile(model.pointer, 1)
    model(*sample(100_000))
    assert all(ns > 0 for ns in model.c.sod2_step_ns(model.pointer)[:2])
    model.c.sod2_profile(model.pointer, 0)
    model(*sample(100_000))
    assert model.c.sod2_step_ns(model.pointer)[:2] == [0, 0]


def test_declarations(model: Model) -> None:
    c, pointer = model.c, model.pointer
    assert (c.sod2_input_count(pointer), c.sod2_output_count(pointer)) == (2, 2)
    x, y = c.sod2_input(pointer, 0), c.sod2_output(pointer, 0)
    assert (x.name, x.dtype, x.dims[: x.rank], x.data) == (b"x", 1, [-1, 3], None)
    assert (y.name, y.dtype, y.dims[: y.rank], y.data) == (b"y", 1, [-1, 3], None)
    assert c.sod2_input(pointer, 2).name is None
    assert c.sod2_output(pointer, -1).name is None


@pytest.mark.parametrize(
    ("dims", "status", "text"),
    [
        ((7, 3, 3), ERROR_INPUT, "input x: dim 0 is 7, accepted is anything else"),
        ((5, 4, 3), ERROR_INPUT, "input x: dim 1 is 4, accepted is 3"),
        ((5, 3, 2), ERROR_INPUT, "input shift: dim 0 is 2, accepted is 3"),
        ((-1, 3, 3), ERROR_INPUT, "input x: dim 0 is -1, accepted is 0 or more"),
        ((2**62, 3, 3), ERROR_MEMORY, "model tiny needs more than 2^62 bytes at these input dims"),
        ((2**58, 3, 3), ERROR_MEMORY, "model tiny needs more than 2^62 bytes at these input dims"),
        ((2**45, 3, 3), ERROR_MEMORY, "no memory for the 844424930131968 bytes that model tiny needs"),
    ],
)
def test_a_refused_bind_leaves_the_model_as_it_was(model: Model, dims: tuple[int, ...], status: int, text: str) -> None:
    x, shift = sample(5)
    model(x, shift)
    assert model.bind(*dims) == status
    assert text in model.message()
    assert model.run(x, shift) == OK
    np.testing.assert_allclose(model.output(0), expected(x, shift), rtol=1e-6, atol=1e-6)


def test_run_needs_a_bind_and_inputs(model: Model) -> None:
    x, shift = sample(5)
    assert model.run(x, shift) == ERROR_INPUT
    assert model.message() == "model tiny is not bound: sod2_bind comes before sod2_run"
    assert model.bind(5, 3, 3) == OK
    assert model.run(None, shift) == ERROR_INPUT
    assert model.message() == "input x is NULL, accepted is the address of its elements"
    assert model.bind(0, 3, 3) == OK
    assert model.run(None, shift) == OK  # nothing to read


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, "cannot open the weights .*: No such file"),
        (b"", "is not a weights file: it does not start with SOD2WTS1"),
        (header(magic=b"SOD2WTS0") + bytes(12), "is not a weights file"),
        (header(digest=b"f" * 32) + bytes(12), "belongs to another model: its digest is ffff.*, model tiny needs 0123"),
        (header(size=16) + bytes(16), "belongs to another model"),
        (header() + bytes(11), "has 75 bytes, its header says 76"),
        (header() + bytes(13), "has 77 bytes, its header says 76"),
    ],
)
def test_a_wrong_weights_file_is_refused(
    library: ctypes.CDLL, tmp_path: Path, content: bytes | None, text: str
) -> None:
    path = tmp_path / "weights.bin"
    if content is not None:
        path.write_bytes(content)
    model = Model(library, path)
    assert model.status == ERROR_FILE
    assert not model.pointer
    assert re.search(text, model.message())
    assert str(path) in model.message()


def test_the_version_is_the_package_s() -> None:
    project = tomllib.loads((TESTS.parent / "pyproject.toml").read_text())["project"]
    assert f'#define SOD2_VERSION "{project["version"]}"' in (RUNTIME / "sod2.h").read_text()


def test_a_wrong_number_of_threads_is_refused(library: ctypes.CDLL, folder: Path) -> None:
    model = Model(library, folder / "weights.bin", threads=0)
    assert model.status == ERROR_INPUT
    assert model.message() == "threads is 0, accepted are 1 to 1024"


# ---- the bench executable -------------------------------------------------------------------------------------------


def write_samples(folder: Path, sizes: Sequence[int]) -> None:
    folder.mkdir()
    for i, n in enumerate(sizes):
        for k, array in enumerate(sample(n, seed=i)):
            np.save(folder / f"{i}.{k}.npy", array)


def talk(bench: Path, samples: Path, commands: str, threads: int = 2) -> tuple[int, list[dict[str, object]]]:
    done = subprocess.run(
        [bench, samples, str(threads)], input=commands, capture_output=True, text=True, timeout=20, check=False
    )
    assert done.stderr == ""
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]


def test_bench_protocol(folder: Path, tmp_path: Path) -> None:
    sizes = (30_000, 10, 0)
    write_samples(tmp_path / "samples", sizes)
    out = tmp_path / "out"
    out.mkdir()
    status, lines = talk(
        folder / "bench", tmp_path / "samples", f"run 0 3\nrun 1 2 {out}\nrun 0 1 {out}\nrun 2 1 {out}\nquit\n"
    )
    assert status == 0
    ready, *rows = lines
    assert {key: ready[key] for key in ("ready", "engine", "threads", "weight_bytes")} == {
        "ready": True, "engine": "sod2", "threads": 2, "weight_bytes": 12,
    }  # fmt: skip
    assert ready["load_ns"] > 0
    assert [(row["sample"], row["repeat"], row["first"]) for row in rows] == [
        (0, 0, True), (0, 1, False), (0, 2, False), (1, 0, True), (1, 1, False), (0, 0, False), (2, 0, True),
    ]  # fmt: skip
    for row in rows:
        arena = arena_bytes(sizes[row["sample"]], 2)
        assert row["own_bytes"] == arena
        held = arena_bytes(sizes[0], 2)  # the largest sample ran first, and its arena stays
        assert held <= row["peak_bytes"] <= held + PAGE + 4096  # whole pages, and the plan of new dims
        assert 0 < row["bind_ns"] < row["latency_ns"]
        assert row["copy_ns"] == 0
    for i, n in enumerate(sizes):
        x, shift = sample(n, seed=i)
        y, same = np.load(out / f"{i}.0.npy"), np.load(out / f"{i}.1.npy")
        np.testing.assert_allclose(y, expected(x, shift), rtol=1e-6, atol=1e-6)
        np.testing.assert_array_equal(same, x)
        assert same.shape == x.shape


def test_bench_answers_an_unknown_command_and_goes_on(folder: Path, tmp_path: Path) -> None:
    write_samples(tmp_path / "samples", [4])
    status, lines = talk(folder / "bench", tmp_path / "samples", 'jump "1"\nrun 0\nrun 0 1\n')
    assert status == 0
    accepted = "accepted are: run SAMPLE COUNT [FOLDER], quit"
    assert lines[1] == {"error": f"unknown command 'jump \"1\"', {accepted}"}
    assert lines[2] == {"error": f"unknown command 'run 0', {accepted}"}
    assert lines[3]["sample"] == 0


@pytest.mark.parametrize(
    ("array", "text"),
    [
        (None, "cannot open .*0.0.npy: No such file"),
        (np.zeros((5, 3)), "0.0.npy is float64 of rank 2, input x is float32 of rank 2"),
        (np.zeros(3, np.float32), "0.0.npy is float32 of rank 1, input x is float32 of rank 2"),
        (np.zeros((5, 3), np.float32, order="F"), "is not a .npy file in C order"),
        (np.zeros((7, 3), np.float32), "input x: dim 0 is 7, accepted is anything else"),
        (b"", "is not a .npy file"),
        (b"\x93NUMPY\x01\x00\x10\x00{'descr': '<f4'}", "is not a .npy file"),
    ],
)
def test_bench_refuses_a_wrong_sample(
    folder: Path, tmp_path: Path, array: np.ndarray | bytes | None, text: str
) -> None:
    write_samples(tmp_path / "samples", [4])
    path = tmp_path / "samples" / "0.0.npy"
    path.unlink()
    if isinstance(array, bytes):
        path.write_bytes(array)
    elif array is not None:
        np.save(path, array)
    status, lines = talk(folder / "bench", tmp_path / "samples", "run 0 1\nrun 0 1\n")
    assert status == 1
    assert len(lines) == 2
    assert re.search(text, lines[1]["error"])


def test_bench_refuses_truncated_data(folder: Path, tmp_path: Path) -> None:
    write_samples(tmp_path / "samples", [4])
    path = tmp_path / "samples" / "0.0.npy"
    path.write_bytes(path.read_bytes()[:-1])
    status, lines = talk(folder / "bench", tmp_path / "samples", "run 0 1\n")
    assert (status, lines[1]) == (1, {"error": f"{path} has not the 48 bytes of data that its header says"})


def test_bench_refuses_a_wrong_number_of_threads(folder: Path, tmp_path: Path) -> None:
    assert talk(folder / "bench", tmp_path, "", threads=0) == (
        1, [{"error": "THREADS is 0, accepted are 1 to 1024"}],
    )  # fmt: skip


def test_the_sanitizers_find_nothing(folder: Path, tmp_path: Path) -> None:
    """The hook replaces malloc as the sanitizer does, so that here its counters are constants."""
    if "ziglang" in target.toolchain():
        pytest.skip("zig has no address sanitizer")
    hook = tmp_path / "hook.c"
    hook.write_text(
        "#include <stdint.h>\n"
        "int64_t sod2_hook_live(void) { return 0; }\nint64_t sod2_hook_peak(void) { return 0; }\n"
        "void sod2_hook_reset(void) {}\n"
    )
    checked = target.host(sanitize=True)
    built = objects(checked, tmp_path / "o", BENCH, TESTS / "tiny_program.c", hook)
    target.link_executable(checked, built, tmp_path / "bench")
    (tmp_path / "weights.bin").write_bytes((folder / "weights.bin").read_bytes())
    write_samples(tmp_path / "samples", [100, 0, 1, *range(200, 240)])
    commands = [f"run {i} 2 {tmp_path}" for i in (*range(43), *range(43))]
    status, lines = talk(tmp_path / "bench", tmp_path / "samples", "\n".join(commands))
    assert (status, len(lines)) == (0, 1 + 4 * 43)


# ---- the memory hook, preloaded -------------------------------------------------------------------------------------

HOOKED = r"""
import ctypes, mmap, os
import numpy as np
hook = ctypes.CDLL(None, use_errno=True)
hook.sod2_hook_live.restype = hook.sod2_hook_peak.restype = ctypes.c_int64
for name in ("mmap", "mremap", "malloc", "realloc", "calloc", "aligned_alloc"):
    getattr(hook, name).restype = ctypes.c_void_p
P, MIB = mmap.PAGESIZE, 1 << 20
PRIVATE_ANONYMOUS, FIXED, STACK = 0x22, 0x10, 0x20000
pointer, size = ctypes.c_void_p, ctypes.c_size_t
def map_(length, at=None, protection=3, flags=PRIVATE_ANONYMOUS, fd=-1):
    return hook.mmap(pointer(at), size(length), protection, flags, fd, size(0))
def unmap(at, length): assert hook.munmap(pointer(at), size(length)) == 0
live = hook.sod2_hook_live

def expect(wanted):
    pages = (live() - base) / P   # Python's own heap moves it by less than half a page
    assert round(pages) == wanted, (pages, wanted)

base = live()
a = map_(10 * P); expect(10)
unmap(a + 4 * P, 2 * P); expect(8)             # a hole in the middle
unmap(a + 4 * P, 2 * P); expect(8)             # nothing is there any more
unmap(a + 3 * P, 4 * P); expect(6)             # over the hole: one page on either side
map_(2 * P, a, flags=PRIVATE_ANONYMOUS | FIXED); expect(6)   # over counted pages
map_(2 * P, a, protection=0, flags=PRIVATE_ANONYMOUS | FIXED); expect(4)   # a reservation takes their place
unmap(a, 10 * P); expect(0)
b = map_(3 * P + 1); expect(4)                 # whole pages
c = hook.mremap(pointer(b), size(4 * P), size(64 * P), 1); expect(64)
c = hook.mremap(pointer(c), size(64 * P), size(2 * P), 0); expect(2)
assert hook.mremap(pointer(c), size(2 * P), size(1 << 60), 1) in (None, 2**64 - 1); expect(2)
unmap(c, 2 * P); expect(0)
d = map_(4 * P, protection=0); expect(0)
e = map_(4 * P, flags=PRIVATE_ANONYMOUS | STACK); expect(0)
f = map_(4 * P, protection=1, flags=2, fd=os.open("/proc/self/exe", os.O_RDONLY)); expect(0)
many = [map_(P, protection=3 if i % 2 else 1) for i in range(100)]; expect(100)
for at in many[::2] + many[1::2]: unmap(at, P)
expect(0)

base = live()
hook.sod2_hook_reset()
x = np.zeros(64 * MIB, np.uint8)
assert 64 * MIB <= live() - base < 64 * MIB + 2 * P
del x
assert abs(live() - base) < 2 * P
assert 64 * MIB <= hook.sod2_hook_peak() - base < 64 * MIB + 2 * P
hook.sod2_hook_reset()
assert hook.sod2_hook_peak() - live() < P
p = hook.malloc(size(10 * MIB)); p = hook.realloc(pointer(p), size(30 * MIB))
q = hook.aligned_alloc(size(4096), size(MIB)); r = hook.calloc(size(1024), size(1024))
assert 32 * MIB <= live() - base < 32 * MIB + 8 * P
assert hook.realloc(pointer(p), size(1 << 60)) is None
assert 32 * MIB <= live() - base < 32 * MIB + 8 * P
for block in (p, q, r): hook.free(pointer(block))
assert hook.realloc(pointer(hook.malloc(size(MIB))), size(0)) is None
assert abs(live() - base) < 2 * P
assert hook.sod2_hook_peak() - base < 33 * MIB
print("good")
"""


def test_memhook_counts_heap_and_mappings(tmp_path: Path) -> None:
    host = target.host()
    library = target.link_shared(host, objects(host, tmp_path / "o", ["memhook.c"]), tmp_path / "libmemhook.so")
    done = subprocess.run(
        [sys.executable, "-c", HOOKED], env={"LD_PRELOAD": str(library)}, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("good\n", "")
