"""Hosted identities and their credentials, sealed at rest (I3, E12)."""

from dataclasses import dataclass

from mindroom.core.errors import CorruptState, UserError
from mindroom.core.ids import DeviceId, PrincipalId, PrincipalName, UserId
from mindroom.db.engine import Database
from mindroom.db.sealing import Sealer
from mindroom.db.sql import load

SQL = load("mindroom.db", "principals.sql")
_PASSWORD, _TOKEN = "principals.password", "principals.access_token"


@dataclass(frozen=True, slots=True)
class StoredPrincipal:
    """An identity as it is stored, opened."""

    principal: PrincipalId
    name: PrincipalName
    user_id: UserId
    device_id: DeviceId
    password: str | None
    access_token: str | None

    def __repr__(self) -> str:
        return f"StoredPrincipal({self.name}, {self.user_id}, {self.device_id})"


@dataclass(frozen=True, slots=True)
class PrincipalStore:
    """Rows of principals; the only place that seals and opens their credentials."""

    database: Database
    sealer: Sealer

    async def ensure(
        self, name: PrincipalName, *, user_id: UserId, device_id: DeviceId, password: str
    ) -> StoredPrincipal:
        """The row of `name`, made with these credentials when there is none; they are committed before any use (E12).

        Raises UserError when the name belongs to another Matrix account.
        """

        async def once() -> None:
            async with self.database.transaction("provision_account") as tx:
                sealed = self.sealer.seal(password, purpose=_PASSWORD)
                await tx.execute(SQL["ensure"], name, user_id, device_id, sealed)

        await self.database.rerun("provision_account", once)
        stored = await self.load(name)
        if stored is None:
            raise CorruptState(f"principal {name} has no row")
        if stored.user_id != user_id:
            raise UserError(
                f"agent {name} is the account {stored.user_id} in the database but {user_id} in the configuration; "
                "rename the agent, or restore the account it had"
            )
        return stored

    async def load(self, name: PrincipalName) -> StoredPrincipal | None:
        """The stored identity, or None."""
        row = await self.database.fetchrow(SQL["load"], name)
        if row is None:
            return None
        return StoredPrincipal(
            PrincipalId(row["principal"]),
            PrincipalName(row["name"]),
            UserId(row["user_id"]),
            DeviceId(row["device_id"] or ""),
            self._open(row["password_sealed"], _PASSWORD),
            self._open(row["access_token_sealed"], _TOKEN),
        )

    async def save_session(self, principal: PrincipalId, *, device_id: DeviceId, access_token: str) -> None:
        """Keep the token of a login, sealed."""
        sealed = self.sealer.seal(access_token, purpose=_TOKEN)
        async with self.database.transaction("provision_account") as tx:
            await tx.execute(SQL["save_session"], principal, device_id, sealed)

    async def forget_token(self, principal: PrincipalId, *, device_id: DeviceId) -> None:
        """Forget a dead session; the next login uses this device."""
        async with self.database.transaction("provision_account") as tx:
            await tx.execute(SQL["forget_token"], principal, device_id)

    async def note_health(self, name: PrincipalName, *, reason: str | None) -> None:
        """Why the principal is not served, for operators; a code or a sentence of ours, never a text of others."""
        async with self.database.transaction("note_health") as tx:
            await tx.execute(SQL["unhealthy"], name, reason)

    def _open(self, sealed: bytes | None, purpose: str) -> str | None:
        return None if sealed is None else self.sealer.open(sealed, purpose=purpose).decode()
