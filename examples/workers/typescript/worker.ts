// A Taskmill worker: the protocol of docs/api/worker-protocol.md over Node's own fetch.
//
// Three things go on at once: one claim after the other, a beat every third of a lease, and the handlers. Whatever is not answered is asked again as
// it was, since every message may be repeated. A key that is refused ends the process; a worker that the server no longer knows joins anew.

export type Json = null | boolean | number | string | Json[] | { [name: string]: Json };

export interface Task {
  id: string;
  type: string;
  payload: Json;
  token: string; // digits, possibly more than a number holds: keep it a text
  attempt: number;
  timeout: number; // seconds
  headers: Record<string, string>;
  checkpoints: Record<string, Json>;
  signals: { number: number; name: string; data: Json; at: string }[];
  results: { task: string; outcome: string | null; result: Json }[];
  must_end: string | null;
}

/** What a handler has in its hands beside its task. `signal` is aborted when it must stop. */
export interface Context {
  signal: AbortSignal;
  checkpoint(name: string, value: Json): Promise<void>;
  progress(value: number, message?: string): Promise<void>;
}

export type Handler = (task: Task, context: Context) => Promise<Json>;

export interface Settings {
  url: string;
  key?: string;
  queues: string[];
  lease?: string;
  slots?: number;
  grace?: number; // seconds that running handlers have after SIGTERM
}

/** Thrown by a handler whose task shall not be tried again. */
export class Dead extends Error {
  constructor(readonly code: string, message = "") {
    super(message);
  }
}

interface Answer {
  status: number;
  data: any;
}

type Reason = "cancelled" | "timeout" | "lost" | "stopping";
type Outcome = { task: string; token: string; ending: string } & Record<string, unknown>;

interface Running {
  task: Task;
  stop: AbortController;
  done: Promise<void>;
}

const sleep = (seconds: number) => new Promise<void>((done) => setTimeout(done, seconds * 1000));

export class Worker {
  private id = "";
  private lease = 30;
  private every = 10;
  private answered = 0; // the number of the last claim whose answer is here
  private held = new Map<string, Running>();
  private paused = false;
  private draining = false;
  private over = false;
  private joining: Promise<void> | undefined;
  private waiting = new AbortController(); // of the claim under way
  private change: () => void = () => {}; // wakes the claimer

  constructor(private settings: Settings, private handlers: Record<string, Handler>) {}

  /** Until SIGTERM, SIGINT or an operator ends it; then what runs is finished or released. */
  async run(): Promise<void> {
    for (const name of ["SIGTERM", "SIGINT"] as const) process.on(name, () => this.drain());
    await this.join();
    void this.beat();
    await this.claim();
    const ended = Promise.all([...this.held.values()].map((running) => running.done));
    await Promise.race([ended, sleep(this.settings.grace ?? 20)]);
    for (const running of this.held.values()) running.stop.abort("stopping");
    await Promise.race([ended, sleep(1)]);
    this.over = true;
    await this.ask("leave", { worker: this.id });
    process.exit(0);
  }

  private drain(): void {
    this.draining = true;
    this.waiting.abort();
    this.change();
  }

  // Messages

  private async post(verb: string, body: object, seconds: number, signal?: AbortSignal): Promise<Answer> {
    const headers: Record<string, string> = { "Content-Type": "application/json" };
    if (this.settings.key) headers["Authorization"] = `Bearer ${this.settings.key}`;
    const limit = AbortSignal.timeout(seconds * 1000);
    const answer = await fetch(`${this.settings.url}/api/v1/worker/${verb}`, {
      method: "POST",
      headers,
      body: JSON.stringify(body),
      signal: signal ? AbortSignal.any([limit, signal]) : limit,
    });
    return { status: answer.status, data: await answer.json() };
  }

  /** Asked again, as it is, until it is answered with something else than "not now". */
  private async ask(verb: string, body: object, seconds = this.lease, signal?: AbortSignal): Promise<Answer> {
    for (let pause = 0.05; ; pause = Math.min(2 * pause, 2)) {
      try {
        const answer = await this.post(verb, body, seconds, signal);
        if (answer.status === 401 || answer.status === 403) {
          console.error(`the server refuses this key: ${answer.data.title}`);
          process.exit(1);
        }
        if (answer.status !== 429 && answer.status < 500) return answer;
      } catch (error) {
        if (signal?.aborted) throw error;
      }
      await sleep(pause * (0.5 + Math.random()));
    }
  }

  private async join(): Promise<void> {
    for (const running of this.held.values()) running.stop.abort("lost");
    this.held.clear();
    const { queues, lease } = this.settings;
    const info = { language: "typescript", pid: String(process.pid) };
    const { status, data } = await this.ask("join", { types: Object.keys(this.handlers), queues, lease, info });
    if (status !== 200) throw new Error(`join is refused: ${JSON.stringify(data)}`);
    this.id = data.worker;
    this.lease = data.lease;
    this.every = data.beat_every;
    this.answered = 0;
  }

  /** Anew, under another id; whoever notices first does it. */
  private rejoin(worker: string): Promise<void> {
    if (worker !== this.id) return this.joining ?? Promise.resolve();
    this.joining ??= this.join().finally(() => (this.joining = undefined));
    return this.joining;
  }

  // The three loops

  private async claim(): Promise<void> {
    const slots = this.settings.slots ?? 4;
    while (!this.draining) {
      await this.joining;
      if (this.paused || this.held.size >= slots) {
        await new Promise<void>((done) => (this.change = done));
        continue;
      }
      const worker = this.id;
      this.waiting = new AbortController();
      const room = { worker, request: this.answered + 1, slots: slots - this.held.size, wait: "20s" };
      const answer = await this.ask("claim", room, 20 + this.lease, this.waiting.signal).catch(() => undefined);
      if (answer === undefined || worker !== this.id) continue; // told to stop or to pause, or joined anew meanwhile
      if (answer.status === 404) await this.rejoin(worker);
      else if (answer.status === 200) {
        this.answered = answer.data.request;
        for (const task of answer.data.tasks as Task[]) this.start(task);
      } else throw new Error(`claim is refused: ${JSON.stringify(answer.data)}`);
    }
  }

  private async beat(): Promise<void> {
    for (let wait = this.every; !this.over; ) {
      await sleep(wait);
      await this.joining;
      if (this.over) return;
      const worker = this.id;
      const body = { worker, request: this.answered, leases: [...this.held.keys()] };
      const answer = await this.post("beat", body, this.every).catch(() => undefined); // not repeated as it was: the next one, soon, knows more
      wait = answer !== undefined && answer.status < 500 ? this.every : Math.min(this.every, 0.3);
      if (answer === undefined || worker !== this.id) continue;
      if (answer.status === 401 || answer.status === 403) process.exit(1);
      if (answer.status === 404 || answer.data.known === false) {
        const joining = this.rejoin(worker);
        this.waiting.abort();
        await joining;
        continue;
      }
      if (answer.status !== 200) continue;
      for (const token of answer.data.lost) this.held.get(token)?.stop.abort("lost");
      for (const running of this.held.values()) {
        if (answer.data.cancelled.includes(running.task.id)) running.stop.abort("cancelled");
      }
      const command = answer.data.commands.at(-1);
      if (command === "stop") this.drain();
      this.paused = command === "pause" || command === "quiet";
      if (this.paused) this.waiting.abort();
      this.change();
    }
  }

  private start(task: Task): void {
    const stop = new AbortController();
    const worker = this.id;
    const done = this.attempt(worker, task, stop).then((outcome) => (outcome ? this.finish(worker, outcome) : undefined));
    this.held.set(task.token, { task, stop, done: done.finally(() => this.end(task)) });
  }

  private end(task: Task): void {
    this.held.delete(task.token);
    this.change();
  }

  private async attempt(worker: string, task: Task, stop: AbortController): Promise<Outcome | undefined> {
    const lease = { task: task.id, token: task.token };
    const timer = setTimeout(() => stop.abort("timeout"), task.timeout * 1000);
    const save = async (entry: object) => {
      const { status } = await this.ask("checkpoint", { worker, entries: [{ ...lease, ...entry }] });
      if (status !== 200) stop.abort("lost");
    };
    try {
      const handler = this.handlers[task.type];
      if (handler === undefined) throw new Dead("unknown_type", task.type);
      const result = await handler(task, {
        signal: stop.signal,
        checkpoint: (name, value) => save({ name, value }),
        progress: (value, message = "") => save({ progress: { value, message } }),
      });
      return stop.signal.reason === "lost" ? undefined : { ...lease, ending: "completed", result };
    } catch (error) {
      return outcomeOf(lease, error, stop.signal.reason as Reason | undefined, task.timeout);
    } finally {
      clearTimeout(timer);
    }
  }

  private async finish(worker: string, outcome: Outcome): Promise<void> {
    const { status, data } = await this.ask("finish", { worker, outcomes: [outcome] });
    if (status === 200 || status === 404 || status === 409) return; // applied, or no longer ours
    // This very outcome cannot be written, and never will be: say so instead.
    const error = { code: data.code ?? "refused", message: data.title ?? "" };
    await this.ask("finish", { worker, outcomes: [{ task: outcome.task, token: outcome.token, ending: "dead", error }] });
  }
}

/** What an error of a handler means: what was done to it first, then its own word. */
function outcomeOf(lease: { task: string; token: string }, error: unknown, reason: Reason | undefined, timeout: number): Outcome | undefined {
  const { name, message, stack = "" } = error instanceof Error ? error : new Error(String(error));
  if (error instanceof Dead) return { ...lease, ending: "dead", error: { code: error.code, message, traceback: stack } };
  if (reason === "lost") return undefined;
  if (reason === "cancelled") return { ...lease, ending: "cancelled" };
  if (reason === "stopping") return { ...lease, ending: "released" };
  if (reason === "timeout") return { ...lease, ending: "failed", error: { code: "timeout", message: `it took longer than ${timeout} s` } };
  return { ...lease, ending: "failed", error: { code: name, message, traceback: stack } };
}
