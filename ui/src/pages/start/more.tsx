// What is rarely changed, with the defaults that hold.
import type { ComponentChildren } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { ChoiceField, LongField, NumberField, TextField, type FormProps } from "./fields";
import { isSent, type FieldName } from "./form";

const GROUPS: Record<string, FieldName[]> = {
  Sampling: ["mode", "disable_thinking", "max_tokens_cap", "top_logprobs", "temperature"],
  "Time and budget": [
    "agent_timeout_s",
    "command_timeout_s",
    "calls",
    "prompt_tokens",
    "completion_tokens",
    "usd",
    "idle_s",
  ],
  Network: ["network_setup", "network_agent", "network_verify", "allow_hosts"],
  Sandbox: ["memory_mb", "cpus", "pids", "disk_mb", "file_mb", "setup_user", "env"],
  "Checks and what is kept": ["test_script", "artifacts", "patch", "labels", "group"],
};

function Fold({
  title,
  form,
  problems,
  children,
}: FormProps & { title: string; children: ComponentChildren }) {
  const box = useRef<HTMLDetailsElement>(null);
  const names = (GROUPS[title] ?? []).filter((name) => isSent(name, form.draft));
  const changed = names.filter((name) => form.draft[name]).length;
  const isWrong = names.some((name) => problems[name]);
  // Opened and never closed by itself: that would be under the cursor of whoever mends the value.
  useEffect(() => {
    if (isWrong && box.current) box.current.open = true;
  }, [isWrong]);
  return (
    <details class="fold" ref={box}>
      <summary>
        {title}
        {changed > 0 && <span class="badge info">{changed} changed</span>}
      </summary>
      <div class="stack">{children}</div>
    </details>
  );
}

const POLICIES: [string, string][] = [
  ["none", "nothing"],
  ["open", "the web, ssh, git"],
  ["allowlist", "only the hosts below"],
];

export function MoreFields(props: FormProps) {
  const isListed = props.form.draft.source === "listed";
  /** Tasks of the server may have values of their own. */
  const standard = (value: string) => (isListed ? `${value}, or the task's` : value);
  const unsaid = (value: string) => (isListed ? "as the task says" : `default: ${value}`);
  return (
    <div class="folds">
      <Fold {...props} title="Sampling">
        <div class="fields">
          <ChoiceField
            {...props}
            name="mode"
            title="Mode"
            hint="Transparent proxy: every call is recorded with its tokens. Black box: the endpoint is asked for no tokens, and calls are no part of the result."
            choices={[
              ["", unsaid("transparent proxy")],
              ["transparent_proxy", "transparent proxy"],
              ["black_box", "black box"],
            ]}
          />
          <ChoiceField
            {...props}
            name="disable_thinking"
            title="Disable thinking"
            choices={[
              ["", "auto: as the endpoint needs"],
              ["on", "on"],
              ["off", "off"],
            ]}
          />
          <NumberField
            {...props}
            name="max_tokens_cap"
            title="Tokens in one call, at most"
            placeholder="4096"
            hint="0: no cap."
          />
          <NumberField
            {...props}
            name="top_logprobs"
            title="Alternatives per token"
            placeholder="5"
            hint="0 to 20."
          />
          <NumberField
            {...props}
            name="temperature"
            title="Temperature"
            placeholder="auto"
            hint="Given: this and nothing else, whatever the agent asks for."
          />
        </div>
      </Fold>
      <Fold {...props} title="Time and budget">
        <div class="fields">
          <NumberField
            {...props}
            name="agent_timeout_s"
            title="Agent, seconds"
            placeholder={standard("600")}
          />
          <NumberField
            {...props}
            name="command_timeout_s"
            title="Each command, seconds"
            placeholder={standard("120")}
          />
          <NumberField
            {...props}
            name="calls"
            title="Model calls"
            placeholder={standard("no limit")}
          />
          <NumberField
            {...props}
            name="prompt_tokens"
            title="Tokens of prompts"
            placeholder={standard("no limit")}
          />
          <NumberField
            {...props}
            name="completion_tokens"
            title="Sampled tokens"
            placeholder={standard("no limit")}
          />
          <NumberField
            {...props}
            name="usd"
            title="US dollars"
            placeholder={standard("no limit")}
          />
          <NumberField
            {...props}
            name="idle_s"
            title="Seconds without a call"
            placeholder={standard("no limit")}
          />
        </div>
        <p class="hint-line">
          At a budget's end the agent gets a last answer, and the work is graded.
        </p>
      </Fold>
      <Fold {...props} title="Network">
        <div class="fields">
          <ChoiceField
            {...props}
            name="network_setup"
            title="Setup reaches"
            choices={[["", `default: ${standard("the web, ssh, git")}`], ...POLICIES]}
          />
          <ChoiceField
            {...props}
            name="network_agent"
            title="The agent reaches"
            choices={[["", `default: ${standard("nothing")}`], ...POLICIES]}
          />
          <ChoiceField
            {...props}
            name="network_verify"
            title="Verify reaches"
            choices={[["", `default: ${standard("nothing")}`], ...POLICIES]}
          />
        </div>
        <LongField
          {...props}
          name="allow_hosts"
          title="Hosts, one per line"
          rows={2}
          placeholder={"pypi.org\n*.example.org:8443\n@npm"}
          hint="Added to every phase that reaches anything. The model is always reached."
        />
      </Fold>
      <Fold {...props} title="Sandbox">
        <div class="fields">
          <NumberField
            {...props}
            name="memory_mb"
            title="Memory, MiB"
            placeholder={standard("default")}
          />
          <NumberField
            {...props}
            name="cpus"
            title="Processors"
            placeholder={standard("default")}
          />
          <NumberField {...props} name="pids" title="Processes" placeholder={standard("default")} />
          <NumberField
            {...props}
            name="disk_mb"
            title="Disk, MiB"
            placeholder={standard("default")}
          />
          <NumberField
            {...props}
            name="file_mb"
            title="One file, MiB"
            placeholder={standard("default")}
          />
          <ChoiceField
            {...props}
            name="setup_user"
            title="Setup runs as"
            hint="Root needs a server that runs as root."
            choices={[
              ["", unsaid("user")],
              ["user", "user"],
              ["root", "root"],
            ]}
          />
        </div>
        <LongField
          {...props}
          name="env"
          title="Environment, name=value per line"
          rows={2}
          placeholder="DEBUG=1"
        />
        <p class="hint-line">
          There is no template or image to choose: a sandbox always has the agent installed and
          shows this machine's /usr. What else a task needs, setup installs.
        </p>
      </Fold>
      <Fold {...props} title="Checks and what is kept">
        {!isListed && (
          <LongField
            {...props}
            name="test_script"
            title="Test script"
            rows={3}
            placeholder={
              "if pytest -q; then echo 1; else echo 0; fi > /home/user/logs/verifier/reward.txt"
            }
            hint="Run when the agent is dead; it writes the reward to /home/user/logs/verifier/reward.txt."
          />
        )}
        <div class="fields two">
          <LongField
            {...props}
            name="artifacts"
            title="Artifacts, one pattern per line"
            rows={2}
            placeholder="out/**"
          />
          <LongField
            {...props}
            name="labels"
            title="Labels, name=value per line"
            rows={2}
            placeholder="run=baseline"
          />
        </div>
        <div class="fields">
          <TextField {...props} name="group" title="Group" placeholder="a new one" />
          <ChoiceField
            {...props}
            name="patch"
            title="Patch of the work directory"
            hint="What the agent changed there, as workdir.patch with the record."
            choices={[
              ["", unsaid("leave it out")],
              ["on", "keep it"],
              ["off", "leave it out"],
            ]}
          />
        </div>
      </Fold>
    </div>
  );
}
