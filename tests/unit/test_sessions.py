"""Which device the next login uses after the homeserver refused a token (B5)."""

from typing import cast

import pytest

from mindroom.bot.edges import Connect
from mindroom.bot.sessions import Sessions
from mindroom.core.errors import MatrixFailure
from mindroom.core.ids import DeviceId, PrincipalId, PrincipalName, UserId
from mindroom.db.principals import PrincipalStore, StoredPrincipal
from mindroom.matrix.failures import read_failure
from tests.support.spine import spine_config


class Store:
    """Remembers which device the next login will use."""

    next_device: DeviceId | None = None

    async def load(self, name: PrincipalName) -> StoredPrincipal:
        return StoredPrincipal(PrincipalId(1), name, UserId("@agent:x"), DeviceId("OLD"), "secret", "token")

    async def forget_token(self, principal: PrincipalId, *, device_id: DeviceId) -> None:
        self.next_device = device_id


def refusal(*, soft_logout: bool) -> MatrixFailure:
    answer = {"errcode": "M_UNKNOWN_TOKEN", "soft_logout": soft_logout}
    return read_failure("sync", status=401, document=answer, retry_after_header=None)


@pytest.mark.parametrize("soft_logout", [True, False])
async def test_b5_only_a_soft_logout_keeps_the_device(soft_logout: bool) -> None:
    """B5: the device is the scope of transaction ids, so it is given up only when the homeserver has."""
    store = Store()
    sessions = Sessions(cast("PrincipalStore", store), cast("Connect", None))
    await sessions.renew(spine_config().agents[0], after=refusal(soft_logout=soft_logout))
    assert store.next_device is not None
    assert (store.next_device == "OLD") is soft_logout
