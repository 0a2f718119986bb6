// Graphile Worker on PostgreSQL. It answers the commands of drive.py by itself, because nothing of Python lives in its environment.
//
//   node main.js describe | submit KIND N | fill N | release N | late N SECONDS | worker SLOT
//
// Its batched settings, which are its fastest: jobs are fetched by the 500 into a local queue, and completed in batches without a delay.
"use strict";

const fs = require("fs");
const { setTimeout: sleep } = require("timers/promises");
const { Logger, makeWorkerUtils, run } = require("graphile-worker");
const { Pool } = require("pg");

const BATCH = 5_000;
const CALLERS = 64;
const CONNECTIONS = 32;
const WARM_UP = 10;
const PATIENCE = 10_000;
const TUNED = {
  concurrentJobs: 24,
  maxPoolSize: 25,
  localQueue: { size: 500, refetchDelay: { durationMs: 10 } },
  completeJobBatchDelay: 0,
  failJobBatchDelay: 0,
};

// The memory of counter.py: slots of (process, hits, first, last), then waits in ns. Node cannot map memory, so it writes through the file.
const SLOTS = 64;
const SLOT = 32;
const WAITS = 8192;
const FLUSH = 5;

class Counter {
  constructor(slot = 0) {
    this.file = fs.openSync(process.env.BENCH_COUNTER, "r+");
    this.slot = slot;
    this.hits = this.written = 0;
    this.first = this.last = 0n;
  }

  hit() {
    this.last = process.hrtime.bigint();
    if (this.hits++ === 0) this.first = this.last;
  }

  late(sent) {
    const wait = Buffer.alloc(8);
    wait.writeBigInt64LE(process.hrtime.bigint() - BigInt(sent));
    fs.writeSync(this.file, wait, 0, 8, SLOTS * SLOT + (this.hits % WAITS) * 8);
    this.hit();
    this.flush();
  }

  // What was counted in this process becomes what all can see.
  flush() {
    if (this.hits === this.written) return;
    const row = Buffer.alloc(SLOT);
    [BigInt(process.pid), BigInt(this.hits), this.first, this.last].forEach((value, i) => row.writeBigInt64LE(value, 8 * i));
    fs.writeSync(this.file, row, 0, SLOT, this.slot * SLOT);
    this.written = this.hits;
  }

  total() {
    const rows = Buffer.alloc(SLOTS * SLOT);
    fs.readSync(this.file, rows, 0, rows.length, 0);
    let sum = 0;
    for (let at = 8; at < rows.length; at += SLOT) sum += Number(rows.readBigInt64LE(at));
    return sum;
  }

  async started(n) {
    for (const end = Date.now() + PATIENCE; Date.now() < end; await sleep(0.5)) if (this.total() >= n) return true;
    return false;
  }

  milliseconds(n) {
    const found = Buffer.alloc(8 * n);
    fs.readSync(this.file, found, 0, found.length, SLOTS * SLOT);
    return Array.from({ length: n }, (_, i) => Number(found.readBigInt64LE(8 * i)) / 1e6);
  }
}

const silent = new Logger(() => () => {});

async function opened() {
  const pool = new Pool({ connectionString: process.env.BENCH_STORE, max: CONNECTIONS });
  const utils = await makeWorkerUtils({ pgPool: pool, logger: silent });
  await utils.migrate();
  return { pool, utils };
}

const WAYS = {
  async single({ utils }, n) {
    for (let i = 0; i < n; i++) await utils.addJob("noop", {});
  },
  async concurrent({ utils }, n) {
    let taken = 0;
    const caller = async () => {
      while (taken++ < n) await utils.addJob("noop", {});
    };
    await Promise.all(Array.from({ length: CALLERS }, caller));
  },
  async bulk({ utils }, n) {
    for (let start = 0; start < n; start += BATCH) {
      await utils.addJobs(Array.from({ length: Math.min(BATCH, n - start) }, () => ({ identifier: "noop", payload: {} })));
    }
  },
};

const COMMANDS = {
  async describe({ pool }) {
    const { rows } = await pool.query("SELECT current_setting('synchronous_commit') AS commit, current_setting('fsync') AS flush");
    const worker = (slot) => [process.execPath, __filename, "worker", String(slot)];
    return {
      versions: { "graphile-worker": version("graphile-worker"), pg: version("pg"), node: process.versions.node },
      durability: `synchronous_commit=${rows[0].commit}, fsync=${rows[0].flush}; batched`,
      kinds: Object.keys(WAYS),
      workers: { 1: [worker(0)], 2: [worker(0), worker(1)] },
    };
  },
  async submit(side, kind, n) {
    await WAYS[kind](side, WARM_UP);
    const began = performance.now();
    await WAYS[kind](side, Number(n));
    return { seconds: (performance.now() - began) / 1e3 };
  },
  async fill(side, n) {
    await WAYS.bulk(side, Number(n));
    return {};
  },
  async release() {
    return {}; // it has begun with its first process
  },
  // One at a time, each when the one before has started, with a pause of a length by chance; the first only shows that the worker is there.
  async late({ utils }, n, seconds) {
    const counter = new Counter();
    const end = Date.now() + 1e3 * Number(seconds);
    const submits = [];
    while (submits.length <= Number(n) && (submits.length < 2 || Date.now() < end)) {
      const began = process.hrtime.bigint();
      await utils.addJob("late", { sent: String(began) });
      submits.push(Number(process.hrtime.bigint() - began) / 1e6);
      if (!(await counter.started(submits.length))) break;
      await sleep(5 + 25 * Math.random());
    }
    return { milliseconds: counter.milliseconds(submits.length).slice(1), submits: submits.slice(1) };
  },
};

function version(name) {
  return JSON.parse(fs.readFileSync(`${__dirname}/node_modules/${name}/package.json`, "utf8")).version;
}

async function work(slot) {
  const counter = new Counter(Number(slot));
  setInterval(() => counter.flush(), FLUSH);
  const tasks = { noop: async () => counter.hit(), late: async ({ sent }) => counter.late(sent) };
  const runner = await run({
    preset: { worker: { connectionString: process.env.BENCH_STORE, ...TUNED } },
    logger: silent,
    noHandleSignals: true,
    taskList: tasks,
  });
  process.once("SIGTERM", () => runner.stop().finally(() => (counter.flush(), process.exit(0))));
}

async function main([command, ...rest]) {
  if (command === "worker") return work(...rest);
  if (!(command in COMMANDS)) throw new Error(`${command} is no command: ${Object.keys(COMMANDS).join(", ")}`);
  const side = await opened();
  console.log(JSON.stringify(await COMMANDS[command](side, ...rest)));
  await side.utils.release();
  await side.pool.end();
}

main(process.argv.slice(2)).catch((error) => {
  console.error(error);
  process.exit(1);
});
