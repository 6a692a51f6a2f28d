"""Gaps and invites of one principal: debts that workers pay page by page, with back-off on the row (B2, A9)."""

from collections.abc import Sequence
from dataclasses import dataclass

from mindroom.core.ids import Epoch, EventId, PrincipalId, Receipt, RoomId, SyncToken, UserId
from mindroom.core.values import OrderKey
from mindroom.db.engine import Database, Tx
from mindroom.journal.records import Gap, GapFound, Invite, KnownEvent
from mindroom.journal.statements import SQL


@dataclass(frozen=True, slots=True)
class Recovery:
    """Open debts of one principal towards the homeserver's history and invitations (I4)."""

    principal: PrincipalId
    database: Database

    async def draw_floor(self, tx: Tx) -> int:
        """The newest receipt number before this response: events of the gap sort there."""
        row = await tx.fetchrow(SQL["newest_receipt"])
        return int(row["floor"]) if row else 0

    async def open_gaps(self, tx: Tx, gaps: Sequence[GapFound], *, floor: int) -> None:
        """Record gaps in the commit of the response that revealed them (B2)."""
        await tx.execute(
            SQL["open_gaps"],
            self.principal,
            [g.room for g in gaps],
            [g.to_token for g in gaps],
            [g.from_token for g in gaps],
            [g.epoch for g in gaps],
            floor,
            [g.late_before_ms for g in gaps],
        )

    async def gaps(self) -> list[Gap]:
        """Open gaps, oldest first."""
        return [
            Gap(
                room=RoomId(r["room_id"]),
                to_token=SyncToken(r["to_token"]),
                from_token=SyncToken(r["from_token"]),
                floor=r["floor"],
                epoch=Epoch(r["epoch"]),
                opened_ms=r["opened_ms"],
                late_before_ms=r["late_before_ms"],
                walk=r["walk"],
                cursor=SyncToken(r["cursor"]) if r["cursor"] else None,
                page=r["page"],
                events=r["events"],
                anchor=OrderKey(*r["anchor"]) if r["anchor"] else None,
                is_due=r["due"],
                attempts=r["attempts"],
                refusals=r["refusals"],
                refused_seconds=r["refused_seconds"],
            )
            for r in await self.database.fetch(SQL["repairable_gaps"], self.principal)
        ]

    async def known(self, events: Sequence[EventId]) -> dict[EventId, KnownEvent]:
        """Which of these have a receipt, and where they stand."""
        return {
            EventId(r["event_id"]): KnownEvent(
                Receipt(r["receipt"]), OrderKey(r["base"], r["page"], r["idx"]), r["is_beginning"]
            )
            for r in await self.database.fetch(SQL["known_events"], self.principal, list(events))
        }

    async def advance(self, tx: Tx, gap: Gap, after: Gap) -> bool:
        """One page is read, in the commit of its events. False when somebody else read it or the room was left."""
        anchor = after.anchor
        row = await tx.fetchrow(
            SQL["advance_gap"],
            self.principal,
            gap.room,
            gap.to_token,
            gap.epoch,
            gap.page,
            after.cursor,
            after.walk,
            after.events,
            anchor and anchor.base,
            anchor and anchor.page,
            anchor and anchor.index,
            after.state.value,
        )
        return row is not None

    async def gap_failed(
        self, tx: Tx, gap: Gap, *, code: str, delay_seconds: float, is_refusal: bool, gives_up: bool
    ) -> bool:
        """A page could not be read: later again, or never (B3). False when the gap moved on meanwhile."""
        row = await tx.fetchrow(
            SQL["gap_failed"],
            self.principal,
            gap.room,
            gap.to_token,
            gap.epoch,
            gap.page,
            code,
            delay_seconds,
            is_refusal,
            gives_up,
        )
        return row is not None

    async def invites(self) -> list[Invite]:
        """Invitations that wait for a decision."""
        rows = await self.database.fetch(SQL["open_invites"], self.principal)
        return [
            Invite(RoomId(r["room_id"]), UserId(r["inviter"] or ""), r["invite_attempts"], r["due_in_seconds"])
            for r in rows
        ]

    async def invite_failed(self, tx: Tx, room: RoomId, *, code: str, delay_seconds: float) -> None:
        """Try again later."""
        await tx.execute(SQL["invite_failed"], self.principal, room, code, delay_seconds)

    async def invite_over(self, tx: Tx, room: RoomId, *, code: str | None) -> None:
        """Declined, or refused for good until a new invite."""
        await tx.execute(SQL["invite_over"], self.principal, room, code)
