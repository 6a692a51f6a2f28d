"""A homeserver with one room, in memory: what is written is served by sync and history, and stripped once redacted.

It keeps the whole timeline, so the truth can be computed from it afterwards without anything the runtime stored.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from mindroom.core.content import DELIVERY_KEY
from mindroom.core.errors import MatrixDeliveryFailure, MatrixFailure, MatrixFailureClass
from mindroom.core.ids import DeviceId, EventId, RoomId, SyncToken
from mindroom.core.ports import HistoryPage, OutgoingEvent, SyncBatch, WirePayload
from tests.support.events import ALICE, ME, ROOM, Event, event, joined_room, left_room, member, response, state
from tests.support.spine import DEVICE, LostReply

FURNITURE: list[Event] = [
    state("$create", "m.room.create", {"room_version": "11"}),
    state("$power", "m.room.power_levels", {"users": {ALICE: 100}}),
    member("$alice-in", ALICE, "join"),
]


@dataclass
class RoomServer:
    """SyncPort, HistoryPort, MembershipPort and RoomReader and DeliveryGateway of one account in one room."""

    now_ms: Callable[[], int]
    limit: int = 5
    """A sync response holds at most so many events; more are a gap."""
    device_id: DeviceId = DEVICE
    timeline: list[Event] = field(default_factory=list)
    faults: deque[Exception | None] = field(default_factory=deque)
    """How the next sends end."""
    sent: dict[tuple[DeviceId, str], EventId] = field(default_factory=dict)
    _markers: list[Event] = field(default_factory=list)
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    # ---- the room ---------------------------------------------------------------------------------------------------
    def write(self, made: Event, *, later_ms: int = 0) -> Event:
        """An event enters the room, its clock that much ahead; a redaction strips its target at once."""
        made["origin_server_ts"] = self.now_ms() + len(self.timeline) + later_ms
        made.setdefault("unsigned", {})["membership"] = "join" if self.is_member or _is_ours(made) else "leave"
        self.timeline.append(made)
        if made["type"] == "m.room.redaction":
            self._strip(made)
        self._news.set()
        return made

    @property
    def is_member(self) -> bool:
        """Whether the agent is in the room now."""
        return self._membership_at(len(self.timeline)) == "join"

    def ours(self) -> list[Event]:
        """What the agent said, in order."""
        return [made for made in self.timeline if made["sender"] == ME and made["type"] == "m.room.message"]

    def markers(self, *stages: str) -> list[Event]:
        """The delivery markers of everything the agent ever said in these stages, redacted since or not."""
        return [marker for marker in self._markers if marker["stage"] in stages]

    def since_join(self) -> list[Event]:
        """Everything since the agent's current membership began."""
        return self.timeline[self._joined_at(len(self.timeline)) :]

    def _strip(self, redaction: Event) -> None:
        for made in self.timeline:
            if made["event_id"] == redaction["content"]["redacts"] and "redacted_because" not in made["unsigned"]:
                made["content"] = {}
                made["unsigned"]["redacted_because"] = redaction

    def _membership_at(self, position: int) -> str:
        ours = [made["content"]["membership"] for made in self.timeline[:position] if _is_ours(made)]
        return ours[-1] if ours else "leave"

    def _joined_at(self, position: int) -> int:
        return max((n for n, made in enumerate(self.timeline[:position]) if _is_ours(made)), default=0)

    # ---- sync -------------------------------------------------------------------------------------------------------
    async def sync(self, since: SyncToken | None, *, timeout_seconds: float, full_state: bool) -> SyncBatch:
        start = 0 if since is None else int(since[1:])
        while since is not None and timeout_seconds > 0 and start >= len(self.timeline):
            self._news.clear()
            await self._news.wait()
        end = len(self.timeline)
        before, now = self._membership_at(start) if since else "leave", self._membership_at(end)
        raw = response(next_batch=f"s{end}")
        if now == "join":
            raw["rooms"]["join"] = self._joined(start, end, is_new=before != "join" or self._joined_at(end) >= start)
        elif before == "join":
            gone = self._joined_at(end) + 1
            raw["rooms"]["leave"] = {ROOM: left_room(self._shown(max(start, gone - self.limit), gone))}
        return SyncBatch(SyncToken(f"s{end}"), raw)

    def _joined(self, start: int, end: int, *, is_new: bool) -> dict[str, Event]:
        first = max(start, end - self.limit)
        if is_new:
            first = max(first, self._joined_at(end))
        if first >= end:
            return {}
        limited = first > start or is_new
        furniture = FURNITURE if is_new else []
        return {ROOM: joined_room(self._shown(first, end), state=furniture, limited=limited, prev_batch=f"s{first}")}

    def _shown(self, start: int, end: int) -> list[Event]:
        return deepcopy(self.timeline[start:end])

    # ---- history ----------------------------------------------------------------------------------------------------
    async def messages_back(self, room: RoomId, *, start: SyncToken, stop: SyncToken | None, limit: int) -> HistoryPage:
        last, floor = int(start[1:]), int(stop[1:]) if stop else 0
        first = max(floor, last - min(limit, 3))
        end = SyncToken(f"s{first}") if first > floor else None
        return HistoryPage(list(reversed(self._shown(first, last))), end)

    async def said_since(self, room: RoomId, *, start: SyncToken) -> HistoryPage:
        return HistoryPage(
            [made for made in self._shown(int(start[1:]), len(self.timeline)) if made["sender"] == ME], None
        )

    async def edits(self, room: RoomId, event: EventId, *, limit: int) -> HistoryPage:
        relations = [(made, made["content"].get("m.relates_to", {})) for made in self.timeline]
        found = [made for made, rel in relations if (rel.get("rel_type"), rel.get("event_id")) == ("m.replace", event)]
        return HistoryPage(deepcopy(found[::-1][:limit]), None)

    async def event(self, room: RoomId, event: EventId) -> Event:
        found = [made for made in self.timeline if made["event_id"] == event]
        if not found:
            raise MatrixFailure("event", MatrixFailureClass.NOT_FOUND, status=404, errcode="M_NOT_FOUND")
        return deepcopy(found[0])

    # ---- membership -------------------------------------------------------------------------------------------------
    async def join(self, room: RoomId, *, via: Sequence[str] = ()) -> None:
        raise AssertionError("nobody invites here")

    async def leave(self, room: RoomId) -> None:
        raise AssertionError("missing or late data never makes a bot leave (F3)")

    # ---- sends ------------------------------------------------------------------------------------------------------
    async def freeze(self, event: OutgoingEvent) -> WirePayload:
        return WirePayload(event.room, event.event_type, event.content, event.txn_id, self.device_id)

    async def send(self, wire: WirePayload) -> EventId:
        fault = self.faults.popleft() if self.faults else None
        if fault is not None and not isinstance(fault, LostReply):
            raise fault
        scope = (wire.device_id, wire.txn_id)
        if scope not in self.sent:
            if not self.is_member:
                raise MatrixDeliveryFailure("send", MatrixFailureClass.FORBIDDEN, status=403, errcode="M_FORBIDDEN")
            self.sent[scope] = EventId(f"$said{len(self.sent)}")
            made = event(self.sent[scope], sender=ME, type_=wire.event_type, content=deepcopy(wire.content))
            made["unsigned"] = {"transaction_id": wire.txn_id}
            if DELIVERY_KEY in wire.content:
                self._markers.append(wire.content[DELIVERY_KEY])
            self.write(made)
        if fault is not None:
            raise fault.args[0]
        return self.sent[scope]


def _is_ours(made: Event) -> bool:
    return bool(made["type"] == "m.room.member" and made.get("state_key") == ME)


def naive_texts(timeline: list[Event]) -> dict[str, Any]:
    """What each message shows, computed from the whole timeline: its newest own edit that was not redacted."""
    shown: dict[str, Any] = {}
    for made in timeline:
        if made["type"] != "m.room.message" or "redacted_because" in made["unsigned"]:
            continue
        content = made["content"]
        if content.get("m.relates_to", {}).get("rel_type") == "m.replace":
            continue
        edits = [
            other
            for other in timeline
            if other["content"].get("m.relates_to", {}).get("rel_type") == "m.replace"
            and other["content"]["m.relates_to"]["event_id"] == made["event_id"]
            and other["sender"] == made["sender"]
            and _stage(other) != "progress"
        ]
        newest = max(edits, key=lambda e: (e["origin_server_ts"], e["event_id"]), default=None)
        first = None if _stage(made) == "initial" else content["body"]
        shown[made["event_id"]] = first if newest is None else newest["content"]["m.new_content"]["body"]
    return shown


def _stage(made: Event) -> str | None:
    marker = made["content"].get(DELIVERY_KEY)
    return marker["stage"] if isinstance(marker, dict) else None
