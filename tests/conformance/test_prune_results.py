"""prune: results of completed tasks go after a time of their own; their records stay."""

from __future__ import annotations

import pytest

from taskmill.clock import DAY, ManualClock
from taskmill.engine import Engine, Retention
from taskmill.errors import StaleTerm
from taskmill.task import State
from tests.conformance.tools import Store, record, submit, submit_many, worker
from tests.conformance.tools_b import after, deposed, led, make, settle

SHORT = Retention(results=DAY)


async def prune_all(engine: Engine, retention: Retention = SHORT) -> None:
    for _ in range(100):
        if not (await engine.prune(3, await led(engine), retention)).more:
            return
    raise AssertionError("prune always says that there is more")


async def test_a_result_goes_when_its_time_is_over_and_the_record_stays(engine: Engine, clock: ManualClock) -> None:
    made = await make(engine, State.COMPLETED)
    before = await record(engine, made.id)
    clock.advance("23h")
    await prune_all(engine)
    assert await record(engine, made.id) == before
    clock.advance("61m")
    await prune_all(engine)
    gone = await record(engine, made.id)
    assert (gone.state, gone.result, gone.finished_at) == (State.COMPLETED, None, before.finished_at)
    assert len(await engine.attempts(made.id)) == 1


async def test_every_result_goes_of_many_that_ended_at_one_moment_and_of_later_ones(engine: Engine, clock: ManualClock) -> None:
    holder = await worker(engine)
    ids = await submit_many(engine, 10)
    await holder.done(*await holder.claim(10), result=b"1")
    clock.advance("25h")
    await prune_all(engine)
    ids += await submit_many(engine, 4)
    await holder.join()
    await holder.done(*await holder.claim(10), result=b"2")
    assert [(await record(engine, id)).result for id in ids] == [None] * 10 + [b"2"] * 4
    clock.advance("25h")
    await prune_all(engine)
    assert [(await record(engine, id)).result for id in ids] == [None] * 14


async def test_a_task_that_waits_still_gets_what_it_waited_for(engine: Engine, clock: ManualClock) -> None:
    made = await make(engine, State.COMPLETED)
    [waiter] = await submit(engine, after(made.id, queue=made.holder.queues[0]))
    await settle(engine)
    clock.advance("25h")
    await prune_all(engine)
    assert (await record(engine, made.id)).result is None
    await made.holder.join()
    claimed = await made.holder.claim_one()
    assert (claimed.id, [edge.result for edge in claimed.results]) == (waiter, [b'"made"'])


async def test_results_are_kept_as_long_as_records_unless_told_otherwise(engine: Engine, clock: ManualClock) -> None:
    made = await make(engine, State.COMPLETED)
    clock.advance("13d")
    await prune_all(engine, Retention())
    assert (await record(engine, made.id)).result == b'"made"'


async def test_another_process_drops_what_the_first_has_not(store: Store, clock: ManualClock) -> None:
    first, second = await store.engines(2)
    made = await make(first, State.COMPLETED)
    clock.advance("25h")
    await prune_all(second)
    assert (await record(first, made.id)).result is None


async def test_a_leader_whose_term_is_over_drops_nothing(engine: Engine, clock: ManualClock) -> None:
    made = await make(engine, State.COMPLETED)
    clock.advance("25h")
    old = await deposed(engine, clock)
    with pytest.raises(StaleTerm):
        await engine.prune(10, old, SHORT)
    assert (await record(engine, made.id)).result == b'"made"'
