import json, sys

for f in sys.argv[1:]:
    o = json.load(open(f))
    print("==", f, o["cmd"], o["at"], "load", [round(x, 1) for x in o["loadavg"]], o.get("settings"))
    for k in "count concurrency mode answered wall per_s first_visible final first_visible_server final_server edits_per_answer agent_events_per_msg sync_limited kill_at visible_at_kill final_at_kill llm_at_kill down_s all_final_after_start_s last_final_after_start_s first_final_after_start_s runs fin".split():
        if k in o:
            print("  ", k, o[k])
    c = o.get("classify")
    if c:
        print("   classify", {k: v for k, v in c.items() if v})
    l = o.get("llm")
    if l:
        print("   llm", {k: v for k, v in l.items() if k != "settings"})
    p = o.get("probe")
    if p:
        print("  ", {k: p[k] for k in p if k not in ("db", "hs_requests")})
        for u, d in p.get("hs_requests", {}).items():
            print("   ", u, d)
        if "db" in p:
            d = p["db"]
            print(
                "    db",
                d["per_msg"],
                "stm/msg",
                d["statements_per_msg"],
                "ms/msg",
                d["statement_ms_per_msg"],
                "walkB",
                d["wal_kB_per_msg"],
                "sizekB",
                d["size_kB_per_msg"],
            )
            print("    ", d["tables_ins_upd_del_per_msg"])
