// What a client of node events knows of a run: it takes records and holds them to the contract.
import { check, same, sameText } from "./peer.mjs";

const SEQUENCE_STEP = 10_000_000;
const OUTCOMES = { completed: "completed", error: "failed", cancelled: "cancelled", stopped: "cancelled", expired: "expired" };

export class NodeEvents {
  records = [];

  constructor(runId) {
    this.runId = runId;
  }

  take(type, data, id) {
    const record = JSON.parse(data);
    const number = record.sequence_number;
    check(record.node_id === this.runId, `a record of node ${record.node_id}`);
    check(String(number) === id, `a record with id ${id} and number ${number}`);
    const before = this.records.at(-1)?.number ?? -1;
    check(number > before, `record ${number} (${type}) after ${before}`);
    check(!this.settled(), `a record after node.settled: ${type}`);
    this.records.push({ type, id, number, record });
  }

  settled() {
    return this.records.at(-1)?.type === "node.settled";
  }

  deltas() {
    return this.records.filter(({ type }) => type === "node.output_text.delta").length;
  }

  text() {
    return this.records.map(({ type, record }) => (type === "node.output_text.delta" ? record.delta : "")).join("");
  }

  /** All but the text, with the event's place but not the client's own text position. */
  others() {
    const kept = this.records.filter(({ type }) => type !== "node.output_text.delta");
    return kept.map(({ type, number, record }) => ({ type, ...record, sequence_number: Math.floor(number / SEQUENCE_STEP) }));
  }

  is(truth) {
    sameText("the text", this.text(), truth.texts);
    const started = this.records.filter(({ type }) => type === "node.tool_call.started");
    same("tools started", started.map(({ record }) => [record.call_id, record.tool]), truth.tools);
    check(this.settled(), "no node.settled at the end");
    const { status } = this.records.at(-1).record.outcome;
    check(status === OUTCOMES[truth.status], `the outcome is ${status}, the run ${truth.status}`);
  }
}
