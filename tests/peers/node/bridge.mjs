// What a client of ObserveRun knows of a run: it takes messages and holds them to the contract.
import { check, same, sameText } from "./peer.mjs";

// RunLifecycleStatus of the words of a run's row.
const STATUS = { completed: 3, error: 4, cancelled: 5, stopped: 5, expired: 6 };

export class Observed {
  messages = [];
  keepalives = 0;
  offset = undefined;
  ended = false;
  #offsets = new Set();

  constructor(runId, agentId) {
    this.runId = runId;
    this.agentId = agentId;
  }

  static status(truth) {
    return STATUS[truth.status];
  }

  done() {
    return this.messages.at(-1)?.kind === "done";
  }

  /** `json` is the whole message in JSON. */
  take(received, json) {
    const kind = received.envelope.case;
    if (kind === undefined) {
      check(!received.offset, "a keepalive with an offset");
      this.keepalives += 1;
      return;
    }
    check(!this.done(), `a message after done: ${kind}`);
    check(received.offset, `${kind} without an offset`);
    check(!this.#offsets.has(received.offset), `offset ${received.offset} came twice`);
    this.#offsets.add(received.offset);
    this.offset = received.offset;
    const { value } = received.envelope;
    if (kind === "sdkMessage") {
      const { type, run_id: run, agent_id: agent } = value.message;
      same("type, run and agent", [type, run, agent], [value.type, this.runId, this.agentId]);
    } else {
      same(`run and agent of ${kind}`, [value.runId, value.agentId], [this.runId, this.agentId]);
    }
    if (kind === "result") this.status = value.status;
    this.messages.push({ kind, offset: received.offset, json });
  }

  /** The call ended well: so `done` was there. */
  ends() {
    check(this.done(), `the stream ended without done, after ${this.messages.length} messages`);
    this.ended = true;
  }

  is(truth) {
    const payloads = this.messages.filter(({ kind }) => kind === "sdkMessage").map(({ json }) => json.sdkMessage.message);
    if (truth.bridge_types) same("types", payloads.map(({ type }) => type), truth.bridge_types);
    same("the tail", this.messages.slice(-2).map(({ kind }) => kind), ["result", "done"]);
    check(this.messages.filter(({ kind }) => kind === "result").length === 1, "more than one result");
    check(this.status === STATUS[truth.status], `the result's status is ${this.status}, the run ${truth.status}`);
    const started = payloads.filter(({ type, status }) => type === "tool_call" && status === "running");
    same("tools started", started.map((call) => [call.call_id, call.name]), truth.tools);
    // A text that was abandoned while it streamed is shown as a delta, never as a message.
    if (!truth.abandoned) sameText("the text", payloads.map(mainText).join(""), truth.texts);
  }
}

function mainText({ type, message, parent_tool_use_id: parent }) {
  if (type !== "assistant" || parent) return "";
  return message.content.map((block) => (block.type === "text" ? block.text : "")).join("");
}
