"""JoinWorker: decides invitations. One function says what may be joined, on every path (A9)."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import structlog

from mindroom.bot.gate import StartGate
from mindroom.core.backoff import Backoff, backoff_seconds
from mindroom.core.clock import Clock, within
from mindroom.core.errors import DependencyError, MatrixFailure, MatrixFailureClass
from mindroom.core.ids import RoomId, UserId
from mindroom.core.ports import MembershipPort
from mindroom.db.engine import Tx
from mindroom.db.lease import Lease
from mindroom.journal.records import Hearer, Invite
from mindroom.journal.recovery import Recovery
from mindroom.journal.rooms import RoomBook

log = structlog.get_logger(__name__)

FINAL_REFUSALS = frozenset({MatrixFailureClass.FORBIDDEN, MatrixFailureClass.NOT_FOUND})
AT_ONCE = 4
"""Joins over federation take minutes; so many go on side by side."""
RETRY_CAP_SECONDS = 300.0
SUCCESSOR_CAP_SECONDS = 3600.0
"""A successor that lets nobody in uninvited is asked this rarely; an invitation to it is taken at once (F4)."""


class InviteDecision(StrEnum):
    """What is done with an invitation."""

    JOIN = "join"
    REJECT = "reject"
    WAIT = "wait"
    """Who invites is not known: neither accepted nor declined (F3)."""


def decide_join(inviter: UserId, *, hearer: Hearer, is_successor: bool) -> InviteDecision:
    """Whether a room is joined: authorized people and hosted principals may ask us in, nobody else (R12).

    The successor of a room we are in is joined whoever asks: who may upgrade a room has moved us (F4).
    """
    if is_successor or inviter in hearer.authorized or inviter in hearer.hosted:
        return InviteDecision.JOIN
    return InviteDecision.REJECT if inviter else InviteDecision.WAIT


@dataclass(eq=False)
class JoinWorker:
    """Joins or rejects, with back-off on the row; a slow join delays no other."""

    lease: Lease
    recovery: Recovery
    hearer: Hearer
    book: RoomBook
    membership: MembershipPort
    gate: StartGate
    clock: Clock

    def __post_init__(self) -> None:
        self._wake = asyncio.Event()
        self._rng = random.Random()
        self._tasks: dict[RoomId, asyncio.Task[None]] = {}
        self._joined: set[RoomId] = set()
        self._paused_until = 0.0

    def wake(self) -> None:
        """Membership changed; an invite may be among it."""
        self._joined.clear()
        self._wake.set()

    async def run(self) -> None:
        """Decide until cancelled; nothing while the lease is in doubt (H2). Raises FenceLost."""
        await self.gate.opened()
        backoff = Backoff(0.5, 20.0)
        try:
            while True:
                self._wake.clear()
                try:
                    self._collect()
                    rest_seconds = self._begin(await self.recovery.invites())
                    backoff.reset()
                except DependencyError:
                    rest_seconds = backoff.next_seconds()
                await self._rest(rest_seconds)
        finally:
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def _collect(self) -> None:
        for room in [room for room, task in self._tasks.items() if task.done()]:
            self._tasks.pop(room).result()

    def _begin(self, invites: Sequence[Invite]) -> float | None:
        """Start what is due; returns when the next one is, None when only a change can bring one."""
        pause = max(0.0, self._paused_until - self.clock.boottime())
        waits = []
        for invite in invites:
            decision = self._decision(invite)
            if decision is InviteDecision.WAIT or invite.room in self._tasks or invite.room in self._joined:
                continue
            if (wait := max(invite.due_in_seconds, pause)) > 0:
                waits.append(wait)
            elif len(self._tasks) < AT_ONCE:
                task = asyncio.ensure_future(self._act(invite, decision))
                task.add_done_callback(lambda _: self._wake.set())
                self._tasks[invite.room] = task
        return min(waits, default=None)

    def _decision(self, invite: Invite) -> InviteDecision:
        is_successor = self.book.is_successor(invite.room)
        return decide_join(invite.inviter, hearer=self.hearer, is_successor=is_successor)

    async def _rest(self, seconds: float | None) -> None:
        """Until membership changes or an attempt ends, or until the next invitation is due, whoever put it off."""
        waker = asyncio.ensure_future(self._wake.wait())
        try:
            if seconds is None:
                await waker
            else:
                await within(self.clock, seconds, waker)
        finally:
            waker.cancel()

    async def _act(self, invite: Invite, decision: InviteDecision) -> None:
        log.info("invite_decided", room=invite.room, decision=decision.value)
        try:
            # In doubt nobody joins or leaves: another process may decide otherwise (H2).
            if decision is InviteDecision.JOIN:
                via = [server for _, _, server in [invite.inviter.partition(":")] if server]
                await self.lease.effect(self.membership.join(invite.room, via=via))
                self._joined.add(invite.room)
            else:
                await self.lease.effect(self.membership.leave(invite.room))
                await self._over(invite, code="rejected")
        except MatrixFailure as failure:
            await self._failed(invite, failure)

    async def _failed(self, invite: Invite, failure: MatrixFailure) -> None:
        code = failure.errcode or failure.failure_class.value
        is_refusal = failure.failure_class in FINAL_REFUSALS
        if is_refusal and not self.book.is_successor(invite.room):
            await self._over(invite, code=code)
            return
        cap = SUCCESSOR_CAP_SECONDS if is_refusal else RETRY_CAP_SECONDS
        delay = backoff_seconds(invite.attempts + 1, first=1.0, cap=cap, rng=self._rng)
        if failure.failure_class is MatrixFailureClass.RATE_LIMITED:
            delay = max(delay, failure.retry_after_seconds or 0.0)
            self._paused_until = self.clock.boottime() + delay

        async def body(tx: Tx) -> None:
            await self.recovery.invite_failed(tx, invite.room, code=code, delay_seconds=delay)

        await self.lease.run("invite_result", body)

    async def _over(self, invite: Invite, *, code: str) -> None:
        async def body(tx: Tx) -> None:
            await self.recovery.invite_over(tx, invite.room, code=code)

        await self.lease.run("invite_result", body)
