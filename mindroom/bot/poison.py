"""Which events of a response keep it from being admitted, and the response with them made unreadable (A7). Pure but for
the trials that it is given."""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any

from mindroom.core.content import JsonObject

Trial = Callable[[JsonObject], Awaitable[bool]]
"""Whether a response could be committed."""


async def without_poison(raw: JsonObject, *, fits: Trial) -> JsonObject:
    """The response with the events that cannot be admitted blanked: a receipt `unreadable` each, the rest as it was.

    Halves the events until single ones are left: a handful of trials for each bad event. When the fault is in no event
    the response comes back as it is. Raises what `fits` raises.
    """
    events = list(dict.fromkeys(_event_ids(raw)))

    async def poisonous(some: Sequence[str]) -> list[str]:
        if await fits(_response(raw, set(events).difference(some))):
            return []
        if len(some) == 1:
            return list(some)
        middle = len(some) // 2
        return [*await poisonous(some[:middle]), *await poisonous(some[middle:])]

    if events and await fits(_response(raw, events)):
        return _response(raw, await poisonous(events))
    return raw


def _event_ids(value: Any) -> list[str]:
    if isinstance(value, list):
        return [event["event_id"] for event in value if _is_event(event)]
    if isinstance(value, dict):
        return [event_id for part in value.values() for event_id in _event_ids(part)]
    return []


def _response(raw: JsonObject, events: Collection[str]) -> JsonObject:
    return {key: _blanked(part, events) for key, part in raw.items()}


def _blanked(value: Any, events: Collection[str]) -> Any:
    if isinstance(value, list):
        return [_blank(event) if _is_event(event) and event["event_id"] in events else event for event in value]
    return _response(value, events) if isinstance(value, dict) else value


def _is_event(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("event_id"), str)


def _blank(event: Mapping[str, Any]) -> JsonObject:
    """Nothing is left but what a receipt needs."""
    return {"event_id": event["event_id"], "sender": event.get("sender")}
