"""The server dies and its standby takes its place. What a synchronous standby has acknowledged is all there; behind an asynchronous one the tail is gone: the
product says before that this can be, whoever held something of the tail is told, and no token comes again. Nobody is started again."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from pathlib import Path

import pytest

from taskmill.clock import SECOND
from taskmill.engine import Claimed, Durability, Ending, Engine, Joining, Outcome, Room, Submitted, Target
from taskmill.errors import Conflict, NotFound, StaleTerm
from taskmill.task import NewTask, Priority, Task
from tests.faults.growing import Growing
from tests.faults.judging import judge, submitted
from tests.faults.postgres_tools import caught_up, cut_off, take_over, url_of_both, with_store
from tests.faults.processes import started
from tests.faults.recorded import Recorded, until_answered
from tests.faults.workers import BRISK, Load, new, place_at, verdict
from tests.faults.workload import TYPES, client_of, prepare
from tests.history import Bounds, check, events, load
from tests.servers.postgres import Postgres

LEASE = 4 * SECOND
BOUNDS = Bounds(lease=LEASE // 2, max_crashes=1_000)
"""A beat waits for no disk and no standby, so a server that dies takes the last of them along; the rest is for a slow machine."""
CLIENTS = 2
TAIL = 40
"""More than the 32 numbers by which a sequence is ahead of itself on a standby."""
WAITS = "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
"""Somebody's commit waits for the standby."""


async def findings(engine: Engine) -> dict[str, str]:
    return {finding.code: finding.level for finding in await engine.check()}


class Client:
    """One client with one worker's name, told what came of everything."""

    def __init__(self, client: Recorded, name: str) -> None:
        self.client = client
        self.name = name
        self.request = 0

    async def join(self) -> None:
        await self.client.join(Joining(worker=self.name, queues=("default",), types=TYPES, lease=LEASE))

    async def submit(self, tasks: Sequence[NewTask]) -> tuple[Submitted, ...]:
        return await until_answered(lambda: self.client.submit(tasks))

    async def claim(self, n: int) -> tuple[Claimed, ...]:
        self.request += 1
        claim = await until_answered(lambda: self.client.claim(self.name, self.request, ("default",), Room(n)))
        assert len(claim.tasks) == n
        return claim.tasks

    async def complete(self, tasks: Sequence[Claimed]) -> dict[str, set[str]]:
        """The tasks by what was answered."""
        outcomes = [Outcome(task=task.id, worker=task.worker, token=task.token, ending=Ending.COMPLETED, started_after=0) for task in tasks]
        finished = await until_answered(lambda: self.client.finish(outcomes))
        codes = {refusal.task: refusal.code for refusal in finished.refused}
        answers: dict[str, set[str]] = {}
        for task in tasks:
            answers.setdefault(codes.get(task.id, "applied"), set()).add(task.id)
        return answers


def some(n: int, priority: Priority = Priority.NORMAL) -> list[NewTask]:
    return [NewTask(type="plain", payload=b'{"do":"complete"}', priority=priority) for _ in range(n)]


def ids(tasks: Sequence[NewTask] | Sequence[Claimed]) -> list[str]:
    return [task.id for task in tasks]


# Synchronous


async def taken_over(tmp_path: Path, primary: Postgres, *, completions: int, cut: bool) -> None:
    """Clients work before, meanwhile and after; everything that they were told holds. `cut`: for a while nothing reaches the standby, and nobody may be told
    anything that is not there."""
    history = tmp_path / "history"
    with with_store(primary).standby(synchronous=True) as standby:
        url = url_of_both(primary, standby)
        async with client_of(url, history) as client:
            await prepare(client)
        async with contextlib.AsyncExitStack() as stack:
            options = ("--lease", LEASE, "--batches", -1, "--wait")
            programs = [await stack.enter_async_context(started("work", url, history, *options, "--seed", seed)) for seed in range(CLIENTS)]
            for program in programs:
                await program.hear("ready")
            growing = Growing(history)
            await growing.completed(completions)
            if cut:
                cut_off(primary)
                await asyncio.to_thread(primary.until, WAITS)
            await asyncio.to_thread(take_over, primary, standby)
            await growing.goes_on()
            await growing.completed(completions)
            await asyncio.gather(*(program.done() for program in programs))
        recorded, _ = await judge(url, history, BOUNDS)
    for kind in (events.Submit, events.Claim, events.Finish):
        assert {event.process for event in recorded if isinstance(event, kind) and event.answer not in ("lost", "error")} >= {p.process.pid for p in programs}


async def test_a_synchronous_standby_takes_over(tmp_path: Path, private_postgres: Postgres) -> None:
    await taken_over(tmp_path, private_postgres, completions=80, cut=True)


@pytest.mark.chaos
@pytest.mark.parametrize("run", range(10))
async def test_a_synchronous_standby_takes_over_at_many_moments(tmp_path: Path, private_postgres: Postgres, run: int) -> None:
    await taken_over(tmp_path, private_postgres, completions=50 + 37 * run, cut=bool(run % 2))


async def test_what_the_standby_has_not_is_not_acknowledged(tmp_path: Path, private_postgres: Postgres) -> None:
    history, cut = tmp_path / "history", some(10)
    with with_store(private_postgres).standby(synchronous=True) as standby:
        url = url_of_both(private_postgres, standby)
        async with client_of(url, history) as client:
            await prepare(client)
            worker = Client(client, "worker")
            await worker.join()
            await worker.submit(some(10))
            held = await worker.claim(10)
            cut_off(private_postgres)
            submitting, completing = asyncio.create_task(worker.submit(cut)), asyncio.create_task(worker.complete(held))
            await asyncio.to_thread(private_postgres.until, f"SELECT 1 FROM ({WAITS}) x HAVING count(*) = 2")
            assert not submitting.done()
            assert not completing.done()
            await asyncio.to_thread(take_over, private_postgres, standby)
            assert [answer.status for answer in await submitting] == ["created"] * 10
            assert await completing == {"applied": set(ids(held))}
            assert await worker.complete(await worker.claim(10)) == {"applied": set(ids(cut))}
        await judge(url, history, BOUNDS)


async def test_workers_go_on_with_what_they_hold(tmp_path: Path, private_postgres: Postgres) -> None:
    """Real ones: no process is started again, no lease is lost, nothing runs twice."""
    with with_store(private_postgres).standby(synchronous=True) as standby:
        url = url_of_both(private_postgres, standby)
        async with place_at(tmp_path, BRISK, url=url) as place, place.worker() as worker:
            gate = place.gate("gate")
            children = await worker.joined()
            held = await place.submit(*(new("hold", gate=gate.path) for _ in range(3)))
            await place.effects.count(3, "begin", tasks=held)
            async with Load(place):
                await place.effects.count(20, "end")
            await asyncio.to_thread(take_over, private_postgres, standby)
            gate.let(3)
            await place.all_ended([*held, *await place.submit(*(new("work", ms=1) for _ in range(20)))])
            assert worker.children() == children
            assert await worker.stop() == 0
            gate.close()
            judged = await verdict(place)
    assert {(read.executions, read.crashes, read.failures) for read in judged.reads.values()} == {(1, 0, 0)}


async def test_a_server_without_a_standby_does_not_pass_for_replicated(tmp_path: Path, private_postgres: Postgres) -> None:
    """The one that took over has nobody behind it: what it answers says so."""
    with with_store(private_postgres).standby(synchronous=True) as standby:
        url = url_of_both(private_postgres, standby, durability="replicated")
        async with client_of(url, tmp_path / "history") as client:
            await prepare(client)
            (before,) = await client.submit([NewTask(type="plain", payload=b"{}")])
            assert before.durability is Durability.REPLICATED
            assert "not_replicated" not in await findings(client.engine)
            await asyncio.to_thread(take_over, private_postgres, standby)
            (after,) = await until_answered(lambda: client.submit([NewTask(type="plain", payload=b"{}")]))
            assert after.durability is Durability.FSYNC
            assert (await findings(client.engine))["not_replicated"] == "error"
            assert all(isinstance(found, Task) for found in await client.engine.get([before.id, after.id]))


# Asynchronous


async def test_an_asynchronous_standby_takes_over(tmp_path: Path, private_postgres: Postgres) -> None:
    history = tmp_path / "history"
    kept, lost = some(3 * TAIL), some(TAIL, Priority.CRITICAL)
    with with_store(private_postgres).standby(synchronous=False) as standby:
        url = url_of_both(private_postgres, standby)
        async with client_of(url, history, lease=LEASE) as client:
            await prepare(client)
            worker, late = Client(client, "worker"), Client(client, "late")
            assert (await findings(client.engine))["asynchronous_standby"] == "warning"
            await worker.join()
            answers = await worker.submit(kept)
            before = await worker.claim(10)
            first_term = await client.engine.lead("upkeep", "first")
            assert first_term is not None
            caught_up(private_postgres, standby)
            cut_off(private_postgres)

            answers += await worker.submit(lost)
            assert {(answer.status, answer.durability) for answer in answers} == {("created", Durability.FSYNC)}
            never_were = await worker.claim(TAIL)
            assert set(ids(never_were)) == set(ids(lost))
            forgotten = await worker.claim(TAIL)
            assert await worker.complete(forgotten[:10]) == {"applied": set(ids(forgotten[:10]))}
            await late.join()
            forgotten += await late.claim(10)
            await client.engine.resign(first_term)
            second_term = await client.engine.lead("upkeep", "second")
            assert second_term is not None
            await asyncio.to_thread(take_over, private_postgres, standby)

            # What is there is all that was sent, and nothing else.
            found = dict(zip(ids(kept + lost), await until_answered(lambda: client.engine.get(ids(kept + lost))), strict=True))
            assert {task for task, record in found.items() if record is None} == set(ids(lost))
            # Whoever holds something of the tail is told so, and writes nothing.
            assert await worker.complete(never_were) == {"not_found": set(ids(lost))}
            assert await worker.complete(forgotten) == {"stale_lease": set(ids(forgotten))}
            beat = await client.heartbeat("worker", worker.request, [task.token for task in before + never_were])
            assert (beat.known, set(beat.lost)) == (True, {task.token for task in never_were})
            assert not (await client.heartbeat("late", 1, ())).known
            with pytest.raises(Conflict, match="not registered"):
                await late.claim(1)
            with pytest.raises(StaleTerm):
                await client.engine.prune(10, second_term)
            with pytest.raises(NotFound):
                await client.engine.signal(lost[0].id, "go", b"1", "one")
            cancelled = await client.engine.cancel([Target(task) for task in ids(lost)])
            assert {change.code for change in cancelled.tasks} == {"not_found"}

            # Work goes on, under tokens that nobody has seen; a submit that is repeated by its id is made good.
            assert await worker.complete(before) == {"applied": set(ids(before))}
            after = await worker.claim(len(kept) - len(before))
            assert min(task.token for task in after) > max(task.token for task in before + never_were + forgotten)
            assert await worker.complete(after) == {"applied": set(ids(after))}
            healed, never_told = lost[: TAIL // 2], lost[TAIL // 2 :]
            assert {answer.status for answer in await worker.submit(healed)} == {"created"}
            assert set(await worker.complete(await worker.claim(len(healed)))) == {"applied"}
            assert "asynchronous_standby" not in await findings(client.engine)
            await client.read_all(submitted(load(history)))
    broken = check(load(history), BOUNDS)
    tail = {*ids(lost), *ids(forgotten)}
    assert {violation.subject for violation in broken if violation.rule in ("submit_lost", "live_vanished")} == set(ids(never_told))
    assert {violation.subject for violation in broken} <= tail
    assert not [violation for violation in broken if violation.rule in ("token_order", "key_two_tasks", "foreign_type")]
