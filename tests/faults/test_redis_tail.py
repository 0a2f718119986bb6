"""The server comes back without its last writes. What was acknowledged before them is there and agrees with itself; of the rest nobody is told anything that is
not so: late finishers are refused, no token comes again, and everybody goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

from taskmill.clock import SECOND
from taskmill.engine import Claimed, Ending, Filter, Outcome, Room
from taskmill.task import LIVE, NewTask, Task
from tests.faults.clients import LEASE, at_work
from tests.faults.growing import Growing
from tests.faults.invariants_redis import broken
from tests.faults.recorded import Recorded, until_answered
from tests.faults.redis_tools import WAYS, Losing, losing
from tests.faults.workers import BRISK, new, place_at
from tests.faults.workload import Worker, batch, client_of, prepare
from tests.history import Bounds, check, load
from tests.servers.redis import RedisServer

STILL = frozenset({"token_order", "foreign_type", "early_start", "key_answer", "deposed_write"})
"""Rules that hold also over what was lost; a store that forgot an end may give the task once more."""


def some(n: int) -> list[NewTask]:
    return [NewTask(type="plain", payload=b'{"do":"complete"}', priority=3) for _ in range(n)]


class Holder:
    """A worker that claims and finishes when it is told to."""

    def __init__(self, client: Recorded) -> None:
        self.client = client
        self.worker = Worker(client, 60 * SECOND)

    async def claim(self, n: int) -> list[Claimed]:
        self.worker.request += 1
        claim = await until_answered(lambda: self.client.claim(self.worker.name, self.worker.request, ("default",), Room(n)))
        assert len(claim.tasks) == n
        return list(claim.tasks)

    async def complete(self, tasks: Sequence[Claimed]) -> list[str]:
        outcomes = [Outcome(task=task.id, worker=task.worker, token=task.token, ending=Ending.COMPLETED, started_after=0) for task in tasks]
        refused = {refusal.task: refusal.code for refusal in (await until_answered(lambda: self.client.finish(outcomes))).refused}
        return [refused.get(task.id, "applied") for task in tasks]

    async def claim_more(self) -> list[Claimed]:
        """Some that are new, completed."""
        await until_answered(lambda: self.client.submit(some(3)))
        if not await self.worker.beat():
            await self.worker.join()
        claimed = await self.claim(3)
        assert await self.complete(claimed) == ["applied"] * 3
        return claimed


async def judge_holders(one: Holder, held: list[Claimed], tail: list[Claimed], *, sure: bool) -> None:
    """Leases of before the mark are current, also where their end was forgotten; of those behind it nothing is known, or, where the loss began later, all."""
    assert await one.complete(held[4:]) == ["applied"] * 6
    assert set(await one.complete(held[:4])) == {"applied"}
    answers = await one.complete(tail)
    assert set(answers) <= ({"not_found", "stale_lease"} if sure else {"not_found", "stale_lease", "applied"})


@pytest.mark.parametrize("way", WAYS)
async def test_the_last_writes_are_gone(tmp_path: Path, private_redis: RedisServer, way: str) -> None:
    history, random = tmp_path / "history", Random(1)
    async with losing(way) as place, client_of(place.url, history) as client:
        await prepare(client)
        one = Holder(client)
        await one.worker.join()
        early = [task for _ in range(5) for task in batch(random)]
        kept = [answer.id for answer in await client.submit([*some(10), *early])]
        held = await one.claim(10)
        assert await one.complete(held[:4]) == ["applied"] * 4
        await asyncio.to_thread(place.mark)
        late = [answer.id for answer in await client.submit([*some(10), *batch(random)])][:10]
        tail = await one.claim(10)
        assert await one.complete([*held[4:6], *tail[:2]]) == ["applied"] * 4
        await asyncio.to_thread(place.lose)
        await until_answered(client.recover_lost)
        assert broken(place.server.url()) == []
        assert all(isinstance(task, Task) for task in await client.engine.get(kept))
        await judge_holders(one, held, tail, sure=way != "file")
        assert min(task.token for task in await one.claim_more()) > max(task.token for task in [*held, *tail])
        await one.worker.drain()
        assert broken(place.server.url()) == []
        assert (await client.engine.list(Filter(states=LIVE), n=1)).tasks == ()
        assert way == "file" or await client.engine.get(late) == (None,) * 10
    assert [violation for violation in check(load(history), Bounds(lease=0)) if violation.rule in STILL] == []


async def loses_again_and_again(tmp_path: Path, place: Losing, n: int) -> None:
    """Clients at work in processes of their own; they come to their end by themselves, and nothing lives any more."""
    history, random = tmp_path / "history", Random(n)
    async with at_work(place.url, history):
        growing = Growing(history)
        for _ in range(n):
            await growing.completed(random.randrange(20, 100))
            await asyncio.to_thread(place.mark)
            await growing.completed(random.randrange(5, 60))
            await asyncio.to_thread(place.lose)
            await growing.goes_on()
    async with client_of(place.url, history) as client:
        assert (await client.engine.list(Filter(states=LIVE), n=1)).tasks == ()
    assert broken(place.server.url()) == []
    assert [violation for violation in check(load(history), Bounds(lease=LEASE // 2)) if violation.rule in STILL] == []


@pytest.mark.parametrize("way", WAYS)
async def test_the_last_writes_of_clients_at_work_are_gone(tmp_path: Path, private_redis: RedisServer, way: str) -> None:
    async with losing(way) as place:
        await loses_again_and_again(tmp_path, place, 1 if way == "replica" else 2)


@pytest.mark.chaos
@pytest.mark.parametrize("way", WAYS[:2])
async def test_the_last_writes_are_gone_again_and_again(tmp_path: Path, private_redis: RedisServer, way: str) -> None:
    async with losing(way) as place:
        await loses_again_and_again(tmp_path, place, 20)


@pytest.mark.parametrize("way", WAYS)
async def test_a_worker_goes_on_without_the_last_writes(tmp_path: Path, private_redis: RedisServer, way: str) -> None:
    """The same processes; what was there before the mark and what comes after the loss is completed."""
    async with losing(way) as server, place_at(tmp_path, BRISK, url=server.url) as place, place.worker() as worker:
        children = await worker.joined()
        gate = place.gate("gate")
        early = await place.submit(*(new("hold", gate=gate.path) for _ in range(3)), *(new("work", ms=1) for _ in range(5)))
        await place.effects.count(8, "begin", tasks=early)
        await asyncio.to_thread(server.mark)
        tail = await place.submit(*(new("work", ms=1) for _ in range(20)))
        await place.effects.count(20, "end", tasks=tail)
        await asyncio.to_thread(server.lose)
        gate.let(3)
        after = await place.submit(*(new("work", ms=1) for _ in range(20)))
        await place.all_ended([*early, *after])
        found = [task for task in await place.engine.get(tail) if isinstance(task, Task)]
        await place.all_ended([task.id for task in found])
        assert worker.children() == children
        assert await worker.stop() == 0
        gate.close()
        assert broken(server.server.url()) == []
