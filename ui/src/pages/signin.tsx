// Signing in with the server's token, which ends up in a cookie that no script can read.
import { useState } from "preact/hooks";
import { ApiError, needsToken, post } from "../api/client";
import { Panel, Problem } from "../ui/parts";

export function SignIn() {
  const [token, setToken] = useState("");
  const [error, setError] = useState<ApiError | null>(null);
  const submit = async (event: Event) => {
    event.preventDefault();
    try {
      await post("v1/session", { token, framed: window.top !== window });
      needsToken.value = false;
    } catch (problem) {
      setError(problem as ApiError);
    }
  };
  return (
    <Panel title="Sign in">
      <form class="stack" onSubmit={submit}>
        <label class="field">
          <span>The server's token</span>
          <input
            type="password"
            autocomplete="current-password"
            value={token}
            onInput={(event) => setToken(event.currentTarget.value)}
          />
          <span class="hint">
            Whoever runs this server chose it (`rollcage serve --token-env`).
          </span>
        </label>
        <Problem error={error} />
        <div>
          <button class="primary" disabled={!token}>
            Sign in
          </button>
        </div>
      </form>
    </Panel>
  );
}
