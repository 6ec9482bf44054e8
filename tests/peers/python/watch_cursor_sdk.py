"""PyPI `cursor-sdk`: the vendor's own client, sync and async: `observe` from the start and after an offset."""

import argparse
import asyncio
from typing import Any

from cursor_sdk import AsyncClient, CursorClient
from cursor_sdk.errors import CursorSDKError
from cursor_sdk.types import RunStreamEvent

from peer import about, arguments, byte_cuts, check, item_cuts, now, peer, same, watching
from proxy import CuttingProxy

STATUS = {"completed": "finished", "error": "error", "cancelled": "cancelled", "stopped": "cancelled", "expired": "expired"}


class Reading:
    """One reading of the whole run, over as many streams as the cuts make of it."""

    def __init__(self, args: argparse.Namespace, kind: str, budgets: list[int] = (), leaves: set[int] = frozenset()) -> None:
        self.args, self.kind, self.budgets, self.leaves = args, kind, list(budgets), set(leaves)
        self.events: list[RunStreamEvent] = []
        self.offset: str | None = None
        self.left = self.returns = self.keepalives = self.bytes = self.cuts = 0

    async def read(self) -> "Reading":
        ended = False
        stream = {"sync": self.sync, "async": self.asynchronous}[self.kind]
        async with CuttingProxy(self.args.base, self.budgets, self.args.chance) as proxy:
            while not ended:
                before = self.left
                try:
                    await stream(proxy.base)
                    ended = self.left == before
                    check(not ended or self.done, f"the stream ended without done, after {len(self.events)} events")
                except CursorSDKError as error:
                    if not proxy.explains_drop():
                        check(self.args.restarts, f"{self.kind}: {type(error).__name__} {error}")
                        self.returns += 1
                        await asyncio.sleep(0.1)
            self.bytes, self.cuts = proxy.bytes, proxy.cuts + self.left
        return self

    def options(self, base: str) -> dict[str, Any]:
        # Without the last one the client refuses to attach to a run, before any request.
        return {"base_url": base, "auth_token": self.args.token, "timeout": self.args.timeout, "allow_api_key_env_fallback": True}

    async def sync(self, base: str) -> None:
        def run() -> None:
            with CursorClient(**self.options(base)) as client:
                events = client.observe_run(self.args.run, after_offset=self.offset)
                for event in events:
                    if self.take(event):
                        events.close()
                        return

        await asyncio.to_thread(run)

    async def asynchronous(self, base: str) -> None:
        async with AsyncClient(**self.options(base)) as client:
            events = client.observe_run(self.args.run, after_offset=self.offset)
            async for event in events:
                if self.take(event):
                    await events.aclose()
                    return

    @property
    def done(self) -> bool:
        return bool(self.events) and self.events[-1].kind == "done"

    def take(self, event: RunStreamEvent) -> bool:
        """True when the client leaves behind it."""
        watching()
        if event.kind == "unknown":
            check(not event.offset, "a keepalive with an offset")
            self.keepalives += 1
            return False
        check(event.offset, f"{event.kind} without an offset")
        check(not self.done, f"an event after done: {event.kind}")
        self.offset = event.offset
        self.events.append(event)
        leaves = len(self.events) in self.leaves
        self.leaves.discard(len(self.events))
        self.left += leaves
        return leaves

    def judge(self, truth: dict, first: "Reading") -> None:
        messages = [event.sdk_message for event in self.events if event.kind == "sdk_message"]
        said = [message if isinstance(message, dict) else vars(message) for message in messages]
        if "bridge_types" in truth:
            same("types", [message["type"] for message in said], truth["bridge_types"])
        check(self.done and self.events[-2].kind == "result", "the end is not result and done")
        check(self.events[-2].result_is_full, "a result without a run in it")
        started = [[m["call_id"], m["name"]] for m in said if m["type"] == "tool_call" and m["status"] == "running"]
        same("tools started", started, truth["tools"])
        offsets = [event.offset for event in self.events]
        check(len(set(offsets)) == len(offsets), "an offset came twice")
        same("events", [(event.offset, repr(event)) for event in self.events], [(event.offset, repr(event)) for event in first.events])


async def run_itself(args: argparse.Namespace, truth: dict, reading: Reading) -> None:
    """What the client says of the run when it is over."""
    async with AsyncClient(**reading.options(args.base)) as client:
        run = await client.get_run(args.run)
        same("get_run", (run.id, run.agent_id, run.status), (args.run, args.agent, STATUS[truth["status"]]))
        result = await run.wait()
        same("wait", (result.id, result.agent_id, result.status), (args.run, args.agent, STATUS[truth["status"]]))


async def main(args: argparse.Namespace, truth: dict) -> dict:
    kinds = ["sync", "async"]
    half = (args.cuts + 1) // 2
    readings: list[Reading] = []

    def judge(reading: Reading, when: str) -> None:
        readings.append(reading)
        about(f"{reading.kind}, {when}", lambda: reading.judge(truth, readings[0]))

    def cut(kind: str, total: float, messages: int) -> Reading:
        return Reading(args, kind, byte_cuts(args.chance, half, total), item_cuts(args.chance, args.cuts - half, messages))

    now("reading while the run may be live")
    size = sum(len(step) / 2 + 150 for step in truth["steps"])
    live = [reading for kind in kinds for reading in (Reading(args, kind), cut(kind, size, len(truth["tools"]) * 2))]
    for reading in await asyncio.gather(*(reading.read() for reading in live)):
        judge(reading, "live")
    for kind in kinds:
        now(f"reading again, {kind}")
        whole = await Reading(args, kind).read()
        judge(whole, "replay")
        judge(await cut(kind, whole.bytes, len(whole.events)).read(), "replay, cut")
    now("asking for the run")
    await run_itself(args, truth, readings[0])
    total = {key: sum(getattr(reading, key) for reading in readings) for key in ("cuts", "returns", "keepalives")}
    return {"events": len(readings[0].events), **total}


def more(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--agent", default="runcast", help="the agent that the run is of")


ARGS = arguments(__doc__, more)
peer("cursor-sdk", ARGS, main)
