// Graphile Worker on PostgreSQL.
//
// Its batched settings, which are its fastest: jobs are fetched by the 500 into a local queue, and completed in batches without a delay.
"use strict";

const { Logger, makeWorkerUtils, run } = require("graphile-worker");
const { Pool } = require("pg");
const { drive } = require("./drive.js");

const BATCH = 5_000;
const CONNECTIONS = 32;
const TUNED = {
  concurrentJobs: 24,
  maxPoolSize: 25,
  localQueue: { size: 500, refetchDelay: { durationMs: 10 } },
  completeJobBatchDelay: 0,
  failJobBatchDelay: 0,
};

const silent = new Logger(() => () => {});

class Graphile {
  packages = ["graphile-worker", "pg"];

  async open() {
    this.pool = new Pool({ connectionString: process.env.BENCH_STORE, max: CONNECTIONS });
    this.utils = await makeWorkerUtils({ pgPool: this.pool, logger: silent });
    await this.utils.migrate();
  }

  async durability() {
    const { rows } = await this.pool.query("SELECT current_setting('synchronous_commit') AS commit, current_setting('fsync') AS flush");
    return `synchronous_commit=${rows[0].commit}, fsync=${rows[0].flush}; batched`;
  }

  add(name, data) {
    return this.utils.addJob(name, data);
  }

  async bulk(n) {
    for (let start = 0; start < n; start += BATCH) {
      await this.utils.addJobs(Array.from({ length: Math.min(BATCH, n - start) }, () => ({ identifier: "noop", payload: {} })));
    }
  }

  async close() {
    await this.utils.release();
    await this.pool.end();
  }

  async work(handlers) {
    const runner = await run({
      preset: { worker: { connectionString: process.env.BENCH_STORE, ...TUNED } },
      logger: silent,
      noHandleSignals: true,
      taskList: handlers,
    });
    return () => runner.stop();
  }
}

drive(new Graphile());
