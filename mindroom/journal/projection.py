"""The projection of one principal: reads what a batch touches, reduces purely, writes what changed; serves prompts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from mindroom.core.content import JsonObject
from mindroom.core.ids import Epoch, EventId, PrincipalId, RoomId, TurnId, UserId
from mindroom.core.values import Conversation, OrderKey
from mindroom.db.engine import Database, Tx
from mindroom.journal.records import (
    Edit,
    Original,
    ProjectionChange,
    Redaction,
    Refetched,
    Revision,
    Silenced,
    VisibleMessage,
)
from mindroom.journal.reduce import Key, Projection, Shown, Withdrawn, reduce
from mindroom.journal.statements import SQL
from mindroom.journal.store import loaded, stored

CONVERSATION_LIMIT = 400
"""Newest messages of a conversation that a prompt may see; the prompt's own budget cuts further."""


def touched(changes: Sequence[ProjectionChange]) -> list[tuple[RoomId, EventId]]:
    """The events whose stored rows a batch must know."""
    keys: dict[tuple[RoomId, EventId], None] = {}
    for change in changes:
        if isinstance(change, Original):
            keys[change.room, change.event_id] = None
        elif isinstance(change, Edit):
            keys[change.room, change.target] = None
            keys[change.room, change.revision.event_id] = None
        else:
            keys[change.room, change.target] = None
            if isinstance(change, Refetched):
                keys |= {(change.room, edit.revision.event_id): None for edit in change.edits}
    return list(keys)


@dataclass(frozen=True, slots=True)
class MessageProjection:
    """Visible messages of one principal (I4)."""

    principal: PrincipalId
    database: Database

    async def apply(
        self,
        tx: Tx,
        changes: Sequence[ProjectionChange],
        *,
        keys: Mapping[EventId, OrderKey],
        shown: frozenset[EventId] = frozenset(),
    ) -> Withdrawn | None:
        """Apply changes whose event has a place in `keys` and that are not `shown` yet.

        A message that is shown already, because history brought it first, moves to the place given here: what a
        receipt brings wins (A12). Returns what redactions took, None without any: its text must go everywhere.
        """
        fresh = [c for c in changes if _is_fresh(c, keys, shown)]
        if not fresh:
            return None
        known = await self._read(tx, fresh)
        late = [c for c in fresh if isinstance(c, Original) and (c.room, c.event_id) in known.shown]
        projection = reduce(known, fresh)
        if late:
            await self._place(tx, late, keys)
        await self._write_shown(tx, projection, keys)
        await self._write_waiting(tx, projection)
        if projection.buried:
            rooms, events = _split(projection.buried)
            await tx.execute(SQL["bury"], self.principal, rooms, events)
        return projection.withdrawn() if projection.buried else None

    async def said_by(self, tx: Tx, silenced: Sequence[Silenced]) -> list[Redaction]:
        """Redactions of all that is stored of people whose events went with them (A4)."""
        rows = await tx.fetch(
            SQL["said_by"],
            self.principal,
            [s.event.room for s in silenced],
            [s.user for s in silenced],
            [s.event.base for s in silenced],
        )
        return [Redaction(RoomId(row["room_id"]), EventId(row["event_id"])) for row in rows]

    async def withheld(self, *, limit: int) -> list[Key]:
        """Messages whose text before a redacted edit is owed (A4)."""
        rows = await self.database.fetch(SQL["withheld"], self.principal, limit)
        return [(RoomId(row["room_id"]), EventId(row["event_id"])) for row in rows]

    async def _read(self, tx: Tx, changes: Sequence[ProjectionChange]) -> Projection:
        rooms, events = _split(touched(changes))
        redacted = [c for c in changes if isinstance(c, Redaction)]
        rows = await tx.fetch(
            SQL["read_projection"],
            self.principal,
            rooms,
            events,
            [r.room for r in redacted],
            [r.target for r in redacted],
        )
        projection = Projection()
        for row in rows:
            key = (RoomId(row["room_id"]), EventId(row["event_id"]))
            if row["what"] == "shown":
                projection.shown[key] = _shown(row)
            elif row["what"] == "waiting":
                sender = UserId(row["sender"])
                projection.waiting[*key, sender] = Edit(
                    *key,
                    sender,
                    Epoch(row["epoch"]),
                    loaded(row["content"]),
                    Revision(row["revision_ts"], EventId(row["revision_id"])),
                )
            else:
                projection.tombstones.add(key)
        return projection

    async def _write_shown(self, tx: Tx, projection: Projection, places: Mapping[EventId, OrderKey]) -> None:
        gone = [key for key in projection.changed if key not in projection.shown]
        if gone:
            await tx.execute(SQL["withdraw_shown"], self.principal, *_split(gone))
        kept = [projection.shown[key] for key in projection.changed if key in projection.shown]
        if not kept:
            return
        # A row that is only revised keeps its own place, whatever is passed here.
        keys = [places.get(s.event_id, OrderKey(0)) for s in kept]
        await tx.execute(
            SQL["write_shown"],
            self.principal,
            [s.room for s in kept],
            [s.event_id for s in kept],
            [s.thread for s in kept],
            [s.sender for s in kept],
            [s.epoch for s in kept],
            [s.origin_ts for s in kept],
            [k.base for k in keys],
            [k.page for k in keys],
            [k.index for k in keys],
            [stored(s.content) for s in kept],
            [stored(s.relates_to) for s in kept],
            [s.revision.timestamp_ms for s in kept],
            [s.revision.event_id for s in kept],
            [s.turn for s in kept],
        )

    async def _place(self, tx: Tx, late: Sequence[Original], places: Mapping[EventId, OrderKey]) -> None:
        keys = [places[original.event_id] for original in late]
        await tx.execute(
            SQL["place_shown"],
            self.principal,
            [original.room for original in late],
            [original.event_id for original in late],
            [k.base for k in keys],
            [k.page for k in keys],
            [k.index for k in keys],
        )

    async def _write_waiting(self, tx: Tx, projection: Projection) -> None:
        gone = [key for key in projection.waiting_changed if key not in projection.waiting]
        if gone:
            await tx.execute(
                SQL["drop_waiting_edits"],
                self.principal,
                [k[0] for k in gone],
                [k[1] for k in gone],
                [k[2] for k in gone],
            )
        kept = [projection.waiting[key] for key in projection.waiting_changed if key in projection.waiting]
        if kept:
            await tx.execute(
                SQL["write_waiting_edits"],
                self.principal,
                [e.room for e in kept],
                [e.target for e in kept],
                [e.sender for e in kept],
                [stored(e.content) for e in kept],
                [e.revision.timestamp_ms for e in kept],
                [e.revision.event_id for e in kept],
                [e.epoch for e in kept],
            )

    async def conversation(self, conversation: Conversation) -> list[VisibleMessage]:
        """The newest messages of a conversation, oldest first."""
        rows = await self.database.fetch(
            SQL["conversation"], self.principal, conversation.room, conversation.stored_thread, CONVERSATION_LIMIT
        )
        return [_visible(row) for row in rows]

    async def participants(self, conversation: Conversation) -> list[UserId]:
        """Who has spoken in a conversation, the latest first."""
        rows = await self.database.fetch(
            SQL["participants"], self.principal, conversation.room, conversation.stored_thread
        )
        return [UserId(row["sender"]) for row in rows]

    async def message(self, room: RoomId, event: EventId) -> VisibleMessage | None:
        """One message of a room, or None when it is unknown or redacted."""
        row = await self.database.fetchrow(SQL["message"], self.principal, room, event)
        return _visible(row) if row else None


def _is_fresh(change: ProjectionChange, keys: Mapping[EventId, OrderKey], shown: frozenset[EventId]) -> bool:
    if isinstance(change, Redaction | Refetched):
        return True
    event = change.event_id if isinstance(change, Original) else change.revision.event_id
    return event in keys and event not in shown


def _split(keys: Any) -> tuple[list[RoomId], list[EventId]]:
    pairs = list(keys)
    return [room for room, _ in pairs], [event for _, event in pairs]


def _shown(row: Any) -> Shown:
    return Shown(
        room=RoomId(row["room_id"]),
        event_id=EventId(row["event_id"]),
        thread=EventId(row["thread_id"]),
        sender=UserId(row["sender"]),
        epoch=Epoch(row["epoch"]),
        origin_ts=row["origin_ts"],
        content=loaded(row["content"]),
        relates_to=loaded(row["relates_to"]),
        revision=Revision(row["revision_ts"], EventId(row["revision_id"])),
        turn=_turn(row["turn_id"]),
    )


def _visible(row: Any) -> VisibleMessage:
    content: JsonObject | None = loaded(row["content"])
    return VisibleMessage(
        event_id=EventId(row["event_id"]),
        sender=UserId(row["sender"]),
        thread=EventId(row["thread_id"]),
        order_key=OrderKey(row["base"], row["page"], row["idx"]),
        origin_ts=row["origin_ts"],
        content=content,
        relates_to=loaded(row["relates_to"]),
        turn=_turn(row["turn_id"]),
        is_withheld=row.get("is_withheld", False),
    )


def _turn(value: Any) -> TurnId | None:
    return TurnId(UUID(str(value))) if value else None
