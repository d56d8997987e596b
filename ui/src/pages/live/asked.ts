// What is said about a question of an agent. Pure functions.

export type Answer =
  | { answer: "once" | "always" }
  | { answer: "reject"; message?: string }
  | { answer: "choose"; answers: string[][] };

const SAID: Record<Answer["answer"], string> = {
  once: "You allowed it once.",
  always: "You allowed it, and everything like it.",
  reject: "You refused.",
  choose: "You answered.",
};

export const NOT_ASKED = "It was answered already, or the time for it was over.";

export const secondsLeft = (deadline: number, nowMs: number) =>
  Math.max(0, Math.ceil(deadline - nowMs / 1000));

/** What was done with an answer that the server took, and that was sent this long before the deadline. */
export function saidOf(answer: Answer["answer"], left: number): string {
  // The server takes late answers too, and the agent does not hear of them.
  return left > 0 ? SAID[answer] : `${SAID[answer]} If the time for it was over, it was refused.`;
}

export function timeLeft(left: number): string {
  return left > 0
    ? `Refused in ${left} s without an answer.`
    : "By this computer's clock the time for an answer is over. If that clock is right, it was refused.";
}

/**
 * Whether nobody need be asked any more. A clock that runs ahead says nothing alone: the agent must have gone on as well,
 * and even then the answer stays within reach.
 */
export const isProbablySettled = (left: number, hasGoneOn: boolean) => left <= 0 && hasGoneOn;
