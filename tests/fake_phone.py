"""A phone without a phone: the device's side of the adb protocol over TCP, for tests with the real adb server.

The server connects as to any device on the network (`adb connect`), so that everything above is exercised for real:
authorisation, the shell service with its separate streams and exit codes, dropped connections, reboots. Commands are
run by this machine's sh in a folder that looks like a phone's (fake_phone_root.py). As on Android, when the host goes
away the shell alone gets a hang-up, and what it has started lives on.

Written after the protocol's description in AOSP (packages/modules/adb: protocol.txt, shell_protocol.h). Only what the
driver uses: the services `shell,v2:`, `tcp:` and `reboot:`, no files service.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
import signal
import struct
import threading
import time
from pathlib import Path

from fake_phone_root import FLAVOURS, Root

CNXN, AUTH, OPEN, OKAY, CLSE, WRTE = (
    int.from_bytes(word, "little") for word in (b"CNXN", b"AUTH", b"OPEN", b"OKAY", b"CLSE", b"WRTE")
)
VERSION, LARGEST = 0x01000001, 256 * 1024
TOKEN, SIGNATURE, PUBLIC_KEY = 1, 2, 3
STDIN, STDOUT, STDERR, EXIT, CLOSE_STDIN = range(5)
START_S = 10


class Stream:
    """One open service on a connection."""

    def __init__(self, connection: Connection, local: int, remote: int) -> None:
        self.connection, self.local, self.remote = connection, local, remote
        self.inbox: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.acknowledged: asyncio.Queue[bool] = asyncio.Queue()
        self.unread = b""
        self.open = True

    async def write(self, data: bytes) -> None:
        """Send data, a message at a time; ConnectionResetError when the host has gone."""
        for begin in range(0, len(data), LARGEST // 2):
            if self.open:
                self.connection.send(WRTE, self.local, self.remote, data[begin : begin + LARGEST // 2])
            if not self.open or not await self.acknowledged.get():
                raise ConnectionResetError

    async def read(self, size: int) -> bytes:
        """Exactly so many bytes; ConnectionResetError when the host has gone."""
        while len(self.unread) < size:
            data = await self.inbox.get()
            if data is None:
                raise ConnectionResetError
            self.connection.send(OKAY, self.local, self.remote)
            self.unread += data
        data, self.unread = self.unread[:size], self.unread[size:]
        return data

    async def read_some(self) -> bytes:
        """What comes next; ConnectionResetError when the host has gone."""
        data = await self.read(1)
        data, self.unread = data + self.unread, b""
        return data

    def closed(self) -> None:
        """The host closed the stream or is gone."""
        self.open = False
        self.inbox.put_nowait(None)
        self.acknowledged.put_nowait(False)


class Connection:
    """One transport: what a cable is."""

    def __init__(self, phone: FakePhone, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.phone, self.reader, self.writer = phone, reader, writer
        self.streams: dict[int, Stream] = {}
        self.opened = 0
        self.services: set[asyncio.Task[None]] = set()

    def send(self, command: int, first: int, second: int, data: bytes = b"") -> None:
        """Write one message. In this version of the protocol checksums are looked at in the first ones only."""
        checksum = sum(data) if command in (CNXN, AUTH) else 0
        self.writer.write(struct.pack("<6I", command, first, second, len(data), checksum, command ^ 0xFFFFFFFF) + data)

    async def run(self) -> None:
        """Obey messages until the connection ends."""
        try:
            while True:
                command, first, second, size, *_ = struct.unpack("<6I", await self.reader.readexactly(24))
                await self.obey(command, first, second, await self.reader.readexactly(size))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            for stream in self.streams.values():
                stream.closed()
            self.writer.close()

    async def obey(self, command: int, first: int, second: int, data: bytes) -> None:
        """One message of the host."""
        if command in (CNXN, AUTH):
            await self.authorise(command, first)
        elif command == OPEN:
            self.opened += 1
            stream = self.streams[self.opened] = Stream(self, self.opened, first)
            service = asyncio.ensure_future(self.serve(stream, data.rstrip(b"\0").decode()))
            self.services.add(service)
            service.add_done_callback(self.services.discard)
        elif (known := self.streams.get(second)) is not None:
            if command == OKAY:
                known.acknowledged.put_nowait(True)
            elif command == WRTE:
                known.inbox.put_nowait(data)
            elif command == CLSE:
                known.closed()

    async def authorise(self, command: int, step: int) -> None:
        """Greet a host that is known; ask one that is not, first for a signature, then the user."""
        if command == AUTH and step == PUBLIC_KEY:
            while self.phone.state != "device":  # the question on the screen waits for a tap
                await asyncio.sleep(0.05)
        if self.phone.state == "device":
            self.greet()
        elif self.phone.state == "unauthorized":
            self.send(AUTH, TOKEN, 0, secrets.token_bytes(20))

    def greet(self) -> None:
        """Say who this is and what it can do."""
        properties = "".join(f"{key}={value};" for key, value in self.phone.root.properties.items() if "product" in key)
        self.send(CNXN, VERSION, LARGEST, f"device::{properties}features=shell_v2,cmd".encode())

    async def serve(self, stream: Stream, service: str) -> None:
        """Run a service until it ends."""
        name, _, argument = service.partition(":")
        known = 0  # what the host knows the stream by, once it has been told that the service is there
        try:
            if name.startswith("shell,v2"):
                known = self.accept(stream)
                await self.phone.shell(stream, argument)
            elif name == "tcp":  # the phone's ports are this machine's
                reader, writer = await asyncio.open_connection("127.0.0.1", int(argument))
                known = self.accept(stream)
                await _relay(stream, reader, writer)
            elif name == "reboot":
                known = self.accept(stream)
                self.phone.drop()
        except ConnectionError:
            pass
        finally:
            if stream.open:
                self.send(CLSE, known, stream.remote)
            del self.streams[stream.local]

    def accept(self, stream: Stream) -> int:
        """Tell the host that the service is there; returns the stream's number."""
        self.send(OKAY, stream.local, stream.remote)
        return stream.local


class FakePhone:
    """A phone of a flavour (`s21`, `sd835`) that listens on `address` while it is entered.

    `state` is what the host sees: device, unauthorized (until it becomes device, which is the tap on Allow), offline.
    """

    def __init__(self, folder: Path, flavour: str) -> None:
        self.root = Root(folder, FLAVOURS[flavour])
        self.state = "device"
        self.port = 0
        self.bytes_until_drop: int | None = None
        self.drop_at: tuple[str, float] | None = None
        self.scripts: list[tuple[float, str]] = []
        self._connections: set[Connection] = set()
        self._ready = threading.Event()
        self._stop = asyncio.Event()

    @property
    def address(self) -> str:
        """What `adb connect` takes."""
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> FakePhone:
        self._thread = threading.Thread(target=lambda: asyncio.run(self._live()), daemon=True)
        self._thread.start()
        assert self._ready.wait(START_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(START_S)

    # ---- faults; to be called from the test's thread ----

    def pull_cable(self) -> None:
        """All connections die at once. The phone goes on and listens again."""
        self._loop.call_soon_threadsafe(self.drop)

    def away(self, seconds: float | None = None) -> None:
        """Out of reach: connections die, new ones are refused, for so long or until the end."""
        asyncio.run_coroutine_threadsafe(self._away(seconds), self._loop).result(START_S)

    # ---- in the phone's own thread ----

    def drop(self) -> None:
        for connection in self._connections:
            connection.writer.transport.abort()

    async def _away(self, seconds: float | None) -> None:
        self._server.close()
        self.drop()
        if seconds is not None:
            self._loop.call_later(seconds, lambda: asyncio.ensure_future(self._listen()))

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = Connection(self, reader, writer)
        self._connections.add(connection)
        await connection.run()
        self._connections.discard(connection)

    async def _live(self) -> None:
        self._loop = asyncio.get_running_loop()
        await self._listen()
        self._ready.set()
        await self._stop.wait()
        self._server.close()
        self.drop()
        await asyncio.sleep(0.05)  # services end before the loop does

    async def shell(self, stream: Stream, script: str) -> None:
        """The shell service: packets of (kind, size, data), and the status in the last."""
        self.scripts.append((time.monotonic(), script))
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *self.root.command(script), stdin=pipe, stdout=pipe, stderr=pipe, env=self.root.environment,
            start_new_session=True,
        )  # fmt: skip
        if self.drop_at is not None and re.search(self.drop_at[0], script):
            self._loop.call_later(self.drop_at[1], self.drop)
            self.drop_at = None
        feeder = asyncio.ensure_future(self._feed(stream, process))
        try:
            await asyncio.gather(_copy(process.stdout, stream, STDOUT), _copy(process.stderr, stream, STDERR))
            status = await process.wait()
            await stream.write(struct.pack("<BIB", EXIT, 1, status if status >= 0 else 128 - status))
        finally:
            feeder.cancel()

    async def _feed(self, stream: Stream, process: asyncio.subprocess.Process) -> None:
        """Standard input of a shell; ends with a hang-up when the host goes away."""
        assert process.stdin is not None
        try:
            while True:
                kind, size = struct.unpack("<BI", await stream.read(5))
                data = await stream.read(size)
                if self.bytes_until_drop is not None:
                    self.bytes_until_drop -= size
                    if self.bytes_until_drop < 0:
                        self.bytes_until_drop = None
                        self.drop()
                if kind == STDIN:
                    process.stdin.write(data)
                    await process.stdin.drain()
                elif kind == CLOSE_STDIN:
                    process.stdin.close()
        except ConnectionError:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGHUP)
            process.stdin.close()


async def _copy(source: asyncio.StreamReader | None, stream: Stream, kind: int) -> None:
    assert source is not None
    while data := await source.read(1 << 15):
        await stream.write(struct.pack("<BI", kind, len(data)) + data)


async def _relay(stream: Stream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass bytes between the host and a program of the phone until either ends."""

    async def to_host() -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 15):
                await stream.write(data)

    async def to_program() -> None:
        with contextlib.suppress(ConnectionError):
            while True:
                writer.write(await stream.read_some())
                await writer.drain()

    ways = {asyncio.ensure_future(way()) for way in (to_host, to_program)}
    await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    for way in ways:
        way.cancel()
    writer.close()
