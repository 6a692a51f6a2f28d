"""Logins of hosted accounts: drawn and stored sealed before they are used, so that every call is repeatable (E12)."""

import secrets
from dataclasses import dataclass

import structlog

from mindroom.bot.edges import Connect
from mindroom.config import Account, EffectiveAgent, resolve_secret
from mindroom.core.errors import MatrixFailure, UserError
from mindroom.core.ids import DeviceId
from mindroom.db.principals import PrincipalStore, StoredPrincipal
from mindroom.matrix.accounts import AccountSession, Credentials, ensure_account, log_in, whoami
from mindroom.matrix.failures import SoftLogout

log = structlog.get_logger(__name__)


def draw_device_id() -> DeviceId:
    """A new device: a new scope of transaction ids."""
    return DeviceId(secrets.token_hex(5).upper())


@dataclass(frozen=True, slots=True)
class Sessions:
    """Registers and logs in the accounts of one process."""

    store: PrincipalStore
    connect: Connect

    async def provision(self, agent: EffectiveAgent) -> StoredPrincipal:
        """The stored identity of an agent; its password and device are committed before anything uses them."""
        account = agent.account
        password = secrets.token_urlsafe(32)
        if isinstance(account, Account) and account.password_env is not None:
            password = resolve_secret(account.password_env)
        return await self.store.ensure(agent.name, user_id=agent.user_id, device_id=draw_device_id(), password=password)

    async def open(self, agent: EffectiveAgent) -> AccountSession:
        """A usable login; the stored token when there is one. Raises UserError, MatrixFailure."""
        stored = await self.store.load(agent.name)
        if stored is None:
            stored = await self.provision(agent)
        if stored.access_token is not None:
            return AccountSession(stored.user_id, stored.device_id, stored.access_token)
        session = await self._log_in(agent, stored)
        await self.store.save_session(stored.principal, device_id=session.device_id, access_token=session.access_token)
        log.info("account_ready", principal=agent.name, user_id=session.user_id, device=session.device_id)
        return session

    async def renew(self, agent: EffectiveAgent, *, after: MatrixFailure) -> None:
        """The token is dead. After a soft logout the next login keeps the device, else it is a new one (B5, R7)."""
        stored = await self.store.load(agent.name)
        if stored is not None:
            device = stored.device_id if isinstance(after, SoftLogout) else draw_device_id()
            await self.store.forget_token(stored.principal, device_id=device)

    async def _log_in(self, agent: EffectiveAgent, stored: StoredPrincipal) -> AccountSession:
        account = agent.account
        if isinstance(account, Account) and account.token_env is not None:
            return await self._adopt_token(agent, account, resolve_secret(account.token_env))
        if stored.password is None:
            raise UserError(f"agent {agent.name} has neither a password nor a token; see matrix.accounts")
        credentials = Credentials(stored.user_id, stored.device_id, stored.password)
        client = self.connect.anonymous(stored.user_id, stored.device_id)
        try:
            if isinstance(account, Account):
                return await log_in(client, credentials)
            secret = resolve_secret(account.shared_secret_env)
            return await ensure_account(client, credentials, shared_secret=secret)
        finally:
            await client.close()

    async def _adopt_token(self, agent: EffectiveAgent, account: Account, token: str) -> AccountSession:
        client = self.connect.client(AccountSession(agent.user_id, DeviceId(account.device_id or ""), token))
        try:
            identity = await whoami(client)
        finally:
            await client.close()
        if identity.user_id != agent.user_id:
            raise UserError(f"the token of agent {agent.name} belongs to {identity.user_id}, not to {agent.user_id}")
        device = identity.device_id or DeviceId(account.device_id or "")
        if not device:
            raise UserError(f"the token of agent {agent.name} has no device: set device_id in matrix.accounts")
        return AccountSession(agent.user_id, device, token)
