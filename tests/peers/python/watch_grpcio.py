"""PyPI `grpcio`: ObserveRun and GetRun over gRPC; health and reflection."""

import argparse
import asyncio
import importlib
import sys
import tempfile
from types import ModuleType
from urllib.parse import urlsplit

import grpc
import grpc_tools
from google.protobuf.json_format import MessageToDict
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from grpc_tools import protoc
from pathlib import Path

from observed import STATUS, Observed
from peer import PROTO, UNKNOWN_RUN, about, arguments, byte_cuts, check, item_cuts, now, peer, same, watching
from proxy import CuttingProxy

SERVICE = "sdk.v1.SdkAgentService"
# Quick to come back after a cut; nothing else differs from the defaults.
CHANNEL = [("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 500), ("grpc.enable_http_proxy", 0)]
AWAY = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN}


def compile_schema(proto: Path, into: str) -> tuple[ModuleType, ModuleType]:
    known = str(Path(grpc_tools.__file__).parent / "_proto")
    how = ["protoc", f"-I{proto}", f"-I{known}", f"--python_out={into}", f"--grpc_python_out={into}"]
    check(protoc.main([*how, str(proto / "sdk/v1/sdk.proto")]) == 0, "protoc refused the schema")
    sys.path.insert(0, into)
    return importlib.import_module("sdk.v1.sdk_pb2"), importlib.import_module("sdk.v1.sdk_pb2_grpc")


class Caller:
    def __init__(self, args: argparse.Namespace, schema: tuple[ModuleType, ModuleType]) -> None:
        self.args = args
        self.pb, self.pb_grpc = schema
        self.metadata = tuple(args.headers.items())

    def channel(self, base: str) -> grpc.aio.Channel:
        return grpc.aio.insecure_channel(urlsplit(base).netloc, options=CHANNEL)

    def observe(self, channel: grpc.aio.Channel, run: str, offset: str | None = None) -> grpc.aio.UnaryStreamCall:
        request = self.pb.ObserveRunRequest(run_id=run, after_offset=offset)
        return self.pb_grpc.SdkAgentServiceStub(channel).ObserveRun(request, metadata=self.metadata, wait_for_ready=True)

    async def get_run(self, channel: grpc.aio.Channel, run: str) -> dict:
        request = self.pb.GetRunRequest(run_id=run)
        answer = await self.pb_grpc.SdkAgentServiceStub(channel).GetRun(request, metadata=self.metadata)
        return MessageToDict(answer.run)


class Reading:
    """One reading of the whole run, over as many calls as the cuts make of it."""

    def __init__(self, caller: Caller, budgets: list[int] = (), leaves: set[int] = frozenset()) -> None:
        self.caller, self.budgets, self.leaves = caller, list(budgets), set(leaves)
        self.has = Observed(caller.args)
        self.left = self.returns = self.keepalives = self.bytes = self.cuts = 0

    async def read(self) -> "Reading":
        args = self.caller.args
        ended = False
        async with CuttingProxy(args.base, self.budgets, args.chance) as proxy, self.caller.channel(proxy.base) as channel:
            while not ended:
                call = self.caller.observe(channel, args.run, self.has.offset)
                left = False
                try:
                    async for message in call:
                        watching()
                        if not self.has.take(MessageToDict(message)):
                            self.keepalives += 1
                        elif len(self.has.messages) in self.leaves:
                            self.leaves.discard(len(self.has.messages))
                            left = True
                            call.cancel()
                            break
                    ended = not left
                    check(left or self.has.done, f"the stream ended without done, after {len(self.has.messages)} messages")
                    self.left += left
                except grpc.aio.AioRpcError as error:
                    if proxy.explains_drop():
                        continue
                    if not args.restarts or error.code() not in AWAY:
                        raise
                    self.returns += 1
                    await asyncio.sleep(0.1)
            self.bytes, self.cuts = proxy.bytes, proxy.cuts + self.left
        return self


async def refusals(caller: Caller, whole: Observed, truth: dict) -> None:
    """The rest of the contract, asked of a run that is over."""
    args = caller.args
    async with caller.channel(args.base) as channel:

        async def kinds(run: str, offset: str | None) -> list[str]:
            return [message.WhichOneof("envelope") async for message in caller.observe(channel, run, offset)]

        async def refused(what: str, call, code: grpc.StatusCode) -> None:
            try:
                await call
            except grpc.aio.AioRpcError as error:
                same(what, error.code(), code)
            else:
                check(False, f"{what}: no error, expected {code}")

        result, done = (message["offset"] for message in whole.messages[-2:])
        same("after the result", await kinds(args.run, result), ["done"])
        same("after done", await kinds(args.run, done), [])
        same("an empty offset", len(await kinds(args.run, "")), len(whole.messages))
        damaged = result[:-1] + ("B" if result.endswith("A") else "A")
        for offset in (damaged, "1", "not-an-offset", "A" * 200):
            await refused(f"offset {offset[:40]}", kinds(args.run, offset), grpc.StatusCode.INVALID_ARGUMENT)
        await refused("ObserveRun of an unknown run", kinds(UNKNOWN_RUN, None), grpc.StatusCode.NOT_FOUND)
        await refused("GetRun of an unknown run", caller.get_run(channel, UNKNOWN_RUN), grpc.StatusCode.NOT_FOUND)
        run = await caller.get_run(channel, args.run)
        same("GetRun", (run["runId"], run["agentId"], run["status"]), (args.run, args.agent, STATUS[truth["status"]]))


async def health_and_reflection(caller: Caller) -> None:
    async with caller.channel(caller.args.base) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for service in ("", SERVICE):
            answer = await health.Check(health_pb2.HealthCheckRequest(service=service), metadata=caller.metadata)
            same(f"health of {service!r}", answer.status, health_pb2.HealthCheckResponse.SERVING)
        reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
        asked = [
            reflection_pb2.ServerReflectionRequest(list_services=""),
            reflection_pb2.ServerReflectionRequest(file_containing_symbol=SERVICE),
        ]
        answers = [answer async for answer in reflection.ServerReflectionInfo(iter(asked), metadata=caller.metadata)]
        services = [service.name for service in answers[0].list_services_response.service]
        check(SERVICE in services, f"reflection lists {services}")
        check(answers[1].file_descriptor_response.file_descriptor_proto, f"reflection has no file for {SERVICE}")


async def main(args: argparse.Namespace, truth: dict) -> dict:
    readings: list[Reading] = []
    half = (args.cuts + 1) // 2

    def judge(reading: Reading, when: str) -> None:
        readings.append(reading)
        about(when, lambda: reading.has.judge(truth, readings[0].has))

    with tempfile.TemporaryDirectory() as generated:
        caller = Caller(args, compile_schema(args.proto, generated))

        def cut(total: float, messages: int) -> Reading:
            return Reading(caller, byte_cuts(args.chance, half, total), item_cuts(args.chance, args.cuts - half, messages))

        now("asking health and reflection")
        await health_and_reflection(caller)
        now("reading while the run may be live")
        size = sum(len(step) / 2 + 150 for step in truth["steps"])
        live = [Reading(caller), cut(size, len(truth.get("bridge_types", truth["steps"])))]
        for reading in await asyncio.gather(*(reading.read() for reading in live)):
            judge(reading, "live")
        now("reading again from the start")
        whole = await Reading(caller).read()
        judge(whole, "replay")
        judge(await cut(whole.bytes, len(whole.has.messages)).read(), "replay, cut")
        now("asking what is to be refused")
        await refusals(caller, whole.has, truth)
    total = {key: sum(getattr(reading, key) for reading in readings) for key in ("cuts", "returns", "keepalives")}
    return {"messages": len(whole.has.messages), **total}


def more(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--agent", default="runcast", help="the agent that the run is of")
    parser.add_argument("--proto", type=Path, default=PROTO, help="folder: where sdk/v1/sdk.proto is")


ARGS = arguments(__doc__, more)
peer("grpcio", ARGS, main)
