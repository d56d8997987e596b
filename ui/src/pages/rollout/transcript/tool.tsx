// A tool call and what came back.
import { useMemo } from "preact/hooks";
import { Spinner } from "../../../ui/parts";
import { AgentText, visible } from "../../../ui/text";
import { Diff, PatchText } from "../diff";
import { Fold, FoldedText } from "../folded";
import { Lines } from "../lines";
import { toolLine, toolView, type ToolView } from "./tool-view";

/** A result is folded beyond these. */
const RESULT_LINES = 12;
const EDIT_LINES = 40;
const EDITS = 10;

interface Props {
  /** Unlike any other on the page. */
  name: string;
  tool: string;
  args: string;
  result: string | null;
  /** Whether the result may still come. */
  isWaiting: boolean;
}

export function Tool({ name, tool, args, result, isWaiting }: Props) {
  const view = useMemo(() => toolView(tool, args), [tool, args]);
  const line = toolLine(view);
  return (
    <div class="tool">
      <div class="tool-head">
        <span class="tool-name">
          <AgentText text={tool} />
        </span>
        {line && (
          <span
            class={`tool-line ${view.kind === "arguments" ? "" : "cut"} ${view.kind === "shell" ? "" : "mono"}`}
            title={visible(line)}
          >
            <AgentText text={line} />
          </span>
        )}
      </div>
      <ToolArguments name={name} view={view} />
      {result !== null ? (
        result === "" ? (
          <p class="tool-result muted small">No output</p>
        ) : (
          <div class="tool-result">
            <FoldedText name={`${name}-result`} text={result} lines={RESULT_LINES} isTerminal />
          </div>
        )
      ) : (
        <p class="tool-result muted small">
          {isWaiting ? (
            <>
              <Spinner /> running…
            </>
          ) : (
            "No result was sent back to the model"
          )}
        </p>
      )}
    </div>
  );
}

function ToolArguments({ name, view }: { name: string; view: ToolView }) {
  switch (view.kind) {
    case "shell":
      return (
        <>
          <div class="tool-command mono">
            <FoldedText name={`${name}-command`} text={view.command} lines={RESULT_LINES} />
          </div>
          <Rest name={name} text={view.rest} />
        </>
      );
    case "edits":
      return (
        <>
          <Lines
            name={`${name}-edits`}
            items={view.edits}
            first={EDITS}
            what="edits"
            draw={(edit, place) => (
              <Diff
                key={place}
                name={`${name}-edit-${place}`}
                before={edit.before}
                after={edit.after}
                first={EDIT_LINES}
              />
            )}
          />
          <Rest name={name} text={view.rest} />
        </>
      );
    case "patch":
      return <PatchText name={`${name}-patch`} text={view.patch} first={EDIT_LINES} />;
    case "arguments":
      return view.isShort ? null : (
        <div class="tool-arguments mono">
          <FoldedText name={`${name}-arguments`} text={view.text} lines={RESULT_LINES} />
        </div>
      );
  }
}

/** Arguments that the picture of a call does not show. */
function Rest({ name, text }: { name: string; text: string | null }) {
  if (text === null) return null;
  return (
    <Fold name={`${name}-rest`} title="Other arguments" class="tool-rest">
      <div class="mono">
        <FoldedText name={`${name}-rest-text`} text={text} lines={EDIT_LINES} />
      </div>
    </Fold>
  );
}
