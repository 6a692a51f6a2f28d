"""`mindroom run`: serves the agents of a configuration until SIGTERM."""

import argparse
import asyncio
import signal
from pathlib import Path

from mindroom.cli.frame import Commands, Exit, add_config_option

DEFAULT_DATA = Path("mindroom-data")


def register(commands: Commands) -> None:
    """`run`."""
    parser = commands.add("run", summary="Serve the agents of a configuration until it is told to stop", handler=_run)
    add_config_option(parser)
    add_data_option(parser)


def add_data_option(parser: argparse.ArgumentParser) -> None:
    """`--data DIR`, read from `arguments.data` as a Path."""
    parser.add_argument(
        "--data",
        type=Path,
        default=DEFAULT_DATA,
        metavar="DIR",
        help="the data folder: key, lock and embedded database (default: mindroom-data)",
    )


def _run(arguments: argparse.Namespace) -> int:
    from mindroom.app import RuntimeSettings, compose
    from mindroom.cli.output import say_progress
    from mindroom.config import load_config
    from mindroom.ops.logs import configure_logs

    configure_logs()
    runtime = compose(RuntimeSettings(load_config(arguments.config), arguments.data, say_progress))

    async def serve() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, _stop_or_leave, stop, number)
        await runtime.run(stop)

    asyncio.run(serve())
    return Exit.OK


def _stop_or_leave(stop: asyncio.Event, number: signal.Signals) -> None:
    """The first signal drains; a second one leaves at once, still safe."""
    if stop.is_set():
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)
    stop.set()
