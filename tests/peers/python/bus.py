"""Another service on the bus: it reads what runcast tells of runs there, or (as it should not) tells something itself.

    bus.py read nats://127.0.0.1:4222 RUN    prints a JSON line for each event of the run until it has ended
    bus.py forge nats://127.0.0.1:4222 RUN   tells an event that no stream has stored
"""

import asyncio
import json
import re
import sys

import nats


def token(run: str) -> str:
    """A run's id as one word of a subject: bytes outside A-Za-z0-9_- as =HH."""
    return re.sub(rb"[^A-Za-z0-9_-]", lambda byte: b"=%02X" % byte[0][0], run.encode()).decode()


async def read(server: str, run: str) -> None:
    bus = await nats.connect(server)
    # What is told from here on; what was told before lies in the stream under the same name with `log`.
    told = await bus.subscribe(f"runcast.tail.{token(run)}")
    await bus.flush()
    print("{}", flush=True)
    async for message in told.messages:
        headers = message.headers or {}
        line = {
            "id": headers.get("ce-id"),
            "type": headers.get("ce-type"),
            "subject": headers.get("ce-subject"),
            "place": headers.get("Nats-Sequence"),
            "event": json.loads(message.data),
        }
        print(json.dumps(line), flush=True)
        if line["type"] == "runcast.settled":
            break
    await bus.close()


async def forge(server: str, run: str) -> None:
    bus = await nats.connect(server)
    body = {"v": 1, "at": 1, "family": "steps", "source": None, "body": "step_only", "step": None, "inside": {}}
    headers = {"Runcast-Seq": "99", "Runcast-Incarnation": "1", "Runcast-Base": "0", "ce-type": "runcast.step_only"}
    await bus.publish(f"runcast.tail.{token(run)}", json.dumps(body).encode(), headers=headers)
    await bus.flush()
    await bus.close()


asyncio.run({"read": read, "forge": forge}[sys.argv[1]](*sys.argv[2:]))
