"""How request paths are spelled. Never holds an access token: those travel in a header and reach no access log."""

from collections.abc import Sequence
from typing import Final
from urllib.parse import quote, urlencode

_CLIENT_API: Final = "/_matrix/client"


def client_path(*segments: str, query: Sequence[tuple[str, str]] = (), version: str = "v3") -> str:
    """A client-server API path; every segment is percent-encoded, slashes included."""
    path = "/".join([_CLIENT_API, version, *(quote(segment, safe="") for segment in segments)])
    return f"{path}?{urlencode(query)}" if query else path
