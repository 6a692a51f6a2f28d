#!/usr/bin/env python3
"""Measure a Matrix chat agent from outside. Runtime-neutral: everything is a parameter.

 load      closed loop of --concurrency workers, --count messages, each its own thread root (or --mode same-thread/room)
           --open sends all at once
 classify  re-read a room's history for the messages of a previous run (--run FILE) and say once/twice/never
 crash     send N with model delay, run --kill-cmd at --at seconds, --start-cmd after --down, wait, classify
 backlog   --stop-cmd, send N in --threads threads, --start-cmd, wait, classify
 cold      --start-cmd, then how long until a message sent before the start / after it is answered
Common: --hs URL --user U --password P --room ROOM(or alias) --agent MXID --mention TEXT
Probes: --pid name=PIDFILE (repeat)  --pg DSN  --hslog FILE
"""

import argparse, asyncio, json, os, subprocess, sys, time, uuid, random
from peerlib import *


def base(p):
    p.add_argument("--hs", default="http://127.0.0.1:8008")
    p.add_argument("--user", default="human")
    p.add_argument("--password", default="pw")
    p.add_argument("--room", required=True)
    p.add_argument("--agent", required=True)
    p.add_argument("--mention", default="@assistant")
    p.add_argument("--count", type=int, default=20)
    p.add_argument("--concurrency", type=int, default=1)
    p.add_argument("--timeout", type=float, default=120)
    p.add_argument("--gap", type=float, default=0.0, help="pause between /sync calls")
    p.add_argument("--marker", default=r"⋯|Thinking\.\.\.")
    p.add_argument("--note", default=r"interrupt|error|cancel|failed|restart|sorry")
    p.add_argument("--pid", action="append", default=[])
    p.add_argument("--pg")
    p.add_argument("--hslog")
    p.add_argument("--llm", default="http://127.0.0.1:9100")
    p.add_argument("--delay", type=float)
    p.add_argument("--chunks", type=int)
    p.add_argument("--chunk-interval", type=float)
    p.add_argument("--tail", default="token")
    p.add_argument("--mode", default="root", choices=["root", "room", "same-thread", "threads"])
    p.add_argument("--threads", type=int, default=5)
    p.add_argument("--open", action="store_true")
    p.add_argument("--out")
    p.add_argument("--settle", type=float, default=7)
    p.add_argument("--think", type=float, default=0, help="pause of a worker between messages")
    p.add_argument("--words", default="hello")


async def llm_set(a):
    c = {
        k: v
        for k, v in dict(tail=a.tail, delay=a.delay, chunks=a.chunks, chunk_interval=a.chunk_interval).items()
        if v is not None
    }
    async with aiohttp.ClientSession() as s:
        try:
            await s.post(a.llm + "/reset")
            async with s.post(a.llm + "/config", json=c) as r:
                return await r.json()
        except aiohttp.ClientError:
            return None


async def llm_stats(a, per=False):
    async with aiohttp.ClientSession() as s:
        try:
            async with s.get(a.llm + "/stats" + ("?per=1" if per else "")) as r:
                return await r.json()
        except aiohttp.ClientError:
            return None


async def open_room(a, hs):
    r = a.room
    if r.startswith("#") or True:
        try:
            r = await hs.join(a.room)
        except RuntimeError as e:
            print("join:", e, file=sys.stderr)
    a.room = r
    return r


def mk(a):
    return Room(a.agent, marker=a.marker, note=a.note)


RUN = uuid.uuid4().hex[:5]


async def send1(a, hs, room, i, thread=None, retry=0):
    sid = f"{RUN}{i:04d}"
    t = time.time()
    eid = await hs.send(
        a.room, message(a.agent, a.mention, f"{a.words} tok-{sid} fin-{sid}", thread), txn=sid, retry=retry
    )
    room.add_source(eid, sid, t)
    return eid


async def wait_all(room, n, timeout, quiet=None):
    t0 = time.time()
    while time.time() - t0 < timeout:
        if sum("t_fin" in s for s in room.src.values()) >= n:
            return True
        await asyncio.sleep(0.1)
    return False


def emit(a, o):
    o = dict(cmd=a.cmd, at=time.strftime("%H:%M:%S"), run=RUN, loadavg=os.getloadavg(), **o)
    s = json.dumps(o, indent=1, ensure_ascii=False)
    if a.out:
        open(a.out, "w").write(s)
    print(s)


async def load(a):
    async with HS(a.hs) as hs:
        await hs.login(a.user, a.password)
        await open_room(a, hs)
        room, stop, ready, cnt = mk(a), asyncio.Event(), asyncio.Event(), {}
        sy = asyncio.create_task(syncer(hs, a.room, room.feed, stop, a.gap, ready, cnt))
        await ready.wait()
        st = await llm_set(a)
        th = None
        if a.mode == "same-thread":
            th = await hs.send(a.room, dict(msgtype="m.text", body="thread root for load"))
        pr = Probe(dict(x.split("=") for x in a.pid), a.pg, a.hslog)
        await pr.start()
        q = iter(range(a.count))
        lost = []
        t0 = time.time()

        async def worker():
            for i in q:
                eid = await send1(a, hs, room, i, th)
                s = room.src[eid]
                if "t_fin" not in s:
                    f = room.waiters[eid] = asyncio.get_running_loop().create_future()
                    try:
                        await asyncio.wait_for(f, a.timeout)
                    except asyncio.TimeoutError:
                        lost.append(s["id"])
                if a.think:
                    await asyncio.sleep(a.think)

        if a.open:
            await asyncio.gather(*[send1(a, hs, room, i, th) for i in q])
            await wait_all(room, a.count, a.timeout)
            lost = [s["id"] for s in room.src.values() if "t_fin" not in s]
        else:
            await asyncio.gather(*[worker() for _ in range(a.concurrency)])
        t1 = time.time()
        done = [s for s in room.src.values() if "t_fin" in s]
        o = dict(
            settings=st,
            count=a.count,
            concurrency="open" if a.open else a.concurrency,
            mode=a.mode,
            answered=len(done),
            lost=lost,
            wall=round(t1 - t0, 2),
            per_s=round(len(done) / (max(s["ts_fin"] for s in done) - t0), 3) if done else 0,
            first_visible=dist([s["t_vis"] - s["t_send"] for s in done]),
            final=dist([s["t_fin"] - s["t_send"] for s in done]),
            first_visible_server=dist([s["ts_vis"] - s["t_send"] for s in done]),
            final_server=dist([s["ts_fin"] - s["t_send"] for s in done]),
        )
        o["probe"] = await pr.stop(a.count, a.settle)
        o["llm"] = await llm_stats(a)
        stop.set()
        await sy
        room2 = mk(a)
        room2.src = {k: dict(id=v["id"], t_send=v["t_send"]) for k, v in room.src.items()}
        room2.byid = dict(room.byid)
        o["events_read"] = await history(hs, a.room, t0 - 2, room2.feed)
        o["classify"] = room2.classify()
        o["edits_per_answer"] = round(sum(x["edits"] for x in room2.ans.values()) / max(1, len(room2.ans)), 2)
        o["agent_events_per_msg"] = round((sum(x["edits"] for x in room2.ans.values()) + len(room2.ans)) / a.count, 2)
        o["sync_limited"] = cnt
        emit(a, o)


def sh(c):
    return subprocess.run(
        c, shell=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ).returncode


async def ash(c):
    return await asyncio.to_thread(sh, c)


async def crash(a):
    async with HS(a.hs) as hs:
        await hs.login(a.user, a.password)
        await open_room(a, hs)
        room, stop, ready = mk(a), asyncio.Event(), asyncio.Event()
        sy = asyncio.create_task(syncer(hs, a.room, room.feed, stop, 0.05, ready))
        await ready.wait()
        st = await llm_set(a)
        roots = []
        if a.mode == "threads":
            roots = [await hs.send(a.room, dict(msgtype="m.text", body=f"root {k}")) for k in range(a.threads)]
        t0 = time.time()
        if a.rate:

            async def feeder():
                for i in range(a.count):
                    await send1(a, hs, room, i, roots[i % len(roots)] if roots else None, retry=200)
                    await asyncio.sleep(1 / a.rate)

            fd = asyncio.create_task(feeder())
        else:
            await asyncio.gather(
                *[send1(a, hs, room, i, roots[i % len(roots)] if roots else None) for i in range(a.count)]
            )
        await asyncio.sleep(max(0, a.at - (time.time() - t0)))
        l0 = await llm_stats(a)
        done0 = sum("t_fin" in s for s in room.src.values())
        vis0 = sum("t_vis" in s for s in room.src.values())
        await ash(a.kill_cmd)
        tk = time.time()
        await asyncio.sleep(a.down)
        ts = time.time()
        await ash(a.start_cmd)
        if a.rate:
            await fd
        ok = await wait_all(room, a.count, a.timeout)
        tdone = time.time()
        await asyncio.sleep(a.quiet)
        stop.set()
        await sy
        room2 = mk(a)
        room2.src = {k: dict(id=v["id"], t_send=v["t_send"]) for k, v in room.src.items()}
        room2.byid = dict(room.byid)
        n = await history(hs, a.room, t0 - 2, room2.feed)
        c = room2.classify()
        emit(
            a,
            dict(
                settings=st,
                kill_at=round(tk - t0, 2),
                visible_at_kill=vis0,
                final_at_kill=done0,
                llm_at_kill={k: l0[k] for k in ("chat", "inflight")} if l0 else None,
                down_s=round(ts - tk, 2),
                all_final_after_start_s=round(tdone - ts, 2) if ok else None,
                last_final_after_start_s=round(
                    max([s["ts_fin"] for s in room.src.values() if "t_fin" in s] or [ts]) - ts, 2
                ),
                final=dist([s["t_fin"] - s["t_send"] for s in room.src.values() if "t_fin" in s]),
                classify=c,
                llm=await llm_stats(a),
                events=n,
            ),
        )


async def backlog(a):
    async with HS(a.hs) as hs:
        await hs.login(a.user, a.password)
        await open_room(a, hs)
        st = await llm_set(a)

        async def mkroots():
            return (
                [None]
                if a.mode == "root"
                else [await hs.send(a.room, dict(msgtype="m.text", body=f"root {k}")) for k in range(a.threads)]
            )

        if a.roots_before:
            roots = await mkroots()
            await asyncio.sleep(8)
        await ash(a.stop_cmd)
        room, stop, ready = mk(a), asyncio.Event(), asyncio.Event()
        sy = asyncio.create_task(syncer(hs, a.room, room.feed, stop, 0.05, ready))
        await ready.wait()
        if not a.roots_before:
            roots = await mkroots()
        t0 = time.time()
        for i in range(a.count):
            await send1(a, hs, room, i, roots[i % len(roots)])
        tsent = time.time()
        await asyncio.sleep(a.down)
        ts = time.time()
        await ash(a.start_cmd)
        ok = await wait_all(room, a.count, a.timeout)
        tdone = time.time()
        await asyncio.sleep(a.quiet)
        stop.set()
        await sy
        room2 = mk(a)
        room2.src = {k: dict(id=v["id"], t_send=v["t_send"]) for k, v in room.src.items()}
        room2.byid = dict(room.byid)
        n = await history(hs, a.room, t0 - 2, room2.feed)
        l = await llm_stats(a, per=True)
        seen = {s["id"]: l["seen"].get("tok-" + s["id"], 0) for s in room.src.values()} if l else {}
        c = room2.classify()
        c["never_and_not_seen_by_model"] = [i for i in c["never_ids"] if not seen.get(i)]
        fin = sorted(s["ts_fin"] - ts for s in room.src.values() if "t_fin" in s)
        emit(
            a,
            dict(
                settings=st,
                mode=a.mode,
                threads=len(roots),
                sent=a.count,
                send_s=round(tsent - t0, 2),
                first_final_after_start_s=round(fin[0], 2) if fin else None,
                last_final_after_start_s=round(fin[-1], 2) if fin else None,
                all=ok,
                classify=c,
                llm=await llm_stats(a),
                events=n,
            ),
        )


async def cold(a):
    """kill/stop, start, and: message sent right after start cmd -> final"""
    async with HS(a.hs) as hs:
        await hs.login(a.user, a.password)
        await open_room(a, hs)
        st = await llm_set(a)
        res = []
        for k in range(a.count):
            await ash(a.stop_cmd)
            await asyncio.sleep(1)
            room, stop, ready = mk(a), asyncio.Event(), asyncio.Event()
            sy = asyncio.create_task(syncer(hs, a.room, room.feed, stop, 0, ready))
            await ready.wait()
            ts = time.time()
            await ash(a.start_cmd)
            eid = await send1(a, hs, room, k)
            await wait_all(room, 1, a.timeout)
            s = room.src[eid]
            res.append(dict(vis=round(s.get("t_vis", 0) - ts, 2), fin=round(s.get("t_fin", 0) - ts, 2)))
            stop.set()
            await sy
        emit(a, dict(settings=st, runs=res, fin=dist([r["fin"] for r in res])))


async def classify(a):
    """re-read the room and classify all messages of run ids --run (comma separated), newest --hours"""
    async with HS(a.hs) as hs:
        await hs.login(a.user, a.password)
        await open_room(a, hs)
        ev = []
        await history(hs, a.room, time.time() - a.hours * 3600, ev.append)
        o = {}
        for run in a.run.split(","):
            room = mk(a)
            for e in ev:
                m = (
                    re.search(r"tok-(" + run + r"\d{4})", e["content"].get("body", ""))
                    if e["sender"] == hs.user
                    else None
                )
                if m:
                    room.add_source(e["event_id"], m.group(1), e["origin_server_ts"] / 1000)
            for e in ev:
                room.feed(e, e["origin_server_ts"] / 1000)
            o[run] = room.classify()
            f = [s["ts_fin"] for s in room.src.values() if "ts_fin" in s]
            o[run]["last_final_at"] = time.strftime("%H:%M:%S", time.gmtime(max(f))) if f else None
        emit(a, o)


async def idle(a):
    """requests/CPU/memory while nothing happens for --timeout seconds"""
    pr = Probe(dict(x.split("=") for x in a.pid), a.pg, a.hslog)
    await pr.start()
    await asyncio.sleep(a.timeout)
    o = await pr.stop(a.timeout, a.settle)
    emit(a, dict(note="per_msg means per second here", probe=o))


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sp = ap.add_subparsers(dest="cmd", required=True)
    for n in ("load", "crash", "backlog", "cold", "idle", "classify"):
        p = sp.add_parser(n)
        base(p)
        p.add_argument("--kill-cmd")
        p.add_argument("--start-cmd")
        p.add_argument("--stop-cmd")
        p.add_argument("--at", type=float, default=1)
        p.add_argument("--down", type=float, default=1)
        p.add_argument("--quiet", type=float, default=10)
        p.add_argument("--rate", type=float)
        p.add_argument("--run")
        p.add_argument("--hours", type=float, default=2)
        p.add_argument("--roots-before", action="store_true")
    a = ap.parse_args()
    asyncio.run(globals()[a.cmd](a))


if __name__ == "__main__":
    main()
