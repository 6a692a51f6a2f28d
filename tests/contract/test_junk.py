"""R41: whatever strangers put into an event, it is admitted or receipted, and the next good message is answered."""

from typing import Any

import pytest

from tests.support.events import ALICE, Event, event, message
from tests.support.spine import open_spine


def _odd(content: Any, **fields: Any) -> Event:
    return event("$odd", sender=ALICE) | {"content": content} | fields


NESTED = "<div>" * 6000 + "x" + "</div>" * 5500
TEXT = {"msgtype": "m.text", "body": "hello"}
JUNK = {
    "64 kB of nested HTML": _odd(TEXT | {"format": "org.matrix.custom.html", "formatted_body": NESTED}),
    "a body that is a number": _odd({"msgtype": "m.text", "body": 7}),
    "a body that is a list": _odd({"msgtype": "m.text", "body": [["x"]]}),
    "an edit of itself": _odd(
        TEXT | {"m.new_content": TEXT, "m.relates_to": {"rel_type": "m.replace", "event_id": "$odd"}}
    ),
    "a thread on itself": _odd(TEXT | {"m.relates_to": {"rel_type": "m.thread", "event_id": "$odd"}}),
    "a reply to itself": _odd(TEXT | {"m.relates_to": {"m.in_reply_to": {"event_id": "$odd"}}}),
    "a redaction of itself": _odd({"redacts": "$odd"}, type="m.room.redaction"),
    "no msgtype": _odd({"body": "hello"}),
    "500 mentions": _odd(TEXT | {"m.mentions": {"user_ids": [f"@u{n}:x" for n in range(500)]}}),
    "lone surrogates": _odd({"msgtype": "m.text", "body": "a \ud800 b \udfff", "\ud801": "\ud802"}),
    "NUL": _odd({"msgtype": "m.text", "body": "a \x00 b", "\x00": {"\x00": ["\x00"]}}),
    "a number that no column takes": _odd(TEXT | {"big": 10**40, "small": 1e-320}),
    "deep nesting": _odd(TEXT | {"deep": [[[[[[{}]]]]]] * 3}),
    "a sender that is no id": _odd(TEXT, sender={"a": 1}),
    "a content that is a list": _odd([TEXT]),
    "a timestamp out of range": _odd(TEXT, origin_server_ts=2**63),
    "an event id with a NUL": _odd(TEXT, event_id="$a\x00b"),
    "a delivery marker of nonsense": _odd(TEXT | {"io.mindroom.delivery": {"delivery": "x", "sources": [1, {}]}}),
}


@pytest.mark.parametrize("name", JUNK)
async def test_r41_junk_never_stops_the_next_message(database_dsn: str, name: str) -> None:
    """R41, A7, I5: through the whole of admission and dispatch on a real database."""
    async with open_spine(database_dsn) as spine:
        await spine.serve()
        await spine.hear(JUNK[name])
        await spine.hear(message("$good", "are you there"))
        await spine.advance(5)
        assert await spine.outcome("$good") == "answered"
        assert await spine.value("SELECT count(*) FROM journal_pending") == 0
        assert await spine.value("SELECT count(*) FROM journal_receipts WHERE event_id = '$odd'") == (
            0 if name == "an event id with a NUL" else 1
        )
