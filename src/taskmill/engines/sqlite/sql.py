"""Named queries in .sql files: `-- name: oldest` above a statement makes it `queries.oldest`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from importlib.resources import files
from itertools import chain
from typing import Any, Protocol

__all__ = ["Database", "Queries", "insert", "load", "migrations", "one_moment"]

_NAME = re.compile(r"^-- name: (\w+)\s*$", re.MULTILINE)

WIDTHS = (64, 16, 4, 1)
"""Rows of one statement: few widths, so that all stay prepared."""


class Rows(Protocol):
    """What a statement answers."""

    def fetchone(self) -> Any: ...

    def fetchall(self) -> list[Any]: ...

    def __iter__(self) -> Iterator[Any]: ...


class Database(Protocol):
    """The part of an apsw connection that statements run on."""

    @property
    def in_transaction(self) -> bool: ...

    def execute(self, statement: str, bindings: Any = None) -> Rows: ...

    def executemany(self, statement: str, sequenceofbindings: Iterable[Any]) -> Rows: ...

    authorizer: Any

    def total_changes(self) -> int: ...

    def close(self) -> None: ...


class Queries:
    """The statements of one file, by name."""

    def __init__(self, statements: dict[str, str]) -> None:
        self.__dict__.update(statements)

    def __getattr__(self, name: str) -> str:
        raise AttributeError(f"no query is named {name!r}")


def insert(db: Database, statement: str, rows: Sequence[Sequence[Any]]) -> None:
    """Many rows by one statement. Each statement lets go of the interpreter and takes it again: once a row, that costs more than the row where other threads
    want it, too."""
    at = 0
    for many in WIDTHS:
        while len(rows) - at >= many:
            db.execute(_wide(statement, many), tuple(chain.from_iterable(rows[at : at + many])))
            at += many


@lru_cache
def _wide(statement: str, many: int) -> str:
    head, values, row = statement.rpartition("VALUES ")
    return f"{head}{values}{', '.join([row] * many)}"


@contextmanager
def one_moment(db: Database) -> Iterator[None]:
    """What is read inside belongs together: a task that moves meanwhile is seen where it was."""
    db.execute("SAVEPOINT moment")
    try:
        yield
    finally:
        db.execute("RELEASE moment")


def load(file: str) -> Queries:
    text = (files(__package__) / file).read_text(encoding="utf-8")
    parts = _NAME.split(text)[1:]
    return Queries({name: statement.strip().rstrip(";") for name, statement in zip(parts[::2], parts[1::2], strict=True)})


def migrations() -> list[tuple[int, str, str]]:
    """(number, name, statements) of every migration, in order."""
    found = []
    for file in (files(__package__) / "migrations").iterdir():
        if file.name.endswith(".sql"):
            number, _, name = file.name.removesuffix(".sql").partition("_")
            found.append((int(number), name, file.read_text(encoding="utf-8")))
    return sorted(found)
