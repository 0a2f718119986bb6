"""Single tasks and streams of them: submitted, looked at, waited for, signalled."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence

from taskmill.batching import batches
from taskmill.clock import HOUR, SECOND
from taskmill.engine import Durability, Engine, Filter, Page, Status, Submitted, Transaction
from taskmill.errors import Conflict, Expired, NotFound, ResultTimeout, TaskmillError
from taskmill.task import Attempt, EdgeResult, Gone, NewTask, State, Task, check_id, new_id

__all__ = ["attempts", "count", "edges", "get", "page", "pages", "result", "signal", "submit_many", "submitted", "wait"]

BATCH = 1_000
"""Tasks of one commit: few enough that a claim that waits for it does not notice."""
BATCH_BYTES = 8_000_000
"""Payload of one commit: a thousand of the largest would be a quarter of a gigabyte in memory and in the log."""

LOOKS_FOR = 10.0
"""Seconds that a page is looked for before it is answered as it is."""

EXISTS = frozenset({Status.CREATED, Status.DUPLICATE, Status.REPLACED})


def submitted(answer: Submitted) -> Submitted:
    """The answer, if the task exists now; otherwise what became of it is raised, with the id of the task that stands in its way."""
    if answer.status in EXISTS:
        return answer
    error = answer.error or TaskmillError(f"the task was {answer.status}", hint="this is a defect of the engine: it gave no reason")
    error.task_id = answer.id
    raise error


async def submit_many(
    engine: Engine, new: Iterable[NewTask], progress: Callable[[int], None] | None, tx: Transaction | None, durability: Durability | None
) -> tuple[Submitted, ...]:
    """While the store takes a batch the next is made. They reach it in their order; when one fails, those behind it are not sent.

    In a transaction one goes after the other, here: its connection takes one at a time, and may be one that blocks, on a thread without a loop.
    """
    answers: list[Submitted] = []
    if tx is not None:
        for batch in _batches(new):
            answers += await engine.submit(batch, durability=durability, tx=tx)
            if progress is not None:
                progress(len(answers))
        return tuple(answers)
    sent: deque[asyncio.Task[tuple[Submitted, ...]]] = deque()

    async def take() -> None:
        answers.extend(await sent[0])
        del sent[0]
        if progress is not None:
            progress(len(answers))

    try:
        for batch in _batches(new):
            sent.append(asyncio.create_task(engine.submit(batch, durability=durability)))
            await asyncio.sleep(0)
            if len(sent) == 2:
                await take()
        while sent:
            await take()
    finally:
        for left in sent:
            left.cancel()
        if sent:
            await asyncio.wait(sent)
    return tuple(answers)


def _batches(new: Iterable[NewTask]) -> Iterator[list[NewTask]]:
    return batches(new, BATCH, lambda task: len(task.payload), BATCH_BYTES)


# Looking


async def get(engine: Engine, id: str) -> Task:
    [found] = await engine.get([check_id(id)])
    if isinstance(found, Task):
        return found
    raise _absent(id, found)


def _absent(id: str, found: Gone | None) -> TaskmillError:
    error: TaskmillError
    if found is None:
        error = NotFound(f"there is no task {id}", field="id", hint="ids are known for 72 h after the submit, or as long as the task's own window says")
    elif found.state is None:
        error = Conflict(f"task {id} is accepted and not yet here", code="reserved", field="id", hint="the log brings it; ask again in a moment")
    else:
        error = Expired(f"the record of task {id} is gone; it was {found.state}", field="id", hint="it was pruned or deleted; retention is a setting")
        error.state = found.state
    error.task_id = id
    return error


async def attempts(engine: Engine, id: str) -> tuple[Attempt, ...]:
    await get(engine, id)
    return await engine.attempts(id)


async def edges(engine: Engine, id: str, after: int, n: int) -> tuple[EdgeResult, ...]:
    await get(engine, id)
    return await engine.edges(id, after=after, n=n)


async def page(engine: Engine, which: Filter, after: str | None, n: int) -> Page:
    """A full one, or the last. A store without an index for the filter may have to look for long: then what was found so far, and the cursor."""
    found: list[Task] = []
    until = time.monotonic() + LOOKS_FOR
    while True:
        some = await engine.list(which, after=after, n=n - len(found))
        found += some.tasks
        after = some.cursor
        if after is None or len(found) >= n or time.monotonic() > until:
            return Page(tuple(found), after)


async def pages(engine: Engine, which: Filter, n: int) -> AsyncIterator[Page]:
    cursor = None
    while True:
        page = await engine.list(which, after=cursor, n=n)
        yield page
        cursor = page.cursor
        if cursor is None:
            return


async def count(engine: Engine, which: Filter) -> int:
    if which.tenant is None and not which.tags and which.created_from is None and which.created_to is None:
        return sum(
            count.tasks
            for count in await engine.counts()
            if (not which.states or count.state in which.states)
            and (not which.types or count.type in which.types)
            and (not which.queues or count.queue in which.queues)
        )
    return sum([len(ids) async for ids in matching(engine, which)])


async def matching(engine: Engine, which: Filter) -> AsyncIterator[tuple[str, ...]]:
    """Ids of all that match, page after page; no payload is read for them."""
    cursor = None
    while True:
        page = await engine.matching(which, after=cursor)
        yield page.ids
        cursor = page.cursor
        if cursor is None:
            return


# Waiting


async def wait(engine: Engine, ids: Sequence[str], timeout: int | None, *, every: bool) -> dict[str, State]:
    """The first look is not bounded by the timeout, so what has ended is seen with a timeout of 0 too."""
    ended = await engine.wait(ids, 0)
    try:
        async with asyncio.timeout(None if timeout is None else timeout / SECOND):
            while (every or not ended) and (left := [id for id in ids if id not in ended]):
                ended |= await engine.wait(left, HOUR if timeout is None else min(timeout, HOUR))
    except TimeoutError:
        pass
    return ended


async def result(engine: Engine, id: str, timeout: int | None) -> Task:
    if not await wait(engine, [id], timeout, every=True):
        raise ResultTimeout(f"task {id} has not ended yet", task_id=id, hint="it goes on; wait longer, or look at it later")
    return await get(engine, id)


async def signal(engine: Engine, id: str, name: str, data: bytes, signal_id: str | None) -> int:
    await get(engine, id)
    return await engine.signal(id, name, data, signal_id or new_id())
