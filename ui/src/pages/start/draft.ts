// The form's state. What is typed survives a reload of this tab, but for the key.
import { useEffect, useState } from "preact/hooks";
import { ApiError, get } from "../../api/client";
import type { EndpointView, Presets, RolloutResult, Task } from "../../api/types";
import { go, link } from "../../router";
import type { FieldName, Form } from "./form";
import { argumentsAgain, formOf } from "./prefill";

const KEY = "rollcage-start";

function stored(): Form {
  try {
    const form = JSON.parse(sessionStorage.getItem(KEY) ?? "") as Form;
    if (form.draft && form.extra) return form;
  } catch {
    // Nothing was typed, or this frame has no storage.
  }
  return { draft: {}, extra: {} };
}

/** At once and not after the next picture, so that a reload right after a key press loses nothing. */
function kept(form: Form): Form {
  try {
    sessionStorage.setItem(KEY, JSON.stringify(form));
  } catch {
    // A frame without storage forgets it.
  }
  return form;
}

export interface Drafted {
  form: Form;
  set: (name: FieldName, value: string) => void;
  replace: (form: Form) => void;
  /** What an earlier rollout had that cannot be sent again. */
  lost: string[];
  error: ApiError | null;
}

/** `from` is a rollout to run again, `preset` one to change before it runs. */
export function useDraft(from: string | null, preset: string | null): Drafted {
  const [form, setForm] = useState(stored);
  const [lost, setLost] = useState<string[]>([]);
  const [error, setError] = useState<ApiError | null>(null);
  const replace = (next: Form) => {
    setForm(kept(next));
    setLost([]);
  };
  useEffect(() => {
    let isLate = false;
    setError(null);
    prefilled(from, preset).then(
      (found) => {
        if (isLate || !found) return;
        setForm(kept(found.form));
        setLost(found.lost);
        // The address would fill the form again after a reload, over what was changed since.
        go(link(["start"]), "replace");
      },
      (problem: unknown) => {
        const known = problem instanceof ApiError ? problem : null;
        if (!isLate) setError(known ?? new ApiError(0, "error", String(problem)));
      },
    );
    return () => {
      isLate = true;
    };
  }, [from, preset]);
  const set = (name: FieldName, value: string) =>
    setForm((old) => kept({ ...old, draft: { ...old.draft, [name]: value } }));
  return { form, set, replace, lost, error };
}

async function prefilled(from: string | null, preset: string | null) {
  if (preset) {
    const { presets } = await get<Presets>("v1/presets");
    const found = presets.find(({ id }) => id === preset);
    if (!found) throw new ApiError(404, "not_found", `There is no preset ${preset}.`);
    return { form: formOf(found.request), lost: [] };
  }
  if (!from) return null;
  const path = `v1/rollouts/${encodeURIComponent(from)}`;
  const [task, result, { endpoints }] = await Promise.all([
    get<Task>(`${path}/task`),
    get<RolloutResult>(path, { trace: "none" }),
    get<{ endpoints: EndpointView[] }>("v1/endpoints"),
  ]);
  if (typeof result.agent === "string")
    throw new ApiError(409, "running", "It still runs: run it again once it has ended.");
  const { given, lost } = argumentsAgain(task, result, endpoints);
  return { form: formOf(given), lost };
}
