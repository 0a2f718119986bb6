"""What one task can have is bounded: steps, signals, and the bytes of one claim; its edges are read page by page."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from taskmill.clock import HOUR, ManualClock
from taskmill.engine import Checkpoint, Claimed, Ending, Engine, Record, Room
from taskmill.errors import InvalidInput
from taskmill.task import MOST_SIGNAL_BYTES, MOST_SIGNALS, MOST_STEP_BYTES, MOST_STEPS, Edge, Signal, State, Task, new_id
from tests.conformance.tools import QUEUE, Worker, ids_of, new, record, state, step, submit, submit_many, worker
from tests.conformance.tools_b import Made, after, make

LARGE = 210_000
ROOM_STEPS = MOST_STEP_BYTES // (LARGE + 100)
"""So many large steps have room, with a little to spare for their names."""
ROOM_SIGNALS = MOST_SIGNAL_BYTES // (LARGE + 200)


def text(size: int) -> bytes:
    return b'"' + b"x" * (size - 2) + b'"'


async def running(engine: Engine) -> tuple[Made, Claimed]:
    made = await make(engine, State.RUNNING)
    assert made.claimed
    return made, made.claimed


def steps(claimed: Claimed, numbers: Sequence[int], size: int = 4) -> list[Checkpoint]:
    return [Checkpoint(task=claimed.id, worker=claimed.worker, token=claimed.token, name=f"step-{n}", value=text(size)) for n in numbers]


# Steps.


async def test_a_task_has_so_many_steps(engine: Engine) -> None:
    made, claimed = await running(engine)
    assert await engine.checkpoint(steps(claimed, range(MOST_STEPS))) == ()
    [refused] = await engine.checkpoint(steps(claimed, [MOST_STEPS]))
    assert (refused.task, refused.token, refused.code) == (claimed.id, claimed.token, "too_many_steps")
    assert await engine.checkpoint(steps(claimed, [0, MOST_STEPS - 1], size=8)) == (), "a step that is there may change"
    await made.holder.done(claimed, ending=Ending.RETRY)
    again = await made.holder.claim_one()
    assert len(again.checkpoints) == MOST_STEPS
    assert again.checkpoints["step-0"] == text(8)


async def test_of_one_call_only_what_is_too_much_is_refused(engine: Engine) -> None:
    made, claimed = await running(engine)
    assert await engine.checkpoint(steps(claimed, range(MOST_STEPS - 1))) == ()
    refused = await engine.checkpoint(steps(claimed, [5, MOST_STEPS, MOST_STEPS + 1, 6]))
    assert [each.code for each in refused] == ["too_many_steps"]
    await made.holder.done(claimed, ending=Ending.RETRY)
    assert set((await made.holder.claim_one()).checkpoints) == {f"step-{n}" for n in (*range(MOST_STEPS - 1), MOST_STEPS)}


async def test_steps_have_so_many_bytes(engine: Engine) -> None:
    made, claimed = await running(engine)
    for number in range(ROOM_STEPS):
        assert await engine.checkpoint(steps(claimed, [number], LARGE)) == ()
    [refused] = await engine.checkpoint(steps(claimed, [ROOM_STEPS], LARGE))
    assert (refused.task, refused.code) == (claimed.id, "steps_too_large")
    for number in range(ROOM_STEPS):
        assert await engine.checkpoint(steps(claimed, [number], LARGE)) == (), "the value that it replaces does not count"
    assert await engine.checkpoint(steps(claimed, [0])) == ()
    assert await engine.checkpoint(steps(claimed, [ROOM_STEPS], LARGE)) == (), "what was replaced by less made room"
    await made.holder.done(claimed)
    assert await state(engine, made.id) is State.COMPLETED


async def test_a_refused_step_leaves_the_lease(engine: Engine) -> None:
    made, claimed = await running(engine)
    assert await engine.checkpoint(steps(claimed, range(MOST_STEPS))) == ()
    assert len(await engine.checkpoint([step(claimed, "one-more", 1)])) == 1
    assert (await made.holder.beat()).lost == ()
    await made.holder.done(claimed)


# Signals.


def with_signals(clock: ManualClock, number: int) -> Record:
    """A task as another store had it, for so many signals take long to send."""
    now = clock.now()
    task = Task(
        id=new_id(), type="work", queue=QUEUE, payload=b"1", priority=1, state=State.PENDING, version=1, run_at=now, created_at=now, updated_at=now
    )  # fmt: skip
    return Record(task=task, signals=tuple(Signal(n, "go", b"1", f"signal-{n}", now) for n in range(1, number + 1)))


async def test_a_task_has_so_many_signals(engine: Engine, clock: ManualClock) -> None:
    crowded = with_signals(clock, MOST_SIGNALS - 1)
    await engine.restore([crowded])
    id, last = crowded.task.id, new_id()
    assert await engine.signal(id, "go", b"1", last) == MOST_SIGNALS
    with pytest.raises(InvalidInput) as refused:
        await engine.signal(id, "go", b"1", new_id())
    assert refused.value.code == "too_many_signals"
    assert await engine.signal(id, "go", b"1", last) == MOST_SIGNALS, "a repeat answers as the first"
    assert len((await (await worker(engine)).claim_one()).signals) == MOST_SIGNALS


async def test_signals_have_so_many_bytes(engine: Engine) -> None:
    made = await make(engine, State.PENDING)
    for number in range(ROOM_SIGNALS):
        assert await engine.signal(made.id, "go", text(LARGE), f"signal-{number}") == number + 1
    with pytest.raises(InvalidInput) as refused:
        await engine.signal(made.id, "go", text(LARGE), new_id())
    assert refused.value.code == "signals_too_large"
    assert await engine.signal(made.id, "go", text(LARGE), "signal-0") == 1
    assert len((await made.holder.claim_one()).signals) == ROOM_SIGNALS


# One claim.


async def claim_bytes(one: Worker, max_bytes: int) -> tuple[list[Claimed], bool]:
    one.request += 1
    answer = await one.engine.claim(one.id, one.request, one.queues, Room(50, max_bytes=max_bytes))
    one.held |= {task.token: task for task in answer.tasks}
    return list(answer.tasks), answer.more


async def all_by_bytes(one: Worker, max_bytes: int, *, most: int) -> list[str]:
    """Claims of so many bytes until nothing comes; each has at most so many tasks."""
    taken: list[str] = []
    while True:
        claimed, more = await claim_bytes(one, max_bytes)
        assert len(claimed) <= most
        if not claimed and not more:
            return taken
        taken += ids_of(claimed)


async def test_headers_count_in_a_claim(engine: Engine) -> None:
    ids = await submit_many(engine, 10, headers={f"x-{n}": "x" * 2_000 for n in range(5)})
    assert sorted(await all_by_bytes(await worker(engine), 35_000, most=3)) == sorted(ids)


async def test_steps_count_in_a_claim(engine: Engine) -> None:
    one = await worker(engine)
    ids = await submit_many(engine, 4)
    for claimed in await one.claim(4):
        assert await engine.checkpoint(steps(claimed, [1, 2], LARGE)) == ()
    await one.done(*one.held.values(), ending=Ending.RETRY)
    assert sorted(await all_by_bytes(one, 1_000_000, most=2)) == sorted(ids)


async def test_signals_count_in_a_claim(engine: Engine) -> None:
    ids = await submit_many(engine, 4)
    for id in ids:
        for number in range(2):
            await engine.signal(id, "go", text(LARGE), f"{id}-{number}")
    assert sorted(await all_by_bytes(await worker(engine), 1_000_000, most=2)) == sorted(ids)


async def test_one_task_comes_however_large_it_is(engine: Engine) -> None:
    one = await worker(engine)
    ids = await submit_many(engine, 2, headers={"x": "x" * 4_000})
    for claimed in await one.claim(2):
        assert await engine.checkpoint(steps(claimed, [1, 2], LARGE)) == ()
        await engine.signal(claimed.id, "go", text(LARGE), f"{claimed.id}-1")
    await one.done(*one.held.values(), ending=Ending.RETRY)
    assert sorted(await all_by_bytes(one, 10, most=1)) == sorted(ids)


# Edges.


async def pages_of(engine: Engine, task: str, n: int) -> list[str]:
    seen: list[str] = []
    while page := await engine.edges(task, after=len(seen), n=n):
        assert len(page) <= n
        seen += [edge.task for edge in page]
    return seen


async def test_edges_are_read_by_pages(engine: Engine) -> None:
    """2,500 of them, which came in several steps."""
    parent = new(sealed=True)
    await submit(engine, parent)
    children: list[str] = []
    for number in (1_000, 1_000, 500):
        children += await submit(engine, *(new(parent=Edge(parent.id), delay=HOUR) for _ in range(number)))
    assert await pages_of(engine, parent.id, 1_000) == children
    assert await pages_of(engine, parent.id, 700) == children
    assert (await record(engine, parent.id)).open_edges == 2_500


async def test_edges_named_twice_leave_no_gap(engine: Engine) -> None:
    awaited = await submit_many(engine, 5, delay=HOUR)
    waiting = after(*(id for id in awaited for _ in range(2)))
    await submit(engine, waiting)
    assert await pages_of(engine, waiting.id, 2) == awaited


async def test_edges_of_several_waits_are_read_by_pages(engine: Engine) -> None:
    made, claimed = await running(engine)
    followers: list[str] = []
    for number in range(3):
        then = tuple(new(n, queue="then") for n in range(number + 2))
        await made.holder.done(claimed, ending=Ending.WAITING, then=then)
        followers += [task.id for task in then]
        hand = await worker(engine, queues=["then"])
        await hand.done(*await hand.claim(9))
        claimed = await made.holder.claim_one()
    assert await pages_of(engine, made.id, 2) == followers
