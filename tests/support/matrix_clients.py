"""Making MatrixClients for tests."""

from dataclasses import dataclass, field

from mindroom.core.clock import SystemClock
from mindroom.core.ids import DeviceId, UserId
from mindroom.matrix.accounts import AccountSession, Credentials, ensure_account
from mindroom.matrix.client import MatrixClient


@dataclass
class Observed:
    """Every call a client told its observer."""

    calls: list[tuple[str, str]] = field(default_factory=list)

    def __call__(self, call: str, outcome: str, seconds: float) -> None:
        assert seconds >= 0
        self.calls.append((call, outcome))


def open_client(url: str, *, session: AccountSession | None = None, observe: Observed | None = None) -> MatrixClient:
    """A client of `session`, or one without a token."""
    return MatrixClient(
        url,
        user_id=session.user_id if session else UserId(""),
        device_id=session.device_id if session else DeviceId(""),
        access_token=session.access_token if session else None,
        clock=SystemClock(),
        observe=observe or Observed(),
    )


async def register(url: str, *, server_name: str, secret: str, name: str) -> AccountSession:
    """A new account."""
    client = open_client(url)
    try:
        credentials = Credentials(UserId(f"@{name}:{server_name}"), DeviceId(f"DEV{name}"), f"password of {name}")
        return await ensure_account(client, credentials, shared_secret=secret)
    finally:
        await client.close()
