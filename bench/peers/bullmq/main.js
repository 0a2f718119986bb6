// BullMQ on Redis. What has ended is not kept, which is its faster setting; a hundred run at once in a process.
"use strict";

const { Queue, Worker } = require("bullmq");
const { Redis } = require("ioredis");
const { drive } = require("./drive.js");

const QUEUE = "bench";
const BATCH = 1_000;
const CONCURRENCY = 100;

const connected = () => new Redis(process.env.BENCH_STORE, { maxRetriesPerRequest: null });

class BullMQ {
  packages = ["bullmq", "ioredis"];

  async open() {
    this.connection = connected();
    this.queue = new Queue(QUEUE, { connection: this.connection, defaultJobOptions: { removeOnComplete: true } });
    await this.queue.waitUntilReady();
  }

  async durability() {
    return `as the server; ${CONCURRENCY} at once a process`;
  }

  add(name, data) {
    return this.queue.add(name, data);
  }

  async bulk(n) {
    for (let start = 0; start < n; start += BATCH) {
      await this.queue.addBulk(Array.from({ length: Math.min(BATCH, n - start) }, () => ({ name: "noop", data: {} })));
    }
  }

  async close() {
    await this.queue.close();
    this.connection.disconnect();
  }

  async work(handlers) {
    const connection = connected();
    const worker = new Worker(QUEUE, (job) => handlers[job.name](job.data), { connection, concurrency: CONCURRENCY });
    await worker.waitUntilReady();
    return () => worker.close();
  }
}

drive(new BullMQ());
