"""A PgBouncer in transaction mode before the tests' PostgreSQL, when `PGBOUNCER=<binary>` names one.

    PGBOUNCER=/usr/sbin/pgbouncer python -m pytest tests/store tests/contract

What belongs to the program (its pools, the DATABASE_URL of a runtime) then goes through it, each transaction on the
backend that was idle longest; what belongs to the tests goes straight to the server.
"""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

BINARY_VARIABLE = "PGBOUNCER"
_WAY_VARIABLE = "MINDROOM_TEST_BOUNCER"
_CONFIG = """
[databases]
* = host={host} port={port} user=mindroom
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {listen}
unix_socket_dir =
auth_type = any
pool_mode = transaction
server_round_robin = 1
default_pool_size = 6
max_client_conn = 500
"""


@contextmanager
def bouncer(server_dsn: str, folder: Path) -> Iterator[None]:
    """Runs one for the server behind that DSN; does nothing without `PGBOUNCER`. Raises AssertionError."""
    binary = os.environ.get(BINARY_VARIABLE)
    if not binary:
        yield
        return
    where = parse_qs(urlsplit(server_dsn).query)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    config = folder / "pgbouncer.ini"
    config.write_text(_CONFIG.format(host=where["host"][0], port=where["port"][0], listen=port))
    # It refuses root, as PostgreSQL does.
    unlike_root = ["unshare", "--user", "--map-user=65534", "--map-group=65534", "--"] if os.geteuid() == 0 else []
    with (folder / "pgbouncer.log").open("ab") as log:
        process = subprocess.Popen([*unlike_root, shutil.which(binary) or binary, str(config)], stdout=log, stderr=log)
    os.environ[_WAY_VARIABLE] = f"{port} {urlsplit(server_dsn).query}"
    try:
        _wait(port, process, folder / "pgbouncer.log")
        yield
    finally:
        del os.environ[_WAY_VARIABLE]
        process.kill()
        process.wait()


def program_dsn(dsn: str) -> str:
    """The way the program takes to that database; one on another server, or behind a proxy, is left alone."""
    port, _, query = os.environ.get(_WAY_VARIABLE, "").partition(" ")
    parts = urlsplit(dsn)
    return (
        f"postgresql://mindroom@127.0.0.1:{port}{parts.path}?pgbouncer=true" if port and parts.query == query else dsn
    )


def _wait(port: int, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + 10
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.02)
