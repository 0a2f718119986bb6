"""What becomes due earlier than a sleeper knows wakes it: a worker sleeps until the time that its last claim was told."""

from __future__ import annotations

from contextlib import aclosing

import pytest

from taskmill.clock import HOUR, SECOND, ManualClock
from taskmill.engine import Ending, Engine, Room
from tests.conformance.tools import QUEUE, Store, new, submit, worker
from tests.conformance.tools_b import guarded

ENDINGS: list[tuple[Ending, dict[str, object]]] = [
    (Ending.RETRY, {"after": SECOND}),
    (Ending.SNOOZED, {"after": SECOND}),
    (Ending.WAITING, {"signals": ("go",), "deadline": SECOND}),
]


@pytest.mark.parametrize(("ending", "fields"), ENDINGS, ids=[ending.value for ending, _ in ENDINGS])
async def test_a_finish_that_leaves_something_for_earlier(engine: Engine, store: Store, clock: ManualClock, ending: Ending, fields: dict[str, object]) -> None:
    other = await store.engine()
    sleeper, busy = await worker(engine), await worker(other)
    await submit(other, new("now"), new("later", delay=HOUR))
    claimed = await busy.claim_one()
    sleeper.request += 1
    asleep = await engine.claim(sleeper.id, sleeper.request, [QUEUE], Room(5))
    assert (asleep.tasks, asleep.next_at) == ((), clock.now() + HOUR)
    async with aclosing(await engine.wakeups()) as wakeups:
        await busy.done(claimed, ending=ending, **fields)
        await guarded(anext(wakeups))
    sleeper.request += 1
    awake = await engine.claim(sleeper.id, sleeper.request, [QUEUE], Room(5))
    assert awake.next_at == clock.now() + SECOND
    clock.advance(1)
    assert [task.id for task in await sleeper.claim(5)] == [claimed.id]


async def test_a_submit_for_earlier(engine: Engine, store: Store, clock: ManualClock) -> None:
    other = await store.engine()
    sleeper = await worker(engine)
    await submit(other, new("later", delay=HOUR))
    async with aclosing(await engine.wakeups()) as wakeups:
        [id] = await submit(other, new("sooner", delay=SECOND))
        await guarded(anext(wakeups))
    clock.advance(1)
    assert [task.id for task in await sleeper.claim(5)] == [id]
