"""What a redaction takes with it, in every table and every later prompt, and what it gives back (A4, I2)."""

from typing import Any

import pytest

from mindroom.core.errors import MatrixFailure, MatrixFailureClass
from mindroom.core.ports import HistoryPage
from tests.support.databases import dumped
from tests.support.events import (
    ALICE,
    BOB,
    ME,
    OTHER_ROOM,
    ROOM,
    Event,
    edit,
    event,
    joined_room,
    left_room,
    member,
    message,
    redacted,
    redaction,
)
from tests.support.spine import Spine, open_spine

SECRET = "the-swordfish-of-"


async def hear_ourselves(spine: Spine) -> list[str]:
    """Sync shows what the gateway took, as it does; returns the event ids."""
    said = spine.gateway.visible()
    echoes: list[Event] = []
    for number, (event_id, wire) in enumerate(said):
        made = event(event_id, sender=ME, type_=wire.event_type, content=dict(wire.content), ts=9000 + number)
        echoes.append(made | {"unsigned": {"transaction_id": wire.txn_id}})
    await spine.hear(*echoes)
    return [event_id for event_id, _ in said]


async def shown(spine: Spine) -> dict[str, str | None]:
    return {row[0]: row[1] for row in await spine.rows("SELECT event_id, content ->> 'body' FROM visible_messages")}


def prompt(spine: Spine, which: int = -1) -> str:
    return "\n".join(message.text for message in spine.model.requests[which].messages)


# ---- every table (I2) --------------------------------------------------------------------------------------------
async def test_i2_no_table_holds_what_was_redacted(database_dsn: str) -> None:
    """I2, A4: a message, its edits, an edit of one not seen yet, one still owed, and the answer that quotes them."""
    async with open_spine(database_dsn, thread_mode="room") as spine:
        await spine.serve()
        spine.model.answer = f"you said {SECRET}answer"
        await spine.hear(message("$1", f"{SECRET}first"))
        await spine.hear(edit("$e1", "$1", f"{SECRET}second"), edit("$e2", "$1", f"{SECRET}third", ts=3000))
        await spine.hear(edit("$early", "$unseen", f"{SECRET}early"))
        spine.model.go.clear()
        await spine.hear(message("$2", f"{SECRET}owed"))
        (answer,) = [event_id for event_id in await hear_ourselves(spine) if event_id == "$said0"]
        assert await dumped(database_dsn, SECRET) != [], "what is to be forgotten was there"
        gone = ["$1", "$e1", "$e2", "$early", "$2", answer]
        await spine.hear(*(redaction(f"$r{n}", target) for n, target in enumerate(gone)))
        assert await dumped(database_dsn, SECRET) == []
        row = await spine.rows(
            "SELECT state, acked_event_id FROM delivery_outbox WHERE acked_event_id = $1 AND stage = 'final'", answer
        )
        assert row == [("acked", answer)], "that it was said stays known"


async def test_i2_the_hidden_steps_of_a_turn_go_with_its_source(database_dsn: str) -> None:
    """I2: the answer stands in the room, so later prompts have it as the room shows it, and no more of the turn."""
    async with open_spine(database_dsn, thread_mode="room") as spine:
        await spine.serve()
        await spine.hear(message("$1", SECRET))
        await hear_ourselves(spine)
        await spine.hear(redaction("$r1", "$1"))
        assert await spine.rows("SELECT canonical_text, replayable_text FROM turn_steps") == [("", "")]
        await spine.hear(message("$2", "and now"))
        assert "an answer" in prompt(spine)
        assert SECRET not in prompt(spine)


async def test_i2_our_own_redacted_answer_is_in_no_later_prompt(database_dsn: str) -> None:
    """I2: whoever redacted it; neither from the steps nor from the room."""
    async with open_spine(database_dsn, thread_mode="room") as spine:
        await spine.serve()
        spine.model.answer = SECRET
        await spine.hear(message("$1"))
        said = await hear_ourselves(spine)
        spine.model.answer = "fine"
        await spine.hear(message("$2"))
        assert SECRET in prompt(spine)
        await spine.hear(redaction("$r1", said[0], sender=BOB))
        await spine.hear(message("$3"))
        assert SECRET not in prompt(spine)
        assert await dumped(database_dsn, SECRET) == []


async def test_i2_our_answer_redacted_before_we_heard_of_it_is_forgotten_when_we_do(database_dsn: str) -> None:
    """I2, A6: the reply to our send was lost, the tombstone came first, then our stripped event."""
    async with open_spine(database_dsn, thread_mode="room") as spine:
        await spine.serve()
        spine.model.answer = SECRET
        await spine.hear(message("$1"))
        ((said, wire),) = spine.gateway.visible()
        await spine.rows(
            "UPDATE delivery_outbox SET state = 'claimed', acked_event_id = NULL, acked_at = NULL WHERE stage = 'final'"
        )
        await spine.hear(redaction("$r1", said))
        await spine.hear(redacted(said, sender=ME, transaction_id=wire.txn_id))
        assert await dumped(database_dsn, SECRET) == []


async def test_r25_i2_what_is_redacted_while_it_is_read_is_not_answered_from(database_dsn: str) -> None:
    """R25, I2: the run that had the text in its prompt begins anew without it; one answer is given."""
    async with open_spine(database_dsn, thread_mode="room") as spine:
        await spine.serve()
        await spine.hear(message("$fact", SECRET))
        spine.model.go.clear()
        await spine.hear(message("$question", "what was it"))
        assert SECRET in prompt(spine)
        await spine.hear(redaction("$r1", "$fact"))
        spine.model.go.set()
        await spine.advance(3)
        assert SECRET not in prompt(spine)
        assert spine.finals() == [["$fact"], ["$question"]]


async def test_d9_i2_a_redacted_placeholder_ends_its_turn_without_text(database_dsn: str) -> None:
    """I2, D9: nothing is said into a message that somebody took away."""
    async with open_spine(database_dsn) as spine:
        await spine.serve()
        spine.model.answer = SECRET
        spine.model.go.clear()
        await spine.hear(message("$1"))
        await spine.advance(1)
        assert spine.gateway.stages() == ["initial"]
        (initial,) = await hear_ourselves(spine)
        await spine.hear(redaction("$r1", initial, sender=BOB))
        spine.model.go.set()
        await spine.advance(30)
        assert await spine.outcome("$1") == "redacted"
        assert await spine.rows("SELECT state, outcome FROM turns") == [("closed", "redacted")]
        assert spine.gateway.stages() == ["initial"]
        assert await dumped(database_dsn, SECRET) == []


# ---- what comes back (A4) ----------------------------------------------------------------------------------------
async def _edited_twice(spine: Spine) -> None:
    """$1 shows its second edit; the homeserver has the original and the first one."""
    first = message("$1", "first")
    await spine.hear(first)
    await spine.hear(edit("$e1", "$1", "second"), edit("$e2", "$1", SECRET, ts=3000))
    spine.history.events["$1"] = first
    spine.history.edited["$1"] = [edit("$e1", "$1", "second")]


async def test_a4_redacting_an_edit_brings_back_the_revision_before_it(database_dsn: str) -> None:
    """A4: read again from the homeserver, because older revisions are not kept."""
    async with open_spine(database_dsn) as spine:
        await spine.serve()
        spine.model.go.clear()
        await _edited_twice(spine)
        assert await shown(spine) == {"$1": SECRET}
        await spine.hear(redaction("$r1", "$e2"))
        assert await shown(spine) == {"$1": "second"}
        await spine.hear(redaction("$r2", "$e1"))
        spine.history.edited.clear()
        await spine.advance(1)
        assert await dumped(database_dsn, SECRET) == []


async def test_a4_a_text_to_restore_survives_crashes_and_outages(database_dsn: str) -> None:
    """A4: what is owed stands in the database; a homeserver that is away is asked again."""
    async with open_spine(database_dsn) as spine:
        await spine.serve()
        spine.model.go.clear()
        await _edited_twice(spine)
        spine.history.events["$1"] = MatrixFailure("get_event", MatrixFailureClass.SERVER, status=502)
        await spine.hear(redaction("$r1", "$e2"))
        assert await shown(spine) == {"$1": None}
        await spine.crash()
        await spine.start()
        spine.answer(spine.batch())
        await spine.advance(30)
        assert await shown(spine) == {"$1": None}
        spine.history.events["$1"] = message("$1", "first")
        await spine.advance(61)
        assert await shown(spine) == {"$1": "second"}


async def test_a4_what_is_read_again_never_installs_redacted_text(database_dsn: str) -> None:
    """A4: a server that still shows the redacted edit, bundled too; one that knows nothing leaves it without text."""
    async with open_spine(database_dsn) as spine:
        await spine.serve()
        spine.model.go.clear()
        await _edited_twice(spine)
        late = edit("$e2", "$1", SECRET, ts=3000)
        spine.history.events["$1"] = message("$1", "first") | {"unsigned": {"m.relations": {"m.replace": late}}}
        spine.history.edited["$1"] = [late]
        await spine.hear(redaction("$r1", "$e2"))
        assert await shown(spine) == {"$1": "first"}
        await spine.hear(edit("$e3", "$1", SECRET, ts=4000))
        del spine.history.events["$1"]
        await spine.hear(redaction("$r3", "$e3"))
        assert await shown(spine) == {"$1": None}
        asked = len(spine.history.read)
        await spine.advance(120, step_seconds=10)
        assert len(spine.history.read) == asked, "what the server refuses for good is not asked for again"


async def test_a4_a_message_whose_answered_edit_is_redacted_is_answered_as_it_reads_then(database_dsn: str) -> None:
    """A4, I2: the run that read the edit begins anew."""
    async with open_spine(database_dsn) as spine:
        await spine.serve()
        spine.model.go.clear()
        await spine.hear(message("$1", "first"), edit("$e1", "$1", SECRET))
        spine.history.events["$1"] = message("$1", "first")
        assert SECRET in prompt(spine)
        await spine.hear(redaction("$r1", "$e1"))
        spine.model.go.set()
        await spine.advance(3)
        assert "first" in prompt(spine)
        assert SECRET not in prompt(spine)
        assert spine.finals() == [["$1"]]


async def test_a4_a_source_waits_while_what_it_says_is_being_restored(database_dsn: str) -> None:
    """A4: it is not answered as it read before an edit that still stands; waiting is not counted against it (C2)."""
    async with open_spine(database_dsn) as spine:
        await spine.serve()
        spine.model.go.clear()
        await _edited_twice(spine)
        spine.history.events["$1"] = MatrixFailure("get_event", MatrixFailureClass.SERVER, status=502)
        await spine.hear(redaction("$r1", "$e2"))
        asked = len(spine.model.requests)
        await spine.advance(30)
        assert len(spine.model.requests) == asked
        assert await spine.value("SELECT attempts FROM journal_pending") == 0
        spine.model.go.set()
        spine.history.events["$1"] = message("$1", "first")
        await spine.advance(180, step_seconds=5)
        assert spine.finals() == [["$1"]]
        assert "second" in prompt(spine)


# ---- where redactions come from (A4) -----------------------------------------------------------------------------
@pytest.mark.parametrize("place", ["content", "top"])
async def test_a4_a_redaction_names_its_target_in_content_or_at_the_top(database_dsn: str, place: str) -> None:
    """A4: older rooms carry it at the top; when both are there the content counts."""
    async with open_spine(database_dsn) as spine:
        await spine.serve()
        spine.model.go.clear()
        await spine.hear(message("$1", SECRET), message("$2"))
        made = redaction("$r", "$1")
        if place == "top":
            made |= {"content": {}, "redacts": "$1"}
        else:
            made |= {"redacts": "$2"}
        await spine.hear(made)
        assert await shown(spine) == {"$2": "hello"}
        assert await spine.outcome("$1") == "redacted"


def removal(event_id: str, user: str, membership: str, flag: str) -> Event:
    return member(event_id, user, membership, sender=ALICE, before="join", **{flag: True})


@pytest.mark.parametrize("flag", ["redact_events", "org.matrix.msc4293.redact_events"])
@pytest.mark.parametrize("membership", ["leave", "ban"])
async def test_a4_somebody_removed_with_all_events_leaves_no_text(
    database_dsn: str, membership: str, flag: str
) -> None:
    """A4: MSC4293, what was stored before and what stands in the same response; other rooms and people keep theirs."""
    async with open_spine(database_dsn) as spine:
        await spine.start()
        spine.answer(spine.room_batch(ROOM, OTHER_ROOM))
        await spine.settle()
        spine.model.go.clear()
        await spine.hear(message("$elsewhere", "kept", sender=BOB), room=OTHER_ROOM)
        await spine.hear(message("$b1", f"{SECRET}1", sender=BOB), message("$a", "kept", sender=ALICE))
        await spine.hear(edit("$b2", "$unseen", f"{SECRET}2", sender=BOB))
        await spine.hear(message("$b3", f"{SECRET}3", sender=BOB), removal("$k", BOB, membership, flag))
        assert await dumped(database_dsn, SECRET) == []
        assert await shown(spine) == {"$elsewhere": "kept", "$a": "kept"}
        assert [await spine.outcome(e) for e in ("$b1", "$b3", "$a")] == ["redacted", "redacted", None]


async def test_a4_a_kick_that_redacts_nothing_takes_nothing(database_dsn: str) -> None:
    """A4: nor does somebody who leaves by themselves with the flag set."""
    async with open_spine(database_dsn) as spine:
        await spine.serve()
        spine.model.go.clear()
        await spine.hear(message("$b1", "kept", sender=BOB), member("$k", BOB, "leave", sender=ALICE, before="join"))
        await spine.hear(member("$k2", BOB, "leave", sender=BOB, redact_events=True))
        assert await shown(spine) == {"$b1": "kept"}


@pytest.mark.parametrize("how", ["redaction", "with all events"])
async def test_a4_redactions_of_a_room_that_we_leave_count(database_dsn: str, how: str) -> None:
    """A4, F2: in rooms.leave, our own words as well."""
    async with open_spine(database_dsn) as spine:
        await spine.serve()
        spine.model.answer = SECRET
        await spine.hear(message("$1"))
        said = await hear_ourselves(spine)
        leave: list[Any] = [redaction("$r1", said[0]), member("$k", ME, "leave", sender=ALICE, before="join")]
        if how == "with all events":
            leave = [removal("$k", ME, "ban", "redact_events")]
        spine.answer(spine.batch(leave={ROOM: left_room(leave)}))
        await spine.settle()
        assert await dumped(database_dsn, SECRET) == []


async def test_a4_a_removal_found_in_a_gap_takes_what_was_said_before_it(database_dsn: str) -> None:
    """A4: not what the same person said after coming back."""
    async with open_spine(database_dsn) as spine:
        await spine.serve()
        spine.model.go.clear()
        await spine.hear(message("$before", SECRET, sender=BOB))
        spine.history.open.set()
        gap = [removal("$k", BOB, "leave", "redact_events")]
        spine.history.pages.append(HistoryPage(gap, None))
        limited = joined_room([message("$after", "back", sender=BOB)], limited=True, prev_batch="p9")
        spine.answer(spine.batch((ROOM, limited)))
        await spine.settle()
        await spine.advance(3)
        assert await shown(spine) == {"$after": "back"}
        assert await dumped(database_dsn, SECRET) == []
