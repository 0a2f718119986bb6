"""Lists, newest first: by the index of a state where one is asked for, else past all ids. Other conditions look at records as they pass."""

from __future__ import annotations

from collections.abc import Sequence

from taskmill.engine import Filter, Page
from taskmill.engines.redis.inspect import get
from taskmill.engines.redis.store import Store
from taskmill.engines.rows import NUMBERS
from taskmill.errors import InvalidInput
from taskmill.task import State, Task

__all__ = ["list_tasks", "matching"]

MOST_ROWS = 1_000
LEAST_LOOK = 100
LOOKS = 100
"""Times that one page asks for more before it says where to go on."""
LOOKED_AT = 10_000
"""Records that one page looks at before it says so."""


async def list_tasks(store: Store, which: Filter, after: str | None, n: int) -> Page:
    tasks, cursor = await _page(store, which, after, n)
    return Page(tuple(tasks), cursor)


async def matching(store: Store, which: Filter, after: str | None, n: int) -> tuple[list[str], str | None]:
    tasks, cursor = await _page(store, which, after, n)
    return [task.id for task in tasks], cursor


async def _page(store: Store, which: Filter, after: str | None, n: int) -> tuple[list[Task], str | None]:
    """Past what does not match, up to a bound; the cursor goes on from there, and None is the end."""
    if not 0 < n <= MOST_ROWS:
        raise InvalidInput(f"{n} is out of range", code="out_of_range", field="n", hint=f"1 to {MOST_ROWS}")
    if after is not None and not (after.isascii() and after.isdecimal() and int(after) < 1 << 63):
        raise InvalidInput(f"{after!r:.40} is not a cursor", code="invalid_cursor", field="after", hint="pass on what the page before answered")
    tasks: list[Task] = []
    looked, last = 0, None if after is None else int(after)
    for _ in range(LOOKS):
        numbers, ids, reached = await _next(store, which.states, last, max(n, LEAST_LOOK))
        for number, task in zip(numbers, await get(store, ids), strict=True):
            if isinstance(task, Task) and _matches(task, which):
                tasks.append(task)
                if len(tasks) == n:
                    return tasks, str(number)
        if reached is None:
            return tasks, None
        looked, last = looked + len(ids), reached
        if looked >= LOOKED_AT:
            break
    return tasks, str(last)


async def _next(store: Store, states: frozenset[State], after: int | None, n: int) -> tuple[list[int], list[str], int | None]:
    """Numbers and ids of tasks that may match, newest first, and how far that is complete: None at the end."""
    if not states or len(states) == len(State):
        start = "+inf" if after is None else f"({after}"
        found = await store.ask("ZREVRANGEBYSCORE", store.key("ids"), start, "-inf", "WITHSCORES", "LIMIT", 0, n)
        numbers = [int(score) for score in found[1::2]]
        return numbers, [id.decode() for id in found[::2]], numbers[-1] if len(numbers) == n else None
    rows: list[tuple[int, str]] = []
    reached: list[int] = []
    for state in sorted(states):
        flat, complete = await store.run("index", [NUMBERS[state], False if after is None else after, n])
        rows += _pairs(flat or ())
        reached += [] if complete is False else [complete]
    until = max(reached, default=None)
    rows = sorted((row for row in set(rows) if until is None or row[0] >= until), reverse=True)
    return [number for number, _ in rows], [id for _, id in rows], until


def _pairs(flat: Sequence[int | str]) -> list[tuple[int, str]]:
    return [(int(number), str(id)) for number, id in zip(flat[::2], flat[1::2], strict=True)]


def _matches(task: Task, which: Filter) -> bool:
    return (
        (not which.states or task.state in which.states)
        and (not which.types or task.type in which.types)
        and (not which.queues or task.queue in which.queues)
        and (which.tenant is None or task.tenant == which.tenant)
        and all(task.tags.get(name) == value for name, value in which.tags.items())
        and (which.created_from is None or task.created_at >= which.created_from)
        and (which.created_to is None or task.created_at < which.created_to)
    )
