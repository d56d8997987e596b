// Tasks for the scripted endpoint: a real agent in a real sandbox, and a model that says what the task tells it to.

export const hello = {
  task_id: "hello",
  agent: "opencode",
  endpoint: "scripted",
  instruction: "Write hello.txt.",
  verify: ["grep -qx hello hello.txt"],
  solution: [
    { write: "hello.txt", content: "hello\n" },
    { run: "cat hello.txt" },
    { say: "It is done." },
  ],
};

/** The same with another end: the verifier finds nothing. */
export const missed = {
  ...hello,
  solution: [{ run: "ls" }, { say: "I could not do it." }],
};

/** Runs to its end by itself, long enough to be cancelled before. */
export const unhurried = {
  ...hello,
  task_id: "unhurried",
  agent: "oracle",
  setup: ["sleep 5"],
};

/** Runs until somebody cancels it. */
export const endless = {
  ...hello,
  task_id: "endless",
  setup: ["echo one", "sleep 600"],
};

/** Answers one message after the other, and waits in between. */
export const talk = {
  task_id: "talk",
  agent: "opencode",
  endpoint: "scripted",
  driver: "serve",
  instruction: "Begin.",
  verify: ["true"],
  solution: [
    { say: "The first answer." },
    { run: "echo from the tool" },
    { say: "The second answer." },
    { say: "The third answer." },
  ],
};

const ESCAPE = "\u001b";

/** Says and does what a page must not fall for. */
export const hostile = {
  task_id: '<img src="http://evil.example/task.png" onerror="alert(1)">\u202Etxt.exe',
  agent: "opencode",
  endpoint: "scripted",
  instruction: "<script>alert('instruction')</script>",
  verify: [`printf '${ESCAPE}[31mred${ESCAPE}[0m <b>bold</b>\\n'`],
  solution: [
    {
      write: "<img src=x onerror=alert(2)>.txt",
      content: '<script src="http://evil.example/x.js"></script>\n',
    },
    { run: `printf '${ESCAPE}[32mgreen${ESCAPE}[0m ${ESCAPE}]0;title\\007 <i>italic</i>'` },
    {
      say: 'Done. <img src="http://evil.example/a.png" onerror="alert(3)"> ![x](http://evil.example/b.png) [link](javascript:alert(4)) \u202Ereversed\u202C </script><script>alert(5)</script>',
    },
  ],
};
