// The bar below the table while rollouts are selected.
import { useState } from "preact/hooks";
import { get, type ApiError } from "../../api/client";
import { useLoad } from "../../api/load";
import type { RolloutRow, ServerInfo } from "../../api/types";
import { Confirm } from "../../ui/dialog";
import { Menu } from "../../ui/menu";
import { Problem } from "../../ui/parts";
import { cancel, comparison, erase, forEach, saveMany, traceAddress } from "./actions";

interface Props {
  rows: RolloutRow[];
  clear: () => void;
  /** Selects all that match, up to a number; null where all are. */
  more: { title: string; run: () => void } | null;
}

type Asked = { kind: "cancel" | "delete"; rows: RolloutRow[] };

export function SelectionBar({ rows, clear, more }: Props) {
  const [asked, setAsked] = useState<Asked | null>(null);
  const running = rows.filter((row) => row.status !== "ended");
  const ended = rows.filter((row) => row.status === "ended");
  const compare = comparison(rows);
  return (
    <div class="selection" role="region" aria-label="Selected rollouts">
      <strong class="number">{rows.length} selected</strong>
      {more && (
        <button class="plain small" onClick={more.run}>
          {more.title}
        </button>
      )}
      <span class="gap" />
      {compare ? (
        <a class="button small" href={compare}>
          {rows.length === 1 ? "Compare with…" : "Compare"}
        </a>
      ) : (
        <span class="muted small">Two, or those of one group or task, can be compared.</span>
      )}
      {ended.length > 0 && <Export rows={ended} />}
      {running.length > 0 && (
        <button class="small" onClick={() => setAsked({ kind: "cancel", rows: running })}>
          Cancel {running.length}
        </button>
      )}
      {ended.length > 0 && (
        <button class="small danger" onClick={() => setAsked({ kind: "delete", rows: ended })}>
          Delete {ended.length}
        </button>
      )}
      <button class="plain small" onClick={clear}>
        Clear
      </button>
      {asked && <Ask asked={asked} close={() => setAsked(null)} />}
    </div>
  );
}

/** Asks before rollouts are cancelled or deleted, and counts while it does it. */
export function Ask({ asked, close }: { asked: Asked; close: () => void }) {
  const [done, setDone] = useState(0);
  const { kind, rows } = asked;
  const many = rows.length === 1 ? "this rollout" : `${rows.length} rollouts`;
  return (
    <Confirm
      title={kind === "cancel" ? `Cancel ${many}?` : `Delete ${many}?`}
      action={`${kind === "cancel" ? "Cancel" : "Delete"} ${many}`}
      isDanger
      run={() => forEach(rows, kind === "cancel" ? cancel : erase, setDone)}
      close={close}
    >
      <p>
        {kind === "cancel"
          ? "What runs is ended at once. What was recorded so far is kept, without a reward."
          : "Everything that is kept is erased: tokens, files and logs. This cannot be undone."}
      </p>
      {done > 0 && (
        <p class="muted" role="status">
          {done} of {rows.length}
        </p>
      )}
    </Confirm>
  );
}

function Export({ rows }: { rows: RolloutRow[] }) {
  return (
    <Menu label="Export" name="Export" class="export" side="above">
      {() => <Formats rows={rows} />}
    </Menu>
  );
}

function Formats({ rows }: { rows: RolloutRow[] }) {
  const server = useLoad(() => get<ServerInfo>("v1/server"), []);
  const [state, setState] = useState<{ format: string; done: number } | null>(null);
  const [error, setError] = useState<ApiError | null>(null);
  const one = rows.length === 1 ? rows[0] : null;
  const save = async (format: string) => {
    setError(null);
    setState({ format, done: 0 });
    try {
      await saveMany(rows, format, (done) => setState({ format, done }));
    } catch (problem) {
      setError(problem as ApiError);
    }
    setState(null);
  };
  const formats = server.data?.formats ?? [];
  return (
    <>
      <Problem error={error ?? server.error} />
      <ul class="menu-list">
        {formats
          .filter(({ name }) => one || name !== "parquet")
          .map(({ name, about }) => (
            <li key={name}>
              {one ? (
                <a class="menu-item" href={traceAddress(one.rollout_id, name)} download>
                  <FormatName name={name} about={about} />
                </a>
              ) : (
                <button class="menu-item" disabled={state !== null} onClick={() => save(name)}>
                  <FormatName name={name} about={about} />
                </button>
              )}
            </li>
          ))}
      </ul>
      <p class="menu-note" role="status">
        {state
          ? `${state.format}: ${state.done} of ${rows.length}`
          : one
            ? "Of one rollout."
            : `Of ${rows.length} rollouts, in one file.`}
      </p>
    </>
  );
}

function FormatName({ name, about }: { name: string; about: string }) {
  return (
    <span class="name">
      {name}
      <small>{about}</small>
    </span>
  );
}
