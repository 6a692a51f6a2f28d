"""Which decided sources become the next turn of a conversation."""

from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mindroom.core.content import MAX_SOURCES
from mindroom.core.ids import Epoch, EventId, Receipt, RoomId, TurnId, UserId
from mindroom.core.mentions import Addressed
from mindroom.core.values import Conversation, EventClass, EventKind, OrderKey, Reason
from mindroom.turns.coalescing import Batch, ConversationQueue
from mindroom.turns.ingress import PreparedIngress

CONVERSATION = Conversation(RoomId("!room:example.org"), EventId("$root"))
TURN = TurnId(UUID(int=1))


def source(receipt: int, requester: str, *, key: OrderKey | None = None, turn: TurnId | None = None) -> PreparedIngress:
    return PreparedIngress(
        receipt=Receipt(receipt),
        order_key=key or OrderKey(receipt),
        event_id=EventId(f"${receipt}"),
        epoch=Epoch(1),
        conversation=CONVERSATION,
        sender=UserId(requester),
        requester=UserId(requester),
        kind=EventKind.MESSAGE,
        event_class=EventClass.LIVE,
        origin_ts=0,
        text="x",
        addressed=Addressed(),
        replied_to=None,
        open_turn=turn,
    )


def queue_of(*sources: PreparedIngress) -> ConversationQueue:
    queue = ConversationQueue()
    for ingress in sources:
        queue.put(ingress, reason=Reason.SOLE)
    return queue


def receipts(batch: Batch | None) -> list[int]:
    return [decided.ingress.receipt for decided in batch.sources] if batch else []


def drain(queue: ConversationQueue) -> list[list[int]]:
    batches = []
    while batch := queue.start():
        batches.append(receipts(batch))
        queue.finish()
    return batches


def test_the_first_text_starts_at_once() -> None:
    queue = queue_of(source(1, "@a:x"))
    assert receipts(queue.start()) == [1]


def test_one_answer_runs_at_a_time() -> None:
    queue = queue_of(source(1, "@a:x"))
    queue.start()
    queue.put(source(2, "@a:x"), reason=Reason.THREAD)
    assert queue.start() is None
    queue.finish()
    assert receipts(queue.start()) == [2]


def test_follow_ups_of_one_requester_merge_behind_the_running_answer_and_the_last_is_the_anchor() -> None:
    queue = queue_of(source(1, "@a:x"))
    queue.start()
    queue.put(source(2, "@a:x"), reason=Reason.MENTION)
    queue.put(source(3, "@a:x"), reason=Reason.THREAD)
    queue.finish()
    batch = queue.start()
    assert batch is not None
    assert receipts(batch) == [2, 3]
    assert (batch.anchor.ingress.receipt, batch.anchor.reason) == (3, Reason.THREAD)


def test_a_different_requester_has_a_turn_of_their_own_after_it() -> None:
    queue = queue_of(source(1, "@a:x"), source(2, "@b:x"), source(3, "@a:x"), source(4, "@b:x"))
    assert drain(queue) == [[1, 3], [2, 4]]


def test_batches_start_in_order_key_order_however_late_a_recovered_source_is_put() -> None:
    recovered = source(9, "@b:x", key=OrderKey(1, 2**31 - 1, 0))
    queue = queue_of(source(5, "@a:x"), recovered, source(6, "@a:x"))
    assert drain(queue) == [[9], [5, 6]]


def test_a_batch_holds_at_most_100_sources_and_the_rest_form_the_next_turn() -> None:
    """A6."""
    queue = queue_of(*(source(n, "@a:x") for n in range(250)))
    assert [len(batch) for batch in drain(queue)] == [MAX_SOURCES, MAX_SOURCES, 50]


def test_a_source_that_waits_or_runs_is_not_added_again() -> None:
    """A2."""
    queue = queue_of(source(1, "@a:x"), source(1, "@a:x"))
    assert receipts(queue.start()) == [1]
    queue.put(source(1, "@a:x"), reason=Reason.SOLE)
    queue.finish()
    assert queue.start() is None


def test_a_source_may_come_back_after_its_turn_ended_without_settling_it() -> None:
    queue = queue_of(source(1, "@a:x"))
    queue.start()
    queue.finish()
    queue.put(source(1, "@a:x"), reason=Reason.SOLE)
    assert receipts(queue.start()) == [1]


def test_sources_of_an_open_turn_stay_together_after_a_crash() -> None:
    """D2."""
    queue = queue_of(source(1, "@a:x", turn=TURN), source(2, "@a:x", turn=TURN), source(3, "@b:x"))
    assert drain(queue) == [[1, 2], [3]]


def test_r19_what_the_requester_wrote_since_joins_the_open_turn() -> None:
    """R19: unless another open turn holds it."""
    other = TurnId(UUID(int=2))
    queue = queue_of(source(1, "@a:x", turn=TURN), source(2, "@a:x"), source(3, "@a:x", turn=other), source(4, "@a:x"))
    assert drain(queue) == [[1, 2, 4], [3]]
    assert drain(queue_of(source(1, "@a:x"), source(2, "@a:x", turn=TURN))) == [[1], [2]]


def test_finishing_twice_is_safe_and_leaves_the_queue_empty() -> None:
    queue = queue_of(source(1, "@a:x"))
    assert queue.start() is not None
    queue.finish()
    queue.finish()
    assert queue.start() is None


@settings(deadline=None)
@given(st.permutations(range(30)), st.lists(st.sampled_from(["@a:x", "@b:x", "@c:x"]), min_size=30, max_size=30))
def test_every_source_runs_once_in_order_with_its_own_requester(order: list[int], requesters: list[str]) -> None:
    queue = queue_of(*(source(n, requesters[n]) for n in order))
    batches = drain(queue)
    assert sorted(receipt for batch in batches for receipt in batch) == list(range(30))
    assert all(batch == sorted(batch) and len({requesters[n] for n in batch}) == 1 for batch in batches)
    assert [batch[0] for batch in batches] == sorted(batch[0] for batch in batches)


@pytest.mark.parametrize("count", [10_000])
def test_ten_thousand_waiting_sources_are_taken_in_linear_steps(count: int) -> None:
    """C3."""
    queue = queue_of(*(source(n, f"@u{n % 2}:x") for n in range(count)))
    assert len(drain(queue)) == count // MAX_SOURCES
