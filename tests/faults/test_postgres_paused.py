"""Clients and servers that are paused: who comes back too late has empty hands; what the store itself slept through costs nobody a lease."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from taskmill import codec
from taskmill.clock import MILLISECOND, SECOND
from taskmill.engine import Term
from taskmill.engines.postgres import connecting, settings
from taskmill.engines.postgres.submit import submit
from taskmill.errors import StaleTerm, StoreError
from taskmill.task import NewTask, State, Task
from tests.faults.judging import judge
from tests.faults.leader import EVERY, prepare_schedule
from tests.faults.postgres_tools import paused, with_store
from tests.faults.processes import Program, started
from tests.faults.recorded import Recorded
from tests.faults.workers import BRISK, Load, new, place_at, verdict
from tests.faults.workload import client_of, prepare
from tests.history import Bounds, events
from tests.history.events import Event
from tests.servers.postgres import Postgres

LEASE = SECOND
LONGER_LEASE = 2 * SECOND
"""For those who must not lose theirs, on a busy machine too."""
TERM = SECOND
BOUNDS = Bounds(lease=LEASE // 2, max_crashes=1_000)
KINDS = ("plain", "capped", "lined")
"""In the plain line, under a limit, in order."""


def one_of_each() -> list[NewTask]:
    return [NewTask(type=kind, payload=codec.encode({"do": "complete", "user": "ann"})) for kind in KINDS]


@contextlib.asynccontextmanager
async def prepared(url: str, history: Path) -> AsyncIterator[Recorded]:
    async with client_of(url, history) as client:
        await prepare(client)
        yield client


# A client


@pytest.mark.parametrize("meanwhile", ["done", "running"])
async def test_a_worker_paused_past_its_lease(tmp_path: Path, postgres_url: str, meanwhile: str) -> None:
    """When it comes back, another has done its tasks, or is at it."""
    history, tasks = tmp_path / "history", one_of_each()
    async with prepared(postgres_url, history) as client:
        await client.submit(tasks)
    options = ("--lease", LEASE, "--batches", len(tasks))
    async with started("sit", postgres_url, history, *options) as first:
        held = await first.hear("claimed")
        first.tell("pause")
        await first.hear("pausing")
        async with started("sit", postgres_url, history, *options) as second:
            assert sorted(await second.hear("claimed")) == sorted(held)
            if meanwhile == "done":
                second.tell("finish")
                assert await second.hear("answers") == ["applied"] * len(tasks)
            first.resume()
            answers = await first.hear("answers")
            await first.done()
            if meanwhile == "running":
                second.tell("finish")
                assert await second.hear("answers") == ["applied"] * len(tasks)
            await second.done()
    recorded, reads = await judge(postgres_url, history, BOUNDS)
    assert sorted(held) == sorted(task.id for task in tasks)
    assert answers == ["stale_lease"] * len(tasks)
    assert len([event for event in recorded if isinstance(event, events.Finish) and event.answer == "stale"]) == 2 * len(tasks)
    assert {(read.state, read.crashes, read.executions) for read in reads.values()} == {("completed", 1, 2)}


# The server


async def pauses(tmp_path: Path, server: Postgres, lengths: Sequence[float]) -> None:
    """Two workers hold tasks, beat, and look after others all the time. Whatever of that the server was at when it was stopped, nobody is taken for dead."""
    url, history = server.url(), tmp_path / "history"
    async with prepared(url, history) as client:
        tasks = one_of_each() + one_of_each()[:1]
        await client.submit(tasks[:2])
        options = ("--lease", LONGER_LEASE, "--batches", 2)
        async with started("sit", url, history, *options) as first:
            held = await first.hear("claimed")
            await client.submit(tasks[2:])
            async with started("sit", url, history, *options) as second:
                held += await second.hear("claimed")
                for length in lengths:
                    for program in (first, second):
                        await beats(program, 3)
                    with paused(server):
                        await asyncio.sleep(length)  # the fault itself
                    for program in (first, second):
                        await beats(program, 10)  # recovery has looked often enough to find somebody dead
                assert [found.crashes for found in await client.engine.get(held) if isinstance(found, Task)] == [0] * 4
                for program in (first, second):
                    program.tell("finish")
                    assert await program.hear("answers") == ["applied"] * 2
                    await program.done()
    recorded, reads = await judge(url, history, BOUNDS)
    assert sorted(held) == sorted(task.id for task in tasks)
    assert {(read.state, read.crashes, read.executions) for read in reads.values()} == {("completed", 0, 1)}
    assert not [event for event in recorded if isinstance(event, events.Beat) and event.gone]


async def beats(program: Program, n: int) -> None:
    for _ in range(n):
        await program.hear("beat")


async def test_the_server_is_paused(tmp_path: Path, private_postgres: Postgres) -> None:
    await pauses(tmp_path, with_store(private_postgres), [2.6])


@pytest.mark.chaos
async def test_the_server_is_paused_again_and_again(tmp_path: Path, private_postgres: Postgres) -> None:
    random = Random(5)
    await pauses(tmp_path, with_store(private_postgres), [random.uniform(2.1, 5) for _ in range(20)])


async def test_the_server_is_paused_under_workers(tmp_path: Path, private_postgres: Postgres) -> None:
    """Real ones, at work: they keep what they hold, and go on by themselves."""
    url = with_store(private_postgres).url()
    async with place_at(tmp_path, BRISK, url=url) as place, place.worker() as worker:
        gate = place.gate("gate")
        children = await worker.joined()
        held = await place.submit(*(new("hold", gate=gate.path) for _ in range(3)))
        await place.effects.count(3, "begin", tasks=held)
        async with Load(place):
            await place.effects.count(20, "end")
            with paused(private_postgres):
                gate.let(2)  # these end while nobody can be told
                await place.effects.count(2, "end", tasks=held)
                await asyncio.sleep(3)  # the fault itself: one and a half leases
            gate.let(1)
            await place.effects.count(len(place.effects.of("end")) + 50, "end")
        await place.all_ended(held)
        assert worker.children() == children
        assert await worker.stop() == 0
        gate.close()
        judged = await verdict(place)
    assert {(read.executions, read.crashes, read.failures) for read in judged.reads.values()} == {(1, 0, 0)}
    assert judged.answers("stale") == []


async def test_who_dies_while_the_server_is_paused_is_found(tmp_path: Path, private_postgres: Postgres) -> None:
    """Everybody is given one lease more, the dead too; then their tasks run elsewhere."""
    url, history, tasks = with_store(private_postgres).url(), tmp_path / "history", one_of_each()
    async with prepared(url, history) as client:
        await client.submit(tasks)
    options = ("--lease", LEASE, "--batches", len(tasks))
    async with started("sit", url, history, *options) as first:
        held = await first.hear("claimed")
        with paused(private_postgres):
            first.process.kill()
            await first.process.wait()
            await asyncio.sleep(1.5 * LEASE / SECOND)  # the fault itself
        async with started("sit", url, history, *options) as second:
            assert sorted(await second.hear("claimed")) == sorted(held)
            second.tell("finish")
            assert await second.hear("answers") == ["applied"] * len(tasks)
            await second.done()
    _, reads = await judge(url, history, BOUNDS)
    assert {(read.state, read.crashes, read.executions) for read in reads.values()} == {("completed", 1, 2)}


# A leader


def refusals(history: list[Event], term: int) -> set[str]:
    """The verbs that were refused under this term."""
    fires = {"fire" for event in history if isinstance(event, events.Fire) and event.term == term and event.answer == "refused"}
    return fires | {event.verb for event in history if isinstance(event, events.Led) and event.term == term and event.answer == "refused"}


@pytest.mark.parametrize("at", ["fire", "deliver", "prune"])
async def test_a_leader_paused_past_its_term(tmp_path: Path, postgres_url: str, at: str) -> None:
    """What it still writes is refused, and every fire time has made one task."""
    history = tmp_path / "history"
    async with prepared(postgres_url, history) as client:
        await prepare_schedule(client)
    async with (
        started("work", postgres_url, history, "--wait") as worker,
        started("lead", postgres_url, history, "--lease", TERM, "--pause", at) as first,
    ):
        (term,) = await first.hear("leading")
        await first.hear("pausing")
        async with started("lead", postgres_url, history, "--lease", TERM) as second:
            (next_term,) = await second.hear("leading")
            await second.hear("led")
            first.resume()
            await first.hear("refused")
            await second.hear("led")
            await first.done()
            await second.done()
        await worker.done()
    recorded, _ = await judge(postgres_url, history, Bounds(lease=SECOND, max_crashes=1_000))
    times = sorted(event.time for event in recorded if isinstance(event, events.Fire) and event.answer == "applied")
    assert int(next_term) > int(term)
    assert refusals(recorded, int(term)) >= {at.replace("deliver", "outbox")}
    assert times == list(range(times[0], times[-1] + EVERY, EVERY))


class Frozen:
    """A leader that stops between two statements of its firing, in the middle of its transaction."""

    def __init__(self, client: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
        self.client = client
        self.stopped, self.go_on = asyncio.Event(), asyncio.Event()
        self.tasks = [NewTask(type="plain", payload=b'{"do":"complete"}')]
        monkeypatch.setattr(settings, "submit", self._submit)

    async def _submit(self, *args: Any, **named: Any) -> Any:
        self.stopped.set()
        await self.go_on.wait()
        return await submit(*args, **named)

    async def fire(self, term: Term) -> None:
        (schedule,) = await self.client.engine.items("schedule")
        await self.client.fire("tick", schedule.version, self.tasks, [1], 2, term)


@pytest.fixture
async def two(tmp_path: Path, postgres_url: str) -> AsyncIterator[tuple[Recorded, Recorded]]:
    """A leader and who comes after it."""
    history = tmp_path / "history"
    async with client_of(postgres_url, history, term=TERM) as first, client_of(postgres_url, history, term=TERM) as second:
        await prepare(first)
        await prepare_schedule(first)
        yield first, second
    await judge(postgres_url, history, BOUNDS, all_ended=False)


async def test_a_leader_paused_inside_its_transaction(two: tuple[Recorded, Recorded], monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody can take its place before that is over: its write is good, and the next one leads after it."""
    first, second = two
    leader = Frozen(first, monkeypatch)
    term = await first.lead("upkeep", "first", TERM)
    assert term is not None
    firing = asyncio.create_task(leader.fire(term))
    await leader.stopped.wait()
    leading = asyncio.create_task(second.lead("upkeep", "second", TERM))
    await asyncio.sleep(1.5 * TERM / SECOND)  # the fault itself: a pause past the term
    assert not leading.done()
    leader.go_on.set()
    await firing
    following = await leading
    assert following is not None
    assert following.number > term.number
    assert [found.state for found in await second.engine.get([new.id for new in leader.tasks]) if isinstance(found, Task)] == [State.PENDING]
    with pytest.raises(StaleTerm):
        await leader.fire(term)


async def test_a_leader_that_never_comes_back_from_its_transaction(two: tuple[Recorded, Recorded], monkeypatch: pytest.MonkeyPatch) -> None:
    """The server ends a session of ours that says nothing for so long; another leads, and nothing of what was begun is there."""
    first, second = two
    monkeypatch.setattr(connecting, "FROZEN", 200 * MILLISECOND)
    leader = Frozen(first, monkeypatch)
    term = await first.lead("upkeep", "first", TERM)
    assert term is not None
    firing = asyncio.create_task(leader.fire(term))
    await leader.stopped.wait()
    following = None
    while following is None:
        following = await second.lead("upkeep", "second", TERM)
        await asyncio.sleep(0.02)
    assert following.number > term.number
    leader.go_on.set()
    with pytest.raises(StoreError):
        await firing
    assert await second.engine.get([new.id for new in leader.tasks]) == (None,)
    with pytest.raises(StaleTerm):
        await leader.fire(term)
