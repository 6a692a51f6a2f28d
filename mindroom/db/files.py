"""Small files that are whole or absent after any crash, readable by their owner alone.

Owns nothing but the way of writing; the callers own the paths.
"""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path


def create_whole(path: Path, content: bytes) -> None:
    """Write a new file. Raises FileExistsError when there is one (its content stays), else OSError."""
    # A hard link, unlike a rename, refuses to replace.
    _publish(path, content, os.link)


def replace_whole(path: Path, content: bytes) -> None:
    """Write a file or replace it at once. Raises OSError."""
    _publish(path, content, os.replace)


def _publish(path: Path, content: bytes, place: Callable[[str, Path], None]) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with open(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        place(name, path)
    finally:
        Path(name).unlink(missing_ok=True)
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
