"""A proxy between a client and a server, to break the network in one named way at a time.

Listens on 127.0.0.1 and forwards to a TCP address or a unix socket. The mode acts on open connections too.
"""

import asyncio
import contextlib
import socket
import struct
from collections.abc import Coroutine
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Self

_CHUNK_BYTES = 65536


class Mode(StrEnum):
    """What happens to traffic."""

    FORWARD = "forward"
    BLACK_HOLE = "black_hole"  # connections stand, nothing moves; what was sent meanwhile moves on afterwards
    RESET = "reset"  # open and new connections are cut with RST
    REFUSE = "refuse"  # open connections are cut, nobody listens
    LOSE_REPLIES = "lose_replies"  # requests arrive and take effect; the reply is dropped and the connection cut


class TcpProxy:
    """Use as `async with TcpProxy(target) as proxy:` and connect to `proxy.port`."""

    def __init__(self, target: tuple[str, int] | Path, *, latency_seconds: float = 0.0) -> None:
        self.latency_seconds = latency_seconds
        """Added to each chunk in each direction; may be changed at any time."""
        self.accepted_connections = 0
        self.port = 0
        self._target = target
        self._mode = Mode.FORWARD
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._server: asyncio.Server | None = None
        self._links: set[_Link] = set()
        self._needle: bytes | None = None
        self._reply_lost = asyncio.Event()

    async def __aenter__(self) -> Self:
        await self._listen()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._deafen()
        await self._cut_all()

    @property
    def url(self) -> str:
        """Base address for HTTP clients."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def open_connections(self) -> int:
        """How many clients are connected now."""
        return len(self._links)

    async def set_mode(self, mode: Mode) -> None:
        """Change how traffic is treated, for open connections at once."""
        self._mode = mode
        if mode is Mode.BLACK_HOLE:
            self._flowing.clear()
        else:
            self._flowing.set()
        if mode is Mode.REFUSE:
            await self._deafen()
        elif self._server is None:
            await self._listen()
        if mode in (Mode.RESET, Mode.REFUSE):
            await self._cut_all()

    def lose_reply_of(self, needle: bytes) -> asyncio.Event:
        """Once: forward the next request holding `needle`, drop its reply, cut the connection, set the event."""
        self._needle = needle
        self._reply_lost = asyncio.Event()
        return self._reply_lost

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _deafen(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _cut_all(self) -> None:
        links = list(self._links)
        for link in links:
            link.cut()
        await asyncio.gather(*(link.ended.wait() for link in links))

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted_connections += 1
        link = _Link(writer)
        self._links.add(link)
        try:
            if self._mode is Mode.RESET:
                return
            with contextlib.suppress(OSError):
                upstream_reader, upstream = await self._connect()
                link.upstream = upstream
                await link.run(self._requests(link, reader, upstream), self._replies(link, upstream_reader, writer))
        finally:
            link.close()
            self._links.discard(link)
            link.ended.set()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if isinstance(self._target, Path):
            return await asyncio.open_unix_connection(self._target)
        return await asyncio.open_connection(*self._target)

    async def _requests(self, link: "_Link", reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tail = b""
        while chunk := await reader.read(_CHUNK_BYTES):
            await self._delay()
            if self._needle is not None and self._needle in tail + chunk:
                self._needle, link.lose_reply = None, True
            tail = (tail + chunk)[-256:]
            writer.write(chunk)
            await writer.drain()

    async def _replies(self, link: "_Link", reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while chunk := await reader.read(_CHUNK_BYTES):
            await self._delay()
            if link.lose_reply or self._mode is Mode.LOSE_REPLIES:
                if link.lose_reply:
                    self._reply_lost.set()
                return
            writer.write(chunk)
            await writer.drain()
        link.orderly = True

    async def _delay(self) -> None:
        if self.latency_seconds:
            await asyncio.sleep(self.latency_seconds)
        await self._flowing.wait()


class _Link:
    """One client connection and its other half."""

    def __init__(self, client: asyncio.StreamWriter) -> None:
        self.client = client
        self.upstream: asyncio.StreamWriter | None = None
        self.lose_reply = False
        self.orderly = False
        self.ended = asyncio.Event()
        self._pumps: list[asyncio.Task[None]] = []
        self._cut = False

    async def run(self, *pumps: Coroutine[None, None, None]) -> None:
        if self._cut:
            for pump in pumps:
                pump.close()
            return
        self._pumps = [asyncio.ensure_future(pump) for pump in pumps]
        await asyncio.wait(self._pumps, return_when=asyncio.FIRST_COMPLETED)
        for task in self._pumps:
            task.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)

    def cut(self) -> None:
        self._cut = True
        for pump in self._pumps:
            pump.cancel()

    def close(self) -> None:
        """The server's own goodbye is passed on; everything else is an RST for the client."""
        if self.orderly and not self._cut:
            self.client.close()
        else:
            raw: socket.socket = self.client.get_extra_info("socket")
            with contextlib.suppress(OSError):
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.client.transport.abort()
        if self.upstream is not None:
            self.upstream.transport.abort()
