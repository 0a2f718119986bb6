// The memory of counter.py: slots of (process, hits, first, last), then waits in ns. Node cannot map memory, so it writes through the file.
"use strict";

const fs = require("fs");
const { setTimeout: sleep } = require("timers/promises");

const SLOTS = 64;
const SLOT = 32;
const WAITS = 8192;
const PATIENCE = 10_000;

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

module.exports = { Counter };
