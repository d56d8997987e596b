// The task of a rollout, which is kept from its start on.
import { get } from "../../api/client";
import { useLoad, useReload } from "../../api/load";
import type { Task } from "../../api/types";
import type { Rollout } from "./use-rollout";

export interface TaskOfRollout {
  /** Null while it waits, and where it is not there. */
  task: Task | null;
  isMissing: boolean;
}

export function useTask({ id, result, progress, live }: Rollout): TaskOfRollout {
  const isStarted = result !== null || progress?.status === "running";
  const { data, error, reload } = useLoad<Task | null>(
    (abort) => (isStarted ? get<Task>(`v1/rollouts/${id}/task`, {}, abort) : Promise.resolve(null)),
    [id, isStarted],
  );
  useReload(reload, error ? live.phases.length : 0);
  return { task: data, isMissing: error !== null };
}
