"""The step is done and its answer comes half, or not at all, because the wire was cut: asked again, it gives the same end, once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from typing_extensions import override

from taskmill import codec
from taskmill.clock import SECOND
from taskmill.engine import Checkpoint, Claim, Claimed, Ending, Joining, Outcome, Room, Status, Target
from taskmill.engines import create
from taskmill.errors import AnswerLost
from taskmill.task import NewTask, State, Task, TypeSettings
from tests.engines.postgres.wire import Wire, wire
from tests.faults.clients import at_work, judged
from tests.faults.growing import Growing
from tests.faults.judging import judge
from tests.faults.processes import GENEROUS
from tests.faults.recorded import Recorded, until_answered
from tests.faults.workers import BRISK, Load, place_at, verdict
from tests.faults.workload import client_of
from tests.history import Bounds, events
from tests.servers.redis import RedisServer

MOST = 500
"""Words in one deed, by far."""
LARGE = 40_000
"""Bytes of a payload: the answer of a claim of several is not one word."""


class Cutting(Wire):
    """Cuts all connections at the server's n-th word from now on: before it, or, `half`, in the middle of it."""

    left = 0
    half = False
    every = 0
    """Not once but again and again, after so many words."""

    @override
    async def _answer(self, server: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        while data := await server.read(65_536):
            self.left -= 1
            if self.left == 0:
                self.left = self.every
                if self.half:
                    client.write(data[: len(data) // 2])
                    await client.drain()
                self.cut()
                return
            client.write(data)
        client.close()


@contextlib.asynccontextmanager
async def cutting(server: RedisServer) -> AsyncIterator[tuple[Cutting, str]]:
    wire = Cutting("127.0.0.1", server.port)
    await wire.listen()
    try:
        yield wire, server.url().replace(f":{server.port}/", f":{wire.port}/")
    finally:
        wire.refuse()
        await wire.gone()


def new(size: int = 10) -> NewTask:
    return NewTask(type="work", payload=codec.encode("x" * size))


class Bench:
    """A worker that is known to the store, and asks until it is answered."""

    def __init__(self, client: Recorded) -> None:
        self.client = client
        self.engine = client.engine
        self.number = 0

    async def submitted(self, n: int, size: int = 10) -> list[str]:
        tasks = [new(size) for _ in range(n)]
        answers = await until_answered(lambda: self.client.submit(tasks))
        assert {answer.status for answer in answers} <= {Status.CREATED, Status.DUPLICATE}
        return [task.id for task in tasks]

    async def claimed(self, n: int, size: int = 10) -> tuple[Claimed, ...]:
        ids = await self.submitted(n, size)
        claim = await self.claim(n)
        assert sorted(task.id for task in claim.tasks) == sorted(ids)
        assert [task.payload for task in claim.tasks] == [codec.encode("x" * size)] * n
        return claim.tasks

    async def claim(self, n: int) -> Claim:
        self.number += 1
        return await until_answered(lambda: self.client.claim("worker", self.number, ("default",), Room(n)))

    async def end(self, tasks: tuple[Claimed, ...], ending: Ending = Ending.COMPLETED, **fields: object) -> None:
        outcomes = [
            Outcome(task=task.id, worker="worker", token=task.token, ending=ending, started_after=0, **fields)  # type: ignore[arg-type]
            for task in tasks
        ]
        assert (await until_answered(lambda: self.client.finish(outcomes))).refused == ()

    async def states(self, *tasks: str) -> set[tuple[State, int]]:
        found = await until_answered(lambda: self.engine.get(tasks))
        assert all(isinstance(task, Task) for task in found)
        return {(task.state, task.executions) for task in found if isinstance(task, Task)}


# Deeds: each is done from its beginning to its end, and leaves nothing behind that lives.


async def claims_large_ones(bench: Bench) -> None:
    tasks = await bench.claimed(5, LARGE)
    await bench.end(tasks)
    assert await bench.states(*(task.id for task in tasks)) == {(State.COMPLETED, 1)}


async def claims_with_all_they_have(bench: Bench) -> None:
    """Checkpoints, signals and results of others are read after the claim; they come whole, or the claim is asked for again."""
    [task] = await bench.claimed(1)
    entry = Checkpoint(task=task.id, worker="worker", token=task.token, name="step", value=codec.encode("y" * 100))
    assert await until_answered(lambda: bench.client.checkpoint([entry])) == ()
    assert await until_answered(lambda: bench.engine.signal(task.id, "go", b"1", "first")) == 1
    child = new()
    await bench.end((task,), Ending.WAITING, then=(child,))
    [first] = (await bench.claim(1)).tasks
    assert first.id == child.id
    await bench.end((first,), result=b'"z"')
    [again] = (await bench.claim(1)).tasks
    assert (again.id, dict(again.checkpoints), [signal.name for signal in again.signals]) == (task.id, {"step": codec.encode("y" * 100)}, ["go"])
    assert [(edge.task, edge.result) for edge in again.results] == [(child.id, b'"z"')]
    await bench.end((again,))


async def cancels(bench: Bench) -> None:
    [task] = await bench.submitted(1)
    [found] = await until_answered(lambda: bench.engine.get([task]))
    assert isinstance(found, Task)
    target = Target(task, found.version)
    with bench.client.recorder.calling(events.Operate(verb="cancel", task=task, version=found.version)) as (call,):
        changes = await until_answered(lambda: bench.engine.cancel([target]))
        call.answer("applied" if changes.tasks[0].code is None else "refused")
    assert await bench.states(task) == {(State.CANCELLED, 0)}


async def takes(bench: Bench) -> None:
    """A window of its own: two are there, and two are given, however often they are asked for."""
    bench.number += 1
    name = f"pace:{bench.number}"
    taken = [await until_answered(lambda n=n: bench.engine.take(name, 1, f"{name} {n}")) for n in range(3)]  # type: ignore[misc]
    assert [each.granted for each in taken] == [True, True, False]


async def leads(bench: Bench) -> None:
    bench.number += 1
    role = f"role-{bench.number}"
    term = await until_answered(lambda: bench.engine.lead(role, "me"))
    assert term is not None
    assert await until_answered(lambda: bench.engine.lead(role, "me")) == term, "a term that began twice"


Deed = Callable[[Bench], Awaitable[None]]
DEEDS: tuple[Deed, ...] = (claims_large_ones, claims_with_all_they_have, cancels, takes, leads)


async def everywhere(bench: Bench, wire: Cutting, deed: Deed) -> int:
    """The deed with the wire cut at its first word, at its second, … until it ends before; how many that were."""
    for n in range(1, MOST):
        wire.left = n
        await deed(bench)
        if wire.left > 0:
            wire.left = 0
            return n
    raise AssertionError("it never ends")


@pytest.mark.parametrize("half", [False, True], ids=["before", "within"])
@pytest.mark.parametrize("deed", DEEDS)
async def test_the_wire_is_cut_at_any_answer(tmp_path: Path, private_redis: RedisServer, deed: Deed, half: bool) -> None:
    history = tmp_path / "history"
    async with cutting(private_redis) as (wire, url), client_of(url, history) as client:
        bench = Bench(client)
        await client.engine.put("limit", "pace", b'{"rate": 2, "window": 3600000000}')
        await client.join(Joining(worker="worker", queues=("default",), types={"work": TypeSettings()}))
        wire.half = half
        assert await everywhere(bench, wire, deed) > 1
    await judge(private_redis.url(), history, Bounds())


async def test_an_answer_that_comes_too_late_is_nobodys(private_redis: RedisServer) -> None:
    """Who waited in vain is told so; what comes on that connection afterwards is not taken for the answer to another question."""
    async with wire("127.0.0.1", private_redis.port) as slow:
        url = private_redis.url().replace(f":{private_redis.port}/", f":{slow.port}/")
        engine = create(f"{url}&busy_timeout=1s")
        await engine.open()
        tasks = [new() for _ in range(12)]
        slow.answers.clear()
        answers = await asyncio.gather(*(engine.submit([task]) for task in tasks), return_exceptions=True)
        assert {type(answer) for answer in answers} == {AnswerLost}
        slow.answers.set()
        for task in tasks:
            [answer] = await until_answered(lambda task=task: engine.submit([task]))  # type: ignore[misc]
            assert answer.id == task.id
        await engine.close()


async def test_an_engine_is_closed_while_its_server_says_nothing(private_redis: RedisServer) -> None:
    """Whoever waits for work, for an end or for events waits for answers that never come."""
    async with wire("127.0.0.1", private_redis.port) as slow:
        url = private_redis.url().replace(f":{private_redis.port}/", f":{slow.port}/")
        engine = create(f"{url}&busy_timeout=1s")
        await engine.open()
        await engine.join(Joining(worker="worker", queues=("default",), types={"work": TypeSettings()}))
        hints = await engine.wakeups()
        [answer] = await engine.submit([new()])
        waiting = asyncio.create_task(engine.wait([answer.id], 60 * SECOND))
        await anext(aiter(hints))
        slow.answers.clear()
        await asyncio.sleep(0.1)  # everybody waits for an answer now
        async with asyncio.timeout(GENEROUS):
            await hints.aclose()
            await engine.close()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)


@pytest.mark.parametrize("half", [False, True], ids=["before", "within"])
async def test_the_wire_is_cut_under_load(tmp_path: Path, private_redis: RedisServer, half: bool) -> None:
    history = tmp_path / "history"
    async with cutting(private_redis) as (wire, url):
        async with at_work(url, history) as programs:
            growing = Growing(history)
            wire.half, wire.every, wire.left = half, 97, 97
            await growing.completed(500)
            wire.every = wire.left = 0
            await growing.goes_on()
        recorded = await judged(private_redis.url(), history, programs)
    assert any(isinstance(event, events.Claim) and event.answer == "lost" for event in recorded)


async def test_workers_go_on(tmp_path: Path, private_redis: RedisServer) -> None:
    async with cutting(private_redis) as (wire, url), place_at(tmp_path, BRISK, url=url) as place, place.worker() as worker:
        children = await worker.joined()
        growing = Growing(place.history)
        async with Load(place):
            wire.half, wire.every, wire.left = True, 41, 41
            await growing.completed(100)
            wire.every = wire.left = 0
            await growing.goes_on()
        assert worker.children() == children
        assert await worker.stop() == 0
        place.store = private_redis.url()
        await verdict(place)
