"""The server's memory is full: nothing new is taken, and that is said; what ends or looks after what is there goes on, and so there is room again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from taskmill.clock import MINUTE, SECOND
from taskmill.engine import Checkpoint, Claimed, Ending, Engine, Joining, Outcome, Retention, Room, Target, Term
from taskmill.engines import create
from taskmill.errors import StoreError
from taskmill.task import ErrorInfo, NewTask, TypeSettings
from tests.faults.invariants_redis import broken, dump
from tests.faults.workers import BRISK, new, place_at
from tests.servers.redis import RedisServer

NOW = Retention(completed=0, dead=0, cancelled=0)
PAYLOAD = b'"' + b"x" * 2_000 + b'"'
TYPES = {"plain": TypeSettings(), "capped": TypeSettings(limits=("few",)), "paced": TypeSettings(limits=("pace",))}


def some(n: int, type: str = "plain") -> list[NewTask]:
    return [NewTask(type=type, payload=PAYLOAD, idempotency_window=SECOND) for _ in range(n)]


def fill(server: RedisServer) -> None:
    """No byte more."""
    with server.client() as client:
        client.config_set("maxmemory", client.info("memory")["used_memory"] - 100_000)


def give_room(server: RedisServer) -> None:
    with server.client() as client:
        client.config_set("maxmemory", 0)


class Full:
    """A store whose memory is full, with tasks that run and tasks that wait."""

    def __init__(self, server: RedisServer, engine: Engine) -> None:
        self.server = server
        self.engine = engine
        self.request = 0
        self.held: list[Claimed] = []

    async def begin(self) -> None:
        await self.engine.put("limit", "few", b'{"cap": 6}')
        await self.engine.put("limit", "pace", b'{"rate": 1000, "window": 1000000}')
        await self.engine.put("outbox", "ended", b"{}")
        await self.engine.join(Joining(worker="one", queues=("default",), types=TYPES, lease=10 * MINUTE))
        await self.engine.submit([*some(150), *some(30, "capped"), *some(30, "paced")])
        self.term = await self.engine.lead("upkeep", "me")
        await self.claim()

    async def claim(self) -> None:
        self.request += 1
        self.held = list((await self.engine.claim("one", self.request, ("default",), Room(30))).tasks)
        assert len(self.held) == 30

    async def end(self, ending: Ending, **fields: object) -> None:
        outcomes = [Outcome(task=t.id, worker=t.worker, token=t.token, ending=ending, started_after=0, **fields) for t in self.held]  # type: ignore[arg-type]
        assert (await self.engine.finish(outcomes)).refused == ()


@pytest.fixture
async def full(private_redis: RedisServer) -> AsyncIterator[Full]:
    engine = create(private_redis.url())
    await engine.open()
    store = Full(private_redis, engine)
    await store.begin()
    fill(private_redis)
    yield store
    give_room(private_redis)
    assert broken(private_redis.url()) == []
    await engine.close()


ADDS: dict[str, Callable[[Full], Awaitable[object]]] = {
    "submit": lambda full: full.engine.submit(some(3)),
    "under a limit": lambda full: full.engine.submit(some(3, "capped")),
    "with a key": lambda full: full.engine.submit([NewTask(type="plain", payload=PAYLOAD, idempotency_key="key")]),
    "reserved": lambda full: full.engine.submit(some(3), reserved=True),
    "signal": lambda full: full.engine.signal(full.held[0].id, "go", PAYLOAD, "1"),
    "take": lambda full: full.engine.take("pace", 1, "1"),
}


@pytest.mark.parametrize("adds", ADDS.values(), ids=ADDS)
async def test_nothing_new_is_taken(full: Full, adds: Callable[[Full], Awaitable[object]]) -> None:
    before = dump(full.server.url()).keys
    with pytest.raises(StoreError) as refused:
        await adds(full)
    assert (refused.value.code, bool(refused.value.hint)) == ("store_full", True)
    assert dump(full.server.url()).keys == before


async def beats(full: Full) -> None:
    assert (await full.engine.heartbeat("one", full.request, [task.token for task in full.held])).lost == ()


async def saves(full: Full) -> None:
    assert await full.engine.checkpoint([Checkpoint(task=t.id, worker=t.worker, token=t.token, name="step", value=b"1") for t in full.held]) == ()


async def cancels(full: Full) -> None:
    waiting = [task.id for task in (await full.engine.list(n=5)).tasks]
    changed = (await full.engine.cancel([Target(id) for id in [*waiting, full.held[0].id]])).tasks
    assert [change.code for change in changed] == [None] * 6


async def leads(full: Full) -> None:
    assert await full.engine.lead("upkeep", "me") == full.term


async def pauses(full: Full) -> None:
    await full.engine.put("pause", "queue:default", b"{}")
    assert await full.engine.drop("pause", "queue:default")


async def joins(full: Full) -> None:
    await full.engine.join(Joining(worker="two", queues=("default",), types=TYPES))
    await full.engine.leave("two")


GOES_ON: list[Callable[[Full], Awaitable[object]]] = [
    beats,
    saves,
    cancels,
    leads,
    pauses,
    joins,
    lambda full: full.claim(),
    lambda full: full.engine.leave("one"),
    lambda full: full.engine.recover_lost(),
    lambda full: full.engine.counts(),
    lambda full: full.end(Ending.COMPLETED, result=PAYLOAD),
    lambda full: full.end(Ending.RETRY, after=SECOND, error=ErrorInfo("failed", "on purpose")),
    lambda full: full.end(Ending.DEAD, error=ErrorInfo("failed", "on purpose")),
    lambda full: full.end(Ending.WAITING, signals=("go",)),
    lambda full: full.end(Ending.RELEASED),
]


@pytest.mark.parametrize("step", GOES_ON)
async def test_what_is_there_goes_on(full: Full, step: Callable[[Full], Awaitable[object]]) -> None:
    await step(full)


async def room_again(engine: Engine) -> None:
    """What has ended is delivered and removed; then there is room."""
    term = await engine.lead("upkeep", "me")
    assert term is not None
    last = await delivered(engine, term)
    assert last
    while (await engine.prune(200, term, NOW)).more:
        pass


async def delivered(engine: Engine, term: Term) -> str:
    last = ""
    while entries := await engine.outbox("ended", last, 100, term):
        last = entries[-1].cursor
    return last


async def test_there_is_room_again(full: Full) -> None:
    await full.end(Ending.COMPLETED)
    for _ in range(5):
        await full.claim()
        await full.end(Ending.COMPLETED)
    await room_again(full.engine)
    [answer] = await full.engine.submit(some(1))
    assert answer.error is None


async def test_a_worker_works_on(tmp_path: Path, private_redis: RedisServer) -> None:
    """All that was accepted is completed; nobody dies of it, and nothing is lost."""
    url = private_redis.url()
    async with place_at(tmp_path, BRISK, url=url) as place, place.worker() as worker:
        children = await worker.joined()
        gate = place.gate("gate")
        tasks = await place.submit(*(new("hold", gate=gate.path) for _ in range(3)), *(new("work", ms=1, delay=SECOND) for _ in range(200)))
        await place.effects.count(3, "begin", tasks=tasks)
        fill(private_redis)
        with pytest.raises(StoreError, match="out of memory"):
            await place.client.submit([new("work", ms=1)])
        await asyncio.sleep(2.5)  # the fault itself: longer than a lease
        gate.let(3)
        await place.all_ended(tasks)
        give_room(private_redis)
        await place.all_ended(await place.submit(new("work", ms=1)))
        assert worker.children() == children
        assert await worker.stop() == 0
        gate.close()
        assert {line.attempt for line in place.effects.of("begin")} == {1}
    assert broken(url) == []
