// What the agent shall do: a task of this server's, or one that is typed here.
import { useState } from "preact/hooks";
import { get } from "../../api/client";
import { useLoad } from "../../api/load";
import type { TaskList, TaskRow } from "../../api/types";
import { Problem } from "../../ui/parts";
import { AgentText } from "../../ui/text";
import { VirtualList } from "../../ui/virtual";
import { LongField, TextField, type FormProps } from "./fields";
import { playsSolution } from "./form";

/** More than this is found by the API, not by scrolling. */
const TASKS_MAX = 5000;

export const useTasks = () =>
  useLoad((abort) => get<TaskList>("v1/tasks", { stop: TASKS_MAX }, abort), []);

export function TaskFields(props: FormProps & { tasks: ReturnType<typeof useTasks> }) {
  const { form, set, tasks } = props;
  const count = tasks.data?.num_tasks ?? 0;
  const isListed = form.draft.source === "listed";
  return (
    <>
      {(count > 0 || isListed) && (
        <div class="switch" role="group" aria-label="Where the task comes from">
          <button type="button" aria-pressed={!isListed} onClick={() => set("source", "own")}>
            Write one
          </button>
          <button type="button" aria-pressed={isListed} onClick={() => set("source", "listed")}>
            This server's <span class="muted number">{count.toLocaleString("en")}</span>
          </button>
        </div>
      )}
      <Problem error={tasks.error} retry={tasks.reload} />
      {isListed ? <TaskPicker {...props} list={tasks.data} /> : <OwnTask {...props} />}
      {playsSolution(form.draft) && (
        <LongField
          {...props}
          name="solution"
          title={`What the ${form.draft.agent === "oracle" ? "agent" : "script"} plays, one command per line`}
          rows={3}
          placeholder={"echo hello > hello.txt"}
          hint={
            form.extra.solution
              ? "Empty: the steps that are sent as they were."
              : isListed
                ? "Empty: the task's own solution."
                : undefined
          }
        />
      )}
    </>
  );
}

function OwnTask(props: FormProps) {
  return (
    <>
      <TextField
        {...props}
        name="task_id"
        title="Task id"
        placeholder="my-task"
        hint="Your name for it, to find it by."
      />
      <LongField
        {...props}
        name="instruction"
        title="Instruction"
        rows={4}
        placeholder="What the agent is told, byte for byte."
      />
      <div class="fields two">
        <LongField
          {...props}
          name="setup"
          title="Setup, one command per line"
          rows={4}
          placeholder={"git clone https://…\nmake deps"}
          hint="Before the agent; the first that fails ends the rollout."
        />
        <LongField
          {...props}
          name="verify"
          title="Verify, one command per line"
          rows={4}
          placeholder={"make test\ntest -f hello.txt"}
          hint="After it; the reward is the share that exits with 0."
        />
      </div>
    </>
  );
}

function TaskPicker(props: FormProps & { list: TaskList | null }) {
  const { form, set, problems, list } = props;
  const [text, setText] = useState("");
  const [split, setSplit] = useState("");
  if (!list) return null;
  const wanted = text.toLowerCase();
  const found = list.tasks.filter(
    (task) =>
      (!split || task.split === split) &&
      `${task.id}\n${task.instruction}`.toLowerCase().includes(wanted),
  );
  const isChosen = (task: TaskRow) =>
    task.id === form.draft.task && (!form.draft.split || task.split === form.draft.split);
  return (
    <div class="stack">
      <div class="row">
        <input
          type="search"
          class="grow"
          aria-label="Find a task"
          placeholder={`Find among ${list.num_tasks.toLocaleString("en")} tasks`}
          value={text}
          onInput={(event) => setText(event.currentTarget.value)}
        />
        {list.splits.length > 1 && (
          <select
            aria-label="Split"
            value={split}
            onChange={(event) => setSplit(event.currentTarget.value)}
          >
            <option value="">all splits</option>
            {list.splits.map(({ name, num_tasks }) => (
              <option key={name} value={name}>
                {name} ({num_tasks})
              </option>
            ))}
          </select>
        )}
      </div>
      {problems.task && (
        <span class="problem" role="alert">
          {problems.task}
        </span>
      )}
      <VirtualList
        class="task-list"
        label="Tasks"
        count={found.length}
        estimate={() => 44}
        render={(index) => {
          const task = found[index]!;
          return (
            <button
              type="button"
              class="task"
              aria-pressed={isChosen(task)}
              onClick={() => {
                set("task", task.id);
                set("split", task.split);
              }}
            >
              <span class="cut">
                <strong>
                  <AgentText text={task.id} class="line" />
                </strong>{" "}
                <span class="muted small">
                  {task.split}
                  {task.has_solution ? " · has a solution" : ""}
                </span>
              </span>
              <span class="cut muted small">
                <AgentText text={task.instruction.slice(0, 200)} class="line" />
              </span>
            </button>
          );
        }}
      />
      {list.num_tasks > list.tasks.length && (
        <p class="muted small">
          The first {list.tasks.length.toLocaleString("en")} are listed here; the API has all.
        </p>
      )}
    </div>
  );
}
