"""A TCP proxy that breaks connections after so many bytes from the server, wherever in a message that is."""

import asyncio
import math
import random
import socket
import struct
import time
from urllib.parse import urlsplit

AFTERMATH_S = 2.0


class CuttingProxy:
    """`budgets` are used up one after another: when one is, every connection through the proxy is broken, half of the
    times by a reset. Without a budget left it only passes on."""

    def __init__(self, base: str, budgets: list[int], chance: random.Random) -> None:
        self.target = urlsplit(base)
        self.waiting = list(budgets)
        self.left = self.waiting.pop(0) if self.waiting else None
        self.chance = chance
        self.cuts = 0
        self.last_cut = -math.inf
        self.noticed = 0
        self.bytes = 0
        self.open: set[asyncio.StreamWriter] = set()
        self.tasks: set[asyncio.Task] = set()

    def explains_drop(self) -> bool:
        """Whether a drop that a client saw is of our making: it may see one late, or twice."""
        if self.cuts > self.noticed:
            self.noticed += 1
            return True
        return time.monotonic() - self.last_cut < AFTERMATH_S

    async def __aenter__(self) -> "CuttingProxy":
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        self.base = f"http://127.0.0.1:{self.server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self.server.close()
        for writer in self.open:
            writer.transport.abort()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    async def serve(self, near_reader: asyncio.StreamReader, near: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        far = None
        try:
            self.open.add(near)
            far_reader, far = await asyncio.open_connection(self.target.hostname, self.target.port)
            self.open.add(far)
            up = asyncio.create_task(self.pass_on(near_reader, far, counted=False))
            try:
                await self.pass_on(far_reader, near, counted=True)
            finally:
                up.cancel()
                await asyncio.gather(up, return_exceptions=True)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            for writer in filter(None, (near, far)):
                self.open.discard(writer)
                writer.close()

    async def pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, counted: bool) -> None:
        while chunk := await reader.read(65536):
            if counted and self.left is not None and len(chunk) >= self.left:
                self.bytes += self.left
                writer.write(chunk[: self.left])
                self.cut(writer)
                return
            if counted:
                self.bytes += len(chunk)
                self.left = None if self.left is None else self.left - len(chunk)
            writer.write(chunk)
            await writer.drain()
        if not counted and writer.can_write_eof():
            writer.write_eof()

    def cut(self, last: asyncio.StreamWriter) -> None:
        self.cuts += 1
        self.last_cut = time.monotonic()
        self.left = self.waiting.pop(0) if self.waiting else None
        reset = self.chance.random() < 0.5
        for writer in list(self.open):
            if reset:
                raw = writer.get_extra_info("socket")
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                writer.transport.abort()
            elif writer is last:
                writer.close()
            else:
                writer.transport.abort()
