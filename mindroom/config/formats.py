"""The written forms of single values: names, Matrix ids, URLs and environment-variable names.

Pure checks: each returns the value as it is kept, or raises ValueError with the end of a sentence that starts with
the key. A check of a key that may hold a pasted secret never repeats the value (I3).
"""

import re
import unicodedata
from urllib.parse import urlsplit

_NAME = re.compile(r"[a-z][a-z0-9_-]{0,63}")
_SERVER_NAME = re.compile(r"(\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9.-]{1,180})(:[0-9]{1,5})?")
_ENV_NAME = re.compile(r"[A-Z_][A-Z0-9_]*")
_MAX_ID_BYTES = 255
"""The longest user id the Matrix specification allows."""


def check_name(value: str) -> str:
    """The key of an agent, model or room; safe inside a Matrix localpart and an alias."""
    if not _NAME.fullmatch(value):
        raise ValueError(
            f"the name {value!r} must start with a lowercase letter and go on with lowercase letters, digits, "
            "'_' or '-', at most 64 in all"
        )
    return value


def check_one_line(value: str) -> str:
    """Text people read on one line: not empty, no control characters."""
    if not value.strip():
        raise ValueError("must not be empty")
    if any(unicodedata.category(character) == "Cc" for character in value):
        raise ValueError("must be one line without control characters")
    return value


def check_server_name(value: str) -> str:
    """The name after the colon of Matrix ids, with an optional port."""
    if not _SERVER_NAME.fullmatch(value):
        raise ValueError(f"{value!r} is not a Matrix server name such as 'example.org'")
    return value


def check_user_id(value: str) -> str:
    """One exact Matrix user id; there are no wildcards."""
    if "*" in value:
        raise ValueError(f"{value!r} holds a wildcard; name each user id in full")
    localpart, colon, server = value[1:].partition(":")
    printable = bool(localpart) and all("!" <= character <= "~" for character in localpart)
    well_formed = value.startswith("@") and colon and printable and _SERVER_NAME.fullmatch(server)
    if not well_formed or len(value) > _MAX_ID_BYTES:
        raise ValueError(f"{value!r} is not a Matrix user id such as '@alice:example.org'")
    return value


def check_url(value: str) -> str:
    """An http(s) address, kept without a trailing slash. The value is not repeated: it may hold a password."""
    try:
        parts = urlsplit(value)
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable or not all("!" <= character <= "~" for character in value):
        raise ValueError("must be an address such as 'https://matrix.example.org'")
    if parts.username is not None or parts.password is not None:
        raise ValueError("must not hold a user name or password; secrets come from environment variables")
    if "?" in value or "#" in value:
        raise ValueError("must not hold '?' or '#'")
    return value.rstrip("/")


def check_env_name(value: str) -> str:
    """The name of an environment variable. Only capitals pass, so that a pasted secret is seldom taken for a name."""
    if not _ENV_NAME.fullmatch(value):
        raise ValueError(
            "must be the name of an environment variable in capitals, such as 'MINDROOM_PASSWORD', not the secret"
        )
    return value
