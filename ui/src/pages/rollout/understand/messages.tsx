// Messages of a request and a reply, in the words of chat completions.
import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { indented, written } from "../../../ui/json";
import { AgentText, TerminalText } from "../../../ui/text";
import { Folding } from "./parts";

interface Part {
  type?: string;
  text?: string;
}

/** What an agent wrote: any member may be of any type. */
interface ToolCall {
  function?: { name?: unknown; arguments?: unknown } | null;
}

interface Message {
  role?: unknown;
  name?: unknown;
  content?: string | Part[] | null;
  reasoning?: unknown;
  reasoning_content?: unknown;
  tool_calls?: (ToolCall | null)[];
  tool_call_id?: unknown;
}

/** The text of a message, and how many images and files it has beside it. */
export function contentOf(content: Message["content"]): { text: string; others: number } {
  if (typeof content === "string") return { text: content, others: 0 };
  if (!Array.isArray(content)) return { text: "", others: 0 };
  const texts = content.filter((part) => typeof part?.text === "string");
  return { text: texts.map((part) => part.text).join("\n"), others: content.length - texts.length };
}

/** A long conversation has thousands of messages. */
const STEP = 40;

export function Messages(props: {
  title: string;
  messages: unknown[];
  note?: string | undefined;
  action?: ComponentChildren;
}) {
  const [shown, setShown] = useState(STEP);
  const left = props.messages.length - shown;
  return (
    <section class="stack">
      <div class="row">
        <h3>{props.title}</h3>
        {props.note && <span class="muted small">{props.note}</span>}
        <span class="row actions">{props.action}</span>
      </div>
      {props.messages.length === 0 && <p class="muted">There are none.</p>}
      {props.messages.slice(0, shown).map((message, at) => (
        <MessageView key={at} message={message} />
      ))}
      {left > 0 && (
        <button class="small" onClick={() => setShown(shown + STEP)}>
          Show more: {left.toLocaleString("en")} are left
        </button>
      )}
    </section>
  );
}

export function MessageView({ message }: { message: unknown }) {
  const it = (message ?? {}) as Message;
  const { text, others } = contentOf(it.content);
  const reasoning = [it.reasoning_content, it.reasoning].find(
    (one) => typeof one === "string" && one,
  );
  const role = typeof it.role === "string" ? it.role : "message";
  const calls = Array.isArray(it.tool_calls) ? it.tool_calls : [];
  return (
    <article class={`said ${["user", "assistant", "tool"].includes(role) ? `from-${role}` : ""}`}>
      <header class="small">
        <strong>
          <AgentText text={role} />
        </strong>
        {Boolean(it.name) && <AgentText class="muted" text={it.name} />}
        {Boolean(it.tool_call_id) && <AgentText class="muted mono" text={it.tool_call_id} />}
      </header>
      {typeof reasoning === "string" && (
        <div class="reasoning">
          <Folding text={reasoning} />
        </div>
      )}
      {text !== "" &&
        (role === "tool" ? (
          <Folding text={text} show={(shown) => <TerminalText text={shown} />} />
        ) : (
          <div>
            {/* Instructions are long, and the same in every rollout. */}
            <Folding text={text} lines={role === "system" ? 3 : 14} />
          </div>
        ))}
      {others > 0 && <p class="muted small">{others} images or files, not shown</p>}
      {calls.map((call, at) => (
        <CallView key={at} call={call} />
      ))}
      {text === "" && !reasoning && others === 0 && calls.length === 0 && (
        <p class="muted">Empty.</p>
      )}
    </article>
  );
}

function CallView({ call }: { call: ToolCall | null }) {
  const text = written(call?.function?.arguments ?? null);
  return (
    <div class="tool-call">
      <code class="called">
        <AgentText text={call?.function?.name ?? "a tool"} />
      </code>
      <Folding
        text={indented(text) ?? text}
        show={(shown) => (
          <pre class="block">
            <AgentText text={shown} />
          </pre>
        )}
      />
    </div>
  );
}
