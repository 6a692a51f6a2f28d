#!/usr/bin/env python3
"""Fake OpenAI-compatible server for measuring chat agents.

  fakellm.py --port 9100 --delay 0.2 --chunks 10 --chunk-interval 0.02 [--log FILE]

POST /v1/chat/completions  streaming and not; replies 'echo: <last user text>'
POST /v1/embeddings        deterministic 32-dim vector      GET /v1/models
GET  /stats                counts; per-token counts of requests (token = tok-[0-9a-z]+ in the last user text)
POST /config {delay,chunks,chunk_interval,tail} changes behaviour at run time; POST /reset clears counts

--tail: 'last-line' echoes only the last non-empty line(s) holding the token of the last user message (so that
a runtime which wraps the user text in a big prompt still gets a small reply), 'full' echoes all of it.
"""

import argparse, asyncio, json, re, time, hashlib
from aiohttp import web

TOK = re.compile(r"tok-[0-9a-z]+")
S = dict(delay=0.2, chunks=10, chunk_interval=0.02, tail="token")
C = dict(chat=0, stream=0, other=0, emb=0, aborted=0, inflight=0, maxinflight=0)
PER = {}
SEEN = {}  # token -> number of main calls whose prompt (any message) holds it
RECENT = []
LOG = None


def last_user(msgs):
    for m in reversed(msgs):
        if m.get("role") == "user":
            c = m.get("content")
            if isinstance(c, list):
                c = "\n".join(p.get("text", "") for p in c if isinstance(p, dict))
            return c or ""
    return ""


def reply_for(text):
    if S["tail"] == "full":
        return "echo: " + text
    ms = list(TOK.finditer(text))
    if not ms:
        return "echo: " + text.strip()[-200:]
    if S["tail"] == "all":  # every token seen in the last user message, in order
        return "echo: " + " ".join(f"tok-{x} fin-{x}" for x in dict.fromkeys(m.group()[4:] for m in ms))
    # the piece of text round the last token, cut at line ends and XML-like tags
    i, j = ms[-1].span()
    a = max(text.rfind(x, 0, i) + len(x) if x in text[:i] else 0 for x in ("\n", ">", "[CDATA["))
    b = min([x for x in (text.find("\n", j), text.find("<", j), text.find("]]>", j)) if x >= 0] or [len(text)])
    return "echo: " + text[a:b].strip()


async def chat(req):
    t0 = time.time()
    d = await req.json()
    msgs = d.get("messages", [])
    text = last_user(msgs)
    toks = TOK.findall(text)
    tok = toks[-1] if toks else None
    # secondary calls (titles, summaries, routing) usually ask for a schema or a tool choice
    structured = bool(d.get("response_format"))
    C["chat"] += 1
    C["stream"] += bool(d.get("stream"))
    if tok and not structured:
        PER[tok] = PER.get(tok, 0) + 1
    else:
        C["other"] += 1
    if not structured:
        for x in set(TOK.findall(json.dumps(msgs))):
            SEEN[x] = SEEN.get(x, 0) + 1
    size = int(req.headers.get("content-length") or 0)
    rec = dict(
        t=round(t0, 3),
        tok=tok,
        ntok=len(set(toks)),
        stream=bool(d.get("stream")),
        structured=structured,
        nmsgs=len(msgs),
        bytes=size,
        tools=len(d.get("tools") or []),
        head=text[:120],
        tail=text[-200:] if tok else "",
    )
    RECENT.append(rec)
    del RECENT[:-2000]
    if LOG:
        LOG.write(json.dumps(rec) + "\n")
        LOG.flush()
    C["inflight"] += 1
    C["maxinflight"] = max(C["maxinflight"], C["inflight"])
    done = False
    try:
        await asyncio.sleep(S["delay"])
        out = reply_for(text)
        if structured:
            js = (d["response_format"].get("json_schema") or {}).get("schema") or {}
            o = {}
            for k, v in (js.get("properties") or {}).items():
                ty = v.get("type")
                o[k] = (
                    v["enum"][0]
                    if v.get("enum")
                    else {
                        "string": "stub",
                        "integer": 1,
                        "number": 0.5,
                        "boolean": False,
                        "array": [],
                        "object": {},
                    }.get(ty)
                )
            out = json.dumps(o) if o else '{"summary":"stub","topic":"stub"}'
        usage = dict(prompt_tokens=max(1, size // 4), completion_tokens=max(1, len(out) // 4))
        usage["total_tokens"] = sum(usage.values())
        base = dict(
            id="chatcmpl-" + hashlib.md5(f"{t0}{tok}".encode()).hexdigest()[:12],
            created=int(t0),
            model=d.get("model", "fake"),
        )
        if not d.get("stream"):
            done = True
            return web.json_response(
                dict(
                    base,
                    object="chat.completion",
                    usage=usage,
                    choices=[dict(index=0, finish_reason="stop", message=dict(role="assistant", content=out))],
                )
            )
        r = web.StreamResponse(headers={"content-type": "text/event-stream", "cache-control": "no-cache"})
        await r.prepare(req)
        n = max(1, S["chunks"])
        k = max(1, -(-len(out) // n))
        parts = [out[i : i + k] for i in range(0, len(out), k)]

        async def ev(o):
            await r.write(b"data: " + json.dumps(o).encode() + b"\n\n")

        for i, p in enumerate(parts):
            if i and S["chunk_interval"]:
                await asyncio.sleep(S["chunk_interval"])
            await ev(
                dict(
                    base,
                    object="chat.completion.chunk",
                    choices=[
                        dict(
                            index=0,
                            delta=(dict(role="assistant", content=p) if i == 0 else dict(content=p)),
                            finish_reason=None,
                        )
                    ],
                )
            )
        await ev(dict(base, object="chat.completion.chunk", choices=[dict(index=0, delta={}, finish_reason="stop")]))
        if (d.get("stream_options") or {}).get("include_usage"):
            await ev(dict(base, object="chat.completion.chunk", choices=[], usage=usage))
        await r.write(b"data: [DONE]\n\n")
        done = True
        await r.write_eof()
        return r
    finally:
        C["inflight"] -= 1
        if not done:
            C["aborted"] += 1


async def emb(req):
    d = await req.json()
    C["emb"] += 1
    inp = d.get("input", [])
    inp = inp if isinstance(inp, list) else [inp]
    return web.json_response(
        dict(
            object="list",
            model=d.get("model"),
            usage=dict(prompt_tokens=1, total_tokens=1),
            data=[
                dict(object="embedding", index=i, embedding=[b / 255 for b in hashlib.sha256(str(x).encode()).digest()])
                for i, x in enumerate(inp)
            ],
        )
    )


async def models(req):
    return web.json_response(dict(object="list", data=[dict(id="fake", object="model", created=0, owned_by="peer")]))


async def stats(req):
    hist = {}
    for v in PER.values():
        hist[v] = hist.get(v, 0) + 1
    o = dict(C, settings=S, tokens=len(PER), calls_per_token=hist)
    if req.query.get("per"):
        o["per"] = PER
        o["seen"] = SEEN
    if req.query.get("recent"):
        o["recent"] = RECENT[-int(req.query["recent"]) :]
    return web.json_response(o)


async def config(req):
    S.update(await req.json())
    return web.json_response(S)


async def reset(req):
    infl = C["inflight"]
    for k in C:
        C[k] = 0
    C["inflight"] = infl
    PER.clear()
    SEEN.clear()
    RECENT.clear()
    return web.json_response({})


def main():
    global LOG
    ap = argparse.ArgumentParser()
    ap.add_argument("--host", default="127.0.0.1")
    ap.add_argument("--port", type=int, default=9100)
    ap.add_argument("--delay", type=float, default=0.2)
    ap.add_argument("--chunks", type=int, default=10)
    ap.add_argument("--chunk-interval", type=float, default=0.02)
    ap.add_argument("--tail", default="token")
    ap.add_argument("--log")
    a = ap.parse_args()
    S.update(delay=a.delay, chunks=a.chunks, chunk_interval=a.chunk_interval, tail=a.tail)
    if a.log:
        LOG = open(a.log, "a")
    app = web.Application(client_max_size=1 << 28)
    app.router.add_post("/v1/chat/completions", chat)
    app.router.add_post("/v1/embeddings", emb)
    app.router.add_get("/v1/models", models)
    app.router.add_get("/stats", stats)
    app.router.add_post("/config", config)
    app.router.add_post("/reset", reset)
    web.run_app(app, host=a.host, port=a.port, access_log=None, print=None)


main()
