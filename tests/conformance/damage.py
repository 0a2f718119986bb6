"""A store that was damaged: what no step of ours does, and what an error of one has done or may do."""

from __future__ import annotations

from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

import apsw
import msgspec
import psycopg

from taskmill.engines.redis.records import AT
from tests.faults.redis_reading import reader

__all__ = ["fell_unheard"]

COMPLETED = 5
OPEN_EDGES = 13
"""Where a record of Redis has the number of its open edges."""


def fell_unheard(url: str, parent: str, child: str, *, counted: bool) -> None:
    """The edge onto `child` has fallen, and `parent` was not told. `counted`: the number of its open edges was lowered all the same."""
    scheme = urlsplit(url).scheme
    if scheme == "sqlite":
        _sqlite(url.removeprefix("sqlite:///"), parent, child, counted=counted)
    elif scheme.startswith("postgres"):
        _postgres(url, parent, child, counted=counted)
    else:
        _redis(url, parent, child, counted=counted)


def _sqlite(path: str, parent: str, child: str, *, counted: bool) -> None:
    """Not by Python's own sqlite3: two libraries on one file in one process lose what the other has written."""
    with closing(apsw.Connection(path)) as db, db:
        db.set_busy_timeout(30_000)
        db.execute(
            "UPDATE taskmill_edge SET outcome = ? WHERE child_id = ? AND parent = (SELECT seq FROM taskmill_task WHERE id = ?)", (COMPLETED, child, parent)
        )
        if counted:
            db.execute("UPDATE taskmill_task SET open_edges = open_edges - 1 WHERE id = ?", (parent,))


def _postgres(url: str, parent: str, child: str, *, counted: bool) -> None:
    with psycopg.connect(url) as db:
        db.execute("UPDATE taskmill.edge SET outcome = %s, result = '1' WHERE child = %s AND parent = %s", (COMPLETED, child, parent))
        if counted:
            db.execute("UPDATE taskmill.task SET open_edges = open_edges - 1 WHERE id = %s", (parent,))


def _redis(url: str, parent: str, child: str, *, counted: bool) -> None:
    with closing(reader(url)) as client:
        [key] = client.scan_iter(match=f"*:edges:{parent}", count=10_000)
        edge: list[Any] = msgspec.msgpack.decode(client.hget(key, child))
        edge[2] = COMPLETED
        client.hset(key, child, msgspec.msgpack.encode(edge))
        if counted:
            record = key.replace(b":edges:", b":t:")
            raw = client.get(record)
            end = AT + int(raw[28:AT], 16)
            header: list[Any] = msgspec.msgpack.decode(raw[AT:end])
            header[OPEN_EDGES] -= 1
            array = msgspec.msgpack.encode(header)
            client.set(record, raw[:28] + b"%08x" % len(array) + array + raw[end:])
