"""What a principal knows of its rooms: membership and current state, in memory and equal to the tables.

Only the lease holder writes these rows, so its copy is current; it is loaded at each lease take (A13).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from mindroom.core.content import JsonObject, identifier
from mindroom.core.ids import Epoch, RoomId, UserId
from mindroom.core.values import Membership
from mindroom.journal.records import Admission, RoomMembership, StateRow

KEPT_STATE = frozenset(
    {
        "m.room.create",
        "m.room.power_levels",
        "m.room.encryption",
        "m.room.tombstone",
        "m.room.name",
        "m.room.canonical_alias",
        "m.room.join_rules",
        "m.room.history_visibility",
        "m.room.member",
    }
)


@dataclass(slots=True)
class RoomView:
    """One room as we know it."""

    membership: RoomMembership | None = None
    state: dict[tuple[str, str], StateRow] = field(default_factory=dict)

    def content(self, event_type: str, state_key: str = "") -> JsonObject | None:
        """Current content of a state event, or None when it is unknown."""
        row = self.state.get((event_type, state_key))
        return row.content if row else None

    @property
    def is_encrypted(self) -> bool:
        """Encryption is sticky: once seen it stays (E10)."""
        return ("m.room.encryption", "") in self.state

    @property
    def is_known(self) -> bool:
        """False while we have no create event: then encryption is unknown and nothing is written (E10)."""
        return ("m.room.create", "") in self.state

    @property
    def successor(self) -> RoomId | None:
        """The room that this one was upgraded to, as its tombstone says (F4)."""
        tombstone = self.content("m.room.tombstone") or {}
        return RoomId(identifier(tombstone.get("replacement_room"))) or None

    @property
    def predecessor(self) -> RoomId | None:
        """The room that this one replaces, as its create event says (F4)."""
        named = (self.content("m.room.create") or {}).get("predecessor")
        return RoomId(identifier(named.get("room_id"))) or None if isinstance(named, dict) else None

    def members(self) -> Mapping[UserId, str]:
        """Membership of every member we have met."""
        return {
            UserId(key): str(row.content.get("membership", ""))
            for (kind, key), row in self.state.items()
            if kind == "m.room.member"
        }

    def display_name(self, user: UserId) -> str | None:
        """The user's name in this room."""
        content = self.content("m.room.member", user)
        name = content.get("displayname") if content else None
        return name if isinstance(name, str) and name else None


class RoomBook:
    """All rooms of one principal."""

    def __init__(self) -> None:
        self._rooms: dict[RoomId, RoomView] = {}

    def view(self, room: RoomId) -> RoomView:
        """The room, empty when we know nothing of it."""
        return self._rooms.get(room) or RoomView()

    def joined(self) -> list[RoomId]:
        """Rooms we are in."""
        return [
            room
            for room, view in self._rooms.items()
            if view.membership and view.membership.membership is Membership.JOIN
        ]

    def is_successor(self, room: RoomId) -> bool:
        """True when a room we are in was upgraded to this one, as far as its tombstone goes (F4)."""
        return any(self.view(old).successor == room for old in self.joined())

    def upgraded(self) -> list[tuple[RoomId, RoomId]]:
        """Rooms we are in with the successor that we are in too, where each names the other (F4)."""
        joined = self.joined()
        pairs = [(old, self.view(old).successor) for old in joined]
        return [(old, new) for old, new in pairs if new in joined and self.view(new).predecessor == old]

    def epoch(self, room: RoomId) -> Epoch | None:
        """The current epoch of a room we are in, else None."""
        membership = self.view(room).membership
        return membership.epoch if membership and membership.membership is Membership.JOIN else None

    def put_membership(self, room: RoomId, membership: RoomMembership) -> None:
        """Used when loading; afterwards `apply` keeps the book."""
        self._rooms.setdefault(room, RoomView()).membership = membership

    def put_state(self, row: StateRow) -> None:
        """Used when loading; afterwards `apply` keeps the book."""
        self._rooms.setdefault(row.room, RoomView()).state[row.event_type, row.state_key] = row

    def apply(self, admission: Admission) -> None:
        """Take over what has just been committed."""
        for room in admission.departures:
            self._rooms.setdefault(room, RoomView()).state.clear()
        for room, membership in admission.memberships.items():
            self.put_membership(room, membership)
        for row in admission.state.values():
            self.put_state(row)
