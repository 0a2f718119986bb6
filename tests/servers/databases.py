"""Databases for tests, each as new: with the migrations applied and nothing else in it.

To copy a database from a template and to drop it takes many times as long as to empty it (100 ms and 8 ms on two busy cores). So one that
comes back is emptied and given out again, unless the test has changed the schema itself. It is emptied by a session that stays in it, since
one that is new reads the catalogs for 50 ms, and row by row where the rows are few, since TRUNCATE makes new files for the table and every index.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit, urlunsplit

import psycopg
from psycopg import Connection, sql

__all__ = ["Databases", "Ready", "at"]

OURS = "n.nspname <> 'information_schema' AND n.nspname NOT LIKE 'pg\\_%'"
SCHEMA = f"""
SELECT md5(string_agg(line, ' ' ORDER BY line COLLATE "C")) FROM (
    SELECT concat_ws('|', 'schema', n.nspname, n.nspacl) FROM pg_namespace n WHERE {OURS}
    UNION ALL SELECT concat_ws('|', 'class', n.nspname, c.relname, c.relkind, c.relpersistence, c.reloptions, c.relacl, c.relowner)
        FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE {OURS}
    UNION ALL SELECT concat_ws('|', 'column', n.nspname, c.relname, a.attnum, a.attname, a.atttypid::regtype, a.attnotnull, a.atthasdef, a.attstorage)
        FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace WHERE {OURS} AND a.attnum > 0
    UNION ALL SELECT concat_ws('|', 'constraint', n.nspname, c.conrelid::regclass, c.conname, c.contype, c.convalidated)
        FROM pg_constraint c JOIN pg_namespace n ON n.oid = c.connamespace WHERE {OURS}
    UNION ALL SELECT concat_ws('|', 'function', n.nspname, p.oid::regprocedure, md5(p.prosrc), p.proconfig, p.proacl)
        FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace WHERE {OURS}
    UNION ALL SELECT concat_ws('|', 'view', v.schemaname, v.viewname, md5(v.definition)) FROM pg_views v
        WHERE v.schemaname NOT IN ('pg_catalog', 'information_schema')
    UNION ALL SELECT concat_ws('|', 'trigger', t.tgrelid::regclass, t.tgname, t.tgenabled) FROM pg_trigger t WHERE NOT t.tgisinternal
    UNION ALL SELECT concat_ws('|', 'extension', e.extname) FROM pg_extension e
    UNION ALL SELECT concat_ws('|', 'setting', s.setrole, s.setconfig) FROM pg_db_role_setting s JOIN pg_database d ON d.oid = s.setdatabase
        WHERE d.datname = current_database()
) lines(line)"""
TABLES = f"""
SELECT format('%I.%I', n.nspname, c.relname) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind = 'r' AND {OURS} ORDER BY 1"""
SEQUENCES = "SELECT format('%I.%I', schemaname, sequencename), last_value, start_value FROM pg_sequences ORDER BY 1"
OTHERS = """
SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity
WHERE datname = %s AND pid <> pg_backend_pid() AND backend_type = 'client backend'"""
LARGE = 262_144
"""Bytes of a table that had better be truncated."""
PREPARED = "SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database()"
SLOTS = "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()"


class Fresh(NamedTuple):
    """What a database is like before its first use."""

    schema: str
    tables: tuple[str, ...]
    rows: dict[str, bytes]
    """The rows that migrations put in, as COPY writes them."""
    sequences: dict[str, tuple[int | None, int]]


class Ready(NamedTuple):
    """What a server has from the start: a database to copy, and the first to give."""

    template: str
    first: str
    fresh: Fresh


def at(url: str, database: str) -> str:
    """The same server, another database."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(path=f"/{quote(database, safe='')}"))


class Databases:
    """The databases that tests are given in one server."""

    def __init__(self, url: str, upgrade: Callable[[str], object] | None = None, ready: Ready | None = None) -> None:
        self._url = url
        self._upgrade = upgrade or _upgrade
        self._mark = f"taskmill_test_{secrets.token_hex(4)}"
        self._made: set[str] = set()
        self._free: list[str] = [ready.first] if ready else []
        self._template = ready.template if ready else ""
        self._fresh = ready.fresh if ready else None
        self._number = 0
        self._admin: Connection[tuple[Any, ...]] | None = None
        self._staying: dict[str, Connection[tuple[Any, ...]]] = {}

    def give(self) -> str:
        """The URL of a database as new, with the migrations applied."""
        if not self._template:
            self._template = self._migrated()
        name = self._free.pop() if self._free else self._copied()
        return at(self._url, name)

    def ready(self) -> Ready:
        """Made now, for the servers that will be copies of this one."""
        first = urlsplit(self.give()).path.removeprefix("/")
        assert self._fresh is not None
        return Ready(self._template, first, self._fresh)

    def take_back(self, url: str) -> None:
        """Whoever is still in it is thrown out."""
        name = urlsplit(url).path.removeprefix("/")
        try:
            emptied = self._emptied(name)
        except psycopg.Error:
            emptied = False
        if emptied:
            self._free.append(name)
        else:
            self.drop(name)

    def empty(self) -> str:
        """The URL of a database in which there is nothing, not even migrations; it lasts as long as the server does."""
        return at(self._url, self._create(""))

    def drop(self, name: str) -> None:
        self._leave(name)
        self.run(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))
        self._made.discard(name)

    def drop_all(self) -> None:
        for name in sorted(self._made):
            self.drop(name)
        self.disconnect()

    def disconnect(self) -> None:
        """The server is about to stop."""
        for name in list(self._staying):
            self._leave(name)
        if self._admin is not None:
            self._admin.close()
            self._admin = None

    def forget(self) -> None:
        """The server has gone, and its databases may be as it left them."""
        self.disconnect()
        self._free.clear()

    def run(self, statement: sql.Composed) -> None:
        if self._admin is None or self._admin.closed:
            self._admin = psycopg.connect(self._url, autocommit=True)
        self._admin.execute(statement)

    def _create(self, template: str) -> str:
        self._number += 1
        name = f"{self._mark}_{self._number}"
        self._made.add(name)
        self.run(sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(template or "template0")))
        return name

    def _copied(self) -> str:
        return self._create(self._template)

    def _migrated(self) -> str:
        name = self._create("")
        self._upgrade(at(self._url, name))
        with self._inside(name) as connection:
            self._fresh = _seen(connection)
        return name

    def _emptied(self, name: str) -> bool:
        """Whether it is as new now."""
        fresh = self._fresh
        assert fresh is not None
        connection = self._stay(name)
        connection.execute(OTHERS, (name,))
        if _one(connection, PREPARED) or _one(connection, SLOTS) or _one(connection, SCHEMA) != fresh.schema:
            return False
        few, many = _dirty(connection, fresh)
        statements = [f"DELETE FROM {table}" for table in few]
        if many:
            statements.append(f"TRUNCATE {', '.join(many)} CASCADE")
        if statements:
            connection.execute(_text("; ".join(statements)))
        for table, rows in fresh.rows.items():
            if not statements or _rows(connection, table) == rows:
                continue  # CASCADE may have emptied more than was dirty
            with connection.cursor() as cursor, cursor.copy(_text(f"COPY {table} FROM STDIN")) as copy:
                copy.write(rows)
        _rewind(connection, fresh)
        return True

    def _stay(self, name: str) -> Connection[tuple[Any, ...]]:
        """The session that empties this database; no trigger and no reference acts on what it does."""
        connection = self._staying.get(name)
        if connection is None or not _alive(connection):
            self._leave(name)
            connection = psycopg.connect(at(self._url, name), autocommit=True, options="-c session_replication_role=replica")
            self._staying[name] = connection
        return connection

    def _leave(self, name: str) -> None:
        connection = self._staying.pop(name, None)
        if connection is not None:
            connection.close()

    @contextmanager
    def _inside(self, name: str) -> Iterator[Connection[tuple[Any, ...]]]:
        with psycopg.connect(at(self._url, name), autocommit=True) as connection:
            yield connection


def _alive(connection: Connection[tuple[Any, ...]]) -> bool:
    """Whether nobody has ended it: tests may throw everyone out of their database."""
    try:
        connection.execute("SELECT 1")
    except psycopg.OperationalError:
        return False
    return True


def _upgrade(url: str) -> None:
    from taskmill import engines

    engines.schema(url).upgrade()


def _text(statement: str) -> sql.SQL:
    return sql.SQL(statement)


def _one(connection: Connection[tuple[Any, ...]], statement: str) -> Any:
    row = connection.execute(_text(statement), prepare=True).fetchone()
    assert row is not None
    return row[0]


def _rows(connection: Connection[tuple[Any, ...]], table: str) -> bytes:
    with connection.cursor() as cursor, cursor.copy(_text(f"COPY {table} TO STDOUT")) as copy:
        return b"".join(map(bytes, copy))


def _seen(connection: Connection[tuple[Any, ...]]) -> Fresh:
    tables = tuple(name for (name,) in connection.execute(_text(TABLES)))
    rows = {table: found for table in tables if (found := _rows(connection, table))}
    sequences = {name: (last, start) for name, last, start in connection.execute(SEQUENCES)}
    return Fresh(_one(connection, SCHEMA), tables, rows, sequences)


def _dirty(connection: Connection[tuple[Any, ...]], fresh: Fresh) -> tuple[list[str], list[str]]:
    """The tables that do not hold what they held at first: with few rows, and with many. One that is large is one of many, whatever is left in it."""
    unseeded = [table for table in fresh.tables if table not in fresh.rows]
    asked = ", ".join(f"CASE WHEN pg_relation_size('{table}') > {LARGE} THEN 2 WHEN EXISTS (SELECT FROM {table}) THEN 1 ELSE 0 END" for table in unseeded)
    found = connection.execute(_text(f"SELECT {asked}"), prepare=True).fetchone() if asked else ()
    assert found is not None
    changed = [table for table, rows in fresh.rows.items() if _rows(connection, table) != rows]
    few, many = ([table for table, size in zip(unseeded, found, strict=True) if size == wanted] for wanted in (1, 2))
    return few + changed, many


def _rewind(connection: Connection[tuple[Any, ...]], fresh: Fresh) -> None:
    for name, last, _ in connection.execute(SEQUENCES).fetchall():
        before, start = fresh.sequences[name]
        if last != before:
            connection.execute("SELECT setval(%s::regclass, %s, %s)", (name, start if before is None else before, before is not None))
