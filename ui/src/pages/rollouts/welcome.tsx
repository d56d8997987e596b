// The list while there is nothing in it.
import { get } from "../../api/client";
import { useLoad } from "../../api/load";
import type { ServerInfo } from "../../api/types";
import { link } from "../../router";
import { PresetCards } from "../../ui/presets";
import { SandboxNotice } from "../../ui/sandbox";

export function Welcome() {
  const server = useLoad(() => get<ServerInfo>("v1/server"), []);
  const sandbox = server.data?.sandbox;
  return (
    <section class="panel welcome">
      <h2>No rollout yet</h2>
      <p>
        A rollout lets a coding agent work on a task in a sandbox, records every call of its model
        token by token, and grades what it did. These run at once: a script plays the model, so no
        key and no GPU are needed.
      </p>
      {sandbox && <SandboxNotice sandbox={sandbox} />}
      <PresetCards blocked={sandbox && !sandbox.ready ? "Sandboxes cannot start here." : null} />
      <p>
        With your own model and task: <a href={link(["start"])}>start a rollout</a>, or from a shell{" "}
        <code>rollcage run task.toml</code>.
      </p>
    </section>
  );
}
