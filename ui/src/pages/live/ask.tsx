// What an agent asks in a turn: a permission, or a question.
import { useEffect, useState } from "preact/hooks";
import { ApiError, post } from "../../api/client";
import type { Reply } from "../../api/types";
import { AgentText } from "../../ui/text";
import { failure, turnPath } from "./api";
import { isProbablySettled, NOT_ASKED, saidOf, secondsLeft, timeLeft, type Answer } from "./asked";
import { readQuestions, type Question } from "./replies";

type Asking = Extract<Reply, { kind: "permission" | "question" }>;

/** Seconds until it is refused by this computer's clock, from second to second. */
function useSecondsLeft(deadline: number): number {
  const left = () => secondsLeft(deadline, Date.now());
  const [seconds, setSeconds] = useState(left);
  useEffect(() => {
    const timer = window.setInterval(() => setSeconds(left()), 1000);
    return () => clearInterval(timer);
  }, [deadline]);
  return seconds;
}

interface AskProps {
  id: string;
  reply: Asking;
  /** Whether the turn goes on, so that an answer can still count. */
  isOpen: boolean;
  /** Whether the agent has done something since it asked. */
  hasGoneOn: boolean;
}

/** Asks as long as the turn is open and nobody has answered here; afterwards it is a line. */
export function Ask({ id, reply, isOpen, hasGoneOn }: AskProps) {
  const [said, setSaid] = useState("");
  if (!isOpen || said) {
    return (
      <p class="small muted" role="status">
        <Asked reply={reply} /> {said}
      </p>
    );
  }
  return <OpenAsk id={id} reply={reply} hasGoneOn={hasGoneOn} onSaid={setSaid} />;
}

function OpenAsk(props: {
  id: string;
  reply: Asking;
  hasGoneOn: boolean;
  onSaid: (said: string) => void;
}) {
  const { id, reply, hasGoneOn, onSaid } = props;
  const [problem, setProblem] = useState("");
  const [isBusy, setBusy] = useState(false);
  const [isWanted, setWanted] = useState(false);
  const left = useSecondsLeft(reply.deadline);
  const send = async (answer: Answer) => {
    setBusy(true);
    setProblem("");
    try {
      await post(turnPath(id, reply.turn_id, "/answer"), { id: reply.id, ...answer });
      onSaid(saidOf(answer.answer, left));
    } catch (error) {
      if (error instanceof ApiError && error.status === 409) onSaid(NOT_ASKED);
      else setProblem(failure(error));
    }
    setBusy(false);
  };
  if (isProbablySettled(left, hasGoneOn) && !isWanted) {
    return (
      <p class="small muted" role="status">
        <Asked reply={reply} /> It seems to be settled.{" "}
        <button class="plain small" onClick={() => setWanted(true)}>
          Answer all the same
        </button>
      </p>
    );
  }
  return (
    <div class="ask" role="group" aria-label="The agent asks">
      {reply.kind === "permission" ? (
        <Permission reply={reply} isBusy={isBusy} send={send} />
      ) : (
        <Questions reply={reply} isBusy={isBusy} send={send} />
      )}
      {problem && (
        <p class="small bad-text" role="alert">
          Your answer did not arrive: {problem}
        </p>
      )}
      <p class="small muted">{timeLeft(left)}</p>
    </div>
  );
}

/** What was asked, in a line. */
function Asked({ reply }: { reply: Asking }) {
  if (reply.kind === "question") {
    const questions = readQuestions(reply.questions).map((question) => question.text);
    return (
      <>
        It asked: <AgentText text={questions.join(" ")} />
      </>
    );
  }
  return (
    <>
      It asked for permission:{" "}
      <code>
        <AgentText text={[reply.permission, ...reply.patterns].join(" ")} />
      </code>
      .
    </>
  );
}

interface Props<K> {
  reply: Extract<Reply, { kind: K }>;
  isBusy: boolean;
  send: (answer: Answer) => void;
}

function Permission({ reply, isBusy, send }: Props<"permission">) {
  const [message, setMessage] = useState("");
  return (
    <>
      <p>
        <strong>The agent asks for permission:</strong>{" "}
        <code>
          <AgentText text={reply.permission} />
        </code>
      </p>
      {reply.patterns.map((pattern, index) => (
        <pre key={index} class="terminal">
          <AgentText text={pattern} />
        </pre>
      ))}
      <div class="row">
        <button class="primary" disabled={isBusy} onClick={() => send({ answer: "once" })}>
          Allow once
        </button>
        <button disabled={isBusy} onClick={() => send({ answer: "always" })}>
          Always allow
        </button>
        <button
          class="danger"
          disabled={isBusy}
          onClick={() => send({ answer: "reject", ...(message && { message }) })}
        >
          Refuse
        </button>
        <input
          aria-label="What the agent is told when you refuse"
          placeholder="why not (optional)"
          value={message}
          onInput={(event) => setMessage(event.currentTarget.value)}
        />
      </div>
    </>
  );
}

function Questions({ reply, isBusy, send }: Props<"question">) {
  const questions = readQuestions(reply.questions);
  const [answers, setAnswers] = useState<string[][]>(() => questions.map(() => []));
  const change = (place: number, answer: string[]) =>
    setAnswers((old) => old.map((it, index) => (index === place ? answer : it)));
  const isReady = answers.every((answer) => answer.some((word) => word.trim()));
  return (
    <form
      class="stack"
      onSubmit={(event) => {
        event.preventDefault();
        send({ answer: "choose", answers });
      }}
    >
      <strong>The agent asks:</strong>
      {questions.map((question, index) => (
        <OneQuestion
          key={index}
          name={`${reply.id}-${index}`}
          question={question}
          answer={answers[index]!}
          change={(answer) => change(index, answer)}
        />
      ))}
      <div class="row">
        <button class="primary" disabled={isBusy || !isReady}>
          Answer
        </button>
        <button type="button" disabled={isBusy} onClick={() => send({ answer: "reject" })}>
          Refuse to answer
        </button>
      </div>
    </form>
  );
}

function OneQuestion(props: {
  name: string;
  question: Question;
  answer: string[];
  change: (answer: string[]) => void;
}) {
  const { name, question, answer, change } = props;
  const labels = question.choices.map((choice) => choice.label);
  const own = answer.find((word) => !labels.includes(word)) ?? "";
  const toggle = (label: string, isOn: boolean) => {
    const others = question.isMultiple ? answer.filter((word) => word !== label) : [];
    change(isOn ? [...others, label] : others);
  };
  const write = (text: string) => {
    const chosen = question.isMultiple ? answer.filter((word) => labels.includes(word)) : [];
    change(text ? [...chosen, text] : chosen);
  };
  return (
    <fieldset>
      <legend>
        <AgentText text={question.title || "Question"} />
      </legend>
      <AgentText text={question.text} />
      {question.choices.map((choice) => (
        <label key={choice.label} class="choice">
          <input
            type={question.isMultiple ? "checkbox" : "radio"}
            name={name}
            checked={answer.includes(choice.label)}
            onChange={(event) => toggle(choice.label, event.currentTarget.checked)}
          />
          <span>
            <AgentText text={choice.label} />{" "}
            <span class="muted small">
              <AgentText text={choice.about} />
            </span>
          </span>
        </label>
      ))}
      <input
        aria-label="In your own words"
        placeholder="in your own words"
        value={own}
        onInput={(event) => write(event.currentTarget.value)}
      />
    </fieldset>
  );
}
