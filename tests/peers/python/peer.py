"""What the Python peers share: arguments, the truth, seeded chance, and the one line of JSON at the end."""

import argparse
import asyncio
import json
import os
import random
import sys
import threading
import traceback
from pathlib import Path
from typing import Any, Awaitable, Callable, NoReturn

PROTO = Path(__file__).resolve().parents[3] / "translators" / "proto"
UNKNOWN_RUN = "no-such-run-zz"


class Wrong(Exception):
    """A finding: the server did not do what its contract says."""


def check(holds: Any, why: str) -> None:
    if not holds:
        raise Wrong(why)


def brief(value: Any) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 200 else f"{text[:200]}… ({len(text)})"


def same(what: str, got: Any, want: Any) -> None:
    """Says the first place where two lists, texts or values differ."""
    if got == want:
        return
    if not (isinstance(got, (list, str)) and isinstance(want, (list, str))):
        raise Wrong(f"{what}: {brief(got)}, expected {brief(want)}")
    at = next((at for at, (a, b) in enumerate(zip(got, want)) if a != b), min(len(got), len(want)))
    if isinstance(want, str):
        a, b = (brief(text[max(0, at - 20) : at + 40]) for text in (got, want))
    else:
        a, b = (brief(items[at]) if at < len(items) else "nothing" for items in (got, want))
    raise Wrong(f"{what}: {len(got)} long, expected {len(want)}; at {at}: {a}, expected {b}")


class Stage:
    """What is being done, for the message when time runs out."""

    now = "starting"
    seen = False
    once = threading.Lock()


def now(what: str) -> None:
    Stage.now = what


def watching() -> None:
    """Tells the harness, once, that a stream is open: from here on the run may go on."""
    with Stage.once:
        if not Stage.seen:
            print("watching", flush=True)
        Stage.seen = True


def about(what: str, judge: Callable[[], None]) -> None:
    """Names what a finding is about."""
    try:
        judge()
    except Wrong as wrong:
        raise Wrong(f"{what}: {wrong}") from None


def byte_cuts(chance: random.Random, count: int, total: float) -> list[int]:
    """Byte budgets of successive connections that together carry at most `total` bytes."""
    places = sorted(int(chance.random() * total) for _ in range(count))
    return [max(1, place - before) for before, place in zip([0, *places], places)]


def item_cuts(chance: random.Random, count: int, total: int) -> set[int]:
    """After which numbers of items a reader leaves by itself."""
    return {1 + int(chance.random() * max(1, total - 1)) for _ in range(count)}


def arguments(about: str, extra: Callable[[argparse.ArgumentParser], None] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--base", required=True, help="the server, http://127.0.0.1:PORT")
    parser.add_argument("--run", required=True, help="the run to watch")
    parser.add_argument("--token", help="bearer token")
    parser.add_argument("--truth", required=True, type=Path, help="file: what the run is to be (see ../README.md)")
    parser.add_argument("--cuts", type=int, default=4, help="how often each cut reading loses its connection")
    parser.add_argument("--seed", type=int, default=1, help="where it is cut")
    parser.add_argument("--timeout", type=float, default=60, help="seconds after which it has failed")
    parser.add_argument("--restarts", action="store_true", help="the server may go away and return: reconnect")
    if extra:
        extra(parser)
    args = parser.parse_args()
    args.base = args.base.rstrip("/")
    args.chance = random.Random(args.seed)
    args.headers = {"authorization": f"Bearer {args.token}"} if args.token else {}
    return args


def finish(verdict: dict[str, Any]) -> NoReturn:
    print(json.dumps(verdict), flush=True)
    # Threads of a client that hangs must not keep the process.
    os._exit(0 if verdict["ok"] else 1)


def peer(name: str, args: argparse.Namespace, main: Callable[[argparse.Namespace, dict], Awaitable[dict]]) -> NoReturn:
    """Runs one peer; what `main` returns goes into the last line."""

    late = {"ok": False, "peer": name, "why": f"not done after {args.timeout:g} s"}
    clock = threading.Timer(args.timeout, lambda: finish({**late, "stage": Stage.now}))
    clock.daemon = True
    clock.start()
    try:
        verdict = {"ok": True, "peer": name, **asyncio.run(main(args, json.loads(args.truth.read_text())))}
    except Wrong as wrong:
        verdict = {"ok": False, "peer": name, "why": str(wrong), "stage": Stage.now}
    except BaseException as error:  # noqa: BLE001: whatever it was, the harness is told
        traceback.print_exc()
        sys.stderr.flush()
        verdict = {"ok": False, "peer": name, "why": f"{type(error).__name__}: {error}", "stage": Stage.now}
    finish(verdict)
