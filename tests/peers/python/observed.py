"""What a client of ObserveRun knows of a run: it takes messages in their JSON form and holds them to the contract."""

import argparse

from peer import check, same

STATUS = {
    "completed": "RUN_LIFECYCLE_STATUS_FINISHED",
    "error": "RUN_LIFECYCLE_STATUS_ERROR",
    "cancelled": "RUN_LIFECYCLE_STATUS_CANCELLED",
    "stopped": "RUN_LIFECYCLE_STATUS_CANCELLED",
    "expired": "RUN_LIFECYCLE_STATUS_EXPIRED",
}
KINDS = {"sdkMessage", "result", "done", "interactionUpdate", "step"}


class Observed:
    def __init__(self, args: argparse.Namespace) -> None:
        self.run, self.agent = args.run, args.agent
        self.messages: list[dict] = []
        self.offset: str | None = None
        self.offsets: set[str] = set()

    @property
    def done(self) -> bool:
        return bool(self.messages) and "done" in self.messages[-1]

    def take(self, message: dict) -> bool:
        """True when the message is more than a sign of life."""
        kind = next(iter(KINDS & message.keys()), None)
        if kind is None:
            check(not message.get("offset"), "a keepalive with an offset")
            return False
        offset = message.get("offset")
        check(not self.done, f"a message after done: {kind}")
        check(offset, f"{kind} without an offset")
        check(offset not in self.offsets, f"offset {offset} came twice")
        if kind == "sdkMessage":
            payload = message[kind]["message"]
            says = (payload.get("type"), payload.get("run_id"), payload.get("agent_id"))
            same("type, run and agent", says, (message[kind]["type"], self.run, self.agent))
        else:
            same(f"run and agent of {kind}", (message[kind]["runId"], message[kind]["agentId"]), (self.run, self.agent))
        self.offsets.add(offset)
        self.offset = offset
        self.messages.append(message)
        return True

    def payloads(self) -> list[dict]:
        return [message["sdkMessage"]["message"] for message in self.messages if "sdkMessage" in message]

    def judge(self, truth: dict, first: "Observed") -> None:
        payloads = self.payloads()
        if "bridge_types" in truth:
            same("types", [payload["type"] for payload in payloads], truth["bridge_types"])
        check(self.done and "result" in self.messages[-2], "the end is not result and done")
        check(sum("result" in message for message in self.messages) == 1, "more than one result")
        same("the result's status", self.messages[-2]["result"]["status"], STATUS[truth["status"]])
        started = [[p["call_id"], p["name"]] for p in payloads if p["type"] == "tool_call" and p["status"] == "running"]
        same("tools started", started, truth["tools"])
        # A text that was abandoned while it streamed is shown as a delta, never as a message.
        if not truth.get("abandoned"):
            same("the text", "".join(map(main_text, payloads)), truth["texts"])
        same("messages", self.messages, first.messages)


def main_text(payload: dict) -> str:
    if payload["type"] != "assistant" or payload.get("parent_tool_use_id"):
        return ""
    return "".join(block.get("text", "") for block in payload["message"]["content"] if block.get("type") == "text")
