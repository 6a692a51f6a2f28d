"""`mindroom demo`: a team to talk to, nothing needed. Owns the terminal; what runs is composed in `app.demo`."""

import argparse
import asyncio
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from mindroom.cli.frame import Commands, Exit
from mindroom.cli.output import complain, say
from mindroom.core.errors import UserError

if TYPE_CHECKING:
    from mindroom.app.demo_room import DemoRoom

DEFAULT_DATA = Path("mindroom-demo")
_DEFAULT_TIMEOUT_SECONDS = 120.0
_INTERRUPTED = 130


def register(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add("demo", summary="Talk to a team of agents, with nothing to set up", handler=_demo)
    parser.add_argument(
        "--data", type=Path, default=DEFAULT_DATA, metavar="DIR", help="where all of it lives (default: mindroom-demo)"
    )
    parser.add_argument("--say", metavar="TEXT", help="say this, print the answer and exit")
    parser.add_argument(
        "--timeout",
        type=_seconds,
        default=_DEFAULT_TIMEOUT_SECONDS,
        metavar="SECONDS",
        help="how long to wait for an answer (default: 120)",
    )


def _demo(arguments: argparse.Namespace) -> int:
    if arguments.say is not None and not arguments.say.strip():
        raise UserError("There is nothing to say; give --say some text.")
    session = _Session(arguments.data, text=arguments.say, timeout_seconds=arguments.timeout)
    asyncio.run(session.run())
    if session.was_interrupted and arguments.say is not None:
        return _INTERRUPTED
    return Exit.OK


class _Session:
    """One run of the command: an exchange when there is a text, else a chat."""

    def __init__(self, data: Path, *, text: str | None, timeout_seconds: float) -> None:
        self.was_interrupted = False
        self._data = data
        self._text = text
        self._timeout_seconds = timeout_seconds
        self._progress = _Progress(sys.stderr)
        self._stop = asyncio.Event()

    async def run(self) -> None:
        """Start, talk, drain. Raises UserError for what cannot work and for an answer that did not come."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._interrupt, number)
        self._progress("loading")
        from mindroom.app.demo import compose_demo

        try:
            demo = compose_demo(self._data, progress=self._progress)
            with _logs_in(self._log_file):
                await demo.run(self._stop, talk=self._chat if self._text is None else self._exchange)
        finally:
            self._progress.end()

    def _interrupt(self, number: signal.Signals) -> None:
        """The first signal drains; a second one leaves at once, still safe."""
        if self._stop.is_set():
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        self.was_interrupted = True
        self._stop.set()
        self._progress("stopping; everything is kept")

    async def _exchange(self, room: "DemoRoom") -> None:
        from mindroom.ops.console import exchange, why_unanswered

        assert self._text is not None
        self._progress("waiting for the answer")
        result = await exchange(room.conversation, self._text, timeout_seconds=self._timeout_seconds)
        if not result.answers:
            error = await room.last_error(result.said) if result.said else None
            reason = why_unanswered(result, last_error=error, config_file=room.config_file)
            raise UserError(
                f"No answer came within {self._timeout_seconds:g} s: {reason}. The message stays owed and is answered "
                f"after the next start; {self._log_file} tells what happened."
            )
        self._progress.end()
        for answer in result.answers:
            say(answer)

    async def _chat(self, room: "DemoRoom") -> None:
        from mindroom.ops.console import Lines, Screen, Style, chat

        self._progress.end()
        for line in _greeting(room):
            complain(line)
        spoke = await chat(
            room.conversation,
            screen=Screen(
                sys.stdout,
                style=Style.LIVE if sys.stdout.isatty() else Style.FINAL,
                names=room.conversation.agents,
            ),
            lines=Lines(sys.stdin.fileno()),
            patience_seconds=self._timeout_seconds,
        )
        if not spoke and not sys.stdin.isatty():
            self._progress("no input; serving until Ctrl-C or SIGTERM")
            await self._stop.wait()

    @property
    def _log_file(self) -> Path:
        return self._data / "logs" / "mindroom.log"


class _Progress:
    """One line that is rewritten on a terminal, plain lines elsewhere; on stderr, apart from the answer."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._is_live = out.isatty()
        self._is_open = False

    def __call__(self, line: str) -> None:
        self._out.write(f"\r\x1b[K{line} …" if self._is_live else f"{line}\n")
        self._out.flush()
        self._is_open = self._is_live

    def end(self) -> None:
        """Remove the line; harmless to repeat."""
        if self._is_open:
            self._out.write("\r\x1b[K")
            self._out.flush()
            self._is_open = False


@contextmanager
def _logs_in(file: Path) -> Iterator[None]:
    """Logs would run into the chat; they are kept beside it, one JSON line an event."""
    from mindroom.ops.logs import configure_logs

    with file.open("a", encoding="utf-8") as log:
        with redirect_stderr(log):
            configure_logs()
        yield


def _greeting(room: "DemoRoom") -> list[str]:
    names = list(room.conversation.agents.values())
    others = f"; {' and '.join(f'@{name}' for name in names[1:])} when mentioned" if names[1:] else ""
    how = "goes on where it was" if room.conversation.thread else "begins with your first message"
    return [
        f"MindRoom demo. {names[0]} answers{others}. The conversation {how}; /new begins another, Ctrl-C stops.",
        f"Any Matrix client can join: homeserver {room.url}, user {room.user_id}, password {room.password}, "
        f"room {room.alias}.",
        f"For a real model edit {room.config_file} and start again. All of it lives in {room.config_file.parent}.",
    ]


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return seconds
