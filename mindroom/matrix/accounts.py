"""Getting and checking an account: register, log in, whoami, display name.

Every call is repeatable (E12): the caller draws password and device id and commits them sealed first. Stores nothing.
"""

import hashlib
import hmac
from dataclasses import dataclass, field
from typing import Final

from mindroom.core.content import JsonObject
from mindroom.core.errors import MatrixFailure, MatrixFailureClass, RetryClass, UserError
from mindroom.core.ids import DeviceId, UserId
from mindroom.matrix.client import MatrixCall, MatrixClient
from mindroom.matrix.paths import client_path

_REGISTER_PATH: Final = "/_synapse/admin/v1/register"
_DEVICE_NAME: Final = "MindRoom"


@dataclass(frozen=True, slots=True)
class Credentials:
    """What identifies an account before it has a token; drawn by the caller, the same at every attempt."""

    user_id: UserId
    device_id: DeviceId
    password: str = field(repr=False)

    @property
    def localpart(self) -> str:
        """The name between `@` and `:`."""
        return self.user_id[1:].partition(":")[0]


@dataclass(frozen=True, slots=True)
class AccountSession:
    """A usable login."""

    user_id: UserId
    device_id: DeviceId
    access_token: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Identity:
    """Whom the homeserver takes a token for; an application service's token has no device."""

    user_id: UserId
    device_id: DeviceId | None


async def ensure_account(client: MatrixClient, credentials: Credentials, *, shared_secret: str) -> AccountSession:
    """Register, or log in where the account exists already, with the given password and device (E12).

    `client` carries no token. Raises UserError when the homeserver refuses for good, MatrixFailure otherwise.
    """
    try:
        return await _register(client, credentials, shared_secret)
    except MatrixFailure as failure:
        if failure.errcode != "M_USER_IN_USE":
            raise _refused(
                failure, f"{credentials.user_id} could not be registered: check the registration shared secret"
            ) from failure
    return await log_in(client, credentials)


async def log_in(client: MatrixClient, credentials: Credentials) -> AccountSession:
    """Log in with password and the given device id, keeping that device's transaction-id scope (B5, E12).

    Raises UserError when the homeserver refuses the password, MatrixFailure otherwise.
    """
    body = {
        "type": "m.login.password",
        "identifier": {"type": "m.id.user", "user": credentials.user_id},
        "password": credentials.password,
        "device_id": credentials.device_id,
        "initial_device_display_name": _DEVICE_NAME,
    }
    try:
        answer = await client.request(MatrixCall.LOGIN, method="POST", path=client_path("login"), body=body)
    except MatrixFailure as failure:
        raise _refused(
            failure,
            f"{credentials.user_id} exists but does not accept the stored password: "
            "remove the account, choose another name, or set its password",
        ) from failure
    return _session(answer, credentials, MatrixCall.LOGIN)


async def whoami(client: MatrixClient) -> Identity:
    """Whose token the client carries. Raises MatrixFailure; AUTH when it is no longer valid."""
    answer = await client.request(MatrixCall.WHOAMI, method="GET", path=client_path("account", "whoami"))
    device = answer.get("device_id")
    return Identity(
        UserId(_text(answer, "user_id", MatrixCall.WHOAMI)),
        DeviceId(device) if isinstance(device, str) else None,
    )


async def ensure_display_name(client: MatrixClient, display_name: str) -> None:
    """Set the account's display name, only when it differs (E12). Raises MatrixFailure."""
    path = client_path("profile", client.user_id, "displayname")
    try:
        profile = await client.request(MatrixCall.PROFILE_GET, method="GET", path=path)
    except MatrixFailure as failure:
        if failure.failure_class is not MatrixFailureClass.NOT_FOUND:
            raise
        profile = {}
    if profile.get("displayname") != display_name:
        await client.request(MatrixCall.PROFILE_SET, method="PUT", path=path, body={"displayname": display_name})


async def _register(client: MatrixClient, credentials: Credentials, shared_secret: str) -> AccountSession:
    answer = await client.request(MatrixCall.REGISTER_NONCE, method="GET", path=_REGISTER_PATH)
    nonce = _text(answer, "nonce", MatrixCall.REGISTER_NONCE)
    signed = "\0".join((nonce, credentials.localpart, credentials.password, "notadmin"))
    body = {
        "nonce": nonce,
        "username": credentials.localpart,
        "password": credentials.password,
        "admin": False,
        "mac": hmac.new(shared_secret.encode(), signed.encode(), hashlib.sha1).hexdigest(),
        "device_id": credentials.device_id,
        "initial_device_display_name": _DEVICE_NAME,
    }
    registered = await client.request(MatrixCall.REGISTER, method="POST", path=_REGISTER_PATH, body=body)
    return _session(registered, credentials, MatrixCall.REGISTER)


def _session(answer: JsonObject, credentials: Credentials, call: MatrixCall) -> AccountSession:
    session = AccountSession(
        user_id=UserId(_text(answer, "user_id", call)),
        device_id=DeviceId(_text(answer, "device_id", call)),
        access_token=_text(answer, "access_token", call),
    )
    if session.user_id != credentials.user_id:
        raise UserError(
            f"the homeserver calls the account {session.user_id}, the configuration {credentials.user_id}: "
            "correct the server name in the configuration"
        )
    return session


def _text(answer: JsonObject, key: str, call: MatrixCall) -> str:
    value = answer.get(key)
    if not isinstance(value, str) or not value:
        raise MatrixFailure(call, MatrixFailureClass.NOT_JSON, status=200)
    return value


def _refused(failure: MatrixFailure, sentence: str) -> Exception:
    if failure.retry_class is RetryClass.RETRY:
        return failure
    return UserError(f"{sentence} (HTTP {failure.status} {failure.errcode})")
