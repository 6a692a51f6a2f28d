"""Makes the payload of a row: a new message or an edit of its placeholder, visibly shortened until it fits (E7).

Attachments for long texts come with media.
"""

from collections.abc import Sequence
from urllib.parse import quote

from mindroom.core.content import JsonObject, as_edit, read_marker
from mindroom.core.errors import MatrixDeliveryFailure, MatrixFailureClass
from mindroom.core.ids import EventId, RoomId, UserId
from mindroom.core.ports import DeliveryGateway, OutgoingEvent, WirePayload
from mindroom.outbox.records import DeliveryKey

CUT_NOTE = "\n\n[This answer is longer than one message may be; the rest was left out here. Reference {reference}]"


def smaller(content: JsonObject, *, reference: str) -> JsonObject | None:
    """The next smaller form: without HTML, then with half the text and a note that says so; None below one line."""
    if "formatted_body" in content:
        return {key: value for key, value in content.items() if key not in ("formatted_body", "format")}
    note = CUT_NOTE.format(reference=reference)
    body = str(content.get("body", "")).removesuffix(note)
    if len(body) < 256:
        return None
    return {**content, "body": body[: len(body) // 2] + note}


def plain(content: JsonObject) -> JsonObject:
    """The same without a relation that a homeserver may refuse; a reply stays one (E6)."""
    bare = {key: value for key, value in content.items() if key != "m.relates_to"}
    reply = content.get("m.relates_to", {}).get("m.in_reply_to")
    return bare | {"m.relates_to": {"m.in_reply_to": reply}} if reply else bare


def carried(content: JsonObject, *, room: RoomId, via: str) -> JsonObject:
    """An answer as another room reads it: its relation means nothing there, so it names the request by a link (F4)."""
    marker = read_marker(content)
    if marker is None or not marker.sources:
        return plain(content)
    link = f"https://matrix.to/#/{quote(room, safe='')}/{quote(marker.sources[-1], safe='')}?via={quote(via)}"
    said = {key: value for key, value in content.items() if key != "m.relates_to"}
    said["body"] = f"In answer to {link}\n\n{content['body']}"
    if "formatted_body" in content:
        named = f'<p>In answer to <a href="{link}">your message before the upgrade of the room</a></p>'
        said["formatted_body"] = named + str(content["formatted_body"])
    return said


async def freeze_fitting(
    gateway: DeliveryGateway,
    content: JsonObject,
    *,
    key: DeliveryKey,
    room: RoomId,
    edits: EventId | None,
    notify: Sequence[UserId],
    reference: str,
    halvings: int = 0,
) -> WirePayload | None:
    """Freeze `content`, as an edit of `edits` when there is one, at least `halvings` times made smaller.

    None when even the smallest form does not fit. Raises MatrixDeliveryFailure for content no server would take.
    """
    candidate: JsonObject | None = content
    for _ in range(halvings):
        candidate = None if candidate is None else smaller(candidate, reference=reference)
    while candidate is not None:
        shaped = candidate if edits is None else as_edit(candidate, edits, newly_mentioned=notify)
        try:
            return await gateway.freeze(OutgoingEvent(room, "m.room.message", shaped, key.txn_id))
        except MatrixDeliveryFailure as failure:
            if failure.failure_class is not MatrixFailureClass.TOO_LARGE:
                raise
            candidate = smaller(candidate, reference=reference)
    return None
