/** Where a token is given. */

import { useEffect, useRef, useState } from "preact/hooks";
import type { JSX } from "preact";
import { APIError } from "runcast-client";

import { asked, logIn } from "../live/session.js";
import { visible } from "../model/text.js";

export function Login(): JSX.Element | null {
  const why = asked.value;
  const input = useRef<HTMLInputElement>(null);
  const dialog = useRef<HTMLDialogElement>(null);
  const [error, setError] = useState("");
  const [isBusy, setBusy] = useState(false);
  useEffect(() => {
    if (why !== "no" && dialog.current?.open === false) dialog.current.showModal();
    if (why !== "no") input.current?.focus();
  }, [why]);
  if (why === "no") return null;
  const submit = async (event: SubmitEvent): Promise<void> => {
    event.preventDefault();
    const form = new FormData(event.currentTarget as HTMLFormElement);
    const token = form.get("token");
    if (typeof token !== "string" || token.trim() === "") return;
    setBusy(true);
    setError("");
    try {
      await logIn(token.trim(), form.get("keep") !== null);
    } catch (failure) {
      const refused = failure instanceof APIError && (failure.status === 401 || failure.status === 403);
      setError(refused ? "The server does not take this token." : `No answer: ${failure instanceof Error ? failure.message : String(failure)}`);
    } finally {
      setBusy(false);
    }
  };
  return (
    <dialog ref={dialog} class="login" aria-labelledby="login-title" onCancel={(event) => event.preventDefault()}>
      <form onSubmit={(event) => void submit(event)}>
        <h1 id="login-title">{why === "expired" ? "The login has expired" : "Log in"}</h1>
        <p>{why === "expired" ? "What you have open stays as it is, and goes on once you have logged in again." : "This server shows runs to those who have a token with the right to watch."}</p>
        <label>
          Token
          <input ref={input} name="token" type="password" autocomplete="off" spellcheck={false} required aria-invalid={error !== ""} aria-describedby="login-error" />
        </label>
        <label class="check">
          <input name="keep" type="checkbox" /> Keep it in this tab until the tab is closed
        </label>
        <p id="login-error" class="error" role="alert">
          {visible(error)}
        </p>
        <button type="submit" class="primary" disabled={isBusy}>
          {isBusy ? "Trying …" : "Log in"}
        </button>
        <p class="dim small">The token stays in this page: in no address and no cookie.</p>
      </form>
    </dialog>
  );
}
