// Whether rollouts can run here, and what to do where they cannot.
import type { ServerInfo } from "../api/types";
import { visible } from "./text";

export function SandboxNotice({ sandbox }: { sandbox: ServerInfo["sandbox"] }) {
  if (sandbox.ready) return null;
  return (
    <div class="notice part" role="status">
      <strong>Sandboxes cannot start on this server, so no rollout can.</strong>
      {sandbox.reason && <p>{visible(sandbox.reason)}</p>}
      <p>Rollouts that are stored can be read all the same.</p>
    </div>
  );
}
