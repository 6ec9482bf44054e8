"""PyPI `websockets`: the run stream over WebSocket, resumed by cursor and by since; REST steps beside it."""

import argparse
import asyncio
import json
import random
from urllib.parse import quote, urlencode

import httpx
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus

from peer import Wrong, about, arguments, byte_cuts, check, item_cuts, now, peer, same, watching
from proxy import CuttingProxy
from raw import items, member

STEP_BYTES_MAX = 64 << 20


class Reading:
    """One reading of the whole run, over as many connections as the cuts make of it."""

    def __init__(self, args: argparse.Namespace, mode: str, budgets: list[int] = (), leaves: set[int] = frozenset()) -> None:
        self.args, self.mode, self.budgets, self.leaves = args, mode, list(budgets), set(leaves)
        self.steps: dict[str, str] = {}
        self.cursor: str | None = None
        self.since = -1
        self.run: dict = {}
        self.gaps: list[str] = []
        self.left = self.returns = self.repeats = self.bytes = self.cuts = 0

    async def read(self) -> "Reading":
        async with CuttingProxy(self.args.base, self.budgets, self.args.chance) as proxy:
            while (end := await self.connection(proxy.base)) != 1000:
                if end == "left":
                    self.left += 1
                elif not proxy.explains_drop():
                    expected = self.args.restarts and end in (1001, 1006, "refused")
                    check(expected, f"{self.mode}: the stream ended with {end} after {len(self.steps)} steps")
                    self.returns += 1
                    await asyncio.sleep(0.1)
            self.bytes, self.cuts = proxy.bytes, proxy.cuts + self.left
        return self

    async def connection(self, base: str) -> int | str:
        """Gives the close code, `left`, or `refused` when there was no connection."""
        resumed = self.mode == "since" or self.cursor is not None
        query = {"since": self.since} if self.mode == "since" else {"cursor": self.cursor} if resumed else {}
        url = f"{base.replace('http', 'ws')}/v1/agents/runs/{quote(self.args.run, safe='')}/stream?{urlencode(query)}"
        try:
            socket = await connect(url, additional_headers=self.args.headers, proxy=None, max_size=STEP_BYTES_MAX)
        except InvalidStatus as refusal:
            raise Wrong(f"the upgrade was answered with {refusal.response.status_code}") from None
        except (OSError, EOFError, InvalidHandshake):
            return "refused"
        first = True
        try:
            while True:
                message = await socket.recv()
                check(isinstance(message, str), "a binary message")
                gone = self.take(message, first, resumed)
                first = False
                watching()
                if gone:
                    return "left"
        except ConnectionClosed as closed:
            return closed.rcvd.code if closed.rcvd else 1006
        finally:
            socket.transport.abort()

    def take(self, text: str, first: bool, resumed: bool) -> bool:
        """Takes a frame; true when the client leaves behind it."""
        frame = json.loads(text)
        kind = frame["type"]
        if first:
            check((kind == "snapshot") != resumed, f"a {'resumed' if resumed else 'fresh'} stream began with {kind}")
        else:
            check(kind != "snapshot", "a snapshot in the middle")
        gone = False
        if kind in ("snapshot", "steps_append"):
            for step, raw in zip(frame["steps"], items(member(text, "steps")), strict=True):
                self.step(step, member(raw, "data"))
                gone |= len(self.steps) in self.leaves
                self.leaves.discard(len(self.steps))
        if kind in ("snapshot", "run"):
            self.run = frame["run"]
        if kind == "gap":
            self.gaps.append(frame["reason"])
        self.cursor = frame.get("cursor", self.cursor)
        return gone

    def step(self, step: dict, data: str) -> None:
        check(step["run_id"] == self.args.run, f"a step of run {step['run_id']}")
        self.since = step["step_index"]
        if step["id"] in self.steps:
            check(self.mode == "since" and step.get("late"), f"step {step['id']} ({self.since}) came twice")
            self.repeats += 1
        self.steps[step["id"]] = data

    def judge(self, when: str, truth: dict) -> None:
        def judge() -> None:
            check(len(self.steps) == len(truth["steps"]), f"{len(self.steps)} steps, expected {len(truth['steps'])}")
            for at, (got, want) in enumerate(zip(self.steps.values(), truth["steps"])):
                same(f"data of step {at}", got, want)
            if truth.get("step_ids"):
                same("step ids", list(self.steps), truth["step_ids"])
            same("the run's status", self.run.get("status"), truth["status"])
            check(len(self.gaps) <= truth.get("gaps", 0), f"a gap: {self.gaps[:1]}")

        about(f"{self.mode}, {when}", judge)


async def rest(args: argparse.Namespace, truth: dict, chance: random.Random) -> None:
    """The same steps, page by page, and the run in the list and by itself."""
    runs = f"{args.base}/v1/agents/runs"
    async with httpx.AsyncClient(headers=args.headers, trust_env=False, timeout=args.timeout) as client:
        steps: dict[str, str] = {}
        place: dict[str, str | int] = {"since": -1}
        while True:
            query = {**place, "limit": 1 + int(chance.random() * 2 * (1 + len(truth["steps"]) // 4))}
            answer = await client.get(f"{runs}/{quote(args.run, safe='')}/steps", params=query)
            check(answer.status_code == 200, f"steps {query} were answered with {answer.status_code}")
            page = answer.json()
            if not page["steps"]:
                break
            for step, raw in zip(page["steps"], items(member(answer.text, "steps")), strict=True):
                check(step["id"] not in steps, f"REST gave step {step['id']} twice")
                steps[step["id"]] = member(raw, "data")
            place = {"cursor": page["next_cursor"]} if chance.random() < 0.5 else {"since": page["next_since"]}
        check(len(steps) == len(truth["steps"]), f"REST gave {len(steps)} steps, expected {len(truth['steps'])}")
        for at, (got, want) in enumerate(zip(steps.values(), truth["steps"])):
            same(f"REST step {at}", got, want)
        run = (await client.get(f"{runs}/{quote(args.run, safe='')}")).json()
        same("the run over REST", (run["id"], run["status"]), (args.run, truth["status"]))
        listed = (await client.get(runs)).json()["runs"]
        check(args.run in [run["id"] for run in listed], "the run is not in the list")


async def main(args: argparse.Namespace, truth: dict) -> dict:
    modes = ["cursor", "since"]
    size = sum(len(step) + 150 for step in truth["steps"])
    half = (args.cuts + 1) // 2
    readings = []

    def cut(mode: str, total: int) -> Reading:
        return Reading(args, mode, byte_cuts(args.chance, half, total), item_cuts(args.chance, args.cuts - half, len(truth["steps"])))

    now("reading while the run may be live")
    live = [reading for mode in modes for reading in (Reading(args, mode), cut(mode, size))]
    for reading in await asyncio.gather(*(reading.read() for reading in live)):
        reading.judge("live", truth)
        readings.append(reading)
    for mode in modes:
        now(f"reading again by {mode}")
        whole = await Reading(args, mode).read()
        again = await cut(mode, whole.bytes).read()
        for reading in (whole, again):
            reading.judge("replay", truth)
            readings.append(reading)
    now("reading over REST")
    await rest(args, truth, args.chance)
    total = {key: sum(getattr(reading, key) for reading in readings) for key in ("cuts", "returns", "repeats")}
    return {"steps": len(truth["steps"]), **total}


ARGS = arguments(__doc__)
peer("websockets", ARGS, main)
