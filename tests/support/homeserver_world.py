"""What the scripted homeserver knows: accounts, rooms, one event stream. Just enough semantics for the Matrix edge.

Synchronous and in memory; no HTTP, no faults. Positions in the stream are the sync tokens (`s<position>`).
"""

import hashlib
import hmac
import secrets
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]

_STRIPPED = ("m.room.create", "m.room.name", "m.room.join_rules", "m.room.encryption")


class MatrixProblem(Exception):
    """An answer of the error kind."""

    def __init__(self, status: int, errcode: str, **fields: Any) -> None:
        super().__init__(errcode)
        self.status = status
        self.body: Json = {"errcode": errcode, "error": "scripted homeserver", **fields}


@dataclass(frozen=True)
class Login:
    """Whom an access token stands for."""

    user: str
    device: str


@dataclass
class Room:
    """One room: its timeline with stream positions, and its current state."""

    room_id: str
    timeline: list[tuple[int, Json]] = field(default_factory=list)
    state: dict[tuple[str, str], tuple[int, Json]] = field(default_factory=dict)

    def membership(self, user: str) -> tuple[int, str]:
        """Position and value of a user's membership; (-1, '') when there never was one."""
        position, event = self.state.get(("m.room.member", user), (-1, {"content": {"membership": ""}}))
        return position, event["content"]["membership"]


@dataclass
class World:
    """Everything, shared by all connections."""

    server_name: str = "scripted.test"
    shared_secret: str = "scripted-secret"
    default_room_version: str = "12"
    position: int = 0
    nonces: set[str] = field(default_factory=set)
    passwords: dict[str, str] = field(default_factory=dict)
    tokens: dict[str, Login] = field(default_factory=dict)
    display_names: dict[str, str] = field(default_factory=dict)
    rooms: dict[str, Room] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    transactions: dict[tuple[str, str, str, str], str] = field(default_factory=dict)
    _numbers: int = 0

    # -- accounts ------------------------------------------------------------------------------------------------------
    def nonce(self) -> Json:
        nonce = secrets.token_hex(8)
        self.nonces.add(nonce)
        return {"nonce": nonce}

    def register(self, body: Json) -> Json:
        if body["nonce"] not in self.nonces:
            raise MatrixProblem(400, "M_UNKNOWN")
        self.nonces.discard(body["nonce"])
        signed = "\0".join((body["nonce"], body["username"], body["password"], "notadmin"))
        if hmac.new(self.shared_secret.encode(), signed.encode(), hashlib.sha1).hexdigest() != body["mac"]:
            raise MatrixProblem(403, "M_UNKNOWN")
        user = f"@{body['username']}:{self.server_name}"
        if user in self.passwords:
            raise MatrixProblem(400, "M_USER_IN_USE")
        self.passwords[user] = body["password"]
        self.display_names[user] = body["username"]
        return self._new_token(user, body["device_id"])

    def log_in(self, body: Json) -> Json:
        user = body["identifier"]["user"]
        if self.passwords.get(user) != body["password"]:
            raise MatrixProblem(403, "M_FORBIDDEN")
        return self._new_token(user, body["device_id"])

    def _new_token(self, user: str, device: str) -> Json:
        token = secrets.token_hex(8)
        self.tokens[token] = Login(user, device)
        return {"user_id": user, "device_id": device, "access_token": token}

    # -- rooms ---------------------------------------------------------------------------------------------------------
    def create_room(self, user: str, body: Json) -> str:
        alias = f"#{body['room_alias_name']}:{self.server_name}" if "room_alias_name" in body else None
        if alias in self.aliases:
            raise MatrixProblem(400, "M_ROOM_IN_USE")
        privileged = int(self.default_room_version) >= 12
        room = Room(self._name("!room"))
        self.rooms[room.room_id] = room
        creation = {"room_version": self.default_room_version, **body.get("creation_content", {})}
        self.append(room, user, "m.room.create", creation, state_key="")
        self.append(room, user, "m.room.member", {"membership": "join"}, state_key=user)
        levels = {"users": {} if privileged else {user: 100}, **body.get("power_level_content_override", {})}
        self.append(room, user, "m.room.power_levels", levels, state_key="")
        if "name" in body:
            self.append(room, user, "m.room.name", {"name": body["name"]}, state_key="")
        for invited in body.get("invite", []):
            self.invite(room, user, invited)
        if alias is not None:
            self.aliases[alias] = room.room_id
        return room.room_id

    def room(self, room_or_alias: str) -> Room:
        room = self.rooms.get(self.aliases.get(room_or_alias, room_or_alias))
        if room is None:
            raise MatrixProblem(404, "M_NOT_FOUND")
        return room

    def joined_room(self, room_id: str, user: str) -> Room:
        """The room, when `user` is in it."""
        room = self.rooms.get(room_id)
        if room is None or room.membership(user)[1] != "join":
            raise MatrixProblem(403, "M_FORBIDDEN")
        return room

    def join(self, room: Room, user: str) -> None:
        membership = room.membership(user)[1]
        if membership == "join":
            return
        if membership != "invite":
            raise MatrixProblem(403, "M_FORBIDDEN")
        self.append(room, user, "m.room.member", {"membership": "join"}, state_key=user)

    def leave(self, room: Room, user: str) -> None:
        if room.membership(user)[1] not in ("join", "invite"):
            raise MatrixProblem(403, "M_FORBIDDEN")
        self.append(room, user, "m.room.member", {"membership": "leave"}, state_key=user)

    def invite(self, room: Room, user: str, invited: str) -> None:
        if room.membership(invited)[1] in ("join", "ban"):
            raise MatrixProblem(403, "M_FORBIDDEN")
        self.append(room, user, "m.room.member", {"membership": "invite"}, state_key=invited)

    # -- events --------------------------------------------------------------------------------------------------------
    def send(self, login: Login, room: Room, event_type: str, txn: str, content: Json) -> str:
        """One event per (room, user, device, transaction id)."""
        scope = (room.room_id, login.user, login.device, txn)
        if scope not in self.transactions:
            event = self.append(room, login.user, event_type, content)
            event["unsigned"] = {"transaction_id": txn, "for_device": login.device}
            self.transactions[scope] = event["event_id"]
        return self.transactions[scope]

    def append(self, room: Room, sender: str, event_type: str, content: Json, *, state_key: str | None = None) -> Json:
        """Put an event at the end of the stream; tests may call it for events nobody would accept over HTTP."""
        event: Json = {
            "type": event_type,
            "event_id": self._name("$event"),
            "sender": sender,
            "origin_server_ts": 1_700_000_000_000 + self.position,
            "content": content,
        }
        if state_key is not None:
            event["state_key"] = state_key
            room.state[event_type, state_key] = (self.position, event)
        room.timeline.append((self.position, event))
        self.position += 1
        return event

    def _name(self, prefix: str) -> str:
        self._numbers += 1
        return f"{prefix}{self._numbers}"

    # -- reading -------------------------------------------------------------------------------------------------------
    def messages_back(self, room: Room, *, start: int, stop: int, limit: int) -> Json:
        """A page backwards from `start` (exclusive) to `stop` (inclusive), as seen by nobody in particular."""
        events = [(position, event) for position, event in room.timeline if stop <= position < start]
        page, rest = events[-limit:], events[:-limit]
        answer: Json = {"start": f"s{start}", "chunk": [shown(event, None) for _, event in reversed(page)]}
        if rest:
            answer["end"] = f"s{page[0][0]}"
        return answer

    def messages_forward(self, room: Room, *, start: int, limit: int, senders: list[str]) -> Json:
        """A page forwards from `start` (inclusive) of what these people sent; no `end` where there is nothing more."""
        said = [(at, event) for at, event in room.timeline if at >= start and event["sender"] in senders]
        answer: Json = {"start": f"s{start}", "chunk": [shown(event, None) for _, event in said[:limit]]}
        if said:
            answer["end"] = f"s{said[:limit][-1][0] + 1}"
        return answer

    def relations_back(self, room: Room, root: str, *, start: int, limit: int) -> Json:
        """A page backwards from `start` of what relates to an event, directly or not."""
        if all(event["event_id"] != root for _, event in room.timeline):
            raise MatrixProblem(404, "M_NOT_FOUND")
        related, found = {root}, []
        for position, event in room.timeline:
            if event["content"].get("m.relates_to", {}).get("event_id") in related:
                related.add(event["event_id"])
                found.append((position, event))
        found = [(position, event) for position, event in found if position < start]
        page, rest = found[-limit:], found[:-limit]
        answer: Json = {"chunk": [shown(event, None) for _, event in reversed(page)]}
        if rest:
            answer["next_batch"] = f"s{page[0][0]}"
        return answer

    def sync(self, login: Login, *, since: int | None, full_state: bool, limit: int) -> Json:
        """One response; rooms without news are absent."""
        rooms: Json = {"join": {}, "invite": {}, "leave": {}}
        for room in self.rooms.values():
            position, membership = room.membership(login.user)
            fresh = since is None or position >= since
            if membership == "join":
                part = self._joined_part(login, room, None if fresh else since, full_state=full_state, limit=limit)
                if part is not None:
                    rooms["join"][room.room_id] = part
            elif membership == "invite" and fresh:
                keys = [key for key in room.state if key[0] in _STRIPPED or key == ("m.room.member", login.user)]
                rooms["invite"][room.room_id] = {"invite_state": {"events": [room.state[key][1] for key in keys]}}
            elif membership in ("leave", "ban") and since is not None and fresh:
                events = [shown(event, login) for at, event in room.timeline if since <= at <= position]
                rooms["leave"][room.room_id] = {
                    "timeline": {"events": events, "limited": False, "prev_batch": f"s{since}"}
                }
        answer: Json = {"next_batch": f"s{self.position}"}
        if filled := {name: part for name, part in rooms.items() if part}:
            answer["rooms"] = filled
        return answer

    def _joined_part(self, login: Login, room: Room, since: int | None, *, full_state: bool, limit: int) -> Json | None:
        events = [(at, event) for at, event in room.timeline if since is None or at >= since]
        if not events and not full_state:
            return None
        shown_events = events[-limit:]
        first = shown_events[0][0] if shown_events else self.position
        oldest_state = -1 if full_state or since is None else since
        state = [event for at, event in room.state.values() if oldest_state <= at < first]
        return {
            "timeline": {
                "events": [shown(event, login) for _, event in shown_events],
                "limited": len(events) > limit,
                "prev_batch": f"s{first}",
            },
            "state": {"events": state},
        }


def shown(event: Json, login: Login | None) -> Json:
    """An event as one device sees it: the transaction id only at the device that sent it."""
    unsigned = event.get("unsigned", {})
    own = login is not None and event["sender"] == login.user and unsigned.get("for_device") == login.device
    visible = {key: value for key, value in event.items() if key != "unsigned"}
    return visible | ({"unsigned": {"transaction_id": unsigned["transaction_id"]}} if own else {})
