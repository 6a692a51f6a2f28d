"""Pure: one page of a gap -> what it means, and where each of its events stands in the order of work (B2, B3)."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from mindroom.core.content import JsonObject, identifier
from mindroom.core.ids import EventId, UserId
from mindroom.core.values import GAP_PAGE_TOP, GAP_SPACING, EventClass, OrderKey
from mindroom.journal.classify import RoomReader
from mindroom.journal.records import Admission, Gap, GapPage, Heard, Hearer, KnownEvent
from mindroom.journal.rooms import RoomBook
from mindroom.journal.shape import as_objects, begins, is_redacted, leaves, origin_ts
from mindroom.journal.stall import RECOVERY_HORIZON_MS


def classify_gap_page(
    events: Sequence[JsonObject], *, hearer: Hearer, gap: Gap, known: Mapping[EventId, KnownEvent]
) -> GapPage:
    """What a page of a gap means; `events` newest first, as `/messages?dir=b` gives them; `known` those with a receipt.

    Older than our invite (or the join without one), or than history of before our time, is HISTORY. State of a gap
    never changes room state, membership or epoch (A13). Known events are passed over, unless they are redacted now.
    """
    admission = Admission()
    reader = RoomReader(admission, hearer, RoomBook(), gap.room, late_before_ms=gap.late_before_ms)
    reader.epoch, reader.is_recovery = gap.epoch, True
    newest_first = as_objects(list(events))
    begins_at = next((i for i, e in enumerate(newest_first) if _is_beginning(e, hearer.user_id, known)), None)
    is_old = _is_old(newest_first, hearer, before_ms=gap.opened_ms - RECOVERY_HORIZON_MS)
    fresh: dict[EventId, Heard] = {}
    is_ours = False
    for position, event in reversed(list(enumerate(newest_first))):
        event_id = EventId(identifier(event.get("event_id")))
        if event_id in known and not is_redacted(event):
            continue
        is_within = begins_at is None or position < begins_at
        position_class = EventClass.RECOVERED if is_within and not is_old else EventClass.HISTORY
        heard = reader.hear(event, position_class)
        if heard is not None and event_id not in known:
            fresh[event_id] = heard
            is_ours = is_ours or is_within
    is_known = bool(known) and not fresh and all(event.receipt <= gap.floor for event in known.values())
    anchor = _place(newest_first, fresh, gap=gap, known=known)
    return GapPage(admission, anchor, begins_at is not None, is_known, is_old and is_ours)


def _is_beginning(event: JsonObject, me: UserId, known: Mapping[EventId, KnownEvent]) -> bool:
    seen = known.get(EventId(identifier(event.get("event_id"))))
    return begins(event, me) or leaves(event, me) or (seen is not None and seen.is_beginning)


def _is_old(events: Sequence[JsonObject], hearer: Hearer, *, before_ms: int) -> bool:
    """Timestamps of strangers say nothing: a bridge may bring a hundred old messages between two new ones."""
    ours = hearer.authorized | hearer.hosted
    times = [ts for e in events if identifier(e.get("sender")) in ours and (ts := origin_ts(e)) is not None]
    return bool(times) and max(times) < before_ms


def _place(
    newest_first: Sequence[JsonObject], fresh: Mapping[EventId, Heard], *, gap: Gap, known: Mapping[EventId, KnownEvent]
) -> OrderKey:
    """Walking back, each event goes just before the next newer one, wherever that stands. Returns the oldest place."""
    anchor, step = OrderKey(gap.floor, GAP_PAGE_TOP + 1), 1
    if gap.walk == 1:
        anchor, step = OrderKey(gap.floor, GAP_PAGE_TOP - gap.page, len(fresh) * GAP_SPACING), GAP_SPACING
    anchor = min(anchor, gap.anchor or anchor)
    for event in newest_first:
        event_id = EventId(identifier(event.get("event_id")))
        if event_id in known:
            anchor = min(anchor, known[event_id].order_key)
        elif (heard := fresh.get(event_id)) is not None:
            anchor = replace(anchor, index=anchor.index - step)
            heard.base, heard.page, heard.index = anchor.base, anchor.page, anchor.index
    return anchor
