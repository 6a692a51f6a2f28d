"""K1: a broken promise is noticed. What the oracle is fed here must never come out of the program."""

import pytest

from mindroom.core.faults import Fault
from tests.faults.cases import DEFAULT, EVERYTHING, Case, Passage, Scenario, Scope, cases_of, has_fired, read_record
from tests.faults.driver import Outcome
from tests.faults.oracle import WORKING, Breach, Finding, Source, is_answered, judge
from tests.faults.report import last_line, never_struck, table
from tests.support.matrix_human import Event

AGENT = "@mindroom_f0:localhost"
ASKED = Source("!room", "$asked", "echo: tok-1")
WITHDRAWN = Source("!room", "$asked", None)
CASE = Case(Scenario.ANSWER, "tx.hand_off", "after", 1, Fault.KILL)


def said(event_id: str, body: str, *, delivery: str = "d1", stage: str = "final", thread: str = "$asked") -> Event:
    content = {
        "msgtype": "m.text",
        "body": body,
        "io.mindroom.delivery": {"delivery": delivery, "stage": stage},
        "m.relates_to": {"rel_type": "m.thread", "event_id": thread},
    }
    return {"event_id": event_id, "sender": AGENT, "type": "m.room.message", "content": content}


def edited(event_id: str, target: str, body: str, *, delivery: str = "d1", stage: str = "final") -> Event:
    event = said(event_id, body, delivery=delivery, stage=stage)
    event["content"]["m.new_content"] = {"msgtype": "m.text", "body": body}
    event["content"]["m.relates_to"] = {"rel_type": "m.replace", "event_id": target}
    return event


def redacted(target: str) -> Event:
    return {
        "event_id": f"$r-{target}",
        "sender": AGENT,
        "type": "m.room.redaction",
        "content": {"redacts": target},
    }


def breaches(source: Source, *events: Event) -> list[Breach]:
    return [finding.breach for finding in judge([source], events, agent=AGENT)]


def test_one_answer_that_grew_out_of_its_placeholder_is_good() -> None:
    events = [said("$1", WORKING, stage="initial"), edited("$2", "$1", "echo: tok-1")]
    assert breaches(ASKED, *events) == []
    assert is_answered(ASKED, events, agent=AGENT)


def test_a_second_answer_is_noticed() -> None:
    assert Breach.DOUBLED in breaches(ASKED, said("$1", "echo: tok-1"), said("$2", "echo: tok-1", delivery="d2"))


def test_a_final_that_was_sent_twice_is_noticed_though_the_room_shows_one_text() -> None:
    """E2: at most one event a delivery and stage."""
    events = [
        said("$1", WORKING, stage="initial"),
        edited("$2", "$1", "echo: tok-1"),
        edited("$3", "$1", "echo: tok-1"),
    ]
    assert breaches(ASKED, *events) == [Breach.DOUBLED]


@pytest.mark.parametrize("events", [[], [said("$1", "something else")]])
def test_a_missing_and_a_wrong_answer_are_noticed(events: list[Event]) -> None:
    assert breaches(ASKED, *events) == [Breach.LOST]
    assert not is_answered(ASKED, events, agent=AGENT)


def test_a_placeholder_left_beside_the_answer_is_noticed() -> None:
    events = [said("$1", f"echo {WORKING}", stage="initial"), said("$2", "echo: tok-1")]
    assert breaches(ASKED, *events) == [Breach.STRAY]


def test_an_answer_to_nothing_is_noticed() -> None:
    events = [said("$1", "echo: tok-1"), said("$2", "hello", delivery="d2", thread="$other")]
    assert breaches(ASKED, *events) == [Breach.STRAY]


def test_a_withdrawn_message_must_have_no_answer_and_no_placeholder() -> None:
    assert breaches(WITHDRAWN, said("$1", WORKING, stage="initial"), redacted("$1")) == []
    assert breaches(WITHDRAWN, said("$1", WORKING, stage="initial")) == [Breach.STRAY]
    assert breaches(WITHDRAWN, said("$1", "echo: tok-1")) == [Breach.STRAY]


def test_a_case_is_written_and_read_the_same() -> None:
    assert str(CASE) == "answer:tx.hand_off:after:1:kill"
    assert Case.parse(str(CASE)) == CASE


def test_a_record_tells_hits_up_to_the_end_of_the_scene_and_the_strike() -> None:
    text = "tx.admit before 1\nscene ends\nhs.send before 1\nfired\nhs.se"
    assert read_record(text, whole=False) == [Passage("tx.admit", "before")]
    assert read_record(text) == [Passage("tx.admit", "before"), Passage("hs.send", "before")]
    assert has_fired(text)


def test_every_fault_is_planned_for_each_hit_and_polling_points_once() -> None:
    passages = [Passage("hs.send", "before")] * 5 + [Passage("tx.lease.renew", "before")] * 9
    cases = cases_of(Scenario.ANSWER, passages, scope=EVERYTHING[Scenario.ANSWER])
    assert len(cases) == 3 * 4 + 1 * 5
    narrow = cases_of(Scenario.ANSWER, passages, scope=Scope(max_hits=1, only=frozenset({"hs.send"})))
    assert {case.hit_number for case in narrow} == {1}
    assert DEFAULT.keys() == EVERYTHING.keys() == set(Scenario)


def test_the_last_line_counts_runs_that_struck_and_every_breach() -> None:
    good = Outcome(CASE, 1.0, struck=True)
    idle = Outcome(Case.parse("answer:hs.send:before:3:error"), 1.0, struck=False)
    bad = Outcome(CASE, 1.0, struck=True, findings=(Finding(Breach.DOUBLED, "2 answers"),))
    assert last_line([good, idle]) == "points 1 runs 1 lost 0 doubled 0 stray 0"
    assert last_line([good, bad]) == "points 1 runs 2 lost 0 doubled 1 stray 0"
    assert never_struck([good, idle, bad]) == [idle]
    assert "1/2" in table([good, bad])
