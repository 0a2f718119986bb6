"""No connection is left, or somebody has locked the tasks: clients wait, or are told so; they go on by themselves, and nobody loses a lease through it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path

import asyncpg
import pytest

from taskmill import codec
from taskmill.clock import SECOND
from taskmill.engine import Ending, Engine, Joining, Outcome, Room, Status
from taskmill.engines import create
from taskmill.engines.postgres.target import parse
from taskmill.errors import AnswerLost, StoreError
from taskmill.task import Edge, NewTask
from tests.engines.postgres.tools import url_with
from tests.faults.clients import LEASE, at_work, judged
from tests.faults.growing import Growing
from tests.faults.judging import judge
from tests.faults.postgres_tools import Session, blocked_by, blocks, plain_session
from tests.faults.processes import GENEROUS, Program, started
from tests.faults.workers import BRISK, Load, new, place_at, verdict
from tests.faults.workload import TYPES, client_of, prepare
from tests.history import Bounds, events
from tests.servers.postgres import Postgres

SLOTS = 20
OTHERS = "FROM pg_stat_activity WHERE backend_type = 'client backend' AND application_name <> 'crowd'"

# No connection is left


@pytest.fixture
def narrow(private_postgres: Postgres) -> Postgres:
    """A server with few slots, none of them kept for anybody."""
    private_postgres.configure(max_connections=SLOTS, superuser_reserved_connections=0)
    private_postgres.restart()
    return private_postgres


@contextlib.asynccontextmanager
async def crowd(server: Postgres, *programs: Program, leave: bool = False) -> AsyncIterator[None]:
    """Others hold every slot that there is. `leave`: but for those that are taken; else whoever was there before is thrown out. These programs sleep
    until then, because they would be as quick to take a slot as we are."""
    server.databases.disconnect()
    sessions: list[Session] = []
    for program in programs:
        program.pause()
    try:
        async with asyncio.timeout(GENEROUS):
            while not await _full(server, sessions, leave=leave):
                pass
        for program in programs:
            program.resume()
        yield
    finally:
        for session in sessions:
            session.terminate()


async def _full(server: Postgres, sessions: list[Session], *, leave: bool) -> bool:
    """One more; when there is none, whether all are ours."""
    try:
        sessions.append(await asyncpg.connect(**parse(server.url()).arguments(), server_settings={"application_name": "crowd"}))
    except asyncpg.TooManyConnectionsError:
        if leave or not await sessions[0].fetchval(f"SELECT count(*) {OTHERS}"):
            return True
        await sessions[0].fetch(f"SELECT pg_terminate_backend(pid, 5000) {OTHERS}")
    return False


async def test_no_connection_is_left(tmp_path: Path, narrow: Postgres) -> None:
    """For longer than a lease."""
    url, history = narrow.databases.give(), tmp_path / "history"
    async with at_work(url, history) as programs:
        growing = Growing(history)
        await growing.completed(30)
        async with crowd(narrow, *programs):
            with pytest.raises(StoreError) as caught:
                await create(url_with(url, busy_timeout="1s")).open()
            assert caught.value.code == "too_many_connections"
            assert "max_connections" in str(caught.value)
            await asyncio.sleep(1.5 * LEASE / SECOND)  # the fault itself
        await growing.goes_on()
    await judged(url, history, programs)


async def test_what_is_told_when_no_connection_is_left(narrow: Postgres) -> None:
    """Who has one goes on with it, and steps take turns, though the pool might grow. Who has none is told so: nothing was written, and asked again, when there
    is a slot, the step is done."""
    engine = create(url_with(narrow.databases.give(), busy_timeout="2s"))
    await engine.open()
    try:
        await engine.join(Joining(worker="worker", queues=("default",), types=TYPES))
        async with crowd(narrow, leave=True):
            batches = [[NewTask(type="plain", payload=b"{}") for _ in range(50)] for _ in range(10)]
            answers = await asyncio.gather(*map(engine.submit, batches), *(engine.heartbeat("worker", 0, ()) for _ in range(10)))
            assert len(answers) == 20
        task = NewTask(type="plain", payload=b"{}", priority=3)
        async with crowd(narrow):
            with pytest.raises(StoreError) as caught:
                await engine.submit([task])
            assert caught.value.code == "too_many_connections"
        assert [answer.status for answer in await engine.submit([task])] == [Status.CREATED]
        assert [claimed.id for claimed in (await engine.claim("worker", 1, ("default",), Room(1))).tasks] == [task.id]
    finally:
        await engine.close()


# A step of two statements


async def halfway(engine: Engine, url: str, step: Awaitable[object]) -> None:
    """The first statement of the step is done; then somebody takes the only connection of the process, for longer than anybody waits."""
    over = asyncio.Event()

    async def hold() -> None:
        async with engine.transaction():
            await over.wait()

    async with plain_session(url) as session:
        async with session.transaction():
            await session.execute("LOCK TABLE taskmill.task")
            asking = asyncio.ensure_future(step)
            await blocked_by(session)
            holding = asyncio.create_task(hold())
            await asyncio.sleep(0.05)  # it stands in line now
        with pytest.raises(AnswerLost):
            await asking
    over.set()
    await holding


async def test_what_was_written_is_never_told_as_not_written(postgres_url: str) -> None:
    """Each of these asks for more after it was applied; asked again, it answers as if nothing had happened."""
    engine = create(url_with(postgres_url, busy_timeout="1s", pool=1))
    await engine.open()
    try:
        await engine.join(Joining(worker="worker", queues=("default",), types=TYPES))
        first, others = NewTask(type="plain", payload=b"{}"), [NewTask(type="plain", payload=b"{}") for _ in range(30)]
        waiting = NewTask(type="plain", payload=b"{}", edges=(Edge(first.id),))
        tasks = [first, waiting, *others]
        await halfway(engine, postgres_url, engine.submit(tasks))
        assert {answer.status for answer in await engine.submit(tasks)} == {Status.DUPLICATE}
        (claimed,) = (await engine.claim("worker", 1, ("default",), Room(1))).tasks
        outcome = Outcome(task=claimed.id, worker="worker", token=claimed.token, ending=Ending.COMPLETED, started_after=0)
        assert claimed.id == first.id
        await halfway(engine, postgres_url, engine.finish([outcome]))
        assert (await engine.finish([outcome])).refused == ()
        await engine.claim("worker", 2, ("default",), Room(30))
        await halfway(engine, postgres_url, engine.claim("worker", 3, ("default",), Room(1)))
        assert [task.id for task in (await engine.claim("worker", 3, ("default",), Room(1))).tasks] == [waiting.id]
    finally:
        await engine.close()


# The tasks are locked


@contextlib.asynccontextmanager
async def locked(url: str, table: str) -> AsyncIterator[None]:
    """By somebody who knows nothing of us."""
    async with plain_session(url) as session, session.transaction():
        await session.execute(f"LOCK TABLE taskmill.{table} IN ACCESS EXCLUSIVE MODE")
        yield


async def lock_out(tmp_path: Path, url: str, table: str, lease: int, seconds: float) -> None:
    """Two hold leases, of whom one asks again every second and one waits for its answer; others are at work."""
    history = tmp_path / "history"
    async with client_of(url, history) as client:
        await prepare(client)
        await client.submit([NewTask(type="plain", payload=codec.encode({"do": "complete"})) for _ in range(6)])
    options = ("--lease", lease, "--batches", 3)
    async with (
        started("sit", url_with(url, busy_timeout="1s"), history, *options) as first,
        started("sit", url, history, *options) as second,
    ):
        held = [*await first.hear("claimed"), *await second.hear("claimed")]
        async with started("work", url, history, "--lease", lease, "--batches", -1, "--wait") as busy:
            await busy.hear("ready")
            await Growing(history).completed(10)
            async with locked(url, table):
                await asyncio.sleep(seconds)  # the fault itself
            await Growing(history).goes_on()
            for sitter in (first, second):
                sitter.tell("finish")
            answers = [*await first.hear("answers"), *await second.hear("answers")]
            await asyncio.gather(first.done(), second.done(), busy.done())
    recorded, reads = await judge(url, history, Bounds(lease=lease // 2, max_crashes=1_000))
    assert answers == ["applied"] * 6
    assert {(reads[task].executions, reads[task].crashes) for task in held} == {(1, 0)}
    sitting = {first.process.pid, second.process.pid}  # the one that works names leases whose finish is under way, which may be gone
    assert not any(isinstance(event, events.Beat) and event.gone and event.process in sitting for event in recorded)


async def test_the_tasks_are_locked(tmp_path: Path, postgres_url: str) -> None:
    """For more than two leases."""
    await lock_out(tmp_path, postgres_url, "task", LEASE, 2.2 * LEASE / SECOND)


async def nobody_waits(session: Session) -> None:
    """What was called off has ended in the server too."""
    async with asyncio.timeout(GENEROUS):
        while await blocks(session):  # noqa: ASYNC110 - it happens in the server
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("table", ["task", "workers", "item"])
async def test_beats_that_a_lock_keeps_out_are_not_missed(postgres_url: str, table: str) -> None:
    """They give up and try again, and recovery comes in between: it can be done as little as they, so it judges nobody by that time."""
    engine = create(postgres_url, lease=SECOND)
    await engine.open()
    try:
        await engine.join(Joining(worker="worker", queues=("default",), types=TYPES, lease=SECOND))
        await engine.submit([NewTask(type="plain", payload=b"{}")])
        (task,) = (await engine.claim("worker", 1, ("default",), Room(1))).tasks
        await engine.recover_lost()
        async with plain_session(postgres_url) as session, session.transaction():
            await session.execute(f"LOCK TABLE taskmill.{table} IN ACCESS EXCLUSIVE MODE")
            for step in (lambda: engine.heartbeat("worker", 1, [task.token]), engine.recover_lost) * 3:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(step(), 0.2)  # all of them are more than a lease, two of them less
                await nobody_waits(session)
            recovering = asyncio.create_task(engine.recover_lost())
            await asyncio.wait([recovering], timeout=0.2)
        assert (await recovering).moved == 0
        assert (await engine.heartbeat("worker", 1, [task.token])).lost == ()
    finally:
        await engine.close()


@pytest.mark.chaos
@pytest.mark.parametrize("table", ["task", "body", "ended", "workers", "store", "queue", "lane"])
async def test_a_table_is_locked_for_long(tmp_path: Path, postgres_url: str, table: str) -> None:
    await lock_out(tmp_path, postgres_url, table, 4 * SECOND, 15.0)


async def lock_out_workers(tmp_path: Path, url: str, seconds: float, env: dict[str, str]) -> None:
    async with place_at(tmp_path, env, url=url) as place, place.worker() as first, place.worker() as second:
        gate = place.gate("gate")
        children = [*await first.joined(), *await second.joined()]
        tasks = await place.submit(*(new("hold", gate=gate.path) for _ in range(6)))
        await place.effects.count(6, "begin", tasks=tasks)
        async with Load(place):
            async with locked(url, "task"):
                gate.let(3)  # these end while nobody can be told
                await place.effects.count(3, "end", tasks=tasks)
                await asyncio.sleep(seconds)  # the fault itself
            gate.let(3)
            ends = len(place.effects.of("end"))
            await place.effects.count(ends + 50, "end")
        await place.all_ended(tasks)
        assert [*first.children(), *second.children()] == children
        assert [await first.stop(), await second.stop()] == [0, 0]
        gate.close()
        judged = await verdict(place)
    assert {(read.executions, read.crashes, read.failures) for read in judged.reads.values()} == {(1, 0, 0)}
    assert judged.answers("stale") == []


@pytest.mark.chaos
@pytest.mark.parametrize(("seconds", "env"), [(5.0, BRISK), (10.0, {})])
async def test_the_tasks_of_workers_are_locked(tmp_path: Path, postgres_url: str, seconds: float, env: dict[str, str]) -> None:
    await lock_out_workers(tmp_path, postgres_url, seconds, env)
