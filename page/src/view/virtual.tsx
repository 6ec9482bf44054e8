/**
 * A long list of which only the part that can be seen is in the document. Rows have any height: it is guessed until a row
 * is there to be measured, and what the reader looks at stays where it is when a guess was wrong.
 */

import { Component, createRef, type ComponentChildren, type HTMLAttributes, type JSX } from "preact";

export interface VirtualProps<R> {
  readonly rows: readonly R[];
  readonly keyOf: (row: R) => string;
  readonly guess: (row: R) => number;
  readonly render: (row: R, at: number) => ComponentChildren;
  /** Another value: the rows may have changed. */
  readonly version: unknown;
  /** Whether the end stays in view as rows come. */
  readonly follows?: boolean;
  /** The reader has gone to the end, or away from it. */
  readonly onFollow?: (follows: boolean) => void;
  /** A row to be brought into view, once for each object. */
  readonly target?: { readonly key: string } | undefined;
  /** The rows that can be seen, when they change. */
  readonly onShown?: (first: number, last: number) => void;
  readonly scroller?: HTMLAttributes<HTMLDivElement>;
  readonly body?: HTMLAttributes<HTMLDivElement>;
  /** What stands above and below the rows and scrolls with them. */
  readonly head?: ComponentChildren;
  readonly foot?: ComponentChildren;
}

interface Range {
  readonly first: number;
  readonly last: number;
}

/** So much is drawn above and below what can be seen, in pixels. */
const MARGIN = 500;
/** Rows that are brought into view have so much room to the edge. */
const ROOM = 48;
const AT_END = 12;

export class Virtual<R> extends Component<VirtualProps<R>, Range> {
  override state: Range = { first: 0, last: 30 };
  readonly #scroller = createRef<HTMLDivElement>();
  readonly #body = createRef<HTMLDivElement>();
  readonly #heights = new Map<string, number>();
  /** Where each row begins; one more than there are rows. */
  #tops = new Float64Array(1);
  /** The row that the reader looks at, and how far it is scrolled out. */
  #anchor: { readonly key: string; readonly by: number } | undefined;
  #index = new Map<string, number>();
  /** Where it was scrolled to when we last looked, or scrolled ourselves. */
  #lastTop = 0;
  #target: unknown;
  #shown: Range = { first: -1, last: -1 };
  #observer: ResizeObserver | undefined;
  #isLayingOut = false;
  #isDue = false;

  override componentDidMount(): void {
    this.#observer = new ResizeObserver(() => this.#settleSoon());
    if (this.#scroller.current !== null) this.#observer.observe(this.#scroller.current);
    if (this.#body.current !== null) this.#observer.observe(this.#body.current);
    this.#settle();
  }

  override componentDidUpdate(): void {
    this.#settle();
  }

  override componentWillUnmount(): void {
    this.#observer?.disconnect();
  }

  #settleSoon(): void {
    if (this.#isDue) return;
    this.#isDue = true;
    requestAnimationFrame(() => {
      this.#isDue = false;
      this.#settle();
    });
  }

  /** Measures what is there, keeps the reader's place, and draws what can be seen now. */
  #settle(): void {
    const [scroller, body] = [this.#scroller.current, this.#body.current];
    if (scroller === null || body === null || this.#isLayingOut) return;
    this.#isLayingOut = true;
    const { props } = this;
    // The reader may have scrolled since, and the browser not yet said so.
    const hasLeft = this.#readScroll(scroller, body);
    const follows = props.follows === true && !hasLeft;
    // Heights of what is drawn, from the document.
    for (const element of body.children) {
      const { key } = (element as HTMLElement).dataset;
      if (key !== undefined) this.#heights.set(key, element.getBoundingClientRect().height);
    }
    this.#lay();
    Object.assign(body.style, this.#padding());
    if (props.target !== this.#target) {
      this.#target = props.target;
      const key = props.target?.key;
      const at = key === undefined ? undefined : this.#index.get(key);
      if (key !== undefined && at !== undefined) this.#reveal(scroller, body, key, at);
    }
    if (follows) this.#scrollTo(scroller, scroller.scrollHeight - scroller.clientHeight);
    else if (this.#anchor !== undefined) {
      const at = this.#index.get(this.#anchor.key);
      if (at !== undefined) this.#scrollTo(scroller, this.#offset(body, scroller) + (this.#tops[at] ?? 0) + this.#anchor.by);
    }
    if (follows || this.#anchor === undefined) this.#hold(scroller, body);
    // Shorter content may have moved it too.
    this.#lastTop = scroller.scrollTop;
    this.#isLayingOut = false;
    this.#draw(scroller, body);
  }

  /** The room of the rows that are not drawn. */
  #padding(): { paddingTop: string; paddingBottom: string } {
    const { length } = this.props.rows;
    const [above, last, total] = [this.#tops[Math.min(this.state.first, length)], this.#tops[Math.min(this.state.last, length)], this.#tops[length]];
    return { paddingTop: `${above ?? 0}px`, paddingBottom: `${Math.max(0, (total ?? 0) - (last ?? 0))}px` };
  }

  #lay(): void {
    const { rows, keyOf, guess } = this.props;
    if (this.#tops.length < rows.length + 1) this.#tops = new Float64Array(Math.max(64, (rows.length + 1) * 2));
    this.#index = new Map();
    let top = 0;
    for (let at = 0; at < rows.length; at += 1) {
      const row = rows[at] as R;
      const key = keyOf(row);
      this.#tops[at] = top;
      this.#index.set(key, at);
      top += this.#heights.get(key) ?? guess(row);
    }
    this.#tops[rows.length] = top;
  }

  /** Where the rows begin within what scrolls. */
  #offset(body: HTMLElement, scroller: HTMLElement): number {
    return body.offsetTop - scroller.offsetTop;
  }

  #reveal(scroller: HTMLElement, body: HTMLElement, key: string, at: number): void {
    const offset = this.#offset(body, scroller);
    const [top, end] = [offset + (this.#tops[at] ?? 0), offset + (this.#tops[at + 1] ?? 0)];
    const height = scroller.clientHeight;
    let by: number | undefined;
    if (top < scroller.scrollTop + ROOM) by = -ROOM;
    else if (end > scroller.scrollTop + height - ROOM) by = end - top > height - ROOM * 2 ? -ROOM : end - top - height + ROOM;
    if (by !== undefined) this.#anchor = { key, by };
  }

  #scrollTo(scroller: HTMLElement, top: number): void {
    const most = Math.max(0, scroller.scrollHeight - scroller.clientHeight);
    const to = Math.max(0, Math.min(most, top));
    if (Math.abs(scroller.scrollTop - to) < 1) return;
    scroller.scrollTop = to;
    this.#lastTop = scroller.scrollTop;
  }

  /** Remembers which row is at the top. */
  #hold(scroller: HTMLElement, body: HTMLElement): void {
    const { rows, keyOf } = this.props;
    const top = scroller.scrollTop - this.#offset(body, scroller);
    const at = this.#at(Math.max(0, top));
    const row = rows[at];
    this.#anchor = row === undefined ? undefined : { key: keyOf(row), by: top - (this.#tops[at] ?? 0) };
  }

  /** The row in which a place lies. */
  #at(place: number): number {
    let [low, high] = [0, Math.max(0, this.props.rows.length - 1)];
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if ((this.#tops[middle] ?? 0) <= place) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  #draw(scroller: HTMLElement, body: HTMLElement): void {
    const { rows } = this.props;
    const top = scroller.scrollTop - this.#offset(body, scroller);
    const first = this.#at(Math.max(0, top - MARGIN));
    const last = Math.min(rows.length, this.#at(Math.max(0, top + scroller.clientHeight + MARGIN)) + 1);
    const shown = { first: this.#at(Math.max(0, top)), last: Math.min(rows.length - 1, this.#at(Math.max(0, top + scroller.clientHeight))) };
    if (shown.first !== this.#shown.first || shown.last !== this.#shown.last) {
      this.#shown = shown;
      this.props.onShown?.(shown.first, shown.last);
    }
    if (first !== this.state.first || last !== this.state.last) this.setState({ first, last });
  }

  readonly #onScroll = (): void => {
    const [scroller, body] = [this.#scroller.current, this.#body.current];
    if (scroller === null || body === null) return;
    this.#readScroll(scroller, body);
    this.#draw(scroller, body);
  };

  /** Takes note of where the reader has scrolled to since we last looked; gives whether that is away from the end. */
  #readScroll(scroller: HTMLElement, body: HTMLElement): boolean {
    const top = scroller.scrollTop;
    const before = this.#lastTop;
    if (Math.abs(top - before) < 1) return false;
    this.#lastTop = top;
    this.#hold(scroller, body);
    const isAtEnd = scroller.scrollHeight - scroller.clientHeight - top < AT_END;
    const hasLeft = this.props.follows === true && top < before && !isAtEnd;
    if (hasLeft) this.props.onFollow?.(false);
    else if (this.props.follows === false && isAtEnd && top > before) this.props.onFollow?.(true);
    return hasLeft;
  }

  override render(): JSX.Element {
    const { rows, render, head, foot, scroller, body } = this.props;
    const { first, last } = this.state;
    // With the rows comes their room: content that were shorter for a moment would move what the reader looks at.
    this.#lay();
    const drawn: ComponentChildren[] = [];
    for (let at = first; at < Math.min(last, rows.length); at += 1) drawn.push(render(rows[at] as R, at));
    return (
      <div {...scroller} ref={this.#scroller} onScroll={this.#onScroll}>
        {head}
        <div {...body} ref={this.#body} style={this.#padding()}>
          {drawn}
        </div>
        {foot}
      </div>
    );
  }
}
