// Who is signed in. It is asked before anything else, so that a page without a token asks for nothing that is refused.
import { signal } from "@preact/signals";
import { ApiError, get, needsToken, post, remove } from "./client";
import { streamFailures, streamStarts } from "./stream";
import type { SessionInfo } from "./types";

/** Null until the server has answered, or cannot be reached. */
export const session = signal<SessionInfo | "unknown" | null>(null);

export async function readSession(): Promise<void> {
  try {
    const found = await get<SessionInfo>("v1/session");
    needsToken.value = !found.signed_in;
    session.value = found;
  } catch {
    // Pages say what is wrong, and try again. Who is signed in does not change while the server is away.
    session.value ??= "unknown";
  }
}

// A server that was away when the page was opened.
streamStarts.subscribe(() => {
  if (session.peek() === "unknown") void readSession();
});

// A token that was withdrawn ends the stream, and the page has to ask for another one.
streamFailures.subscribe((count) => {
  if (count > 0) void readSession();
});

export async function signIn(token: string): Promise<void> {
  await post("v1/session", { token, framed: window.top !== window });
  await readSession();
  if (needsToken.peek())
    throw new ApiError(
      0,
      "no_cookie",
      window.top === window
        ? "The token is right, but the browser does not keep the cookie. Allow cookies for this site, then sign in again."
        : "The token is right, but the browser keeps no cookie of this frame. Open the page in a tab of its own, or over https.",
    );
}

export async function signOut(): Promise<void> {
  await remove("v1/session");
  await readSession();
}
