// The row of one rollout, as lists have it, kept up to date by the stream.
import { useEffect, useState } from "preact/hooks";
import { ApiError, get } from "../../../api/client";
import { useLoad, type Loaded } from "../../../api/load";
import { onRows, streamStarts } from "../../../api/stream";
import type { RolloutPage, RolloutRow } from "../../../api/types";

async function find(id: string, abort: AbortSignal): Promise<RolloutRow> {
  // The search looks at ids as well; other rollouts may mention this one.
  const page = await get<RolloutPage>("v1/rollouts", { q: id, limit: 50 }, abort);
  const row = page.rollouts.find((it) => it.rollout_id === id);
  if (row) return row;
  throw new ApiError(404, "not_found", `There is no rollout ${id}, or it is not yours.`);
}

export function useRow(id: string): Loaded<RolloutRow> {
  const loaded = useLoad((abort) => find(id, abort), [id]);
  const [newer, setNewer] = useState<RolloutRow | null>(null);
  const starts = streamStarts.value;
  useEffect(() => onRows((row) => row.rollout_id === id && setNewer(row)), [id]);
  useEffect(() => {
    // The first start is the page's own; after another one it may have ended unseen.
    if (starts > 1) loaded.reload();
  }, [starts]);
  useEffect(() => setNewer(null), [loaded.data]);
  return { ...loaded, data: newer?.rollout_id === id ? newer : loaded.data };
}
