"""PyPI `httpx` and `httpx-sse`: node events over SSE and as NDJSON, resumed by `after` and by `Last-Event-ID`."""

import argparse
import asyncio
import json
from typing import AsyncIterator
from urllib.parse import quote

import httpx
from httpx_sse import aconnect_sse

from nodes import NodeEvents
from peer import UNKNOWN_RUN, about, arguments, byte_cuts, check, item_cuts, now, peer, same, watching
from proxy import CuttingProxy


def events_url(base: str, run: str) -> str:
    return f"{base}/v1/nodes/{quote(run, safe='')}/events"


class Reading:
    """One reading of the whole run, over as many responses as the cuts make of it."""

    def __init__(self, args: argparse.Namespace, encoding: str, budgets: list[int] = (), leaves: set[int] = frozenset()) -> None:
        self.args, self.encoding, self.budgets, self.leaves = args, encoding, list(budgets), set(leaves)
        self.has = NodeEvents(args.run)
        self.left = self.returns = self.bytes = self.cuts = 0

    async def read(self) -> "Reading":
        responses = {"sse": self.sse, "ndjson": self.ndjson}[self.encoding]
        async with CuttingProxy(self.args.base, self.budgets, self.args.chance) as proxy:
            while not self.has.settled:
                left = False
                drop = None
                try:
                    async with httpx.AsyncClient(headers=self.args.headers, trust_env=False, timeout=None) as client:
                        async for kind, record in responses(client, proxy.base):
                            if kind == "error":
                                check(self.args.restarts and record["error"]["code"] == "draining", f"an error record: {record}")
                                continue
                            self.has.take(kind, record)
                            if len(self.has.records) in self.leaves:
                                self.leaves.discard(len(self.has.records))
                                left = True
                                break
                except httpx.TransportError as error:
                    drop = error
                if left:
                    self.left += 1
                elif not self.has.settled and not proxy.explains_drop():
                    check(self.args.restarts, f"{self.encoding}: the response ended after {len(self.has.records)} records: {drop}")
                    self.returns += 1
                    await asyncio.sleep(0.1)
            self.bytes, self.cuts = proxy.bytes, proxy.cuts + self.left
        return self

    def place(self) -> dict:
        """Where to go on, said in either way, or in both where the header is the newer one."""
        cursor = self.has.cursor
        if cursor is None:
            return {}
        way = self.args.chance.randrange(3)
        older = self.has.records[0][1]["sequence_number"]
        return [
            {"params": {"after": cursor}},
            {"headers": {"last-event-id": str(cursor)}},
            {"params": {"after": older}, "headers": {"last-event-id": str(cursor)}},
        ][way]

    async def sse(self, client: httpx.AsyncClient, base: str) -> AsyncIterator[tuple[str, dict]]:
        place = self.place()
        url = httpx.URL(events_url(base, self.args.run), params=place.get("params", {}))
        async with aconnect_sse(client, "GET", str(url), headers=place.get("headers", {})) as source:
            check(source.response.status_code == 200, f"events were answered with {source.response.status_code}")
            headers = source.response.headers
            same("cache-control", headers.get("cache-control"), "no-cache, no-transform")
            same("x-accel-buffering", headers.get("x-accel-buffering"), "no")
            watching()
            begun = False
            async for event in source.aiter_sse():
                if not begun:
                    check(event.data == "" and event.event == "message" and event.retry is not None, f"it began with {event}")
                    begun = True
                    in_force = event.id
                    continue
                record = json.loads(event.data)
                if event.event != "error":
                    same("id and number", event.id, str(record["sequence_number"]))
                    if in_force is not None:
                        same("the cursor in force", in_force, str(self.has.cursor or 0))
                    in_force = None
                yield event.event, record

    async def ndjson(self, client: httpx.AsyncClient, base: str) -> AsyncIterator[tuple[str, dict]]:
        place = self.place()
        headers = {"accept": "application/x-ndjson", **place.get("headers", {})}
        async with client.stream("GET", events_url(base, self.args.run), params=place.get("params"), headers=headers) as response:
            check(response.status_code == 200, f"events were answered with {response.status_code}")
            check(response.headers["content-type"].startswith("application/x-ndjson"), response.headers["content-type"])
            watching()
            rest = b""
            async for chunk in response.aiter_bytes():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    record = json.loads(line)
                    kind = record.pop("type")
                    if kind != "keepalive":
                        yield kind, record


async def companions(args: argparse.Namespace, whole: NodeEvents) -> None:
    """What the other routes say of a settled run, and what is refused."""
    url = events_url(args.base, args.run)
    node = url.removesuffix("/events")
    async with httpx.AsyncClient(headers=args.headers, trust_env=False, timeout=args.timeout) as client:
        for accept in ("text/event-stream", "application/x-ndjson"):
            answer = await client.get(url, params={"after": whole.cursor}, headers={"accept": accept})
            same(f"{accept} after the end", (answer.status_code, answer.content), (204, b""))
        same("the outcome", (await client.get(f"{node}/outcome")).json(), whole.outcome)
        about_node = (await client.get(node)).json()
        same("the node", (about_node["id"], about_node["state"]), (args.run, "settled"))
        refusals = [
            (url, {"params": {"after": "-1"}}, 400, "invalid_cursor"),
            (url, {"params": {"after": "abc"}}, 400, "invalid_cursor"),
            (url, {"headers": {"accept": "image/png"}}, 406, "not_acceptable"),
            (events_url(args.base, UNKNOWN_RUN), {}, 404, "unknown_node"),
            (events_url(args.base, UNKNOWN_RUN).replace("events", "outcome"), {}, 404, "unknown_node"),
        ]
        if args.token:
            refusals.append((url, {"headers": {"authorization": "Bearer wrong"}}, 401, "unauthorized"))
        for asked, how, status, code in refusals:
            answer = await client.get(asked, **how)
            what = f"{asked.removeprefix(args.base)} {how}"
            check(answer.status_code == status, f"{what}: {answer.status_code}, expected {status}")
            same(what, answer.json()["error"]["code"], code)


async def main(args: argparse.Namespace, truth: dict) -> dict:
    encodings = ["sse", "ndjson"]
    half = (args.cuts + 1) // 2
    readings: list[Reading] = []

    def cut(encoding: str, total: int, records: int) -> Reading:
        return Reading(args, encoding, byte_cuts(args.chance, half, total), item_cuts(args.chance, args.cuts - half, records))

    def judge(reading: Reading, when: str) -> None:
        readings.append(reading)
        about(f"{reading.encoding}, {when}", lambda: reading.has.judge(truth, readings[0].has))

    now("reading while the run may be live")
    size, count = len(truth["texts"]) + 400 * len(truth["tools"]) + 600, 2 * len(truth["tools"]) + 2
    live = [reading for encoding in encodings for reading in (Reading(args, encoding), cut(encoding, size, count))]
    for reading in await asyncio.gather(*(reading.read() for reading in live)):
        judge(reading, "live")
    for encoding in encodings:
        now(f"reading again as {encoding}")
        whole = await Reading(args, encoding).read()
        judge(whole, "replay")
        judge(await cut(encoding, whole.bytes, len(whole.has.records)).read(), "replay, cut")
    now("asking the other routes")
    await companions(args, readings[0].has)
    total = {key: sum(getattr(reading, key) for reading in readings) for key in ("cuts", "returns")}
    deltas = sum(kind == "node.output_text.delta" for kind, _ in readings[0].has.records)
    return {"records": len(readings[0].has.records), "deltas": deltas, **total}


ARGS = arguments(__doc__)
peer("httpx-sse", ARGS, main)
