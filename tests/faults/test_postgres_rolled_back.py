"""Steps that the server rolls back because of others (serialization failures, deadlocks) are repeated, and come to the same end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextvars import Context
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import pytest

from taskmill import codec
from taskmill.engine import Checkpoint, Claimed, Ending, Engine, Joining, Outcome, Room, Status, Target
from taskmill.errors import StoreError
from taskmill.task import ErrorInfo, NewTask, State, Task
from tests.faults.clients import at_work, judged
from tests.faults.growing import Growing
from tests.faults.judging import judge
from tests.faults.postgres_tools import Session, blocked_by, plain_session
from tests.faults.processes import GENEROUS
from tests.faults.recorded import Recorded
from tests.faults.workload import TYPES, client_of, prepare
from tests.history import Bounds, events

USERS = 20


def name_of(url: str) -> str:
    return urlsplit(url).path.removeprefix("/")


# Failures by chance, at a statement and at the commit

FAULTS = """
CREATE SEQUENCE public.failed;
CREATE FUNCTION public.fail() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF random() < TG_ARGV[0]::float THEN
    RAISE EXCEPTION 'others were in the way' USING ERRCODE = CASE WHEN nextval('public.failed') % 2 = 0 THEN '40001' ELSE '40P01' END;
  END IF;
  RETURN NULL;
END $$"""
TRIGGERS = """
CREATE TRIGGER fail AFTER INSERT OR UPDATE OR DELETE ON taskmill.task FOR EACH STATEMENT EXECUTE FUNCTION public.fail(0.03);
CREATE CONSTRAINT TRIGGER fail_late AFTER INSERT ON taskmill.body DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION public.fail(0.02);
CREATE CONSTRAINT TRIGGER fail_late AFTER INSERT OR UPDATE ON taskmill.workers DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION public.fail(0.2);
CREATE CONSTRAINT TRIGGER fail_late AFTER INSERT ON taskmill.ended DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION public.fail(0.05)"""


async def failures(tmp_path: Path, url: str, n: int) -> None:
    """So many completions, while about every fourth step is rolled back by the server, and in a database where transactions are serializable unless they say
    something else. Nobody is told of it."""
    history = tmp_path / "history"
    async with plain_session(url) as session:
        await session.execute(f"ALTER DATABASE {name_of(url)} SET default_transaction_isolation = 'serializable'")
        async with at_work(url, history) as programs:
            await session.execute(FAULTS)
            for trigger in TRIGGERS.split(";"):  # one table at a time: those at work lock them in an order of their own
                await session.execute(trigger)
            await Growing(history).completed(n)
        assert await session.fetchval("SELECT last_value FROM public.failed") > n // 10
    recorded = await judged(url, history, programs)
    told = {event.answer for event in recorded if isinstance(event, events.Submit | events.Claim | events.Finish | events.Beat | events.Recover)}
    assert told.isdisjoint({"lost", "error"})


async def test_steps_are_rolled_back_by_chance(tmp_path: Path, postgres_url: str) -> None:
    await failures(tmp_path, postgres_url, 200)


@pytest.mark.chaos
async def test_many_steps_are_rolled_back_by_chance(tmp_path: Path, postgres_url: str) -> None:
    await failures(tmp_path, postgres_url, 5_000)


# Deadlocks with a user

Step = Callable[[Recorded, Sequence[Claimed]], Awaitable[object]]


def outcome(task: Claimed, ending: Ending, **fields: object) -> Outcome:
    return Outcome(task=task.id, worker=task.worker, token=task.token, ending=ending, started_after=0, **fields)  # type: ignore[arg-type]


async def completes(client: Recorded, tasks: Sequence[Claimed]) -> None:
    assert (await client.finish([outcome(task, Ending.COMPLETED) for task in tasks])).refused == ()


async def ends_as_it_comes(client: Recorded, tasks: Sequence[Claimed]) -> None:
    first, second, third = tasks
    follow, why = NewTask(type="plain", payload=b'{"do": "complete"}'), ErrorInfo("failed", "on purpose")
    ends = [outcome(first, Ending.COMPLETED, result=b'"done"', then=(follow,)), outcome(second, Ending.COMPLETED), outcome(third, Ending.DEAD, error=why)]
    assert (await client.finish(ends)).refused == ()


async def saves(client: Recorded, tasks: Sequence[Claimed]) -> None:
    entries = [Checkpoint(task=task.id, worker=task.worker, token=task.token, name="step", value=b"1") for task in tasks]
    assert await client.checkpoint(entries) == ()


async def cancels(client: Recorded, tasks: Sequence[Claimed]) -> None:
    changes = await client.engine.cancel([Target(task.id) for task in tasks])
    assert [changed.code for changed in changes.tasks] == [None] * 3


STEPS: dict[Step, list[State]] = {
    completes: [State.COMPLETED] * 3,
    ends_as_it_comes: [State.COMPLETED, State.COMPLETED, State.DEAD],
    saves: [State.RUNNING] * 3,
    cancels: [State.RUNNING] * 3,
}
"""What a step makes of three running tasks; it locks them in the order of their ids."""


@pytest.fixture
async def user(postgres_url: str) -> AsyncIterator[Session]:
    async with plain_session(postgres_url) as session:
        yield session


async def lock(session: Session, task: str) -> None:
    assert await session.fetch("SELECT FROM taskmill.task WHERE id = $1::uuid FOR UPDATE", task)


async def waits(session: Session, by: Session) -> None:
    """Wait until the session stands in line for a lock; seen by another."""
    async with asyncio.timeout(GENEROUS):
        while not await by.fetchval("SELECT cardinality(pg_blocking_pids($1))", session.get_server_pid()):  # noqa: ASYNC110 - it happens in the server
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("loser", ["step", "user"])
@pytest.mark.parametrize("step", STEPS)
async def test_a_deadlock_with_a_user(tmp_path: Path, postgres_url: str, user: Session, step: Step, loser: str) -> None:
    """The user has the last task and wants the first, the step has the first and wants the last. Whoever closes the circle
    looks for one, and is rolled back; the other has looked before, or does so much later."""
    engine_looks, user_looks = ("10ms", "10min") if loser == "step" else ("10min", "10ms")
    await user.execute(f"ALTER DATABASE {name_of(postgres_url)} SET deadlock_timeout = '{engine_looks}'; SET deadlock_timeout = '{user_looks}'")
    history = tmp_path / "history"
    async with client_of(postgres_url, history) as client, plain_session(postgres_url) as other, asyncio.timeout(GENEROUS):
        await client.join(Joining(worker="worker", queues=("default",), types=TYPES))
        await client.submit([NewTask(type="plain", payload=b'{"do": "complete"}') for _ in range(3)])
        first, second, third = tasks = sorted((await client.claim("worker", 1, ("default",), Room(3))).tasks, key=lambda task: task.id)
        async with other.transaction():
            await lock(other, second.id)
            await user.execute("BEGIN")
            await lock(user, third.id)
            asked = asyncio.ensure_future(step(client, tasks))
            await blocked_by(other)
            wanting = asyncio.create_task(lock(user, first.id)) if loser == "step" else None
            if wanting is not None:
                await waits(user, by=other)
        if wanting is not None:  # the step closes the circle
            await wanting
            assert not asked.done()
        else:
            await blocked_by(user)
            with pytest.raises(asyncpg.DeadlockDetectedError):
                await lock(user, first.id)
        await user.execute("ROLLBACK")
        await asked
        found = [task for task in await client.engine.get([task.id for task in tasks]) if isinstance(task, Task)]
        assert [(task.state, task.executions) for task in found] == [(state, 1) for state in STEPS[step]]
    await judge(postgres_url, history, Bounds(), all_ended=False)


# Users whose transactions see one snapshot


async def served(engine: Engine, isolation: str, user: int) -> int:
    """What a user does: read, write what follows from it, submit. It is run until it stands; how often it had to be run again."""
    task = NewTask(type="plain", payload=codec.encode({"do": "complete", "user": user}))
    for repeat in range(1_000):
        try:
            async with engine.transaction() as tx:
                await tx.execute(f"SET TRANSACTION ISOLATION LEVEL {isolation}")
                [(served,)] = await tx.execute("SELECT served FROM public.counter")
                (answer,) = await engine.submit([task], tx=tx)
                assert answer.status in (Status.CREATED, Status.DUPLICATE)
                await tx.execute("UPDATE public.counter SET served = $1", [served + 1])
        except asyncpg.SerializationError:
            continue
        except StoreError as error:
            assert error.code == "store_busy", error
            continue
        return repeat
    raise AssertionError("it never stood")


@pytest.mark.parametrize("isolation", ["REPEATABLE READ", "SERIALIZABLE"])
async def test_users_transactions_fail_to_serialize(tmp_path: Path, postgres_url: str, user: Session, isolation: str) -> None:
    """Of those that collide one stands and the others are rolled back, with their tasks; run again, each of them has served, and submitted, once."""
    await user.execute("CREATE TABLE public.counter (served integer); INSERT INTO public.counter VALUES (0)")
    history = tmp_path / "history"
    async with client_of(postgres_url, history) as client, client_of(postgres_url, history) as other:
        await prepare(client)
        repeats = await asyncio.gather(*(served(each.engine, isolation, n) for n in range(USERS // 2) for each in (client, other)))
        assert sum(repeats) > 0
        assert await user.fetchval("SELECT served FROM public.counter") == USERS
        tasks = (await client.engine.list(n=USERS * 2)).tasks
        assert len(tasks) == USERS
    await judge(postgres_url, history, Bounds(), all_ended=False)


async def late_end(client: Recorded, task: Claimed) -> None:
    async with client.engine.transaction() as tx:
        await tx.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        await tx.execute("SELECT 1 FROM taskmill.task")
        await asyncio.create_task(saves(client, [task]), context=Context())
        await client.engine.finish([outcome(task, Ending.COMPLETED)], tx=tx)


async def test_an_end_in_a_transaction_that_saw_less(tmp_path: Path, postgres_url: str) -> None:
    """The task was written after the snapshot of the user's transaction was taken: it is rolled back, and goes through when it is run again."""
    async with client_of(postgres_url, tmp_path / "history") as client:
        engine = client.engine
        await client.join(Joining(worker="worker", queues=("default",), types=TYPES))
        await client.submit([NewTask(type="plain", payload=b'{"do": "complete"}')])
        (task,) = (await client.claim("worker", 1, ("default",), Room(1))).tasks
        with pytest.raises(StoreError) as caught:
            await late_end(client, task)
        assert caught.value.code == "store_busy"
        async with engine.transaction() as tx:
            await engine.finish([outcome(task, Ending.COMPLETED)], tx=tx)
        await completes(client, [task])  # for the history
    await judge(postgres_url, tmp_path / "history", Bounds())
