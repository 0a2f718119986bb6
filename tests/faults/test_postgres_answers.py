"""The step is committed and its answer never comes, because the wire was cut or the backend terminated: asked again, it gives the same end, once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest
from typing_extensions import override

from taskmill import codec
from taskmill.engine import Claim, Claimed, Ending, Joining, Outcome, Room, Status, Transaction
from taskmill.engines.postgres.target import parse
from taskmill.errors import AnswerLost, StoreError
from taskmill.task import NewTask, State, Task, TypeSettings
from tests.engines.postgres.tools import url_with
from tests.engines.postgres.wire import Wire
from tests.faults.judging import judge
from tests.faults.recorded import Recorded, until_answered
from tests.faults.terminating import Terminating, terminating
from tests.faults.workload import client_of
from tests.history import Bounds
from tests.servers.postgres import Postgres

CALLERS = 24
MOST = 500
"""Words in one deed, by far."""


class Cutting(Wire):
    """Cuts all connections when the server is about to say its n-th word from now on."""

    left = 0

    async def renew(self) -> None:
        self.cut()
        await asyncio.sleep(0.01)  # so that those who sit idle have seen it

    @override
    async def _answer(self, server: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        while data := await server.read(65_536):
            self.left -= 1
            if self.left == 0:
                self.cut()
                return
            client.write(data)
        client.close()


@contextlib.asynccontextmanager
async def cutting(url: str) -> AsyncIterator[tuple[Cutting, str]]:
    """The wire, and the URL that goes through it, by one connection: so the same words are said in the same order."""
    parts = urlsplit(url)
    wire = Cutting(str(parts.hostname), parts.port or 5432)
    await wire.listen()
    try:
        yield wire, url_with(url.replace(f":{parts.port}/", f":{wire.port}/"), pool=1)
    finally:
        wire.refuse()
        await wire.gone()


class Bench:
    """A worker that is known to the store, and a look at the store past all faults."""

    def __init__(self, client: Recorded, db: asyncpg.Connection) -> None:
        self.client = client
        self.engine = client.engine
        self._db = db
        self._looking = asyncio.Lock()
        self._request = 0

    async def join(self) -> None:
        await self._db.execute("CREATE TABLE orders (id uuid)")
        await self.client.join(Joining(worker="worker", queues=("default",), types={"work": TypeSettings()}))

    async def claimed(self, n: int = 1) -> tuple[Claimed, ...]:
        tasks = [new() for _ in range(n)]
        await until_answered(lambda: self.client.submit(tasks))
        return await self.claim(n)

    async def claim(self, n: int) -> tuple[Claimed, ...]:
        claim = await until_answered(self.asking(n))
        assert len(claim.tasks) == n
        return claim.tasks

    def asking(self, n: int) -> Callable[[], Awaitable[Claim]]:
        """One request, however often it is asked."""
        request = self.number()
        return lambda: self.client.claim("worker", request, ("default",), Room(n))

    def number(self) -> int:
        """Not given before."""
        self._request += 1
        return self._request

    async def finish(self, tasks: Sequence[Claimed]) -> None:
        finished = await until_answered(lambda: self.client.finish([completed(task) for task in tasks]))
        assert finished.refused == ()

    async def look(self, table: str, *tasks: str) -> int:
        """How many rows these tasks have there."""
        async with self._looking:
            return int(await self._db.fetchval(f"SELECT count(*) FROM {table} WHERE id = ANY ($1::uuid[])", tasks))


def new(**fields: Any) -> NewTask:
    return NewTask(type="work", payload=codec.encode({"do": "complete"}), **fields)


def completed(task: Claimed, **fields: Any) -> Outcome:
    return Outcome(task=task.id, worker=task.worker, token=task.token, ending=Ending.COMPLETED, started_after=0, result=b'"done"', **fields)


# Deeds. Each answers whether its step was written though its caller was told nothing.


async def submits(bench: Bench) -> bool:
    task = new(idempotency_key=f"key-{bench.number()}")
    written = False
    try:
        (answer,) = await bench.client.submit([task])
    except AnswerLost:
        written = await bench.look("taskmill.body", task.id) == 1
        (answer,) = await until_answered(lambda: bench.client.submit([task]))
        assert not written or answer.status is Status.DUPLICATE
    assert answer.id == task.id
    (other,) = await until_answered(lambda: bench.client.submit([new(idempotency_key=task.idempotency_key)]))
    assert (other.status, other.id) == (Status.DUPLICATE, task.id)
    await bench.finish(await bench.claim(1))
    return written


async def submits_together(bench: Bench) -> bool:
    """Many callers at once, whose tasks go in few commits; each asks again for itself."""
    tasks = [new() for _ in range(CALLERS)]
    written: list[str] = []

    async def one(task: NewTask) -> str:
        try:
            (answer,) = await bench.client.submit([task])
        except AnswerLost:
            if await bench.look("taskmill.body", task.id):
                written.append(task.id)
            (answer,) = await until_answered(lambda: bench.client.submit([task]))
        assert answer.status in (Status.CREATED, Status.DUPLICATE)
        return answer.id

    assert await asyncio.gather(*map(one, tasks)) == [task.id for task in tasks]
    await bench.finish(await bench.claim(CALLERS))
    return len(written) > 1


async def claims(bench: Bench) -> bool:
    tasks = [new() for _ in range(3)]
    await until_answered(lambda: bench.client.submit(tasks))
    ask, written = bench.asking(3), False
    try:
        claim = await ask()
    except AnswerLost:
        written = await bench.look("(SELECT id FROM taskmill.task WHERE state = 3) running", *(task.id for task in tasks)) == 3
        claim = await until_answered(ask)
    assert {(task.id, task.attempt) for task in claim.tasks} == {(task.id, 1) for task in tasks}
    await bench.finish(claim.tasks)
    return written


async def finishes(bench: Bench) -> bool:
    """One that starts another among them: that is not started twice."""
    tasks, follow = await bench.claimed(3), new()
    outcomes = [completed(tasks[0]), completed(tasks[1], then=(follow,)), completed(tasks[2])]
    written = False
    try:
        finished = await bench.client.finish(outcomes)
    except AnswerLost:
        written = await bench.look("taskmill.ended", *(task.id for task in tasks)) == 3
        finished = await until_answered(lambda: bench.client.finish(outcomes))
    assert finished.refused == ()
    (following,) = await bench.claim(1)
    assert following.id == follow.id
    await bench.finish([following])
    return written


async def commits_a_submit(bench: Bench) -> bool:
    """The user's rows and the task, in the user's transaction: whether it was committed, the task's id says."""
    task = new()

    async def step(tx: Transaction) -> None:
        await bench.engine.submit([task], tx=tx)

    written = await committed(bench, task.id, step, "taskmill.body", lambda found: found is not None)
    (again,) = await until_answered(lambda: bench.client.submit([task]))  # for the history
    assert again.status is Status.DUPLICATE
    await bench.finish(await bench.claim(1))
    return written


async def commits_a_finish(bench: Bench) -> bool:
    """The user's rows and the task's end."""
    (task,) = await bench.claimed()

    async def step(tx: Transaction) -> None:
        await bench.engine.finish([completed(task)], tx=tx)

    written = await committed(bench, task.id, step, "taskmill.ended", lambda found: isinstance(found, Task) and found.state is State.COMPLETED)
    await bench.finish([task])  # for the history
    return written


async def committed(bench: Bench, task: str, step: Callable[[Transaction], Awaitable[None]], table: str, stands: Callable[[object], bool]) -> bool:
    """The transaction run until it is known to stand: not repeated before it is known that it does not."""
    written = False
    for _ in range(10):
        try:
            async with bench.engine.transaction() as tx:
                await tx.execute("INSERT INTO orders VALUES ($1)", [task])
                await step(tx)
        except AnswerLost:
            written |= await bench.look(table, task) == 1
        except StoreError:
            assert await bench.look(table, task) == 0  # before its COMMIT
        (found,) = await until_answered(lambda: bench.engine.get([task]))
        assert await bench.look("orders", task) == stands(found)
        if stands(found):
            return written
    raise AssertionError("it never stood")


Deed = Callable[[Bench], Awaitable[bool]]
DEEDS: tuple[Deed, ...] = (submits, submits_together, claims, finishes, commits_a_submit, commits_a_finish)


async def everywhere(bench: Bench, wire: Cutting, deed: Deed, *, cold: bool) -> int:
    """The deed with the wire cut at its first moment, at its second, … until it ends before; how often its caller was told nothing of what was written.
    `cold`: connections have to be made first; else everything is prepared."""
    written = 0
    for n in range(1, MOST):
        if cold:
            await wire.renew()
        else:
            await deed(bench)
        wire.left = n
        written += await deed(bench)
        if wire.left > 0:
            wire.left = 0
            return written
    raise AssertionError("it never ends")


@pytest.mark.parametrize("deed", DEEDS)
async def test_the_wire_is_cut_before_any_answer(tmp_path: Path, postgres_url: str, deed: Deed) -> None:
    """At every word that the server says, those of connecting and preparing too."""
    history = tmp_path / "history"
    async with cutting(postgres_url) as (wire, url), client_of(url, history) as client, looking(client, postgres_url) as bench:
        unheard = [await everywhere(bench, wire, deed, cold=cold) for cold in (False, True)]
        assert min(unheard) > 0
    await judge(postgres_url, history, Bounds())


async def soonest(bench: Bench, fault: Terminating, deed: Deed) -> int:
    """Which of the deed's commits it was of which its caller was told nothing: the deed is done until one has been met."""
    for n in range(1, MOST):
        fault.left = n
        if await deed(bench):
            return n
        assert fault.left <= 0, "it was met nowhere"
    raise AssertionError("it never ends")


async def test_the_backend_is_terminated_before_the_answer(tmp_path: Path, private_postgres: Postgres) -> None:
    """Its transaction is committed and waits for a standby, as commits do before they are answered; the administrator ends it there."""
    url, history = private_postgres.databases.give(), tmp_path / "history"
    async with client_of(url_with(url, pool=1), history) as client, looking(client, url) as bench, terminating(private_postgres, url) as fault:
        met = [await soonest(bench, fault, deed) for deed in DEEDS]
        assert fault.ended == sum(met)
    await judge(url, history, Bounds())


@contextlib.asynccontextmanager
async def looking(client: Recorded, url: str) -> AsyncIterator[Bench]:
    """`url` goes past all faults, but for those of the server."""
    db = await asyncpg.connect(**parse(url).arguments())
    try:
        bench = Bench(client, db)
        await bench.join()
        yield bench
    finally:
        await db.close()
