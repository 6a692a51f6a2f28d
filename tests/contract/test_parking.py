"""Sources that keep failing come to rest with a notice, and may be tried again (C2, D4)."""

import asyncio

import pytest

from mindroom.core.content import DELIVERY_KEY
from mindroom.core.errors import CorruptState, DependencyError, ModelFailure, ModelFailureKind
from mindroom.journal.records import ParkedAs
from mindroom.ops.verbs import retry_parked
from mindroom.responses.answer import reference
from mindroom.responses.transitions import MAX_RESUMES
from mindroom.turns.parking import MAX_ATTEMPTS, is_newer, parked_as
from tests.support.events import ALICE, ROOM, joined_room, member, message, redaction
from tests.support.spine import Spine, open_spine

BROKEN = ZeroDivisionError("secret text of a message")
HOUR = 3600.0


def notices(spine: Spine) -> list[str]:
    """What the room reads of answers that did not come."""
    contents = [wire.content.get("m.new_content", wire.content) for _, wire in spine.gateway.visible()]
    return [content["body"] for content in contents if "could not answer" in content.get("body", "")]


async def park(spine: Spine, event_id: str = "$1") -> None:
    """A message whose handling fails for a reason of its own until it rests."""
    spine.model.failure = BROKEN
    await spine.hear(message(event_id))
    await spine.advance(300, step_seconds=2)
    spine.model.failure = None


async def restart(spine: Spine, *, crashed: bool = True) -> None:
    """Another life of the process, which admits an empty first response."""
    if crashed:
        await spine.crash()
    await spine.start()
    spine.answer(spine.batch())
    await spine.settle()
    await spine.advance(2)


@pytest.mark.parametrize(
    ("error", "attempts", "rest"),
    [
        (BROKEN, MAX_ATTEMPTS - 2, None),
        (BROKEN, MAX_ATTEMPTS - 1, ParkedAs.UNKNOWN),
        (ModelFailure(ModelFailureKind.UNKNOWN), MAX_ATTEMPTS - 1, ParkedAs.PERMANENT),
        (ModelFailure(ModelFailureKind.UNKNOWN), MAX_ATTEMPTS - 2, None),
        (ModelFailure(ModelFailureKind.SERVER), 10**6, None),
        (DependencyError("away"), 10**6, None),
        (CorruptState("rows contradict"), 0, ParkedAs.CORRUPT),
    ],
)
def test_c2_what_parks_and_when(error: Exception, attempts: int, rest: ParkedAs | None) -> None:
    assert parked_as(error, attempts=attempts) is rest


def test_c2_versions_are_compared_as_numbers() -> None:
    assert is_newer("0.10.0", than="0.9.1")
    assert not is_newer("0.9.1", than="0.9.1")
    assert not is_newer("0.9.1", than="0.10.0")
    assert is_newer("0.1.0", than="unknown")


async def test_c2_the_eighth_failure_parks_with_one_notice_and_a_reference(database_dsn: str) -> None:
    async with open_spine(database_dsn) as spine:
        await spine.serve()
        await park(spine)
        assert len(spine.model.requests) == MAX_ATTEMPTS
        assert await spine.rows("SELECT state, attempts, last_error FROM journal_events WHERE event_id = '$1'") == [
            ("parked", MAX_ATTEMPTS, "ZeroDivisionError")
        ]
        turn = await spine.value("SELECT turn_id FROM turns WHERE outcome = 'parked'")
        assert notices(spine) == [f"Something went wrong here and I could not answer. (Reference {reference(turn)})"], (
            "and never the error's own words (I2)"
        )
        assert spine.gateway.stages().count("final") == 1
        assert all("sources" not in wire.content.get(DELIVERY_KEY, {}) for _, wire in spine.gateway.visible())
        await spine.advance(2 * HOUR, step_seconds=60)
        await restart(spine)
        assert len(spine.model.requests) == MAX_ATTEMPTS, "it rests"
        assert spine.finals() == []


async def test_c2_a_newer_version_tries_once_more(database_dsn: str) -> None:
    async with open_spine(database_dsn) as spine:
        await spine.serve()
        await park(spine)
        spine.version, spine.model.failure = "1.1.0", BROKEN
        await restart(spine)
        await spine.advance(300, step_seconds=5)
        assert len(spine.model.requests) == MAX_ATTEMPTS + 1, "once"
        assert len(notices(spine)) == 2
        spine.version, spine.model.failure = "1.2.0", None
        await restart(spine)
        assert spine.finals() == [["$1"]]
        assert await spine.outcome("$1") == "answered"


async def test_c2_an_operator_may_have_it_tried_again_while_it_is_served(database_dsn: str) -> None:
    async with open_spine(database_dsn) as spine:
        await spine.serve()
        await park(spine)
        assert await retry_parked(database_dsn, "$1") == 1
        await spine.advance(15)
        assert spine.finals() == [["$1"]]
        swept = spine.metrics.registry.get_sample_value("mindroom_sweep_found_total", {"kind": "pending"})
        assert not swept, "an operator's verb is no defect"
        assert await retry_parked(database_dsn, "$1") == 0, "what does not rest is left alone"


async def test_c2_d9_the_notice_takes_the_placeholders_place(database_dsn: str) -> None:
    async with open_spine(database_dsn) as spine:
        await spine.serve()
        spine.model.go.clear()
        await spine.hear(message("$1"))
        await spine.advance(1)
        spine.model.failure = CorruptState("rows contradict")
        spine.model.go.set()
        await spine.settle()
        await spine.advance(2)
        (placeholder, _), (_, notice) = spine.gateway.visible()
        assert notice.content["m.relates_to"] == {"rel_type": "m.replace", "event_id": placeholder}
        assert len(notices(spine)) == 1


async def test_c2_a_parked_source_may_still_be_redacted_and_left_behind(database_dsn: str) -> None:
    """A4, F2: resting is no hiding place."""
    async with open_spine(database_dsn) as spine:
        await spine.serve()
        await park(spine, "$1")
        await park(spine, "$2")
        await spine.hear(redaction("$r", "$1"))
        assert await spine.outcome("$1") == "redacted"
        spine.answer(spine.batch(leave={"!room:x": {"timeline": {"events": [member("$k", "@agent:x", "leave")]}}}))
        await spine.settle()
        assert await spine.outcome("$2") == "departed"
        assert await spine.value("SELECT count(*) FROM journal_pending") == 0


async def test_c2_what_shares_a_turn_with_a_parked_source_has_attempts_of_its_own(database_dsn: str) -> None:
    """C2, D3: the turn ends with its notice; what the person wrote since is owed as before and answered by itself."""
    async with open_spine(database_dsn, thread_mode="room") as spine:
        await spine.serve()
        spine.model.failure = BROKEN
        await spine.hear(message("$1"))
        while await spine.value("SELECT attempts FROM journal_pending") < MAX_ATTEMPTS - 2:
            await spine.advance(1)
        await spine.crash()
        await spine.advance(61, step_seconds=61)
        await spine.start()
        spine.answer(spine.batch((ROOM, joined_room([message("$2")]))))
        await spine.settle()
        while await spine.value("SELECT count(*) FROM journal_pending WHERE parked_at IS NOT NULL") == 0:
            await spine.advance(1)
        assert await spine.rows("SELECT event_id, attempts < 8 FROM journal_pending WHERE parked_at IS NULL") == [
            ("$2", True)
        ]
        assert await spine.value("SELECT state FROM journal_events WHERE event_id = '$1'") == "parked"
        spine.model.failure = None
        await spine.advance(90)
        assert spine.finals() == [["$2"]]
        assert len(notices(spine)) == 1


async def test_d4_what_joins_a_turn_that_keeps_crashing_is_answered(database_dsn: str) -> None:
    """D4, R19: the crashes were not its own."""
    async with open_spine(database_dsn, thread_mode="room") as spine:
        await spine.serve()
        spine.model.go.clear()
        await spine.hear(message("$1"))
        for _ in range(MAX_RESUMES):
            await restart(spine)
        await spine.crash()
        spine.model.go.set()
        await spine.start()
        spine.answer(spine.batch((ROOM, joined_room([message("$2")]))))
        await spine.settle()
        await spine.advance(5)
        assert len(notices(spine)) == 1
        assert await spine.value("SELECT state FROM journal_events WHERE event_id = '$1'") == "parked"
        assert spine.finals() == [["$2"]]


async def test_c2_a_parked_source_holds_nobody_up(database_dsn: str) -> None:
    """C1, C3: the next message of the same person in the same room is answered."""
    async with open_spine(database_dsn) as spine:
        await spine.serve()
        await park(spine)
        await spine.hear(message("$2", sender=ALICE))
        assert spine.finals() == [["$2"]]


@pytest.mark.parametrize("kind", [ModelFailureKind.NETWORK, ModelFailureKind.RATE_LIMITED, ModelFailureKind.AUTH])
async def test_c2_an_hour_without_the_model_parks_nothing_and_counts_nothing(
    kind: ModelFailureKind, database_dsn: str
) -> None:
    async with open_spine(database_dsn) as spine:
        await spine.serve()
        spine.model.failure = ModelFailure(kind)
        await spine.hear(message("$1"))
        await spine.advance(HOUR, step_seconds=10)
        assert await spine.rows("SELECT attempts, parked_at FROM journal_pending") == [(0, None)]
        spine.model.failure = None
        await spine.advance(120, step_seconds=5)
        assert spine.finals() == [["$1"]]


async def test_d4_a_turn_that_keeps_crashing_is_parked(database_dsn: str) -> None:
    async with open_spine(database_dsn) as spine:
        await spine.serve()
        spine.model.go.clear()
        await spine.hear(message("$1"))
        for resumed in range(1, MAX_RESUMES + 1):
            await restart(spine)
            assert await spine.value("SELECT resumes FROM turns") == resumed
        asked = len(spine.model.requests)
        await restart(spine)
        assert len(spine.model.requests) == asked, "counted before the model is asked again"
        assert len(notices(spine)) == 1
        assert await spine.value("SELECT state FROM journal_events WHERE event_id = '$1'") == "parked"


async def test_d4_a_hand_over_and_a_back_off_are_no_crash(database_dsn: str) -> None:
    async with open_spine(database_dsn) as spine:
        await spine.serve()
        spine.model.go.clear()
        await spine.hear(message("$1"))
        for _ in range(MAX_RESUMES + 2):
            assert spine.lease is not None
            assert spine.task is not None
            spine.task.cancel()
            await asyncio.gather(spine.task, return_exceptions=True)
            await spine.keeper.resign(spine.lease)
            await restart(spine, crashed=False)
        assert await spine.value("SELECT resumes FROM turns") == 0
        spine.model.go.set()
        await spine.advance(2)
        assert spine.finals() == [["$1"]]


async def test_c2_a_lost_commit_of_the_rest_is_made_up_for(database_dsn: str) -> None:
    """K2: as long as `park` finds no database the source stays owed; afterwards there is one notice."""
    async with open_spine(database_dsn) as spine:
        await spine.serve()
        spine.database.outage = lambda name: name == "park"
        spine.model.failure = CorruptState("rows contradict")
        await spine.hear(message("$1"))
        await spine.advance(120, step_seconds=5)
        assert await spine.rows("SELECT state FROM journal_events WHERE event_id = '$1'") == [("pending",)]
        spine.database.outage = lambda _name: False
        await spine.advance(120, step_seconds=5)
        assert await spine.rows("SELECT state FROM journal_events WHERE event_id = '$1'") == [("parked",)]
        assert len(notices(spine)) == 1
