"""Pure: the projection of messages, edits and redactions (A4, A10, A11). The same rules for sync, gaps and history.

Changes may come in any order and any number of times; the outcome is the same. A tombstone wins over everything.
Only the newest edit is kept, so a message whose visible edit is redacted has no text until it is read again.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from mindroom.core.content import JsonObject
from mindroom.core.ids import Epoch, EventId, RoomId, TurnId, UserId
from mindroom.core.values import Conversation
from mindroom.journal.records import Edit, Original, ProjectionChange, Redaction, Refetched, Revision

Key = tuple[RoomId, EventId]
EditKey = tuple[RoomId, EventId, UserId]


@dataclass(frozen=True, slots=True)
class Shown:
    """One row of the projection. content None: no text yet (a placeholder), or a text that was withheld."""

    room: RoomId
    event_id: EventId
    thread: EventId
    sender: UserId
    epoch: Epoch
    origin_ts: int
    content: JsonObject | None
    relates_to: JsonObject | None
    revision: Revision
    turn: TurnId | None

    @property
    def is_original(self) -> bool:
        """True while no edit is shown."""
        return self.revision.event_id == self.event_id

    @property
    def is_withheld(self) -> bool:
        """True while the text before a redacted edit is owed (A4)."""
        return self.content is None and not self.is_original


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """What redactions of a batch took away."""

    buried: Sequence[Key]
    """Events that are redacted, told once more or for the first time."""
    unedited: Sequence[Key]
    """Messages whose visible edit went; they stay without text until they are read again."""
    conversations: frozenset[Conversation]
    """Where a text went that a prompt may hold."""


@dataclass(slots=True)
class Projection:
    """What is stored about the events a batch touches, and, after `reduce`, what has changed."""

    shown: dict[Key, Shown] = field(default_factory=dict)
    waiting: dict[EditKey, Edit] = field(default_factory=dict)
    """Newest edit per sender of an original not seen yet."""
    tombstones: set[Key] = field(default_factory=set)
    changed: set[Key] = field(default_factory=set)
    """Rows of `shown` to write, or to delete when they are gone."""
    waiting_changed: set[EditKey] = field(default_factory=set)
    buried: set[Key] = field(default_factory=set)
    """Tombstones to write."""
    lost: dict[Key, Shown] = field(default_factory=dict)
    """Rows that redactions took, or left without text, as they were before."""

    def withdrawn(self) -> Withdrawn:
        """What is to be forgotten elsewhere."""
        places = {(s.room, thread) for s in self.lost.values() for thread in (s.thread or None, s.event_id)}
        return Withdrawn(
            sorted(self.buried),
            sorted(key for key in self.lost if key in self.shown),
            frozenset(Conversation(room, thread) for room, thread in places),
        )


def plain_originals(changes: Sequence[ProjectionChange]) -> dict[EventId, Original]:
    """Originals that no other change of the batch refers to: with nothing stored about them either, what `reduce` would
    make of each is the original itself."""
    seen: Counter[Key] = Counter()
    for change in changes:
        if isinstance(change, Original):
            seen[change.room, change.event_id] += 1
        else:
            seen[change.room, change.target] += 1
    return {c.event_id: c for c in changes if isinstance(c, Original) and seen[c.room, c.event_id] == 1}


def reduce(projection: Projection, changes: Iterable[ProjectionChange]) -> Projection:
    """Apply `changes` in order, in place."""
    for change in changes:
        if isinstance(change, Original):
            _original(projection, change)
        elif isinstance(change, Edit):
            _edit(projection, change)
        elif isinstance(change, Refetched):
            _refetched(projection, change)
        else:
            _redaction(projection, change)
    return projection


def _original(p: Projection, new: Original) -> None:
    key = (new.room, new.event_id)
    if key in p.tombstones or key in p.shown:
        return
    p.shown[key] = Shown(
        new.room,
        new.event_id,
        new.thread,
        new.sender,
        new.epoch,
        new.revision.timestamp_ms,
        new.content,
        new.relates_to,
        new.revision,
        new.turn,
    )
    p.changed.add(key)
    if (edit := p.waiting.get((*key, new.sender))) is not None:
        _revise(p, edit)
    for waiting in [k for k in p.waiting if k[:2] == key]:
        del p.waiting[waiting]
        p.waiting_changed.add(waiting)


def _edit(p: Projection, edit: Edit) -> None:
    key = (edit.room, edit.target)
    if key in p.tombstones or (edit.room, edit.revision.event_id) in p.tombstones:
        return
    if key not in p.shown:
        waiting = p.waiting.get((*key, edit.sender))
        if waiting is None or edit.revision.newer_than(waiting.revision):
            p.waiting[*key, edit.sender] = edit
            p.waiting_changed.add((*key, edit.sender))
        return
    _revise(p, edit)


def _revise(p: Projection, edit: Edit) -> None:
    """Any edit is newer than its original, whatever the clocks of their servers said."""
    key = (edit.room, edit.target)
    shown = p.shown[key]
    if shown.sender == edit.sender and (shown.is_original or edit.revision.newer_than(shown.revision)):
        p.shown[key] = replace(shown, content=edit.content, revision=edit.revision)
        p.changed.add(key)


def _refetched(p: Projection, found: Refetched) -> None:
    key = (found.room, found.target)
    shown = p.shown.get(key)
    if shown is not None and shown.is_withheld:
        p.shown[key] = replace(shown, content=found.content, revision=Revision(shown.origin_ts, shown.event_id))
        p.changed.add(key)
        for edit in found.edits:
            _edit(p, edit)


def _redaction(p: Projection, redaction: Redaction) -> None:
    key = (redaction.room, redaction.target)
    p.tombstones.add(key)
    p.buried.add(key)
    if (taken := p.shown.pop(key, None)) is not None:
        p.lost[key] = taken
        p.changed.add(key)
    for shown_key, shown in p.shown.items():
        is_visible = shown.room == redaction.room and shown.revision.event_id == redaction.target
        if is_visible and shown.content is not None:
            p.lost[shown_key] = shown
            p.shown[shown_key] = replace(shown, content=None)
            p.changed.add(shown_key)
    for edit_key, edit in list(p.waiting.items()):
        if edit_key[:2] == key:
            del p.waiting[edit_key]
            p.waiting_changed.add(edit_key)
        elif (edit.room, edit.revision.event_id) == key and edit.content is not None:
            p.waiting[edit_key] = replace(edit, content=None)
            p.waiting_changed.add(edit_key)
