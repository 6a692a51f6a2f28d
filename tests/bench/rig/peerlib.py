"""Shared helpers: Matrix client over plain HTTP, room classifier, resource/DB/homeserver probes. No runtime assumed."""

import asyncio, json, os, re, time, uuid, subprocess, statistics
from urllib.parse import quote
import aiohttp

CLK = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


class HS:
    def __init__(self, url, token=None):
        self.url, self.token, self.s = url.rstrip("/"), token, None

    async def __aenter__(self):
        self.s = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=120)
        )
        return self

    async def __aexit__(self, *a):
        await self.s.close()

    async def req(self, m, path, body=None, retry=0, **q):
        h = {"Authorization": "Bearer " + self.token} if self.token else {}
        while True:
            try:
                async with self.s.request(
                    m,
                    self.url + "/_matrix/client/v3" + path,
                    json=body,
                    headers=h,
                    params={k: str(v) for k, v in q.items() if v is not None},
                ) as r:
                    d = await r.json(content_type=None)
                    if r.status in (429, 502, 503) and retry > 0:
                        retry -= 1
                        await asyncio.sleep((d or {}).get("retry_after_ms", 500) / 1000)
                        continue
                    if r.status >= 400:
                        raise RuntimeError(f"{m} {path} -> {r.status} {d}")
                    return d
            except (aiohttp.ClientError, ConnectionError, json.JSONDecodeError):
                if retry <= 0:
                    raise
                retry -= 1
                await asyncio.sleep(0.5)

    async def login(self, user, pw, device="MEASURE"):
        lp = user.split(":")[0].lstrip("@")
        d = await self.req(
            "POST",
            "/login",
            dict(type="m.login.password", identifier=dict(type="m.id.user", user=lp), password=pw, device_id=device),
        )
        self.token, self.user = d["access_token"], d["user_id"]
        return self

    async def send(self, room, content, txn=None, retry=0):
        d = await self.req(
            "PUT", f"/rooms/{quote(room)}/send/m.room.message/{txn or uuid.uuid4().hex}", content, retry=retry
        )
        return d["event_id"]

    async def join(self, room):
        return (await self.req("POST", f"/join/{quote(room)}", {}))["room_id"]


def message(agent, mention, text, thread=None):
    c = dict(msgtype="m.text", body=f"{mention} {text}" if mention else text)
    c["m.mentions"] = {"user_ids": [agent]} if mention else {}
    if mention:
        c["format"] = "org.matrix.custom.html"
        c["formatted_body"] = f'<a href="https://matrix.to/#/{agent}">{mention}</a> {text}'
    if thread:
        c["m.relates_to"] = {
            "rel_type": "m.thread",
            "event_id": thread,
            "is_falling_back": True,
            "m.in_reply_to": {"event_id": thread},
        }
    return c


class Room:
    """Feeds on room events; knows for each source message which agent events answer it, with edits applied."""

    def __init__(
        self, agent, final=r"fin-{id}", marker=r"⋯|Thinking\.\.\.", note=r"interrupt|error|cancel|failed|restart"
    ):
        self.agent, self.final, self.marker, self.note = agent, final, re.compile(marker), re.compile(note, re.I)
        self.src = {}  # event id -> dict(id=, t_send=)
        self.byid = {}  # short id -> source event id
        self.ans = {}  # agent event id -> dict(src, body, ts0, ts, edits, t_first, t_final...)
        self.seen = set()
        self.early = []
        self.waiters = {}
        self.reactions = []

    def add_source(self, eid, sid, t):
        self.src[eid] = dict(id=sid, t_send=t)
        self.byid[sid] = eid
        early, self.early = self.early, []
        for e, at in early:
            self.feed(e, at)

    def feed(self, e, at=None):
        if e.get("type") == "m.reaction" and e.get("sender") == self.agent and e.get("content"):
            self.reactions.append((e["content"].get("m.relates_to") or {}).get("event_id"))
            return
        if e.get("sender") != self.agent or e.get("type") not in ("m.room.message", "m.room.encrypted"):
            return
        if e["event_id"] in self.seen:
            return
        at = at or time.time()
        c = e.get("content", {})
        rel = c.get("m.relates_to") or {}
        ts = e["origin_server_ts"] / 1000
        if rel.get("rel_type") == "m.replace":
            a = self.ans.get(rel.get("event_id"))
            if a is None:
                self.early.append((e, at)) if len(self.early) < 100000 else None
                return
            self.seen.add(e["event_id"])
            body = (c.get("m.new_content") or {}).get("body", "")
            a["edits"] += 1
            if (ts, e["event_id"]) >= (a["ts"], a["last"]):
                a.update(body=body, ts=ts, last=e["event_id"])
        else:
            cand = [
                rel.get("event_id") if rel.get("rel_type") == "m.thread" else None,
                (rel.get("m.in_reply_to") or {}).get("event_id"),
            ]
            body = c.get("body", "")
            m = re.search(r"tok-([0-9a-z]+)", body)
            src = next((x for x in cand if x in self.src), None) or (self.byid.get(m.group(1)) if m else None)
            if src is None:
                self.early.append((e, at)) if len(self.early) < 100000 else None
                return
            self.seen.add(e["event_id"])
            a = self.ans[e["event_id"]] = dict(
                src=src,
                body=body,
                ts=ts,
                ts0=ts,
                last=e["event_id"],
                edits=0,
                at0=at,
                final_at=None,
                final_ts=None,
                msgtype=c.get("msgtype"),
            )
            s = self.src[src]
            if "t_vis" not in s:
                s["t_vis"], s["ts_vis"] = at, ts
        a = self.ans.get(e["event_id"]) or self.ans.get(rel.get("event_id"))
        s = self.src[a["src"]]
        if a["final_at"] is None and self.kind(a) in ("answer", "answer+note"):
            a["final_at"], a["final_ts"] = at, a["ts"]
            if "t_fin" not in s:
                s["t_fin"], s["ts_fin"] = at, a["ts"]
                w = self.waiters.pop(a["src"], None)
                if w and not w.done():
                    w.set_result(True)

    def kind(self, a):
        sid = self.src[a["src"]]["id"]
        b = a["body"]
        fin = self.final.replace("{id}", sid)
        if fin in b:
            return (
                "streaming"
                if self.marker.search(b)
                else ("answer" if not self.note.search(b.replace(sid, "")) else "answer+note")
            )
        if self.note.search(b):
            return "note"
        if self.marker.search(b):
            return "placeholder"
        if "tok-" + sid in b or "echo" in b:
            return "partial"
        return "other"

    def classify(self):
        per = {e: [] for e in self.src}
        for eid, a in self.ans.items():
            per[a["src"]].append((self.kind(a), a, eid))
        r = dict(
            sources=len(per),
            once=0,
            twice_or_more=0,
            never=0,
            leftover_placeholder=0,
            note_and_answer=0,
            note_only=0,
            partial_only=0,
            double_text=0,
            extra_events=0,
            kinds={},
            never_ids=[],
            twice_ids=[],
            notes={},
        )
        for e, L in per.items():
            ks = [k for k, _, _ in L]
            for k in ks:
                r["kinds"][k] = r["kinds"].get(k, 0) + 1
            n = sum(k in ("answer", "answer+note") for k in ks)
            sid = self.src[e]["id"]
            r["once"] += n == 1
            if n > 1:
                r["twice_or_more"] += 1
                r["twice_ids"].append(sid)
            if n == 0:
                r["never"] += 1
                r["never_ids"].append(sid)
                r["note_only"] += "note" in ks
                r["partial_only"] += "partial" in ks and "note" not in ks
            r["note_and_answer"] += n > 0 and "note" in ks
            r["leftover_placeholder"] += sum(k in ("placeholder", "streaming") for k in ks)
            fin = self.final.replace("{id}", sid)
            r["double_text"] += any(a["body"].count(fin) > 1 for _, a, _ in L)
            for k, a, _ in L:
                if k in ("note", "answer+note", "other"):
                    t = re.sub(r"[0-9a-z]*" + sid + r"[0-9a-z]*", "", a["body"])[:90]
                    r["notes"][t] = r["notes"].get(t, 0) + 1
        r["leftover_reactions"] = sum(x in self.ans for x in self.reactions)
        # tokens which an answer to another source carries (one answer for several messages)
        bodies = " ".join(a["body"] for k in per for _, a, _ in per[k] if self.kind(a).startswith("answer"))
        r["never_but_in_another_answer"] = sum(self.final.replace("{id}", i) in bodies for i in r["never_ids"])
        r["notes"] = dict(sorted(r["notes"].items(), key=lambda x: -x[1])[:6])
        return r


async def history(hs, room, since_ts, feed, limit=500):
    """Page /messages backwards until events are older than since_ts; feed them oldest first. Returns number of events."""
    ev, frm = [], None
    flt = json.dumps({"types": ["m.room.message", "m.room.encrypted", "m.reaction"]})
    while True:
        d = await hs.req(
            "GET", f"/rooms/{quote(room)}/messages", retry=40, dir="b", limit=limit, filter=flt, **{"from": frm}
        )
        ch = d.get("chunk", [])
        ev += ch
        if not ch or not d.get("end") or ch[-1]["origin_server_ts"] / 1000 < since_ts:
            break
        frm = d["end"]
    ev = [e for e in ev if e["origin_server_ts"] / 1000 >= since_ts]
    for e in reversed(ev):
        feed(e)
    return len(ev)


async def syncer(hs, room, feed, stop, gap=0.0, ready=None, counts=None):
    flt = json.dumps(
        {
            "room": {
                "rooms": [room],
                "timeline": {
                    "limit": 1000,
                    "types": ["m.room.message", "m.room.encrypted"],
                    # unique: Synapse caches /sync responses for 2 minutes
                    "not_types": ["run." + uuid.uuid4().hex],
                },
                "ephemeral": {"types": []},
                "state": {"lazy_load_members": True, "types": []},
                "account_data": {"types": []},
            },
            "presence": {"types": []},
            "account_data": {"types": []},
        }
    )
    d = await hs.req("GET", "/sync", retry=100, filter=flt, timeout=0)
    since = d["next_batch"]
    if ready:
        ready.set()
    while not stop.is_set():
        try:
            d = await hs.req("GET", "/sync", filter=flt, timeout=2000, since=since)
        except Exception:
            await asyncio.sleep(0.3)
            continue
        at = time.time()
        since = d["next_batch"]
        rm = d.get("rooms", {}).get("join", {}).get(room)
        if rm:
            if rm["timeline"].get("limited") and counts is not None:
                counts["limited"] = counts.get("limited", 0) + 1
            for e in rm["timeline"]["events"]:
                feed(e, at)
        if gap:
            await asyncio.sleep(gap)


# ---------- probes ----------
def children(pid):
    out, st = [], [pid]
    while st:
        p = st.pop()
        out.append(p)
        try:
            for t in os.listdir(f"/proc/{p}/task"):
                st += [int(x) for x in open(f"/proc/{p}/task/{t}/children").read().split()]
        except OSError:
            pass
    return out


def cpu(pid):
    """user+system seconds of a process tree, dead children included"""
    tot = 0
    for p in children(pid):
        try:
            f = open(f"/proc/{p}/stat").read().rsplit(") ", 1)[1].split()
            tot += int(f[11]) + int(f[12]) + int(f[13]) + int(f[14])
        except OSError:
            pass
    return tot / CLK


def rss(pid):
    tot = 0
    for p in children(pid):
        try:
            tot += int(open(f"/proc/{p}/statm").read().split()[1]) * PAGE
        except OSError:
            pass
    return tot / 2**20


def io(pid):
    d = {}
    for p in children(pid):
        try:
            for l in open(f"/proc/{p}/io"):
                k, v = l.split(": ")
                d[k] = d.get(k, 0) + int(v)
        except OSError:
            pass
    return d


def machine_busy():
    f = [int(x) for x in open("/proc/stat").readline().split()[1:]]
    return (sum(f) - f[3] - f[4]) / CLK


def readpid(p):
    return int(open(p).read().split()[0]) if not str(p).isdigit() else int(p)


class Probe:
    """pids: {'bot': pidfile, ...}; pg: dsn of the bot's database; hslog: Synapse log path"""

    def __init__(self, pids, pg=None, hslog=None, llm=None):
        self.pids = {k: readpid(v) for k, v in pids.items()}
        self.pg, self.hslog = pg, hslog
        self.rss = {k: [] for k in pids}
        self._task = None

    async def start(self):
        self.t0, self.c0, self.b0 = time.time(), {k: cpu(p) for k, p in self.pids.items()}, machine_busy()
        self.me0 = sum(os.times()[:2])
        self.io0 = {k: io(p) for k, p in self.pids.items()}
        self.log0 = os.path.getsize(self.hslog) if self.hslog else 0
        self.db0 = pgstat(self.pg) if self.pg else None
        self.rss0 = {k: rss(p) for k, p in self.pids.items()}

        async def loop():
            while True:
                for k, p in self.pids.items():
                    self.rss[k].append(rss(p))
                await asyncio.sleep(0.25)

        self._task = asyncio.create_task(loop())

    async def stop(self, n, settle=7):
        t1 = time.time()
        self._task.cancel()
        c = {k: round((cpu(p) - self.c0[k]), 2) for k, p in self.pids.items()}
        busy = machine_busy() - self.b0
        me = sum(os.times()[:2]) - self.me0
        o = dict(
            secs=round(t1 - self.t0, 2),
            cpu_s=c,
            cpu_ms_per_msg={k: round(v / n * 1000, 1) for k, v in c.items()},
            measure_cpu_s=round(me, 2),
            foreign_cpu_s=round(busy - sum(c.values()) - me, 2),
            machine_busy_s=round(busy, 2),
            rss_before={k: round(v) for k, v in self.rss0.items()},
            rss_max={k: round(max(v)) for k, v in self.rss.items() if v},
            rss_mean={k: round(statistics.mean(v)) for k, v in self.rss.items() if v},
        )
        o["write_MB"] = {
            k: round((io(p).get("write_bytes", 0) - self.io0[k].get("write_bytes", 0)) / 2**20, 2)
            for k, p in self.pids.items()
        }
        if settle:
            await asyncio.sleep(settle)
        o["settled_rss"] = {k: round(rss(p)) for k, p in self.pids.items()}
        if self.pg:
            o["db"] = pgdelta(self.db0, pgstat(self.pg), n)
        if self.hslog:
            o["hs_requests"] = hsrequests(self.hslog, self.log0, n)
        return o


def psql(dsn, sql):
    r = subprocess.run(["psql", "-X", "-A", "-t", "-F", "\t", dsn, "-c", sql], capture_output=True, text=True)
    if r.returncode:
        raise RuntimeError(r.stderr)
    return [l.split("\t") for l in r.stdout.splitlines() if l]


def pgstat(dsn):
    """dsn: postgresql://user@host:port/db. Counters of that database, read through the 'postgres' database."""
    base, db = dsn.rsplit("/", 1)
    d = {}
    k = "xact_commit,xact_rollback,tup_inserted,tup_updated,tup_deleted,tup_returned,tup_fetched".split(",")
    d["db"] = dict(
        zip(
            k, map(int, psql(base + "/postgres", f"select {','.join(k)} from pg_stat_database where datname='{db}'")[0])
        )
    )
    d["wal"] = int(psql(base + "/postgres", "select pg_wal_lsn_diff(pg_current_wal_lsn(),'0/0')::bigint")[0][0])
    d["size"] = int(psql(base + "/postgres", f"select pg_database_size('{db}')")[0][0])
    d["tabs"] = {
        r[0]: list(map(int, r[1:]))
        for r in psql(dsn, "select relname,n_tup_ins,n_tup_upd,n_tup_del,n_live_tup from pg_stat_user_tables")
    }
    try:
        d["stm"] = {
            r[0]: (int(r[1]), float(r[2]), r[3])
            for r in psql(
                base + "/postgres",
                f"select queryid,sum(calls),sum(total_exec_time),left(regexp_replace(min(query),'\\s+',' ','g'),90) from pg_stat_statements s join pg_database d on d.oid=s.dbid where datname='{db}' group by 1",
            )
        }
    except RuntimeError:
        d["stm"] = {}
    return d


def pgdelta(a, b, n):
    o = {k: b["db"][k] - a["db"][k] for k in a["db"]}
    o = {"total": o, "per_msg": {k: round(v / n, 2) for k, v in o.items()}}
    o["wal_kB_per_msg"] = round((b["wal"] - a["wal"]) / 1024 / n, 2)
    o["size_kB_per_msg"] = round((b["size"] - a["size"]) / 1024 / n, 2)
    o["tables_ins_upd_del_per_msg"] = {}
    for t, v in b["tabs"].items():
        z = [round((x - y) / n, 2) for x, y in zip(v, a["tabs"].get(t, [0] * 4))][:3]
        if any(z):
            o["tables_ins_upd_del_per_msg"][t] = z
    st = []
    for q, (c, ms, txt) in b["stm"].items():
        c0, ms0, _ = a["stm"].get(q, (0, 0, ""))
        if c > c0:
            st.append(((c - c0), ms - ms0, txt))
    o["statements_per_msg"] = round(sum(x[0] for x in st) / n, 2)
    o["statement_ms_per_msg"] = round(sum(x[1] for x in st) / n, 2)
    o["top_statements"] = [(round(c / n, 2), round(ms / n, 3), t) for c, ms, t in sorted(st, key=lambda x: -x[1])[:8]]
    return o


ACC = re.compile(
    r'synapse\.access\.\S+ - \d+ - INFO - \S+ - \S+ - \d+ - \{(.*?)\} Processed request: ([\d.]+)sec.*? (\d{3})!? "(\w+) (\S+) HTTP'
)


def norm(p):
    p = p.split("?")[0]
    p = re.sub(r"/_matrix/client/(v3|r0|v1|unstable|api/v1)", "", p)
    p = re.sub(r"/(%21|!)[^/]+", "/ROOM", p)
    p = re.sub(r"/(%40|@)[^/]+", "/USER", p)
    p = re.sub(r"/(%24|\$)[^/]+", "/EVENT", p)
    p = re.sub(r"(send|redact)/([\w.]+)/[^/]+$", r"\1/\2/TXN", p)
    p = re.sub(r"/sendToDevice/([\w.]+)/.+", r"/sendToDevice/\1", p)
    return p


def hsrequests(log, off, n):
    u = {}
    with open(log, errors="replace") as f:
        f.seek(off)
        for l in f:
            m = ACC.search(l)
            if not m:
                continue
            who, _, code, meth, path = m.groups()
            d = u.setdefault(who, {})
            k = f"{meth} {norm(path)} {code}"
            d[k] = d.get(k, 0) + 1
    return {
        w: dict(
            total=sum(d.values()),
            per_msg=round(sum(d.values()) / n, 2),
            by={k: round(v / n, 2) for k, v in sorted(d.items(), key=lambda x: -x[1])[:14]},
        )
        for w, d in u.items()
    }


def pct(v, p):
    v = sorted(v)
    return round(v[min(len(v) - 1, int(len(v) * p / 100))], 3) if v else None


def dist(v):
    return (
        dict(n=len(v), min=round(min(v), 3), p50=pct(v, 50), p95=pct(v, 95), max=round(max(v), 3)) if v else dict(n=0)
    )
