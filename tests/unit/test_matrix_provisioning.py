"""matrix.accounts and matrix.rooms: every step may lose its reply and be asked again (E12)."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from mindroom.core.errors import MatrixFailure, UserError
from mindroom.core.errors import MatrixFailureClass as C
from mindroom.core.ids import DeviceId, UserId
from mindroom.matrix.accounts import AccountSession, Credentials, ensure_account, ensure_display_name, whoami
from mindroom.matrix.client import MatrixClient
from mindroom.matrix.rooms import RoomPlan, ensure_room, find_room, invite_once
from tests.support.matrix_clients import open_client, register
from tests.support.scripted_homeserver import (
    Misbehaviour,
    ScriptedHomeserver,
    answer,
    error,
    html,
    lost_reply,
    reset,
    truncated,
)

ADA = Credentials(UserId("@ada:scripted.test"), DeviceId("DEVADA"), "the-password")
BOB = UserId("@bob:scripted.test")
EVE = UserId("@eve:scripted.test")
PLAN = RoomPlan(alias="#lobby:scripted.test", name="Lobby", owners=(ADA.user_id, BOB), invites=(BOB, EVE))


@pytest.fixture
async def server() -> AsyncIterator[ScriptedHomeserver]:
    async with ScriptedHomeserver() as server:
        yield server


@pytest.fixture
async def anonymous(server: ScriptedHomeserver) -> AsyncIterator[MatrixClient]:
    client = open_client(server.url)
    yield client
    await client.close()


@pytest.fixture
async def client(server: ScriptedHomeserver) -> AsyncIterator[MatrixClient]:
    session = await register(
        server.url, server_name=server.server_name, secret=server.registration_shared_secret, name="ada"
    )
    client = open_client(server.url, session=session)
    yield client
    await client.close()


# ---- accounts --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("call", ["register_nonce", "register"])
@pytest.mark.parametrize("shape", [reset(), lost_reply(), truncated(), html(502), error(429, "M_LIMIT_EXCEEDED")])
async def test_e12_a_registration_that_was_cut_ends_in_the_same_account_and_device(
    server: ScriptedHomeserver, anonymous: MatrixClient, call: str, shape: Misbehaviour
) -> None:
    server.script(call, shape)
    with pytest.raises(MatrixFailure):
        await ensure_account(anonymous, ADA, shared_secret=server.registration_shared_secret)
    session = await ensure_account(anonymous, ADA, shared_secret=server.registration_shared_secret)
    assert (session.user_id, session.device_id) == (ADA.user_id, ADA.device_id)
    assert set(server.world.passwords) == {ADA.user_id}
    assert {login.device for login in server.world.tokens.values()} == {ADA.device_id}


@pytest.mark.parametrize("shape", [error(404, "M_UNRECOGNIZED"), error(400, "M_UNKNOWN"), error(403, "M_FORBIDDEN")])
async def test_a_homeserver_that_does_not_let_us_register_says_so_to_the_operator(
    server: ScriptedHomeserver, anonymous: MatrixClient, shape: Misbehaviour
) -> None:
    server.script("register", shape)
    with pytest.raises(UserError, match=r"@ada:scripted\.test could not be registered.*HTTP 4"):
        await ensure_account(anonymous, ADA, shared_secret=server.registration_shared_secret)


@pytest.mark.parametrize(
    "document", [{}, {"user_id": ADA.user_id}, {"user_id": 1, "device_id": "D", "access_token": "t"}]
)
async def test_a_login_without_a_token_in_it_is_no_answer(
    server: ScriptedHomeserver, anonymous: MatrixClient, document: Any
) -> None:
    server.script("register", answer(200, document))
    with pytest.raises(MatrixFailure) as caught:
        await ensure_account(anonymous, ADA, shared_secret=server.registration_shared_secret)
    assert caught.value.failure_class is C.NOT_JSON


async def test_i3_neither_password_nor_token_is_shown_by_repr() -> None:
    session = AccountSession(ADA.user_id, ADA.device_id, "the-token")
    assert "the-" not in repr(ADA) + repr(session)


async def test_an_application_services_token_has_no_device(server: ScriptedHomeserver, client: MatrixClient) -> None:
    server.script("whoami", answer(200, {"user_id": client.user_id}))
    assert (await whoami(client)).device_id is None


async def test_e12_an_account_without_a_profile_gets_its_display_name(
    server: ScriptedHomeserver, client: MatrixClient
) -> None:
    server.script("profile_get", error(404, "M_NOT_FOUND"), html(500))
    await ensure_display_name(client, "Ada")
    assert server.world.display_names[client.user_id] == "Ada"
    with pytest.raises(MatrixFailure):
        await ensure_display_name(client, "Ada")


# ---- rooms -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("shape", [reset(), lost_reply(), truncated(), html(502)])
async def test_e12_a_room_whose_creation_was_cut_is_created_once_and_everybody_is_asked_once(
    server: ScriptedHomeserver, client: MatrixClient, shape: Misbehaviour
) -> None:
    server.script("create_room", shape)
    with pytest.raises(MatrixFailure):
        await ensure_room(client, PLAN)
    room = await ensure_room(client, PLAN)
    assert list(server.world.rooms) == [room]
    invites = [
        event["state_key"]
        for _, event in server.world.rooms[room].timeline
        if event["content"].get("membership") == "invite"
    ]
    assert invites == [BOB, EVE]


async def test_e12_before_room_version_12_the_other_owners_get_the_creators_level(
    server: ScriptedHomeserver, client: MatrixClient
) -> None:
    server.world.default_room_version = "11"
    room = server.world.rooms[await ensure_room(client, PLAN)]
    assert room.state["m.room.power_levels", ""][1]["content"] == {"users": {client.user_id: 100, BOB: 100}}
    assert "additional_creators" not in room.state["m.room.create", ""][1]["content"]


async def test_e12_from_room_version_12_the_other_owners_are_creators(
    server: ScriptedHomeserver, client: MatrixClient
) -> None:
    room = server.world.rooms[await ensure_room(client, PLAN)]
    assert room.state["m.room.power_levels", ""][1]["content"] == {"users": {}}
    assert room.state["m.room.create", ""][1]["content"]["additional_creators"] == [BOB]
    assert server.calls("create_room")[0].body["preset"] == "private_chat"


async def test_a_plan_with_one_owner_needs_no_capabilities(server: ScriptedHomeserver, client: MatrixClient) -> None:
    await ensure_room(client, replace(PLAN, owners=(client.user_id,)))
    assert server.calls("capabilities") == []


@pytest.mark.parametrize(
    "capabilities", [{}, {"capabilities": []}, {"capabilities": {"m.room_versions": {"default": 12}}}]
)
async def test_capabilities_that_say_nothing_mean_an_old_room_version(
    server: ScriptedHomeserver, client: MatrixClient, capabilities: Any
) -> None:
    server.world.default_room_version = "11"
    server.script("capabilities", answer(200, capabilities))
    await ensure_room(client, PLAN)
    assert "power_level_content_override" in server.calls("create_room")[0].body


async def test_e12_of_two_creators_at_once_the_later_adopts_the_room_of_the_first(
    server: ScriptedHomeserver, client: MatrixClient
) -> None:
    first = server.world.create_room(
        BOB, {"room_alias_name": "lobby", "creation_content": {"additional_creators": [client.user_id]}}
    )
    room = server.world.rooms[first]
    server.world.invite(room, BOB, client.user_id)
    server.world.join(room, client.user_id)
    server.script("resolve_alias", error(404, "M_NOT_FOUND"))
    assert await ensure_room(client, PLAN) == first
    assert room.membership(EVE)[1] == "invite"


@pytest.mark.parametrize(
    ("levels", "adopted"),
    [
        ({"users": {ADA.user_id: 50}}, True),
        ({"users": {ADA.user_id: 49}}, False),
        ({"users": {ADA.user_id: 49}, "redact": 40}, True),
        ({"users_default": 50}, True),
        ({"users": {ADA.user_id: "100"}}, False),
        ({"users": [], "redact": "all"}, False),
        ({}, False),
    ],
)
async def test_e12_a_foreign_room_is_adopted_only_by_a_moderator(
    server: ScriptedHomeserver, client: MatrixClient, levels: Any, adopted: bool
) -> None:
    room_id = server.world.create_room(BOB, {"room_alias_name": "lobby", "invite": [client.user_id]})
    room = server.world.rooms[room_id]
    server.world.join(room, client.user_id)
    server.world.append(room, BOB, "m.room.power_levels", levels, state_key="")
    if adopted:
        assert await ensure_room(client, PLAN) == room_id
    else:
        with pytest.raises(UserError, match="neither created nor moderates"):
            await ensure_room(client, PLAN)
        assert room.membership(EVE)[1] == ""


async def test_a_room_that_cannot_be_created_is_a_sentence_for_the_operator(
    server: ScriptedHomeserver, client: MatrixClient
) -> None:
    server.script("create_room", error(400, "M_INVALID_ROOM_STATE"))
    with pytest.raises(
        UserError, match=r"#lobby:scripted\.test could not be created \(HTTP 400 M_INVALID_ROOM_STATE\)"
    ):
        await ensure_room(client, PLAN)


@pytest.mark.parametrize(
    ("before", "asked"),
    [("", True), ("knock", True), ("invite", False), ("join", False), ("leave", False), ("ban", False)],
)
async def test_e12_only_who_never_answered_is_invited(
    server: ScriptedHomeserver, client: MatrixClient, before: str, asked: bool
) -> None:
    room_id = await ensure_room(client, RoomPlan(alias=PLAN.alias, name="Lobby"))
    room = server.world.rooms[room_id]
    if before:
        server.world.append(room, EVE, "m.room.member", {"membership": before}, state_key=EVE)
    assert await invite_once(client, room_id, EVE) is asked
    assert room.membership(EVE)[1] == ("invite" if asked else before)


async def test_a_refused_invite_is_no_error_and_an_unanswered_one_is(
    server: ScriptedHomeserver, client: MatrixClient
) -> None:
    room = await ensure_room(client, RoomPlan(alias=PLAN.alias, name="Lobby"))
    server.script("invite", error(403, "M_FORBIDDEN"), html(500))
    assert await invite_once(client, room, EVE) is False
    with pytest.raises(MatrixFailure):
        await invite_once(client, room, EVE)


# ---- upgraded rooms --------------------------------------------------------------------------------------------------
def upgraded(
    server: ScriptedHomeserver, user: str, *, predecessor: str | None = None, invited: bool = True
) -> list[str]:
    """The lobby and its successor; the alias stays behind."""
    world = server.world
    old = world.create_room(user, {"room_alias_name": "lobby"})
    named = {"predecessor": {"room_id": predecessor or old}}
    new = world.create_room(BOB, {"creation_content": named, "invite": [user], "power_level_content_override": {}})
    if invited:
        world.join(world.rooms[new], user)
    world.append(world.rooms[new], BOB, "m.room.power_levels", {"users": {user: 50}}, state_key="")
    world.append(world.rooms[old], BOB, "m.room.tombstone", {"replacement_room": new}, state_key="")
    return [old, new]


async def test_f4_r13_an_alias_that_stayed_behind_leads_to_the_successor(
    server: ScriptedHomeserver, client: MatrixClient
) -> None:
    """F4, R13: a configured room moves with its upgrade, for who provides it and for who only looks it up."""
    _, new = upgraded(server, client.user_id)
    assert await find_room(client, PLAN.alias) == new
    assert await ensure_room(client, PLAN) == new
    assert server.world.rooms[new].membership(EVE)[1] == "invite"


@pytest.mark.parametrize(("predecessor", "invited"), [("!another:scripted.test", True), (None, False)])
async def test_f4_a_room_that_is_no_successor_of_ours_is_not_taken_for_one(
    server: ScriptedHomeserver, client: MatrixClient, predecessor: str | None, invited: bool
) -> None:
    """F4: it names another room, or we are not in it."""
    old, _ = upgraded(server, client.user_id, predecessor=predecessor, invited=invited)
    assert await find_room(client, PLAN.alias) == old


async def test_f4_a_ring_of_upgrades_comes_to_an_end(server: ScriptedHomeserver, client: MatrixClient) -> None:
    """F4: whoever may upgrade rooms may also write nonsense into them."""
    old, new = upgraded(server, client.user_id)
    world = server.world
    world.append(world.rooms[new], BOB, "m.room.tombstone", {"replacement_room": old}, state_key="")
    create = {"predecessor": {"room_id": new}}
    world.append(world.rooms[old], BOB, "m.room.create", create, state_key="")
    assert await find_room(client, PLAN.alias) in (old, new)
