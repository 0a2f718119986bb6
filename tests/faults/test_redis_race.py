"""Every script of the Redis engine in a race, and a model that judges it afterwards: from what the store said that happened, from what everybody was told, and
from what is in the store in the end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from taskmill.engine import Filter
from taskmill.engines.redis.scripts import USES, script
from taskmill.events import Kind
from taskmill.task import LIVE
from tests.faults.invariants_redis import broken
from tests.faults.leader import Leader, Pause, prepare_schedule
from tests.faults.processes import GENEROUS
from tests.faults.race import LEASE, LIMITS, TERM, Claimer, Race, Submitter
from tests.faults.race_model import Replay
from tests.faults.race_upkeep import ASKED, Asker, Operator
from tests.faults.recorded import Recorded
from tests.history import Bounds, Recorder, check, events, load
from tests.servers.redis import RedisServer

CLAIMERS = 8
BOUNDS = Bounds(lease=LEASE // 2, max_crashes=1_000)

NOT_HERE = frozenset({"adopt", "attach", "fell", "results", "upgrade", "watch", "whole", "yield"})
"""Scripts of a Cluster, of an archive, of retention and of an upgrade."""


async def hear(race: Race, client: Recorded) -> None:
    """All that happens, until the end is told."""
    async with contextlib.aclosing(await client.engine.events()) as told:
        async for event in told:
            race.told.append(event)
            if event.kind is Kind.SETTING_CHANGED and event.subject == "note/the-end":
                return


@contextlib.asynccontextmanager
async def prepared(url: str, history: Path, seed: int) -> AsyncIterator[Race]:
    with Recorder(history) as recorder:
        race = Race(url, recorder, seed)
        client = await race.client()
        hearing = asyncio.create_task(hear(race, await race.client()))
        while not race.told:  # from now on everything is kept for it
            await client.engine.put("note", "begin", str(recorder.now()).encode())
            await asyncio.sleep(0.01)
        for name, limit in LIMITS.items():
            await race.put(client, name, limit)
        await client.put_limit("tight", cap=2)
        await client.engine.put("limit", "asked", f'{{"rate": {ASKED.rate}, "window": {ASKED.window}}}'.encode())
        await client.engine.put("outbox", "ended", b"{}")
        await prepare_schedule(client)
        try:
            yield race
            await client.engine.put("note", "the-end", b"{}")
            await asyncio.wait_for(hearing, GENEROUS)
        finally:
            hearing.cancel()
            await asyncio.gather(hearing, return_exceptions=True)
            await race.close()


async def upkeep(race: Race, leader: Leader) -> None:
    """A leader that now and then is slower than its term, or resigns."""
    while not race.over.is_set():
        await leader.round()
        if leader.term is not None and leader.rounds % 7 == 0:
            with race.recorder.calling(events.Lead(role=leader.term.role, holder=leader.holder, term=leader.term.number)) as (call,):
                await leader.client.engine.resign(leader.term)
                call.answer("resigned")
        await asyncio.sleep(0.05 + (leader.rounds % 5) * 0.06)


async def recover(race: Race, client: Recorded) -> None:
    race.lost_workers |= set((await client.recover_lost()).lost)


async def run(race: Race, tasks: int) -> list[tuple[int, int]]:
    """Until so many tasks are known, with everything going on; then until nothing lives. When rates were granted."""
    claimers = [Claimer(race, await race.client(), n) for n in range(CLAIMERS)]
    submitters = [Submitter(race, await race.client(), n) for n in range(2)]
    operator = Operator(race, await race.client())
    askers = [Asker(submitter.client, n) for n, submitter in enumerate(submitters)]
    leaders = [Leader(await race.client(), f"leader-{n}", TERM, Pause("", lambda *_: None)) for n in range(2)]
    for claimer in claimers:
        await claimer.join()

    async def submit(submitter: Submitter) -> None:
        await submitter.batch()
        if len(race.planned) > tasks:
            race.over.set()

    async with asyncio.TaskGroup() as group:
        for claimer in claimers:
            group.create_task(race.until_over(claimer.turn))
        for submitter, asker in zip(submitters, askers, strict=True):
            group.create_task(race.until_over(lambda submitter=submitter: submit(submitter), 0.02))  # type: ignore[misc]
            group.create_task(race.until_over(asker.ask, 0.01))
        group.create_task(race.until_over(operator.act, 0.01))
        for leader in leaders:
            group.create_task(upkeep(race, leader))
        for client in (claimers[0].client, operator.client):
            group.create_task(race.until_over(lambda client=client: recover(race, client), 0.05))  # type: ignore[misc]
    await operator.end()
    await claimers[0].too_late()
    await drained(race, claimers)
    return sorted(moment for asker in askers for moment in asker.granted)


async def drained(race: Race, claimers: list[Claimer]) -> None:
    for claimer in claimers:
        claimer.calm = True
        await claimer.leave()
    async with asyncio.timeout(GENEROUS):
        while True:
            found = await asyncio.gather(*(claimer.turn() for claimer in claimers), *(claimer.come_late() for claimer in claimers))
            await recover(race, claimers[0].client)
            if not any(found[:CLAIMERS]) and not (await claimers[0].client.engine.list(Filter(states=LIVE), n=1)).tasks:
                return


async def judged(url: str, history: Path, race: Race, granted: list[tuple[int, int]]) -> Replay:
    replay = Replay(race.planned, race.puts, race.requeued)
    for event in race.told:
        assert event.kind is not Kind.RESYNC or event is race.told[0]
        replay.feed(event)
    assert replay.wrong == []
    assert replay.running == {}
    assert {task for task, times in replay.completed.items() if times > 1} <= race.requeued
    assert check(load(history), BOUNDS) == []
    assert broken(url) == []
    rate, window = ASKED.rate or 0, ASKED.window
    assert [first for first, last in zip(granted, granted[rate:], strict=False) if last[1] - first[0] < window] == []
    return replay


async def race_of(tmp_path: Path, url: str, seed: int, tasks: int) -> tuple[Race, Replay]:
    async with prepared(url, tmp_path / "history", seed) as race:
        granted = await run(race, tasks)
    return race, await judged(url, tmp_path / "history", race, granted)


@pytest.mark.parametrize("seed", range(3))
async def test_a_race(tmp_path: Path, private_redis: RedisServer, seed: int) -> None:
    race, replay = await race_of(tmp_path, private_redis.url(), seed, 400)
    with private_redis.client() as client:
        names = sorted(USES.keys() - NOT_HERE)
        ran = client.script_exists(*(script(name).sha for name in names))
    assert [name for name, each in zip(names, ran, strict=True) if not each] == []
    assert race.refused_late > 0
    assert replay.most["one"] == 1
    assert replay.most["three"] > 1


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 110))
async def test_a_long_race(tmp_path: Path, private_redis: RedisServer, seed: int, capsys: pytest.CaptureFixture[str]) -> None:
    race, replay = await race_of(tmp_path, private_redis.url(), seed, 6_000)
    with capsys.disabled():
        print(f"\nseed {seed}: {replay.starts} starts, {race.refused_late} late ends refused, most at once {dict(replay.most)}")
