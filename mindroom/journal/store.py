"""Journal: statements over receipts, pending sources and settlements of one principal.

Bound to a principal (I4). Methods with `tx` are pieces of a named transaction composed one level up; they never commit.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from uuid import UUID

from mindroom.core.content import JsonObject
from mindroom.core.errors import RetryClass
from mindroom.core.ids import (
    Epoch,
    EventId,
    PrincipalId,
    Receipt,
    RoomId,
    SyncToken,
    TurnId,
    UserId,
)
from mindroom.core.text import storable_json_text
from mindroom.core.values import EventClass, EventKind, Membership, OrderKey, Trust
from mindroom.db.engine import Database, Tx
from mindroom.journal.records import (
    Admitted,
    Checkpoint,
    Heard,
    Original,
    ParkedAs,
    PendingSource,
    RoomMembership,
    StateRow,
)
from mindroom.journal.rooms import RoomBook
from mindroom.journal.statements import SQL
from mindroom.journal.trust import CheckpointTrust, StoredCheckpoint, TrustEvent


def stored(value: JsonObject | None) -> str | None:
    """A JSON object as jsonb takes it: without NUL and lone surrogates (R41)."""
    return None if value is None else storable_json_text(value)


def loaded(text: str | None) -> JsonObject | None:
    """A jsonb column as an object."""
    if text is None:
        return None
    value: JsonObject = json.loads(text)
    return value


@dataclass(frozen=True, slots=True)
class PendingSummary:
    """How much is owed."""

    pending: int
    parked: int
    oldest_seconds: float
    next_attempt_seconds: float | None


@dataclass(frozen=True, slots=True)
class Journal:
    """The heard ledger of one principal."""

    principal: PrincipalId
    database: Database

    # ---- inside `admit` and `gap_page` ------------------------------------------------------------------------------
    async def hear(
        self,
        tx: Tx,
        heard: Sequence[Heard],
        *,
        plain: Mapping[EventId, Original] = MappingProxyType({}),
        checkpoint: Checkpoint | None = None,
    ) -> Admitted:
        """Receipts, pending rows and settlements of a batch; a known or repeated event changes nothing (A2).

        `plain` are originals that nothing in the batch refers to: they are shown by the same statement unless something
        stored refers to them. `checkpoint` moves with them (A1).
        """
        first = {h.event_id: h for h in reversed(heard)}
        heard = [h for h in heard if first[h.event_id] is h]
        originals = [plain.get(h.event_id) for h in heard]
        rows = await tx.fetch(
            SQL["hear"],
            self.principal,
            [h.event_id for h in heard],
            [h.room for h in heard],
            [h.thread for h in heard],
            [h.kind.value for h in heard],
            [h.event_class.value for h in heard],
            [h.sender for h in heard],
            [h.origin_ts for h in heard],
            [h.epoch for h in heard],
            [h.base for h in heard],
            [h.page for h in heard],
            [h.index for h in heard],
            [stored(h.source) for h in heard],
            [h.outcome for h in heard],
            [original is not None for original in originals],
            # What is owed carries its content in the source already, unless only part of it may be shown (A14).
            [
                stored(o.content) if o and (h.source is None or o.content is not h.source["content"]) else None
                for h, o in zip(heard, originals, strict=True)
            ],
            [stored(o.relates_to) if o else None for o in originals],
            [o.turn if o else None for o in originals],
            checkpoint.token if checkpoint else None,
            checkpoint.trust.state.value if checkpoint else None,
            checkpoint.trust.reason.value if checkpoint else None,
        )
        certified_ms = next((row["certified_ms"] for row in rows if row["receipt"] is None), None)
        rows = [row for row in rows if row["receipt"] is not None]
        receipts = {EventId(row["event_id"]): Receipt(row["receipt"]) for row in rows}
        keys = {EventId(row["event_id"]): OrderKey(row["base"], row["page"], row["idx"]) for row in rows}
        pending = [keys[EventId(row["event_id"])] for row in rows if row["is_pending"]]
        shown = frozenset(EventId(row["event_id"]) for row in rows if row["is_shown"])
        return Admitted(receipts, keys, min(pending, default=None), shown, certified_ms)

    async def mark_answered(self, tx: Tx, sources: Mapping[EventId, TurnId | None]) -> list[EventId]:
        """Our own FINAL names these sources: answered, now and whenever they come again (A6); returns the owed ones."""
        rows = await tx.fetch(SQL["mark_answered"], self.principal, list(sources), list(sources.values()))
        return [EventId(row["event_id"]) for row in rows]

    async def write_memberships(self, tx: Tx, memberships: Mapping[RoomId, RoomMembership]) -> None:
        """Our standing in rooms."""
        values = list(memberships.values())
        await tx.execute(
            SQL["write_memberships"],
            self.principal,
            list(memberships),
            [m.epoch for m in values],
            [m.membership.value for m in values],
            [m.inviter for m in values],
            [m.is_direct for m in values],
            [m.joined_count for m in values],
            [m.invited_count for m in values],
            [m.joined_by for m in values],
        )

    async def write_state(self, tx: Tx, rows: Sequence[StateRow]) -> None:
        """Current room state (A13)."""
        await tx.execute(
            SQL["write_state"],
            self.principal,
            [r.room for r in rows],
            [r.event_type for r in rows],
            [r.state_key for r in rows],
            [r.sender for r in rows],
            [stored(r.content) for r in rows],
        )

    async def depart(self, tx: Tx, departures: Mapping[RoomId, Epoch]) -> list[EventId]:
        """Forget rooms we have left; returns the sources that were owed there (F2)."""
        await tx.execute(SQL["forget_rooms"], self.principal, list(departures))
        rows = await tx.fetch(SQL["settle_departed"], self.principal, list(departures), list(departures.values()))
        return [EventId(row["event_id"]) for row in rows]

    async def move_checkpoint(self, tx: Tx, token: SyncToken | None, trust: CheckpointTrust) -> int | None:
        """The token moves alone: what it covers brought nothing to store. Returns when it was last certified, in ms."""
        row = await tx.fetchrow(SQL["move_checkpoint"], self.principal, token, trust.state.value, trust.reason.value)
        return row["certified_ms"] if row else None

    # ---- settling ---------------------------------------------------------------------------------------------------
    async def lock_pending(self, tx: Tx, events: Sequence[EventId]) -> set[EventId]:
        """Lock these sources; a missing one has been settled by somebody else (D3)."""
        rows = await tx.fetch(SQL["lock_pending"], self.principal, list(events))
        return {EventId(row["event_id"]) for row in rows}

    async def settle(
        self,
        tx: Tx,
        events: Sequence[EventId],
        *,
        outcome: str,
        turn: TurnId | None = None,
        rooms: Sequence[RoomId] | None = None,
    ) -> list[EventId]:
        """Take sources off the pending list; returns those that were owed.

        `rooms`, one for each event, are given where strangers name the events: a redaction reaches its own room only.
        """
        rows = await tx.fetch(
            SQL["settle_events"], self.principal, list(events), outcome, turn, None if rooms is None else list(rooms)
        )
        return [EventId(row["event_id"]) for row in rows]

    async def settle_ignored(self, tx: Tx, outcomes: Sequence[tuple[Receipt, str]]) -> None:
        """Many verdicts of silence in one commit."""
        await tx.execute(
            SQL["settle_ignored"], self.principal, [receipt for receipt, _ in outcomes], [o for _, o in outcomes]
        )

    async def record_failure(
        self, tx: Tx, events: Sequence[EventId], *, code: str, retry_class: RetryClass, delay_seconds: float
    ) -> None:
        """Back-off on the rows. Dependency errors never count as an attempt (C2)."""
        counted = 0 if retry_class is RetryClass.RETRY else 1
        await tx.execute(SQL["record_failure"], self.principal, list(events), counted, code, delay_seconds)

    async def park(
        self, tx: Tx, events: Sequence[EventId], *, code: str, parked_as: ParkedAs, version: str
    ) -> list[EventId]:
        """No process tries these again by itself (C2); returns those that were still owed and not parked."""
        rows = await tx.fetch(SQL["park"], self.principal, list(events), version, parked_as.value, code)
        return [EventId(row["event_id"]) for row in rows]

    async def parked_by(self) -> list[str]:
        """Versions of the program that parked sources for an unknown error."""
        return [row["parked_by"] for row in await self.database.fetch(SQL["parked_by"], self.principal)]

    async def retry_parked(self, tx: Tx, versions: Sequence[str], *, attempts: int) -> None:
        """What these versions parked for an unknown error is owed again, with so many attempts spent."""
        await tx.execute(SQL["retry_parked"], self.principal, list(versions), attempts)

    # ---- reads ------------------------------------------------------------------------------------------------------
    async def pending_page(
        self, after: OrderKey, after_receipt: int, *, held_rooms: Sequence[RoomId], limit: int
    ) -> list[PendingSource]:
        """Sources in order of work after a key; rooms held for a gap keep theirs unread."""
        rows = await self.database.fetch(
            SQL["pending_page"],
            self.principal,
            after.base,
            after.page,
            after.index,
            after_receipt,
            list(held_rooms),
            limit,
        )
        return [
            PendingSource(
                receipt=Receipt(r["receipt"]),
                order_key=OrderKey(r["base"], r["page"], r["idx"]),
                event_id=EventId(r["event_id"]),
                room=RoomId(r["room_id"]),
                thread=EventId(r["thread_id"]),
                sender=UserId(r["sender"]),
                kind=EventKind(r["kind"]),
                event_class=EventClass(r["class"]),
                epoch=Epoch(r["epoch"]),
                origin_ts=r["origin_ts"],
                source=json.loads(r["source"]),
                failures=r["failures"],
                attempts=r["attempts"],
                was_parked=r["was_parked"],
                open_turn=TurnId(UUID(str(r["open_turn"]))) if r["open_turn"] else None,
            )
            for r in rows
        ]

    async def pending_summary(self) -> PendingSummary:
        """How much is owed and how old it is."""
        row = await self.database.fetchrow(SQL["pending_summary"], self.principal)
        if row is None:
            return PendingSummary(0, 0, 0.0, None)
        return PendingSummary(row["pending"], row["parked"], row["oldest_seconds"], row["next_attempt_seconds"])

    async def room_owes(self, room: RoomId) -> bool:
        """Whether a room is owed an answer, or may be once its gap is walked."""
        row = await self.database.fetchrow(SQL["room_owes"], self.principal, room)
        return bool(row and row["owes"])

    async def load_checkpoint(self) -> StoredCheckpoint:
        """The stored token and how far it is believed: loaded is pending until a response is admitted (B1)."""
        row = await self.database.fetchrow(SQL["load_checkpoint"], self.principal)
        if row is None or row["token"] is None:
            return StoredCheckpoint(None, CheckpointTrust(Trust.COLD, TrustEvent.NO_TOKEN), None)
        trust = CheckpointTrust(Trust.PENDING, TrustEvent.LOADED)
        return StoredCheckpoint(SyncToken(row["token"]), trust, row["certified_ms"])

    async def load_book(self) -> RoomBook:
        """All rooms as they were known before (A13)."""
        book = RoomBook()
        for r in await self.database.fetch(SQL["load_memberships"], self.principal):
            book.put_membership(
                RoomId(r["room_id"]),
                RoomMembership(
                    Epoch(r["epoch"]),
                    Membership(r["membership"]),
                    UserId(r["inviter"]) if r["inviter"] else None,
                    r["is_direct"],
                    r["joined_count"],
                    r["invited_count"],
                    EventId(r["joined_by"]) if r["joined_by"] else None,
                ),
            )
        for r in await self.database.fetch(SQL["load_state"], self.principal):
            book.put_state(
                StateRow(RoomId(r["room_id"]), r["type"], r["state_key"], UserId(r["sender"]), json.loads(r["content"]))
            )
        return book
