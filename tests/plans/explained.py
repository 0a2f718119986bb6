"""The plans that PostgreSQL really uses, as auto_explain tells them: also those of statements inside functions, with the functions' own settings."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from typing import Any

import asyncpg
import msgspec

from taskmill.engines.postgres.connecting import Connection, Pool

__all__ = ["Plans", "explained", "explaining"]

EXPLAIN = """
LOAD 'auto_explain'; SET client_min_messages = log; SET auto_explain.log_min_duration = 0; SET auto_explain.log_nested_statements = on;
SET auto_explain.log_format = json; SET auto_explain.log_analyze = on; SET auto_explain.log_timing = off"""

Node = dict[str, Any]


class Plans:
    """Every node of every plan that a connection has gone by."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []

    def hear(self, _: object, said: asyncpg.PostgresLogMessage) -> None:
        text: str = said.message
        if "plan:\n" in text:
            self.nodes += _with_those_below(msgspec.json.decode(text.partition("plan:\n")[2])["Plan"])

    def reads(self) -> dict[tuple[str, str | None], int]:
        """How many rows were read of which table by which index (None: by none). A look that finds nothing counts as one, so that many are seen."""
        found: dict[tuple[str, str | None], int] = defaultdict(int)
        for node in self.nodes:
            if "Relation Name" in node and node["Node Type"].endswith("Scan"):
                found[node["Relation Name"], _index(node)] += _rows(node)
        return dict(found)

    def of(self, table: str) -> set[str | None]:
        """The indexes by which a table was read."""
        return {index for (name, index), rows in self.reads().items() if name == table and rows}

    def compared_in_vain(self) -> int:
        """Pairs of rows that a join has looked at and dropped: two sets that are joined without an index between them cost their product."""
        return sum(int(node.get("Rows Removed by Join Filter", 0) * node["Actual Loops"]) for node in self.nodes)


def _with_those_below(node: Node) -> Iterator[Node]:
    yield node
    for below in node.get("Plans", ()):
        yield from _with_those_below(below)


def _index(node: Node) -> str | None:
    if node["Node Type"] != "Bitmap Heap Scan":
        return node.get("Index Name")
    return " ".join(sorted({each["Index Name"] for each in _with_those_below(node) if each["Node Type"] == "Bitmap Index Scan"}))


def _rows(node: Node) -> int:
    """Also those that were read in vain; auto_explain tells them as they are in one loop."""
    passed = sum(node.get(f"Rows Removed by {why}", 0) for why in ("Filter", "Index Recheck"))
    return int(max(1, node["Actual Rows"] + passed) * node["Actual Loops"])


async def explained(connection: Connection) -> Plans:
    """From now on this connection tells."""
    plans = Plans()
    await connection.execute(EXPLAIN)
    connection.add_log_listener(plans.hear)
    return plans


@contextlib.asynccontextmanager
async def explaining(pool: Pool) -> AsyncIterator[Plans]:
    """A pool that has one connection only, which tells inside the block."""
    async with pool.connection() as connection:
        plans = await explained(connection)
    yield plans
    async with pool.connection() as again:
        assert again is connection, "a step took a connection of its own"
