// The same as one would type it into a shell.
import { useState } from "preact/hooks";
import { ApiError, post } from "../../api/client";
import type { CommandLine } from "../../api/types";
import { Copy, Problem } from "../../ui/parts";
import { visible } from "../../ui/text";
import type { Arguments } from "./form";

export function CommandLineText({ given }: { given: () => Arguments }) {
  const [line, setLine] = useState<CommandLine | null>(null);
  const [error, setError] = useState<ApiError | null>(null);
  /** Shown in any case, so that it can be copied by hand. */
  const fetched = async (): Promise<string | null> => {
    setError(null);
    try {
      const found = await post<CommandLine>("v1/rollouts/command-line", given());
      setLine(found);
      return found.command;
    } catch (problem) {
      setLine(null);
      setError(problem as ApiError);
      return null;
    }
  };
  return (
    <div class="command stack">
      <div>
        <Copy text={fetched} label="Copy as command line" />
      </div>
      <Problem error={error} />
      {line && (
        <>
          <pre tabIndex={0} aria-label="Command line">
            {visible(line.command)}
          </pre>
          {line.notes.length > 0 && (
            <ul class="muted small">
              {line.notes.map((note) => (
                <li key={note}>{note}</li>
              ))}
            </ul>
          )}
        </>
      )}
    </div>
  );
}
