"""What can happen to a server under those who use it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator

import pytest

from taskmill.engine import Engine
from taskmill.engines import create
from taskmill.errors import StoreError
from taskmill.task import State, Task
from tests.conformance.tools import Worker, ids_of, submit_many, submit_one, worker
from tests.servers import redis as servers
from tests.servers.redis import RedisServer

SOON = 30.0
"""Seconds after which something never comes; nothing is judged by it."""


@pytest.fixture
def durable(private_redis: RedisServer) -> Iterator[RedisServer]:
    """A server of one's own that writes every step to its disk before it answers."""
    with servers.started(appendonly="yes", appendfsync="always") as server:
        yield server


async def opened(url: str) -> Engine:
    engine = create(url)
    await engine.open()
    return engine


async def until_it_answers(one: Worker) -> None:
    deadline = time.monotonic() + SOON
    while True:
        try:
            await one.beat()
        except StoreError:
            assert time.monotonic() < deadline, "it never came back"
            await asyncio.sleep(0.05)
        else:
            return


async def test_scripts_that_the_server_forgot_are_sent_again(private_redis: RedisServer) -> None:
    engine = await opened(private_redis.url())
    one = await worker(engine)
    ids = await submit_many(engine, 3)
    with private_redis.client() as client:
        client.script_flush()
    tasks = await one.claim(3)
    assert ids_of(tasks) == ids
    await one.done(*tasks)
    await engine.close()


async def test_connections_that_the_server_cuts(private_redis: RedisServer) -> None:
    """The first question after it may fail, and says that it may have been applied; asked again it is answered, and nothing is there twice."""
    engine = await opened(private_redis.url())
    one = await worker(engine)
    [id] = await submit_many(engine, 1)
    for _ in range(20):
        with private_redis.client() as client:
            client.client_kill_filter(_type="normal", skipme=True)
        one.request += 1
        for _ in range(3):
            try:
                found = await one.claim_again(1)
                break
            except StoreError:
                continue
        if found:
            break
    assert ids_of(found) == [id]
    await one.done(*found)
    [task] = await engine.get([id])
    assert isinstance(task, Task)
    assert (task.state, task.executions) == (State.COMPLETED, 1)
    await engine.close()


async def test_a_store_that_was_emptied_is_an_alarm(private_redis: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    engine = await opened(private_redis.url())
    one = await worker(engine)
    await submit_one(engine)
    [held] = await one.claim(1)
    with private_redis.client() as client:
        client.flushall()
    with caplog.at_level(logging.CRITICAL):
        await engine.recover_lost()
    assert "was emptied" in caplog.text
    assert not (await one.beat()).known
    [refused] = (await one.finish(held)).refused
    assert refused.code == "not_found"
    other = await worker(engine)
    await submit_one(engine)
    [next_one] = await other.claim(1)
    assert next_one.token > held.token
    await engine.close()


async def test_killed_again_and_again_nothing_acknowledged_is_lost(durable: RedisServer) -> None:
    """Every step is on its disk when it is answered; a step whose answer was lost is asked again."""
    engine = await opened(durable.url())
    one = await worker(engine)
    accepted: list[str] = []
    done: list[str] = []
    for _ in range(5):
        accepted += await submit_many(engine, 20)
        held = await one.claim(10)
        await one.done(*held[:5])
        done += ids_of(held[:5])
        durable.stop("kill")
        with pytest.raises(StoreError):
            await submit_one(engine)
        durable.start()
        await until_it_answers(one)
        await one.done(*held[5:])
        done += ids_of(held[5:])
    states = {task.id: task.state for task in await engine.get(accepted) if isinstance(task, Task)}
    assert states == {id: State.COMPLETED if id in done else State.PENDING for id in accepted}
    await engine.close()


async def test_a_paused_server_costs_nobody_a_lease(private_redis: RedisServer) -> None:
    """Beats and recovery stand still together; the pause is the store's, and counts no crash."""
    engine = await opened(private_redis.url())
    one = await worker(engine, lease=1_000_000)
    [id] = await submit_many(engine, 1)
    [held] = await one.claim(1)
    await engine.recover_lost()
    with private_redis.client() as client:
        client.execute_command("CLIENT", "PAUSE", 2_500, "ALL")
    await asyncio.gather(engine.recover_lost(), one.beat())
    await engine.recover_lost()
    assert (await one.beat()).lost == ()
    await one.done(held)
    [task] = await engine.get([id])
    assert isinstance(task, Task)
    assert (task.state, task.crashes, task.executions) == (State.COMPLETED, 0, 1)
    await engine.close()


async def test_an_outbox_cursor_of_before_passes_nothing_by(private_redis: RedisServer) -> None:
    """A server that comes back without its last writes gives higher numbers all the same: what is owed now is not taken for delivered."""

    async def owed(after: str) -> list[tuple[str, str]]:
        engine = await opened(private_redis.url())
        await engine.put("outbox", "ended", b"{}")
        one = await worker(engine)
        [id] = await submit_many(engine, 1)
        await one.done(*await one.claim(1))
        term = await engine.lead("outbox", "me")
        assert term is not None
        found = [(entry.cursor, entry.subject) for entry in await engine.outbox("ended", after, 10, term)]
        await engine.close()
        assert [subject for _, subject in found] == [id]
        return found

    [(cursor, _)] = await owed("")
    private_redis.stop("kill")
    private_redis.start()
    await owed(cursor)
