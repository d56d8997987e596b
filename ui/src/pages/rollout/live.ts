// What a running rollout's events come to. Pure: the same events always give the same state.
import type { CommandResult, RolloutEvent, RolloutRow } from "../../api/types";

export type Phase = NonNullable<RolloutRow["phase"]>;

export interface LiveCommand {
  phase: string;
  number: number;
  of: number;
  cmd: string;
  /** Null where the event that told of it was missed. */
  startedAt: number | null;
  /** Null while it runs. */
  outcome: CommandResult | null;
}

/** A model call that was answered, with what the model said. */
export interface SpokenCall {
  /** Counts the answered calls from 1. */
  number: number;
  exchange: number;
  at: number;
  status: number | null;
  text: string;
  reasoning: string;
  toolCalls: { id: string; name: string; arguments: string }[];
}

export interface StreamedTool {
  id: string;
  name: string;
  status: string;
  input: unknown;
  output: string | null;
}

/** What a served agent says right now. */
export interface Streamed {
  text: string;
  reasoning: string;
  tools: StreamedTool[];
  /** Something that the agent asks for, in words. */
  request: string | null;
  at: number;
}

export interface Live {
  /** The last event's number; 0 before the first. */
  seq: number;
  /** How often events were missed: a server keeps only the latest of a long rollout. */
  gaps: number;
  queuedAt: number | null;
  phases: { phase: Phase; at: number }[];
  commands: LiveCommand[];
  /** The latest answered calls. */
  calls: SpokenCall[];
  /** The answered ones that events told of. */
  callCount: number;
  /** The latest tools of a served agent. */
  tools: StreamedTool[];
  streamed: Streamed | null;
  /** A served agent waits for a message. */
  isIdle: boolean;
  turnError: string | null;
  /** Counts what makes a conversation longer. */
  said: number;
  finished: { wallS: number; at: number } | null;
}

export const NOTHING: Live = {
  seq: 0,
  gaps: 0,
  queuedAt: null,
  phases: [],
  commands: [],
  calls: [],
  callCount: 0,
  tools: [],
  streamed: null,
  isIdle: false,
  turnError: null,
  said: 0,
  finished: null,
};

/** More than these are in the transcript by then. */
const CALLS_KEPT = 64;
const TOOLS_KEPT = 64;

export function fold(before: Live, events: RolloutEvent[]): Live {
  const live: Live = {
    ...before,
    phases: [...before.phases],
    commands: [...before.commands],
    calls: [...before.calls],
  };
  for (const event of events) {
    if (event.seq <= live.seq) continue;
    if (event.seq > live.seq + 1) live.gaps += 1;
    live.seq = event.seq;
    take(live, event);
  }
  live.calls = live.calls.slice(-CALLS_KEPT);
  return live;
}

function take(live: Live, event: RolloutEvent) {
  switch (event.event) {
    case "queued":
      live.queuedAt = event.at;
      break;
    case "entered":
      live.phases.push({ phase: event.phase, at: event.at });
      live.streamed = null;
      break;
    case "command_started":
      live.commands.push({
        phase: event.phase,
        number: event.number,
        of: event.of,
        cmd: event.cmd,
        startedAt: event.at,
        outcome: null,
      });
      break;
    case "command": {
      const { phase, number, of, cmd, exit_code, stdout, stderr, duration_s, timed_out } = event;
      const outcome = { cmd, exit_code, stdout, stderr, duration_s, timed_out };
      const isIt = (it: LiveCommand) => it.phase === phase && it.number === number;
      const started = live.commands.findIndex((it) => isIt(it) && it.outcome === null);
      const command = live.commands[started];
      if (command) live.commands[started] = { ...command, outcome };
      else live.commands.push({ phase, number, of, cmd, startedAt: null, outcome });
      break;
    }
    case "call":
      live.callCount += 1;
      live.said += 1;
      live.streamed = null;
      live.calls.push({
        number: live.callCount,
        exchange: event.exchange,
        at: event.at,
        status: event.status,
        text: event.text ?? "",
        reasoning: event.reasoning ?? "",
        toolCalls: event.tool_calls ?? [],
      });
      break;
    case "turn_started":
      live.isIdle = false;
      live.turnError = null;
      live.said += 1;
      break;
    case "reply":
      takeReply(live, event);
      break;
    case "idle":
      live.isIdle = true;
      live.turnError = event.error;
      live.streamed = null;
      live.said += 1;
      break;
    case "finished":
      live.finished = { wallS: event.wall_s, at: event.at };
      live.isIdle = false;
      live.streamed = null;
      live.said += 1;
      break;
    case "agent_exited":
    case "collected":
      live.said += 1;
      break;
  }
}

function takeReply(live: Live, event: RolloutEvent & { event: "reply" }) {
  const { reply } = event;
  const old = live.streamed ?? { text: "", reasoning: "", tools: [], request: null, at: event.at };
  switch (reply.kind) {
    case "delta":
      live.streamed = { ...old, text: old.text + reply.text };
      break;
    case "reasoning":
      live.streamed = { ...old, reasoning: old.reasoning + reply.text };
      break;
    case "tool": {
      const { call_id: id, name, status, input, output } = reply;
      const others = old.tools.filter((tool) => tool.id !== id);
      const tool = { id, name, status, input, output };
      live.streamed = { ...old, tools: [...others, tool] };
      live.tools = [...live.tools.filter((it) => it.id !== id), tool].slice(-TOOLS_KEPT);
      break;
    }
    case "permission":
      live.streamed = {
        ...old,
        request: `asks for permission: ${reply.permission} ${reply.patterns.join(" ")}`,
      };
      break;
    case "question":
      live.streamed = { ...old, request: `asks: ${JSON.stringify(reply.questions)}` };
      break;
    case "final":
    case "error":
      live.streamed = null;
      live.said += 1;
      break;
  }
}

/** What a tool of a served agent printed, before it is part of the conversation; null where that is not known. */
export function outputOf(live: Live, id: string | null | undefined): string | null {
  return live.tools.find((tool) => tool.id === id)?.output ?? null;
}

/**
 * What is streamed and not in an answered call yet. A served agent may tell the end of a text after the model call that it
 * is from, and runs that call's tools after it.
 */
export function unsaid(live: Live): Streamed | null {
  const { streamed } = live;
  const last = live.calls.at(-1);
  if (!streamed) return null;
  const text = last?.text.includes(streamed.text) ? "" : streamed.text;
  const reasoning = last?.reasoning.includes(streamed.reasoning) ? "" : streamed.reasoning;
  const called = new Set(live.calls.flatMap((call) => call.toolCalls.map((tool) => tool.id)));
  const tools = streamed.tools.filter((tool) => !called.has(tool.id));
  const isEmpty = !text && !reasoning && tools.length === 0 && !streamed.request;
  return isEmpty ? null : { ...streamed, text, reasoning, tools };
}
