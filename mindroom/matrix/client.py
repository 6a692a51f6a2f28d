"""One account's connection to its homeserver: one attempt a call, every failure a MatrixFailure.

Owns nio's AsyncClient and its aiohttp session. Never retries, never parses events, never logs a body or a token.
Why raw JSON instead of nio's responses: docs/decisions/raw-sync.md.
"""

import json
import logging
import math
from collections.abc import Callable
from enum import StrEnum
from typing import Any, Final

import aiohttp
from nio import AsyncClient, AsyncClientConfig

from mindroom.core import faults
from mindroom.core.clock import Clock
from mindroom.core.content import JsonObject
from mindroom.core.errors import MatrixFailure, MatrixFailureClass
from mindroom.core.faults import InjectedFault
from mindroom.core.ids import DeviceId, UserId
from mindroom.matrix.failures import read_failure

CALL_TIMEOUT_SECONDS: Final = 30.0
_SILENT: Final = logging.CRITICAL + 1

CallObserver = Callable[[str, str, float], None]
"""Told after every call: call name, `ok` or errcode (or failure class where there is none), seconds."""


class MatrixCall(StrEnum):
    """Every homeserver call we make: metric label, and `hs.<name>` is its fault point (K1)."""

    SYNC = "sync"
    SEND = "send"
    MESSAGES = "messages"
    RELATIONS = "relations"
    GET_EVENT = "get_event"
    JOIN = "join"
    LEAVE = "leave"
    INVITE = "invite"
    TYPING = "typing"
    RECEIPT = "receipt"
    REGISTER_NONCE = "register_nonce"
    REGISTER = "register"
    LOGIN = "login"
    WHOAMI = "whoami"
    PROFILE_GET = "profile_get"
    PROFILE_SET = "profile_set"
    CAPABILITIES = "capabilities"
    RESOLVE_ALIAS = "resolve_alias"
    CREATE_ROOM = "create_room"
    GET_STATE = "get_state"


class MatrixClient:
    """One account, or with no `access_token` the calls that need none."""

    def __init__(
        self,
        homeserver: str,
        *,
        user_id: UserId,
        device_id: DeviceId,
        access_token: str | None,
        clock: Clock,
        observe: CallObserver,
    ) -> None:
        # nio describes messages, keys and schema violations in its logs; none of that may reach ours (I2, I3).
        logging.getLogger("nio").setLevel(_SILENT)
        self.user_id = user_id
        self.device_id = device_id
        self._clock = clock
        self._observe = observe
        self._closed = False
        self._headers = {"Content-Type": "application/json"}
        if access_token is not None:
            self._headers["Authorization"] = f"Bearer {access_token}"
        self._nio = AsyncClient(
            homeserver.rstrip("/"),
            user=user_id,
            device_id=device_id,
            config=AsyncClientConfig(
                encryption_enabled=False, store_sync_tokens=False, max_limit_exceeded=0, max_timeouts=0
            ),
        )

    async def request(
        self,
        call: MatrixCall,
        *,
        method: str,
        path: str,
        body: JsonObject | bytes | None = None,
        timeout_seconds: float = CALL_TIMEOUT_SECONDS,
    ) -> JsonObject:
        """One attempt, answered by a JSON object. `body` as bytes goes out as it is.

        Raises MatrixFailure; its network class (status 0) means that the outcome is unknown.
        """
        started = self._clock.boottime()
        outcome = "cancelled"
        try:
            answer = await self._attempt(call, method, path, _encode(body), timeout_seconds)
            outcome = "ok"
        except MatrixFailure as failure:
            outcome = failure.errcode or failure.failure_class.value
            raise
        finally:
            self._observe(call.value, outcome, self._clock.boottime() - started)
        return answer

    async def close(self) -> None:
        """Close the connections; repeatable. Calls in flight, and later ones, end with a network failure."""
        self._closed = True
        await self._nio.close()

    async def _attempt(
        self, call: MatrixCall, method: str, path: str, data: bytes | None, timeout_seconds: float
    ) -> JsonObject:
        point = f"hs.{call.value}"
        try:
            faults.hit(point, "before")
            status, retry_after, raw = await self._exchange(method, path, data, timeout_seconds)
            faults.hit(point, "after")
        except (InjectedFault, aiohttp.ClientError, OSError) as error:
            raise MatrixFailure(call, MatrixFailureClass.NETWORK) from error
        document = _parse(raw)
        if not 200 <= status < 300:
            raise read_failure(call, status=status, document=document, retry_after_header=retry_after)
        if not isinstance(document, dict):
            raise MatrixFailure(call, MatrixFailureClass.NOT_JSON, status=status)
        return document

    async def _exchange(
        self, method: str, path: str, data: bytes | None, timeout_seconds: float
    ) -> tuple[int, str | None, bytes]:
        if timeout_seconds <= 0:
            raise TimeoutError("the call's time was over before it began")
        if self._closed:
            raise ConnectionError("the client is closed")
        if self._nio.client_session is None:
            self._nio.client_session = _open_session()
        # Without its own threshold aiohttp rounds long timeouts up to whole seconds, past a trust deadline.
        timeout = aiohttp.ClientTimeout(total=timeout_seconds, ceil_threshold=math.inf)
        response = await self._nio.send(method, path, data, self._headers, timeout=timeout)
        async with response:
            return response.status, response.headers.get("Retry-After"), await response.read()


def _open_session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar(), middlewares=(_one_attempt,))


async def _one_attempt(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    # aiohttp silently repeats a GET or PUT whose kept-alive connection broke, unless the error is of another type.
    try:
        return await handler(request)
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise aiohttp.ClientConnectionError(type(error).__name__) from error


def _encode(body: JsonObject | bytes | None) -> bytes | None:
    if body is None or isinstance(body, bytes):
        return body
    return json.dumps(body, separators=(",", ":")).encode()


def _parse(raw: bytes) -> Any:
    """The document, or None when it is not JSON, not UTF-8 or nested beyond the parser."""
    try:
        return json.loads(raw)
    except RecursionError:
        return None
    except ValueError:
        return _parse_with_long_integers(raw)


def _parse_with_long_integers(raw: bytes) -> Any:
    # Old room versions carry integers longer than Python parses; one such event must not stop every sync (A7).
    try:
        return json.loads(raw, parse_int=_tolerant_int)
    except (ValueError, RecursionError):
        return None


def _tolerant_int(digits: str) -> int | str:
    return int(digits) if len(digits) <= 1000 else digits[:1000]
