"""Queues, types, limits and workers: what they are, and what a person changes about them."""

from __future__ import annotations

import pytest

from taskmill.clock import HOUR, SECOND, ManualClock
from taskmill.engine import Ending, Engine, Joining
from taskmill.errors import Conflict, InvalidInput, NotFound, StaleVersion
from taskmill.operations import Limit, LimitInfo, Operations, QueueInfo, QueueSettings
from taskmill.task import Edge, NewTask, State, TypeSettings, new_id
from tests.conformance.tools import Worker, submit_many, submit_one, worker
from tests.conformance.tools_b import make


async def by_name(operations: Operations) -> dict[str, QueueInfo]:
    return {queue.name: queue for queue in await operations.queues()}


# Queues


async def test_an_empty_store_has_nothing(operations: Operations) -> None:
    assert await operations.queues() == ()
    assert await operations.types() == ()
    assert await operations.limits() == ()
    assert await operations.workers() == ()


async def test_a_queue_is_known_by_its_tasks_types_workers_and_settings(operations: Operations, engine: Engine) -> None:
    await submit_one(engine, queue="of-a-task")
    await Worker(engine, queues=("of-a-worker",)).join(settings={"work": TypeSettings(queue="of-a-type")})
    await engine.put("queue", "of-a-setting", b'{"weights": {"a": 2}}')
    await engine.put("pause", "queue:of-a-pause", b"{}")
    assert sorted(await by_name(operations)) == ["of-a-pause", "of-a-setting", "of-a-task", "of-a-type", "of-a-worker"]


async def test_what_is_in_a_queue(operations: Operations, engine: Engine, clock: ManualClock) -> None:
    hand = await worker(engine, queues=("mail",))
    await submit_many(engine, 3, queue="mail")
    await submit_many(engine, 2, queue="mail", delay=HOUR)
    await submit_one(engine, queue="mail", type="unheard", priority=3)
    await hand.done(*await hand.claim(1), ending=Ending.DEAD)
    clock.advance(2)
    await hand.beat()
    mail = (await by_name(operations))["mail"]
    assert mail.counts == {State.PENDING: 3, State.SCHEDULED: 2, State.DEAD: 1}
    assert (mail.oldest, mail.no_worker, mail.workers, mail.paused) == (2 * SECOND, 1, 1, False)


async def test_only_live_workers_count(operations: Operations, engine: Engine, clock: ManualClock) -> None:
    await worker(engine)
    assert [(queue.name, queue.workers) for queue in await operations.queues()] == [("default", 1)]
    assert [(info.name, info.workers) for info in await operations.types()] == [("work", 1)]
    clock.advance(5)
    assert [(queue.name, queue.workers) for queue in await operations.queues()] == [("default", 0)]
    assert [(info.name, info.workers) for info in await operations.types()] == [("work", 0)]


async def test_pause_and_resume_a_queue(operations: Operations, engine: Engine) -> None:
    hand = await worker(engine)
    await submit_one(engine)
    assert await operations.pause_queue("default", reason="the printer burns")
    assert not await operations.pause_queue("default", reason="still")
    found = (await by_name(operations))["default"]
    assert (found.paused, found.reason) == (True, "still")
    assert await hand.claim(1) == []
    assert await operations.resume_queue("default")
    assert not await operations.resume_queue("default")
    assert len(await hand.claim(1)) == 1


async def test_pause_and_resume_a_type(operations: Operations, engine: Engine) -> None:
    hand = await worker(engine, "work", "other")
    await submit_one(engine)
    await submit_one(engine, type="other")
    assert await operations.pause_type("work", reason="why not")
    assert [(info.name, info.paused, info.reason) for info in await operations.types()] == [("other", False, ""), ("work", True, "why not")]
    assert [task.type for task in await hand.claim(2)] == ["other"]
    assert await operations.resume_type("work")
    assert [task.type for task in await hand.claim(2)] == ["work"]
    assert not await operations.resume_type("work")


@pytest.mark.parametrize("verb", ["pause_queue", "resume_queue", "purge_queue"])
async def test_a_queue_nobody_named(operations: Operations, engine: Engine, clock: ManualClock, verb: str) -> None:
    with pytest.raises(NotFound, match="there are none yet") as raised:
        await getattr(operations, verb)("mail")
    assert raised.value.code == "unknown_queue"
    await submit_one(engine, queue="mail")
    clock.advance("6s")
    with pytest.raises(NotFound, match="did you mean 'mail'"):
        await getattr(operations, verb)("mali")
    with pytest.raises(NotFound, match="known: mail; a queue appears"):
        await getattr(operations, verb)("zzz")
    with pytest.raises(InvalidInput) as invalid:
        await getattr(operations, verb)("No Name")
    assert invalid.value.code == "invalid_name"


@pytest.mark.parametrize("verb", ["pause_type", "resume_type"])
async def test_a_type_nobody_named(operations: Operations, engine: Engine, verb: str) -> None:
    await worker(engine, "send_welcome")
    with pytest.raises(NotFound, match="did you mean 'send_welcome'") as raised:
        await getattr(operations, verb)("send_welcom")
    assert (raised.value.code, raised.value.status) == ("unknown_type", 404)


async def test_a_reason_has_an_end(operations: Operations, engine: Engine) -> None:
    await submit_one(engine)
    with pytest.raises(InvalidInput) as raised:
        await operations.pause_queue("default", reason="x" * 501)
    assert raised.value.field == "reason"


async def test_a_pause_of_any_value_is_a_pause(operations: Operations, engine: Engine) -> None:
    await engine.put("pause", "queue:default", b"[]")
    found = (await by_name(operations))["default"]
    assert (found.paused, found.reason) == (True, "")


# Types


async def test_a_type_as_the_store_knows_it(operations: Operations, engine: Engine) -> None:
    await worker(engine, settings={"send": TypeSettings(queue="mail", max_crashes=1)})
    [info] = await operations.types()
    assert (info.name, info.settings.queue, info.settings.max_crashes, info.operator, info.version) == ("send", "mail", 1, False, 1)


# Limits


async def test_put_see_and_drop_a_limit(operations: Operations) -> None:
    put = await operations.put_limit("few", Limit(rate=10, window=60 * SECOND, cap=3))
    assert put == LimitInfo(name="few", limit=Limit(rate=10, window=60 * SECOND, cap=3), version=1, operator=True)
    assert await operations.limits() == (put,)
    await operations.drop_limit("few")
    assert await operations.limits() == ()
    with pytest.raises(NotFound) as raised:
        await operations.drop_limit("few")
    assert raised.value.code == "unknown_limit"


async def test_a_person_s_limit_stands_over_the_code_s(operations: Operations, engine: Engine) -> None:
    await engine.join(Joining(worker="w", queues=("default",), types={}, limits={"few": b'{"cap": 1}'}))
    [declared] = await operations.limits()
    assert (declared.limit, declared.operator) == (Limit(cap=1), False)
    with pytest.raises(Conflict, match="declared by code") as raised:
        await operations.drop_limit("few")
    assert raised.value.code == "declared"
    put = await operations.put_limit("few", Limit(cap=5), version=declared.version)
    assert (put.limit, put.operator) == (Limit(cap=5), True)
    await operations.drop_limit("few")
    assert await operations.limits() == (declared,)


async def test_a_limit_is_put_under_the_version_seen(operations: Operations, engine: Engine) -> None:
    first = await operations.put_limit("few", Limit(cap=1), version=0)
    assert await operations.put_limit("few", Limit(cap=1), version=0) == first
    second = await operations.put_limit("few", Limit(cap=2), version=first.version)
    assert second.version == first.version + 1
    assert await operations.put_limit("few", Limit(cap=2), version=first.version) == second
    with pytest.raises(StaleVersion):
        await operations.put_limit("few", Limit(cap=3), version=first.version)
    with pytest.raises(StaleVersion):
        await operations.put_limit("few", Limit(cap=3), version=0)
    await engine.join(Joining(worker="w", queues=("default",), types={}, limits={"many": b'{"cap": 1}'}))
    with pytest.raises(StaleVersion, match="has version 1, not 4"):
        await operations.put_limit("many", Limit(cap=3), version=4)


@pytest.mark.parametrize(
    ("limit", "field"),
    [(Limit(), "rate"), (Limit(rate=0), "rate"), (Limit(rate=1, window=1), "window"), (Limit(cap=-1), "cap")],
    ids=["nothing", "no-rate", "short-window", "negative-cap"],
)
async def test_a_limit_that_cannot_be(operations: Operations, limit: Limit, field: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        await operations.put_limit("few", limit)
    assert raised.value.field == field


# Workers


async def test_command_a_worker(operations: Operations, engine: Engine) -> None:
    hand = await worker(engine)
    for command in ("pause", "quiet", "stop"):
        await operations.command_worker(hand.id, command)
        await operations.command_worker(hand.id, command)
        assert [info.command for info in await operations.workers()] == [command]
        assert (await hand.beat()).commands == (command,)
    await operations.command_worker(hand.id, None)
    await operations.command_worker(hand.id, None)
    assert (await hand.beat()).commands == ()


async def test_a_command_or_worker_that_is_not_known(operations: Operations, engine: Engine) -> None:
    await Worker(engine, id="host-1234-abcd").join()
    with pytest.raises(InvalidInput, match="pause, quiet, stop") as invalid:
        await operations.command_worker("host-1234-abcd", "dance")
    assert (invalid.value.code, invalid.value.field) == ("unknown_command", "command")
    with pytest.raises(NotFound, match="did you mean 'host-1234-abcd'") as raised:
        await operations.command_worker("host-1234-abce", "stop")
    assert (raised.value.code, raised.value.field) == ("unknown_worker", "id")


async def test_commands_to_those_who_are_gone_are_taken_away(operations: Operations, engine: Engine) -> None:
    gone, stays = await worker(engine), await worker(engine)
    await operations.command_worker(gone.id, "stop")
    await engine.leave(gone.id)
    await operations.command_worker(stays.id, "quiet")
    assert [item.name for item in await engine.items("worker")] == [stays.id]


async def test_workers_are_the_engine_s(operations: Operations, engine: Engine) -> None:
    made = await make(engine, State.RUNNING)
    [info] = await operations.workers()
    assert (info.id, info.running, info.alive) == (made.holder.id, 1, True)


# How a queue shares itself out


async def test_queue_settings_are_put_seen_and_dropped(operations: Operations) -> None:
    wanted = QueueSettings(weights={"acme": 3}, priorities=(1, 2, 4, 8), fair="tenant")
    put = await operations.put_queue_settings("mail", wanted, version=0)
    assert (put.settings, put.version, put.operator) == (wanted, 1, True)
    assert (await operations.queue("mail")).settings == wanted
    with pytest.raises(StaleVersion):
        await operations.put_queue_settings("mail", QueueSettings(), version=7)
    assert await operations.drop_queue_settings("mail", version=1)
    with pytest.raises(NotFound, match="no queue 'mail'"):
        await operations.queue("mail")


@pytest.mark.parametrize(
    ("wanted", "field"),
    [
        (QueueSettings(weights={"acme": 0}), "weights.acme"),
        (QueueSettings(priorities=(0, 1, 1, 1)), "priorities"),
        (QueueSettings(partitions=65), "partitions"),
        (QueueSettings(fair="x" * 129), "fair"),
    ],
)
async def test_queue_settings_that_no_step_could_obey(operations: Operations, wanted: QueueSettings, field: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        await operations.put_queue_settings("mail", wanted)
    assert raised.value.field == field
    assert await operations.queues() == ()


async def test_a_seal_is_broken_when_all_children_are_there(operations: Operations, engine: Engine) -> None:
    parent = NewTask(type="work", queue="q", sealed=True)
    await operations.submit(parent)
    await operations.submit(NewTask(type="work", queue="q", parent=Edge(parent.id)))
    assert (await operations.get(parent.id)).sealed
    await operations.unseal([parent.id])
    found = await operations.get(parent.id)
    assert (found.sealed, found.open_edges, found.state) == (False, 1, State.WAITING)
    with pytest.raises(NotFound, match="there is no task"):
        await operations.unseal([new_id()])
