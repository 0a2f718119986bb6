"""put, drop, items: small settings, compare-and-set by version, an operator's over what code declares."""

from __future__ import annotations

import asyncio

import pytest

from taskmill.clock import ManualClock
from taskmill.engine import Engine
from taskmill.errors import InvalidInput, StaleVersion, TaskmillError
from taskmill.task import TypeSettings
from tests.conformance.tools import Store, Worker, ids_of, new, outcome, record, submit, submit_many, worker
from tests.conformance.tools_b import decoded, guarded, item, led


async def test_a_setting_is_kept_and_seen_by_all(engine: Engine, store: Store) -> None:
    put = await engine.put("limit", "mail", b'{"cap": 3}', version=0)
    assert (put.kind, put.name, put.value, put.operator) == ("limit", "mail", b'{"cap": 3}', True)
    other = await store.engine()
    assert await other.items("limit") == (put,)
    assert await engine.items("pause") == ()


async def test_items_are_sorted_by_name_and_apart_by_kind(engine: Engine) -> None:
    for name in ("b", "c", "a"):
        await engine.put("limit", name, b'{"cap": 1}')
    await engine.put("queue", "z", b'{"weights": {"x": 2}}')
    assert [each.name for each in await engine.items("limit")] == ["a", "b", "c"]
    assert [each.name for each in await engine.items("queue")] == ["z"]


async def test_compare_and_set(engine: Engine) -> None:
    first = await engine.put("limit", "mail", b'{"cap": 1}', version=0)
    second = await engine.put("limit", "mail", b'{"cap": 2}', version=first.version)
    assert second.version > first.version
    with pytest.raises(StaleVersion):
        await engine.put("limit", "mail", b'{"cap": 9}', version=first.version)
    with pytest.raises(StaleVersion):
        await engine.put("limit", "mail", b'{"cap": 9}', version=0)
    assert await item(engine, "limit", "mail") == second
    third = await engine.put("limit", "mail", b'{"cap": 3}')
    assert (third.value, third.version > second.version) == (b'{"cap": 3}', True)


async def test_a_version_of_what_does_not_exist_is_stale(engine: Engine) -> None:
    with pytest.raises(StaleVersion):
        await engine.put("limit", "mail", b'{"cap": 1}', version=3)
    assert await engine.items("limit") == ()


async def test_a_repeat_with_the_version_seen_answers_the_same(engine: Engine) -> None:
    first = await engine.put("limit", "mail", b'{"cap": 1}', version=0)
    assert await engine.put("limit", "mail", b'{"cap": 1}', version=0) == first
    second = await engine.put("limit", "mail", b'{"cap": 2}', version=first.version)
    assert await engine.put("limit", "mail", b'{"cap": 2}', version=first.version) == second
    assert await item(engine, "limit", "mail") == second


async def test_of_many_callers_with_the_same_version_one_wins(engine: Engine, store: Store) -> None:
    first = await engine.put("limit", "mail", b'{"cap": 1}', version=0)
    engines = [engine, *await store.engines(3)]
    values = [b'{"cap": %d}' % n for n in range(2, 14)]
    tries = [engines[n % 4].put("limit", "mail", value, version=first.version) for n, value in enumerate(values)]
    answers = await guarded(asyncio.gather(*tries, return_exceptions=True))
    [won] = [answer for answer in answers if not isinstance(answer, BaseException)]
    assert {type(answer) for answer in answers if isinstance(answer, BaseException)} == {StaleVersion}
    assert await item(engine, "limit", "mail") == won


async def test_dropped_it_is_gone(engine: Engine) -> None:
    put = await engine.put("limit", "mail", b'{"cap": 1}', version=0)
    with pytest.raises(StaleVersion):
        await engine.drop("limit", "mail", version=put.version + 5)
    assert await item(engine, "limit", "mail") == put
    await engine.drop("limit", "mail", version=put.version)
    assert await engine.items("limit") == ()


@pytest.mark.heard_only("the second drop finds nothing")
async def test_drop_says_whether_there_was_something(engine: Engine) -> None:
    await engine.put("limit", "mail", b'{"cap": 1}')
    assert await engine.drop("limit", "mail") is True
    assert await engine.drop("limit", "mail") is False


async def test_an_operator_stands_over_code(engine: Engine) -> None:
    await engine.put("limit", "mail", b'{"cap": 1}', operator=False)
    assert (await engine.items("limit"))[0].operator is False
    await engine.put("limit", "mail", b'{"cap": 2}')
    await engine.put("limit", "mail", b'{"cap": 3}', operator=False)
    [merged] = await engine.items("limit")
    assert (merged.value, merged.operator) == (b'{"cap": 2}', True)
    await engine.drop("limit", "mail")
    [merged] = await engine.items("limit")
    assert (merged.value, merged.operator) == (b'{"cap": 3}', False)


async def test_an_operator_stands_over_what_a_worker_joins_with(engine: Engine) -> None:
    await worker(engine, limits={"mail": b'{"cap": 1}'}, app="shop", version=1)
    await engine.put("limit", "mail", b'{"cap": 2}')
    await worker(engine, limits={"mail": b'{"cap": 3}'}, app="shop", version=2)
    await submit_many(engine, 5, limits=("mail",))
    hand = await worker(engine)
    assert len(await hand.claim(9)) == 2
    await engine.drop("limit", "mail")
    assert len(await hand.claim(9)) == 1


async def test_code_obeys_the_higher_version_of_its_app(engine: Engine) -> None:
    async def joined(version: int, cap: int) -> bytes:
        await worker(engine, limits={"mail": b'{"cap": %d}' % cap}, app="shop", version=version)
        found = await item(engine, "limit", "mail")
        assert found
        return found.value

    assert await joined(2, 20) == b'{"cap": 20}'
    assert await joined(1, 10) == b'{"cap": 20}'
    assert await joined(2, 21) == b'{"cap": 21}'
    assert await joined(3, 30) == b'{"cap": 30}'


async def test_types_obey_the_higher_version_of_their_app(engine: Engine) -> None:
    for version, queue in ((2, "newer"), (1, "older")):
        await worker(engine, settings={"mail": TypeSettings(queue=queue)}, app="shop", version=version)
    [id] = await submit(engine, new(type="mail", queue=None))
    assert (await record(engine, id)).queue == "newer"
    settings = await item(engine, "type", "mail")
    assert settings
    assert decoded(settings.value)["queue"] == "newer"


async def test_an_operator_can_set_a_type(engine: Engine) -> None:
    await worker(engine, settings={"mail": TypeSettings(queue="declared")}, app="shop", version=1)
    await engine.put("type", "mail", b'{"queue": "chosen", "priority": 3}')
    [id] = await submit(engine, new(type="mail", queue=None))
    task = await record(engine, id)
    assert (task.queue, task.priority) == ("chosen", 3)


async def test_a_schedule_that_its_app_no_longer_declares_is_orphaned(engine: Engine) -> None:
    both = {"daily": b'{"cron": "0 9 * * *"}', "hourly": b'{"cron": "0 * * * *"}'}
    await worker(engine, schedules=both, app="shop", version=2)
    await worker(engine, schedules={"other": b'{"cron": "0 1 * * *"}'}, app="warehouse", version=9)
    await worker(engine, schedules={}, app="shop", version=1)
    assert await orphans(engine) == set()
    await worker(engine, schedules={"daily": both["daily"]}, app="shop", version=2)
    assert await orphans(engine) == {"hourly"}
    await worker(engine, schedules=both, app="shop", version=3)
    assert await orphans(engine) == set()


async def test_an_older_worker_that_starts_late_brings_no_orphan_back(engine: Engine) -> None:
    """In a rolling deployment the old version still starts workers after the new one has joined."""
    hourly = {"hourly": b'{"cron": "0 * * * *"}'}
    await worker(engine, schedules=hourly, app="shop", version=2)
    await worker(engine, schedules={}, app="shop", version=3)
    await worker(engine, schedules=hourly, app="shop", version=2)
    assert await orphans(engine) == {"hourly"}


async def test_what_an_operator_paused_stays_paused_when_code_declares_it(engine: Engine) -> None:
    await engine.put("pause", "schedule:daily", b'{"reason": "holiday"}')
    await worker(engine, schedules={"daily": b'{"cron": "0 9 * * *"}'}, app="shop", version=1)
    assert [(each.name, each.operator) for each in await engine.items("pause")] == [("schedule:daily", True)]


async def orphans(engine: Engine) -> set[str]:
    paused = {each.name.removeprefix("schedule:"): decoded(each.value).get("reason") for each in await engine.items("pause")}
    return {each.name for each in await engine.items("schedule") if paused.get(each.name) == "orphaned"}


async def test_a_limit_is_obeyed_by_the_next_claim(engine: Engine, store: Store) -> None:
    put = await engine.put("limit", "mail", b'{"cap": 1}', version=0)
    await submit_many(engine, 9, limits=("mail",))
    other = await store.engine()
    hand = await worker(other)
    held = await hand.claim(9)
    assert len(held) == 1
    put = await engine.put("limit", "mail", b'{"cap": 4}', version=put.version)
    held += await hand.claim(9)
    assert len(held) == 4
    await engine.put("limit", "mail", b'{"cap": 2}', version=put.version)
    for expected in (0, 0, 1, 1):
        assert (await other.finish([outcome(held.pop())])).refused == ()
        new_ones = await hand.claim(9)
        assert len(new_ones) == expected
        held += new_ones


async def test_pauses_are_obeyed_by_the_next_claim(engine: Engine, store: Store) -> None:
    first, second = await submit(engine, new(queue="line"), new(type="other", queue="line"))
    elsewhere = await submit_many(engine, 1, queue="free")
    hand = await Worker(await store.engine(), queues=["line", "free"]).join("work", "other")
    await engine.put("pause", "queue:line", b"{}")
    assert ids_of(await hand.claim(9)) == elsewhere
    await engine.drop("pause", "queue:line")
    await engine.put("pause", "type:work", b"{}")
    assert ids_of(await hand.claim(9)) == [second]
    await engine.drop("pause", "type:work")
    assert ids_of(await hand.claim(9)) == [first]


async def test_a_command_reaches_its_worker(engine: Engine) -> None:
    first, second = await worker(engine), await worker(engine)
    await engine.put("worker", first.id, b'{"command": "quiet"}')
    assert (await first.beat()).commands == ("quiet",)
    assert (await second.beat()).commands == ()
    await engine.drop("worker", first.id)
    assert (await first.beat()).commands == ()


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        ("limit", "Not A Name", b'{"cap": 1}'),
        ("limit", "mail", b"no json"),
        ("limit", "mail", b'{"cap": -1}'),
        ("limit", "mail", b'{"cap": "three"}'),
        ("limit", "mail", b'{"rate": 5, "window": 0}'),
        ("limit", "mail", b"[]"),
        ("type", "mail", b'{"queue": "NO"}'),
        ("type", "mail", b'{"quuue": "line"}'),
        ("queue", "line", b'{"weights": {"x": 0}}'),
        ("queue", "line", b'{"priorities": [1, 2]}'),
        ("queue", "line", b'{"fair": "{"}'),
    ],
)
async def test_a_setting_that_cannot_be_obeyed_is_refused(engine: Engine, kind: str, name: str, value: bytes) -> None:
    with pytest.raises(InvalidInput) as caught:
        await engine.put(kind, name, value)
    assert caught.value.hint or caught.value.message
    assert await engine.items(kind) == ()


async def test_a_deposed_version_counts_in_no_audit(engine: Engine, clock: ManualClock) -> None:
    await engine.put("outbox", "audit", b"{}")
    term = await led(engine, "outbox")
    before = len(await engine.outbox("audit", "", 100, term))
    put = await engine.put("limit", "mail", b'{"cap": 1}', version=0)
    with pytest.raises(TaskmillError):
        await engine.put("limit", "mail", b'{"cap": 9}', version=put.version + 7)
    clock.advance(1)
    entries = await engine.outbox("audit", "", 100, await led(engine, "outbox"))
    assert [entry.subject for entry in entries[before:]] == ["limit/mail"]
