"""What nio 0.26 does with raw JSON, as docs/decisions/raw-sync.md claims; and that its logs are silent (I2)."""

import logging
from typing import Any

import pytest
from nio import BadEvent, Event, RedactionEvent, SyncResponse
from nio.api import Api

from tests.support.matrix_clients import open_client

REDACTION = {
    "type": "m.room.redaction",
    "event_id": "$r",
    "sender": "@ada:x",
    "origin_server_ts": 1,
    "content": {"redacts": "$target", "reason": "secret words"},
}


@pytest.fixture(autouse=True)
async def silenced() -> None:
    await open_client("http://127.0.0.1:1").close()


def test_a4_nio_does_not_understand_the_redactions_of_newer_rooms() -> None:
    assert isinstance(Event.parse_event(REDACTION | {"redacts": "$target"}), RedactionEvent)
    assert isinstance(Event.parse_event(REDACTION), BadEvent)


def test_a7_one_odd_event_costs_nio_the_whole_response() -> None:
    part: dict[str, Any] = {
        "timeline": {"events": [7], "limited": False, "prev_batch": "p"},
        "state": {"events": []},
        "ephemeral": {"events": []},
        "account_data": {"events": []},
    }
    response = {
        "next_batch": "s1",
        "rooms": {"join": {"!r:x": part}, "invite": {}, "leave": {}},
        "device_one_time_keys_count": {},
        "device_lists": {"changed": [], "left": []},
        "to_device": {"events": []},
    }
    with pytest.raises(TypeError):
        SyncResponse.from_dict(response)


def test_i3_nios_request_builders_put_the_token_into_the_url() -> None:
    _method, path = Api.sync("the-token")
    assert "the-token" in path


def test_i2_an_event_that_nio_cannot_read_is_not_printed_into_our_logs(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    Event.parse_event(REDACTION)
    shown = capfd.readouterr()
    assert "secret words" not in caplog.text + shown.out + shown.err
