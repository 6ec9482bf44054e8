// The surface as it is used in the documents: this must compile, and is not run.
import { APIError, Client, describeToolDefault, followActivity, type ActivityStep, type NodeEvent } from "../src/index.js";

declare const client: Client;
declare const id: string;
declare function handle(event: NodeEvent): void;
declare function print(text: string): void;
declare function render(steps: readonly ActivityStep[]): void;

export async function theSurface(): Promise<void> {
  const stream = client.nodes.stream({ prompt: "Fix the failing test", cwd: "." }, { headers: { "x-trace": "run-9" } });
  stream.on("node.output_text.delta", (event) => print(event.delta));
  for await (const event of stream) {
    switch (event.type) {
      case "node.output_text.delta":
        print(event.delta);
        break;
      case "node.tool_call.started":
        print(event.tool + event.summary);
        break;
      case "node.tool_call.completed":
        print(event.status satisfies "ok" | "error");
        break;
      case "node.report":
        print(event.report);
        break;
      case "node.settled":
        print(event.outcome.status);
        break;
      case "error":
        print(event.error.message);
        // @ts-expect-error -- an error belongs to no place in the node.
        print(String(event.sequence_number));
    }
  }
  const outcome = await stream.finalOutcome();
  print(outcome.status satisfies "completed" | "failed" | "cancelled" | "expired");
  stream.abort();

  // @ts-expect-error -- there is no such event.
  stream.on("node.thinking", () => undefined);
}

export async function resumingByHand(): Promise<void> {
  let cursor: number | undefined;
  for (;;) {
    const stream = client.nodes.events(id, { after: cursor, resume: false });
    try {
      for await (const event of stream) {
        if (event.type === "error") {
          if (event.error.code === "stream_gap") {
            print(`missed events before ${String(event.error.details?.earliest_sequence)}`);
            continue;
          }
          throw new APIError(0, event.error.code, event.error.message, event.error.details);
        }
        cursor = event.sequence_number;
        handle(event);
      }
      return;
    } catch (error) {
      if (error instanceof APIError && error.code === "stream_dropped") continue;
      throw error;
    }
  }
}

export async function activity(): Promise<void> {
  for await (const steps of followActivity(client.nodes.events(id))) {
    render(steps);
    // @ts-expect-error -- a snapshot does not change.
    steps.length = 0;
  }
  const mine = followActivity(client.nodes.events(id), {
    describe: (tool, summary) => (tool === "TodoWrite" ? null : describeToolDefault(tool, summary)),
  });
  for await (const steps of mine) render(steps);
}
