// The types that `taskmill kit worker` asks for, and a program that runs them.

import { Context, Handler, Json, Task, Worker } from "./worker.js";

/** Sleeps, unless it is told to stop: then it throws. */
function work(seconds: number, signal: AbortSignal): Promise<void> {
  return new Promise((done, fail) => {
    const timer = setTimeout(done, seconds * 1000);
    signal.addEventListener("abort", () => (clearTimeout(timer), fail(new Error("told to stop"))), { once: true });
  });
}

const field = (task: Task, name: string) => (task.payload as { [name: string]: Json })[name] as Json;

const slow: Handler = async (task: Task, context: Context) => {
  await work(field(task, "seconds") as number, context.signal);
  return "done";
};

const handlers: Record<string, Handler> = {
  "kit.echo": async (task) => task.payload,
  "kit.fail": async (task) => {
    throw new Error(field(task, "message") as string);
  },
  "kit.fail-then-work": async (task) => {
    if (task.attempt === 1) throw new Error("not yet");
    return { attempt: task.attempt };
  },
  "kit.slow": slow,
  "kit.cancel": slow,
  "kit.checkpoint": async (task, context) => {
    if ("value" in task.checkpoints) return { resumed: task.checkpoints["value"] as Json };
    await context.checkpoint("value", field(task, "value"));
    await context.progress(0.5, "half");
    throw new Error("on purpose, after the checkpoint");
  },
};

const env = process.env;
await new Worker(
  {
    url: env["TASKMILL_SERVER_URL"] ?? "http://127.0.0.1:8080",
    key: env["TASKMILL_API_KEY"],
    queues: (env["TASKMILL_QUEUES"] ?? "default").split(","),
    lease: env["TASKMILL_LEASE"],
    slots: Number(env["TASKMILL_SLOTS"] ?? 4),
  },
  handlers,
).run();
