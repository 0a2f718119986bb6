"""What the store's own settings cannot promise."""

from __future__ import annotations

import os
from pathlib import Path

import apsw

from taskmill.engine import Durability, Finding
from taskmill.engines.sqlite.connection import FIXED_WAL_RESET
from taskmill.engines.sqlite.sql import Database, load

__all__ = ["check"]

queries = load("inspect.sql")

MOST_STUCK = 100
LITTLE_SPACE = 256 * 1024 * 1024


def check(db: Database, path: Path, durability: Durability) -> tuple[Finding, ...]:
    findings = [Finding("info", "sqlite", f"SQLite {apsw.sqlite_lib_version()} at {path}")]
    version = tuple(int(part) for part in apsw.sqlite_lib_version().split("."))
    if version < FIXED_WAL_RESET:
        findings.append(
            Finding("error", "wal_reset_bug", f"SQLite {apsw.sqlite_lib_version()} can corrupt the file when the WAL is reset", "install apsw 3.51.3 or newer")
        )
    mode = db.execute("PRAGMA journal_mode").fetchone()[0]
    if mode != "wal":
        findings.append(
            Finding("error", "journal_mode", f"the journal mode is {mode}, not wal", "somebody changed it; open the store with taskmill to set it back")
        )
    if durability is Durability.LOCAL:
        findings.append(
            Finding("warning", "durability_local", "a power cut can lose the last acknowledged tasks (synchronous=NORMAL)", "durability=fsync keeps them")
        )
    stuck = [task for (task,) in db.execute(queries.stuck, (MOST_STUCK,))]
    if stuck:
        many = f"at least {MOST_STUCK}" if len(stuck) == MOST_STUCK else str(len(stuck))
        hint = "a worker's maintenance makes them ready within minutes; report how they came to it"
        findings.append(Finding("error", "stuck_waiting", f"{many} tasks wait and nothing will wake them, first {stuck[0]}", hint))
    space = os.statvfs(path.parent)
    if space.f_bavail * space.f_frsize < LITTLE_SPACE:
        findings.append(
            Finding("warning", "little_space", f"only {space.f_bavail * space.f_frsize >> 20} MiB are free on its disk", "a full disk refuses new tasks")
        )
    return tuple(findings)
