"""The proxy of fault tests does what its modes say."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

from mindroom.db.embedded import EmbeddedPostgres
from mindroom.db.folder import DataFolder
from tests.support.owner import wait_until
from tests.support.tcp_proxy import Mode, TcpProxy

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Echo:
    """A server that repeats each line and remembers it."""

    def __init__(self) -> None:
        self.heard: list[bytes] = []
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                self.heard.append(line)
                writer.write(line)
        except ConnectionError:
            pass
        finally:
            writer.close()


@pytest.fixture
async def echo() -> AsyncIterator[Echo]:
    echo = Echo()
    server = await asyncio.start_server(echo.serve, "127.0.0.1", 0)
    echo.port = server.sockets[0].getsockname()[1]
    yield echo
    server.close()


@pytest.fixture
async def proxy(echo: Echo) -> AsyncIterator[TcpProxy]:
    async with TcpProxy(("127.0.0.1", echo.port)) as proxy:
        yield proxy


@pytest.fixture
async def client(proxy: TcpProxy) -> AsyncIterator[Connection]:
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    yield reader, writer
    writer.transport.abort()


async def say(connection: Connection, line: bytes) -> bytes:
    reader, writer = connection
    writer.write(line)
    async with asyncio.timeout(5):
        return await reader.readline()


async def test_forwards_both_ways(client: Connection, proxy: TcpProxy) -> None:
    assert await say(client, b"hello\n") == b"hello\n"
    assert (proxy.accepted_connections, proxy.open_connections) == (1, 1)


async def test_latency_is_added_in_each_direction(client: Connection, proxy: TcpProxy) -> None:
    proxy.latency_seconds = 0.05
    loop = asyncio.get_running_loop()
    before = loop.time()
    assert await say(client, b"slow\n") == b"slow\n"
    assert loop.time() - before >= 0.1


async def test_a_black_hole_keeps_connections_and_delivers_afterwards(
    client: Connection, proxy: TcpProxy, echo: Echo
) -> None:
    await proxy.set_mode(Mode.BLACK_HOLE)
    client[1].write(b"waits\n")
    await client[1].drain()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await client[0].readline()
    assert echo.heard == []
    await proxy.set_mode(Mode.FORWARD)
    assert await client[0].readline() == b"waits\n"


async def test_reset_cuts_open_and_new_connections(client: Connection, proxy: TcpProxy) -> None:
    assert await say(client, b"hello\n") == b"hello\n"
    await proxy.set_mode(Mode.RESET)
    with pytest.raises(ConnectionResetError):
        await client[0].readline()
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    with pytest.raises(ConnectionResetError):
        await reader.readline()
    writer.close()


async def test_refused_until_it_forwards_again_on_the_same_port(client: Connection, proxy: TcpProxy) -> None:
    assert await say(client, b"hello\n") == b"hello\n"
    await proxy.set_mode(Mode.REFUSE)
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", proxy.port)
    await proxy.set_mode(Mode.FORWARD)
    again = await asyncio.open_connection("127.0.0.1", proxy.port)
    assert await say(again, b"back\n") == b"back\n"
    again[1].close()


async def test_lost_replies_reach_the_server_but_not_the_client(
    client: Connection, proxy: TcpProxy, echo: Echo
) -> None:
    await proxy.set_mode(Mode.LOSE_REPLIES)
    with pytest.raises(ConnectionResetError):
        await say(client, b"did it\n")
    assert echo.heard == [b"did it\n"]


async def test_one_reply_is_lost_and_the_next_connection_is_served(client: Connection, proxy: TcpProxy) -> None:
    lost = proxy.lose_reply_of(b"COMMIT")
    assert await say(client, b"SELECT\n") == b"SELECT\n"
    assert not lost.is_set()
    with pytest.raises(ConnectionResetError):
        await say(client, b"COMMIT\n")
    assert lost.is_set()
    again = await asyncio.open_connection("127.0.0.1", proxy.port)
    assert await say(again, b"COMMIT\n") == b"COMMIT\n"
    again[1].close()


async def test_a_commit_whose_answer_is_lost_is_committed(
    postgres_server: EmbeddedPostgres, database_dsn: str, server_folder: Path
) -> None:
    """The hardest fault for a client of a database: done, and not told so."""
    socket_folder = DataFolder(server_folder / "pg").socket_folder()
    assert str(socket_folder) in postgres_server.dsn
    database = database_dsn.split("/")[3].split("?")[0]
    async with TcpProxy(socket_folder / ".s.PGSQL.5432") as proxy:
        connection = await asyncpg.connect(f"postgresql://mindroom@127.0.0.1:{proxy.port}/{database}")
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute("CREATE TABLE done AS SELECT 1 AS n")
        lost = proxy.lose_reply_of(b"COMMIT")
        with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, OSError)):
            await transaction.commit()
        assert lost.is_set()
        await wait_until(connection.is_closed)
    direct = await asyncpg.connect(database_dsn)
    assert await direct.fetchval("SELECT n FROM done") == 1
    await direct.close()
