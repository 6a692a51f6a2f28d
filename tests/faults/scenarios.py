"""What the program does when a fault strikes: each scenario brings an installation to its trigger, arms, triggers.

A scenario returns when its last message is written; the installation's `settle` waits and judges.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from urllib.parse import quote

from tests.faults.cases import TROUBLE, Case, Scenario
from tests.faults.installation import Installation

GAP_MESSAGES = 110
"""More than a response of sync brings (100)."""
_AT_ONCE = 22

Play = Callable[[Installation, Case | None], Awaitable[None]]


async def _serving(inst: Installation) -> None:
    """The process runs and the person is in the room."""
    if not inst.runtime.is_running:
        inst.runtime.arm(None)
        await inst.runtime.start()
    await inst.runtime.wait_ready()
    await inst.enter_room()


async def empty(inst: Installation, case: Case | None) -> None:
    """First start on an empty database and a homeserver that knows nothing of us."""
    inst.runtime.arm(case)
    await inst.runtime.start()
    await inst.enter_room()
    await inst.runtime.wait_ready()
    inst.runtime.end_scene()
    await inst.ask()


async def answer(inst: Installation, case: Case | None) -> None:
    """One answer with placeholder, progress and end, by a process that runs."""
    await _serving(inst)
    inst.runtime.arm(case)
    await inst.ask()


async def restart(inst: Installation, case: Case | None) -> None:
    """A message was written while the process was stopped."""
    await _serving(inst)
    await inst.runtime.stop()
    await inst.ask()
    inst.runtime.arm(case)
    await inst.runtime.start()


async def adopt(inst: Installation, case: Case | None) -> None:
    """The earlier process was killed while its placeholder stood: the next one adopts it (D2)."""
    await _serving(inst)
    await inst.see_placeholder(await inst.ask())
    await inst.runtime.kill()
    inst.runtime.arm(case)
    await inst.runtime.start()


async def gap(inst: Installation, case: Case | None) -> None:
    """So much was written while the process was stopped that sync shows only the end of it (B2)."""
    await _gap(inst, case, Scenario.GAP)


async def gap_fails(inst: Installation, case: Case | None) -> None:
    """The same, and the first request for what was skipped fails (B3)."""
    await _gap(inst, case, Scenario.GAP_FAILS)


async def _gap(inst: Installation, case: Case | None, scenario: Scenario) -> None:
    await _serving(inst)
    await inst.runtime.stop()
    await inst.ask()
    await _talk(inst, inst.room)
    await inst.ask()
    inst.runtime.arm(case, trouble=TROUBLE[scenario])
    await inst.runtime.start()


async def _talk(inst: Installation, room: str) -> None:
    for start in range(0, GAP_MESSAGES, _AT_ONCE):
        await asyncio.gather(*(inst.human.send(room, f"talk {start + n}", mentions=[]) for n in range(_AT_ONCE)))


async def unsent(inst: Installation, case: Case | None) -> None:
    """One answer, of which nothing is known to be sent at the first attempt (E4)."""
    await _serving(inst)
    inst.runtime.arm(case, trouble=TROUBLE[Scenario.UNSENT])
    await inst.ask()


async def deferred(inst: Installation, case: Case | None) -> None:
    """A turn cannot be opened for a while: its source waits in back-off (C2)."""
    await _serving(inst)
    inst.runtime.arm(case, trouble=TROUBLE[Scenario.DEFERRED])
    await inst.ask()


async def dm(inst: Installation, case: Case | None) -> None:
    """A person opens a direct chat and writes into it."""
    await _serving(inst)
    inst.runtime.arm(case)
    room = await inst.human.create_room(invite=[inst.agent], is_direct=True, preset="trusted_private_chat")
    await inst.ask(room=room)


async def stranger(inst: Installation, case: Case | None) -> None:
    """Somebody who may not invite invites; the agent declines and goes on serving (A9)."""
    await _serving(inst)
    async with await inst.new_person() as person:
        inst.runtime.arm(case)
        room = await person.create_room(invite=[inst.agent])
        await inst.see_declined(person, room)
    inst.runtime.end_scene()
    await inst.ask()


async def redaction(inst: Installation, case: Case | None) -> None:
    """The person removes the message while its answer grows: the placeholder goes, no answer comes (A4, D9)."""
    await _serving(inst)
    source = await inst.ask(answered=False)
    await inst.see_placeholder(source)
    inst.runtime.arm(case)
    await inst.human.redact(source.room, source.event_id)


async def edit(inst: Installation, case: Case | None) -> None:
    """The person edits a message while its answer grows and takes the edit back: what stood is restored (A4)."""
    await _serving(inst)
    source = await inst.ask()
    await inst.see_placeholder(source)
    inst.runtime.arm(case)
    edited = await inst.human.edit(source.room, source.event_id, "something else", mentions=[inst.agent])
    await inst.human.redact(source.room, edited)


async def thread(inst: Installation, case: Case | None) -> None:
    """A message in a thread that began long before the agent came: what was said in it is read for the prompt (A12)."""
    await _serving(inst)
    room = await inst.human.create_room()
    root = await inst.human.send(room, "an old topic", mentions=[])
    await _talk(inst, room)
    await inst.human.invite(room, inst.agent)
    await inst.see_member(room, joined=True)
    inst.runtime.arm(case)
    await inst.ask(room=room, thread=root)


async def moved_on(inst: Installation, case: Case | None) -> None:
    """The process was killed while it answered, and the person wrote on meanwhile: one answer to both (R19)."""
    await _serving(inst)
    first = await inst.ask()
    await inst.see_placeholder(first)
    await inst.runtime.kill()
    inst.sources[first.room].remove(first)
    await inst.ask(thread=first.event_id)
    inst.runtime.arm(case)
    await inst.runtime.start()


async def leave(inst: Installation, case: Case | None) -> None:
    """The agent is thrown out while it answers and let in again: the old answer never comes, the next one does (F2)."""
    await _serving(inst)
    room = await inst.human.create_room(invite=[inst.agent])
    await inst.see_member(room, joined=True)
    source = await inst.ask(room=room, answered=False)
    await inst.see_placeholder(source)
    inst.sources[room][-1] = replace(source, is_cut_off=True)
    inst.runtime.arm(case)
    await inst.human.kick(room, inst.agent)
    await inst.human.invite(room, inst.agent)
    await inst.see_member(room, joined=True)
    await inst.ask(room=room)


async def upgrade(inst: Installation, case: Case | None) -> None:
    """The person upgrades the room: the agent follows, answers there and leaves the old room (F4, R13)."""
    await _serving(inst)
    old = await inst.human.create_room(invite=[inst.agent])
    await inst.see_member(old, joined=True)
    inst.runtime.arm(case)
    answer = await inst.human.call("POST", f"/rooms/{quote(old, safe='')}/upgrade", body={"new_version": "11"})
    new = answer["replacement_room"]
    await inst.human.invite(new, inst.agent)
    await inst.see_member(new, joined=True)
    await inst.ask(room=new)
    await inst.see_member(old, joined=False)


async def drain(inst: Installation, case: Case | None) -> None:
    """The process is told to stop while an answer grows, and started again."""
    await _serving(inst)
    await inst.see_placeholder(await inst.ask())
    inst.runtime.arm(case)
    await inst.runtime.stop()
    inst.runtime.disarm()
    inst.runtime.end_scene()
    await inst.runtime.start()


PLAYS: dict[Scenario, Play] = {
    Scenario.EMPTY: empty,
    Scenario.ANSWER: answer,
    Scenario.RESTART: restart,
    Scenario.ADOPT: adopt,
    Scenario.GAP: gap,
    Scenario.DM: dm,
    Scenario.STRANGER: stranger,
    Scenario.REDACTION: redaction,
    Scenario.DRAIN: drain,
    Scenario.UNSENT: unsent,
    Scenario.DEFERRED: deferred,
    Scenario.GAP_FAILS: gap_fails,
    Scenario.EDIT: edit,
    Scenario.THREAD: thread,
    Scenario.MOVED_ON: moved_on,
    Scenario.LEAVE: leave,
    Scenario.UPGRADE: upgrade,
}
