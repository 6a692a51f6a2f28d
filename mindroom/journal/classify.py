"""Pure: one raw `/sync` response, or one page of a gap, -> Admission. No clock, no I/O, no trust in any shape (R41).

Order inside a response: rooms.leave, then rooms.invite, then rooms.join (A9). The class of an event comes from the
stored cursor and from membership, never from its timestamp (A3).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from mindroom.core.content import JsonObject, identifier, read_marker, replaced_event, thread_root
from mindroom.core.ids import THREAD_MAIN, DeliveryId, Epoch, EventId, RoomId, SyncToken, UserId
from mindroom.core.transactions import read_txn_id
from mindroom.core.values import GAP_PAGE_TOP, EventClass, EventKind, Membership, Reason, Stage
from mindroom.journal.records import (
    Admission,
    Echo,
    Edit,
    GapFound,
    Heard,
    Hearer,
    Original,
    Redaction,
    Revision,
    RoomMembership,
    StateRow,
)
from mindroom.journal.rooms import KEPT_STATE, RoomBook

_TEXT_TYPES = frozenset({"m.text", "m.emote", "m.notice"})
_MEMBERSHIP_KEYS = ("membership", "io.element.msc4115.membership")
_MAX_INT = 2**53 - 1
MAX_DEPTH = 64
"""Deeper content is unreadable: no client writes it, and every later writer of JSON would have to survive it."""


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _objects(value: Any) -> list[JsonObject]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31 else None


def classify_sync(raw: Mapping[str, Any], *, hearer: Hearer, book: RoomBook, since: SyncToken | None) -> Admission:
    """What a sync response means. `since` None is the baseline of an account: everything in it is HISTORY (A3)."""
    admission = Admission()
    rooms = _object(raw.get("rooms"))
    for room, body in _rooms(rooms, "leave"):
        _Room(admission, hearer, book, room, baseline=since is None).left(body)
    for room, body in _rooms(rooms, "invite"):
        _Room(admission, hearer, book, room, baseline=since is None).invited(body)
    for room, body in _rooms(rooms, "join"):
        _Room(admission, hearer, book, room, baseline=since is None).joined(body, since)
    return admission


def classify_gap_page(
    events: Sequence[JsonObject], *, hearer: Hearer, room: RoomId, epoch: Epoch, floor: int, page: int
) -> tuple[Admission, bool]:
    """What a page of a gap means; `events` newest first, as `/messages?dir=b` gives them.

    The second value is True when the page reached our own invite or join: the gap ends there (B2). What is older is
    HISTORY. State of a gap never changes room state, membership or epoch (A13).
    """
    admission = Admission()
    reader = _Room(admission, hearer, RoomBook(), room, baseline=False)
    reader.epoch = epoch
    entered_at = next((i for i, event in enumerate(events) if _enters(event, hearer.user_id)), None)
    oldest_first = list(reversed(list(enumerate(events))))
    for index, (newest_index, event) in enumerate(oldest_first):
        before_us = entered_at is not None and newest_index > entered_at
        fallback = EventClass.HISTORY if before_us else EventClass.RECOVERED
        heard = reader.hear(event, fallback, recovered=True)
        if heard is not None:
            heard.base, heard.page, heard.index = floor, GAP_PAGE_TOP - page, index
    return admission, entered_at is not None


def _enters(event: JsonObject, me: UserId) -> bool:
    """True for our own invite or join; a join that only changes our profile is neither."""
    if event.get("type") != "m.room.member" or event.get("state_key") != me:
        return False
    now = _object(event.get("content")).get("membership")
    before = _object(_object(event.get("unsigned")).get("prev_content")).get("membership")
    return now == "invite" or (now == "join" and before != "join")


def _leaves(event: JsonObject, me: UserId) -> bool:
    """True when this is our own leave or ban."""
    ours = event.get("type") == "m.room.member" and event.get("state_key") == me
    return ours and _object(event.get("content")).get("membership") in ("leave", "ban")


def _rooms(rooms: Mapping[str, Any], section: str) -> Iterator[tuple[RoomId, Mapping[str, Any]]]:
    for room, body in _object(rooms.get(section)).items():
        if identifier(room):
            yield RoomId(room), _object(body)


def event_kind(event: Mapping[str, Any]) -> EventKind:
    """What kind of event this is, from its shape alone."""
    if not isinstance(event.get("content"), Mapping) or not identifier(event.get("sender")):
        return EventKind.UNREADABLE
    if not _is_shallow(event["content"], MAX_DEPTH):
        return EventKind.UNREADABLE
    if _count_ts(event) is None or not identifier(event.get("type")):
        return EventKind.UNREADABLE
    event_type, content = event["type"], event["content"]
    if event_type == "m.room.redaction":
        return EventKind.REDACTION
    if isinstance(event.get("state_key"), str):
        return EventKind.ROOM_LIFECYCLE
    if event_type == "m.reaction":
        return EventKind.REACTION
    if event_type == "m.room.encrypted":
        return EventKind.ENCRYPTED
    if replaced_event(content) is not None:
        return EventKind.EDIT
    msgtype = content.get("msgtype")
    if event_type == "m.room.message" and isinstance(msgtype, str) and msgtype not in _TEXT_TYPES and "url" in content:
        return EventKind.MEDIA
    return EventKind.MESSAGE


def _is_shallow(value: Any, depth: int) -> bool:
    if isinstance(value, dict):
        return depth > 0 and all(_is_shallow(item, depth - 1) for item in value.values())
    if isinstance(value, list):
        return depth > 0 and all(_is_shallow(item, depth - 1) for item in value)
    return True


def _count_ts(event: Mapping[str, Any]) -> int | None:
    ts = event.get("origin_server_ts")
    return ts if isinstance(ts, int) and not isinstance(ts, bool) and abs(ts) <= _MAX_INT else None


def redaction_target(event: Mapping[str, Any]) -> EventId | None:
    """content.redacts, else top-level redacts (A4)."""
    target = identifier(_object(event.get("content")).get("redacts")) or identifier(event.get("redacts"))
    return EventId(target) if target else None


class _Room:
    """Walks one room of one response, adding to the admission."""

    def __init__(self, admission: Admission, hearer: Hearer, book: RoomBook, room: RoomId, *, baseline: bool) -> None:
        self.admission = admission
        self.hearer = hearer
        self.view = book.view(room)
        self.room = room
        self.baseline = baseline
        self.current = admission.memberships.get(room) or self.view.membership
        self.epoch = self.current.epoch if self.current else Epoch(1)

    # ---- sections ----------------------------------------------------------------------------------------------------
    def left(self, body: Mapping[str, Any]) -> None:
        """We are out: the epoch ends; what was said before is history, but redactions count (A4, F1)."""
        banned = False
        for event in self._timeline(body):
            self.hear(event, EventClass.HISTORY)
        for event in [*_objects(_object(body.get("state")).get("events")), *self._timeline(body)]:
            if event.get("type") == "m.room.member" and event.get("state_key") == self.hearer.user_id:
                banned = _object(event.get("content")).get("membership") == "ban"
        self._depart(Membership.BAN if banned else Membership.LEAVE)

    def invited(self, body: Mapping[str, Any]) -> None:
        """An invite is a row until it is decided; sync shows it once (A9)."""
        for event in _objects(_object(body.get("invite_state")).get("events")):
            content = _object(event.get("content"))
            mine = event.get("type") == "m.room.member" and event.get("state_key") == self.hearer.user_id
            if mine and content.get("membership") == "invite":
                if self.current and self.current.membership is Membership.JOIN:
                    self._depart(Membership.LEAVE)
                self._set(
                    RoomMembership(
                        epoch=self.epoch,
                        membership=Membership.INVITE,
                        inviter=UserId(identifier(event.get("sender"))),
                        is_direct=content.get("is_direct") is True,
                    )
                )

    def joined(self, body: Mapping[str, Any], since: SyncToken | None) -> None:
        """State block, then the timeline in order; a limited timeline is a gap unless it reaches back to us."""
        for event in _objects(_object(body.get("state")).get("events")):
            self._keep_state(event)
        timeline = self._timeline(body)
        me = self.hearer.user_id
        left_at = max((i for i, event in enumerate(timeline) if _leaves(event, me)), default=-1)
        entered = [i for i, event in enumerate(timeline) if i > left_at and _enters(event, me)]
        new_to_us = self.current is None or self.current.membership is not Membership.JOIN
        first_ours = entered[0] if (new_to_us or left_at >= 0) and entered else -1
        for position, event in enumerate(timeline):
            if _enters(event, me):
                self._rejoined(event)
            self.hear(event, EventClass.LIVE if position > first_ours else EventClass.HISTORY)
            self._keep_state(event)
        self._finish_join(body)
        limited = _object(body.get("timeline")).get("limited") is True
        prev_batch = identifier(_object(body.get("timeline")).get("prev_batch"))
        if limited and prev_batch and since is not None and not entered:
            self.admission.gaps.append(GapFound(self.room, SyncToken(prev_batch), since, self.epoch))

    def _timeline(self, body: Mapping[str, Any]) -> list[JsonObject]:
        return _objects(_object(body.get("timeline")).get("events"))

    # ---- membership --------------------------------------------------------------------------------------------------
    def _set(self, membership: RoomMembership) -> None:
        self.current = membership
        self.admission.memberships[self.room] = membership

    def _depart(self, membership: Membership) -> None:
        if self.current is None:
            return
        if self.current.membership is Membership.JOIN:
            self.admission.departures[self.room] = self.epoch
            self.epoch = Epoch(self.epoch + 1)
            self.view = replace(self.view, state={})
        self._set(RoomMembership(epoch=self.epoch, membership=membership))

    def _rejoined(self, event: JsonObject) -> None:
        """Our join while the row says joined, coming from outside, is a departure we were not shown (F1)."""
        joined_now = _object(event.get("content")).get("membership") == "join"
        if (
            joined_now
            and self.current
            and self.current.membership is Membership.JOIN
            and self._came_from_outside(event)
        ):
            self._depart(Membership.LEAVE)
            self._set(replace(self.current, membership=Membership.JOIN))

    def _came_from_outside(self, event: JsonObject) -> bool:
        before = _object(_object(event.get("unsigned")).get("prev_content")).get("membership")
        return before in ("leave", "ban", "invite", "knock")

    def _finish_join(self, body: Mapping[str, Any]) -> None:
        """The row of a joined room, written only when it changes."""
        summary = _object(body.get("summary"))
        joined = _count(summary.get("m.joined_member_count"))
        invited = _count(summary.get("m.invited_member_count"))
        known = self.current or RoomMembership(epoch=self.epoch, membership=Membership.JOIN)
        wanted = replace(
            known,
            epoch=self.epoch,
            membership=Membership.JOIN,
            joined_count=known.joined_count if joined is None else joined,
            invited_count=known.invited_count if invited is None else invited,
        )
        if wanted != self.view.membership:
            self._set(wanted)

    def _keep_state(self, event: JsonObject) -> None:
        """Remember state we live by; encryption is sticky and cannot be taken back (E10)."""
        event_type, key, content = event.get("type"), event.get("state_key"), event.get("content")
        if event_type not in KEPT_STATE or not isinstance(content, dict) or identifier(key) != key:
            return
        if event_type == "m.room.encryption" and self.view.is_encrypted:
            return
        row = StateRow(self.room, event_type, key, UserId(identifier(event.get("sender"))), content)
        if self.view.state.get((event_type, key)) != row:
            self.admission.state[self.room, event_type, key] = row

    # ---- events ------------------------------------------------------------------------------------------------------
    def hear(self, event: JsonObject, position_class: EventClass, *, recovered: bool = False) -> Heard | None:
        """Receipt and projection of one timeline event; None when it has none (progress of hosted principals)."""
        event_id = EventId(identifier(event.get("event_id")))
        if not event_id:
            self.admission.dropped += 1
            return None
        kind = event_kind(event)
        sender = UserId(identifier(event.get("sender")))
        content = _object(event.get("content"))
        hosted = sender in self.hearer.hosted
        marker = read_marker(content) if hosted else None
        if marker is not None and marker.stage is Stage.PROGRESS:
            return None
        heard = Heard(
            event_id=event_id,
            room=self.room,
            thread=thread_root(content) or THREAD_MAIN,
            kind=kind,
            event_class=self._class(event, position_class, recovered=recovered),
            sender=sender,
            origin_ts=_count_ts(event) or 0,
            epoch=self.epoch,
        )
        self.admission.heard.append(heard)
        if sender == self.hearer.user_id:
            self._note_echo(event, heard)
        if kind is not EventKind.UNREADABLE:
            self._project(event, heard)
        self._owe(event, heard, hosted=hosted)
        return heard

    def _class(self, event: JsonObject, position_class: EventClass, *, recovered: bool) -> EventClass:
        """The server's word on our membership at the event decides where it stands, else its position (A3)."""
        if self.baseline:
            return EventClass.HISTORY
        unsigned = _object(event.get("unsigned"))
        said = next((unsigned[key] for key in _MEMBERSHIP_KEYS if isinstance(unsigned.get(key), str)), None)
        if said is None or position_class is EventClass.HISTORY:
            return position_class
        if said not in ("join", "invite"):
            return EventClass.HISTORY
        return EventClass.RECOVERED if recovered else EventClass.LIVE

    def _note_echo(self, event: JsonObject, heard: Heard) -> None:
        """Known by transaction id first, marker second; after a redaction only the former is left (E1)."""
        marker = read_marker(_object(event.get("content")))
        parsed = read_txn_id(identifier(_object(event.get("unsigned")).get("transaction_id")))
        if parsed is None and marker is None:
            return
        stage, delivery = parsed or (marker.stage, marker.delivery)  # type: ignore[union-attr]
        if stage is Stage.PROGRESS:
            return
        self.admission.echoes.append(
            Echo(heard.event_id, self.room, heard.thread, self.epoch, DeliveryId(delivery), stage, marker)
        )

    def _project(self, event: JsonObject, heard: Heard) -> None:
        """What a reader of the room would see change."""
        content: JsonObject = event["content"]
        if heard.kind is EventKind.REDACTION:
            if (target := redaction_target(event)) is not None:
                self.admission.projection.append(Redaction(self.room, target))
            return
        if "redacted_because" in _object(event.get("unsigned")):
            self.admission.projection.append(Redaction(self.room, heard.event_id))
            return
        revision = Revision(heard.origin_ts, heard.event_id)
        if heard.kind is EventKind.EDIT:
            target, new_content = replaced_event(content), content.get("m.new_content")
            if target is not None and isinstance(new_content, dict):
                self.admission.projection.append(
                    Edit(self.room, target, heard.sender, self.epoch, new_content, revision)
                )
        elif heard.kind in (EventKind.MESSAGE, EventKind.MEDIA) and event.get("type") == "m.room.message":
            marker = read_marker(content) if heard.sender in self.hearer.hosted else None
            relates_to = content.get("m.relates_to")
            self.admission.projection.append(
                Original(
                    room=self.room,
                    event_id=heard.event_id,
                    thread=heard.thread,
                    sender=heard.sender,
                    epoch=self.epoch,
                    content=None if marker is not None and marker.stage is Stage.INITIAL else content,
                    relates_to=relates_to if isinstance(relates_to, dict) else None,
                    revision=revision,
                    turn=marker.turn if marker is not None else None,
                )
            )

    def _owe(self, event: JsonObject, heard: Heard, *, hosted: bool) -> None:
        """Whether the event is owed an outcome, and whether admission itself gives it (I1, A7)."""
        if hosted or heard.event_class is EventClass.HISTORY:
            return
        if heard.kind not in (EventKind.MESSAGE, EventKind.MEDIA, EventKind.ENCRYPTED):
            return
        if heard.sender not in self.hearer.authorized:
            heard.outcome = f"ignored.{Reason.UNAUTHORIZED.value}"
        elif heard.kind is EventKind.ENCRYPTED:
            heard.outcome = f"ignored.{Reason.ENCRYPTED.value}"
            self.admission.encrypted_asks[self.room] = self.epoch
        elif event.get("type") != "m.room.message":
            heard.outcome = f"ignored.{Reason.UNSUPPORTED.value}"
        elif "redacted_because" in _object(event.get("unsigned")):
            heard.outcome = "redacted"
        else:
            heard.source = event
