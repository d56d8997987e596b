// Everything that a rollout can be taken away as.
import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { address, ApiError, get, getBlob, isSaved, type Query } from "../../../api/client";
import { useLoad } from "../../../api/load";
import type { ServerInfo } from "../../../api/types";
import { bytes, shortId } from "../../../format";
import { Copy, Empty, Panel, Problem, Spinner } from "../../../ui/parts";
import { AgentText, visible } from "../../../ui/text";
import type { TabProps } from "../page";
import "../../../styles/understand.css";

/** What some formats can be asked for beside their name. */
const OPTIONS: Record<string, [name: string, flag: string, label: string, value: string][]> = {
  capture: [
    ["include_discarded", "--include-discarded", "also discarded turns", "true"],
    ["include_messages", "--include-messages", "also messages", "true"],
  ],
  sequences: [
    ["include_auxiliary", "--include-auxiliary", "also turns beside the work", "true"],
    ["include_asked_again", "--include-asked-again", "also replies asked for again", "true"],
  ],
  sft: [["arguments", "--arguments strings", "arguments as strings", "strings"]],
};
const LINES = new Set(["sequences", "sft", "turns"]);

const extension = (format: string) =>
  format === "parquet" ? "parquet" : LINES.has(format) ? "jsonl" : "json";

export default function Export({ rollout: { id, result } }: TabProps) {
  const server = useLoad((abort) => get<ServerInfo>("v1/server", {}, abort), []);
  if (isSaved())
    return (
      <Empty>
        This file holds a copy of the rollout. Exports are made where it is stored: rollcage export{" "}
        {id}
      </Empty>
    );
  return (
    <div class="understand stack">
      <Problem error={server.error} retry={server.reload} />
      <Panel title="The page, as one file">
        {result ? (
          <Item
            name="Saved page"
            about="Transcript, turns, tokens and graph in one HTML file. It opens anywhere, without a server."
            path={`v1/rollouts/${id}/page`}
            file={`rollout-${shortId(id)}.html`}
            command={`rollcage show ${id} --html rollout-${shortId(id)}.html`}
          />
        ) : (
          <p class="muted">It can be saved when the rollout has ended.</p>
        )}
      </Panel>
      <Panel title="For trainers and tools">
        {!result && (
          <p class="muted">The rollout still runs: these hold what has been captured so far.</p>
        )}
        {result?.rollout_type === "eval" && (
          <p class="notice part">
            This rollout has no exact tokens, so formats that are for training alone are refused.
          </p>
        )}
        {!server.data && server.loading && <Spinner label="Loading the formats" />}
        {server.data?.formats.map((format) => (
          <Format key={format.name} id={id} name={format.name} about={format.about} />
        ))}
      </Panel>
      <Panel title="As it was stored">
        {!result && (
          <p class="muted">The result, the patch and artifacts appear here when it has ended.</p>
        )}
        {result && (
          <Item
            name="Result"
            about="Reward, endings, findings, commands, figures: everything but the tokens."
            path={`v1/rollouts/${id}`}
            query={{ trace: "none" }}
            file={`rollout-${shortId(id)}.result.json`}
            command={`rollcage show ${id} --json --trace none`}
          />
        )}
        {result && result.patch_bytes !== null && result.patch_bytes !== undefined && (
          <Item
            name="Patch"
            about="What the agent changed in the work directory."
            size={result.patch_bytes}
            path={`v1/rollouts/${id}/patch`}
            file={`rollout-${shortId(id)}.patch`}
          />
        )}
        <Item
          name="Agent's log"
          about="The end of what the agent printed."
          path={`v1/rollouts/${id}/logs`}
          query={{ name: "agent" }}
          file={`rollout-${shortId(id)}.agent.log`}
        />
        <Item
          name="Agent's errors"
          about="The end of its standard error."
          path={`v1/rollouts/${id}/logs`}
          query={{ name: "agent_stderr" }}
          file={`rollout-${shortId(id)}.stderr.log`}
        />
        {result?.artifacts?.map((artifact) => (
          <Item
            key={artifact.path}
            name={<AgentText text={artifact.path} />}
            about="An artifact that the task asked to keep."
            size={artifact.bytes}
            path={`v1/rollouts/${id}/artifacts/${artifact.path.split("/").map(encodeURIComponent).join("/")}`}
            file={artifact.path.split("/").at(-1) ?? "artifact"}
          />
        ))}
      </Panel>
    </div>
  );
}

function Format({ id, name, about }: { id: string; name: string; about: string }) {
  const options = OPTIONS[name] ?? [];
  const [chosen, setChosen] = useState<string[]>([]);
  const on = options.filter(([option]) => chosen.includes(option));
  const end = extension(name);
  const file = `rollout-${shortId(id)}.${name === end ? end : `${name}.${end}`}`;
  const flags = on.map(([, flag]) => ` ${flag}`).join("");
  return (
    <Item
      name={<code>{name}</code>}
      about={about}
      path={`v1/rollouts/${id}/trace`}
      query={{
        format: name,
        ...Object.fromEntries(on.map(([option, , , value]) => [option, value])),
      }}
      file={file}
      command={`rollcage export ${id} --format ${name}${flags} --output ${file}`}
    >
      {options.length > 0 &&
        options.map(([option, , label]) => (
          <label key={option} class="row small">
            <input
              type="checkbox"
              checked={chosen.includes(option)}
              onChange={(event) =>
                setChosen(
                  event.currentTarget.checked
                    ? [...chosen, option]
                    : chosen.filter((other) => other !== option),
                )
              }
            />
            {label}
          </label>
        ))}
    </Item>
  );
}

interface ItemProps {
  name: ComponentChildren;
  about: string;
  path: string;
  query?: Query;
  file: string;
  size?: number;
  command?: string;
  children?: ComponentChildren;
}

/** A download. It is fetched by script, so that a refusal is shown here and not saved as a file. */
function Item({ name, about, path, query = {}, file, size, command, children }: ItemProps) {
  const [state, setState] = useState<"" | "busy" | number>("");
  const [error, setError] = useState<ApiError | null>(null);
  const download = async (event: MouseEvent) => {
    event.preventDefault();
    setState("busy");
    setError(null);
    try {
      const blob = await getBlob(path, query);
      save(blob, file);
      setState(blob.size);
    } catch (thrown) {
      setError(thrown instanceof ApiError ? thrown : new ApiError(0, "error", String(thrown)));
      setState("");
    }
  };
  const known = typeof state === "number" ? state : size;
  return (
    <div class="export-item">
      <div class="what">
        <strong>{name}</strong>
        <span class="muted small">{about}</span>
        {children && <span class="row">{children}</span>}
      </div>
      <div class="row how">
        {known !== undefined && <span class="muted small number">{bytes(known)}</span>}
        {command && (
          <span class="export-command">
            <code class="cut" title={command}>
              {command}
            </code>
            <Copy text={command} label="Copy command" />
          </span>
        )}
        <a class="button small" href={address(path, query)} download={file} onClick={download}>
          {state === "busy" ? <Spinner label="Loading" /> : "Download"}
          <span class="visually-hidden"> {visible(file)}</span>
        </a>
      </div>
      <Problem error={error} />
    </div>
  );
}

function save(blob: Blob, name: string) {
  const url = URL.createObjectURL(blob);
  const link = document.createElement("a");
  [link.href, link.download] = [url, name];
  link.click();
  // Not at once: the browser reads it while it saves.
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}
