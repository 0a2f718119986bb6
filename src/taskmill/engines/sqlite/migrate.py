"""Numbered migrations, each one transaction: a program that dies in one leaves the store as it was before it, and two that start at once take turns."""

from __future__ import annotations

from collections.abc import Callable

import apsw

from taskmill.clock import Clock
from taskmill.engines.sqlite.scoping import scope
from taskmill.engines.sqlite.sql import Database, migrations
from taskmill.engines.sqlite.step import EPOCH
from taskmill.errors import WrongStore

__all__ = ["applied", "migrate", "newest", "pending", "verify"]

SCOPED = 4
"""The migration whose rows move by the lanes' own rules."""
LEDGER = "CREATE TABLE IF NOT EXISTS taskmill_migration (number INTEGER PRIMARY KEY, name TEXT NOT NULL, applied_at INTEGER NOT NULL)"


def newest() -> int:
    return migrations()[-1][0]


def applied(db: Database) -> list[int]:
    if db.execute("SELECT 1 FROM sqlite_schema WHERE name = 'taskmill_migration'").fetchone() is None:
        return []
    return [number for (number,) in db.execute("SELECT number FROM taskmill_migration ORDER BY number")]


def pending(db: Database) -> list[tuple[int, str, str]]:
    """What is still to be applied; a store of a newer program is refused."""
    done = applied(db)
    if done and done[-1] > newest():
        raise WrongStore(
            f"the store has schema {done[-1]}, this program knows {newest()}",
            code="newer_schema",
            hint="upgrade taskmill on this machine; the store was left as it is",
        )
    return [migration for migration in migrations() if migration[0] not in done]


def migrate(db: Database, clock: Clock, report: Callable[[str], None] = lambda _: None) -> list[str]:
    """Bring the store to this program's schema. What was applied, by name."""
    names = []
    for number, name, statements in pending(db):
        db.execute("BEGIN IMMEDIATE")
        try:
            if number in applied(db):  # another program was faster
                db.execute("ROLLBACK")
                continue
            _apply(db, number, name, statements, clock.now())
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise
        names.append(f"{number:04d} {name}")
        report(names[-1])
    return names


def _apply(db: Database, number: int, name: str, statements: str, now: int) -> None:
    db.execute(LEDGER)
    db.execute(statements).fetchall()
    if number == SCOPED:
        scope(db, now)
    if number == 1:
        db.execute("INSERT INTO taskmill_store (one, token, created_at) VALUES (1, ?, ?)", (max(now - EPOCH, 0), now)).fetchall()
    db.execute("INSERT INTO taskmill_migration (number, name, applied_at) VALUES (?, ?, ?)", (number, name, now)).fetchall()


def verify(db: Database) -> list[str]:
    """What is wrong with the file: damage, missing migrations, or a schema that somebody changed by hand."""
    problems = [text for (text,) in db.execute("PRAGMA integrity_check") if text != "ok"]
    problems += [f"migration {number:04d} {name} is not applied" for number, name, _ in pending(db)]
    if not problems:
        fresh = apsw.Connection(":memory:")
        for _, _, statements in migrations():
            fresh.execute(statements).fetchall()
        here, wanted = _schema(db), _schema(fresh)
        problems += [f"{name} is missing" for name in sorted(wanted.keys() - here.keys())]
        problems += [f"{name} differs from what this program makes" for name in sorted(wanted.keys() & here.keys()) if here[name] != wanted[name]]
    return problems


def _schema(db: Database) -> dict[str, str]:
    rows = db.execute("SELECT name, sql FROM sqlite_schema WHERE name LIKE 'taskmill\\_%' ESCAPE '\\' AND name <> 'taskmill_migration' AND sql IS NOT NULL")
    return {name: " ".join(sql.split()) for name, sql in rows}
