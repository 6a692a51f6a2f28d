"""matrix.failures: the class of an answer comes from status and errcode alone (E6)."""

from typing import Any

import pytest

from mindroom.core.errors import MatrixFailureClass as C
from mindroom.core.errors import RetryClass
from mindroom.matrix.failures import SoftLogout, classify, read_failure


@pytest.mark.parametrize(
    ("status", "errcode", "expected"),
    [
        (429, "M_LIMIT_EXCEEDED", C.RATE_LIMITED),
        (429, "", C.RATE_LIMITED),
        (400, "M_LIMIT_EXCEEDED", C.RATE_LIMITED),
        (500, "M_UNKNOWN", C.SERVER),
        (502, "", C.SERVER),
        (503, "", C.SERVER),
        (504, "", C.SERVER),
        (408, "", C.SERVER),
        (401, "M_UNKNOWN_TOKEN", C.AUTH),
        (401, "M_MISSING_TOKEN", C.AUTH),
        (401, "M_SOMETHING_NEW", C.AUTH),
        (403, "M_UNKNOWN_TOKEN", C.AUTH),
        (401, "M_USER_LOCKED", C.AUTH),
        (403, "M_USER_SUSPENDED", C.AUTH),
        (403, "M_CONSENT_NOT_GIVEN", C.AUTH),
        (403, "M_RESOURCE_LIMIT_EXCEEDED", C.AUTH),
        (403, "M_FORBIDDEN", C.FORBIDDEN),
        (404, "M_NOT_FOUND", C.NOT_FOUND),
        (404, "M_UNRECOGNIZED", C.NOT_FOUND),
        (413, "M_TOO_LARGE", C.TOO_LARGE),
        (413, "", C.TOO_LARGE),
        (400, "M_BAD_JSON", C.BAD_REQUEST),
        (400, "M_UNKNOWN", C.BAD_REQUEST),
        (409, "M_ROOM_IN_USE", C.BAD_REQUEST),
        (400, "", C.NOT_JSON),
        (401, "", C.NOT_JSON),
        (403, "", C.NOT_JSON),
        (404, "", C.NOT_JSON),
        (302, "", C.NOT_JSON),
        (302, "M_FOUND", C.NOT_JSON),
    ],
)
def test_e6_class_of_status_and_errcode(status: int, errcode: str, expected: C) -> None:
    assert classify(status, errcode) is expected


@pytest.mark.parametrize(
    ("document", "header", "seconds"),
    [
        ({"retry_after_ms": 1500}, "7", 1.5),
        ({}, "7", 7.0),
        ({"retry_after_ms": "soon"}, "2.5", 2.5),
        ({"retry_after_ms": True}, None, None),
        ({"retry_after_ms": -1}, None, None),
        ({"retry_after_ms": float("inf")}, None, None),
        ({}, "Wed, 21 Oct 2026 07:28:00 GMT", None),
        (None, "3", 3.0),
        (["no object"], None, None),
    ],
)
def test_e5_the_requested_pause_comes_from_the_body_else_the_header(
    document: Any, header: str | None, seconds: float | None
) -> None:
    failure = read_failure("send", status=429, document=document, retry_after_header=header)
    assert failure.retry_after_seconds == seconds


@pytest.mark.parametrize("errcode", [None, 5, "", "has space", "M_" + "X" * 80, "M_\n", {"a": 1}])
def test_an_errcode_of_odd_shape_counts_as_none(errcode: object) -> None:
    failure = read_failure("send", status=400, document={"errcode": errcode}, retry_after_header=None)
    assert failure.errcode == ""
    assert failure.failure_class is C.NOT_JSON


@pytest.mark.parametrize(
    ("document", "soft"),
    [
        ({"errcode": "M_UNKNOWN_TOKEN", "soft_logout": True}, True),
        ({"errcode": "M_USER_LOCKED"}, True),
        ({"errcode": "M_UNKNOWN_TOKEN", "soft_logout": False}, False),
        ({"errcode": "M_UNKNOWN_TOKEN", "soft_logout": "yes"}, False),
        ({"errcode": "M_UNKNOWN_TOKEN"}, False),
    ],
)
def test_b5_a_soft_logout_keeps_the_device(document: Any, soft: bool) -> None:
    failure = read_failure("sync", status=401, document=document, retry_after_header=None)
    assert isinstance(failure, SoftLogout) is soft
    assert failure.failure_class is C.AUTH
    assert failure.retry_class is RetryClass.RETRY


def test_i2_a_failure_never_shows_the_servers_text() -> None:
    document = {"errcode": "M_FORBIDDEN", "error": "secret words"}
    failure = read_failure("send", status=403, document=document, retry_after_header=None)
    assert "secret" not in str(failure) + repr(failure)
