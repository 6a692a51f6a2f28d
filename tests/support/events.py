"""Raw Matrix events and sync responses as a homeserver shows them; plain dicts, so that a test may spoil any part."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from mindroom.core.content import DELIVERY_KEY, DeliveryMarker
from mindroom.core.ids import DeliveryId, EventId, RoomId, TurnId, UserId
from mindroom.core.transactions import txn_id
from mindroom.core.values import Stage
from mindroom.journal.records import Hearer

Event = dict[str, Any]

ME = UserId("@agent:x")
PEER = UserId("@peer:x")
ALICE = UserId("@alice:x")
BOB = UserId("@bob:x")
STRANGER = UserId("@stranger:y")
ROOM = RoomId("!room:x")
OTHER_ROOM = RoomId("!other:x")
HEARER = Hearer(ME, frozenset({ME, PEER}), frozenset({ALICE, BOB}))
DELIVERY = DeliveryId(UUID(int=1))
TURN = TurnId(UUID(int=2))


def event(
    event_id: str,
    *,
    sender: str = ALICE,
    type_: str = "m.room.message",
    content: Event | None = None,
    ts: int = 1000,
    membership: str | None = None,
) -> Event:
    """One timeline event; `membership` is what the server says in `unsigned`."""
    made: Event = {
        "event_id": event_id,
        "type": type_,
        "sender": sender,
        "origin_server_ts": ts,
        "content": {} if content is None else content,
    }
    if membership is not None:
        made["unsigned"] = {"membership": membership}
    return made


def message(
    event_id: str,
    body: str = "hello",
    *,
    sender: str = ALICE,
    ts: int = 1000,
    thread: str | None = None,
    membership: str | None = None,
) -> Event:
    """A text message, in a thread when one is named."""
    content: Event = {"msgtype": "m.text", "body": body}
    if thread is not None:
        content["m.relates_to"] = {"rel_type": "m.thread", "event_id": thread}
    return event(event_id, sender=sender, content=content, ts=ts, membership=membership)


def edit(event_id: str, target: str, body: str, *, sender: str = ALICE, ts: int = 2000) -> Event:
    """An edit of `target`."""
    return event(
        event_id,
        sender=sender,
        ts=ts,
        content={
            "msgtype": "m.text",
            "body": f"* {body}",
            "m.new_content": {"msgtype": "m.text", "body": body},
            "m.relates_to": {"rel_type": "m.replace", "event_id": target},
        },
    )


def redaction(event_id: str, target: str, *, sender: str = ALICE) -> Event:
    """A redaction as rooms of version 11 and newer carry it."""
    return event(event_id, sender=sender, type_="m.room.redaction", content={"redacts": target})


def redacted(event_id: str, *, sender: str = ALICE, transaction_id: str | None = None) -> Event:
    """A message that arrives already stripped."""
    made = event(event_id, sender=sender)
    made["unsigned"] = {"redacted_because": redaction("$because", event_id)}
    if transaction_id is not None:
        made["unsigned"]["transaction_id"] = transaction_id
    return made


def member(
    event_id: str, user: str, membership: str, *, sender: str | None = None, before: str | None = None, **content: Any
) -> Event:
    """A membership event; `before` is the membership it replaced."""
    made = event(event_id, sender=sender or user, type_="m.room.member", content={"membership": membership, **content})
    made["state_key"] = user
    if before is not None:
        made["unsigned"] = {"prev_content": {"membership": before}}
    return made


def state(event_id: str, type_: str, content: Event, *, key: str = "", sender: str = ALICE) -> Event:
    """A state event."""
    return event(event_id, sender=sender, type_=type_, content=content) | {"state_key": key}


def said(
    event_id: str,
    stage: Stage,
    *,
    delivery: DeliveryId = DELIVERY,
    sender: str = ME,
    sources: Sequence[str] = (),
    edits: str | None = None,
    body: str = "an answer",
    ts: int = 3000,
    with_txn: bool = True,
) -> Event:
    """What a hosted principal sends: a marker at the top, and in the new content when it edits."""
    marker = DeliveryMarker(delivery, TURN, 1, stage, tuple(EventId(s) for s in sources)).to_json()
    content: Event = {"msgtype": "m.text", "body": body, DELIVERY_KEY: marker}
    if edits is not None:
        content["m.new_content"] = {"msgtype": "m.text", "body": body, DELIVERY_KEY: marker}
        content["m.relates_to"] = {"rel_type": "m.replace", "event_id": edits}
    made = event(event_id, sender=sender, content=content, ts=ts)
    if with_txn:
        made["unsigned"] = {"transaction_id": txn_id(stage, delivery)}
    return made


def joined_room(
    timeline: Sequence[Any] = (),
    *,
    state: Sequence[Any] = (),
    limited: bool = False,
    prev_batch: str = "p1",
    summary: Event | None = None,
) -> Event:
    """One room of `rooms.join`."""
    return {
        "timeline": {"events": list(timeline), "limited": limited, "prev_batch": prev_batch},
        "state": {"events": list(state)},
        "summary": summary or {},
    }


def invited_room(*events: Event) -> Event:
    """One room of `rooms.invite`."""
    return {"invite_state": {"events": list(events)}}


def left_room(timeline: Sequence[Any] = (), *, state: Sequence[Any] = ()) -> Event:
    """One room of `rooms.leave`."""
    return {"timeline": {"events": list(timeline)}, "state": {"events": list(state)}}


def response(
    *,
    join: dict[str, Event] | None = None,
    invite: dict[str, Event] | None = None,
    leave: dict[str, Event] | None = None,
    next_batch: str = "s2",
) -> Event:
    """A raw `/sync` response."""
    return {"next_batch": next_batch, "rooms": {"join": join or {}, "invite": invite or {}, "leave": leave or {}}}


def timeline(*events: Any, limited: bool = False, state: Sequence[Any] = ()) -> Event:
    """A response with one joined room, ROOM."""
    return response(join={ROOM: joined_room(events, limited=limited, state=state)})
