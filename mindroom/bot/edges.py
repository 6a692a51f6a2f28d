"""The Matrix ports of one principal, opened from a login; the one place in `bot` that knows their implementations."""

from dataclasses import dataclass
from typing import Protocol

from mindroom.core.clock import Clock
from mindroom.core.ids import DeviceId, RoomId, UserId
from mindroom.core.metrics import Metrics, errcode_label
from mindroom.core.ports import AttentionPort, DeliveryGateway, HistoryPort, MembershipPort, RoomReader, SyncPort
from mindroom.matrix.accounts import AccountSession, ensure_display_name
from mindroom.matrix.attention import MatrixAttention
from mindroom.matrix.client import MatrixClient
from mindroom.matrix.gateway import MatrixGateway
from mindroom.matrix.history import MatrixHistory
from mindroom.matrix.membership import MatrixMembership
from mindroom.matrix.rooms import RoomPlan, ensure_room, find_room
from mindroom.matrix.sync import TIMELINE_LIMIT, MatrixSync


@dataclass(frozen=True, slots=True)
class Edges:
    """Everything a principal says to and hears from its homeserver."""

    sync: SyncPort
    history: HistoryPort
    membership: MembershipPort
    attention: AttentionPort
    gateway: DeliveryGateway
    reader: RoomReader
    client: MatrixClient

    async def set_display_name(self, name: str) -> None:
        """Set the account's name when it differs."""
        await ensure_display_name(self.client, name)

    async def ensure_room(self, plan: RoomPlan) -> RoomId:
        """Create or adopt a configured room."""
        return await ensure_room(self.client, plan)

    async def find_room(self, alias: str) -> RoomId | None:
        """The room behind an alias, past its upgrades, or None."""
        return await find_room(self.client, alias)

    async def close(self) -> None:
        """Close the connections."""
        await self.client.close()


class Connect(Protocol):
    """Opens clients on one homeserver."""

    def anonymous(self, user: UserId, device: DeviceId) -> MatrixClient:
        """A client without a token, for register and login."""
        ...

    def client(self, session: AccountSession) -> MatrixClient:
        """A client of a login."""
        ...

    def edges(self, session: AccountSession) -> Edges:
        """The ports of a login."""
        ...


@dataclass(frozen=True, slots=True)
class HomeserverConnect:
    """Connects to a real homeserver."""

    homeserver: str
    clock: Clock
    metrics: Metrics
    timeline_limit: int = TIMELINE_LIMIT

    def anonymous(self, user: UserId, device: DeviceId) -> MatrixClient:
        return self._client(user, device, None)

    def client(self, session: AccountSession) -> MatrixClient:
        return self._client(session.user_id, session.device_id, session.access_token)

    def edges(self, session: AccountSession) -> Edges:
        client = self.client(session)
        return Edges(
            sync=MatrixSync(client, timeline_limit=self.timeline_limit),
            history=MatrixHistory(client),
            membership=MatrixMembership(client),
            attention=MatrixAttention(client),
            gateway=MatrixGateway(client),
            reader=MatrixHistory(client),
            client=client,
        )

    def _client(self, user: UserId, device: DeviceId, token: str | None) -> MatrixClient:
        return MatrixClient(
            self.homeserver,
            user_id=user,
            device_id=device,
            access_token=token,
            clock=self.clock,
            observe=self._observe,
        )

    def _observe(self, call: str, outcome: str, seconds: float) -> None:
        if call != "sync":
            self.metrics.homeserver_seconds.labels(call).observe(seconds)
        if outcome not in ("ok", "cancelled"):
            self.metrics.homeserver_failures.labels(call, errcode_label(outcome)).inc()
