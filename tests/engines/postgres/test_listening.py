"""Listening: one connection for everybody, and a word to everybody after a gap."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from taskmill.engines.postgres.connecting import Pool
from taskmill.errors import StoreError
from tests.engines.postgres.tools import opened
from tests.engines.postgres.wire import wire

LISTENERS = "SELECT count(DISTINCT pid) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE '%LISTEN%' AND pid <> pg_backend_pid()"


@pytest.fixture
async def pool(empty_url: str) -> AsyncIterator[Pool]:
    async with opened(empty_url) as made:
        yield made


class Ear:
    """What one listener was told, in order; a gap is told as None."""

    def __init__(self) -> None:
        self._told: asyncio.Queue[str | None] = asyncio.Queue()

    def heard(self, said: str) -> None:
        self._told.put_nowait(said)

    def lost(self) -> None:
        self._told.put_nowait(None)

    async def next(self) -> str | None:
        return await asyncio.wait_for(self._told.get(), 60)

    def silent(self) -> bool:
        return self._told.empty()


async def say(pool: Pool, channel: str, text: str) -> None:
    await pool.fetch("SELECT pg_notify($1, $2)", channel, text)


async def cut_listeners(pool: Pool) -> None:
    assert await pool.fetchval(LISTENERS.replace("count(DISTINCT pid)", "count(pg_terminate_backend(pid))")) == 1


async def test_what_is_said_on_a_channel_is_heard_by_those_who_listen_to_it(pool: Pool) -> None:
    ears = {"tasks": Ear(), "Odd Name": Ear()}
    for channel, ear in ears.items():
        assert await pool.listen(channel, ear.heard, ear.lost) is not None
    also = Ear()
    await pool.listen("tasks", also.heard, also.lost)
    for channel in ears:
        await say(pool, channel, f"to {channel}")
    assert [await ear.next() for ear in (*ears.values(), also)] == ["to tasks", "to Odd Name", "to tasks"]
    assert all(ear.silent() for ear in (*ears.values(), also))


async def test_one_connection_listens_for_all(pool: Pool) -> None:
    for number in range(3):
        await pool.listen(f"channel{number}", print, print)
    assert await pool.fetchval(LISTENERS) == 1


async def test_after_a_gap_everybody_is_told_and_hears_again(pool: Pool) -> None:
    one, other = Ear(), Ear()
    await pool.listen("one", one.heard, one.lost)
    await pool.listen("other", other.heard, other.lost)
    for _ in range(2):
        await cut_listeners(pool)
        assert [await one.next(), await other.next()] == [None, None]
        await say(pool, "one", "1")
        await say(pool, "other", "2")
        assert [await one.next(), await other.next()] == ["1", "2"]


async def test_a_server_that_is_away_for_longer(empty_url: str, pool: Pool) -> None:
    async with wire(*pool.target.hosts[0]) as between, opened(empty_url, hosts=(("127.0.0.1", between.port),)) as other:
        ear, late = Ear(), Ear()
        await other.listen("tasks", ear.heard, ear.lost)
        between.refuse()
        while await pool.fetchval(LISTENERS):
            pass
        await other.listen("late", late.heard, late.lost)
        assert ear.silent()
        await between.listen()
        assert [await ear.next(), await late.next()] == [None, None]
        await say(pool, "late", "heard")
        assert await late.next() == "heard"


async def test_whoever_ends_listening_hears_nothing_more(pool: Pool) -> None:
    gone, stays = Ear(), Ear()
    end = await pool.listen("tasks", gone.heard, gone.lost)
    await pool.listen("tasks", stays.heard, stays.lost)
    assert end is not None
    await end()
    await end()
    await say(pool, "tasks", "hello")
    assert await stays.next() == "hello"
    assert gone.silent()


async def test_when_nobody_listens_there_is_no_connection_for_it(pool: Pool) -> None:
    ear = Ear()
    ends = [await pool.listen(channel, ear.heard, ear.lost) for channel in ("a", "b")]
    for end in ends:
        assert end is not None
        await end()
    while await pool.fetchval(LISTENERS):
        pass
    await pool.listen("a", ear.heard, ear.lost)
    await say(pool, "a", "again")
    assert await ear.next() == "again"


async def test_a_listener_that_breaks_does_not_keep_the_pool_from_closing(empty_url: str, pool: Pool) -> None:
    async with wire(*pool.target.hosts[0]) as between, opened(empty_url, hosts=(("127.0.0.1", between.port),)) as other:
        await other.listen("tasks", print, print)
        between.refuse()
        while await pool.fetchval(LISTENERS):
            pass
        await other.close()
        with pytest.raises(StoreError):
            await other.listen("tasks", print, print)
