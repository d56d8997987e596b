// Which agent runs, in which version, and how.
import type { AgentView } from "../../api/types";
import { ChoiceField, type FormProps } from "./fields";

export const DEFAULT_AGENT = "opencode";

function versionsOf({ installed, default_version }: AgentView): string {
  if (installed.length > 0) return installed.join(", ");
  return default_version ? `${default_version}, fetched when first used` : "built in";
}

/** The choices beside the default: what is installed, and what is chosen already, which is fetched when it is not. */
function otherVersions({ installed, default_version }: AgentView, chosen = ""): [string, string][] {
  const isOther = (version: string) => version !== default_version || version === chosen;
  const all = new Set(chosen ? [...installed, chosen] : installed);
  return [...all].filter(isOther).map((version) => [version, version]);
}

export function AgentFields(props: FormProps & { agents: AgentView[] }) {
  const { agents, form, set } = props;
  const name = form.draft.agent ?? DEFAULT_AGENT;
  const chosen = agents.find((agent) => agent.name === name || agent.aliases.includes(name));
  const choose = (agent: AgentView) => {
    set("agent", agent.name);
    set("version", "");
    set("driver", "");
  };
  return (
    <>
      <div class="agent-choices" role="radiogroup" aria-label="Agent">
        {agents.map((agent) => (
          <label key={agent.name} class={agent === chosen ? "agent-choice chosen" : "agent-choice"}>
            <input
              type="radio"
              name="agent"
              checked={agent === chosen}
              onChange={() => choose(agent)}
            />
            <span>
              <strong>{agent.name}</strong>
              <small class="muted">{versionsOf(agent)}</small>
            </span>
          </label>
        ))}
      </div>
      {props.problems.agent && (
        <p class="problem" role="alert">
          {props.problems.agent}
        </p>
      )}
      {chosen && (
        <div class="fields">
          <ChoiceField
            {...props}
            name="version"
            title="Version"
            choices={[
              ["", chosen.default_version ? `${chosen.default_version} (default)` : "built in"],
              ...otherVersions(chosen, form.draft.version),
            ]}
          />
          <ChoiceField
            {...props}
            name="driver"
            title="How it runs"
            hint={
              chosen.drivers.includes("serve")
                ? "cli: runs once, to its end. serve: stays, and takes messages."
                : "This agent runs as a command only."
            }
            choices={[
              ["", "default"],
              ...chosen.drivers.map((driver): [string, string] => [driver, driver]),
            ]}
          />
        </div>
      )}
    </>
  );
}
