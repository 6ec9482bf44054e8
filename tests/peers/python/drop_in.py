#!/usr/bin/env python3
"""drop_in.py BASE TOKEN --cwd FOLDER | --live AGENT

The unmodified cursor-sdk client, sync and async, does with a gateway what its users do with a bridge: makes an agent,
sends, streams, cancels, waits, lists, resumes, closes. With --live AGENT on an agent that plays scripts: deltas and steps
by callback, and attaching to a run from its Send's offset. The last line is JSON; exits 1 on any surprise.
"""
import argparse, asyncio, json, sys, traceback

from cursor_sdk import AsyncClient, CursorClient
from cursor_sdk._agent import Agent
from cursor_sdk._async_agent import AsyncAgent
from cursor_sdk.types import LocalAgentOptions, SendOptions

p = argparse.ArgumentParser()
p.add_argument("base"); p.add_argument("token"); p.add_argument("--cwd"); p.add_argument("--live")
A = p.parse_args()
KW = dict(base_url=A.base, auth_token=A.token, timeout=50, allow_api_key_env_fallback=True)
bad = []


def check(ok, what):
    if not ok:
        bad.append(what)
        print("SURPRISE:", what)


def kinds(messages):
    return [m.get("type") if isinstance(m, dict) else m.type for m in messages]


def sync_agent():
    with CursorClient(**KW) as c:
        agent = c.create_agent(model="lab-model", api_key="key_lab", local=LocalAgentOptions(cwd=A.cwd))
        run = agent.send("say hi")
        check(run.id and run.agent_id == agent.agent_id, f"Send gave {run.id!r} of {run.agent_id!r}")
        run.cancel()
        seen = list(run.stream())
        result = run.wait()
        check(result.status == "cancelled", f"a run that was cancelled is {result.status}")
        check(kinds(seen)[-1:] == ["status"], f"the last message of a cancelled run: {kinds(seen)}")
        attached = c.get_run(run.id)
        check(attached.status == "cancelled", f"GetRun of it says {attached.status}")
        replayed = [e for e in attached.observe() if e.kind != "unknown"]
        check([e.kind for e in replayed][-2:] == ["result", "done"], f"its replay: {[e.kind for e in replayed]}")
        check(run.id in [r.id for r in c.list_runs(agent.agent_id).items], "the run is not in the list of its agent")
        check(agent.agent_id in [a.agent_id for a in c.list_agents().items], "the agent is not in the list")
        again = c.resume_agent(agent.agent_id)
        check(again.agent_id == agent.agent_id, f"resumed {again.agent_id}")
        again.reload()
        agent.close()
        return agent.agent_id


async def async_agent(agent_id):
    async with AsyncClient(**KW) as c:
        agent = await c.resume_agent(agent_id)
        run = await agent.send("say hi again", SendOptions(model="lab-model"))
        await run.cancel()
        seen = [m async for m in run.stream()]
        result = await run.wait()
        check(result.status == "cancelled", f"async: {result.status} {kinds(seen)}")
        check(run.id in [r.id for r in (await c.list_runs(agent_id)).items], "async: the run is not in the list")
        await agent.close()


def sync_live():
    with CursorClient(**KW) as c:
        deltas, steps = [], []
        agent = Agent(client=c, agent_id=A.live, model=None)
        run = agent.send("live-5-20", SendOptions(on_delta=lambda u: deltas.append(u), on_step=lambda s: steps.append(s)))
        seen = kinds(run.stream())
        check(seen == ["system", "status"] + ["assistant"] * 5 + ["status"], f"messages with deltas: {seen}")
        check((len(deltas), len(steps)) == (5, 5), f"{len(deltas)} deltas and {len(steps)} steps of 5")
        check(run.wait().result == "w0 w1 w2 w3 w4 ", f"its result: {run.wait().result!r}")
        run = agent.send("live-3-20")
        sent = kinds(run.stream())
        result = run.wait()
        replay = [e for e in c.get_run(run.id).observe() if e.kind != "unknown"]
        check(kinds([e.sdk_message for e in replay if e.kind == "sdk_message"]) == sent, "the replay is not what Send gave")
        check(result.status == "finished" and result.usage is not None, f"its result: {result}")
        hang = agent.send("hang-x")
        hang.cancel()
        check(hang.wait().status == "cancelled", "a hanging run is not cancelled")


async def async_live():
    async with AsyncClient(**KW) as c:
        agent = AsyncAgent(client=c, agent_id=A.live, model=None)
        deltas = []
        run = await agent.send("live-4-20", SendOptions(on_delta=lambda u: deltas.append(u)))
        seen = kinds([m async for m in run.stream()])
        check(seen == ["system", "status"] + ["assistant"] * 4 + ["status"], f"async messages: {seen}")
        check(len(deltas) == 4, f"async: {len(deltas)} deltas of 4")
        check((await run.wait()).status == "finished", "async: not finished")


try:
    if A.live:
        sync_live()
        asyncio.run(async_live())
    else:
        asyncio.run(async_agent(sync_agent()))
except Exception as error:
    traceback.print_exc()
    bad.append(f"{type(error).__name__}: {error}")
print(json.dumps({"ok": not bad, "peer": "drop_in", "surprises": len(bad)} | ({"why": bad[0]} if bad else {})))
sys.exit(bool(bad))
