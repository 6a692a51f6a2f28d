"""Room books as a running principal has them, built through the same admissions as in production."""

from typing import Any

from mindroom.core.ids import Epoch, EventId, RoomId, SyncToken, UserId
from mindroom.core.values import Membership
from mindroom.journal.classify import classify_sync
from mindroom.journal.records import Admission, Heard, RoomMembership, StateRow
from mindroom.journal.rooms import RoomBook
from tests.support.events import HEARER, ROOM

SINCE = SyncToken("s1")


def standing(membership: Membership, *, epoch: int = 1, room: RoomId = ROOM, **extra: Any) -> RoomBook:
    """A book that knows one room."""
    book = RoomBook()
    book.put_membership(room, RoomMembership(Epoch(epoch), membership, **extra))
    return book


def joined(epoch: int = 1) -> RoomBook:
    """A book of a room we are in."""
    return standing(Membership.JOIN, epoch=epoch)


def with_state(book: RoomBook, event_type: str, content: dict[str, Any], *, key: str = "") -> RoomBook:
    """The same book, knowing one more piece of state."""
    book.put_state(StateRow(ROOM, event_type, key, UserId("@alice:x"), content))
    return book


def classify(raw: dict[str, Any], book: RoomBook | None = None, *, since: SyncToken | None = SINCE) -> Admission:
    """What a response means for the test's principal."""
    return classify_sync(raw, hearer=HEARER, book=book if book is not None else joined(), since=since)


def heard(admission: Admission, event_id: str) -> Heard:
    """The receipt-to-be of an event."""
    found = [h for h in admission.heard if h.event_id == EventId(event_id)]
    assert len(found) == 1, f"{event_id} was heard {len(found)} times"
    return found[0]


def classes(admission: Admission) -> dict[str, str]:
    """Class by event id."""
    return {h.event_id: h.event_class.value for h in admission.heard}
