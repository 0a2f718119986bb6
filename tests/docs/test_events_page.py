"""The page of live events is held to the code: its table, its bounds, and its sessions, which are held again."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

from taskmill.clock import MILLISECOND
from taskmill.engines.sqlite.step import RING
from taskmill.server import hub, live, ring, sockets, subscription, wanted
from taskmill.server.news import TYPES
from taskmill.task import NewTask
from tests.docs.test_docs import ROOT, blocks, code_words, table, text
from tests.surfaces.live import Live, served
from tools.write_docs import with_events

PAGE = ROOT / "docs" / "api" / "events.md"
CHANGING = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b|\d{4}-\d\d-\d\dT[\d:.]+Z|\b[0-9a-f]{12}-\d+\b|:\d{4,5}\b")


def test_every_type_is_in_the_table() -> None:
    rows = [(code_words(row[:1])[0], row[1], tuple(code_words(row[2:3]))) for row in table(PAGE, "All types")]
    assert [(type, fields) for type, _, fields in rows] == [(type, one.fields) for type, one in TYPES.items()], "python tools/write_docs.py writes it anew"
    assert with_events(text(PAGE)) == text(PAGE)


def test_the_bounds_are_those_of_the_code() -> None:
    page = text(PAGE)
    assert f"{hub.MOST_SUBSCRIPTIONS} subscriptions of a connection, {wanted.MOST_VALUES} names in a filter" in page
    assert f"{live.MOST_MESSAGES} messages, {sockets.MOST_PINGS} pings in a second; {sockets.MOST_FRAGMENTS} fragments" in page
    assert f"{live.MOST_MESSAGE >> 10} KiB of a message" in page
    assert f"{subscription.MOST_BYTES >> 20} MiB or {subscription.MOST_EVENTS:,} events" in page
    assert f"A comment every {live.HEARTBEAT:.0f} seconds" in page
    assert f"ring of {RING:,} events" in page
    assert f"its last {ring.MOST_KEPT:,} events, while somebody listens and for {hub.LINGER:.0f} seconds longer" in page
    assert f"waits up to {hub.LONGEST * 1_000_000 / MILLISECOND:.0f} ms" in page


def same(shown: str, said: str) -> bool:
    return CHANGING.sub("…", shown) == CHANGING.sub("…", said)


async def welcome(server: Live) -> None:
    await server.engine.submit([NewTask(type="welcome", queue="mail", payload=b"null")])


async def test_the_session_of_a_websocket(tmp_path: Path) -> None:
    session, _ = blocks(PAGE, "text")
    first, *lines = session.splitlines()
    query = re.search(r"/ws(\S*)'", first)
    assert query is not None
    async with served(f"sqlite:///{tmp_path / 'store.db'}", tmp_path) as server, server.client(query[1]) as client:
        await welcome(server)
        for line in lines:
            if line.startswith("> "):
                await client.socket.send(line[2:])
            else:
                async with asyncio.timeout(20):
                    said = await client.socket.recv(decode=True)
                assert same(line[2:], str(said))


async def test_the_session_of_curl(tmp_path: Path) -> None:
    _, session = blocks(PAGE, "text")
    first, shown = session.split("\n", 1)
    query = re.search(r"/events(\S*)'", first)
    assert query is not None
    async with served(f"sqlite:///{tmp_path / 'store.db'}", tmp_path) as server, server.stream(query[1]) as stream:
        await welcome(server)
        said = b""
        async with asyncio.timeout(20):
            while said.count(b"\n") < shown.count("\n"):
                said += await stream.response.content.readline()
    assert same(shown, said.decode())
