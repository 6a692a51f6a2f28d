"""Explain: the story of one event across the three ledgers, as facts and in words. Reads only, never a message (I2)."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mindroom.core.errors import UserError
from mindroom.db.sql import load
from mindroom.ops.session import reading

SQL = load("mindroom.ops", "explain.sql")
_OUR_ID = re.compile(r"[0-9a-f][0-9a-f-]{5,35}", re.IGNORECASE)
"""A turn or delivery id, its beginning, or the reference of a notice, which is its end."""

Row = Mapping[str, object]

SILENCES = {
    "own": "it is the agent's own",
    "notice": "it is a notice, and notices are never answered",
    "unsupported": "the agent cannot read this kind of message",
    "unauthorized": "its sender may not use the agents",
    "other_mentioned": "it mentions somebody else",
    "several_candidates": "several agents could answer and none was named",
    "not_addressed": "it is not addressed to the agent",
    "late": "it was written long before the last sync that preceded it",
    "encrypted": "it is encrypted and cannot be read",
    "empty": "it holds no text",
}
"""Why an agent kept silent, for each reason of an ignored source."""


@dataclass(frozen=True, slots=True)
class Story:
    """What the ledgers hold about one event, turn or delivery."""

    subject: str
    heard: tuple[Row, ...]
    turns: tuple[Row, ...]
    deliveries: tuple[Row, ...]

    @property
    def sentences(self) -> list[str]:
        """The story in order, one sentence a fact."""
        told = [sentence for row in self.heard for sentence in _heard(row)]
        said = [row for row in self.deliveries if row["turn_id"] is None]
        for turn in self.turns:
            told.append(_turn(turn))
            told += [_delivery(row) for row in self.deliveries if row["turn_id"] == turn["turn_id"]]
        return told + [_delivery(row) for row in said]


async def explain(dsn: str, subject: str) -> Story:
    """The story of an event id, of a turn or delivery id or its beginning (6 characters at least), or of a reference.

    Raises UserError when nothing is known of it, or the schema is not the expected one; DatabaseUnavailable when the
    database cannot be read.
    """
    ours = bool(_OUR_ID.fullmatch(subject))
    async with reading(dsn) as connection:
        heard = await connection.fetch(SQL["heard"], subject)
        turns = await connection.fetch(SQL["turns"], subject, ours)
        known = [turn["turn_id"] for turn in turns]
        deliveries = await connection.fetch(SQL["deliveries"], subject, ours, known)
    if not (heard or turns or deliveries):
        raise UserError(
            f"Nothing is known of {subject}: no agent was shown an event with this id, and no turn or delivery has it. "
            "An event id begins with $, a reference has at least 6 characters."
        )
    return Story(subject, *(tuple(dict(row) for row in rows) for rows in (heard, turns, deliveries)))


def _heard(row: Row) -> Sequence[str]:
    place = f"thread {row['thread_id']} of {row['room_id']}" if row["thread_id"] else str(row["room_id"])
    how = {"live": "as it came", "recovered": "from a gap", "history": "as history"}[str(row["class"])]
    sentences = [f"{row['principal']} heard it {how}: {row['kind']} of {row['sender']} in {place}."]
    if row["redacted"]:
        sentences.append("It was redacted; its text is gone.")
    return [*sentences, _outcome(row)]


def _outcome(row: Row) -> str:
    who, outcome = row["principal"], row["outcome"]
    if row["state"] == "parked":
        return (
            f"{who} gave up after {row['attempts']} attempts of which the last ended with {row['last_error']}; "
            "it is parked, and `mindroom journal retry` has it tried again."
        )
    if row["state"] == "pending":
        waits = " The room waits for a gap." if row["gap_open"] else ""
        if row["last_error"]:
            return (
                f"{who} still owes an answer after {row['attempts']} counted attempts; the last ended with "
                f"{row['last_error']}, the next is due at {row['next_attempt_at']}.{waits}"
            )
        return f"{who} still owes an answer.{waits}"
    if outcome is None:
        return f"{who} keeps it as context only; it asks for nothing."
    if str(outcome).startswith("ignored."):
        reason = str(outcome).removeprefix("ignored.")
        return f"{who} kept silent: {SILENCES.get(reason, reason)} ({outcome})."
    return f"{who} settled it as {outcome} at {row['settled_at']}."


def _turn(row: Row) -> str:
    sources = row["sources"]
    count = len(sources) if isinstance(sources, list) else 0
    begun = (
        f"Turn {row['turn_id']} of {row['principal']} ({row['reason']}) answers {count} message(s) of "
        f"{row['requester']} with {row['model']}, generation {row['generation']}"
    )
    if row["state"] != "closed":
        return f"{begun}; {row['state']} since {row['opened_at']}, {row['steps']} model step(s) done."
    tokens = f", {row['input_tokens']} tokens in and {row['output_tokens']} out" if row["input_tokens"] else ""
    return f"{begun}; {row['outcome']} after {row['seconds']:.1f} s{tokens}."


def _delivery(row: Row) -> str:
    what = {"initial": "placeholder", "final": str(row["purpose"])}.get(str(row["stage"]), str(row["stage"]))
    state = {
        "queued": "waits to be sent",
        "claimed": "was taken up and its fate is not known yet",
        "acked": f"stands in the room as {row['acked_event_id']}",
        "retired": "was not needed any more",
        "failed": "could not be said",
    }[str(row["state"])]
    error = f" ({row['last_error']})" if row["last_error"] else ""
    return f"Its {what} {state}{error}; {row['attempts']} attempt(s)."
