/** The calls of a run over time, to look at rather than to read. */

import { useEffect, useRef, useState } from "preact/hooks";
import type { JSX } from "preact";

import { now } from "../live/clock.js";
import type { RunModel } from "../live/model.js";
import { isOver } from "../live/feed.js";
import { subject } from "../model/describe.js";
import { lay, type Bar } from "../model/lanes.js";
import { oneLine, visible } from "../model/text.js";
import { duration } from "../model/time.js";
import { TOOL_WORDS } from "./parts.js";

const LANE = 11;
const BAR = 8;
const PAD = 6;
const AXIS = 16;

export function Timeline({ model, shown }: { readonly model: RunModel; readonly shown: readonly [number, number] | undefined }): JSX.Element | null {
  const canvas = useRef<HTMLCanvasElement>(null);
  const [width, setWidth] = useState(0);
  const [hover, setHover] = useState<{ readonly bar: Bar; readonly x: number } | undefined>(undefined);
  const run = model.run.value;
  const over = isOver(run?.status);
  const { calls } = model.transcript;
  const isNew = model.version.value >= 0;
  const running = !over && calls.some((call) => call.state === "running");
  // Only something that is going on changes with the time alone.
  const until = over ? (model.transcript.lastAt ?? 0) : running ? now.value : Math.max(model.transcript.lastAt ?? 0, 0);
  const chart = lay(calls, until);
  // What failed lies above what did not.
  const bars = chart.bars.toSorted((a, b) => Number(a.call.state === "failed") - Number(b.call.state === "failed"));
  const height = chart.lanes * LANE + PAD * 2 + AXIS;

  useEffect(() => {
    const element = canvas.current?.parentElement;
    if (element === null || element === undefined) return;
    const observer = new ResizeObserver(() => setWidth(element.clientWidth));
    observer.observe(element);
    setWidth(element.clientWidth);
    return () => observer.disconnect();
  }, [calls.length === 0]);

  const place = (at: number): number => PAD + ((at - chart.from) / (chart.to - chart.from)) * (width - PAD * 2);

  useEffect(() => {
    const element = canvas.current;
    const context = element?.getContext("2d");
    if (element === null || context === null || context === undefined || width === 0) return;
    const scale = window.devicePixelRatio;
    element.width = Math.round(width * scale);
    element.height = Math.round(height * scale);
    context.scale(scale, scale);
    const colours = getComputedStyle(element);
    const colour = (name: string): string => colours.getPropertyValue(name).trim();
    context.clearRect(0, 0, width, height);
    if (shown !== undefined) {
      const [from, to] = [place(Math.max(chart.from, shown[0])), place(Math.min(chart.to, shown[1]))];
      context.fillStyle = colour("--view");
      context.fillRect(from - 2, 0, Math.max(4, to - from + 4), height - AXIS);
    }
    context.font = `11px ${colours.fontFamily}`;
    context.fillStyle = colour("--dim");
    context.textBaseline = "bottom";
    for (const tick of chart.ticks) {
      const x = place(tick.at);
      context.fillStyle = colour("--line");
      context.fillRect(Math.round(x), 0, 1, height - AXIS);
      context.fillStyle = colour("--dim");
      context.textAlign = x > width - 40 ? "right" : x < 20 ? "left" : "center";
      context.fillText(tick.label, x, height - 1);
    }
    for (const bar of bars) {
      const x = place(bar.from);
      const long = Math.max(3, place(bar.to) - x - 1);
      const y = PAD + bar.lane * LANE;
      context.fillStyle = colour(bar.call.state === "failed" ? "--bad" : bar.call.state === "running" ? "--live" : bar.call.parent !== undefined ? "--bar-sub" : bar.isAgent ? "--bar-agent" : "--bar");
      context.beginPath();
      context.roundRect(x, y, long, BAR, 2);
      context.fill();
      if (hover?.bar.call === bar.call) {
        context.strokeStyle = colour("--ink");
        context.stroke();
      }
    }
  });

  if (!isNew || chart.bars.length === 0) return null;

  const find = (event: MouseEvent): { bar: Bar; x: number } | undefined => {
    const element = canvas.current;
    if (element === null) return undefined;
    const box = element.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    const lane = Math.floor((y - PAD) / LANE);
    let best: Bar | undefined;
    let nearest = 6;
    for (const bar of bars) {
      if (bar.lane !== lane) continue;
      const [from, to] = [place(bar.from), Math.max(place(bar.from) + 3, place(bar.to))];
      const far = x < from ? from - x : x > to ? x - to : 0;
      if (far <= nearest) [best, nearest] = [bar, far];
    }
    return best === undefined ? undefined : { bar: best, x };
  };

  const failed = calls.filter((call) => call.state === "failed").length;
  return (
    <div class="timeline">
      <canvas
        ref={canvas}
        role="img"
        aria-label={`Timeline: ${calls.length} calls, ${failed} failed, ${chart.byOrder ? "in their order" : `over ${duration(chart.to - chart.from)}`}`}
        style={{ height: `${height}px` }}
        onMouseMove={(event) => setHover(find(event))}
        onMouseLeave={() => setHover(undefined)}
        onClick={(event) => {
          const found = find(event);
          if (found !== undefined) model.show(found.bar.call, true);
        }}
        class={hover === undefined ? "" : "pointing"}
      />
      {hover !== undefined && (
        <div class="tip" style={{ left: `${Math.max(0, Math.min(hover.x + 10, width - 330))}px` }} aria-hidden="true">
          <strong>{visible(hover.bar.call.name)}</strong> {oneLine(subject(hover.bar.call), 90)}
          <span class="dim">
            {" "}
            {TOOL_WORDS[hover.bar.call.state]}
            {chart.byOrder ? "" : `, ${duration(hover.bar.to - hover.bar.from)}`}
          </span>
        </div>
      )}
      {chart.byOrder && <span class="scale-note">in order: this run was recorded at once</span>}
    </div>
  );
}
