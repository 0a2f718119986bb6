"""join, leave, heartbeat: who works, what they know, and what they hold."""

from __future__ import annotations

import pytest

from taskmill.clock import MINUTE, SECOND, ManualClock
from taskmill.engine import Engine, Room, Target
from taskmill.errors import Conflict
from taskmill.retry import Retry
from taskmill.task import Priority, State, TypeSettings
from tests.conformance.tools import QUEUE, TYPE, Worker, ids_of, new, pass_time, record, refusal, state, states, submit_many, submit_one, worker

# join


async def test_a_types_settings_are_stored(engine: Engine) -> None:
    await worker(engine, settings={"mail": TypeSettings(queue="post", priority=Priority.HIGH), "report": TypeSettings(timeout=MINUTE)})
    mail = await record(engine, await submit_one(engine, type="mail", queue=None))
    report = await record(engine, await submit_one(engine, type="report", queue=None))
    assert (mail.queue, mail.priority) == ("post", Priority.HIGH)
    assert (report.queue, report.timeout) == ("default", MINUTE)


async def test_a_types_settings_outlive_the_worker(engine: Engine) -> None:
    one = await worker(engine, settings={"mail": TypeSettings(queue="post")})
    await engine.leave(one.id)
    assert (await record(engine, await submit_one(engine, type="mail", queue=None))).queue == "post"


async def test_settings_change_what_comes_and_not_what_is_there(engine: Engine) -> None:
    await worker(engine, settings={TYPE: TypeSettings(priority=Priority.LOW, retry=Retry.fixed("1s"))})
    before = await submit_one(engine)
    await worker(engine, settings={TYPE: TypeSettings(priority=Priority.HIGH)})
    after = await submit_one(engine)
    assert [(await record(engine, id)).priority for id in (before, after)] == [Priority.LOW, Priority.HIGH]


@pytest.mark.parametrize(("second", "expected"), [(1, 10), (2, 20), (3, 20)])
async def test_an_older_version_of_an_app_never_writes_over_a_newer_one(engine: Engine, second: int, expected: int) -> None:
    await worker(engine, app="shop", version=2, settings={TYPE: TypeSettings(timeout=10 * SECOND)})
    await worker(engine, app="shop", version=second, settings={TYPE: TypeSettings(timeout=20 * SECOND)})
    assert (await record(engine, await submit_one(engine))).timeout == expected * SECOND


async def test_a_worker_of_an_older_version_still_works(engine: Engine) -> None:
    await worker(engine, app="shop", version=2)
    old = await worker(engine, app="shop", version=1)
    id = await submit_one(engine)
    assert ids_of(await old.claim()) == [id]


async def test_limits_are_declared(engine: Engine) -> None:
    [undefined] = await engine.submit([new(limits=("few",))])
    assert refusal(undefined) == "unknown_limit"
    one = await worker(engine, limits={"few": b'{"cap": 1}'})
    await submit_many(engine, 3, limits=("few",))
    assert len(await one.claim(10)) == 1
    assert [(item.name, item.operator) for item in await engine.items("limit")] == [("few", False)]


async def test_schedules_are_declared(engine: Engine) -> None:
    await worker(engine, app="shop", schedules={"nightly": b'{"cron": "0 3 * * *", "type": "report"}'})
    assert [(item.name, item.operator) for item in await engine.items("schedule")] == [("nightly", False)]


async def test_a_bad_type_is_refused_and_nobody_joins(engine: Engine) -> None:
    one = Worker(engine)
    with pytest.raises(Exception, match="Not A Name"):
        await one.join("Not A Name")
    with pytest.raises(Conflict) as refused:
        await one.claim()
    assert refused.value.code == "unknown_worker"


# leave


async def test_leave_gives_back_what_was_held(engine: Engine) -> None:
    one, two = await worker(engine), await worker(engine)
    ids = await submit_many(engine, 3)
    await one.claim(2)
    await engine.leave(one.id)
    for id in ids:
        task = await record(engine, id)
        assert (task.state, task.crashes, task.failures, task.executions, task.worker) == (State.PENDING, 0, 0, 0, None)
    assert ids_of(await two.claim(10)) == ids


async def test_after_leave_the_worker_is_unknown(engine: Engine) -> None:
    one = await worker(engine)
    await submit_one(engine)
    await engine.leave(one.id)
    assert not (await one.beat()).known
    with pytest.raises(Conflict) as refused:
        await one.claim()
    assert refused.value.code == "unknown_worker"


async def test_leave_of_nobody_is_nothing(engine: Engine) -> None:
    await engine.leave("nobody")


async def test_leave_of_one_leaves_the_others(engine: Engine) -> None:
    one, two = await worker(engine), await worker(engine)
    await submit_many(engine, 2)
    await one.claim()
    [kept] = await two.claim()
    await engine.leave(one.id)
    assert await state(engine, kept.id) is State.RUNNING
    await two.done(kept)


# heartbeat


async def test_a_beat_of_a_worker_with_nothing(engine: Engine) -> None:
    one = await worker(engine)
    beat = await one.beat()
    assert (beat.known, beat.lost, beat.cancelled, beat.commands) == (True, (), (), ())


async def test_a_beat_of_a_stranger(engine: Engine) -> None:
    assert not (await engine.heartbeat("nobody", 0, [])).known


async def test_a_beat_keeps_what_it_names(engine: Engine, clock: ManualClock) -> None:
    one = await worker(engine)
    ids = await submit_many(engine, 3)
    claimed = await one.claim(3)
    await pass_time(engine, clock, 20, one)
    assert await states(engine, ids) == [State.RUNNING] * 3
    await one.done(*claimed)


async def test_a_beat_gives_back_what_it_does_not_name(engine: Engine) -> None:
    one = await worker(engine)
    first, second, third = await submit_many(engine, 3)
    claimed = await one.claim(3)
    beat = await engine.heartbeat(one.id, one.request, [claimed[0].token, claimed[2].token])
    assert (beat.known, beat.lost) == (True, ())
    assert await states(engine, [first, second, third]) == [State.RUNNING, State.PENDING, State.RUNNING]
    given_back = await record(engine, second)
    assert (given_back.executions, given_back.crashes, given_back.failures) == (0, 0, 0)
    assert await engine.attempts(second) == ()
    [again] = await one.claim(10)
    assert (again.id, again.attempt) == (second, 1)


async def test_a_beat_keeps_leases_of_later_requests(engine: Engine) -> None:
    one = await worker(engine)
    first, second = await submit_many(engine, 2)
    [held] = await one.claim()
    before = one.request
    await one.claim()
    beat = await engine.heartbeat(one.id, before, [held.token])
    assert (beat.known, beat.lost) == (True, ())
    assert await states(engine, [first, second]) == [State.RUNNING, State.RUNNING]
    await engine.heartbeat(one.id, one.request, [held.token])
    assert await states(engine, [first, second]) == [State.RUNNING, State.PENDING]


async def test_a_beat_says_what_is_lost(engine: Engine) -> None:
    one, two = await worker(engine), await worker(engine)
    await submit_many(engine, 3)
    mine, ended = await one.claim(2)
    [other] = await two.claim()
    await one.done(ended)
    never = max(mine.token, other.token) + 1_000
    beat = await engine.heartbeat(one.id, one.request, [mine.token, ended.token, other.token, never])
    assert beat.known
    assert set(beat.lost) == {ended.token, other.token, never}
    assert await state(engine, mine.id) is State.RUNNING
    assert (await two.beat()).lost == ()


async def test_a_beat_says_what_was_cancelled(engine: Engine) -> None:
    one, two = await worker(engine), await worker(engine)
    a, b = await submit_many(engine, 2)
    held = await one.claim(2)
    [changed] = (await engine.cancel([Target(b, held[1].version)])).tasks
    assert (changed.requested, await state(engine, b)) == (True, State.RUNNING)
    assert (await one.beat()).cancelled == (b,)
    assert (await one.beat()).cancelled == (b,)
    assert (await two.beat()).cancelled == ()
    await one.done(held[1])
    assert (await one.beat()).cancelled == ()
    assert await state(engine, a) is State.RUNNING


async def test_a_beat_says_which_tasks_its_leases_are_of_when_it_is_asked(engine: Engine) -> None:
    one, two = await worker(engine), await worker(engine)
    await submit_many(engine, 4)
    mine, later, ended = await one.claim(3)
    [other] = await two.claim()
    await one.done(ended)
    named = [mine.token, ended.token, other.token]
    assert (await engine.heartbeat(one.id, one.request - 1, named)).tasks == {}
    assert (await engine.heartbeat(one.id, one.request - 1, named, tasks=True)).tasks == {mine.token: mine.id}
    beat = await engine.heartbeat(one.id, one.request, [mine.token, later.token], tasks=True)
    assert beat.tasks == {mine.token: mine.id, later.token: later.id}
    assert (await engine.heartbeat("nobody", 0, [mine.token], tasks=True)).tasks == {}


async def test_a_beat_brings_commands_to_whom_they_are_for(engine: Engine) -> None:
    one, two = await worker(engine), await worker(engine)
    await engine.put("worker", one.id, b'{"command": "quiet"}')
    assert (await one.beat()).commands == ("quiet",)
    assert (await two.beat()).commands == ()
    await engine.drop("worker", one.id)
    assert (await one.beat()).commands == ()


async def test_a_repeated_claim_after_a_beat_does_not_give_the_given_back(engine: Engine) -> None:
    one = await worker(engine)
    await submit_many(engine, 2)
    a, b = await one.claim(2)
    await engine.heartbeat(one.id, one.request, [a.token])
    answer = await engine.claim(one.id, one.request, [QUEUE], Room(2))
    assert a in answer.tasks
    assert b.token not in {task.token for task in answer.tasks}
