"""TVM on Android: its RPC server on the phone, and a client of it here (tvm_rpc_client.py).

TVM has no package for Android. Whoever has built its runtime for one has `tvm_rpc`, which a device's file names; it
must be of the release that tvm_runner.py pins. The model is compiled and linked here, since a phone has no linker, and
pushed with the server. A turn of the engine is a call of TVM's time evaluator, whose clock is the phone's: it runs once
untimed, so first runs are in no number, and once timed. Neither loading nor memory is counted, and the limit of memory
holds for the server, not for the process that it forks; threads are those that it was asked for.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import tempfile
from collections.abc import Sequence
from pathlib import Path

from baselines import bundle, environment
from baselines.session import Answer, EngineFailure, Limits, Session
from devices import device as devices
from devices.device import Device

SERVER = "tvm_rpc"
CLIENT = Path(__file__).with_name("tvm_rpc_client.py")
RUNNER = Path(__file__).with_name("tvm_runner.py")
END_S = 2.0
"""How long a server that cannot run, or has lost its connection, may take to end."""


def place_client(out: Path) -> list[str]:
    """Put the client into the bundle's folder; returns the words that start it there."""
    for source in (CLIENT, bundle.RUNNER):
        shutil.copyfile(source, out / source.name)
    return [bundle.relative(environment.python(RUNNER), out), CLIENT.name]


class RpcSession:
    """Turns of the engine whose server this is."""

    def __init__(
        self,
        device: Device,
        folder: Path,
        command: Sequence[str],
        *,
        samples: Path,
        outputs: str,
        threads: int,
        limits: Limits,
    ) -> None:
        """The command is that of the server, then that of the client. `samples` lie here, `outputs` on the device."""
        home, port = device.files.push(folder), _free_port()
        variables = f'LD_LIBRARY_PATH="${{0%/*}}" TVM_NUM_THREADS={threads} TVM_BIND_THREADS=0'
        arguments = ["server", "--host=127.0.0.1", f"--port={port}", f"--port-end={port + 1}"]
        # What it prints is its log; standard output belongs to the agent.
        server = ["sh", "-c", f'{variables} exec "$0" "$@" >&2', f"{home}/{command[0]}", *arguments]
        with contextlib.ExitStack() as resources:
            self._outputs = Path(resources.enter_context(tempfile.TemporaryDirectory()))
            self._server = resources.enter_context(device.start(server, outputs, limits.memory_bytes))
            if self._server.wait(END_S):
                raise EngineFailure(f"{SERVER} {self._server.end()}")
            here = resources.enter_context(device.driver.forward(port))
            # As the phone's own programs see it, not its scripts.
            whole = device.run(f"cd {device.files.absolute(home)} && pwd").decode().strip()
            client = [*command[1:], str(here), f"{whole}/model.so"]
            how = {"samples": str(samples.absolute()), "threads": threads, "limits": limits}
            try:
                self._client = Session(devices.load("host"), folder, client, **how)
            except EngineFailure as failure:
                raise self._cause(failure) from None
            resources.callback(self._client.kill)
            self._server.pause()
            self._resources = resources.pop_all()
        self.ready = self._client.ready

    def run(self, sample: int, repeats: int, outputs: str | None = None) -> list[Answer]:
        """As Session.run."""
        try:
            self._server.resume()
            lines = self._client.run(sample, repeats, str(self._outputs) if outputs else None)
            self._server.pause()
        except (BrokenPipeError, EngineFailure) as failure:
            cause = self._cause(failure)
            self.kill()
            raise cause from None
        return lines

    def pull(self, outputs: str) -> Path:
        """As Session.pull; the client has fetched them already."""
        return self._outputs

    def close(self) -> None:
        """Ask the client to quit, and end both processes."""
        with contextlib.suppress(BrokenPipeError):
            self._server.resume()
        self._client.close()
        self.kill()

    def kill(self) -> None:
        """End both processes at once."""
        self._resources.close()

    def _cause(self, failure: Exception) -> EngineFailure:
        """Why the client failed: the server's end, where it has ended; raises DeviceLost where the connection has."""
        if self._server.wait(END_S):
            return EngineFailure(f"{SERVER} {self._server.end()}")
        return EngineFailure(str(failure))


def _free_port() -> int:
    """A port that is free here, and so most likely on a phone too."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
