"""The receive side of one account: one `/sync` request, its answer as raw JSON with the top-level shape checked.

Never holds a token (the caller's checkpoint is the only one) and looks no deeper than the top level: one bad event
is the admission's business, not a reason to refuse a response (A7).
"""

import json
from typing import Final

from mindroom.core.errors import MatrixFailure, MatrixFailureClass
from mindroom.core.ids import SyncToken
from mindroom.core.ports import SyncBatch
from mindroom.core.text import storable
from mindroom.matrix.client import MatrixCall, MatrixClient
from mindroom.matrix.paths import client_path

TIMELINE_LIMIT: Final = 100
"""Events of a room in one response; what is more is a gap (B2)."""
_MARGIN_SECONDS: Final = 60.0
"""What a busy server may need beyond the long poll; answers after 70 s were seen for a 30 s poll."""
_FULL_MARGIN_SECONDS: Final = 300.0
"""The same when the server has to build every room's state; giving up earlier would only start it over."""


class MatrixSync:
    """SyncPort over one client."""

    def __init__(self, client: MatrixClient, *, timeline_limit: int = TIMELINE_LIMIT) -> None:
        self._client = client
        self._filter = _filter(timeline_limit)

    async def sync(self, since: SyncToken | None, *, timeout_seconds: float, full_state: bool) -> SyncBatch:
        """One request, one attempt; without `since` the account's baseline. Raises MatrixFailure."""
        query = [("filter", self._filter), ("timeout", str(max(0, round(timeout_seconds * 1000))))]
        if since is not None:
            query.append(("since", since))
        if full_state:
            query.append(("full_state", "true"))
        margin = _FULL_MARGIN_SECONDS if full_state or since is None else _MARGIN_SECONDS
        raw = await self._client.request(
            MatrixCall.SYNC,
            method="GET",
            path=client_path("sync", query=query),
            timeout_seconds=timeout_seconds + margin,
        )
        token = raw.get("next_batch")
        if not isinstance(token, str) or not token or storable(token) != token:
            raise MatrixFailure(MatrixCall.SYNC, MatrixFailureClass.NOT_JSON, status=200)
        if not isinstance(raw.get("rooms", {}), dict):
            raise MatrixFailure(MatrixCall.SYNC, MatrixFailureClass.NOT_JSON, status=200)
        return SyncBatch(next_batch=SyncToken(token), raw=raw)


def _filter(timeline_limit: int) -> str:
    room = {
        "include_leave": False,
        "timeline": {"limit": timeline_limit},
        # Who is in a room decides who answers: a member left out would look like an absence (A13).
        "state": {"lazy_load_members": False},
        "ephemeral": {"types": []},
        "account_data": {"types": []},
    }
    wanted = {"presence": {"types": []}, "account_data": {"types": ["m.direct"]}, "room": room}
    return json.dumps(wanted, separators=(",", ":"))
