"""Upgrades: once we are in the successor of an upgraded room, what is owed goes there and the old room is left (F4).

Which rooms these are follows from the book alone: both are joined, the tombstone of one and the create event of the
other name each other. Nothing else is remembered, so a crash at any point is made up by looking again.
"""

import asyncio
from dataclasses import dataclass, field
from functools import partial

import structlog

from mindroom.bot.gate import StartGate
from mindroom.core.backoff import Backoff
from mindroom.core.clock import Clock, within
from mindroom.core.errors import DependencyError, TransactionRefused
from mindroom.core.ids import RoomId, UserId
from mindroom.core.ports import MembershipPort
from mindroom.db.engine import Tx
from mindroom.db.lease import Lease
from mindroom.journal.rooms import RoomBook
from mindroom.journal.store import Journal
from mindroom.outbox.fitting import carried
from mindroom.outbox.records import WaitingDelivery
from mindroom.outbox.store import Outbox
from mindroom.outbox.worker import OutboxWorker

log = structlog.get_logger(__name__)

LOOK_AGAIN_SECONDS = 5.0
"""How often an upgraded room that is not left yet is looked at: what is owed there ends in many ways."""


@dataclass(eq=False)
class Upgrades:
    """Moves one principal out of upgraded rooms."""

    lease: Lease
    user_id: UserId
    journal: Journal
    outbox: Outbox
    book: RoomBook
    worker: OutboxWorker
    membership: MembershipPort
    gate: StartGate
    configured_rooms: set[RoomId]
    clock: Clock
    _wake: asyncio.Event = field(default_factory=asyncio.Event)

    def wake(self) -> None:
        """Membership changed; we may be in a successor now."""
        self._wake.set()

    async def run(self) -> None:
        """Look whenever membership changes, and again while a room is being left. Raises FenceLost."""
        await self.gate.opened()
        backoff = Backoff(LOOK_AGAIN_SECONDS, 60.0)
        while True:
            self._wake.clear()
            upgraded = self.book.upgraded()
            wait_seconds = LOOK_AGAIN_SECONDS
            try:
                for old, new in upgraded:
                    await self._move(old, new)
                backoff.reset()
            except (DependencyError, TransactionRefused) as error:
                log.info("upgrade_waits", code=error.code)
                wait_seconds = backoff.next_seconds()
            waker = asyncio.ensure_future(self._wake.wait())
            try:
                await (within(self.clock, wait_seconds, waker) if upgraded else waker)
            finally:
                waker.cancel()

    async def _move(self, old: RoomId, new: RoomId) -> None:
        if old in self.configured_rooms:
            self.configured_rooms.add(new)
        if waiting := await self.outbox.waiting_for_successor(old):
            await self._carry(waiting, old=old, new=new)
        if await self.journal.room_owes(old) or await self.outbox.room_owes(old):
            return
        log.info("upgraded_room_left", room=old, successor=new)
        await self.lease.effect(self.membership.leave(old))

    async def _carry(self, waiting: list[WaitingDelivery], *, old: RoomId, new: RoomId) -> None:
        server = self.user_id.partition(":")[2]

        async def body(tx: Tx) -> None:
            epoch = self.book.epoch(new)
            if epoch is None:
                raise TransactionRefused("carry_over", "the successor was left")
            for row in waiting:
                if not row.is_answer:
                    await self.outbox.retire(tx, row.key, code="upgraded")
                    continue
                content = carried(row.content, room=old, via=server)
                moved = await self.outbox.carry(tx, row.key, old=old, new=new, epoch=epoch, content=content)
                tx.after_commit(partial(self.worker.take, moved))

        await self.lease.run("carry_over", body)
