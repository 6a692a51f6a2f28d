"""How far the history of conversations was read for prompts, and where what was read stands (A12)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mindroom.core.ids import Epoch, EventId, PrincipalId, RoomId, SyncToken
from mindroom.core.values import Conversation, OrderKey
from mindroom.db.engine import Database, Tx
from mindroom.journal.records import Heard
from mindroom.journal.statements import SQL

ENOUGH_MESSAGES = 200
"""A conversation with so many messages known is not read further back."""


@dataclass(frozen=True, slots=True)
class Reach:
    """How far a conversation is known at this moment."""

    epoch: Epoch
    is_complete: bool
    """Read to its start, or heard from its root on."""
    page: int
    """Pages read so far."""
    start: SyncToken | None
    """Where the next page begins: the cursor, else where the sync stands, so that nothing unheard is read."""
    passed: int | None
    newest: int
    """Newest receipt number; a gap found later has a larger floor."""
    has_root: bool
    messages: int
    attempts: int
    is_due: bool

    @property
    def is_known(self) -> bool:
        """True when at least the newest part is known."""
        return self.is_complete or self.page > 0

    @property
    def wants_reading(self) -> bool:
        """True when another page may and should be read now."""
        return not self.is_complete and self.messages < ENOUGH_MESSAGES and self.is_due and self.start is not None


def place(
    heard: Sequence[Heard], *, standing: Mapping[EventId, OrderKey], floors: Sequence[int], passed: int | None
) -> tuple[dict[EventId, OrderKey], int | None]:
    """Places for the events of a page, oldest first, and the lowest base passed so far. Pure.

    An unknown event fills the newest gap that lies behind the known ones passed; behind all gaps its base is 0, before
    everything that was heard.
    """
    keys: dict[EventId, OrderKey] = {}
    for event in reversed(heard):
        known = standing.get(event.event_id)
        if known is not None:
            # What fills a gap has the gap's floor as its base: behind it the same gap goes on.
            bound = known.base + 1 if known.page else known.base
            passed = bound if passed is None else min(passed, bound)
            continue
        floor = max((floor for floor in floors if passed is None or floor < passed), default=0)
        keys[event.event_id] = OrderKey(floor, event.page, event.index)
    return keys, passed


@dataclass(frozen=True, slots=True)
class Hydration:
    """The rows of one principal (I4)."""

    principal: PrincipalId
    database: Database

    async def reach(self, conversation: Conversation) -> Reach | None:
        """How far the conversation is known; None in a room we are not in."""
        row = await self.database.fetchrow(
            SQL["hydration"], self.principal, conversation.room, conversation.stored_thread, ENOUGH_MESSAGES
        )
        if row is None:
            return None
        start = row["cursor"] or row["token"]
        return Reach(
            epoch=Epoch(row["epoch"]),
            is_complete=row["is_complete"] or row["is_rooted"],
            page=row["page"],
            start=SyncToken(start) if start else None,
            passed=row["passed"],
            newest=row["newest"],
            has_root=row["has_root"],
            messages=row["messages"],
            attempts=row["attempts"],
            is_due=row["is_due"],
        )

    async def places(
        self, tx: Tx, room: RoomId, events: Sequence[EventId]
    ) -> tuple[dict[EventId, OrderKey], list[int]]:
        """Where events of a page stand already, and the floors of the room's gaps that are not repaired."""
        rows = await tx.fetch(SQL["places"], self.principal, room, list(events))
        standing = {EventId(r["event_id"]): OrderKey(r["base"], r["page"], r["idx"]) for r in rows if r["event_id"]}
        return standing, [row["base"] for row in rows if not row["event_id"]]

    async def advance(
        self,
        tx: Tx,
        conversation: Conversation,
        reach: Reach,
        *,
        passed: int | None,
        cursor: SyncToken | None,
        rest_seconds: float,
    ) -> bool:
        """One page is read, in the commit of its messages; without a cursor it was the last. False when our stay ended
        or a gap was found since `reach` was taken. `rest_seconds` above 0: no further page before that time."""
        row = await tx.fetchrow(
            SQL["hydrate_chunk"],
            self.principal,
            conversation.room,
            conversation.stored_thread,
            reach.epoch,
            reach.newest,
            reach.page,
            passed,
            cursor,
            rest_seconds,
        )
        return row is not None

    async def failed(
        self, tx: Tx, conversation: Conversation, *, epoch: Epoch, code: str, delay_seconds: float
    ) -> None:
        """A page could not be read."""
        await tx.execute(
            SQL["hydrate_failed"],
            self.principal,
            conversation.room,
            conversation.stored_thread,
            epoch,
            code,
            delay_seconds,
        )
