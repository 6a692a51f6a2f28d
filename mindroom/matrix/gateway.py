"""The one transport for sends: freeze once, then the same bytes under the same transaction id at every attempt (E1).

Never retries and never shortens: content over the limit is refused before anything is claimed (E7).
"""

import json
from typing import Final

from mindroom.core.errors import MatrixDeliveryFailure, MatrixFailure, MatrixFailureClass
from mindroom.core.ids import DeviceId, EventId
from mindroom.core.ports import OutgoingEvent, WirePayload
from mindroom.core.text import canonical_json, storable_json
from mindroom.matrix.client import CALL_TIMEOUT_SECONDS, MatrixCall, MatrixClient
from mindroom.matrix.paths import client_path

CONTENT_LIMIT_BYTES: Final = 62_000
"""An event may have 65,536 bytes as the server stores it; the rest is for what the server adds (E7)."""


class MatrixGateway:
    """DeliveryGateway over one client; for rooms without encryption."""

    def __init__(self, client: MatrixClient, *, timeout_seconds: float = CALL_TIMEOUT_SECONDS) -> None:
        self._client = client
        self._timeout_seconds = timeout_seconds

    @property
    def device_id(self) -> DeviceId:
        """The transaction-id scope of this account."""
        return self._client.device_id

    async def freeze(self, event: OutgoingEvent) -> WirePayload:
        """The storable, canonical copy of an event (E7).

        Raises MatrixDeliveryFailure: TOO_LARGE beyond CONTENT_LIMIT_BYTES, BAD_REQUEST for what canonical JSON has
        not (a float, a large integer); `__cause__` names the place.
        """
        try:
            canonical = canonical_json(storable_json(event.content))
        except ValueError as error:
            raise MatrixDeliveryFailure("freeze", MatrixFailureClass.BAD_REQUEST, errcode="M_BAD_JSON") from error
        if len(canonical) > CONTENT_LIMIT_BYTES:
            raise MatrixDeliveryFailure("freeze", MatrixFailureClass.TOO_LARGE, errcode="M_TOO_LARGE")
        return WirePayload(
            room=event.room,
            event_type=event.event_type,
            content=json.loads(canonical),
            txn_id=event.txn_id,
            device_id=self.device_id,
        )

    async def send(self, wire: WirePayload) -> EventId:
        """One attempt. Raises MatrixDeliveryFailure; network class means the outcome is unknown."""
        try:
            answer = await self._client.request(
                MatrixCall.SEND,
                method="PUT",
                path=_path(wire),
                body=canonical_json(wire.content),
                timeout_seconds=self._timeout_seconds,
            )
        except MatrixFailure as failure:
            raise MatrixDeliveryFailure(
                failure.call,
                failure.failure_class,
                status=failure.status,
                errcode=failure.errcode,
                retry_after_seconds=failure.retry_after_seconds,
            ) from failure
        event_id = answer.get("event_id")
        if not isinstance(event_id, str) or not event_id:
            raise MatrixDeliveryFailure(MatrixCall.SEND, MatrixFailureClass.NOT_JSON, status=200)
        return EventId(event_id)


def _path(wire: WirePayload) -> str:
    """Redactions have an endpoint of their own; both share one transaction-id scope (platform facts)."""
    if wire.event_type == "m.room.redaction":
        return client_path("rooms", wire.room, "redact", wire.content["redacts"], wire.txn_id)
    return client_path("rooms", wire.room, "send", wire.event_type, wire.txn_id)
