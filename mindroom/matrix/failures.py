"""What a bad answer of the homeserver means (E6): decided from status and errcode, never from text.

Pure. Never keeps a body: only the status, a checked errcode and the requested pause leave this module.
"""

import math
import re
from collections.abc import Mapping
from typing import Any, Final

from mindroom.core.errors import MatrixFailure, MatrixFailureClass

_ERRCODE: Final = re.compile(r"[A-Za-z0-9_.]{1,64}")

_BY_ERRCODE: Final[Mapping[str, MatrixFailureClass]] = {
    "M_LIMIT_EXCEEDED": MatrixFailureClass.RATE_LIMITED,
    "M_TOO_LARGE": MatrixFailureClass.TOO_LARGE,
    # The principal waits until somebody lifts these (E6), like a lost login and unlike a refused event.
    "M_UNKNOWN_TOKEN": MatrixFailureClass.AUTH,
    "M_MISSING_TOKEN": MatrixFailureClass.AUTH,
    "M_USER_LOCKED": MatrixFailureClass.AUTH,
    "M_USER_SUSPENDED": MatrixFailureClass.AUTH,
    "M_CONSENT_NOT_GIVEN": MatrixFailureClass.AUTH,
    "M_RESOURCE_LIMIT_EXCEEDED": MatrixFailureClass.AUTH,
}

_BY_STATUS: Final[Mapping[int, MatrixFailureClass]] = {
    401: MatrixFailureClass.AUTH,
    403: MatrixFailureClass.FORBIDDEN,
    404: MatrixFailureClass.NOT_FOUND,
}


class SoftLogout(MatrixFailure):
    """AUTH, but the device lives on: log in again with the same device id and every transaction id stays valid (B5)."""


def classify(status: int, errcode: str) -> MatrixFailureClass:
    """The class of a failed call; `errcode` is '' when the answer was not Matrix error JSON.

    408, 413, 429 and 5xx speak for themselves, as proxies send them too. Any other status counts only with an
    errcode, so that a proxy's HTML 401, 403 or 404 never logs out, forbids or loses anything (B4, B5).
    """
    if errcode in _BY_ERRCODE:
        return _BY_ERRCODE[errcode]
    if status == 429:
        return MatrixFailureClass.RATE_LIMITED
    if status == 413:
        return MatrixFailureClass.TOO_LARGE
    if status == 408 or status >= 500:
        return MatrixFailureClass.SERVER
    if not errcode or not 400 <= status < 500:
        return MatrixFailureClass.NOT_JSON
    return _BY_STATUS.get(status, MatrixFailureClass.BAD_REQUEST)


def read_failure(call: str, *, status: int, document: Any, retry_after_header: str | None) -> MatrixFailure:
    """The failure a non-2xx answer stands for; `document` is its parsed JSON, or None when it had none."""
    answer: Mapping[str, Any] = document if isinstance(document, Mapping) else {}
    errcode = _errcode(answer.get("errcode"))
    failure_class = classify(status, errcode)
    soft = failure_class is MatrixFailureClass.AUTH and (
        errcode == "M_USER_LOCKED" or answer.get("soft_logout") is True
    )
    kind = SoftLogout if soft else MatrixFailure
    return kind(
        call,
        failure_class,
        status=status,
        errcode=errcode,
        retry_after_seconds=_retry_after_seconds(answer.get("retry_after_ms"), retry_after_header),
    )


def _errcode(value: object) -> str:
    return value if isinstance(value, str) and _ERRCODE.fullmatch(value) else ""


def _retry_after_seconds(body_ms: object, header: str | None) -> float | None:
    if isinstance(body_ms, int | float) and not isinstance(body_ms, bool):
        seconds = float(body_ms) / 1000
    else:
        try:
            seconds = float(header or "")
        except ValueError:
            return None
    return seconds if math.isfinite(seconds) and seconds >= 0 else None
