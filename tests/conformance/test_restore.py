"""restore: whole records are inserted as they are, never over an existing one."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from taskmill.clock import HOUR, ManualClock
from taskmill.engine import Ending, Engine, Record, Status, Target
from taskmill.retry import Retry
from taskmill.task import Attempt, EdgeResult, ErrorInfo, OnFailure, Signal, State, Task, Unique, new_id
from tests.conformance.tools import all_tasks, ids_of, lose, new, record, state, submit_one, worker
from tests.conformance.tools_b import make


def whole(clock: ManualClock, **fields: Any) -> Task:
    """A task as another store had it."""
    now = clock.now()
    given = {"id": new_id(), "type": "work", "queue": "default", "payload": b'{"n": 1}', "priority": 1, "state": State.PENDING, "version": 5}
    times = {"run_at": now - HOUR, "created_at": now - HOUR, "updated_at": now - HOUR}
    return Task(**{**given, **times, **fields})


async def test_an_ended_record_is_kept_as_it_is(engine: Engine, clock: ManualClock) -> None:
    now = clock.now()
    task = whole(
        clock,
        state=State.DEAD,
        priority=3,
        executions=2,
        failures=2,
        phase="compensation_failed",
        retry=Retry(max_retries=9),
        timeout=HOUR // 2,
        max_crashes=7,
        tenant="acme",
        headers={"traceparent": "00-1"},
        tags={"run": "7"},
        error=ErrorInfo("oops", "no", "line 1"),
        finished_at=now - 5,
    )
    attempts = tuple(
        Attempt(number=n, worker=f"w{n}", token=n, started_at=now - 100 + n, ended_at=now - 50 + n, outcome="failed", error=ErrorInfo("oops")) for n in (1, 2)
    )
    await engine.restore([Record(task=task, attempts=attempts)])
    found = await record(engine, task.id)
    for name in Task.__struct_fields__:
        if name not in {"worker", "token", "started_at", "fair_key"}:
            assert getattr(found, name) == getattr(task, name), name
    assert await engine.attempts(task.id) == attempts
    assert [each.id for each in await all_tasks(engine)] == [task.id]


@pytest.mark.heard_only("a repeat finds the record there")
async def test_it_says_what_was_inserted(engine: Engine, clock: ManualClock) -> None:
    first, second = whole(clock), whole(clock)
    assert await engine.restore([Record(task=first)]) == (True,)
    assert await engine.restore([Record(task=first), Record(task=second)]) == (False, True)


async def test_never_over_an_existing_one(engine: Engine, clock: ManualClock) -> None:
    id = await submit_one(engine, "mine")
    before = await record(engine, id)
    assert await engine.restore([Record(task=whole(clock, id=id, state=State.DEAD), attempts=())]) == (False,)
    assert await record(engine, id) == before
    gone = await make(engine, State.COMPLETED)
    await engine.delete([Target(gone.id)])
    before_gone = await engine.get([gone.id])
    assert await engine.restore([Record(task=whole(clock, id=gone.id))]) == (False,)
    assert await engine.get([gone.id]) == before_gone


async def test_a_pending_one_goes_on_where_it_was(engine: Engine, clock: ManualClock) -> None:
    task = whole(clock, executions=3, failures=1, crashes=1, unwind=True, phase="running")
    attempts = tuple(Attempt(number=n, worker="w", token=n, started_at=n, ended_at=n + 1, outcome="released") for n in (1, 2, 3))
    signal = Signal(1, "go", b"1", new_id(), clock.now())
    await engine.restore([Record(task=task, attempts=attempts, checkpoints={"charge": b"7"}, signals=(signal,))])
    hand = await worker(engine)
    claimed = await hand.claim_one()
    assert (claimed.id, claimed.attempt, claimed.failures, claimed.crashes, claimed.version) == (task.id, 4, 1, 1, 6)
    assert (claimed.unwind, claimed.phase, dict(claimed.checkpoints), claimed.signals) == (True, "running", {"charge": b"7"}, (signal,))
    await hand.done(claimed)
    assert [attempt.number for attempt in await engine.attempts(task.id)] == [1, 2, 3, 4]


async def test_a_signal_after_the_restore_goes_on_counting(engine: Engine, clock: ManualClock) -> None:
    task = whole(clock)
    signal = Signal(4, "go", b"1", new_id(), clock.now())
    await engine.restore([Record(task=task, signals=(signal,))])
    assert await engine.signal(task.id, "go", b"1", signal.id) == 4
    assert await engine.signal(task.id, "go", b"2", new_id()) == 5


async def test_it_stands_in_line_by_its_age(engine: Engine, clock: ManualClock) -> None:
    younger = await submit_one(engine)
    older = whole(clock)
    later = whole(clock, state=State.SCHEDULED, run_at=clock.now() + HOUR)
    await engine.restore([Record(task=older), Record(task=later)])
    hand = await worker(engine)
    assert ids_of(await hand.claim(9)) == [older.id, younger]
    clock.advance("1h")
    assert ids_of(await hand.claim(9)) == [later.id]


async def test_one_that_ran_elsewhere_runs_again_here(engine: Engine, clock: ManualClock) -> None:
    """Its lease is not of this store: nobody here can end it, and it must not be lost."""
    task = whole(clock, state=State.RUNNING, executions=1, worker="elsewhere", token=77, started_at=clock.now() - 9)
    await engine.restore([Record(task=task)])
    await lose(engine, clock)
    hand = await worker(engine)
    claimed = await hand.claim_one()
    assert (claimed.id, claimed.attempt) == (task.id, 2)


async def test_a_waiting_one_is_woken_by_what_it_waits_for(engine: Engine, clock: ManualClock) -> None:
    first, second = whole(clock), whole(clock)
    parent = whole(clock, state=State.WAITING, open_edges=2)
    fallen = EdgeResult(new_id(), OnFailure.CANCEL, State.COMPLETED, b'"kept"')
    edges = (fallen, EdgeResult(first.id, OnFailure.CANCEL, None, None), EdgeResult(second.id, OnFailure.IGNORE, None, None))
    await engine.restore([Record(task=parent, edges=edges), Record(task=first), Record(task=second)])
    assert await engine.edges(parent.id) == edges
    hand = await worker(engine)
    one, two = await hand.claim(9)
    await hand.done(one, result=b"1")
    assert await state(engine, parent.id) is State.WAITING
    await hand.done(two, ending=Ending.DEAD)
    claimed = await hand.claim_one()
    assert claimed.id == parent.id
    by_task = {edge.task: edge for edge in claimed.results}
    assert by_task[fallen.task] == fallen
    assert (by_task[one.id].outcome, by_task[one.id].result, by_task[two.id].outcome) == (State.COMPLETED, b"1", State.DEAD)


async def test_one_that_waited_for_a_signal_does_not_wait_for_ever(engine: Engine, clock: ManualClock) -> None:
    """A record does not say for which: its handler may have to look for itself, but it must get a turn."""
    task = whole(clock, state=State.WAITING, executions=1)
    await engine.restore([Record(task=task)])
    await engine.signal(task.id, "go", b"1", new_id())
    assert ids_of(await (await worker(engine)).claim(5)) == [task.id]


async def test_its_keys_hold(engine: Engine, clock: ManualClock) -> None:
    task = whole(clock, idempotency_key="k", unique=Unique("one"))
    await engine.restore([Record(task=task)])
    same, other = new({"n": 1}, idempotency_key="k"), new({"n": 2}, idempotency_key="k")
    answers = await engine.submit([same, other, new(unique=Unique("one"))])
    assert [(answer.status, answer.id) for answer in answers] == [(Status.DUPLICATE, task.id), (Status.CONFLICT, task.id), (Status.DUPLICATE, task.id)]


async def test_a_limit_holds_for_what_was_restored(engine: Engine, clock: ManualClock) -> None:
    await engine.put("limit", "one", b'{"cap": 1}')
    await engine.restore([Record(task=whole(clock, limits=("one",))) for _ in range(3)])
    hand = await worker(engine)
    claimed = await hand.claim(9)
    assert len(claimed) == 1
    await hand.done(*claimed)
    assert len(await hand.claim(9)) == 1


async def test_the_records_of_one_store_can_be_restored_in_another(engine: Engine, clock: ManualClock) -> None:
    """What get, attempts and edges show is what restore takes."""
    made = [await make(engine, now, tags={"state": str(now)}) for now in State]
    taken = [
        Record(
            task=msgspec.structs.replace(await record(engine, each.id), id=new_id()), attempts=await engine.attempts(each.id), edges=await engine.edges(each.id)
        )
        for each in made
    ]
    await engine.restore(taken)
    for each in taken:
        if each.task.state in {State.RUNNING, State.WAITING}:  # no lease and no wait of another store holds here
            continue
        found = await record(engine, each.task.id)
        assert (found.state, found.payload, found.result, found.error, found.run_at, found.finished_at, found.version) == (
            each.task.state,
            each.task.payload,
            each.task.result,
            each.task.error,
            each.task.run_at,
            each.task.finished_at,
            each.task.version,
        )
