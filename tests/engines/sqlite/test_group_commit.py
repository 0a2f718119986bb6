"""Steps that wait while another commits share the next commit: one sync for all of them, and still nobody pays for another's fault."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import apsw
import pytest

from taskmill.clock import ManualClock
from taskmill.engine import Status, Submitted
from taskmill.engines.sqlite.engine import SQLiteEngine
from taskmill.engines.sqlite.step import Step
from taskmill.engines.sqlite.submit import submit as submit_step
from taskmill.errors import Conflict, NotFound, StaleVersion
from taskmill.task import Task, new_id
from tests.conformance.tools import ids_of, new, submit_one, worker
from tests.engines.sqlite.conftest import Opened

SOON = 10.0
"""Seconds after which an answer never comes; nothing is judged by it."""
BUSY = 1
"""The commit of the step that keeps the writer busy meanwhile."""


@pytest.fixture
async def engine(opened: Opened) -> SQLiteEngine:
    return await opened()


class Commits:
    """How often SQLite has committed something on the engine's writing connection, by its own word."""

    def __init__(self, engine: SQLiteEngine) -> None:
        self.number = 0
        cast("apsw.Connection", engine._writer._session.db).set_commit_hook(self._count)

    def _count(self) -> bool:
        self.number += 1
        return False


@contextlib.asynccontextmanager
async def busy(engine: SQLiteEngine) -> AsyncIterator[None]:
    """The writer is in the middle of a step that changes nothing; whatever is asked meanwhile waits, and is one group afterwards."""
    began, go_on = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def wait(step: Step) -> None:
        loop.call_soon_threadsafe(began.set)
        go_on.wait(SOON)

    waiting = asyncio.ensure_future(engine._write(wait))
    await began.wait()
    try:
        yield
        await asyncio.sleep(0)  # everybody has asked
    finally:
        go_on.set()
    await waiting


async def group(engine: SQLiteEngine, *calls: Any) -> list[Any]:
    """What these calls answer when they share a transaction; an error is an answer."""
    async with busy(engine):
        asked = [asyncio.ensure_future(call) for call in calls]
    async with asyncio.timeout(SOON):
        return await asyncio.gather(*asked, return_exceptions=True)


def failing(error: BaseException | type[BaseException]) -> Callable[[Step], None]:
    """A step that has already written something, made a lane and told an event when it fails."""

    def fail(step: Step) -> None:
        submit_step(step, [new(type="of-the-failing", queue="made-by-the-failing", order_key="lane")])
        raise error

    return fail


async def there(engine: SQLiteEngine) -> list[str]:
    return sorted(task.type for task in (await engine.list(n=1_000)).tasks)


async def test_one_after_the_other_each_has_its_own_commit(engine: SQLiteEngine) -> None:
    commits = Commits(engine)
    for _ in range(5):
        await submit_one(engine)
    assert commits.number == 5


async def test_submits_that_wait_share_one_commit(engine: SQLiteEngine) -> None:
    commits = Commits(engine)
    tasks = [new(n) for n in range(64)]
    answers = await group(engine, *(engine.submit([task]) for task in tasks))
    assert [(answer.id, answer.status) for (answer,) in answers] == [(task.id, Status.CREATED) for task in tasks]
    assert commits.number == BUSY + 1
    assert [isinstance(task, Task) for task in await engine.get([task.id for task in tasks])] == [True] * 64


async def test_submits_of_callers_that_nobody_holds_up_share_commits_too(engine: SQLiteEngine) -> None:
    commits = Commits(engine)
    await asyncio.gather(*(engine.submit([new(n)]) for n in range(64)))
    assert commits.number <= 8


async def test_every_caller_gets_the_answers_of_its_own_tasks(engine: SQLiteEngine) -> None:
    first = new({"n": 1})
    bad, late = new(type="Not A Name"), new(delay=-1)
    batches = [[new(n) for n in range(size)] for size in (3, 0, 1, 5)]
    batches += [[first, bad], [late, new(), first], [new({"n": 2}, id=first.id)]]
    answers: list[tuple[Submitted, ...]] = await group(engine, *(engine.submit(batch) for batch in batches))
    assert [[answer.id for answer in each] for each in answers] == [[task.id for task in batch] for batch in batches]
    assert {answer.status for each in answers[:4] for answer in each} == {Status.CREATED}
    assert [answer.status for answer in answers[4]] == [Status.CREATED, Status.REFUSED]
    assert [answer.status for answer in answers[5]] == [Status.REFUSED, Status.CREATED, Status.DUPLICATE]
    assert [answer.status for answer in answers[6]] == [Status.CONFLICT]


async def test_verbs_of_every_kind_share_a_commit(engine: SQLiteEngine) -> None:
    one = await worker(engine)
    id = await submit_one(engine)
    commits = Commits(engine)
    claimed, stored, item, term = await group(engine, one.claim(), engine.submit([new()]), engine.put("note", "a", b"1"), engine.lead("scheduler", "me"))
    assert BUSY < commits.number <= BUSY + 2  # lead looks at the term first, so it may come a little later
    assert ids_of(claimed) == [id]
    assert stored[0].status is Status.CREATED
    assert (item.name, item.version, term.holder) == ("a", 1, "me")


async def test_a_refusal_takes_back_only_itself(engine: SQLiteEngine) -> None:
    commits = Commits(engine)
    answers = await group(
        engine,
        engine.put("note", "a", b"1", version=7),
        engine.put("note", "b", b"1"),
        engine._write(failing(Conflict("no"))),
        engine.submit([new(type="stored")]),
        engine.signal(new_id(), "go", b"null", "s"),
        engine.put("note", "c", b"1"),
    )
    assert commits.number == BUSY + 1
    assert [type(answer) for answer in (answers[0], answers[2], answers[4])] == [StaleVersion, Conflict, NotFound]
    assert [item.name for item in await engine.items("note")] == ["b", "c"]
    assert await there(engine) == ["stored"]


async def test_what_a_refused_step_made_is_not_used_by_the_next(engine: SQLiteEngine) -> None:
    """Its queue, share and lane had numbers that were taken back with it: whoever needs them makes them anew."""
    mine = new(type="mine", queue="made-by-the-failing", order_key="lane")
    answers = await group(
        engine,
        engine._write(failing(Conflict("no"))),
        engine._write(lambda step: submit_step(step, [mine])),
        engine._write(lambda step: submit_step(step, [new(type="mine", queue="another", order_key="lane")])),
    )
    assert isinstance(answers[0], Conflict)
    one = await worker(engine, "mine", queues=("made-by-the-failing",))
    assert ids_of(await one.claim(10)) == [mine.id]


async def test_events_of_a_refused_step_are_not_told(engine: SQLiteEngine) -> None:
    async with contextlib.aclosing(await engine.events()) as events:
        stored = new(type="stored")
        await group(engine, engine._write(failing(Conflict("no"))), engine._write(lambda step: submit_step(step, [stored])))
        async with asyncio.timeout(SOON):
            told = await anext(events)
            while told.kind == "resync":
                told = await anext(events)
        assert told.subject == stored.id


@pytest.mark.parametrize("error", [ZeroDivisionError, apsw.SQLError, KeyError, RecursionError, StopIteration])
async def test_an_unforeseen_error_is_its_callers_own(engine: SQLiteEngine, error: type[Exception]) -> None:
    answers = await group(
        engine,
        engine.put("note", "before", b"1"),
        engine.submit([new(type="stored")]),
        engine._write(failing(error)),
        engine.submit([new(type="stored")]),
        engine.put("note", "after", b"1"),
    )
    assert isinstance(answers[2], Exception)
    assert [answers[0].version, answers[4].version] == [1, 1]
    assert [answers[1][0].status, answers[3][0].status] == [Status.CREATED, Status.CREATED]
    assert [item.name for item in await engine.items("note")] == ["after", "before"]
    assert await there(engine) == ["stored", "stored"]


async def test_a_step_that_is_tried_again_alone_counts_once(engine: SQLiteEngine, clock: ManualClock) -> None:
    await engine.put("limit", "rate", b'{"rate": 2, "window": 60000000}')
    answers = await group(engine, engine.take("rate", 1, "one"), engine._write(failing(ZeroDivisionError)))
    assert answers[0].granted
    assert (await engine.take("rate", 1, "two")).granted
    assert not (await engine.take("rate", 1, "three")).granted


@pytest.mark.parametrize("error", [MemoryError, SystemExit, KeyboardInterrupt, GeneratorExit])
async def test_the_writer_survives_whatever_a_step_raises(engine: SQLiteEngine, error: type[BaseException]) -> None:
    async def ask() -> str:
        try:
            await engine._write(failing(error))
        except BaseException as raised:  # one that would end the loop itself, were it let through
            return type(raised).__name__
        return "an answer"

    assert (await group(engine, ask()))[0] == error.__name__
    assert await there(engine) == []
    assert (await group(engine, engine.submit([new(type="later")])))[0][0].status is Status.CREATED
    assert await there(engine) == ["later"]


async def test_nothing_of_a_group_stands_for_which_memory_did_not_suffice(engine: SQLiteEngine) -> None:
    """Trying each alone would need more of it: everybody is told, nobody is stored, and everybody may ask again."""
    task = new(type="stored")
    answers = await group(engine, engine.submit([task]), engine._write(failing(MemoryError)), engine.put("note", "a", b"1"))
    assert [type(answer) for answer in answers] == [MemoryError] * 3
    assert await there(engine) == []
    assert await engine.items("note") == ()
    assert (await engine.submit([task]))[0].status is Status.CREATED


async def test_an_answer_that_cannot_be_made(engine: SQLiteEngine) -> None:
    """The step stands; only whoever asked is told that its answer could not be put together."""

    def broken(found: int) -> int:
        return found // 0

    answers = await group(engine, engine._writer.run_then(lambda step: 1, broken), engine.submit([new(type="stored")]))
    assert isinstance(answers[0], ZeroDivisionError)
    assert answers[1][0].status is Status.CREATED
    async with asyncio.timeout(SOON):
        await submit_one(engine)


async def test_a_caller_that_left_holds_nobody_up(engine: SQLiteEngine) -> None:
    tasks = [new(n) for n in range(3)]
    async with busy(engine):
        asked = [asyncio.ensure_future(engine.submit([task])) for task in tasks]
        await asyncio.sleep(0)
        asked[1].cancel()
    async with asyncio.timeout(SOON):
        first, gone, last = await asyncio.gather(*asked, return_exceptions=True)
    assert isinstance(gone, asyncio.CancelledError)
    assert not isinstance(first, BaseException)
    assert not isinstance(last, BaseException)
    assert [first[0].status, last[0].status] == [Status.CREATED, Status.CREATED]
    assert (await engine.submit([tasks[1]]))[0].status in {Status.CREATED, Status.DUPLICATE}


async def test_what_was_asked_for_before_the_close_is_still_done(opened: Opened) -> None:
    engine, other = await opened(), await opened()
    tasks = [new(n) for n in range(20)]
    async with busy(engine):
        asked = [asyncio.ensure_future(engine.submit([task])) for task in tasks]
        await asyncio.sleep(0)
        closing = asyncio.ensure_future(engine.close())
        await asyncio.sleep(0)
    async with asyncio.timeout(SOON):
        await closing
        answers = await asyncio.gather(*asked)
    assert {answer.status for (answer,) in answers} == {Status.CREATED}
    assert all(isinstance(task, Task) for task in await other.get([task.id for task in tasks]))
