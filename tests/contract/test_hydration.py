"""Earlier messages, read when a decision or a prompt needs them: bounded, once, and never as work (A12, A14)."""

from collections.abc import Sequence

from mindroom.core.content import LONG_TEXT_ATTACHED, LONG_TEXT_KEY
from mindroom.core.errors import MatrixFailure, MatrixFailureClass
from mindroom.core.ids import SyncToken
from mindroom.core.ports import HistoryPage
from tests.support.events import (
    ALICE,
    BOB,
    ME,
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
    state,
)
from tests.support.spine import Spine, open_spine

ROOT = "$root"
NETWORK = MatrixFailure("relations", MatrixFailureClass.NETWORK)
UNKNOWN = MatrixFailure("relations", MatrixFailureClass.BAD_REQUEST, status=400, errcode="M_UNKNOWN")


def page(*newest_first: Event, end: str | None = None) -> HistoryPage:
    return HistoryPage(newest_first, SyncToken(end) if end else None)


def old_thread(spine: Spine, *newest_first: Event) -> None:
    """A thread that stood in the room before we came."""
    spine.history.events[ROOT] = message(ROOT, "the root said so")
    spine.history.threads.append(page(*newest_first))


def prompt(spine: Spine, number: int = -1) -> str:
    return "\n".join(m.text for m in spine.model.requests[number].messages)


def in_order(text: str, *words: str) -> bool:
    places = [text.find(word) for word in words]
    return -1 not in places and places == sorted(places)


async def reach(spine: Spine) -> list[tuple[object, ...]]:
    return await spine.rows("SELECT thread_id, state, page, attempts FROM conversation_hydration")


async def served(spine: Spine, *, also: Sequence[Event] = ()) -> None:
    await spine.start()
    spine.answer(spine.room_batch(also=also))
    await spine.settle()


async def test_r22_a_thread_that_is_older_than_our_stay_is_read_before_it_is_answered(database_dsn: str) -> None:
    """R22, A12: the reply stands in the thread of a root never heard, and the prompt holds what was said there."""
    async with open_spine(database_dsn) as spine:
        await spine.serve()
        spine.history.events[ROOT] = message(ROOT, "the root said so")
        spine.history.threads.append(page(message("$t2", "then this", thread=ROOT), end="older"))
        spine.history.threads.append(page(message("$t1", "first that", thread=ROOT)))
        await spine.hear(message("$ask", "what was it?", thread=ROOT))
        await spine.advance(1)
        assert spine.finals() == [["$ask"]]
        assert {wire.content["m.relates_to"]["event_id"] for _, wire in spine.gateway.visible()} == {ROOT}
        assert in_order(prompt(spine), "the root said so", "first that", "then this", "what was it?")
        assert await spine.value("SELECT count(*) FROM journal_receipts WHERE event_id LIKE '$t%'") == 0
        assert await spine.value("SELECT count(*) FROM journal_pending") == 0
        await spine.hear(message("$more", "go on", thread=ROOT))
        await spine.advance(1)
        assert spine.history.read == [ROOT, f"thread {ROOT}", f"thread {ROOT}"]
        assert in_order(prompt(spine), "the root said so", "then this", "what was it?", "go on")


async def test_a12_what_was_read_for_a_prompt_is_still_work_when_its_gap_is_walked(database_dsn: str) -> None:
    """A12: a message that waits in an open gap is in the prompt, then recovered, answered once, in its place."""
    async with open_spine(database_dsn, thread_mode="room") as spine:
        await spine.serve()
        await spine.hear(message("$before", "before the gap"))
        await spine.advance(1)
        limited = joined_room([message("$new", "after the gap")], limited=True, prev_batch="p9")
        spine.history.rooms.append(
            page(message("$new", "after the gap"), message("$lost", "in the gap"), message("$before", "before the gap"))
        )
        spine.history.open.set()
        spine.history.pages.extend([NETWORK] * 12)
        spine.history.pages.append(page(message("$lost", "in the gap")))
        spine.answer(spine.batch((ROOM, limited)))
        await spine.settle()
        await spine.advance(125, step_seconds=5)
        assert spine.finals() == [["$before"], ["$new"]]
        assert in_order(prompt(spine), "before the gap", "in the gap", "after the gap")
        assert await spine.outcome("$lost") is None
        await spine.advance(900, step_seconds=10)
        assert spine.finals() == [["$before"], ["$new"], ["$lost"]]
        rows = await spine.rows(
            "SELECT event_id FROM visible_messages JOIN journal_receipts USING (principal, event_id, base, page, idx)"
            " ORDER BY base, page, idx"
        )
        assert [row[0] for row in rows] == ["$before", "$lost", "$new"]
        await spine.hear(message("$last", "at last"))
        await spine.advance(1)
        assert in_order(prompt(spine), "before the gap", "in the gap", "after the gap", "at last")


async def test_a12_a_receipt_with_its_edit_takes_the_place_of_a_message_read_before(database_dsn: str) -> None:
    """A12: also when something in the batch refers to it."""
    async with open_spine(database_dsn, thread_mode="room") as spine:
        await served(spine)
        spine.history.rooms.append(page(message("$late", "hi"), message("$old", "older")))
        await spine.hear(message("$ask"))
        await spine.advance(1)
        assert await spine.value("SELECT base FROM visible_messages WHERE event_id = '$late'") == 0
        await spine.hear(message("$late", "hi"), edit("$edit", "$late", "hi again"))
        await spine.advance(1)
        row = "SELECT v.base = r.base AND v.content->>'body' = 'hi again' FROM visible_messages v"
        assert await spine.value(f"{row} JOIN journal_receipts r USING (event_id) WHERE event_id = '$late'")


async def test_r25_a_redacted_message_of_a_page_is_in_no_prompt(database_dsn: str) -> None:
    """R25, A4, A12: stripped, redacted later in the page, or buried before: its text never comes back; edits count."""
    async with open_spine(database_dsn) as spine:
        await spine.serve()
        await spine.hear(redaction("$r0", "$buried"))
        old_thread(
            spine,
            redaction("$r1", "$taken"),
            edit("$e2", "$kept", "kept and changed"),
            edit("$e1", "$gone", "an edit of nothing"),
            message("$kept", "as it was", thread=ROOT),
            message("$taken", "taken back", thread=ROOT),
            redacted("$gone"),
            message("$buried", "buried long ago", thread=ROOT),
        )
        await spine.hear(message("$ask", "well?", thread=ROOT))
        await spine.advance(1)
        assert spine.finals() == [["$ask"]]
        said = prompt(spine)
        assert "kept and changed" in said
        for text in ("as it was", "an edit of nothing", "taken back", "buried long ago"):
            assert text not in said
        assert await spine.value("SELECT count(*) FROM unresolved_edits") == 0


async def test_a4_a_page_that_redacts_a_waiting_message_ends_it(database_dsn: str) -> None:
    """A4, A12: the tombstone and the end of what was owed are one commit, whoever read the redaction first."""
    async with open_spine(database_dsn) as spine:
        await spine.serve()
        spine.model.go.clear()
        await spine.hear(message("$first", "first"))
        await spine.hear(message("$waits", "waits", thread="$first"))
        old_thread(spine, redaction("$r", "$waits"))
        await spine.hear(message("$ask", thread=ROOT, sender=BOB))
        assert await spine.outcome("$waits") == "redacted"
        spine.model.go.set()


async def test_a12_an_answer_waits_a_bounded_time_for_history_and_goes_on_without(database_dsn: str) -> None:
    """A12: a homeserver that fails, then one that never answers; both counted, later tried again."""
    async with open_spine(database_dsn) as spine:
        await spine.serve()
        spine.history.events[ROOT] = NETWORK
        await spine.hear(message("$ask", thread=ROOT))
        assert spine.finals() == []
        await spine.advance(11)
        assert spine.finals() == [["$ask"]]
        assert await reach(spine) == [(ROOT, "partial", 0, 1)]
        await spine.advance(10)
        spine.history.readable.clear()
        await spine.hear(message("$again", thread=ROOT))
        await spine.advance(9)
        assert len(spine.finals()) == 1
        await spine.advance(2)
        assert spine.finals() == [["$ask"], ["$again"]]
        assert spine.metrics.hydrations.labels("failed")._value.get() == 2
        spine.history.readable.set()
        old_thread(spine, message("$t1", "now it is there", thread=ROOT))
        await spine.advance(60, step_seconds=5)
        await spine.hear(message("$third", thread=ROOT))
        await spine.advance(1)
        assert "now it is there" in prompt(spine)
        assert await reach(spine) == [(ROOT, "complete", 1, 0)]


async def test_a12_a_page_whose_commit_is_lost_is_read_again(database_dsn: str) -> None:
    """A12, A1: rows and cursor are there together or not at all; the source waits for the database."""
    async with open_spine(database_dsn) as spine:
        await spine.serve()
        old_thread(spine, message("$t1", "it was said", thread=ROOT))
        old_thread(spine, message("$t1", "it was said", thread=ROOT))
        spine.database.outage = lambda name: name == "hydrate_chunk"
        await spine.hear(message("$ask", thread=ROOT))
        assert await reach(spine) == []
        assert await spine.value("SELECT count(*) FROM visible_messages WHERE event_id = '$t1'") == 0
        assert await spine.outcome("$ask") is None
        await spine.crash()
        spine.database.outage = lambda _name: False
        await spine.start()
        spine.answer(spine.batch())
        await spine.advance(3)
        assert spine.finals() == [["$ask"]]
        assert "it was said" in prompt(spine)


async def test_a12_a_root_that_the_homeserver_does_not_show_is_complete_with_nothing(database_dsn: str) -> None:
    """A12: 400, 403 and 404 say the same: nothing there is ours to read."""
    async with open_spine(database_dsn) as spine:
        await spine.serve()
        await spine.hear(message("$ask", thread="$nowhere"))
        await spine.advance(1)
        spine.history.events[ROOT] = message(ROOT)
        spine.history.threads.append(UNKNOWN)
        await spine.hear(message("$other", thread=ROOT))
        await spine.advance(1)
        assert spine.finals() == [["$ask"], ["$other"]]
        assert sorted(await reach(spine)) == [("$nowhere", "complete", 1, 0), (ROOT, "complete", 1, 0)]


async def test_two_people_in_an_old_thread_are_left_alone_also_after_a_restart(database_dsn: str) -> None:
    """A12, R22: who spoke before we came decides, and the facts outlive the process without being read again."""
    async with open_spine(database_dsn) as spine:
        await spine.serve()
        old_thread(spine, message("$t1", "bob was here", thread=ROOT, sender=BOB))
        await spine.hear(message("$ask", thread=ROOT))
        assert await spine.outcome("$ask") == "ignored.not_addressed"
        await spine.crash()
        await spine.start()
        spine.answer(spine.batch())
        await spine.settle()
        await spine.hear(message("$again", thread=ROOT))
        assert await spine.outcome("$again") == "ignored.not_addressed"
        assert spine.history.read == [ROOT, f"thread {ROOT}"]


async def test_a12_many_who_need_a_conversation_share_one_reader(database_dsn: str) -> None:
    """A12: single flight."""
    async with open_spine(database_dsn) as spine:
        await spine.serve()
        spine.history.readable.clear()
        old_thread(spine)
        await spine.hear(message("$a", thread=ROOT), message("$b", thread=ROOT, sender=BOB))
        spine.history.readable.set()
        await spine.settle()
        await spine.advance(1)
        assert spine.history.read == [ROOT, f"thread {ROOT}"]
        assert await spine.value("SELECT count(*) FROM journal_pending") == 0


async def test_a12_reading_is_bounded_and_goes_on_at_a_later_need(database_dsn: str) -> None:
    """A12: five pages at once, the rest after a pause; nothing is read again once the start is reached."""
    async with open_spine(database_dsn, thread_mode="room") as spine:
        await served(spine)
        pages = [page(message(f"$old{n}", f"text {n}."), end=f"room{n}") for n in range(7)]
        spine.history.rooms.extend([*pages, page(message("$oldest", "the oldest"))])
        await spine.hear(message("$ask"))
        await spine.advance(1)
        assert (spine.history.read, await reach(spine)) == (["room"] * 5, [("", "partial", 5, 0)])
        await spine.hear(message("$soon"))
        await spine.advance(61, step_seconds=5)
        assert len(spine.history.read) == 5
        await spine.hear(message("$later"))
        await spine.advance(1)
        assert await reach(spine) == [("", "complete", 8, 0)]
        assert in_order(prompt(spine), "the oldest", "text 6.", "text 5.", "text 0.", "hello")
        await spine.hear(message("$last"))
        await spine.advance(1)
        assert len(spine.history.read) == 8


async def test_a12_history_stops_at_our_join_where_only_members_may_read(database_dsn: str) -> None:
    """A12: with visibility `joined` nothing before our time is asked for; with `shared` it is."""
    async with open_spine(database_dsn, thread_mode="room") as spine:
        await served(spine, also=[state("$v", "m.room.history_visibility", {"history_visibility": "joined"})])
        spine.history.rooms.append(page(member("$in", ME, "join"), end="room1"))
        await spine.hear(message("$ask"))
        await spine.advance(1)
        assert (spine.history.read, await reach(spine)) == (["room"], [("", "complete", 1, 0)])


async def test_b2_f2_a_gap_and_a_departure_withdraw_what_was_complete(database_dsn: str) -> None:
    """A12, B2, F2: after either the conversation is read anew; a page of the stay before is refused."""
    async with open_spine(database_dsn) as spine:
        await spine.serve()
        old_thread(spine)
        await spine.hear(message("$ask", thread=ROOT))
        await spine.advance(1)
        assert await reach(spine) == [(ROOT, "complete", 1, 0)]
        spine.history.open.set()
        spine.history.pages.append(page())
        spine.answer(spine.batch((ROOM, joined_room([message("$b", thread=ROOT)], limited=True, prev_batch="p9"))))
        await spine.settle()
        await spine.advance(2)
        assert spine.history.read.count(f"thread {ROOT}") == 2
        spine.history.readable.clear()
        await spine.hear(message("$c", thread="$other"))
        spine.answer(spine.batch(leave={ROOM: left_room([member("$out", ME, "leave")])}))
        await spine.settle()
        assert await reach(spine) == []
        spine.history.events["$other"] = message("$other", "of the stay before")
        spine.history.readable.set()
        await spine.settle()
        await spine.advance(1)
        assert await reach(spine) == []
        assert await spine.value("SELECT count(*) FROM visible_messages") == 0


async def test_a12_a_page_asked_for_before_a_gap_was_found_is_refused(database_dsn: str) -> None:
    """A12, B2: it may lack what the gap holds, so the conversation is not complete with it."""
    async with open_spine(database_dsn) as spine:
        await spine.serve()
        spine.history.readable.clear()
        old_thread(spine)
        await spine.hear(message("$ask", thread=ROOT))
        spine.answer(spine.batch((ROOM, joined_room([message("$b")], limited=True, prev_batch="p9"))))
        await spine.settle()
        spine.history.readable.set()
        await spine.settle()
        assert spine.history.read == [ROOT, f"thread {ROOT}"] * 2, "the first page is refused, the next is another"


async def test_a12_of_an_encrypted_room_nothing_is_read(database_dsn: str) -> None:
    """A12, E10."""
    async with open_spine(database_dsn) as spine:
        await served(spine, also=[state("$enc", "m.room.encryption", {"algorithm": "m.megolm.v1.aes-sha2"})])
        await spine.hear(message("$ask", thread=ROOT))
        await spine.advance(1)
        assert spine.history.read == []


async def test_a_thread_heard_from_its_root_on_is_never_read(database_dsn: str) -> None:
    """A12: the common case costs no request."""
    async with open_spine(database_dsn) as spine:
        await spine.serve()
        await spine.hear(message("$top"))
        await spine.advance(1)
        await spine.hear(message("$next", thread="$top"))
        await spine.advance(1)
        assert spine.finals() == [["$top"], ["$next"]]
        assert spine.history.read == []


async def test_a_plain_reply_to_a_message_never_heard_stands_in_its_thread(database_dsn: str) -> None:
    """R22: the message replied to is asked for, and so is its thread."""
    async with open_spine(database_dsn) as spine:
        await spine.serve()
        old_thread(spine, message("$t1", "in the thread", thread=ROOT))
        spine.history.events["$t1"] = message("$t1", "in the thread", thread=ROOT)
        reply = {"msgtype": "m.text", "body": "and?", "m.relates_to": {"m.in_reply_to": {"event_id": "$t1"}}}
        await spine.hear(event("$ask", sender=ALICE, content=reply | {"m.mentions": {"user_ids": [ME]}}))
        await spine.advance(1)
        assert {wire.content["m.relates_to"]["event_id"] for _, wire in spine.gateway.visible()} == {ROOT}
        assert in_order(prompt(spine), "the root said so", "in the thread", "and?")


async def test_a14_a_preview_is_neither_stored_nor_shown_to_the_model(database_dsn: str) -> None:
    """A14: heard, edited or read from history; the prompt says that a longer text was attached."""
    async with open_spine(database_dsn) as spine:
        await spine.serve()
        long_one, revised = message("$long", "only the beginning"), edit("$e", "$t1", "a revised beginning")
        long_one["content"][LONG_TEXT_KEY] = revised["content"]["m.new_content"][LONG_TEXT_KEY] = {"version": 1}
        old = message("$t2", "an old beginning", thread=ROOT)
        old["content"][LONG_TEXT_KEY] = {}
        old_thread(spine, revised, old, message("$t1", "short", thread=ROOT))
        await spine.hear(long_one, message("$ask", thread=ROOT))
        await spine.advance(1)
        assert sorted(spine.finals()) == [["$ask"], ["$long"]]
        told = prompt(spine, 0) + prompt(spine, 1)
        assert told.count(LONG_TEXT_ATTACHED) == 3
        assert "beginning" not in told
        assert await spine.value("SELECT count(*) FROM visible_messages WHERE content->>'body' LIKE '%beginning%'") == 0
