// A server of its own for a test: its own home, with the agents of another home by hard links, since installing them
// takes longer than all the rest.
import { execFileSync, spawn } from "node:child_process";
import { existsSync, mkdirSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

const BINARY =
  process.env.ROLLCAGE ?? new URL("../../target/release/rollcage", import.meta.url).pathname;
const AGENTS = process.env.ROLLCAGE_E2E_AGENTS ?? join(process.env.HOME, ".local/share/rollcage");
const START_LIMIT_MS = 60_000;

/** A home without records, with the agents that are there. */
export function newHome() {
  const parent = process.env.ROLLCAGE_E2E_TMP ?? tmpdir();
  const home = mkdtempSync(join(parent, "rollcage-e2e-"));
  for (const part of ["bundles", "layers"]) {
    const from = join(AGENTS, part);
    if (existsSync(from)) execFileSync("cp", ["-al", from, home]);
  }
  return home;
}

/** Runs the program in a home and returns what it prints. */
export function rollcage(home, ...args) {
  const env = { ...process.env, ROLLCAGE_HOME: home };
  return execFileSync(BINARY, args, {
    env,
    encoding: "utf8",
    stdio: ["ignore", "pipe", "inherit"],
  });
}

/** Fills a home with ended rollouts, one of which has many calls; returns that one's id. */
export function fill(home, rollouts, turns) {
  const sizes = ["--rollouts", `${rollouts}`, "--turns", `${turns}`];
  const printed = rollcage(home, "bench", "fill", ...sizes, "--home", home);
  return printed.match(/[0-9a-f]{8}-[0-9a-f-]{27}/)[0];
}

export class Server {
  constructor(home, { args = [], env = {}, port = 0 } = {}) {
    this.home = home;
    this.options = { args, env };
    this.port = port;
    this.log = "";
  }

  async start() {
    const { args, env } = this.options;
    const all = ["serve", "--host", "127.0.0.1", "--port", `${this.port}`, ...args];
    this.process = spawn(BINARY, all, {
      env: { ...process.env, ROLLCAGE_HOME: this.home, ...env },
      stdio: ["ignore", "pipe", "pipe"],
    });
    const started = Date.now();
    let printed = "";
    this.process.stdout.on("data", (data) => (printed += data));
    this.process.stderr.on("data", (data) => (this.log += data));
    for (;;) {
      const found = printed.match(/http:\/\/127\.0\.0\.1:(\d+)/);
      if (found) {
        this.port = Number(found[1]);
        this.url = `http://127.0.0.1:${this.port}`;
        break;
      }
      if (this.process.exitCode !== null || Date.now() - started > START_LIMIT_MS)
        throw new Error(`the server did not start:\n${printed}${this.log}`);
      await new Promise((wake) => setTimeout(wake, 50));
    }
    while (!(await fetch(`${this.url}/ready`)).ok) {
      if (Date.now() - started > START_LIMIT_MS) throw new Error("the server is not ready");
      await new Promise((wake) => setTimeout(wake, 100));
    }
    return this;
  }

  /** Ends it as an operator would, or as a crash does. */
  async stop(signal = "SIGTERM") {
    if (!this.process || this.process.exitCode !== null) return;
    const ended = new Promise((wake) => this.process.once("exit", wake));
    this.process.kill(signal);
    await ended;
  }

  async json(path, body) {
    const init = body && {
      method: "POST",
      body: JSON.stringify(body),
      headers: { "content-type": "application/json" },
    };
    const answer = await fetch(`${this.url}${path}`, init);
    if (!answer.ok) throw new Error(`${path}: ${answer.status} ${await answer.text()}`);
    return answer.json();
  }

  /** Waits for a rollout's end and returns its result without tokens. */
  ended(id) {
    return this.until(`/v1/rollouts/${id}?trace=none`, ({ status }) => status === "ended");
  }

  /** Asks again until the answer is what it should be, and returns it. */
  async until(path, isSo) {
    let found;
    for (const limit = Date.now() + 180_000; Date.now() < limit;) {
      found = await this.json(path);
      if (isSo(found)) return found;
      await new Promise((wake) => setTimeout(wake, 200));
    }
    throw new Error(`${path} stays as it is: ${JSON.stringify(found).slice(0, 2000)}`);
  }

  async remove() {
    await this.stop();
    rmSync(this.home, { recursive: true, force: true });
  }
}

export function shotsFolder() {
  const folder = process.env.ROLLCAGE_E2E_SHOTS ?? new URL("../shots", import.meta.url).pathname;
  mkdirSync(folder, { recursive: true });
  return folder;
}
