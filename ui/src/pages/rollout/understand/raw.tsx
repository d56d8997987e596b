// The stored bytes of a call: what the agent asked, what the endpoint was asked, and what it answered.
import { useState } from "preact/hooks";
import { address, get } from "../../../api/client";
import { useLoad } from "../../../api/load";
import { bytes } from "../../../format";
import { Copy, Problem, Spinner } from "../../../ui/parts";
import { AgentText } from "../../../ui/text";
import { indented } from "../../../ui/json";

const PARTS: [string, string, string][] = [
  ["request", "Request", "As the agent sent it"],
  ["sent", "Sent", "As the endpoint got it"],
  ["response", "Response", "As the endpoint answered"],
];
/** A browser gets slow with more text than this in one element. */
const STEP = 100_000;

export function Raw({ id, turn }: { id: string; turn: number }) {
  const [what, setWhat] = useState<string | null>(null);
  return (
    <section class="stack">
      <div class="row">
        <h3>Raw</h3>
        {PARTS.map(([name, title, about]) => (
          <button
            key={name}
            class="small"
            title={about}
            aria-pressed={what === name}
            onClick={() => setWhat(what === name ? null : name)}
          >
            {title}
          </button>
        ))}
      </div>
      {what && <RawText key={`${turn} ${what}`} id={id} turn={turn} what={what} />}
    </section>
  );
}

function RawText({ id, turn, what }: { id: string; turn: number; what: string }) {
  const path = `v1/rollouts/${id}/turns/${turn}/raw`;
  const [isIndented, setIndented] = useState(true);
  const [shown, setShown] = useState(STEP);
  const text = useLoad(
    async (abort) => {
      const raw = `${await get<string>(path, { what }, abort)}`;
      return { raw, tidy: raw.length > 20 * STEP ? null : indented(raw) };
    },
    [id, turn, what],
  );
  if (text.error) return <Problem error={text.error} retry={text.reload} />;
  if (!text.data) return <Spinner label="Loading the bytes" />;
  const { raw, tidy } = text.data;
  const all = isIndented && tidy !== null ? tidy : raw;
  return (
    <>
      <div class="row small">
        <span class="muted">{bytes(new Blob([raw]).size)}</span>
        {tidy !== null && (
          <label class="row">
            <input
              type="checkbox"
              checked={isIndented}
              onChange={(event) => setIndented(event.currentTarget.checked)}
            />
            Indented
          </label>
        )}
        <Copy text={raw} />
        <a
          class="button small"
          href={address(path, { what, download: true })}
          download={`turn-${turn}-${what}`}
        >
          Download
        </a>
      </div>
      <pre class="block tall" tabIndex={0} role="region" aria-label={`Raw ${what}`}>
        <AgentText text={all.slice(0, shown)} />
      </pre>
      {all.length > shown && (
        <button class="small" onClick={() => setShown(shown + STEP)}>
          Show more: {(all.length - shown).toLocaleString("en")} characters are left
        </button>
      )}
    </>
  );
}
