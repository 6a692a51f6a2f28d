"""Pure: one raw `/sync` response -> Admission. No clock, no I/O, no trust in any shape (R41).

Order inside a response: rooms.leave, then rooms.invite, then rooms.join (A9). The class of an event comes from the
stored cursor and from membership, never from its timestamp (A3).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from mindroom.core.content import JsonObject, identifier, replaced_event, thread_root, without_preview
from mindroom.core.ids import THREAD_MAIN, DeliveryId, Epoch, EventId, RoomId, SyncToken, UserId
from mindroom.core.transactions import read_txn_id
from mindroom.core.values import (
    EventClass,
    EventKind,
    Membership,
    Reason,
    Stage,
)
from mindroom.journal.records import (
    NO_TOKEN,
    Admission,
    Echo,
    Edit,
    GapFound,
    Heard,
    Hearer,
    Original,
    ProgressSeen,
    Redaction,
    Revision,
    RoomMembership,
    Silenced,
    StateRow,
)
from mindroom.journal.rooms import KEPT_STATE, RoomBook
from mindroom.journal.shape import (
    MAX_DEPTH,
    as_count,
    as_object,
    as_objects,
    as_token,
    begins,
    enters,
    event_kind,
    is_redacted,
    is_shallow,
    joins_by,
    leaves,
    membership_before,
    origin_ts,
    redaction_target,
    silenced_user,
    storable_marker,
)
from mindroom.journal.trust import late_before

_SPEECH = frozenset({EventKind.MESSAGE, EventKind.MEDIA, EventKind.EDIT, EventKind.ENCRYPTED})
_MEMBERSHIP_KEYS = ("membership", "io.element.msc4115.membership")


def classify_sync(
    raw: Mapping[str, Any],
    *,
    hearer: Hearer,
    book: RoomBook,
    since: SyncToken | None,
    certified_ms: int | None = None,
) -> Admission:
    """What a sync response means; `certified_ms` is when the response before it was admitted, None before the first.

    Without both it is the baseline of an account: everything in it is HISTORY (A3). Without `since` alone it is a
    recovery: what is unknown in it is RECOVERED, and a joined room that it does not name is one we have left (B4, F1).
    """
    admission = Admission()
    rooms = as_object(raw.get("rooms"))
    sections = {name: dict(_rooms(rooms, name)) for name in ("leave", "invite", "join")}

    def reader(room: RoomId) -> RoomReader:
        read = RoomReader(admission, hearer, book, room, late_before_ms=late_before(certified_ms))
        read.is_baseline, read.is_recovery = since is None and certified_ms is None, since is None
        return read

    for room, body in sections["leave"].items():
        reader(room).left(body)
    if since is None:
        for room in book.joined():
            if not any(room in named for named in sections.values()):
                reader(room).missed()
    for room, body in sections["invite"].items():
        reader(room).invited(body)
    for room, body in sections["join"].items():
        reader(room).joined(body, since)
    return admission


def _rooms(rooms: Mapping[str, Any], section: str) -> Iterator[tuple[RoomId, Mapping[str, Any]]]:
    for room, body in as_object(rooms.get(section)).items():
        if identifier(room):
            yield RoomId(room), as_object(body)


class RoomReader:
    """Walks one room of one response, adding to the admission."""

    def __init__(
        self, admission: Admission, hearer: Hearer, book: RoomBook, room: RoomId, *, late_before_ms: int | None
    ) -> None:
        self.admission = admission
        self.hearer = hearer
        self.book = book
        self.view = book.view(room)
        self.room = room
        self.late_before_ms = late_before_ms
        self.is_baseline = False
        self.is_recovery = False
        self.current = admission.memberships.get(room) or self.view.membership
        self.epoch = self.current.epoch if self.current else Epoch(1)

    # ---- sections ----------------------------------------------------------------------------------------------------
    def left(self, body: Mapping[str, Any]) -> None:
        """We are out: the epoch ends; nothing said before is shown any more, but redactions count (A4, F1, F2)."""
        banned = False
        timeline = self._timeline(body)
        projected = len(self.admission.projection)
        for event in timeline:
            self.hear(event, EventClass.HISTORY)
        kept = [change for change in self.admission.projection[projected:] if isinstance(change, Redaction)]
        self.admission.projection[projected:] = kept
        for event in [*as_objects(as_object(body.get("state")).get("events")), *timeline]:
            if event.get("type") == "m.room.member" and event.get("state_key") == self.hearer.user_id:
                banned = as_object(event.get("content")).get("membership") == "ban"
        self._depart(Membership.BAN if banned else Membership.LEAVE)

    def missed(self) -> None:
        """A complete response does not name this room: a departure that we were not shown (F1)."""
        self._depart(Membership.LEAVE)

    def invited(self, body: Mapping[str, Any]) -> None:
        """An invite is a row until it is decided; sync shows it once (A9)."""
        for event in as_objects(as_object(body.get("invite_state")).get("events")):
            content = as_object(event.get("content"))
            mine = event.get("type") == "m.room.member" and event.get("state_key") == self.hearer.user_id
            if mine and content.get("membership") == "invite":
                if self._is_member:
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
        """The timeline in order; a limited one is a gap unless our membership begins in it (A3, B2).

        A departure that we were not shown comes first, so that no row is stamped with the dead epoch (A5) and state
        equal to what we knew before is kept.
        """
        timeline = self._timeline(body)
        state = as_objects(as_object(body.get("state")).get("events"))
        begins_at = self._begins_at(timeline)
        self._note_joins(state, timeline)
        for position, event in enumerate(timeline):
            is_ours = begins_at is None or position > begins_at
            self.hear(event, EventClass.LIVE if is_ours else EventClass.HISTORY)
        for event in [*state, *timeline]:
            self._keep_state(event)
        self._finish_join(body)
        limited = as_object(body.get("timeline")).get("limited") is True
        prev_batch = as_token(as_object(body.get("timeline")).get("prev_batch"))
        if limited and prev_batch and not self.is_baseline and begins_at is None:
            stop = since or NO_TOKEN
            self.admission.gaps.append(GapFound(self.room, prev_batch, stop, self.epoch, self.late_before_ms))

    def _begins_at(self, timeline: Sequence[JsonObject]) -> int | None:
        """Where our current membership begins; None when that is older than the timeline, which is then ours."""
        me = self.hearer.user_id
        left_at = max((i for i, event in enumerate(timeline) if leaves(event, me)), default=None)
        is_new = left_at is not None or self.current is None or self.current.membership is not Membership.JOIN
        for position, event in enumerate(timeline):
            is_later = left_at is None or position > left_at
            if is_later and enters(event, me) and (is_new or self._came_from_outside(event)):
                return position if left_at is not None or begins(event, me) else None
        return left_at

    def _timeline(self, body: Mapping[str, Any]) -> list[JsonObject]:
        raw = as_object(body.get("timeline")).get("events")
        events = as_objects(raw)
        self.admission.dropped += len(raw) - len(events) if isinstance(raw, list) else 0
        return events

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

    def _note_joins(self, state: Sequence[JsonObject], timeline: Sequence[JsonObject]) -> None:
        """Our join from outside while the row says joined is a departure that we were not shown (F1).

        The join that began this stay is no news, nor is anything before it: servers repeat it as state, and a recovery
        shows it in the timeline. While it is unknown, only a timeline that goes on from the last one tells of another.
        Where we knew that we are out, only the last join matters: earlier ones began stays that have ended.
        """
        joins = [event for event in [*state, *timeline] if joins_by(event, self.hearer.user_id)]
        if not self._is_member:
            joins = joins[-1:]
        stay = self.current.joined_by if self.current and self.current.membership is Membership.JOIN else None
        known_at = max((i for i, event in enumerate(joins) if event["event_id"] == stay), default=-1)
        for event in joins[known_at + 1 :]:
            is_news = stay is not None or (not self.is_recovery and event in timeline)
            if is_news and self._is_member and self._came_from_outside(event):
                self._depart(Membership.LEAVE)
            current = self.current or RoomMembership(epoch=self.epoch, membership=Membership.JOIN)
            stay = EventId(event["event_id"])
            self._set(replace(current, membership=Membership.JOIN, joined_by=stay))

    @property
    def _is_member(self) -> bool:
        return self.current is not None and self.current.membership is Membership.JOIN

    def _came_from_outside(self, event: JsonObject) -> bool:
        return membership_before(event) in ("leave", "ban", "invite", "knock")

    def _finish_join(self, body: Mapping[str, Any]) -> None:
        """The row of a joined room, written only when it changes."""
        summary = as_object(body.get("summary"))
        joined = as_count(summary.get("m.joined_member_count"))
        invited = as_count(summary.get("m.invited_member_count"))
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
        if not isinstance(event_type, str) or event_type not in KEPT_STATE or identifier(key) != key:
            return
        if not isinstance(content, dict) or not is_shallow(content, MAX_DEPTH):
            return
        if event_type == "m.room.encryption" and self.view.is_encrypted:
            return
        row = StateRow(self.room, event_type, key, UserId(identifier(event.get("sender"))), content)
        if self.view.state.get((event_type, key)) != row:
            self.admission.state[self.room, event_type, key] = row
            if event_type == "m.room.tombstone" and not key:
                self._follow(row)

    def _follow(self, tombstone: StateRow) -> None:
        """The successor of an upgraded room waits like an invitation, as if the upgrader had invited us (F4)."""
        successor = RoomId(identifier(tombstone.content.get("replacement_room")))
        current = self.admission.memberships.get(successor) or self.book.view(successor).membership
        if successor and (current is None or current.membership is Membership.LEAVE):
            epoch = current.epoch if current else Epoch(1)
            self.admission.memberships[successor] = RoomMembership(epoch, Membership.INVITE, tombstone.sender)

    # ---- events ------------------------------------------------------------------------------------------------------
    def hear(self, event: JsonObject, position_class: EventClass) -> Heard | None:
        """Receipt and projection of one timeline event; None when it has none (progress of hosted principals)."""
        event_id = EventId(identifier(event.get("event_id")))
        if not event_id:
            self.admission.dropped += 1
            return None
        kind = event_kind(event)
        if kind is EventKind.UNREADABLE and is_redacted(event):
            kind = EventKind.MESSAGE  # stripped, not malformed (A4)
        sender = UserId(identifier(event.get("sender")))
        content = as_object(event.get("content"))
        hosted = sender in self.hearer.hosted
        marker = storable_marker(content) if hosted else None
        if marker is not None and marker.stage is Stage.PROGRESS:
            if sender == self.hearer.user_id:
                revision = Revision(origin_ts(event) or 0, event_id)
                self.admission.progress.append(ProgressSeen(marker.delivery, revision))
            return None
        heard = Heard(
            event_id=event_id,
            room=self.room,
            thread=thread_root(content) or THREAD_MAIN,
            kind=kind,
            event_class=self._class(event, position_class),
            sender=sender,
            origin_ts=origin_ts(event) or 0,
            epoch=self.epoch,
        )
        self.admission.heard.append(heard)
        if sender == self.hearer.user_id:
            self._note_echo(event, heard)
        if kind is not EventKind.UNREADABLE:
            self._project(event, heard)
        self._owe(event, heard, hosted=hosted)
        return heard

    def _class(self, event: JsonObject, position_class: EventClass) -> EventClass:
        """The server's word on our membership at the event decides where it stands, else its position (A3)."""
        if self.is_baseline or position_class is EventClass.HISTORY:
            return EventClass.HISTORY
        unsigned = as_object(event.get("unsigned"))
        said = next((unsigned[key] for key in _MEMBERSHIP_KEYS if isinstance(unsigned.get(key), str)), None)
        if said not in (None, "join", "invite"):
            return EventClass.HISTORY
        return EventClass.RECOVERED if self.is_recovery else EventClass.LIVE

    def _note_echo(self, event: JsonObject, heard: Heard) -> None:
        """Known by transaction id first, marker second; after a redaction only the former is left (E1)."""
        marker = storable_marker(as_object(event.get("content")))
        parsed = read_txn_id(identifier(as_object(event.get("unsigned")).get("transaction_id")))
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
        if heard.kind is EventKind.REDACTION:
            if (target := redaction_target(event)) is not None:
                self.admission.projection.append(Redaction(self.room, target))
            return
        if is_redacted(event):
            self.admission.projection.append(Redaction(self.room, heard.event_id))
            return
        if (user := silenced_user(event)) is not None:
            self.admission.silenced.append(Silenced(heard, user))
            said = [h for h in self.admission.heard if (h.room, h.sender) == (self.room, user) and h.kind in _SPEECH]
            self.admission.projection += [Redaction(self.room, h.event_id) for h in said]
        if event.get("type") != "m.room.message":
            return
        content: JsonObject = event["content"]
        revision = Revision(heard.origin_ts, heard.event_id)
        if heard.kind is EventKind.EDIT:
            target, new_content = replaced_event(content), content.get("m.new_content")
            if target is not None and isinstance(new_content, dict):
                self.admission.projection.append(
                    Edit(self.room, target, heard.sender, self.epoch, without_preview(new_content), revision)
                )
        elif heard.kind in (EventKind.MESSAGE, EventKind.MEDIA):
            marker = storable_marker(content) if heard.sender in self.hearer.hosted else None
            relates_to = content.get("m.relates_to")
            self.admission.projection.append(
                Original(
                    room=self.room,
                    event_id=heard.event_id,
                    thread=heard.thread,
                    sender=heard.sender,
                    epoch=self.epoch,
                    content=None if marker is not None and marker.stage is Stage.INITIAL else without_preview(content),
                    relates_to=relates_to if isinstance(relates_to, dict) else None,
                    revision=revision,
                    turn=marker.turn if marker is not None else None,
                )
            )

    def _owe(self, event: JsonObject, heard: Heard, *, hosted: bool) -> None:
        """Whether the event is owed an outcome, and whether admission itself gives it (A3, A7, I1)."""
        if hosted or heard.event_class is EventClass.HISTORY:
            return
        if heard.kind not in (EventKind.MESSAGE, EventKind.MEDIA, EventKind.ENCRYPTED):
            return
        if heard.sender not in self.hearer.authorized:
            heard.outcome = f"ignored.{Reason.UNAUTHORIZED.value}"
        elif is_redacted(event):
            heard.outcome = "redacted"
        elif self.late_before_ms is not None and heard.origin_ts < self.late_before_ms:
            heard.event_class, heard.outcome = EventClass.HISTORY, f"ignored.{Reason.LATE.value}"
        elif heard.kind is EventKind.ENCRYPTED:
            heard.outcome = f"ignored.{Reason.ENCRYPTED.value}"
            self.admission.encrypted_asks[self.room] = self.epoch
        elif event.get("type") != "m.room.message":
            heard.outcome = f"ignored.{Reason.UNSUPPORTED.value}"
        else:
            heard.source = event
