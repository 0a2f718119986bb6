"""check: the store's own findings and those of the work in it, each with its remedy."""

from __future__ import annotations

from taskmill.clock import HOUR, ManualClock
from taskmill.cron import Cron
from taskmill.engine import Ending, Engine, Finding, Joining
from taskmill.operations import Operations
from taskmill.schedule import Schedule
from taskmill.task import TypeSettings
from tests.conformance.tools import Worker, submit_many, submit_one, worker

HOURLY = Schedule(type="work", cron=Cron.parse("@hourly"))


async def found(operations: Operations, engine: Engine) -> dict[str, Finding]:
    """What is found beyond the engine's own findings."""
    own = set(await engine.check())
    findings = [finding for finding in await operations.check() if finding not in own]
    assert all(finding.message and finding.hint for finding in findings)
    assert len({finding.code for finding in findings}) == len(findings)
    return {finding.code: finding for finding in findings}


async def test_a_store_at_work_has_nothing_to_say(operations: Operations, engine: Engine) -> None:
    hand = await worker(engine)
    await submit_many(engine, 3)
    await hand.done(*await hand.claim(1))
    assert await found(operations, engine) == {}


async def test_the_engine_s_own_come_too(operations: Operations, engine: Engine) -> None:
    assert set(await engine.check()) <= set(await operations.check())


async def test_no_live_worker(operations: Operations, engine: Engine, clock: ManualClock) -> None:
    assert (await found(operations, engine))["no_live_worker"].level == "info"
    await worker(engine)
    assert "no_live_worker" not in await found(operations, engine)
    await submit_many(engine, 2)
    clock.advance(7)
    findings = await found(operations, engine)
    assert findings["no_live_worker"] == Finding("warning", "no_live_worker", "no live worker, and 2 tasks ready", "start one: taskmill worker app.py")
    assert "for 7s and holds 0 tasks" in findings["silent_worker"].message


async def test_paused_queues_and_types(operations: Operations, engine: Engine) -> None:
    await worker(engine)
    await submit_one(engine)
    await operations.pause_queue("default", reason="moving")
    await operations.pause_type("work")
    findings = await found(operations, engine)
    assert findings["paused_queue"].message == "the queue default is paused (moving); 1 task ready"
    assert findings["paused_type"].message == "the type work is paused"
    await operations.resume_queue("default")
    await operations.resume_type("work")
    assert await found(operations, engine) == {}


async def test_tasks_that_nobody_can_take(operations: Operations, engine: Engine) -> None:
    await worker(engine)
    await submit_many(engine, 2, type="unheard")
    await submit_one(engine, queue="far-away")
    findings = await found(operations, engine)
    assert findings["no_worker"].message == "no registered worker has the type unheard; 2 tasks ready"
    assert findings["unserved_queue"].message == "no live worker claims from the queue far-away; 1 task ready"
    assert {finding.level for finding in findings.values()} == {"warning"}


async def test_schedules(operations: Operations, engine: Engine) -> None:
    def joining(**schedules: Schedule) -> Joining:
        declared = {name: each.encode() for name, each in schedules.items()}
        return Joining(worker="w", queues=("default",), types={"work": TypeSettings()}, app="app", schedules=declared)

    await engine.join(joining(good=HOURLY, old=HOURLY))
    assert await found(operations, engine) == {}
    await engine.join(joining(good=HOURLY))
    await operations.put_schedule("lost", Schedule(type="unheard", cron=Cron.parse("@hourly")))
    await engine.put("schedule", "strange", b'{"colour": "red"}')
    await operations.pause_schedule("good")
    levels = {code: finding.level for code, finding in (await found(operations, engine)).items()}
    assert levels == {"invalid_schedule": "error", "orphaned_schedule": "warning", "unknown_type": "warning", "paused_schedule": "info"}


async def test_the_worst_comes_first(operations: Operations, engine: Engine) -> None:
    await engine.put("schedule", "strange", b'{"colour": "red"}')
    await submit_one(engine)
    levels = [finding.level for finding in await operations.check()]
    assert levels == sorted(levels, key=["error", "warning", "info"].index)
    assert levels[0] == "error"


async def test_dead_letters_that_come_now(operations: Operations, engine: Engine, clock: ManualClock) -> None:
    hand = await Worker(engine).join()
    await submit_many(engine, 3)
    await hand.done(*await hand.claim(2), ending=Ending.DEAD)
    finding = (await found(operations, engine))["dead_letters"]
    assert finding.level == "warning"
    assert finding.message.startswith("2 tasks died in the last hour (work 2)")
    clock.advance(HOUR // 1_000_000)
    await hand.beat()
    finding = (await found(operations, engine))["dead_letters"]
    assert (finding.level, finding.message) == ("info", "2 dead letters, none of the last hour")
