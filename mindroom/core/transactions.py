"""Transaction ids of sends: `<stage>.<delivery>`, progress also with fence and number (E1)."""

from uuid import UUID

from mindroom.core.ids import DeliveryId, Fence, TxnId
from mindroom.core.values import Stage


def txn_id(stage: Stage, delivery: DeliveryId) -> TxnId:
    """The id of an INITIAL or FINAL, the same at every attempt."""
    return TxnId(f"{stage.value}.{delivery}")


def progress_txn_id(delivery: DeliveryId, *, fence: Fence, number: int) -> TxnId:
    """A repeated progress id would drop the newer text, so each edit has its own."""
    return TxnId(f"{Stage.PROGRESS.value}.{delivery}.{fence}.{number}")


def read_txn_id(text: str) -> tuple[Stage, DeliveryId] | None:
    """Stage and delivery of an id of ours, else None."""
    parts = text.split(".")
    if len(parts) not in (2, 4):
        return None
    try:
        return Stage(parts[0]), DeliveryId(UUID(parts[1]))
    except ValueError:
        return None
