"""Ways to bring a task into any state, to let slow consequences come through, and to wait without hanging."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable
from typing import Any, NamedTuple, TypeVar

from taskmill.clock import HOUR
from taskmill.engine import Changed, Changes, Claimed, Ending, Engine, Item, Target, Term
from taskmill.task import Edge, NewTask, OnFailure, State
from tests.conformance.tools import Worker, new, record, step, submit, worker

T = TypeVar("T")

HANGS = 30.0
"""Seconds of real time after which something that should have come is said to hang."""

ENDED = (State.COMPLETED, State.DEAD, State.CANCELLED)
NOT_RUNNING = (State.PENDING, State.SCHEDULED, State.RETRYING, State.WAITING)
ALIVE = (*NOT_RUNNING, State.RUNNING)

ENDING_OF = {
    State.COMPLETED: Ending.COMPLETED,
    State.DEAD: Ending.DEAD,
    State.CANCELLED: Ending.CANCELLED,
    State.RETRYING: Ending.RETRY,
    State.WAITING: Ending.WAITING,
}
FIELDS_OF: dict[State, dict[str, Any]] = {State.COMPLETED: {"result": b'"made"'}, State.RETRYING: {"after": HOUR}, State.WAITING: {"signals": ("go",)}}


class Made(NamedTuple):
    """A task in the state asked for, the worker of its queue, and its lease where it had one."""

    id: str
    holder: Worker
    claimed: Claimed | None


async def make(engine: Engine, wanted: State, **fields: Any) -> Made:
    """A task in this state, alone in its queue unless one is named."""
    holder = Worker(engine)
    queue = fields.pop("queue", f"of-{holder.id}")
    holder.queues = (queue,)
    task = new(**{"queue": queue, **({"delay": HOUR} if wanted is State.SCHEDULED else {}), **fields})
    await holder.join(task.type)
    await submit(engine, task)
    claimed = None
    if wanted not in {State.PENDING, State.SCHEDULED}:
        claimed = await holder.claim_one()
        assert claimed.id == task.id
    if claimed is not None and wanted in ENDING_OF:
        await holder.done(claimed, ending=ENDING_OF[wanted], **FIELDS_OF.get(wanted, {}))
    assert (await record(engine, task.id)).state is wanted
    return Made(task.id, holder, claimed)


async def make_unwinding(engine: Engine, **fields: Any) -> Made:
    """A running task that only its handler may end."""
    made = await make(engine, State.RUNNING, **fields)
    assert made.claimed is not None
    assert await engine.checkpoint([step(made.claimed, unwind=True)]) == ()
    return made


async def settle(engine: Engine) -> None:
    """Let everything that was decided be applied: expiry, edges that fall in slices."""
    await engine.recover_lost()
    for _ in range(10_000):
        if not (await engine.recover_lost()).more:
            return
    raise AssertionError("recover_lost always says that there is more")


async def guarded(coming: Awaitable[T]) -> T:
    """What must come, or the test fails instead of hanging."""
    return await asyncio.wait_for(coming, HANGS)


async def seen(engine: Engine, id: str) -> Target:
    """The task as the caller saw it."""
    return Target(id, (await record(engine, id)).version)


def the_only(changes: Changes) -> Changed:
    [changed] = changes.tasks
    return changed


async def led(engine: Engine, role: str = "maintenance", holder: str = "leader") -> Term:
    term = await engine.lead(role, holder)
    assert term is not None
    return term


async def deposed(engine: Engine, clock: Any, role: str = "maintenance") -> Term:
    """A term that is over because its holder fell silent and another began to lead."""
    old = await led(engine, role, "old")
    clock.advance("5s")
    new_term = await led(engine, role, "new")
    assert new_term.number > old.number
    return old


async def item(engine: Engine, kind: str, name: str) -> Item | None:
    """The setting in force."""
    return {each.name: each for each in await engine.items(kind)}.get(name)


def decoded(data: bytes) -> Any:
    return json.loads(data)


def after(*children: NewTask | str, on_failure: OnFailure = OnFailure.CANCEL, **fields: object) -> NewTask:
    """A task that waits for these."""
    return new(**{"edges": tuple(Edge(child if isinstance(child, str) else child.id, on_failure) for child in children), **fields})


async def finish_next(engine: Engine, ending: Ending = Ending.COMPLETED, **fields: object) -> str:
    """The next ready task runs and ends."""
    hand = await worker(engine)
    claimed = await hand.claim_one()
    await hand.done(claimed, ending=ending, **fields)
    return claimed.id
