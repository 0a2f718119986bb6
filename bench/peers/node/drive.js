// The commands of drive.py, for a system in Node, because nothing of Python lives in its environment:
//
//   describe | submit KIND N | fill N | release N | late N SECONDS | worker SLOT
//
// A side has `packages`, and the asynchronous `open` (a side that submits), `durability`, `add` (name, data), `bulk` (n), `close`, and `work` (handlers), which
// starts a worker and answers how it is stopped.
"use strict";

const fs = require("fs");
const { setTimeout: sleep } = require("timers/promises");
const { Counter } = require("./counter.js");

const CALLERS = 64;
const WARM_UP = 10;
const FLUSH = 5;

const WAYS = {
  async single(side, n) {
    for (let i = 0; i < n; i++) await side.add("noop", {});
  },
  async concurrent(side, n) {
    let taken = 0;
    const caller = async () => {
      while (taken++ < n) await side.add("noop", {});
    };
    await Promise.all(Array.from({ length: CALLERS }, caller));
  },
  bulk: (side, n) => side.bulk(n),
};

const COMMANDS = {
  async describe(side) {
    const worker = (slot) => [process.execPath, process.argv[1], "worker", String(slot)];
    return {
      versions: { ...Object.fromEntries(side.packages.map((name) => [name, version(name)])), node: process.versions.node },
      durability: await side.durability(),
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
  async late(side, n, seconds) {
    const counter = new Counter();
    const end = Date.now() + 1e3 * Number(seconds);
    const submits = [];
    while (submits.length <= Number(n) && (submits.length < 2 || Date.now() < end)) {
      const began = process.hrtime.bigint();
      await side.add("late", { sent: String(began) });
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

async function work(side, slot) {
  const counter = new Counter(Number(slot));
  setInterval(() => counter.flush(), FLUSH);
  const stop = await side.work({ noop: async () => counter.hit(), late: async ({ sent }) => counter.late(sent) });
  process.once("SIGTERM", () => stop().finally(() => (counter.flush(), process.exit(0))));
}

async function main(side, [command, ...rest]) {
  if (command === "worker") return work(side, ...rest);
  if (!(command in COMMANDS)) throw new Error(`${command} is no command: ${Object.keys(COMMANDS).join(", ")}`);
  await side.open();
  console.log(JSON.stringify(await COMMANDS[command](side, ...rest)));
  await side.close();
}

function drive(side) {
  main(side, process.argv.slice(2)).catch((error) => {
    console.error(error);
    process.exit(1);
  });
}

module.exports = { drive };
