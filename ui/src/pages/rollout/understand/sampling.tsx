// How a call was to be sampled, and the tools that it offered.
import type { TurnDetail } from "../../../api/types";
import { json, written } from "../../../ui/json";
import { AgentText } from "../../../ui/text";

const shown = (value: unknown) => (value === undefined ? "–" : (json(value) ?? "too deep to show"));

export function Sampling({ detail: it }: { detail: TurnDetail }) {
  const names = [
    ...new Set([...Object.keys(it.requested_sampling_params), ...Object.keys(it.sampling_params)]),
  ].sort();
  if (names.length + it.dropped.length + it.refused.length === 0) return null;
  return (
    <section class="stack">
      <h3>Sampling</h3>
      {names.length > 0 && (
        <div class="wide-box" tabIndex={0} role="region" aria-label="Sampling parameters">
          <table class="sampling small">
            <thead>
              <tr>
                <th>Parameter</th>
                <th>The agent asked</th>
                <th>The endpoint was asked</th>
              </tr>
            </thead>
            <tbody>
              {names.map((name) => {
                const [asked, sent] = [
                  it.requested_sampling_params[name],
                  it.sampling_params[name],
                ];
                const isOther = json(asked) !== json(sent);
                return (
                  <tr key={name} class={isOther ? "other" : ""}>
                    <th scope="row">
                      <AgentText text={name} />
                    </th>
                    <td>
                      <code>
                        <AgentText text={shown(asked)} />
                      </code>
                    </td>
                    <td>
                      <code>
                        <AgentText text={shown(sent)} />
                      </code>
                    </td>
                  </tr>
                );
              })}
            </tbody>
          </table>
        </div>
      )}
      <Names about="Dropped, since the endpoint's dialect has no word for it" names={it.dropped} />
      <Names about="Refused by the endpoint" names={it.refused} />
    </section>
  );
}

function Names({ about, names }: { about: string; names: string[] }) {
  if (names.length === 0) return null;
  return (
    <p class="small">
      {about}:{" "}
      {names.map((name, at) => (
        <code key={at} class="called">
          <AgentText text={name} />
        </code>
      ))}
    </p>
  );
}

/** What an agent wrote: any member may be of any type. */
interface Tool {
  name?: unknown;
  description?: unknown;
  function?: { name?: unknown; description?: unknown } | null;
}

export function Tools({ tools }: { tools: unknown }) {
  const list: (Tool | null)[] = Array.isArray(tools) ? tools : [];
  if (list.length === 0) return null;
  return (
    <details>
      <summary>
        <h3 class="inline">Tools offered</h3> <span class="muted">{list.length}</span>
      </summary>
      {list.map((tool, at) => (
        <details key={at} class="offered">
          <summary>
            <code>
              <AgentText text={tool?.function?.name ?? tool?.name ?? "without a name"} />
            </code>{" "}
            <span class="muted cut">
              <AgentText
                text={written(tool?.function?.description ?? tool?.description ?? "").slice(0, 160)}
              />
            </span>
          </summary>
          <pre class="block">
            <AgentText text={json(tool, 2) ?? "It is nested too deep to be shown."} />
          </pre>
        </details>
      ))}
    </details>
  );
}
