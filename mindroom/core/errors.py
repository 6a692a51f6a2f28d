"""The exception tree, drawn once.

    MindRoomError
    ├── UserError               somebody at a terminal must change something; its text is the message
    ├── DependencyError         database, homeserver, network or model provider is not there now
    │   ├── DatabaseUnavailable
    │   ├── MatrixFailure       one request to the homeserver ended badly
    │   │   └── MatrixDeliveryFailure
    │   └── ModelFailure
    ├── TransactionRefused      the rows moved under a transition; somebody else did or undid it
    ├── FenceLost               another process owns the principal now
    └── CorruptState            what is stored contradicts itself

Every error has a stable `code` and a `retry_class`; nobody matches on text. `__cause__` keeps the origin.
"""

from enum import StrEnum


class RetryClass(StrEnum):
    """What the caller may do about an error."""

    RETRY = "retry"
    PERMANENT = "permanent"
    FENCE_LOST = "fence_lost"
    CORRUPT = "corrupt"


class MindRoomError(Exception):
    """Base of all our errors."""

    code: str = "internal"
    retry_class: RetryClass = RetryClass.PERMANENT


class UserError(MindRoomError):
    """A clear sentence for the person at the terminal: what, where, and what to do."""

    code = "usage"


class DependencyError(MindRoomError):
    """Something we depend on is unavailable; the work stays owed and is tried again (C2)."""

    code = "dependency"
    retry_class = RetryClass.RETRY


class DatabaseUnavailable(DependencyError):
    """The database did not take the statement or its fate is that of an aborted transaction."""

    code = "database"


class MatrixFailureClass(StrEnum):
    """How a failed homeserver request is treated (E6); decided from (status, errcode), never from text."""

    NETWORK = "network"
    RATE_LIMITED = "rate_limited"
    SERVER = "server"
    NOT_JSON = "not_json"
    AUTH = "auth"
    FORBIDDEN = "forbidden"
    NOT_FOUND = "not_found"
    TOO_LARGE = "too_large"
    BAD_REQUEST = "bad_request"


RETRYABLE_MATRIX = frozenset(
    {
        MatrixFailureClass.NETWORK,
        MatrixFailureClass.RATE_LIMITED,
        MatrixFailureClass.SERVER,
        MatrixFailureClass.NOT_JSON,
        MatrixFailureClass.AUTH,
    }
)


class MatrixFailure(DependencyError):
    """One homeserver request failed; `status` 0 means that no response was read."""

    code = "matrix"

    def __init__(
        self,
        call: str,
        failure_class: MatrixFailureClass,
        *,
        status: int = 0,
        errcode: str = "",
        retry_after_seconds: float | None = None,
    ) -> None:
        super().__init__(f"{call}: {failure_class.value} (HTTP {status or '-'} {errcode or '-'})")
        self.call = call
        self.failure_class = failure_class
        self.status = status
        self.errcode = errcode
        self.retry_after_seconds = retry_after_seconds
        self.retry_class = RetryClass.RETRY if failure_class in RETRYABLE_MATRIX else RetryClass.PERMANENT


class MatrixDeliveryFailure(MatrixFailure):
    """A send did not go through, or its outcome is unknown."""


class ModelFailureKind(StrEnum):
    """Closed metric label for failed model attempts."""

    NETWORK = "network"
    TIMEOUT = "timeout"
    RATE_LIMITED = "rate_limited"
    SERVER = "server"
    AUTH = "auth"
    CONTEXT_LENGTH = "context_length"
    BAD_REQUEST = "bad_request"
    UNKNOWN = "unknown"


RETRYABLE_MODEL = frozenset(
    {
        ModelFailureKind.NETWORK,
        ModelFailureKind.TIMEOUT,
        ModelFailureKind.RATE_LIMITED,
        ModelFailureKind.SERVER,
        ModelFailureKind.AUTH,
    }
)


class ModelFailure(DependencyError):
    """One model attempt failed. The text of a provider is never shown in a room nor stored (I2)."""

    code = "model"

    def __init__(self, kind: ModelFailureKind, *, status: int = 0, retry_after_seconds: float | None = None) -> None:
        super().__init__(f"model attempt failed: {kind.value} (HTTP {status or '-'})")
        self.kind = kind
        self.status = status
        self.retry_after_seconds = retry_after_seconds
        self.retry_class = RetryClass.RETRY if kind in RETRYABLE_MODEL else RetryClass.PERMANENT


class TransactionRefused(MindRoomError):
    """A guarded transition found its rows changed; nothing was written."""

    code = "refused"

    def __init__(self, transaction: str, reason: str) -> None:
        super().__init__(f"{transaction} refused: {reason}")
        self.transaction = transaction
        self.reason = reason


class FenceLost(MindRoomError):
    """The principal's fence moved: this process wrote nothing and must stop serving the principal (H2)."""

    code = "fence_lost"
    retry_class = RetryClass.FENCE_LOST


class CorruptState(MindRoomError):
    """Stored rows break an invariant; retrying cannot help."""

    code = "corrupt"
    retry_class = RetryClass.CORRUPT
