"""PyPI `buf-bin`: `buf curl` over Connect, gRPC and gRPC-Web, with the schema from the tree and by reflection."""

import argparse
import asyncio
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import AsyncIterator

from observed import STATUS, Observed
from peer import PROTO, UNKNOWN_RUN, about, arguments, byte_cuts, check, item_cuts, now, peer, same, watching
from proxy import CuttingProxy

SERVICE = "sdk.v1.SdkAgentService"
H2 = "--http2-prior-knowledge"
# Reflection is asked over HTTP/2, so the call is too.
WAYS = {
    "connect-h1": ["--protocol", "connect"],
    "connect-h2": ["--protocol", "connect", H2],
    "grpcweb-h1": ["--protocol", "grpcweb"],
    "grpcweb-h2": ["--protocol", "grpcweb", H2],
    "grpc-h2": ["--protocol", "grpc", H2],
    "connect-reflect": ["--protocol", "connect", H2, "--reflect"],
    "grpcweb-reflect": ["--protocol", "grpcweb", H2, "--reflect"],
    "grpc-reflect": ["--protocol", "grpc", H2, "--reflect"],
}
# `buf curl` leaves with the gRPC code, shifted by three bits.
INVALID_ARGUMENT, NOT_FOUND = 3 << 3, 5 << 3


class Failed(Exception):
    """buf's own exit code and words."""

    def __init__(self, code: int, words: str) -> None:
        super().__init__(f"buf curl left with {code}: {words.strip()}")
        self.code = code


class Caller:
    def __init__(self, args: argparse.Namespace, way: str, cache: str) -> None:
        self.args, self.way = args, way
        bin_dir = Path(os.environ.get("RUNCAST_TEST_BIN_DIR") or Path(sys.executable).parent)
        self.command = [str(bin_dir / "buf"), "curl", *WAYS[way], "--timeout", "0"]
        if "--reflect" not in WAYS[way]:
            self.command += ["--schema", str(args.proto)]
        elif args.headers:
            self.command += ["--reflect-header", "*"]
        for key, value in args.headers.items():
            self.command += ["-H", f"{key}: {value}"]
        self.env = {**os.environ, "BUF_CACHE_DIR": cache}

    async def call(self, base: str, method: str, request: dict) -> AsyncIterator[dict]:
        """The answer's messages as they come."""
        process = await asyncio.create_subprocess_exec(
            *self.command, "-d", json.dumps(request), f"{base}/{SERVICE}/{method}",
            env=self.env, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        words = asyncio.create_task(process.stderr.read())
        try:
            async for message in json_texts(process.stdout):
                yield message
            code = await process.wait()
            if code:
                raise Failed(code, (await words).decode(errors="replace"))
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
            await words

    async def observe(self, base: str, run: str, offset: str | None) -> AsyncIterator[dict]:
        request = {"runId": run} if offset is None else {"runId": run, "afterOffset": offset}
        async for message in self.call(base, "ObserveRun", request):
            yield message

    async def get_run(self, run: str) -> dict:
        (answer,) = [answer async for answer in self.call(self.args.base, "GetRun", {"runId": run})]
        return answer["run"]


async def json_texts(pipe: asyncio.StreamReader) -> AsyncIterator[dict]:
    """JSON texts one after another, each given as soon as it is whole. Its lines after the first are indented."""
    lines: list[bytes] = []
    rest = b""
    while chunk := await pipe.read(1 << 20):
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            lines.append(line)
            if line in (b"}", b"{}") or (len(lines) == 1 and line.endswith(b"}")):
                yield json.loads(b"\n".join(lines))
                lines.clear()
    left = b"\n".join([*lines, rest])
    if left.strip():
        yield json.loads(left)


class Reading:
    """One reading of the whole run, over as many calls as the cuts make of it."""

    def __init__(self, caller: Caller, budgets: list[int] = (), leaves: set[int] = frozenset()) -> None:
        self.caller, self.budgets, self.leaves = caller, list(budgets), set(leaves)
        self.has = Observed(caller.args)
        self.left = self.returns = self.bytes = self.cuts = 0

    async def read(self) -> "Reading":
        args = self.caller.args
        ended = False
        async with CuttingProxy(args.base, self.budgets, args.chance) as proxy:
            while not ended:
                left = False
                call = self.caller.observe(proxy.base, args.run, self.has.offset)
                try:
                    async for message in call:
                        watching()
                        if self.has.take(message) and len(self.has.messages) in self.leaves:
                            self.leaves.discard(len(self.has.messages))
                            left = True
                            break
                    ended = not left
                    check(left or self.has.done, f"the stream ended without done, after {len(self.has.messages)} messages")
                    self.left += left
                except (Failed, json.JSONDecodeError) as error:
                    if not proxy.explains_drop():
                        check(args.restarts, f"{self.caller.way}: {error}")
                        self.returns += 1
                        await asyncio.sleep(0.1)
                finally:
                    await call.aclose()
            self.bytes, self.cuts = proxy.bytes, proxy.cuts + self.left
        return self


async def refusals(caller: Caller, whole: Observed, truth: dict) -> None:
    """The rest of the contract, asked of a run that is over."""
    args = caller.args

    async def kinds(run: str, offset: str | None) -> list[str]:
        return [kind async for message in caller.observe(args.base, run, offset) for kind in message if kind != "offset"]

    async def refused(what: str, call, code: int) -> None:
        try:
            await call
        except Failed as failed:
            check(failed.code == code, f"{what}: {failed}")
        else:
            check(False, f"{what}: no error, expected {code}")

    result, done = (message["offset"] for message in whole.messages[-2:])
    same("after the result", await kinds(args.run, result), ["done"])
    same("after done", await kinds(args.run, done), [])
    await refused("a bad offset", kinds(args.run, "not-an-offset"), INVALID_ARGUMENT)
    await refused("ObserveRun of an unknown run", kinds(UNKNOWN_RUN, None), NOT_FOUND)
    await refused("GetRun of an unknown run", caller.get_run(UNKNOWN_RUN), NOT_FOUND)
    run = await caller.get_run(args.run)
    same("GetRun", (run["runId"], run["agentId"], run["status"]), (args.run, args.agent, STATUS[truth["status"]]))


async def main(args: argparse.Namespace, truth: dict) -> dict:
    readings: list[Reading] = []
    half = (args.cuts + 1) // 2
    ways = list(WAYS) if args.way == "all" else [args.way]

    def judge(reading: Reading, when: str) -> None:
        readings.append(reading)
        first = next(r for r in readings if r.caller.way == reading.caller.way)
        about(f"{reading.caller.way}, {when}", lambda: reading.has.judge(truth, first.has))

    with tempfile.TemporaryDirectory() as cache:
        callers = [Caller(args, way, cache) for way in ways]

        def cut(caller: Caller, total: float, messages: int) -> Reading:
            return Reading(caller, byte_cuts(args.chance, half, total), item_cuts(args.chance, args.cuts - half, messages))

        now("reading while the run may be live")
        size = sum(len(step) / 2 + 150 for step in truth["steps"])
        live = [reading for caller in callers for reading in (Reading(caller), cut(caller, size, len(truth["tools"]) * 2))]
        for reading in await asyncio.gather(*(reading.read() for reading in live)):
            judge(reading, "live")
        for caller in callers:
            now(f"reading again over {caller.way}")
            whole = await Reading(caller).read()
            judge(whole, "replay")
            judge(await cut(caller, whole.bytes, len(whole.has.messages)).read(), "replay, cut")
            await refusals(caller, whole.has, truth)
    total = {key: sum(getattr(reading, key) for reading in readings) for key in ("cuts", "returns")}
    return {"ways": ways, "messages": len(readings[0].has.messages), **total}


def more(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--agent", default="runcast", help="the agent that the run is of")
    parser.add_argument("--proto", type=Path, default=PROTO, help="folder: where sdk/v1/sdk.proto is")
    parser.add_argument("--way", choices=["all", *WAYS], default="all", help="protocol, HTTP version and source of the schema")


ARGS = arguments(__doc__, more)
peer("buf-curl", ARGS, main)
