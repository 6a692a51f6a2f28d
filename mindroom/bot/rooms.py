"""RoomProvisioner: makes the configured rooms exist and tells policy which rooms they are (E12).

Runs only after the account's baseline is committed: what happens in a room we create must be heard as live (A3).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from mindroom.bot.edges import Edges
from mindroom.bot.gate import StartGate
from mindroom.config import EffectiveAgent, EffectiveRoom
from mindroom.core.backoff import Backoff
from mindroom.core.blame import blame
from mindroom.core.clock import Clock
from mindroom.core.errors import DependencyError, MatrixFailure, UserError
from mindroom.core.ids import RoomId, UserId
from mindroom.db.lease import Lease
from mindroom.matrix.rooms import RoomPlan

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class RoomProvisioner:
    """Rooms of one agent. The first agent of a room, in config order, creates it; the others are invited by it."""

    agent: EffectiveAgent
    agents: Sequence[EffectiveAgent]
    invited_users: Sequence[UserId]
    edges: Edges
    gate: StartGate
    configured_rooms: set[RoomId]
    lease: Lease
    clock: Clock

    async def run(self) -> None:
        """Once all rooms of the agent exist this returns."""
        await self.gate.opened()
        backoff = Backoff(0.2, 60.0)
        missing = list(self.agent.rooms)
        named = False
        while missing or not named:
            asked_seconds = None
            try:
                if not named:
                    await self.lease.effect(self.edges.set_display_name(self.agent.display_name))
                    named = True
                missing = [room for room in missing if not await self._provide(room)]
                if not missing:
                    continue
            except (DependencyError, UserError) as error:
                log.warning("room_not_provisioned", principal=self.agent.name, code=error.code, reason=str(error))
                asked_seconds = error.retry_after_seconds if isinstance(error, MatrixFailure) else None
            except Exception as error:  # nobody waits for this service, so nobody else would tell
                log.error("room_not_provisioned", principal=self.agent.name, error=blame(error))
            await self.clock.sleep(backoff.next_seconds(asked_seconds=asked_seconds))

    async def _provide(self, room: EffectiveRoom) -> bool:
        members = [agent for agent in self.agents if room in agent.rooms]
        if members[0] is self.agent or members[0].name == self.agent.name:
            others = tuple(agent.user_id for agent in members[1:])
            plan = RoomPlan(room.alias, room.display_name, owners=others, invites=(*others, *self.invited_users))
            found: RoomId | None = await self.lease.effect(self.edges.ensure_room(plan))
        else:
            found = await self.lease.effect(self.edges.find_room(room.alias))
        if found is None:
            return False
        self.configured_rooms.add(found)
        log.info("room_ready", principal=self.agent.name, alias=room.alias)
        return True
