"""An OpenAI-compatible server on this machine, for tests (in process) and benches (as a program).

    python tests/support/openai_server.py --port 9100 --delay 0.2 --chunks 10 --chunk-interval 0.02

POST /v1/chat/completions   streaming or not; answers `echo: <the line of the newest user text that holds a token>`
GET  /stats                 counts; `tokens` maps each `tok-…` of a newest user text to its number of calls
POST /config                changes any field of `Behaviour` while running
POST /reset                 clears the counts

It must never talk to anything and knows nothing of MindRoom.
"""

import argparse
import asyncio
import contextlib
import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from types import TracebackType
from typing import Any, Self

from aiohttp import web

TOKEN = re.compile(r"tok-[0-9a-z]+")
FILLER = "and so on "


class Fault(StrEnum):
    """What a faulty call does instead of answering."""

    NONE = "none"
    UNAUTHORIZED = "unauthorized"
    RATE_LIMITED = "rate_limited"
    SERVER_ERROR = "server_error"
    UNAVAILABLE = "unavailable"
    CONTEXT_LENGTH = "context_length"
    BAD_REQUEST = "bad_request"
    RESET_BEFORE = "reset_before"
    RESET_MID_STREAM = "reset_mid_stream"
    ENDS_MID_STREAM = "ends_mid_stream"
    ERROR_MID_STREAM = "error_mid_stream"
    GARBAGE_MID_STREAM = "garbage_mid_stream"
    SILENCE_MID_STREAM = "silence_mid_stream"
    EMPTY = "empty"


HTTP_FAULTS = {
    Fault.UNAUTHORIZED: (401, "invalid_api_key"),
    Fault.RATE_LIMITED: (429, "rate_limit_exceeded"),
    Fault.SERVER_ERROR: (500, "server_error"),
    Fault.UNAVAILABLE: (503, "overloaded"),
    Fault.CONTEXT_LENGTH: (400, "context_length_exceeded"),
    Fault.BAD_REQUEST: (400, "invalid_request_error"),
}


@dataclass
class Behaviour:
    """How calls are answered; every field may change between calls."""

    delay_seconds: float = 0.0
    chunks: int = 10
    chunk_interval_seconds: float = 0.0
    answer_characters: int = 0
    """The answer is padded to this length."""
    fault: Fault = Fault.NONE
    fault_calls: int = -1
    """So many calls fail, then they succeed again; -1 means all."""
    retry_after_seconds: float | None = None
    sends_usage: bool = True

    def update(self, changes: dict[str, Any]) -> None:
        """Change the named fields. Raises ValueError for an unknown one."""
        if unknown := changes.keys() - {f.name for f in fields(self)}:
            raise ValueError(f"unknown: {sorted(unknown)}")
        for name, value in changes.items():
            setattr(self, name, Fault(value) if name == "fault" else value)

    def take_fault(self) -> Fault:
        """The fault of this call, counting it."""
        if self.fault is Fault.NONE or self.fault_calls == 0:
            return Fault.NONE
        self.fault_calls -= self.fault_calls > 0
        return self.fault


@dataclass
class Stats:
    """What was asked for since the last reset."""

    calls: int = 0
    streams: int = 0
    faults: int = 0
    aborted: int = 0
    in_flight: int = 0
    max_in_flight: int = 0
    connections: int = 0
    tokens: Counter[str] = field(default_factory=Counter)


def _newest_user_text(messages: Sequence[dict[str, Any]]) -> str:
    for message in reversed(messages):
        if message.get("role") == "user":
            content = message.get("content") or ""
            return content if isinstance(content, str) else "\n".join(part.get("text", "") for part in content)
    return ""


def _answer(text: str, characters: int) -> str:
    holding = [line for line in text.splitlines() if TOKEN.search(line)]
    line = holding[-1] if holding else text.strip()[-200:]
    answer = f"echo: {line[line.find(': ') + 2 :] if ': ' in line else line}"
    return answer if len(answer) >= characters else (answer + " " + FILLER * characters)[:characters]


class OpenAIServer:
    """The server in the loop of a test: `async with OpenAIServer() as server: … server.base_url`."""

    def __init__(self, behaviour: Behaviour | None = None, *, port: int = 0) -> None:
        self.behaviour = behaviour or Behaviour()
        self.stats = Stats()
        self.last_request: dict[str, Any] = {}
        self.last_headers: dict[str, str] = {}
        self.idle = asyncio.Event()
        """Set while no call is in flight."""
        self._port = port
        self._runner: web.AppRunner | None = None
        self._peers: set[Any] = set()

    @property
    def base_url(self) -> str:
        """What a client is configured with."""
        return f"http://127.0.0.1:{self._port}/v1"

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=1 << 26)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_get("/stats", self._show_stats)
        app.router.add_post("/config", self._configure)
        app.router.add_post("/reset", self._reset)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port)
        await site.start()
        self._port = self._runner.addresses[0][1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    async def _show_stats(self, _: web.Request) -> web.Response:
        return web.json_response(asdict(self.stats) | {"behaviour": asdict(self.behaviour)})

    async def _configure(self, request: web.Request) -> web.Response:
        try:
            self.behaviour.update(await request.json())
        except ValueError as error:
            return web.json_response({"error": str(error)}, status=400)
        return web.json_response(asdict(self.behaviour))

    async def _reset(self, _: web.Request) -> web.Response:
        self.stats = Stats(in_flight=self.stats.in_flight)
        self._peers.clear()
        return web.json_response({})

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self._count(request, body)
        done = False
        try:
            await asyncio.sleep(self.behaviour.delay_seconds)
            response = await self._respond(request, body)
            done = True
            return response
        finally:
            self.stats.in_flight -= 1
            self.stats.aborted += not done
            if not self.stats.in_flight:
                self.idle.set()

    def _count(self, request: web.Request, body: dict[str, Any]) -> None:
        stats = self.stats
        self.last_request, self.last_headers = body, dict(request.headers)
        self.idle.clear()
        stats.calls += 1
        stats.streams += bool(body.get("stream"))
        stats.in_flight += 1
        stats.max_in_flight = max(stats.max_in_flight, stats.in_flight)
        self._peers.add(request.transport and request.transport.get_extra_info("peername"))
        stats.connections = len(self._peers)
        stats.tokens.update(set(TOKEN.findall(_newest_user_text(body.get("messages", [])))))

    async def _respond(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        fault = self.behaviour.take_fault()
        self.stats.faults += fault is not Fault.NONE
        if fault in HTTP_FAULTS:
            return self._http_fault(fault, body)
        if fault is Fault.RESET_BEFORE:
            return _cut(request)
        text = _newest_user_text(body.get("messages", []))
        answer = "" if fault is Fault.EMPTY else _answer(text, self.behaviour.answer_characters)
        usage = {"prompt_tokens": len(json.dumps(body["messages"])) // 4, "completion_tokens": len(answer) // 4}
        usage["total_tokens"] = sum(usage.values())
        head = {"id": f"chatcmpl-{self.stats.calls}", "created": 0, "model": body.get("model", "")}
        if body.get("stream"):
            return await self._stream(request, head, answer, usage, fault)
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": answer}}
        return web.json_response(head | {"object": "chat.completion", "usage": usage, "choices": [choice]})

    def _http_fault(self, fault: Fault, body: dict[str, Any]) -> web.Response:
        status, code = HTTP_FAULTS[fault]
        wait = self.behaviour.retry_after_seconds
        headers = {} if wait is None else {"retry-after": f"{wait:g}"}
        # Real providers quote the prompt in their errors, so this one does too: nothing of it may reach a log.
        message = f"refused: {_newest_user_text(body.get('messages', []))}"
        return web.json_response({"error": {"message": message, "code": code}}, status=status, headers=headers)

    async def _stream(
        self, request: web.Request, head: dict[str, Any], answer: str, usage: dict[str, int], fault: Fault
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream", "cache-control": "no-cache"})
        await response.prepare(request)

        async def send(choices: list[dict[str, Any]], **extra: Any) -> None:
            chunk = head | {"object": "chat.completion.chunk", "choices": choices} | extra
            await response.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")

        size = max(1, -(-len(answer) // max(1, self.behaviour.chunks)))
        parts = [answer[at : at + size] for at in range(0, len(answer), size)]
        cut_after = len(parts) // 2 if fault.value.endswith("mid_stream") else len(parts) + 1
        for number, part in enumerate(parts):
            if number == cut_after:
                return await _break(request, response, fault)
            if number:
                await asyncio.sleep(self.behaviour.chunk_interval_seconds)
            delta = {"content": part} | ({"role": "assistant"} if number == 0 else {})
            await send([{"index": 0, "delta": delta, "finish_reason": None}])
        await send([{"index": 0, "delta": {}, "finish_reason": "stop"}])
        if self.behaviour.sends_usage:
            await send([], usage=usage)
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response


def _cut(request: web.Request) -> web.Response:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def _break(request: web.Request, response: web.StreamResponse, fault: Fault) -> web.StreamResponse:
    if fault is Fault.RESET_MID_STREAM:
        assert request.transport is not None
        request.transport.abort()
        return response
    if fault is Fault.SILENCE_MID_STREAM:
        await asyncio.Event().wait()
    if fault is Fault.ERROR_MID_STREAM:
        await response.write(b'data: {"error": {"message": "lost a worker", "code": 502}}\n\n')
    if fault is Fault.GARBAGE_MID_STREAM:
        await response.write(b"data: <html>\n\n")
    await response.write_eof()
    return response


async def _serve(behaviour: Behaviour, port: int) -> None:
    async with OpenAIServer(behaviour, port=port) as server:
        print(server.base_url, flush=True)
        await asyncio.Event().wait()


def main() -> None:
    """Serve until interrupted; prints the base URL first."""
    parser = argparse.ArgumentParser(description="OpenAI-compatible server for benches")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--delay", type=float, default=0.2, help="seconds before the first chunk")
    parser.add_argument("--chunks", type=int, default=10)
    parser.add_argument("--chunk-interval", type=float, default=0.02, help="seconds")
    parser.add_argument("--answer-characters", type=int, default=0)
    options = parser.parse_args()
    behaviour = Behaviour(
        delay_seconds=options.delay,
        chunks=options.chunks,
        chunk_interval_seconds=options.chunk_interval,
        answer_characters=options.answer_characters,
    )
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(behaviour, options.port))


if __name__ == "__main__":
    main()
