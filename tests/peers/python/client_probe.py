#!/usr/bin/env python3
"""client_probe.py BASE_URL TOKEN RUN_ID AGENT_ID [--live] [--expect-messages N] [--send TEXT]

Drives the UNMODIFIED cursor-sdk 1.1.0 Python client (sync, then async) against a bridge or gateway:
  ping, get_version, list_runs, get_run, observe from the start, resume from a middle offset, resume
  from the last sdk_message offset, resume from the done offset, wait(), text(); optionally Send.
Prints one line per event. Exits 1 on any surprise (each one is printed as 'SURPRISE: ...'). The last line is JSON.

--live          the run may still be going: the run's status is not required to be terminal at get_run
--send TEXT     also send TEXT on AGENT_ID (the agent must be known to the bridge) and check stream()+wait()
--no-list       skip ListRuns          --no-control    skip Ping/GetVersion
--strict-tail   require exactly the bridge's tail: result then done, both with an offset, offsets strictly new
"""
import argparse, asyncio, json, sys, warnings
from cursor_sdk import CursorClient, AsyncClient
from cursor_sdk._agent import Agent
from cursor_sdk._async_agent import AsyncAgent
from cursor_sdk import errors as E

p = argparse.ArgumentParser()
for a in ("base", "token", "run", "agent"): p.add_argument(a)
p.add_argument("--live", action="store_true"); p.add_argument("--expect-messages", type=int)
p.add_argument("--send"); p.add_argument("--no-list", action="store_true"); p.add_argument("--no-control", action="store_true")
p.add_argument("--strict-tail", action="store_true", default=False)
p.add_argument("--timeout", type=float, default=120); p.add_argument("--quiet", action="store_true")
A = p.parse_args()
bad = []
def surprise(m): bad.append(m); print("SURPRISE:", m)
def say(*m):
    if not A.quiet: print(*m)
TERMINAL = {"finished", "error", "cancelled", "expired"}
# allow_api_key_env_fallback=True: without it the client refuses ObserveRun/WaitLiveRun/CancelRun/
# GetRunConversation locally, before any request (checked in guard()).
KW = dict(base_url=A.base, auth_token=A.token, timeout=A.timeout, allow_api_key_env_fallback=True)

def show(tag, ev):
    m = ev.sdk_message
    t = getattr(m, "type", None) if m is not None else None
    if m is not None and t is None and isinstance(m, dict): t = m.get("type")
    say(f"  {tag} {ev.kind:18} offset={ev.offset!s:10} {t or ''} {getattr(m, 'status', '') or ''}")

def key(ev):  # comparable content of an event without its offset
    return (ev.kind, repr(ev.sdk_message), repr(ev.result), repr(ev.done), repr(ev.interaction_update), repr(ev.step))

def check_stream(tag, evs, whole=True):
    real = [e for e in evs if e.kind != "unknown"]
    for e in evs:
        if e.kind == "unknown" and e.offset: surprise(f"{tag}: keepalive/unknown frame carries an offset {e.offset!r}")
    kinds = [e.kind for e in real]
    if not real or kinds[-1] != "done": surprise(f"{tag}: last event is {kinds[-1:]} not done")
    if kinds.count("result") != 1 or (len(kinds) > 1 and kinds[-2] != "result"): surprise(f"{tag}: result is not exactly once just before done: {kinds[-3:]}")
    offs = [e.offset for e in real if e.offset]
    if len(set(offs)) != len(offs): surprise(f"{tag}: offsets repeat")
    for e in real:
        if e.kind == "sdk_message" and not e.offset: surprise(f"{tag}: sdk_message without an offset")
        if e.kind == "sdk_message":
            m = e.sdk_message; rid = m.get("run_id") if isinstance(m, dict) else m.run_id; aid = m.get("agent_id") if isinstance(m, dict) else m.agent_id
            if rid != A.run and not tag.startswith("send"): surprise(f"{tag}: message run_id {rid!r}")
            if aid != A.agent: surprise(f"{tag}: message agent_id {aid!r}")
        if e.kind == "result" and not e.result_is_full: surprise(f"{tag}: result envelope has no nested RunResult (client would fall back to WaitLiveRun)")
        if A.strict_tail and e.kind in ("result", "done") and not e.offset: surprise(f"{tag}: {e.kind} without an offset")
    return real

def check_result(tag, res, status=None):
    say(f"  {tag} RunResult", res)
    if res.id != A.run and not tag.startswith("send"): surprise(f"{tag}: result id {res.id!r}")
    if res.agent_id != A.agent: surprise(f"{tag}: result agent_id {res.agent_id!r}")
    if res.status not in TERMINAL: surprise(f"{tag}: wait() gave status {res.status!r}")
    if status and res.status != status: surprise(f"{tag}: wait() status {res.status!r} but stream said {status!r}")
    if res.status == "finished" and not res.result: say(f"  note {tag}: finished with empty text")

def resume_points(real):
    msgs = [e for e in real if e.kind == "sdk_message"]
    mid = msgs[len(msgs) // 2].offset if msgs else None
    return [(n, o) for n, o in (("mid", mid), ("last-message", msgs[-1].offset if msgs else None), ("done", real[-1].offset if real else None)) if o]

def compare_resume(name, off, real, got):
    i = next((k for k, e in enumerate(real) if e.offset == off), None)
    want = [key(e) for e in real[i + 1:]]; have = [key(e) for e in got if e.kind != "unknown"]
    wo = [e.offset for e in real[i + 1:]]; ho = [e.offset for e in got if e.kind != "unknown"]
    if want != have: surprise(f"resume {name} ({off}): {len(have)} events, expected {len(want)}; first difference at {next((k for k, (a, b) in enumerate(zip(want, have)) if a != b), min(len(want), len(have)))}")
    elif wo != ho: surprise(f"resume {name}: offsets differ from the full replay: {ho} vs {wo}")
    else: say(f"  resume {name} after {off}: {len(have)} events, identical")

def guard():
    c = CursorClient(base_url=A.base, auth_token=A.token)
    try: next(iter(c.observe_run(A.run))); surprise("client without env fallback was allowed to observe (client changed)")
    except E.ConfigurationError as e: say("  guard: plain Client refuses ObserveRun locally:", e.code)
    c.close()
    c = CursorClient(base_url=A.base, auth_token="wrong-" + A.token, allow_api_key_env_fallback=True)
    try: list(c.observe_run(A.run)); surprise("wrong token accepted on ObserveRun")
    except E.AuthenticationError as e: say("  wrong token on stream ->", type(e).__name__, e.code)
    except Exception as e: surprise(f"wrong token on ObserveRun -> {type(e).__name__} {e}")
    try: c.get_run(A.run); surprise("wrong token accepted on GetRun")
    except E.AuthenticationError as e: say("  wrong token on unary  ->", type(e).__name__, e.code, e.status)
    except Exception as e: surprise(f"wrong token on GetRun -> {type(e).__name__} {e}")
    c.close()

def unknown(c):
    for what, f in (("get_run", lambda: c.get_run("no-such-run-zz")), ("observe_run", lambda: list(c.observe_run("no-such-run-zz"))), ("wait", lambda: c.wait_live_run("no-such-run-zz"))):
        try: f(); surprise(f"unknown run accepted by {what}")
        except (E.BadRequestError, E.NotFoundError, E.ConfigurationError) as e: say(f"  unknown run {what:12} -> {type(e).__name__} code={e.code} status={e.status} proto={e.proto_error_code}")
        except Exception as e: surprise(f"unknown run {what} -> {type(e).__name__}: {e}")

def sync():
    print("== sync"); guard()
    with CursorClient(**KW) as c:
        if not A.no_control:
            if c.ping() != "pong": surprise("Ping did not answer pong")
            v = c.get_version(); say("  version", v)
            if v.get("protocolVersion") != "sdk.v1": surprise(f"protocolVersion {v.get('protocolVersion')!r}")
        unknown(c)
        run = c.get_run(A.run); say("  get_run", run.id, run.agent_id, run.status, run.model, run.duration_ms, run.created_at, run.usage)
        if (run.id, run.agent_id) != (A.run, A.agent): surprise("GetRun identity differs")
        if run.status not in TERMINAL and not A.live: surprise(f"GetRun status {run.status}")
        if not A.no_list:
            rs = c.list_runs(A.agent); say("  list_runs", [(r.id, r.status) for r in rs.items], "next", repr(rs.next_cursor))
            if A.run not in [r.id for r in rs.items]: surprise("run not in ListRuns")
        n = len(list(run.stream()))
        if n: surprise(f"run.stream() on an attached run gave {n} messages (1.1.0 gives none)")
        evs = []
        for ev in run.observe(): show("full", ev); evs.append(ev)
        real = check_stream("full", evs)
        nm = sum(e.kind == "sdk_message" for e in real)
        if A.expect_messages is not None and nm != A.expect_messages: surprise(f"{nm} sdk messages, expected {A.expect_messages}")
        for name, off in resume_points(real):
            got = list(run.observe(after_offset=off)); compare_resume(name, off, real, got)
        res = run.wait(); st = next((e.result.get("status", "") for e in real if e.kind == "result"), "")
        check_result("wait", res, st.removeprefix("RUN_LIFECYCLE_STATUS_").lower() or None)
        say("  text", repr(run.text()[:80]))
        if A.send:
            r = Agent(client=c, agent_id=A.agent, model=None).send(A.send)
            if not r.id: surprise("Send: run id not known after the first frame")
            ms = list(r.stream()); say("  send stream", r.id, [getattr(m, "type", "?") for m in ms]); check_result("send", r.wait(), r.status)
    return real

async def asyn(real):
    print("== async")
    async with AsyncClient(**KW) as c:
        run = await c.get_run(A.run)
        evs = [ev async for ev in run.observe()]
        r2 = check_stream("async full", evs)
        if [key(e) for e in r2] != [key(e) for e in real]: surprise("async replay differs from sync replay")
        for name, off in resume_points(r2):
            compare_resume("async " + name, off, r2, [ev async for ev in run.observe(after_offset=off)])
        check_result("async wait", await run.wait())
        say("  async text", repr((await run.text())[:80]))
        if A.send:
            r = await AsyncAgent(client=c, agent_id=A.agent, model=None).send(A.send)
            ms = [m async for m in r.stream()]; say("  send stream", r.id, [getattr(m, "type", "?") for m in ms]); check_result("send async", await r.wait(), r.status)

warnings.simplefilter("error", DeprecationWarning)
try:
    real = sync(); asyncio.run(asyn(real))
except Exception as e:
    import traceback; traceback.print_exc(); surprise(f"{type(e).__name__}: {e}")
print("OK" if not bad else f"{len(bad)} SURPRISE(S)")
print(json.dumps({"ok": not bad, "peer": "client_probe", "surprises": len(bad)} | ({"why": bad[0]} if bad else {}))); sys.exit(bool(bad))
