"""JoinWorker: decides invitations. One function says what may be joined, on every path (A9)."""

import asyncio
import random
from dataclasses import dataclass
from enum import StrEnum

import structlog

from mindroom.bot.gate import StartGate
from mindroom.core.backoff import Backoff, backoff_seconds
from mindroom.core.clock import Clock
from mindroom.core.errors import DependencyError, MatrixFailure, MatrixFailureClass
from mindroom.core.ids import UserId
from mindroom.core.ports import MembershipPort
from mindroom.db.engine import Tx
from mindroom.db.lease import Lease
from mindroom.journal.records import Hearer, Invite
from mindroom.journal.recovery import Recovery

log = structlog.get_logger(__name__)

FINAL_REFUSALS = frozenset({MatrixFailureClass.FORBIDDEN, MatrixFailureClass.NOT_FOUND})


class InviteDecision(StrEnum):
    """What is done with an invitation."""

    JOIN = "join"
    REJECT = "reject"


def decide_invite(inviter: UserId, *, hearer: Hearer) -> InviteDecision:
    """Authorized people and hosted principals may invite; nobody else (R12)."""
    allowed = inviter in hearer.authorized or inviter in hearer.hosted
    return InviteDecision.JOIN if allowed else InviteDecision.REJECT


@dataclass(eq=False)
class JoinWorker:
    """Joins or rejects, with back-off on the row."""

    lease: Lease
    recovery: Recovery
    hearer: Hearer
    membership: MembershipPort
    gate: StartGate
    clock: Clock

    def __post_init__(self) -> None:
        self._wake = asyncio.Event()
        self._rng = random.Random()

    def wake(self) -> None:
        """Membership changed; an invite may be among it."""
        self._wake.set()

    async def run(self) -> None:
        """Decide until cancelled; nothing while the lease is in doubt (H2). Raises FenceLost."""
        await self.gate.opened()
        backoff = Backoff(0.5, 20.0)
        while True:
            self._wake.clear()
            try:
                waits = [await self._decide(invite) for invite in await self.recovery.invites()]
                backoff.reset()
            except DependencyError:
                await self.clock.sleep(backoff.next_seconds())
                continue
            await self._rest(min((seconds for seconds in waits if seconds is not None), default=None))

    async def _rest(self, seconds: float | None) -> None:
        """Until membership changes, or until the next invitation is due, whoever put it off."""
        sleeper = None if seconds is None else asyncio.ensure_future(self.clock.sleep(seconds))
        waker = asyncio.ensure_future(self._wake.wait())
        try:
            await asyncio.wait({waker, *filter(None, [sleeper])}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waker.cancel()
            if sleeper is not None:
                sleeper.cancel()

    async def _decide(self, invite: Invite) -> float | None:
        """Act on one invitation that is due; returns when to try again, None when it is over."""
        if invite.due_in_seconds > 0:
            return invite.due_in_seconds
        decision = decide_invite(invite.inviter, hearer=self.hearer)
        log.info("invite_decided", room=invite.room, decision=decision.value)
        try:
            self.lease.effect_seconds()  # in doubt nobody joins or leaves: another process may decide otherwise (H2)
            if decision is InviteDecision.JOIN:
                await self.membership.join(invite.room)
                return None
            await self.membership.leave(invite.room)
        except MatrixFailure as failure:
            return await self._failed(invite, failure)
        await self._over(invite, code="rejected")
        return None

    async def _failed(self, invite: Invite, failure: MatrixFailure) -> float | None:
        code = failure.errcode or failure.failure_class.value
        if failure.failure_class in FINAL_REFUSALS:
            await self._over(invite, code=code)
            return None
        delay = backoff_seconds(invite.attempts + 1, first=1.0, cap=300.0, rng=self._rng)
        delay = max(delay, failure.retry_after_seconds or 0.0)

        async def body(tx: Tx) -> None:
            await self.recovery.invite_failed(tx, invite.room, code=code, delay_seconds=delay)

        await self.lease.run("invite_result", body)
        return delay

    async def _over(self, invite: Invite, *, code: str) -> None:
        async def body(tx: Tx) -> None:
            await self.recovery.invite_over(tx, invite.room, code=code)

        await self.lease.run("invite_result", body)
