"""Makes the development environment in `.venv`, once, whoever asks and however many ask at the same time.

Owns `.venv` and its stamp. Runs on the standard library of the Python that `make` found. Standard output stays empty:
there the answer of `make demo` belongs.
"""

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
ENVIRONMENT = REPOSITORY / ".venv"
STAMP = ENVIRONMENT / ".ready"
UNFINISHED = ENVIRONMENT / ".unfinished"
LOCK_FILE = REPOSITORY / ".venv.lock"
INPUTS = ("pyproject.toml", "requirements.lock")
FAILURE_LINES = 15
PLAIN_LINE_EVERY_PACKAGES = 25


def main() -> int:
    """Bring `.venv` up to date; 0 when it is ready, else 1 after one sentence and pip's last lines."""
    with one_at_a_time():
        wanted = digest_of_inputs()
        if STAMP.exists() and STAMP.read_text() == wanted and works():
            STAMP.touch()
            return 0
        try:
            install()
        except InstallFailed as failure:
            say(str(failure))
            return 1
        STAMP.write_text(wanted)
        UNFINISHED.unlink()
        return 0


class InstallFailed(Exception):
    """A step of the installation ended with an error; the text holds what it printed last."""


@contextlib.contextmanager
def one_at_a_time() -> Iterator[None]:
    """A lock that the kernel drops when its holder dies."""
    with LOCK_FILE.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another make is preparing .venv; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def digest_of_inputs() -> str:
    """What the environment was made from and where; a moved checkout or another Python needs another one."""
    digest = hashlib.sha256(f"{REPOSITORY}\n{sys.version_info[:2]}\n".encode())
    for name in INPUTS:
        digest.update((REPOSITORY / name).read_bytes())
    return digest.hexdigest()


def works() -> bool:
    """Whether the interpreter in `.venv` still starts and is of this Python's version."""
    check = f"import sys; sys.exit(sys.version_info[:2] != {sys.version_info[:2]!r})"
    try:
        return subprocess.run([python(), "-c", check], stderr=subprocess.DEVNULL, check=False).returncode == 0
    except OSError:
        return False


def python() -> str:
    """The interpreter of the environment."""
    return str(ENVIRONMENT / "bin" / "python")


def install() -> None:
    """Create `.venv` and fill it with exactly what the lock names. Raises InstallFailed."""
    started = time.monotonic()
    STAMP.unlink(missing_ok=True)
    if UNFINISHED.exists() or (ENVIRONMENT.exists() and not works()):
        shutil.rmtree(ENVIRONMENT)
    ENVIRONMENT.mkdir(exist_ok=True)
    UNFINISHED.touch()
    say(f"making .venv with Python {sys.version_info[0]}.{sys.version_info[1]}, about a minute")
    run([sys.executable, "-m", "venv", str(ENVIRONMENT)])
    pip = [
        python(),
        "-m",
        "pip",
        "--disable-pip-version-check",
        "--no-input",
        "install",
        "--no-compile",
        "--progress-bar",
        "off",
    ]
    lock = REPOSITORY / "requirements.lock"
    total = len(re.findall(r"^[A-Za-z0-9]", lock.read_text(), flags=re.MULTILINE))
    run([*pip, "--require-hashes", "-r", str(lock)], progress=Progress(total))
    run([*pip, "--no-deps", "--no-build-isolation", "-e", str(REPOSITORY)])
    say(f".venv is ready after {time.monotonic() - started:.0f} s")


def run(command: list[str], *, progress: "Progress | None" = None) -> None:
    """One step, its output kept for the case that it fails. Raises InstallFailed."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    last: deque[str] = deque(maxlen=FAILURE_LINES)
    with subprocess.Popen(
        command,
        cwd=REPOSITORY,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            last.append(line)
            if progress is not None:
                progress.line(line)
    if progress is not None:
        progress.end()
    if process.returncode:
        raise InstallFailed(f"{''.join(last)}.venv could not be made: `{' '.join(command[:5])} …` failed, see above")


class Progress:
    """Packages as pip takes them: one line that moves on a terminal, a few plain lines elsewhere."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._seen = 0
        self._terminal = sys.stderr.isatty()

    def line(self, line: str) -> None:
        """Take one line of pip's output."""
        named = re.match(r"(?:Collecting|Processing|Ignoring|Requirement already satisfied:) (?:\S*/)?([\w.]+)", line)
        if named:
            self._seen += 1
            if self._terminal:
                sys.stderr.write(f"\r\033[K  {self._seen}/{self._total} {named[1]}")
                sys.stderr.flush()
            elif self._seen % PLAIN_LINE_EVERY_PACKAGES == 0:
                say(f"  {self._seen} of {self._total} packages looked at")
        elif line.startswith("Installing collected packages"):
            self._say_over("  installing them")

    def end(self) -> None:
        """Leave the terminal's line clean."""
        self._say_over("")

    def _say_over(self, text: str) -> None:
        if self._terminal:
            sys.stderr.write(f"\r\033[K{text}")
            sys.stderr.flush()
        elif text:
            say(text)


def say(text: str) -> None:
    """One line for the person who waits."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        say("\ninterrupted; the next make goes on")
        sys.exit(130)
