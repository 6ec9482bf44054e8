// What stands in a run was written by anybody: it is shown, and never obeyed.

import assert from "node:assert/strict";
import { after, test } from "node:test";

import { answered, broken, called, INIT, open, quit, RESULT, said, Server } from "./support.mjs";

after(quit);

const SCRIPT = "<script>window.pwned=1</script><img src=x onerror='window.pwned=2'><svg/onload=window.pwned=3><iframe srcdoc='<script>parent.pwned=4</script>'></iframe><style>*{display:none}</style>";
const LINK = "[x](javascript:window.pwned=5) <a href='javascript:window.pwned=6'>y</a> javascript:window.pwned=7";
const BIDI = "user\u202e\u2066// admin\u2069 \u2066only";
const ANSI = "\u001b[31mred\u001b[0m \u001b]0;title\u0007 \u001b[2J \u001b]8;;https://evil.example/\u001b\\link\u001b]8;;\u001b\\ \u001b[8mhidden\u001b[0m";
const LONG = `begin ${"x".repeat(1_000_000)} end`;

test("scripts, markup, links, escapes, odd characters and endless lines are shown as what they are", async () => {
  const server = await Server.start();
  try {
    const run = `<img src=x onerror=window.pwned=8>"'&`;
    await server.ingest(run, [
      { ...INIT, model: SCRIPT, cwd: BIDI },
      said(SCRIPT),
      said(LINK),
      said(`text ${BIDI}`),
      said("```\n" + SCRIPT + "\n```\n# " + SCRIPT + "\n- " + SCRIPT + "\n| " + SCRIPT),
      called("a", SCRIPT, { [SCRIPT]: SCRIPT, command: SCRIPT }),
      answered("a", SCRIPT, { isError: true }),
      called("b", "Bash", { command: `echo ${ANSI}`, description: SCRIPT }),
      answered("b", ANSI, { twin: { stdout: ANSI, stderr: SCRIPT } }),
      called("c", "Bash", { command: LONG }),
      answered("c", LONG),
      said(LONG),
      called("d", "Edit", { file_path: SCRIPT, old_string: SCRIPT, new_string: LONG }),
      answered("d", "ok", { twin: { structuredPatch: [{ oldStart: 1, newStart: 1, lines: [`-${SCRIPT}`, `+${BIDI}`, `+${LONG}`] }] } }),
      { type: "system", subtype: "report", title: SCRIPT, text: SCRIPT },
      { type: SCRIPT, uuid: "odd", __proto__: null, constructor: SCRIPT },
      { type: "system", subtype: SCRIPT, content: SCRIPT, uuid: "odd2" },
      { type: "user", message: { role: "user", content: [{ type: "image", source: { type: "base64", media_type: "image/svg+xml", data: btoa(`<svg xmlns="http://www.w3.org/2000/svg" onload="window.pwned=9"/>`) } }] }, uuid: "odd3" },
      { type: "user", message: { role: "user", content: [{ type: "image", source: { type: "url", url: "https://evil.example/pixel.png" } }] }, uuid: "odd4" },
      { ...RESULT, result: SCRIPT },
    ]);
    const view = await open(server.base);
    await view.until(() => document.querySelectorAll(".list-row[data-key]").length === 1);
    await view.sees("<script>window.pwned=1</script>", ".list-rows");
    await view.page.click(".list-row[data-key] a");
    await view.state("ended");
    await view.sees("<script>window.pwned=1</script>", ".outcome");
    await view.page.keyboard.press("e");
    await view.until(() => document.querySelector('.tool-head[aria-expanded="true"]') !== null);
    const { rows, last } = await view.transcript();
    assert.equal(rows.length, last);
    const all = rows.join("\n");
    for (const part of ["<script>window.pwned=1</script>", "javascript:window.pwned=5", "user⟨RLO⟩⟨LRI⟩// admin⟨PDI⟩ ⟨LRI⟩only", "␛]0;title", "␛[2J", "␛]8;;https://evil.example/", "hidden", "Show more"]) {
      assert.ok(all.includes(part), `${part} is not shown`);
    }
    assert.ok(!/[\u202a-\u202e\u2066-\u2069\u001b]/.test(all), "something is in the document that cannot be seen");
    assert.ok(all.length < 400_000, `${all.length} characters of long lines`);
    await view.page.evaluate(() => (document.querySelector(".transcript").scrollTop = 0));
    await view.until(() => document.querySelector(".transcript-body > article")?.getAttribute("aria-posinset") === "1");
    await view.shot("hostile");
    const made = await view.page.evaluate(() => ({
      pwned: window.pwned,
      elements: document.querySelectorAll("#app :is(script, iframe, style, img, object, embed, [onerror], [onload], [srcdoc])").length,
      links: [...document.querySelectorAll("a")].map((link) => link.getAttribute("href")).filter((href) => !href.startsWith("#/")),
      title: document.title,
    }));
    assert.equal(made.pwned, undefined);
    assert.equal(made.elements, 0);
    assert.deepEqual(made.links, []);
    assert.ok(!/[\u202a-\u202e]/.test(made.title));

    // Colours are obeyed, and nothing else.
    await view.search("title");
    await view.until(() => document.querySelector(".output .t-fg1")?.textContent === "red");
    await view.closeSearch();

    // A long line comes in parts, when it is asked for.
    await view.search("begin xxxxx");
    await view.until(() => document.querySelector("article.selected .more") !== null);
    const length = () => document.querySelector("article.selected").innerText.length;
    const before = await view.page.evaluate(length);
    assert.ok(before < 20_000, `${before} characters of a long line`);
    await view.page.click("article.selected .more");
    await view.until((before) => document.querySelector("article.selected").innerText.length > before + 20_000, before);
    await view.close();
  } finally {
    await server.stop();
  }
});

test("pictures of a run are shown, and every kind of broken run", async () => {
  const server = await Server.start();
  try {
    await server.ingest("picture", broken("f02-image-line-over-1m"));
    const odd = ["f08-log-noise-on-stdout", "f15-ansi-inside-strings", "f17-unknown-subtype-and-block", "f19-odd-tool-result-content", "f20-tool-use-result-any-type", "f21-message-null-or-empty", "f29-tool-result-before-tool-use", "f36-nesting-150"];
    for (const name of odd) await server.ingest(name, broken(name));
    const view = await open(server.base, { run: "picture" });
    await view.state("ended");
    await view.page.keyboard.press("e");
    await view.until(() => document.querySelector(".tool-head[aria-expanded='true'], .pictures") !== null);
    for (const name of odd) {
      await view.page.goto(`${server.base}/#/runs/${name}`);
      await view.until((name) => document.querySelector(".run-id code")?.textContent === name, name);
      await view.state("ended");
      await view.page.keyboard.press("e");
      const { rows, last } = await view.transcript();
      assert.equal(rows.length, last);
      assert.ok(last > 2, `${name}: ${last} rows`);
    }
    await view.page.goto(`${server.base}/#/runs/f08-log-noise-on-stdout`);
    await view.sees("unreadable line", ".transcript");
    await view.close();
  } finally {
    await server.stop();
  }
});
