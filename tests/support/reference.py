"""A naive model of what a room shows: it keeps everything and computes the answer from scratch (K3).

It shares nothing with the reducer, whose bounded storage must come to the same result.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

from mindroom.core.ids import Epoch, EventId, UserId
from mindroom.journal.records import Edit, Original, ProjectionChange, Redaction, Refetched, Revision
from tests.support.events import ALICE, BOB, ROOM

ORIGINALS = [EventId(f"$o{n}") for n in range(3)]
EDITS = [EventId(f"$e{n}") for n in range(6)]
SENDERS = [ALICE, BOB]


@dataclass(frozen=True)
class Visible:
    """Texts that may be shown for one message; None stands for "no text"."""

    texts: frozenset[str | None]


def original(
    event_id: EventId, *, sender: UserId = ALICE, ts: int = 1, body: str | None = "", thread: str = ""
) -> Original:
    """A message; `body` None is an INITIAL, '' the message's own id."""
    text = event_id if body == "" else body
    content = None if text is None else {"body": text}
    return Original(ROOM, event_id, EventId(thread), sender, Epoch(1), content, None, Revision(ts, event_id), None)


def edit(event_id: EventId, target: EventId, *, sender: UserId = ALICE, ts: int = 2) -> Edit:
    """An edit whose text is its own id."""
    return Edit(ROOM, target, sender, Epoch(1), {"body": event_id}, Revision(ts, event_id))


def redaction(target: EventId) -> Redaction:
    """A redaction."""
    return Redaction(ROOM, target)


def visible(changes: Sequence[ProjectionChange]) -> dict[EventId, Visible]:
    """What may be shown for each message once all changes are known, whatever their order.

    Only where an edit was redacted is there a choice: the text before it is shown, or withheld until it is read again.
    """
    redacted = {change.target for change in changes if isinstance(change, Redaction)}
    edits = {change.revision.event_id: change for change in changes if isinstance(change, Edit)}
    found: dict[EventId, Visible] = {}
    for message in {change.event_id: change for change in changes if isinstance(change, Original)}.values():
        if message.event_id in redacted:
            continue
        own = [e for e in edits.values() if e.target == message.event_id and e.sender == message.sender]
        kept = [e for e in own if e.revision.event_id not in redacted]
        withheld = [] if len(kept) == len(own) else [None]
        found[message.event_id] = Visible(frozenset([_newest(message, kept), *withheld]))
    return found


def refetched(changes: Sequence[ProjectionChange]) -> list[Refetched]:
    """What a homeserver answers when the messages are read again: it holds no text that was redacted."""
    redacted = {change.target for change in changes if isinstance(change, Redaction)}
    edits = [c for c in changes if isinstance(c, Edit) and c.revision.event_id not in redacted]
    return [
        Refetched(ROOM, message.event_id, message.content, [e for e in edits if e.target == message.event_id])
        for message in changes
        if isinstance(message, Original) and message.event_id not in redacted
    ]


def newest(changes: Sequence[ProjectionChange]) -> dict[EventId, str | None]:
    """What is shown when every redaction was known before what it redacts."""
    redacted = {change.target for change in changes if isinstance(change, Redaction)}
    left = [c for c in changes if not (isinstance(c, Edit) and c.revision.event_id in redacted)]
    return {event: next(iter(found.texts)) for event, found in visible(left).items()}


def _newest(message: Original, edits: Iterable[Edit]) -> str | None:
    """Any edit is newer than its original, as clients and servers show it."""
    revisions = sorted((e.revision.timestamp_ms, e.revision.event_id, _text(e)) for e in edits)
    return revisions[-1][2] if revisions else _text(message)


def _text(message: Original | Edit) -> str | None:
    return None if message.content is None else str(message.content["body"])


@st.composite
def rooms(draw: st.DrawFn) -> list[ProjectionChange]:
    """Changes of a small room, each once: originals, edits by anybody of anything, redactions of anything."""
    changes: list[ProjectionChange] = []
    for event_id in draw(st.lists(st.sampled_from(ORIGINALS), unique=True)):
        sender, ts = draw(st.sampled_from(SENDERS)), draw(st.integers(1, 4))
        changes.append(original(event_id, sender=sender, ts=ts, body=draw(st.sampled_from(["", None]))))
    for event_id in draw(st.lists(st.sampled_from(EDITS), unique=True)):
        target = draw(st.sampled_from([*ORIGINALS, EDITS[0]]))
        changes.append(edit(event_id, target, sender=draw(st.sampled_from(SENDERS)), ts=draw(st.integers(1, 4))))
    for target in draw(st.lists(st.sampled_from([*ORIGINALS, *EDITS]), unique=True, max_size=3)):
        changes.append(redaction(target))
    return changes


@st.composite
def deliveries(draw: st.DrawFn) -> list[ProjectionChange]:
    """The changes of a room in any order, any of them several times."""
    changes = draw(rooms())
    repeated = [change for change in changes for _ in range(draw(st.integers(1, 2)))]
    return draw(st.permutations(repeated))
