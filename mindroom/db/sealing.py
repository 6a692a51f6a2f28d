"""Sealing of secrets at rest with the instance key (I3).

Owns the key file, the sealed format and the check that a key belongs to an instance. Must never show, log or store the
key anywhere but in the key file, and never put a secret into an error's text.

Sealed format: version byte 1, 12 random bytes of nonce, AES-256-GCM ciphertext with its tag. Version and purpose are
authenticated, so a value copied into another column does not open.
"""

import base64
import binascii
import os
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path
from uuid import UUID

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from mindroom.core.errors import CorruptState, UserError
from mindroom.db.files import create_whole

KEY_BYTES = 32
KEY_VARIABLE = "MINDROOM_SECRET_KEY"
"""Environment variable that wins over the key file: base64 of 32 bytes."""

_VERSION = b"\x01"
_NONCE_BYTES = 12
_KEY_CHECK_PURPOSE = "instance.key_check"


class Sealer:
    """Seals and opens values with one instance key; its representation shows nothing of it."""

    __slots__ = ("_cipher",)

    def __init__(self, key: bytes) -> None:
        """Raises ValueError unless `key` has 32 bytes."""
        if len(key) != KEY_BYTES:
            raise ValueError(f"an instance key has {KEY_BYTES} bytes")
        self._cipher = AESGCM(key)

    def __repr__(self) -> str:
        return "Sealer()"

    def seal(self, plain: bytes | str, *, purpose: str) -> bytes:
        """Encrypt for one place, named `table.column` and, where rows must not be swapped, their key; text as UTF-8."""
        data = plain.encode() if isinstance(plain, str) else plain
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return _VERSION + nonce + self._cipher.encrypt(nonce, data, _VERSION + purpose.encode())

    def open(self, sealed: bytes, *, purpose: str) -> bytes:
        """Decrypt. Raises CorruptState when the key or the purpose is another one, or the value was changed."""
        if sealed[:1] != _VERSION:
            raise CorruptState(f"the sealed value of {purpose} has a format that this version does not know")
        nonce, ciphertext = sealed[1 : 1 + _NONCE_BYTES], sealed[1 + _NONCE_BYTES :]
        try:
            return self._cipher.decrypt(nonce, ciphertext, _VERSION + purpose.encode())
        except (InvalidTag, ValueError) as error:
            raise CorruptState(f"the sealed value of {purpose} does not open with this instance's key") from error

    def key_check(self, instance_id: UUID) -> bytes:
        """The token by which another start proves that it has the same key for the same instance."""
        return self.seal(instance_id.bytes, purpose=_KEY_CHECK_PURPOSE)

    def opens(self, key_check: bytes, *, instance_id: UUID) -> bool:
        """Whether this key made `key_check` for that instance."""
        try:
            return self.open(key_check, purpose=_KEY_CHECK_PURPOSE) == instance_id.bytes
        except CorruptState:
            return False


def load_key(path: Path, *, environ: Mapping[str, str] = os.environ) -> bytes | None:
    """The instance key from the environment, else from the file, else None.

    Raises UserError when either is malformed or others may read the file; never with the value in its text.
    """
    given = environ.get(KEY_VARIABLE)
    if given is not None:
        return _decode(given, source=f"The environment variable {KEY_VARIABLE}")
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UserError(f"The key file {path} cannot be read: {error.strerror}.") from error
    with open(handle, encoding="ascii", errors="replace") as file:
        if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
            raise UserError(f"The key file {path} can be read by other users; run `chmod 600 {path}`.")
        return _decode(file.read(), source=f"The key file {path}")


def load_or_create_key(path: Path, *, environ: Mapping[str, str] = os.environ) -> bytes:
    """The instance key; drawn and stored at `path` (mode 0600, whole or not at all) when there is none anywhere.

    Of two processes that create it at once both return the same key. Raises UserError as `load_key` does, and when the
    file cannot be written.
    """
    found = load_key(path, environ=environ)
    if found is not None:
        return found
    key = secrets.token_bytes(KEY_BYTES)
    try:
        create_whole(path, base64.b64encode(key) + b"\n")
    except FileExistsError:
        other = load_key(path, environ=environ)
        if other is not None:
            return other
        raise
    except OSError as error:
        raise UserError(
            f"The key file {path} cannot be written: {error.strerror}. Make its folder writable, or set {KEY_VARIABLE}."
        ) from error
    return key


def _decode(text: str, *, source: str) -> bytes:
    try:
        key = base64.b64decode(text.strip(), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) != KEY_BYTES:
        raise UserError(f"{source} is not a key: expected {KEY_BYTES} bytes in base64 (44 characters).")
    return key
