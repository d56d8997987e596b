// Tasks that run at once, without any model.
import { useState } from "preact/hooks";
import { get, post, type ApiError } from "../api/client";
import { useLoad } from "../api/load";
import type { Created, Preset, Presets } from "../api/types";
import { go, link } from "../router";
import { Problem, Spinner } from "./parts";
import "../styles/presets.css";

/** Goes to the rollout that was started, or to all of them. */
export function show(created: Created) {
  const isOne = created.rollout_ids.length === 1;
  if (isOne) go(link(["rollout", created.rollout_id]));
  else go(link(["rollouts"], { group: created.group }));
}

interface Props {
  /** Why none can be created now. */
  blocked: string | null;
  /** Offers to change one before it runs. */
  canEdit?: boolean;
}

export function PresetCards({ blocked, canEdit }: Props) {
  const { data, error, reload } = useLoad(() => get<Presets>("v1/presets"), []);
  const [starting, setStarting] = useState("");
  const [problem, setProblem] = useState<ApiError | null>(null);
  const start = async (preset: Preset) => {
    setStarting(preset.id);
    setProblem(null);
    try {
      show(await post<Created>("v1/rollouts", preset.request));
    } catch (failure) {
      setProblem(failure as ApiError);
      setStarting("");
    }
  };
  return (
    <>
      <Problem error={error} retry={reload} />
      <Problem error={problem} />
      <ul class="presets">
        {data?.presets.map((preset) => (
          <li key={preset.id}>
            <button
              class="preset"
              disabled={blocked !== null || starting !== ""}
              title={blocked ?? undefined}
              onClick={() => start(preset)}
            >
              <strong>
                {preset.title} {starting === preset.id && <Spinner label="Starting" />}
              </strong>
              <span>{preset.about}</span>
            </button>
            {canEdit && (
              <a
                class="preset-edit"
                href={link(["start"], { preset: preset.id })}
                aria-label={`Change first: ${preset.title}`}
              >
                Change first
              </a>
            )}
          </li>
        ))}
      </ul>
    </>
  );
}
