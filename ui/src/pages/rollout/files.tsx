// The work directory at the end, against what setup left. Texts are an agent's: they are shown as text alone.
import { useState } from "preact/hooks";
import { address, get, isSaved } from "../../api/client";
import { useLoad, useReload } from "../../api/load";
import { firstItems } from "../../api/pages";
import type { ChangesPage, FileView, RolloutResult } from "../../api/types";
import { bytes } from "../../format";
import { setParams } from "../../router";
import { Empty, Panel, Problem, Spinner } from "../../ui/parts";
import { AgentText, visible } from "../../ui/text";
import { Diff, NumberedText } from "./diff";
import type { TabProps } from "./page";
import { TableBox } from "./table-box";

const PAGE = 100;
/** Of a file at first. */
const LINES = 1000;

/** Where agents work; a path below it is told from there. */
const WORK_DIRECTORY = "/home/user/workdir/";

const shortPath = (path: string) =>
  path.startsWith(WORK_DIRECTORY) ? path.slice(WORK_DIRECTORY.length) : path;

const CHANGES: Record<FileView["change"], [string, string, string]> = {
  added: ["A", "added", "good"],
  changed: ["M", "changed", "part"],
  removed: ["D", "removed", "bad"],
  same: ["=", "unchanged", ""],
  unknown: ["?", "not known whether it changed", ""],
};

export function FilesTab({ rollout, query }: TabProps) {
  const { id, result } = rollout;
  if (!result)
    return <Empty>Files are collected when the rollout ends; they appear here then.</Empty>;
  return <Files id={id} result={result} chosen={query.get("file")} />;
}

interface FilesProps {
  id: string;
  result: RolloutResult;
  chosen: string | null;
}

function Files({ id, result, chosen }: FilesProps) {
  const [wanted, setWanted] = useState(PAGE);
  const { data, error, reload } = useLoad(
    (abort) => {
      const path = `v1/rollouts/${id}/changes`;
      const load = (start: number) => get<ChangesPage>(path, { start, limit: PAGE }, abort);
      return firstItems(wanted, load, (page) => page.files);
    },
    [id],
  );
  useReload(reload, wanted);
  const [showsSame, setShowsSame] = useState(false);
  if (!data)
    return error ? (
      <Problem error={error} {...(isSaved() ? {} : { retry: reload })} />
    ) : (
      <Empty>
        <Spinner label="Loading" />
      </Empty>
    );
  const { items: files, last } = data;
  const sameCount = files.filter((file) => file.change === "same").length;
  const shown = files.filter((file) => showsSame || file.change !== "same" || file.path === chosen);
  const file = files.find((it) => it.path === chosen) ?? shown[0] ?? null;
  return (
    <div class="stack">
      {!last.has_start && last.total > 0 && (
        <p class="notice small">
          What setup left was not kept for this rollout, so files are shown as they were at the end.
        </p>
      )}
      {last.total === 0 ? (
        <Empty>No files were kept of the work directory.</Empty>
      ) : (
        <div class="files">
          <Panel title="Files" actions={<Patch id={id} result={result} />} flush class="files-list">
            <FileList files={shown} chosen={file?.path ?? null} />
            {sameCount > 0 && (
              <button class="plain small files-more" onClick={() => setShowsSame(!showsSame)}>
                {showsSame
                  ? "Hide unchanged files"
                  : `Show ${sameCount} unchanged ${sameCount === 1 ? "file" : "files"}`}
              </button>
            )}
            {files.length < last.total && (
              <button class="plain small files-more" onClick={() => setWanted(wanted + PAGE)}>
                Show more of {last.total} files
              </button>
            )}
          </Panel>
          {file ? <FilePanel key={file.path} file={file} /> : <Empty>No file was changed.</Empty>}
        </div>
      )}
      <Artifacts id={id} result={result} />
    </div>
  );
}

function FileList({ files, chosen }: { files: FileView[]; chosen: string | null }) {
  const onKey = (press: KeyboardEvent) => {
    const step = { j: 1, ArrowDown: 1, k: -1, ArrowUp: -1 }[press.key];
    if (!step || press.ctrlKey || press.metaKey || press.altKey) return;
    press.preventDefault();
    const list = press.currentTarget as HTMLElement;
    const buttons = [...list.querySelectorAll("button")];
    const at = buttons.indexOf(document.activeElement as HTMLButtonElement);
    const next = buttons[Math.min(buttons.length - 1, Math.max(0, at + step))];
    next?.focus();
    next?.click();
  };
  return (
    <ul class="files-paths" onKeyDown={onKey}>
      {files.map((file) => {
        const [sign, name, kind] = CHANGES[file.change];
        return (
          <li key={file.path}>
            <button
              class="plain"
              aria-current={file.path === chosen ? "true" : undefined}
              onClick={() => setParams({ file: file.path })}
              title={`${visible(file.path)} (${name})`}
            >
              <span class={`file-sign ${kind}`} aria-label={name}>
                {sign}
              </span>
              <span class="cut mono">
                <AgentText text={shortPath(file.path)} />
              </span>
            </button>
          </li>
        );
      })}
    </ul>
  );
}

function FilePanel({ file }: { file: FileView }) {
  const hasDiff = file.change === "added" || file.change === "changed" || file.change === "removed";
  const views = [
    ...(hasDiff && (file.before !== null || file.after !== null) ? ["Diff"] : []),
    ...(file.after !== null ? ["At the end"] : []),
    ...(file.before !== null && file.change !== "same" ? ["Before"] : []),
  ];
  const [view, setView] = useState(views[0] ?? "");
  const name = `file-${file.path}`;
  const choice = (
    <div class="row" role="group" aria-label="What is shown">
      {views.map((one) => (
        <button key={one} class="small" aria-pressed={one === view} onClick={() => setView(one)}>
          {one}
        </button>
      ))}
    </div>
  );
  const title = (
    <span class="mono" title={visible(file.path)}>
      <AgentText text={shortPath(file.path)} />
    </span>
  );
  return (
    <Panel title={title} actions={views.length > 1 ? choice : null} flush class="files-content">
      {file.is_cut && (
        <p class="notice part small">The text is cut: only its start was kept with the record.</p>
      )}
      {view === "Diff" && (
        <Diff name={name} before={file.before ?? ""} after={file.after ?? ""} first={LINES} />
      )}
      {view === "At the end" && <Text name={`${name}-after`} text={file.after ?? ""} />}
      {view === "Before" && <Text name={`${name}-before`} text={file.before ?? ""} />}
      {view === "" && <Empty>Its content is no text, or too long to be kept.</Empty>}
    </Panel>
  );
}

function Text({ name, text }: { name: string; text: string }) {
  if (text === "") return <Empty>The file is empty.</Empty>;
  return <NumberedText name={name} text={text} first={LINES} />;
}

function Patch({ id, result }: { id: string; result: RolloutResult }) {
  if (isSaved() || result.patch_bytes === null || result.patch_bytes === undefined) return null;
  return (
    <a class="button small" href={address(`v1/rollouts/${id}/patch`)} download>
      Patch ({bytes(result.patch_bytes)})
    </a>
  );
}

/** What was kept of the task's artifacts. */
function Artifacts({ id, result }: { id: string; result: RolloutResult }) {
  const artifacts = result.artifacts ?? [];
  const href = (path: string) =>
    address(`v1/rollouts/${id}/artifacts/${path.split("/").map(encodeURIComponent).join("/")}`);
  if (artifacts.length === 0) return null;
  return (
    <Panel title="Artifacts" flush>
      <TableBox label="Artifacts">
        <thead>
          <tr>
            <th>Path</th>
            <th class="number">Size</th>
            <th>SHA-256</th>
          </tr>
        </thead>
        <tbody>
          {artifacts.map((artifact) => (
            <tr key={artifact.path}>
              <td class="mono">
                {isSaved() ? (
                  <AgentText text={artifact.path} />
                ) : (
                  <a href={href(artifact.path)} download>
                    <AgentText text={artifact.path} />
                  </a>
                )}
              </td>
              <td class="number">{bytes(artifact.bytes)}</td>
              <td class="mono muted" title={artifact.sha256}>
                {artifact.sha256.slice(0, 12)}
              </td>
            </tr>
          ))}
        </tbody>
      </TableBox>
    </Panel>
  );
}
