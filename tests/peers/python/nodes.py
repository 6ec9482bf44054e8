"""What a client of node events knows of a run: it takes records and holds them to the contract."""

from peer import check, same

SEQUENCE_STEP = 10_000_000
OUTCOMES = {"completed": "completed", "error": "failed", "cancelled": "cancelled", "stopped": "cancelled", "expired": "expired"}


class NodeEvents:
    def __init__(self, run: str) -> None:
        self.run = run
        self.records: list[tuple[str, dict]] = []

    @property
    def cursor(self) -> int | None:
        return self.records[-1][1]["sequence_number"] if self.records else None

    @property
    def settled(self) -> bool:
        return bool(self.records) and self.records[-1][0] == "node.settled"

    @property
    def outcome(self) -> dict:
        return self.records[-1][1]["outcome"]

    def take(self, kind: str, record: dict) -> None:
        number = record["sequence_number"]
        check(record["node_id"] == self.run, f"a record of node {record['node_id']}")
        check(self.cursor is None or number > self.cursor, f"record {number} ({kind}) after {self.cursor}")
        check(not self.settled, f"a record after node.settled: {kind}")
        self.records.append((kind, record))

    def text(self) -> str:
        return "".join(record["delta"] for kind, record in self.records if kind == "node.output_text.delta")

    def others(self) -> list:
        """All but the text, with the event's place but not the client's own text position."""
        kept = ((kind, record) for kind, record in self.records if kind != "node.output_text.delta")
        return [(kind, {**record, "sequence_number": record["sequence_number"] // SEQUENCE_STEP}) for kind, record in kept]

    def judge(self, truth: dict, first: "NodeEvents") -> None:
        same("the text", self.text(), truth["texts"])
        started = [[record["call_id"], record["tool"]] for kind, record in self.records if kind == "node.tool_call.started"]
        same("tools started", started, truth["tools"])
        check(self.settled, "no node.settled at the end")
        same("the outcome's status", self.outcome["status"], OUTCOMES[truth["status"]])
        same("records without text", self.others(), first.others())
