// Who must log in, and what becomes of a login that expires.

import assert from "node:assert/strict";
import { createHmac } from "node:crypto";
import { after, test } from "node:test";

import { CUT, INIT, Link, open, quit, RESULT, said, Server } from "./support.mjs";

after(quit);

const SENDER = "a-token-that-may-do-everything";
const WATCHER = "a-token-that-may-watch-and-no-more";
const SECRET = "a-secret-of-more-than-thirty-two-characters";
const TOML = `
[[auth.tokens]]
name = "sender"
token = "${SENDER}"
rights = ["watch", "ingest"]

[[auth.tokens]]
name = "watcher"
token = "${WATCHER}"

[[auth.jwt]]
name = "jwt"
algorithm = "HS256"
issuer = "https://idp.example.com/"
audience = "runcast"
secret = "${SECRET}"
runs = ["*"]
leeway_ms = 0
`;

/** A JSON web token that is good for so many seconds. */
function token(seconds) {
  const part = (value) => Buffer.from(JSON.stringify(value)).toString("base64url");
  const claims = { iss: "https://idp.example.com/", aud: "runcast", sub: "somebody", exp: Math.floor(Date.now() / 1000) + seconds };
  const signed = `${part({ alg: "HS256", typ: "JWT" })}.${part(claims)}`;
  return `${signed}.${createHmac("sha256", SECRET).update(signed).digest("base64url")}`;
}

async function logIn(view, text, keep = false) {
  await view.page.fill("dialog.login input[name=token]", text);
  if (keep) await view.page.check("dialog.login input[name=keep]");
  await view.page.click("dialog.login button[type=submit]");
}

test("a token is asked for, tried, and kept out of every address", async () => {
  const server = await Server.start({ toml: TOML, token: SENDER });
  const link = await Link.to(server);
  try {
    await server.send("r", [INIT, said("A first word.")]);
    const view = await open(link.base, { allow: CUT });
    const addresses = [];
    view.page.on("request", (request) => addresses.push(request.url()));
    view.page.on("websocket", (socket) => addresses.push(socket.url()));
    await view.until(() => document.querySelector("dialog.login")?.open === true);
    await view.shot("login");
    await logIn(view, "a-wrong-token-that-nobody-gave");
    await view.sees("The server does not take this token.", "dialog.login");
    await logIn(view, WATCHER);
    await view.until(() => document.querySelector("dialog.login") === null);
    await view.sees("A first word.", '[data-key="r"]');
    await view.page.click('[data-key="r"] a');
    await view.state("live");
    await server.send("r", [said("A second word.")], 2);
    await view.sees("A second word.", ".transcript");
    // Each connection has a ticket of its own.
    link.cut();
    await view.until(() => document.querySelector(".run-title .connection")?.dataset.state === "waiting");
    link.mend();
    await view.state("live");
    const tickets = link.asked.map((head) => /[?&]ticket=([^&\s]+)/.exec(head)?.[1]);
    assert.ok(tickets.length >= 2 && tickets.every((ticket) => ticket !== undefined), String(tickets));
    assert.equal(new Set(tickets).size, tickets.length);
    for (const address of addresses) assert.ok(!address.includes(WATCHER), address);
    const stored = await view.page.evaluate(() => JSON.stringify([{ ...sessionStorage }, { ...localStorage }, document.cookie]));
    assert.ok(!stored.includes(WATCHER), stored);
    // A reload forgets it, unless it was to be kept.
    await view.page.reload();
    await view.until(() => document.querySelector("dialog.login")?.open === true);
    await logIn(view, WATCHER, true);
    await view.state("live");
    await view.page.reload();
    await view.state("live");
    await view.page.click("button:has-text('Log out')");
    await view.until(() => document.querySelector("dialog.login")?.open === true);
    assert.deepEqual(await view.page.evaluate(() => ({ ...sessionStorage })), {});
    await view.close();
  } finally {
    await link.stop();
    await server.stop();
  }
});

test("a login that expires leaves what is shown, and goes on from there", async () => {
  const server = await Server.start({ toml: TOML, token: SENDER });
  try {
    await server.send("r", [INIT, said("Before it expired.")]);
    const view = await open(server.base, { run: "r", allow: CUT });
    await view.until(() => document.querySelector("dialog.login")?.open === true);
    await logIn(view, token(6));
    await view.sees("Before it expired.", ".transcript");
    await view.state("logged-out");
    await view.until(() => document.querySelector("dialog.login")?.open === true);
    await view.sees("The login has expired", "dialog.login");
    assert.ok(await view.page.evaluate(() => document.querySelector(".transcript").innerText.includes("Before it expired.")));
    await view.shot("login-expired");
    await server.send("r", [said("While logged out.")], 2);
    await logIn(view, token(3600));
    await view.state("live");
    await view.sees("While logged out.", ".transcript");
    await server.send("r", [RESULT], 3);
    await server.end("r");
    await view.state("ended");
    assert.equal(await view.page.evaluate(() => document.querySelectorAll(".kind-text").length), 2);
    await view.close();
  } finally {
    await server.stop();
  }
});
