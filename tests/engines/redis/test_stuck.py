"""What recovery leaves alone: a task that waits, by more edges than one look follows."""

from __future__ import annotations

from taskmill.clock import ManualClock
from taskmill.engines import create
from taskmill.task import Edge, State
from tests.conformance.tools import new, state, submit, worker

EDGES = 1_003
OPEN = 2


async def test_a_task_with_many_edges_waits_for_the_last_of_them(redis_url: str) -> None:
    clock = ManualClock()
    engine = create(redis_url, clock=clock)
    await engine.open()
    hand = await worker(engine)
    children = [new(n) for n in range(EDGES)]
    parent = new("parent", edges=tuple(Edge(child.id) for child in children))
    await submit(engine, *children, parent)
    claimed = []
    while some := await hand.claim(200):
        claimed += some
    await hand.done(*claimed[:-OPEN])
    other = create(redis_url, clock=clock)
    await other.open()
    for each in (engine, other):  # each looks once a minute
        while (await each.recover_lost()).more:
            pass
    assert await state(engine, parent.id) is State.WAITING
    assert "stuck_waiting" not in {finding.code for finding in await engine.check()}
    await hand.done(*claimed[-OPEN:])
    while (await engine.recover_lost()).more:
        pass
    assert await state(engine, parent.id) is State.PENDING
    await other.close()
    await engine.close()
