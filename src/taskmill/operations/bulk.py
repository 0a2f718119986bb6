"""Cancel, requeue and delete on many tasks: batch after batch to the end of a filter, told as it goes, or only counted.

A filter is narrowed to the states in which the verb means something, so that a dry run counts exactly what the verb would be tried on. Every batch is
one step of the store; whoever is interrupted repeats the whole, and what was done already is not done twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

from msgspec.structs import replace

from taskmill.engine import Changed, Changes, Engine, Filter, Target
from taskmill.errors import InvalidInput
from taskmill.operations.model import Tally
from taskmill.operations.tasks import matching
from taskmill.task import LIVE, TERMINAL, State, Task

__all__ = ["Tallying", "cancel", "delete", "narrowed", "requeue", "targets"]

BATCH = 500

Which = Sequence[Target] | Filter
Progress = Callable[[int], None]
Change = Callable[[Which, str | None], Awaitable[Changes]]


async def cancel(engine: Engine, which: Which, *, dry_run: bool, progress: Progress | None) -> Tally:
    which = narrowed(which, "cancelled", LIVE)
    return await _many(engine, which, LIVE, lambda batch, after: engine.cancel(batch, after=after, n=BATCH), dry_run, progress)


async def requeue(engine: Engine, which: Which, *, from_start: bool, dry_run: bool, progress: Progress | None) -> Tally:
    """Without a state only what is dead: nobody means to run again all that went well."""
    which = narrowed(which, "requeued", TERMINAL, default=frozenset({State.DEAD}))
    return await _many(engine, which, TERMINAL, lambda batch, after: engine.requeue(batch, from_start=from_start, after=after, n=BATCH), dry_run, progress)


async def delete(engine: Engine, which: Which, *, dry_run: bool, progress: Progress | None) -> Tally:
    which = narrowed(which, "deleted", TERMINAL)
    return await _many(engine, which, TERMINAL, lambda batch, after: engine.delete(batch, after=after, n=BATCH), dry_run, progress)


def targets(which: Sequence[Target]) -> Sequence[Target]:
    """Ids alone are refused: the letters of one would be taken for many."""
    if not all(isinstance(each, Target) for each in which):
        raise InvalidInput("it is neither a list of targets nor a filter", field="which", hint="write [Target(id)] or Filter(…), of taskmill.operations")
    return which


def narrowed(which: Which, done: str, states: frozenset[State], default: frozenset[State] | None = None) -> Which:
    """Of the states asked for, those in which a task can be `done` at all."""
    if not isinstance(which, Filter):
        return targets(which)
    left = which.states & states if which.states else default or states
    if not left:
        asked = ", ".join(sorted(which.states))
        raise InvalidInput(f"a task that is {asked} cannot be {done}", code="wrong_state", field="states", hint=f"one of {', '.join(sorted(states))}")
    return replace(which, states=left)


class Tallying:
    """Counts what came of each task, and tells how far it is."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        self._matched = self._done = self._requested = 0
        self._refused: Counter[str] = Counter()

    def matched(self, number: int) -> None:
        self._matched += number
        if self._progress is not None:
            self._progress(self._matched)

    def add(self, changed: Sequence[Changed]) -> None:
        for change in changed:
            if change.requested:
                self._requested += 1
            elif change.done:
                self._done += 1
            else:
                self._refused[change.code or "refused"] += 1
        self.matched(len(changed))

    def tally(self) -> Tally:
        return Tally(matched=self._matched, done=self._done, requested=self._requested, refused=dict(sorted(self._refused.items())))


async def _many(engine: Engine, which: Which, states: frozenset[State], change: Change, dry_run: bool, progress: Progress | None) -> Tally:
    tallying = Tallying(progress)
    if dry_run:
        await count(engine, which, states, tallying)
    elif isinstance(which, Filter):
        await _each_batch(which, change, tallying)
    else:
        for start in range(0, len(which), BATCH):
            tallying.add((await change(which[start : start + BATCH], None)).tasks)
    return tallying.tally()


async def _each_batch(which: Filter, change: Change, tallying: Tallying) -> None:
    cursor = None
    while True:
        changes = await change(which, cursor)
        tallying.add(changes.tasks)
        cursor = changes.cursor
        if cursor is None:
            return


async def count(engine: Engine, which: Which, states: frozenset[State], tallying: Tallying) -> None:
    """What the verb would be tried on; nothing is changed."""
    if isinstance(which, Filter):
        async for ids in matching(engine, which):
            tallying.matched(len(ids))
        return
    for start in range(0, len(which), BATCH):
        found = await engine.get([target.task for target in which[start : start + BATCH]])
        tallying.matched(sum(isinstance(task, Task) and task.state in states for task in found))
