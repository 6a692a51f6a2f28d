"""Where a message read from history stands among what was heard (A12)."""

from mindroom.core.ids import Epoch, EventId, SyncToken
from mindroom.core.values import GAP_PAGE_TOP, OrderKey
from mindroom.journal.gap_page import classify_gap_page
from mindroom.journal.hydration import place
from mindroom.journal.records import Gap
from tests.support.events import HEARER, ROOM, message


def places(
    *oldest_first: str, standing: dict[str, OrderKey], floors: tuple[int, ...] = (), page: int = 0
) -> dict[EventId, OrderKey]:
    events = [message(name) for name in reversed(oldest_first)]
    behind = Gap(ROOM, SyncToken(""), SyncToken("t1"), floor=0, epoch=Epoch(1), opened_ms=0, page=page)
    admission = classify_gap_page(events, hearer=HEARER, gap=behind, known={}).admission
    known = {EventId(name): key for name, key in standing.items()}
    return place(admission.heard, standing=known, floors=floors, passed=None)[0]


def test_a12_without_a_gap_everything_unknown_is_older_than_what_was_heard() -> None:
    """A12: and a later page is older than an earlier one, in timeline order inside."""
    first = places("$c", "$d", "$live", standing={"$live": OrderKey(7)})
    second = places("$a", "$b", standing={}, page=1)
    keys = {**first, **second, EventId("$live"): OrderKey(7)}
    assert sorted(keys, key=lambda event: keys[event]) == ["$a", "$b", "$c", "$d", "$live"]


def test_a12_a_message_of_a_truncated_gap_stands_in_that_gap() -> None:
    """A12: between what was heard before the gap and what was heard after it, whichever of several gaps it is."""
    standing = {"$k1": OrderKey(10), "$k2": OrderKey(30), "$k3": OrderKey(50)}
    keys = places("$old", "$k1", "$g1", "$k2", "$g2", "$k3", standing=standing, floors=(20, 40))
    assert [keys[EventId(name)].base for name in ("$old", "$g1", "$g2")] == [0, 20, 40]
    everything = {**keys, **{EventId(name): key for name, key in standing.items()}}
    assert sorted(everything, key=lambda event: everything[event]) == ["$old", "$k1", "$g1", "$k2", "$g2", "$k3"]


def test_a12_a_gap_goes_on_behind_what_was_read_of_it_before() -> None:
    """A12: a second walk finds part of the gap filled."""
    filled = {"$g2": OrderKey(20, GAP_PAGE_TOP, 3), "$k": OrderKey(30)}
    keys = places("$g1", "$g2", "$k", standing=filled, floors=(20,), page=1)
    assert keys[EventId("$g1")].base == 20
    assert keys[EventId("$g1")] < filled["$g2"]
