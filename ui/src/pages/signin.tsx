// Signing in with the server's token, which ends up in a cookie that no script can read.
import { useEffect, useRef, useState } from "preact/hooks";
import type { ApiError } from "../api/client";
import { signIn } from "../api/session";
import { Problem, Spinner } from "../ui/parts";
import { useTitle } from "../ui/title";

export function SignIn() {
  useTitle("Sign in");
  const [token, setToken] = useState("");
  const [isBusy, setBusy] = useState(false);
  const [error, setError] = useState<ApiError | null>(null);
  const input = useRef<HTMLInputElement>(null);
  useEffect(() => input.current?.focus(), []);
  const submit = async (event: Event) => {
    event.preventDefault();
    setBusy(true);
    setError(null);
    try {
      await signIn(token.trim());
    } catch (problem) {
      setError(problem as ApiError);
      setBusy(false);
      input.current?.select();
    }
  };
  return (
    <section class="panel signin" aria-labelledby="signin-title">
      <img src="./icon.svg" alt="" />
      <h1 id="signin-title">Sign in</h1>
      <p class="muted">This server shows rollouts to those who have a token of it.</p>
      <form class="stack" onSubmit={submit}>
        <label class="field">
          <span>Token</span>
          <input
            ref={input}
            type="password"
            name="token"
            autocomplete="current-password"
            spellcheck={false}
            value={token}
            onInput={(event) => setToken(event.currentTarget.value)}
          />
        </label>
        <Problem error={error} />
        <button class="primary" disabled={!token.trim() || isBusy}>
          {isBusy && <Spinner label="Signing in" />} Sign in
        </button>
      </form>
      <p class="muted small">
        Whoever runs the server chose it: <code>rollcage serve --token-env NAME</code>. It is kept
        in a cookie that no script can read, for 30 days.
      </p>
    </section>
  );
}
