"""What a person must have seen, and what the database must say afterwards. The audit is the product's own (K4)."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import asyncpg

from mindroom.ops.audit import audit_snapshot
from tests.support.matrix_human import Event, VisibleMessage, visible

WORKING = "⋯"
"""How a placeholder, or a text that still grows, ends."""


class Breach(StrEnum):
    """How a promise can be broken."""

    LOST = "lost"
    DOUBLED = "doubled"
    STRAY = "stray"
    AUDIT = "audit"


@dataclass(frozen=True, slots=True)
class Finding:
    """One broken promise, with what was seen."""

    breach: Breach
    text: str


@dataclass(frozen=True, slots=True)
class Source:
    """A message that was written, and the answer that it must have; None when it must have none."""

    room: str
    event_id: str
    answer: str | None
    is_cut_off: bool = False
    """The agent was thrown out while it answered: what stood then still stands."""


def is_answered(source: Source, events: Iterable[Event], *, agent: str) -> bool:
    """Whether the room shows what the source must have."""
    shown = [message for message in _answers(visible(events), source, agent) if not message.redacted]
    if source.answer is None:
        return source.is_cut_off or not shown
    return any(message.body == source.answer for message in shown)


def judge(sources: Sequence[Source], events: Sequence[Event], *, agent: str) -> list[Finding]:
    """Everything wrong in one room: exactly one answer for each source, nothing left over, nothing said twice."""
    messages = visible(events)
    findings = [finding for source in sources for finding in _judge_source(source, messages, agent)]
    known = {source.event_id for source in sources}
    findings += [
        Finding(Breach.STRAY, f"answers nothing that was asked: {message.body[:80]!r}")
        for message in messages
        if message.sender == agent and not message.redacted and _answered_event(message) not in known
    ]
    return findings + _said_twice(events, agent)


def _judge_source(source: Source, messages: Sequence[VisibleMessage], agent: str) -> list[Finding]:
    shown = [message for message in _answers(messages, source, agent) if not message.redacted]
    growing = [message for message in shown if message.body.endswith(WORKING)]
    finished = [message for message in shown if message not in growing]
    findings = [
        Finding(Breach.STRAY, f"placeholder left: {message.body[:80]!r}")
        for message in growing
        if not source.is_cut_off
    ]
    if source.answer is None:
        return findings + [Finding(Breach.STRAY, f"answered all the same: {m.body[:80]!r}") for m in finished]
    if len(finished) > 1:
        findings.append(Finding(Breach.DOUBLED, f"{len(finished)} answers to {source.event_id}"))
    if not any(message.body == source.answer for message in finished):
        seen = [message.body[:80] for message in shown]
        findings.append(Finding(Breach.LOST, f"no right answer to {source.event_id}; shown: {seen}"))
    return findings


def _answers(messages: Iterable[VisibleMessage], source: Source, agent: str) -> list[VisibleMessage]:
    return [m for m in messages if m.sender == agent and _answered_event(m) == source.event_id]


def _answered_event(message: VisibleMessage) -> str | None:
    if message.thread is not None:
        return message.thread
    sources = message.content.get("io.mindroom.delivery", {}).get("sources", [])
    return sources[-1] if sources else None


def _said_twice(events: Iterable[Event], agent: str) -> list[Finding]:
    """An edit repeated is one message to the eye, yet one delivery must be one event at each end of its life (E2)."""
    said: Counter[tuple[str, str]] = Counter()
    for event in events:
        marker = event["content"].get("io.mindroom.delivery")
        if event["sender"] == agent and isinstance(marker, dict) and marker.get("stage") in ("initial", "final"):
            said[str(marker.get("delivery")), marker["stage"]] += 1
    return [
        Finding(Breach.DOUBLED, f"{stage} of delivery {delivery} was sent {times} times")
        for (delivery, stage), times in said.items()
        if times > 1
    ]


# ---- the database ----------------------------------------------------------------------------------------------------
_UNFINISHED = """
SELECT (SELECT count(*) FROM journal_pending) AS pending,
       (SELECT count(*) FROM turns WHERE state = 'open') AS open_turns,
       (SELECT count(*) FROM delivery_outbox WHERE state IN ('queued', 'claimed')) AS unsent,
       (SELECT count(*) FROM room_history_recovery WHERE state = 'repairable') AS gaps
"""
_AUDITS = {
    "an answered source without a final that was said (D3)": """
        SELECT r.event_id FROM journal_settlements s JOIN journal_receipts r USING (receipt)
        WHERE s.outcome = 'answered' AND NOT EXISTS (
            SELECT 1 FROM delivery_outbox o
            WHERE o.turn_id = s.turn_id AND o.stage = 'final' AND o.state = 'acked')""",
    "a delivery that failed": """
        SELECT delivery_id::text || ' ' || last_error FROM delivery_outbox WHERE state = 'failed'""",
    "a settlement of work that is neither answered, ignored nor withdrawn": """
        SELECT r.event_id || ' ' || s.outcome FROM journal_settlements s JOIN journal_receipts r USING (receipt)
        WHERE s.outcome NOT IN ('answered', 'redacted', 'departed') AND s.outcome NOT LIKE 'ignored.%'""",
}
"""What must hold besides once nothing is owed; what must always hold is `mindroom audit` (K4)."""


async def unfinished(connection: Any) -> dict[str, int]:
    """What is still owed: empty when nothing is."""
    row: asyncpg.Record = await connection.fetchrow(_UNFINISHED)
    return {name: number for name, number in row.items() if number}


async def audit(connection: Any) -> list[Finding]:
    """Rules that the ledgers must keep together, at any moment and once nothing is owed."""
    findings = [
        Finding(Breach.AUDIT, f"{broken.rule}: {', '.join(broken.subjects)}")
        for broken in await audit_snapshot(connection)
    ]
    for rule, query in _AUDITS.items():
        rows = await connection.fetch(query)
        findings += [Finding(Breach.AUDIT, f"{rule}: {row[0]}") for row in rows]
    return findings
