"""Queues, types, schedules, workers and limits through a server: the verbs of an App, with its answers and its errors, on every engine."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from taskmill import App, Client
from taskmill.client.operations import RemoteOperations
from taskmill.cron import Cron
from taskmill.engine import Filter, Joining, Target
from taskmill.errors import Conflict, Expired, Forbidden, InvalidInput, NotFound, StaleVersion, TaskmillError
from taskmill.operations import Limit, Operations, ScheduleInfo
from taskmill.retry import Retry
from taskmill.schedule import Schedule
from taskmill.server.access import create_key
from taskmill.task import OnLimit, Priority, TypeSettings, Unique, new_id
from tests.surfaces.serving import Server, serving, wire

Both = tuple[Client, App]

DAILY = Schedule(type="report", cron=Cron.parse("@daily", "Europe/Paris"), payload=b'{"region":7}', queue="reports", retry=Retry.fixed("2s"), tags={"a": "b"})
FULL = TypeSettings(
    queue="mail", priority=Priority.HIGH, retry=Retry.list(["1s", "90s"]), timeout=1_500_000, limits=("few",), on_limit=OnLimit.REJECT, unique=Unique("u"),
    fair="tenant", ordered="{user}",
)  # fmt: skip
LOCAL = {"tx", "progress", "every", "self"}
"""Parameters that only make sense beside the store."""
ONLY_LOCAL = {"events", "check_names"}


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def anywhere(request: pytest.FixtureRequest, store: str) -> str:
    """The URL of an empty store of each engine."""
    url: str = store if request.param == "sqlite" else request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture
async def both(anywhere: str, tmp_path: Path) -> AsyncIterator[Both]:
    """A client of a server, and an app on its store that has a worker with two types."""
    with serving(anywhere, tmp_path) as server:
        async with Client(server.url) as client, App(anywhere) as app:
            types = {"send": FULL, "plain": TypeSettings()}
            await app.engine.join(Joining(worker="anna", queues=("mail", "default"), types=types, limits={"few": b'{"cap":2}'}, info={"host": "a"}))
            yield client, app


def public(kind: type) -> dict[str, Any]:
    found = inspect.getmembers(kind, lambda member: inspect.iscoroutinefunction(member) or inspect.isasyncgenfunction(member))
    return {name: member for name, member in found if not name.startswith("_")}


def test_a_client_has_every_verb_of_an_app_with_its_parameters() -> None:
    there = public(RemoteOperations)
    for name, verb in public(Operations).items():
        if name not in ONLY_LOCAL:
            wanted = [each for each in inspect.signature(verb).parameters if each not in LOCAL]
            assert [each for each in inspect.signature(there[name]).parameters if each != "self"] == wanted, name


# Looking


async def test_it_sees_what_an_app_sees(both: Both) -> None:
    client, app = both
    await client.submit("send", {"user": "ada"}, delay="1h")
    await client.submit("nobody", 1, queue="other")
    await app.operations.put_schedule("nightly", DAILY)
    await app.operations.pause_queue("mail", reason="full")
    await app.operations.command_worker("anna", "quiet")
    there, here = client.operations, app.operations
    assert await there.limits() == await here.limits()
    assert await there.types() == await here.types()
    assert await there.schedules() == await here.schedules()
    assert [replace(each, oldest=None) for each in await there.queues()] == [replace(each, oldest=None) for each in await here.queues()]
    assert [replace(each, silent=None) for each in await there.workers()] == [replace(each, silent=None) for each in await here.workers()]
    assert await there.leaders() == await here.leaders() == {"schedules": None, "pruning": None, "outbox": None}
    assert {each.code for each in await there.check()} == {each.code for each in await here.check()}
    assert (await there.queue("mail")).reason == "full"
    assert (await there.worker("anna")).command == "quiet"
    assert await there.next_times("nightly", 7) == await here.next_times("nightly", 7)


@pytest.mark.parametrize(
    "ask",
    [
        lambda verbs: verbs.queue("mial"),
        lambda verbs: verbs.pause_queue("mial"),
        lambda verbs: verbs.resume_type("plian"),
        lambda verbs: verbs.schedule("none"),
        lambda verbs: verbs.trigger_schedule("none"),
        lambda verbs: verbs.worker("ana"),
        lambda verbs: verbs.command_worker("ana", "stop"),
        lambda verbs: verbs.command_worker("anna", "dance"),
        lambda verbs: verbs.limit("fwe"),
        lambda verbs: verbs.drop_limit("few"),
        lambda verbs: verbs.drop_limit("fwe"),
        lambda verbs: verbs.queue("No Name"),
        lambda verbs: verbs.put_limit("few", Limit()),
        lambda verbs: verbs.put_limit("few", Limit(cap=1), version=7),
        lambda verbs: verbs.put_limit("few", Limit(cap=1), version=0),
        lambda verbs: verbs.put_limit("new", Limit(cap=1), version=3),
        lambda verbs: verbs.put_schedule("nightly", DAILY, version=3),
    ],
)
async def test_it_is_refused_what_an_app_is_refused(both: Both, ask: Callable[[Any], Awaitable[object]]) -> None:
    client, app = both
    assert await _refusal(ask(client.operations)) == await _refusal(ask(app.operations))
    assert await app.operations.limits() == await client.operations.limits()


async def _refusal(asked: Awaitable[object]) -> tuple[type, str]:
    with pytest.raises(TaskmillError) as refused:
        await asked
    return type(refused.value), refused.value.code


# Changing


async def test_queues_and_types_are_paused_resumed_and_purged(both: Both) -> None:
    client, app = both
    there, here = client.operations, app.operations
    assert [await there.pause_queue("mail", reason="full"), await there.pause_queue("mail")] == [True, False]
    assert (await here.queue("mail")).paused
    assert [await there.resume_queue("mail"), await there.resume_queue("mail")] == [True, False]
    assert [await there.pause_type("plain"), await there.resume_type("plain")] == [True, True]
    handles = [await client.submit("plain", n, queue="mail") for n in range(3)]
    assert (await there.purge_queue("mail", dry_run=True)).matched == 3
    assert (await there.purge_queue("mail")).done == 3
    for handle in handles:
        with pytest.raises(Expired):
            await client.get(handle.id)


async def test_schedules_are_put_paused_fired_and_deleted(both: Both) -> None:
    client, app = both
    there, here = client.operations, app.operations
    made = await there.put_schedule("nightly", DAILY, version=0)
    assert isinstance(made, ScheduleInfo)
    assert (made.schedule, made.operator) == (DAILY, True)
    changed = await there.put_schedule("nightly", replace(DAILY, payload=b"8"), version=made.version, operator=True)
    assert changed.version > made.version
    with pytest.raises(StaleVersion) as stale:
        await there.put_schedule("nightly", replace(DAILY, payload=b"9"), version=made.version)
    assert stale.value.code == "stale_version"
    assert (await here.schedule("nightly")).schedule == replace(DAILY, payload=b"8")
    assert [await there.pause_schedule("nightly", reason="no"), await there.resume_schedule("nightly")] == [True, True]
    fired = await there.trigger_schedule("nightly")
    assert (await here.get(fired.id)).payload == b"8"
    with pytest.raises(StaleVersion):
        await there.delete_schedule("nightly", version=made.version)
    await there.delete_schedule("nightly", version=changed.version)
    assert await here.schedules() == ()


async def test_limits_are_put_and_dropped(both: Both) -> None:
    client, app = both
    there, here = client.operations, app.operations
    [declared] = await there.limits()
    put = await there.put_limit("few", Limit(rate=100, window=90_000_000, cap=5), version=declared.version, operator=False)
    assert (put.limit, put.operator) == (Limit(rate=100, window=90_000_000, cap=5), True)
    assert await here.limit("few") == put
    for window in (1_000, 2_500_000, 60_000_000, 7_200_000_000, 172_800_000_000):
        assert (await there.put_limit("few", Limit(rate=1, window=window))).limit == Limit(rate=1, window=window)
    with pytest.raises(InvalidInput):
        await there.put_limit("few", Limit(rate=1, window=1_500))
    await there.drop_limit("few")
    assert (await here.limit("few")).limit == Limit(cap=2)
    with pytest.raises(Conflict) as refused:
        await there.drop_limit("few")
    assert refused.value.code == "declared"


async def test_workers_are_told(both: Both) -> None:
    client, app = both
    for command in ("pause", "quiet", "stop"):
        await client.operations.command_worker("anna", command)
        assert (await app.operations.worker("anna")).command == command
    await client.operations.command_worker("anna", None)
    assert (await app.operations.worker("anna")).command is None


# Answers that get lost, and keys that may not


async def test_what_is_changed_is_changed_once_whatever_gets_lost(server: Server, client: Client) -> None:
    """Each ends as if its first answer had been heard; a triggered schedule has made one task."""
    async with wire(server) as (cutting, url), Client(url) as wired:
        there = wired.operations
        cutting.cut = 1
        made = await there.put_schedule("nightly", DAILY, version=0)
        cutting.cut = 1
        assert (await there.put_schedule("nightly", replace(DAILY, payload=b"8"), version=made.version, operator=True)).version > made.version
        cutting.cut = 1
        fired = await there.trigger_schedule("nightly")
        assert fired.status == "created"
        assert [task.id async for task in client.list(type="report")] == [fired.id]
        mine = new_id()
        assert [(await there.trigger_schedule("nightly", id=mine)).id, (await there.trigger_schedule("nightly", id=mine)).status] == [mine, "duplicate"]
        cutting.cut = 1
        await there.put_limit("few", Limit(cap=1))
        cutting.cut = 1
        assert (await there.limit("few")).limit == Limit(cap=1)
        assert cutting.lost == 5


async def test_a_deletion_whose_answer_got_lost_is_one(server: Server, client: Client) -> None:
    async with wire(server) as (cutting, url), Client(url) as wired:
        there = wired.operations
        for version in (None, 1):
            await there.put_limit("few", Limit(cap=1))
            cutting.spared, cutting.cut = 1, 1  # it looks, and then deletes
            await there.drop_limit("few", version=version)
            assert (cutting.spared, cutting.cut) == (0, 0)
            assert await client.operations.limits() == ()
        with pytest.raises(NotFound):
            await there.drop_limit("few")


async def test_a_key_that_may_not(server: Server, client: Client) -> None:
    token, _ = server.at_server(lambda service: create_key(service.engine, name="", scopes=["read"]))
    async with Client(server.url, token) as reading:
        assert await reading.operations.limits() == ()
        with pytest.raises(Forbidden):
            await reading.operations.put_limit("few", Limit(cap=1))


async def test_dead_letters_are_tasks_like_others(both: Both) -> None:
    client, app = both
    handle = await client.submit("plain", 1)
    assert await client.operations.list(Filter(types=frozenset({"plain"}))) == await app.operations.list(Filter(types=frozenset({"plain"})))
    assert (await client.operations.requeue([Target(handle.id)])).refused == (await app.operations.requeue([Target(handle.id)])).refused
