"""Gaps and invites of one principal: debts that workers pay page by page, with back-off on the row (B2, A9)."""

from collections.abc import Sequence
from dataclasses import dataclass

from mindroom.core.ids import Epoch, PrincipalId, RoomId, SyncToken, UserId
from mindroom.db.engine import Database, Tx
from mindroom.journal.records import Gap, GapFound, Invite
from mindroom.journal.statements import SQL


@dataclass(frozen=True, slots=True)
class GapState:
    """An open gap with what its worker and the lanes need to know now."""

    gap: Gap
    is_due: bool
    age_seconds: float


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

    async def gaps(self) -> list[GapState]:
        """Open gaps, oldest first."""
        rows = await self.database.fetch(SQL["repairable_gaps"], self.principal)
        return [
            GapState(
                Gap(
                    RoomId(r["room_id"]),
                    SyncToken(r["to_token"]),
                    SyncToken(r["from_token"]),
                    SyncToken(r["cursor"]) if r["cursor"] else None,
                    r["page"],
                    r["floor"],
                    Epoch(r["epoch"]),
                    r["attempts"],
                    r["late_before_ms"],
                ),
                r["due"],
                r["age_seconds"],
            )
            for r in rows
        ]

    async def advance(self, tx: Tx, gap: Gap, *, cursor: SyncToken | None, closes: bool) -> bool:
        """One page is read, in the commit of its events. False when somebody else read it or the room was left."""
        row = await tx.fetchrow(
            SQL["advance_gap"], self.principal, gap.room, gap.to_token, cursor, gap.page, closes, gap.epoch
        )
        return row is not None

    async def gap_failed(self, tx: Tx, gap: Gap, *, code: str, delay_seconds: float) -> None:
        """A page could not be read."""
        await tx.execute(SQL["gap_failed"], self.principal, gap.room, gap.to_token, code, delay_seconds, gap.epoch)

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
