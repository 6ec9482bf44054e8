// What a WebSocket client knows of a run: it takes frames and holds them to the contract.
import { check, same, sameText } from "./peer.mjs";
import { items, member } from "./raw.mjs";

export class Steps {
  steps = [];
  unreadable = [];
  gaps = [];
  run = undefined;
  cursor = undefined;
  since = undefined;
  repeats = 0;
  deltas = 0;
  abandoned = 0;
  #ids = new Set();
  #open = "";
  #frames = 0;

  constructor(mode, runId) {
    this.mode = mode;
    this.runId = runId;
  }

  /** A new connection: `resumed` when it began with a place. */
  joins(resumed) {
    this.resumed = resumed;
    this.#frames = 0;
    this.#open = "";
  }

  /**
   * Takes one frame. `leave(steps so far)` says whether the client is gone then: with `since` in the middle of the
   * frame, for each step is a place; else behind it, for only its cursor is.
   */
  take(text, leave) {
    const frame = JSON.parse(text);
    const first = this.#frames++ === 0;
    let gone = false;
    if (frame.type === "snapshot") check(first && !this.resumed, `a snapshot as frame ${this.#frames} of a ${this.resumed ? "resumed" : "fresh"} stream`);
    else if (first) check(this.resumed, `a fresh stream began with ${frame.type}, not with a snapshot`);
    if (["snapshot", "steps_append", "run"].includes(frame.type)) check(typeof frame.cursor === "string", `a ${frame.type} frame without a cursor`);

    if (frame.type === "snapshot" || frame.type === "steps_append") {
      const raw = items(member(text, "steps"));
      for (const [at, step] of frame.steps.entries()) {
        this.#step(step, member(raw[at], "data"));
        gone ||= leave(this.steps.length);
        if (gone && this.mode === "since") return true;
      }
    }
    if (frame.type === "snapshot" || frame.type === "run") this.run = frame.run;
    if (frame.type === "unreadable") this.unreadable.push({ ...frame, cursor: undefined });
    if (frame.type === "gap") this.gaps.push(frame);
    if (frame.type === "delta") this.#delta(frame);
    if (typeof frame.cursor === "string") this.cursor = frame.cursor;
    return gone;
  }

  #step(step, data) {
    check(step.run_id === this.runId, `a step of run ${step.run_id}`);
    check(Number.isInteger(step.step_index), `a step without an index: ${step.id}`);
    this.since = step.step_index;
    if (this.#ids.has(step.id)) {
      check(this.mode === "since" && step.late === true, `step ${step.id} (${step.step_index}) came twice`);
      this.repeats += 1;
      return;
    }
    this.#ids.add(step.id);
    this.steps.push({ id: step.id, index: step.step_index, data });
    this.#close(step.data);
  }

  #delta({ text, start }) {
    check(this.mode === "deltas", "a delta that was not asked for");
    const known = [...this.#open].length;
    check(start === 0 || start === known, `a delta at ${start} where ${known} characters are known`);
    if (start === 0 && known > 0) this.abandoned += 1;
    this.#open = start === 0 ? text : this.#open + text;
    this.deltas += 1;
  }

  /** A main-thread message with text ends the open text, which is the beginning of it. */
  #close({ type, parent_tool_use_id: parent, message }) {
    if (type !== "assistant" || parent || !message) return;
    const content = typeof message.content === "string" ? [{ type: "text", text: message.content }] : (message.content ?? []);
    const blocks = content.filter((block) => block?.type === "text");
    if (blocks.length === 0) return;
    if (!blocks.map((block) => block.text).join("").startsWith(this.#open)) this.abandoned += 1;
    this.#open = "";
  }

  is(truth) {
    const texts = this.steps.map((step) => step.data);
    check(texts.length === truth.steps.length, `${texts.length} steps, expected ${truth.steps.length}`);
    texts.forEach((text, at) => sameText(`data of step ${at}`, text, truth.steps[at]));
    if (truth.step_ids?.length) same("step ids", this.steps.map((step) => step.id), truth.step_ids);
    check(this.run?.status === truth.status, `the run ended as ${this.run?.status}, expected ${truth.status}`);
    check(this.gaps.length <= (truth.gaps ?? 0), `a gap: ${this.gaps[0]?.reason}`);
    check(this.abandoned <= (truth.abandoned ?? 0), `${this.abandoned} open texts did not become the message`);
  }
}
