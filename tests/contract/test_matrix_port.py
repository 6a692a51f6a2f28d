"""The homeserver ports keep their promises on the scripted homeserver and on a real Synapse alike."""

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from uuid import uuid4

import pytest

from mindroom.core.content import JsonObject
from mindroom.core.errors import MatrixDeliveryFailure, MatrixFailure, UserError
from mindroom.core.errors import MatrixFailureClass as C
from mindroom.core.ids import DeviceId, EventId, RoomId, SyncToken, TxnId, UserId
from mindroom.core.ports import (
    AttentionPort,
    DeliveryGateway,
    HistoryPort,
    MembershipPort,
    OutgoingEvent,
    RoomReader,
    SyncBatch,
    SyncPort,
)
from mindroom.matrix.accounts import (
    AccountSession,
    Credentials,
    Identity,
    ensure_account,
    ensure_display_name,
    whoami,
)
from mindroom.matrix.attention import MatrixAttention
from mindroom.matrix.client import MatrixCall, MatrixClient
from mindroom.matrix.gateway import MatrixGateway
from mindroom.matrix.history import MatrixHistory
from mindroom.matrix.membership import MatrixMembership
from mindroom.matrix.paths import client_path
from mindroom.matrix.rooms import RoomPlan, ensure_room, invite_once, resolve_alias
from mindroom.matrix.sync import MatrixSync
from tests.support.matrix_clients import Observed, open_client
from tests.support.scripted_homeserver import ScriptedHomeserver


@dataclass
class Account:
    """One account with its ports."""

    client: MatrixClient
    credentials: Credentials
    observed: Observed
    sync: SyncPort
    history: MatrixHistory
    membership: MatrixMembership
    attention: AttentionPort
    gateway: DeliveryGateway

    @property
    def user(self) -> UserId:
        return self.client.user_id

    async def say(
        self, room: RoomId, body: str, *, txn: str | None = None, content: JsonObject | None = None
    ) -> EventId:
        event = OutgoingEvent(
            room=room,
            event_type="m.room.message",
            content=content or {"msgtype": "m.text", "body": body},
            txn_id=TxnId(txn or f"final.{uuid4()}"),
        )
        return await self.gateway.send(await self.gateway.freeze(event))

    async def news(self, since: SyncToken | None, *, full_state: bool = False) -> SyncBatch:
        return await self.sync.sync(since, timeout_seconds=0, full_state=full_state)


@dataclass
class Homeserver:
    """What both servers offer."""

    url: str
    server_name: str
    registration_shared_secret: str

    def credentials(self, name: str) -> Credentials:
        localpart = f"{name}-{uuid4().hex[:12]}"
        return Credentials(UserId(f"@{localpart}:{self.server_name}"), DeviceId(f"DEV{uuid4().hex[:8]}"), "pass word é")

    def alias(self) -> str:
        return f"#room-{uuid4().hex[:12]}:{self.server_name}"


@pytest.fixture
async def scripted() -> AsyncIterator[ScriptedHomeserver]:
    async with ScriptedHomeserver() as server:
        yield server


@pytest.fixture(params=["scripted", "synapse"])
def homeserver(request: pytest.FixtureRequest) -> Homeserver:
    server = request.getfixturevalue(request.param)
    return Homeserver(server.url, server.server_name, server.registration_shared_secret)


MakeAccount = Callable[[str], Awaitable[Account]]


@pytest.fixture
async def account(homeserver: Homeserver) -> AsyncIterator[MakeAccount]:
    opened: list[MatrixClient] = []

    async def make(name: str) -> Account:
        credentials = homeserver.credentials(name)
        anonymous = open_client(homeserver.url)
        opened.append(anonymous)
        session = await ensure_account(anonymous, credentials, shared_secret=homeserver.registration_shared_secret)
        observed = Observed()
        client = open_client(homeserver.url, session=session, observe=observed)
        opened.append(client)
        return Account(
            client=client,
            credentials=credentials,
            observed=observed,
            sync=MatrixSync(client),
            history=MatrixHistory(client),
            membership=MatrixMembership(client),
            attention=MatrixAttention(client),
            gateway=MatrixGateway(client),
        )

    yield make
    for client in opened:
        await client.close()


@pytest.fixture
async def ada(account: MakeAccount) -> Account:
    return await account("ada")


@pytest.fixture
async def bob(account: MakeAccount) -> Account:
    return await account("bob")


@pytest.fixture
def ada_plan(homeserver: Homeserver) -> RoomPlan:
    return RoomPlan(alias=homeserver.alias(), name="A room")


async def member(account: Account, room: RoomId, user: UserId) -> str:
    path = client_path("rooms", room, "state", "m.room.member", user)
    answer = await account.client.request(MatrixCall.GET_STATE, method="GET", path=path)
    return str(answer["membership"])


async def state(account: Account, room: RoomId, event_type: str) -> JsonObject:
    path = client_path("rooms", room, "state", event_type, "")
    return await account.client.request(MatrixCall.GET_STATE, method="GET", path=path)


async def shared_room(ada: Account, bob: Account, plan: RoomPlan) -> RoomId:
    room = await ensure_room(ada.client, replace(plan, invites=(bob.user,)))
    await bob.membership.join(room)
    return room


def ports(account: Account) -> tuple[SyncPort, HistoryPort, RoomReader, MembershipPort, AttentionPort, DeliveryGateway]:
    """mypy proves here that the adapters are the ports."""
    return account.sync, account.history, account.history, account.membership, account.attention, account.gateway


# ---- accounts --------------------------------------------------------------------------------------------------------
async def test_e12_an_account_that_exists_is_logged_into_with_the_same_password_and_device(
    homeserver: Homeserver, ada: Account
) -> None:
    anonymous = open_client(homeserver.url)
    again = await ensure_account(anonymous, ada.credentials, shared_secret=homeserver.registration_shared_secret)
    assert (again.user_id, again.device_id) == (ada.user, ada.credentials.device_id)
    client = open_client(homeserver.url, session=again)
    assert await whoami(client) == Identity(ada.user, ada.credentials.device_id)
    await client.close()
    await anonymous.close()


async def test_e12_a_wrong_password_and_a_wrong_secret_are_sentences_for_the_operator(
    homeserver: Homeserver, ada: Account
) -> None:
    anonymous = open_client(homeserver.url)
    wrong = replace(ada.credentials, password="another")
    with pytest.raises(UserError, match="does not accept the stored password"):
        await ensure_account(anonymous, wrong, shared_secret=homeserver.registration_shared_secret)
    with pytest.raises(UserError, match="shared secret"):
        await ensure_account(anonymous, homeserver.credentials("eve"), shared_secret="no secret")
    foreign = replace(homeserver.credentials("eve"), user_id=UserId(f"@eve-{uuid4().hex}:elsewhere.test"))
    with pytest.raises(UserError, match="correct the server name"):
        await ensure_account(anonymous, foreign, shared_secret=homeserver.registration_shared_secret)
    await anonymous.close()


async def test_a_token_that_does_not_exist_is_an_auth_failure(homeserver: Homeserver, ada: Account) -> None:
    client = open_client(homeserver.url, session=AccountSession(ada.user, ada.client.device_id, "no-such-token"))
    with pytest.raises(MatrixFailure) as caught:
        await whoami(client)
    assert (caught.value.failure_class, caught.value.errcode) == (C.AUTH, "M_UNKNOWN_TOKEN")
    await client.close()


async def test_e12_the_display_name_is_written_only_when_it_differs(ada: Account) -> None:
    for _ in range(2):
        await ensure_display_name(ada.client, "Ada Löv")
    assert ada.observed.calls == [("profile_get", "ok"), ("profile_set", "ok"), ("profile_get", "ok")]


# ---- rooms -----------------------------------------------------------------------------------------------------------
async def test_e12_a_room_is_created_once_and_found_by_its_alias_afterwards(
    ada: Account, bob: Account, ada_plan: RoomPlan
) -> None:
    plan = replace(ada_plan, owners=(ada.user, bob.user), invites=(bob.user,))
    assert await resolve_alias(ada.client, plan.alias) is None
    room = await ensure_room(ada.client, plan)
    assert await ensure_room(ada.client, plan) == room == await resolve_alias(bob.client, plan.alias)
    assert await state(ada, room, "m.room.name") == {"name": "A room"}
    assert [call for call, _ in ada.observed.calls].count("create_room") == 1
    assert await member(ada, room, bob.user) == "invite"
    create = await state(ada, room, "m.room.create")
    assert create["room_version"] == "12"
    assert create["additional_creators"] == [bob.user]


async def test_e12_another_owner_adopts_the_room_and_a_stranger_is_refused(
    ada: Account, bob: Account, account: MakeAccount, ada_plan: RoomPlan
) -> None:
    eve = await account("eve")
    plan = replace(ada_plan, owners=(ada.user, bob.user), invites=(bob.user, eve.user))
    room = await ensure_room(ada.client, plan)
    for invited in (bob, eve):
        await invited.membership.join(room)
    assert await ensure_room(bob.client, plan) == room
    with pytest.raises(UserError, match="neither created nor moderates"):
        await ensure_room(eve.client, plan)
    stranger = await account("stranger")
    with pytest.raises(UserError, match="neither created nor moderates"):
        await ensure_room(stranger.client, plan)


async def test_e12_who_left_or_declined_is_not_invited_again(
    ada: Account, bob: Account, account: MakeAccount, ada_plan: RoomPlan
) -> None:
    carol = await account("carol")
    plan = replace(ada_plan, invites=(bob.user,))
    room = await ensure_room(ada.client, plan)
    await bob.membership.leave(room)
    plan = replace(plan, invites=(bob.user, carol.user))
    await ensure_room(ada.client, plan)
    assert await member(ada, room, bob.user) == "leave"
    assert await member(ada, room, carol.user) == "invite"
    assert await invite_once(ada.client, room, carol.user) is False


# ---- membership ------------------------------------------------------------------------------------------------------
async def test_e12_joining_and_leaving_are_repeatable_and_joining_uninvited_is_forbidden(
    ada: Account, bob: Account, account: MakeAccount, ada_plan: RoomPlan
) -> None:
    room = await ensure_room(ada.client, replace(ada_plan, invites=(bob.user,)))
    await bob.membership.join(RoomId(ada_plan.alias), via=[ada.user.partition(":")[2]])
    await bob.membership.join(room)
    assert await member(ada, room, bob.user) == "join"
    await bob.membership.leave(room)
    await bob.membership.leave(room)
    assert await member(ada, room, bob.user) == "leave"
    eve = await account("eve")
    await eve.membership.leave(room)
    with pytest.raises(MatrixFailure) as caught:
        await eve.membership.join(room)
    assert caught.value.failure_class is C.FORBIDDEN


# ---- sync ------------------------------------------------------------------------------------------------------------
async def test_a1_sync_shows_each_event_once_after_its_token(ada: Account, bob: Account, ada_plan: RoomPlan) -> None:
    room = await shared_room(ada, bob, ada_plan)
    baseline = await bob.news(None)
    assert room in baseline.raw["rooms"]["join"]
    event = await ada.say(room, "hello")
    batch = await bob.news(baseline.next_batch)
    timeline = batch.raw["rooms"]["join"][room]["timeline"]
    assert [shown["event_id"] for shown in timeline["events"]] == [event]
    assert timeline["limited"] is False
    again = await bob.news(batch.next_batch)
    assert room not in again.raw.get("rooms", {}).get("join", {})


async def test_e1_the_sender_sees_its_transaction_id_and_others_do_not(
    ada: Account, bob: Account, ada_plan: RoomPlan
) -> None:
    room = await shared_room(ada, bob, ada_plan)
    since = {person.user: (await person.news(None)).next_batch for person in (ada, bob)}
    await ada.say(room, "hello", txn="final.one")
    seen = []
    for person in (ada, bob):
        batch = await person.news(since[person.user])
        event = batch.raw["rooms"]["join"][room]["timeline"]["events"][-1]
        seen.append(event.get("unsigned", {}).get("transaction_id"))
    assert seen == ["final.one", None]


async def test_full_state_shows_a_quiet_room(ada: Account, ada_plan: RoomPlan) -> None:
    room = await ensure_room(ada.client, ada_plan)
    since = (await ada.news(None)).next_batch
    quiet = await ada.news(since)
    assert room not in quiet.raw.get("rooms", {}).get("join", {})
    full = await ada.news(since, full_state=True)
    types = {event["type"] for event in full.raw["rooms"]["join"][room]["state"]["events"]}
    assert {"m.room.create", "m.room.power_levels", "m.room.name"} <= types


async def test_a9_an_invite_is_shown_as_one_and_a_departure_stands_under_leave(
    ada: Account, bob: Account, ada_plan: RoomPlan
) -> None:
    since = (await bob.news(None)).next_batch
    room = await ensure_room(ada.client, replace(ada_plan, invites=(bob.user,)))
    invited = await bob.news(since)
    stripped = invited.raw["rooms"]["invite"][room]["invite_state"]["events"]
    assert any(event["type"] == "m.room.member" and event["state_key"] == bob.user for event in stripped)
    await bob.membership.join(room)
    joined = await bob.news(invited.next_batch)
    assert room in joined.raw["rooms"]["join"]
    await bob.membership.leave(room)
    left = await bob.news(joined.next_batch)
    assert room in left.raw["rooms"]["leave"]


async def test_b4_a_token_of_another_world_is_refused_with_400(ada: Account) -> None:
    with pytest.raises(MatrixFailure) as caught:
        await ada.news(SyncToken("no-token-at-all"))
    assert (caught.value.failure_class, caught.value.status) == (C.BAD_REQUEST, 400)
    assert caught.value.errcode


# ---- history ---------------------------------------------------------------------------------------------------------
async def test_b2_a_gap_is_walked_back_to_exactly_the_events_that_sync_left_out(
    ada: Account, bob: Account, ada_plan: RoomPlan
) -> None:
    room = await shared_room(ada, bob, ada_plan)
    since = (await bob.news(None)).next_batch
    sent = [await ada.say(room, f"message {number}") for number in range(115)]
    timeline = (await bob.news(since)).raw["rooms"]["join"][room]["timeline"]
    assert timeline["limited"] is True
    shown = [event["event_id"] for event in timeline["events"]]
    walked: list[EventId] = []
    start: SyncToken | None = SyncToken(timeline["prev_batch"])
    while start is not None:
        page = await bob.history.messages_back(room, start=start, stop=since, limit=7)
        walked += [event["event_id"] for event in page.events]
        start = page.end
    assert list(reversed(walked)) + shown == sent


async def test_e4_what_we_said_since_a_token_is_read_to_its_end(ada: Account, bob: Account, ada_plan: RoomPlan) -> None:
    """E4: from a sync token on, our own events alone, oldest first, over several pages; an event of before is not."""
    room = await shared_room(ada, bob, ada_plan)
    await bob.say(room, "before")
    since = (await bob.news(None)).next_batch
    said = []
    for number in range(103):
        await ada.say(room, f"hers {number}") if number % 20 == 0 else None
        said.append(await bob.say(room, f"mine {number}"))
    found: list[EventId] = []
    start: SyncToken | None = since
    while start is not None:
        page = await bob.history.said_since(room, start=start)
        found += [event["event_id"] for event in page.events]
        start = page.end
    assert found == said
    assert (await bob.history.event(room, said[0]))["event_id"] == said[0]
    with pytest.raises(MatrixFailure) as caught:
        await bob.history.event(room, EventId("$nothing"))
    assert caught.value.failure_class is C.NOT_FOUND


async def test_b3_history_of_a_room_that_is_not_ours_is_forbidden(
    ada: Account, bob: Account, ada_plan: RoomPlan
) -> None:
    room = await ensure_room(ada.client, ada_plan)
    with pytest.raises(MatrixFailure) as caught:
        await bob.history.messages_back(room, start=(await bob.news(None)).next_batch, stop=None, limit=5)
    assert caught.value.failure_class is C.FORBIDDEN


async def test_a12_a_thread_is_read_back_from_a_token_of_sync_and_its_root_apart(
    ada: Account, bob: Account, ada_plan: RoomPlan
) -> None:
    """A12: edits of its messages too, nothing newer than the token; what the room has not is refused for good."""
    room = await shared_room(ada, bob, ada_plan)
    root = await ada.say(room, "the root")
    in_thread: JsonObject = {
        "msgtype": "m.text",
        "body": "x",
        "m.relates_to": {"rel_type": "m.thread", "event_id": root},
    }
    said = [await ada.say(room, "", content=in_thread) for _ in range(4)]
    new: JsonObject = {"msgtype": "m.text", "body": "y"}
    edit = {**new, "m.new_content": new, "m.relates_to": {"rel_type": "m.replace", "event_id": said[0]}}
    said.append(await ada.say(room, "", content=edit))
    start: SyncToken | None = (await bob.news(None)).next_batch
    await ada.say(room, "", content=in_thread)
    walked: list[EventId] = []
    while start is not None:
        page = await bob.history.thread_back(room, root, start=start, limit=2)
        walked += [event["event_id"] for event in page.events]
        start = page.end
    assert list(reversed(walked)) == said
    assert (await bob.history.event(room, root))["content"]["body"] == "the root"
    token = (await bob.news(None)).next_batch
    for asked in (
        bob.history.thread_back(room, EventId("$no"), start=token, limit=2),
        bob.history.event(room, EventId("$no")),
    ):
        with pytest.raises(MatrixFailure) as caught:
            await asked
        assert caught.value.failure_class in (C.NOT_FOUND, C.BAD_REQUEST)


# ---- delivery --------------------------------------------------------------------------------------------------------
async def test_e2_the_same_transaction_id_is_one_event(ada: Account, ada_plan: RoomPlan) -> None:
    room = await ensure_room(ada.client, ada_plan)
    since = (await ada.news(None)).next_batch
    event = await ada.say(room, "first", txn="initial.one")
    assert await ada.say(room, "first", txn="initial.one") == event
    assert await ada.say(room, "first", txn="final.one") != event
    timeline = (await ada.news(since)).raw["rooms"]["join"][room]["timeline"]
    assert len(timeline["events"]) == 2


async def test_e7_awkward_text_arrives_and_the_largest_frozen_content_is_accepted(
    ada: Account, ada_plan: RoomPlan
) -> None:
    room = await ensure_room(ada.client, ada_plan)
    since = (await ada.news(None)).next_batch
    await ada.say(room, "", content={"msgtype": "m.text", "body": "a\x00b\ud800 😀 é \u2028", "n": 2**53 - 1})
    await ada.say(room, "", content={"msgtype": "m.text", "body": "é" * 30_950})
    events = (await ada.news(since)).raw["rooms"]["join"][room]["timeline"]["events"]
    assert events[0]["content"] == {"msgtype": "m.text", "body": "a\ufffdb\ufffd 😀 é \u2028", "n": 2**53 - 1}
    assert len(events[1]["content"]["body"]) == 30_950


async def test_e6_sending_into_a_room_we_are_not_in_is_forbidden(
    ada: Account, bob: Account, ada_plan: RoomPlan
) -> None:
    room = await ensure_room(ada.client, ada_plan)
    with pytest.raises(MatrixDeliveryFailure) as caught:
        await bob.say(room, "let me in")
    assert (caught.value.failure_class, caught.value.errcode) == (C.FORBIDDEN, "M_FORBIDDEN")


# ---- attention -------------------------------------------------------------------------------------------------------
async def test_typing_and_receipts_are_accepted_in_the_main_timeline_and_in_threads(
    ada: Account, bob: Account, ada_plan: RoomPlan
) -> None:
    room = await shared_room(ada, bob, ada_plan)
    root = await ada.say(room, "root")
    await bob.attention.typing(room, seconds=20)
    await bob.attention.typing(room, seconds=0)
    await bob.attention.read(room, root, thread=None)
    await bob.attention.read(room, root, thread=root)
    relation = {"rel_type": "m.thread", "event_id": root}
    answer = await ada.say(room, "", content={"msgtype": "m.text", "body": "in", "m.relates_to": relation})
    await bob.attention.read(room, answer, thread=root)
    await bob.attention.read(room, root, thread=root)
    assert [outcome for call, outcome in bob.observed.calls if call in ("typing", "receipt")] == ["ok"] * 6


async def test_attention_in_a_room_that_is_not_ours_fails_silently_but_is_counted(
    ada: Account, bob: Account, ada_plan: RoomPlan
) -> None:
    room = await ensure_room(ada.client, ada_plan)
    event = await ada.say(room, "private")
    await bob.attention.typing(room, seconds=5)
    await bob.attention.read(room, event, thread=None)
    assert [call for call, outcome in bob.observed.calls if outcome != "ok"] == ["typing", "receipt"]
