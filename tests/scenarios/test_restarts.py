"""What survives an end of the process, a second process, and an older database: each test has its own installation."""

import asyncio
import json
from pathlib import Path
from urllib.parse import quote

import pytest

from mindroom.bot.edges import Edges, HomeserverConnect
from mindroom.core.content import DELIVERY_KEY
from mindroom.db.embedded import EmbeddedPostgres
from mindroom.matrix.accounts import AccountSession
from mindroom.matrix.client import MatrixCall
from mindroom.matrix.local_homeserver import LocalHomeserver
from mindroom.matrix.paths import client_path
from tests.support.matrix_human import MatrixHuman
from tests.support.openai_server import Behaviour, OpenAIServer
from tests.support.runtime import AgentSetup, House, copy_database, eventually, is_final, open_house


async def test_r4_messages_sent_while_down_are_all_answered(
    synapse: LocalHomeserver, database_dsn: str, short_path: Path
) -> None:
    """R4: kill, three messages, start."""
    async with open_house(synapse, database_dsn, short_path) as house:
        running = await house.start()
        room = await house.room("assistant")
        await house.answer(room, "assistant", await house.human.send(room, "before"))
        await house.kill(running)
        sources = [await house.human.send(room, f"while you were away {n}") for n in range(3)]
        await house.start()
        for source in sources:
            await house.answer(room, "assistant", source)
        await house.quiet()
        assert len(await house.said(room, "assistant")) == 4


async def test_r5_a_new_account_never_answers_what_was_said_before(
    synapse: LocalHomeserver, database_dsn: str, short_path: Path
) -> None:
    """R5, R3: fifty old messages, zero answers; also when its database is lost and everything looks old again."""
    async with open_house(synapse, database_dsn, short_path) as house:
        room = await house.human.create_room()
        await asyncio.gather(*(house.human.send(room, f"old {n}") for n in range(50)))
        await house.start()
        await house.human.invite(room, house.agent("assistant"))
        await house.joined(room, "assistant")
        source = await house.human.send(room, "now you")
        await house.answer(room, "assistant", source)
        await house.quiet()
        answers = await house.said(room, "assistant")
        assert [a.content[DELIVERY_KEY]["sources"] for a in answers] == [[source]]
        old = await house.row(
            "SELECT count(*) AS n FROM journal_receipts WHERE class <> 'history' AND event_id <> $1 "
            "AND kind = 'message' AND sender = $2",
            source,
            house.human.user_id,
        )
        assert old is not None
        assert old["n"] == 0


async def test_r1_b2_a_gap_is_walked_and_its_messages_are_answered_once(
    synapse: LocalHomeserver, database_dsn: str, short_path: Path
) -> None:
    """R1, B2: while the agent is down the room is flooded past the timeline limit; the question stands in the gap."""
    async with open_house(synapse, database_dsn, short_path, people=("alice", "bob")) as house:
        running = await house.start()
        room = await house.room("assistant", humans=["bob"])
        await house.answer(room, "assistant", await house.human.send(room, "before"))
        await house.end(running)
        source = await house.human.send(room, "did you hear me?")
        for _ in range(4):
            await asyncio.gather(*(house.people["bob"].send(room, f"noise {n}", msgtype="m.notice") for n in range(60)))
        after = await house.human.send(room, "and me?")
        running = await house.start()
        await house.answer(room, "assistant", source)
        await house.answer(room, "assistant", after)
        await house.quiet()
        assert len(await house.said(room, "assistant")) == 3
        gap = await house.row("SELECT state, page FROM room_history_recovery WHERE room_id = $1", room)
        assert gap is not None
        assert gap["state"] == "repaired"
        event = await house.row("SELECT class FROM journal_receipts WHERE event_id = $1", source)
        assert event is not None
        assert event["class"] == "recovered"
        assert running.metric("sync_limited_total", outcome="gap") == 1
        assert running.metric("sync_limited_total", outcome="repaired") == 1


async def test_r12_an_invite_that_came_while_down_is_accepted_after_the_start(
    synapse: LocalHomeserver, database_dsn: str, short_path: Path
) -> None:
    """R12, A9."""
    async with open_house(synapse, database_dsn, short_path) as house:
        running = await house.start()
        await house.end(running)
        room = await house.human.create_room(invite=[house.agent("assistant")])
        asked = await house.human.send(room, "are you coming?")
        await house.start()
        await house.joined(room, "assistant")
        assert await house.outcome("assistant", asked) in ("answered", "context")
        source = await house.human.send(room, "welcome")
        await house.answer(room, "assistant", source)


async def test_f1_f2_after_a_kick_nothing_is_owed_and_a_rejoin_is_a_new_epoch(
    synapse: LocalHomeserver, database_dsn: str, short_path: Path
) -> None:
    """F1, F2: what was asked before the kick is settled `departed`, what comes after the rejoin is answered."""
    async with OpenAIServer(Behaviour(delay_seconds=60)) as server:
        model = {"provider": "openai_like", "id": "m", "base_url": server.base_url}
        async with open_house(synapse, database_dsn, short_path, model=model) as house:
            await house.start()
            room = await house.room("assistant")
            owed = await house.human.send(room, "think hard")
            await house.human.wait_for(room, lambda e: e["sender"] == house.agent("assistant") and _is_placeholder(e))
            waiting = await house.human.send(room, "and this", thread=owed)
            await house.human.kick(room, house.agent("assistant"))
            assert await house.outcome("assistant", owed) == "departed"
            assert await house.outcome("assistant", waiting) in ("departed", "context")
            await house.quiet()
            for table in ("visible_messages", "room_history_recovery", "room_state"):
                kept = await house.row(f"SELECT count(*) AS n FROM {table} WHERE room_id = $1", room)
                assert kept is not None
                assert kept["n"] == 0, table
            server.behaviour.delay_seconds = 0.0
            await house.human.invite(room, house.agent("assistant"))
            await house.joined(room, "assistant")
            source = await house.human.send(room, "welcome back")
            await house.answer(room, "assistant", source)
            await house.quiet()
            member = await house.row("SELECT epoch, membership FROM room_membership WHERE room_id = $1", room)
            assert member is not None
            assert tuple(member) == (2, "join")
            assert len([m for m in await house.said(room, "assistant") if m.content.get("msgtype") == "m.text"]) == 1


async def test_f1_leaving_and_coming_back_between_two_syncs_is_one_departure(
    synapse: LocalHomeserver, database_dsn: str, short_path: Path
) -> None:
    """F1: kicked while down and invited again; what was said in between is not for us."""
    async with open_house(synapse, database_dsn, short_path) as house:
        running = await house.start()
        room = await house.room("assistant")
        await house.answer(room, "assistant", await house.human.send(room, "hello"))
        await house.end(running)
        await house.human.kick(room, house.agent("assistant"))
        between = await house.human.send(room, "is it gone?")
        await house.human.invite(room, house.agent("assistant"))
        await house.start()

        async def is_back() -> bool:
            return house.agent("assistant") in await house.human.members(room)

        await eventually(is_back, what="rejoined")
        source = await house.human.send(room, "welcome back")
        await house.answer(room, "assistant", source)
        await house.quiet()
        answers = await house.said(room, "assistant")
        assert between not in [s for a in answers for s in a.content[DELIVERY_KEY]["sources"]]
        member = await house.row("SELECT epoch FROM room_membership WHERE room_id = $1", room)
        assert member is not None
        assert member["epoch"] == 2


async def test_f1_f2_a_kick_while_an_answer_streams_and_a_rejoin(
    synapse: LocalHomeserver, database_dsn: str, short_path: Path
) -> None:
    """F1, F2: the old question is never answered, the next one once."""
    async with OpenAIServer(Behaviour(chunks=400, chunk_interval_seconds=0.1)) as server:
        model = {"provider": "openai_like", "id": "m", "base_url": server.base_url}
        async with open_house(synapse, database_dsn, short_path, model=model) as house:
            await house.start()
            room = await house.room("assistant")
            old = await house.human.send(room, "tell me everything")
            await house.human.wait_for(room, lambda e: e["sender"] == house.agent("assistant") and _is_progress(e))
            await house.human.kick(room, house.agent("assistant"))
            assert await house.outcome("assistant", old) == "departed"
            server.behaviour.chunks = 1
            await house.human.invite(room, house.agent("assistant"))
            await house.joined(room, "assistant")
            new = await house.human.send(room, "in short?")
            await house.answer(room, "assistant", new)
            await house.quiet()
            finals = [m for m in await house.said(room, "assistant") if is_final(m)]
            assert [m.content[DELIVERY_KEY]["sources"] for m in finals] == [[new]]


async def test_r20_a_restart_asks_about_no_room(synapse: LocalHomeserver, database_dsn: str, short_path: Path) -> None:
    """R20: what a killed answer left is taken up from the tables, by the account that is in the room, however many
    rooms there are, also one that we are no longer in."""
    async with OpenAIServer(Behaviour(delay_seconds=60)) as server:
        model = {"provider": "openai_like", "id": "m", "base_url": server.base_url}
        async with open_house(synapse, database_dsn, short_path, model=model) as house:
            running = await house.start()
            room, gone, *_ = [await house.room("assistant") for _ in range(4)]
            sources = [await house.human.send(each, "think hard") for each in (room, gone)]
            for each in (room, gone):
                await house.human.wait_for(
                    each, lambda e: e["sender"] == house.agent("assistant") and _is_placeholder(e)
                )
            await house.kill(running)
            await house.human.kick(gone, house.agent("assistant"))
            server.behaviour.delay_seconds = 0.0
            running = await house.start()
            await house.answer(room, "assistant", sources[0])
            assert await house.outcome("assistant", sources[1]) == "departed"
            await house.quiet()
            calls = {
                sample.labels["name"]: sample.value
                for family in running.metrics.registry.collect()
                for sample in family.samples
                if sample.name == "mindroom_homeserver_seconds_count" and sample.value
            }
            assert calls.keys() <= {"whoami", "profile_get", "get_event", "send", "typing", "receipt"}, calls
            assert max(calls[name] for name in calls if name not in ("typing", "receipt")) <= 2, calls


async def test_f4_r13_an_upgraded_room_is_followed_with_what_is_owed_there(
    synapse: LocalHomeserver, database_dsn: str, short_path: Path
) -> None:
    """F4, R13: upgraded while an answer is written. A private room's successor lets nobody in uninvited."""
    async with OpenAIServer(Behaviour()) as server:
        model = {"provider": "openai_like", "id": "m", "base_url": server.base_url}
        async with open_house(synapse, database_dsn, short_path, model=model) as house:
            await house.start()
            for preset in ("public_chat", "private_chat"):
                await _upgraded_while_answering(house, server, preset=preset)


async def _upgraded_while_answering(house: House, server: OpenAIServer, *, preset: str) -> None:
    agent = house.agent("assistant")
    old = await house.room("assistant", preset=preset)
    server.behaviour.delay_seconds = 5.0
    owed = await house.human.send(old, "think hard", mentions=[agent])
    await house.human.wait_for(old, lambda e: e["sender"] == agent and _is_placeholder(e))
    path = f"/rooms/{quote(old, safe='')}/upgrade"
    new = (await house.human.call("POST", path, body={"new_version": "11"}))["replacement_room"]
    if preset == "private_chat":
        await house.human.invite(new, agent)
    await house.joined(new, "assistant")
    assert agent in await house.human.members(old), "an answer is owed there"
    answer = await house.answer(new, "assistant", owed, timeout_seconds=40)
    assert answer.body.startswith("In answer to https://matrix.to/#/")
    server.behaviour.delay_seconds = 0.0

    async def is_left() -> bool:
        return agent not in await house.human.members(old)

    await eventually(is_left, what="the old room is left")
    later = await house.human.send(new, "still there?", mentions=[agent])
    await house.answer(new, "assistant", later)
    await house.quiet()
    assert [m.content[DELIVERY_KEY]["sources"] for m in await house.said(new, "assistant")] == [[owed], [later]]
    assert not any(is_final(m) for m in await house.said(old, "assistant"))


async def test_a7_e10_an_encrypted_room_gets_the_sentence_once_and_nothing_else(
    synapse: LocalHomeserver, database_dsn: str, short_path: Path
) -> None:
    """A7, E10: also when encryption is switched on later, and over a restart."""
    async with open_house(synapse, database_dsn, short_path) as house:
        running = await house.start()
        room = await house.room("assistant")
        await house.answer(room, "assistant", await house.human.send(room, "in the clear"))
        await _encrypt(house.human, room)
        sources = [await _send_ciphertext(house.human, room) for _ in range(3)]
        for source in sources:
            assert await house.outcome("assistant", source) == "ignored.encrypted"
        plain = await house.human.send(room, "in the clear again")
        assert await house.outcome("assistant", plain) == "ignored.encrypted"
        await house.end(running)
        await house.start()
        later = await _send_ciphertext(house.human, room)
        assert await house.outcome("assistant", later) == "ignored.encrypted"
        await house.quiet()
        said = [m.body for m in await house.said(room, "assistant")]
        assert said[1:] == ["This room is encrypted and I cannot read it yet."]
        assert said[0].endswith("in the clear")


async def test_a_stop_lets_the_running_answer_finish(
    synapse: LocalHomeserver, database_dsn: str, short_path: Path
) -> None:
    """SIGTERM: refuse new, drain, resign, end; nothing is lost."""
    async with OpenAIServer(Behaviour(delay_seconds=1.5)) as server:
        model = {"provider": "openai_like", "id": "m", "base_url": server.base_url}
        async with open_house(synapse, database_dsn, short_path, model=model) as house:
            running = await house.start()
            room = await house.room("assistant")
            source = await house.human.send(room, "take your time")
            await house.human.wait_for(room, lambda e: e["sender"] == house.agent("assistant") and _is_placeholder(e))
            await house.end(running)
            answers = await house.said(room, "assistant")
            assert [a.content[DELIVERY_KEY]["stage"] for a in answers] == ["final"]
            assert await house.outcome("assistant", source) == "answered"
            beat = await house.row("SELECT count(*) AS n FROM principal_beat WHERE owner IS NOT NULL")
            assert beat is not None
            assert beat["n"] == 0
            open_processes = await house.row("SELECT count(*) AS n FROM processes WHERE stopped_at IS NULL")
            assert open_processes is not None
            assert open_processes["n"] == 0
            later = await house.human.send(room, "after you left")
            server.behaviour.delay_seconds = 0.0
            await house.start()
            await house.answer(room, "assistant", later)
            assert len(await house.said(room, "assistant")) == 2


async def test_d2_a_killed_answer_is_run_again_and_edits_its_own_placeholder(
    synapse: LocalHomeserver, database_dsn: str, short_path: Path
) -> None:
    """D2, D9."""
    async with OpenAIServer(Behaviour(delay_seconds=60)) as server:
        model = {"provider": "openai_like", "id": "m", "base_url": server.base_url}
        async with open_house(synapse, database_dsn, short_path, model=model) as house:
            running = await house.start()
            room = await house.room("assistant")
            source = await house.human.send(room, "think hard")
            placeholder = await house.human.wait_for(
                room, lambda e: e["sender"] == house.agent("assistant") and _is_placeholder(e)
            )
            await house.kill(running)
            server.behaviour.delay_seconds = 0.0
            await house.start()
            answer = await house.answer(room, "assistant", source)
            assert answer.event_id == placeholder["event_id"]
            await house.quiet()
            assert len(await house.said(room, "assistant")) == 1
            turns = await house.rows("SELECT turn_id FROM turns")
            assert len(turns) == 1


async def test_a6_an_older_database_repeats_no_answer(
    synapse: LocalHomeserver, database_dsn: str, short_path: Path, postgres_server: EmbeddedPostgres
) -> None:
    """A6: restore an older dump under a live homeserver."""
    name = database_dsn.partition("?")[0].rpartition("/")[2]
    async with open_house(synapse, database_dsn, short_path) as house:
        running = await house.start()
        room = await house.room("assistant")
        first = await house.human.send(room, "first")
        await house.answer(room, "assistant", first)
        await house.end(running)
        await copy_database(postgres_server, name, f"{name}_old")
        second = await house.human.send(room, "second")
        running = await house.start()
        await house.answer(room, "assistant", second)
        third = await house.human.send(room, "third")
        await house.answer(room, "assistant", third)
        await house.quiet()
        await house.end(running)
        await copy_database(postgres_server, f"{name}_old", name)
        fourth = await house.human.send(room, "fourth")
        await house.start()
        await house.answer(room, "assistant", fourth)
        for source in (second, third):
            assert await house.outcome("assistant", source) == "answered"
        await house.quiet()
        answers = await house.said(room, "assistant")
        assert [a.content[DELIVERY_KEY]["sources"] for a in answers] == [[first], [second], [third], [fourth]]
        adopted = await house.rows("SELECT state FROM delivery_outbox WHERE purpose = 'adopted'")
        assert {row["state"] for row in adopted} == {"acked"}


async def test_h1_a_second_process_stands_by_and_takes_over(
    synapse: LocalHomeserver, database_dsn: str, short_path: Path
) -> None:
    """H1 in one process' space: one serves, the other waits for the lease; each service has a greater fence."""
    async with open_house(synapse, database_dsn, short_path) as house:
        first = await house.start()
        room = await house.room("assistant")
        await house.answer(room, "assistant", await house.human.send(room, "one"))
        fence = await _fence(house)
        second = await house.start(folder=house.second_folder("other"))
        status, body = await second.http("/readyz")
        assert status == 200
        entry = json.loads(body)["principals"][house.agent_name("assistant")]
        assert (entry["state"], entry["reason"]) == ("standby", "another process serves this principal")
        await house.answer(room, "assistant", await house.human.send(room, "two"))
        await house.end(first)
        await house.answer(room, "assistant", await house.human.send(room, "three"))
        assert await _fence(house) > fence
        await house.quiet()
        assert len(await house.said(room, "assistant")) == 3
        assert first.metric("fence_rejected_total") == 0


async def test_h3_r40_all_sessions_ended_again_and_again_while_it_answers_cost_nothing(
    synapse: LocalHomeserver, database_dsn: str, short_path: Path
) -> None:
    """H3, R40: a server that ends every session, at any moment of an answer; attempts are few."""
    async with OpenAIServer(Behaviour(delay_seconds=0.1, chunks=8, chunk_interval_seconds=0.1)) as server:
        model = {"provider": "openai_like", "id": "m", "base_url": server.base_url}
        async with open_house(synapse, database_dsn, short_path, model=model) as house:
            await _end_all_sessions_while_it_answers(house)


async def _end_all_sessions_while_it_answers(house: House) -> None:
    running = await house.start()
    room = await house.room("assistant")
    sources = []
    for number in range(3):
        sources.append(await house.human.send(room, f"question {number}"))
        for _ in range(3):
            await asyncio.sleep(0.15 + 0.07 * number)
            await house.rows(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid() AND application_name = 'mindroom'"
            )
    for source in sources:
        await house.answer(room, "assistant", source)
    await house.quiet()
    assert len(await house.said(room, "assistant")) == 3
    samples = [s for m in running.metrics.registry.collect() if m.name == "mindroom_db_retries" for s in m.samples]
    assert sum(sample.value for sample in samples if sample.name.endswith("_total")) < 60


async def test_probes_and_metrics_tell_the_state_with_reasons(
    synapse: LocalHomeserver, database_dsn: str, short_path: Path
) -> None:
    """/healthz, /readyz, /metrics."""
    async with open_house(synapse, database_dsn, short_path) as house:
        running = await house.start()
        assert await running.http("/healthz") == (200, '{"status": "alive"}')
        status, body = await running.http("/readyz")
        assert status == 200
        entry = json.loads(body)["principals"][house.agent_name("assistant")]
        assert 0 <= entry.pop("lease_age_seconds") < 15
        assert entry == {"ready": True, "state": "serving", "reason": "serving", "process": 1, "fence": 1}
        room = await house.room("assistant")
        await house.answer(room, "assistant", await house.human.send(room, "count me"))
        await house.quiet()
        status, body = await running.http("/metrics")
        assert status == 200
        for line in (
            'mindroom_verdicts_total{action="respond",reason="dm"} 1.0',
            'mindroom_admitted_events_total{class="live",kind="message"}',
            'mindroom_lease_held{principal="' + house.agent_name("assistant") + '"} 1.0',
            'mindroom_sends_total{errcode="ok"}',
        ):
            assert line in body
        assert running.metric("sweep_found_total", kind="pending") == 0
        assert running.metric("sweep_found_total", kind="delivery") == 0


async def test_readyz_names_the_reason_while_the_homeserver_is_away(
    synapse: LocalHomeserver, database_dsn: str, short_path: Path, free_port: int
) -> None:
    """B5: alive, not ready, and the reason is told; a stop still ends cleanly."""
    async with open_house(synapse, database_dsn, short_path, agents=[AgentSetup("assistant")]) as house:
        house.homeserver_url = f"http://127.0.0.1:{free_port}"
        running = await house.start(until_ready=False)

        async def told() -> bool:
            try:
                status, body = await running.http("/readyz")
            except OSError:
                return False
            entry = json.loads(body)["principals"].get(house.agent_name("assistant"), {})
            return status == 503 and entry.get("reason") == "network"

        await eventually(told, what="/readyz says network")
        assert (await running.http("/healthz"))[0] == 200


async def test_r7_b5_a_deleted_device_is_replaced_and_nobody_hammers(
    synapse: LocalHomeserver, database_dsn: str, short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R7, B5: one new login with a new device, the next message answered; the other principal notices nothing."""
    agents, clients, connect = [AgentSetup("assistant"), AgentSetup("other")], {}, HomeserverConnect.edges

    def edges(self: HomeserverConnect, session: AccountSession) -> Edges:
        opened = connect(self, session)
        clients[session.user_id] = opened.client
        return opened

    monkeypatch.setattr(HomeserverConnect, "edges", edges)
    async with open_house(synapse, database_dsn, short_path, agents=agents) as house:
        running = await house.start()

        def count(sample: str, **labels: str) -> float:
            return running.metrics.registry.get_sample_value(f"mindroom_{sample}", labels) or 0.0

        mine, others = house.agent("assistant"), house.agent("other")
        room = await house.room("assistant")
        elsewhere = await house.room("other")
        await house.answer(room, "assistant", await house.human.send(room, "before"))
        was = await _principals(house)
        device_gone = client_path("logout")
        await clients[mine].request(MatrixCall.LOGIN, method="POST", path=device_gone, body={})
        logins = count("homeserver_seconds_count", name="login")
        source = await house.human.send(room, "after")
        await house.answer(room, "assistant", source)
        await house.answer(elsewhere, "other", await house.human.send(elsewhere, "and you"))
        now = await _principals(house)
        assert now[mine][0] != was[mine][0], "a new device"
        assert now[others] == was[others], "the same device under the same fence"
        assert count("homeserver_seconds_count", name="login") - logins == 1
        assert count("homeserver_failures_total", name="sync", errcode="M_UNKNOWN_TOKEN") <= 2


async def _principals(house: House) -> dict[str, tuple[str, int]]:
    rows = await house.rows("SELECT user_id, device_id, fence FROM principals JOIN principal_fence USING (principal)")
    return {row["user_id"]: (row["device_id"], row["fence"]) for row in rows}


def _is_placeholder(event: dict[str, object]) -> bool:
    content = event["content"]
    return isinstance(content, dict) and content.get(DELIVERY_KEY, {}).get("stage") == "initial"


def _is_progress(event: dict[str, object]) -> bool:
    content = event["content"]
    return isinstance(content, dict) and content.get(DELIVERY_KEY, {}).get("stage") == "progress"


async def _fence(house: House) -> int:
    row = await house.row("SELECT fence FROM principal_fence")
    assert row is not None
    return int(row["fence"])


async def _encrypt(human: MatrixHuman, room: str) -> None:
    await human.call(
        "PUT", f"/rooms/{room.replace('!', '%21')}/state/m.room.encryption/", body={"algorithm": "m.megolm.v1.aes-sha2"}
    )


async def _send_ciphertext(human: MatrixHuman, room: str) -> str:
    content = {
        "algorithm": "m.megolm.v1.aes-sha2",
        "ciphertext": "AwgAEnACgAkLmt6qF84IK++J7UDH2Za1YVchHyprqTqsg",
        "device_id": human.device_id,
        "sender_key": "hpiHvo5ynCSNYlwxUMrc7YqVTzFbfLzXPlpHN2Yzvk8",
        "session_id": "X3lUlvLELLYxeTx4yOVu6UDpasGEVO0Jbu+QFnm0cKQ",
    }
    return await human.send_event(room, "m.room.encrypted", content)
