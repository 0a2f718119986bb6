"""The archive: what ends arrives there with its attempts, and is read from there when the hot store no longer has it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import msgspec
import pytest

from taskmill.clock import HOUR, MINUTE, SECOND
from taskmill.config import Settings
from taskmill.engine import Ending, Engine, Record, Target
from taskmill.engines import create, deliverers
from taskmill.engines.archive.store import Archive
from taskmill.errors import Expired, NotFound
from taskmill.operations import Operations
from taskmill.server.http import Http
from taskmill.server.listening import bound, serve_http
from taskmill.server.rest import ROUTES
from taskmill.server.service import Service
from taskmill.task import Attempt, ErrorInfo, Gone, OnLimit, State, Task, new_id
from tests.conformance.tools import new, outcome, record, submit_one, worker
from tests.conformance.tools_b import ENDED, guarded, led, make, the_only
from tests.engines.redis.archives import Archived, archived
from tests.servers.existing import Server


@pytest.fixture
def empty_url(postgres: Server) -> Iterator[str]:
    """A database in which there is nothing."""
    url = postgres.databases.empty()
    try:
        yield url
    finally:
        postgres.databases.drop(urlsplit(url).path.removeprefix("/"))


@pytest.fixture
async def store(redis_url: str, empty_url: str) -> AsyncIterator[Archived]:
    async with archived(redis_url, empty_url) as store:
        yield store


@pytest.fixture
async def engine(store: Archived) -> Engine:
    return await store.engine()


# Arriving


@pytest.mark.parametrize("now", ENDED)
async def test_an_end_arrives_with_all_that_the_hot_store_knows(store: Archived, engine: Engine, now: State) -> None:
    made = await make(engine, now, payload={"to": "ada ☂"}, tags={"a": "b"}, headers={"trace": "1"}, tenant="t", fair_key="f", max_crashes=7)
    before, tried = await record(engine, made.id), await engine.attempts(made.id)
    assert await store.delivered(engine) == 1
    assert store.rows("SELECT id::text, state FROM tasks") == [(made.id, now.value)]
    store.clock.advance("15d")
    assert (await store.pruned(engine)).moved
    assert await (await store.hot()).get([made.id]) == (None,)
    assert await engine.get([made.id]) == (before,)
    assert await engine.attempts(made.id) == tried
    assert len(tried) == 1


async def test_every_attempt_arrives(store: Archived, engine: Engine) -> None:
    hand = await worker(engine)
    id = await submit_one(engine)
    await hand.done(await hand.claim_one(), ending=Ending.RETRY, error=ErrorInfo("first", "no\0", "line"), after=0)
    await hand.done(await hand.claim_one(), ending=Ending.SNOOZED, after=0)
    await hand.done(await hand.claim_one(), result=b'"yes"')
    tried = await engine.attempts(id)
    assert [attempt.outcome for attempt in tried] == ["failed", "snoozed", "completed"]
    await store.delivered(engine)
    store.clock.advance("15d")
    await store.pruned(engine)
    assert await engine.attempts(id) == tried
    assert store.rows("SELECT number, outcome FROM task_executions ORDER BY number") == [(1, "failed"), (2, "snoozed"), (3, "completed")]


async def test_what_never_ran_arrives_without_attempts(store: Archived, engine: Engine) -> None:
    await engine.put("limit", "work", b'{"rate": 1, "window": 3600000000}')
    one, two = new(limits=("work",), on_limit=OnLimit.REJECT), new(limits=("work",), on_limit=OnLimit.REJECT)
    await engine.submit([one, two])
    cancelled = await submit_one(engine)
    await engine.cancel([Target(cancelled)])
    assert await store.delivered(engine) == 2
    assert dict(store.rows("SELECT id::text, state FROM tasks")) == {two.id: "dead", cancelled: "cancelled"}
    assert store.rows("SELECT * FROM task_executions") == []
    await engine.delete([Target(cancelled)])
    assert await engine.attempts(cancelled) == ()


async def test_ends_before_the_first_delivery_are_owed_from_the_opening_on(store: Archived, engine: Engine) -> None:
    """Also those that a program ends which knows of no archive."""
    made = await make(await store.hot(), State.COMPLETED)
    assert await store.delivered(engine) == 1
    assert store.rows("SELECT id::text FROM tasks") == [(made.id,)]


async def test_restored_records_are_owed_too(store: Archived, engine: Engine) -> None:
    made = await make(engine, State.COMPLETED)
    task, tried = await record(engine, made.id), await engine.attempts(made.id)
    await store.delivered(engine)
    fresh = new_id()
    moved = msgspec.structs.replace(task, id=fresh)
    assert await engine.restore([Record(task=moved, attempts=tried)]) == (True,)
    assert await store.delivered(engine) == 1
    assert {id for (id,) in store.rows("SELECT id::text FROM tasks")} == {made.id, fresh}


async def test_more_than_a_batch(store: Archived, engine: Engine) -> None:
    hand = await worker(engine)
    ids = [await submit_one(engine, n) for n in range(250)]
    await hand.done(*await hand.claim_all())
    assert await store.delivered(engine) == 250
    assert sorted(id for (id,) in store.rows("SELECT id::text FROM tasks")) == sorted(ids)


async def test_without_an_archive_nothing_is_owed(redis_url: str) -> None:
    engine = create(redis_url)
    await engine.open()
    await make(engine, State.COMPLETED)
    assert await engine.outbox("archive", "", 10, await led(engine, "outbox")) == ()
    assert deliverers(engine) == {}
    await engine.close()


def test_importing_loads_no_driver() -> None:
    program = "import sys, taskmill, taskmill.engines, taskmill.maintenance; print({'asyncpg', 'redis'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


# Reading


async def test_reads_fall_back_after_a_delete(store: Archived, engine: Engine) -> None:
    made = await make(engine, State.COMPLETED)
    before = await record(engine, made.id)
    await store.delivered(engine)
    assert the_only(await engine.delete([Target(made.id)])).done
    assert await (await store.hot()).get([made.id]) == (Gone(made.id, State.COMPLETED),)
    assert await engine.get([made.id]) == (before,)
    assert [attempt.outcome for attempt in await engine.attempts(made.id)] == ["completed"]


async def test_the_hot_store_comes_first(store: Archived, engine: Engine) -> None:
    """In the order asked, and what neither has is what the hot store says it is."""
    early, gone = await make(engine, State.COMPLETED), await make(engine, State.DEAD)
    await store.delivered(engine)
    await engine.delete([Target(gone.id)])
    live, unknown = await make(engine, State.PENDING), new_id()
    found = await engine.get([unknown, gone.id, live.id, early.id, "no id at all"])
    assert [task.state if isinstance(task, Task) else task for task in found] == [None, State.DEAD, State.PENDING, State.COMPLETED, None]
    with pytest.raises(NotFound):
        await engine.attempts(unknown)
    with pytest.raises(NotFound):
        await engine.wait([unknown], 0)


async def test_before_the_first_delivery_there_is_nothing_to_read(store: Archived, engine: Engine) -> None:
    """Whoever reads makes no schema."""
    assert await engine.get([new_id()]) == (None,)
    assert store.rows("SELECT 1 FROM pg_namespace WHERE nspname = 'taskmill_archive'") == []


async def test_a_deleted_task_that_was_never_delivered_stays_gone(store: Archived, engine: Engine) -> None:
    hot = await store.hot()
    made = await make(engine, State.COMPLETED)
    assert the_only(await engine.delete([Target(made.id)])).code == "undelivered"
    await store.delivered(engine)
    store.rows("DELETE FROM task RETURNING id")
    await engine.delete([Target(made.id)])
    for each in (engine, hot):
        assert await each.get([made.id]) == (Gone(made.id, State.COMPLETED),)
        with pytest.raises(Expired):
            await each.attempts(made.id)


async def test_a_result_is_there_when_the_hot_store_has_forgotten_the_id(store: Archived, engine: Engine) -> None:
    made = await make(engine, State.COMPLETED, idempotency_window=HOUR)
    await store.delivered(engine)
    store.clock.advance("15d")
    await store.pruned(engine)
    live = await make(engine, State.PENDING)
    operations = Operations(engine)
    assert (await guarded(operations.result(made.id))).result == b'"made"'
    assert await guarded(engine.wait([live.id, made.id], MINUTE)) == {made.id: State.COMPLETED}
    assert [attempt.outcome for attempt in await operations.attempts(made.id)] == ["completed"]


# Ending again


async def test_a_second_end_goes_over_the_first(store: Archived, engine: Engine) -> None:
    made = await make(engine, State.DEAD)
    await store.delivered(engine)
    await engine.requeue([Target(made.id)])
    await made.holder.done(await made.holder.claim_one(), result=b"2")
    await store.delivered(engine)
    tried = await engine.attempts(made.id)
    await engine.delete([Target(made.id)])
    [task] = await engine.get([made.id])
    assert isinstance(task, Task)
    assert (task.state, task.result) == (State.COMPLETED, b"2")
    assert await engine.attempts(made.id) == tried
    assert [attempt.outcome for attempt in tried] == ["failed", "completed"]


async def test_an_older_record_goes_over_no_newer_one(store: Archived, engine: Engine) -> None:
    """A deliverer that was paused between reading and writing comes last."""
    made = await make(engine, State.DEAD)
    old = Record(task=await record(engine, made.id), attempts=await engine.attempts(made.id))
    await engine.requeue([Target(made.id)])
    await made.holder.done(await made.holder.claim_one())
    await store.delivered(engine)
    await _archive(engine).keep([old])
    assert store.rows("SELECT state FROM tasks") == [("completed",)]
    assert len(store.rows("SELECT 1 FROM task_executions")) == 2


async def test_a_second_life_of_an_id_goes_over_the_first(store: Archived, engine: Engine) -> None:
    """Its versions begin anew, and fewer attempts leave none of the old ones behind."""
    id = new_id()
    made = await make(engine, State.DEAD, id=id, idempotency_window=HOUR)
    for _ in range(3):
        await engine.requeue([Target(id)])
        await made.holder.done(await made.holder.claim_one(), ending=Ending.DEAD)
    await store.delivered(engine)
    store.clock.advance("15d")
    await store.pruned(engine)
    again = await make(engine, State.COMPLETED, id=id)
    assert again.id == id
    await store.delivered(engine)
    assert store.rows("SELECT state FROM tasks") == [("completed",)]
    assert store.rows("SELECT outcome FROM task_executions") == [("completed",)]


async def test_a_task_that_lives_again_is_not_archived_as_ended(store: Archived, engine: Engine) -> None:
    made = await make(engine, State.DEAD)
    await engine.requeue([Target(made.id)])
    claimed = await made.holder.claim_one()
    assert await store.delivered(engine) == 1
    assert await engine.get([made.id]) == (await record(await store.hot(), made.id),)
    await engine.finish([outcome(claimed)])
    assert await store.delivered(engine) == 1
    assert store.rows("SELECT state FROM tasks") == [("completed",)]


def _archive(engine: Engine) -> Archive:
    found: Archive = engine._archive  # type: ignore[attr-defined]
    return found


# Delivering twice


async def test_written_and_not_cut_is_written_again_and_there_once(store: Archived, engine: Engine) -> None:
    """Whoever dies between the two leaves the entries to its successor."""
    made = [await make(engine, state) for state in ENDED]
    entries = await engine.outbox("archive", "", 100, await led(engine, "outbox", "dies"))
    await deliverers(engine)["archive"](entries)
    before = store.rows("SELECT * FROM task ORDER BY id"), store.rows("SELECT * FROM attempt ORDER BY task")
    store.clock.advance("1m")
    assert await store.delivered(await store.engine(), "successor") == 3
    assert (store.rows("SELECT * FROM task ORDER BY id"), store.rows("SELECT * FROM attempt ORDER BY task")) == before
    assert len(before[0]) == len(before[1]) == len(made)


async def test_two_deliverers_at_once(store: Archived, engine: Engine) -> None:
    """The first to come makes the schema; both write the same rows in another order."""
    hand = await worker(engine)
    for n in range(60):
        await submit_one(engine, n)
    await hand.done(*await hand.claim_all())
    entries = await engine.outbox("archive", "", 100, await led(engine, "outbox"))
    every = [deliverers(await store.engine())["archive"] for _ in range(4)]
    orders = [entries, entries[::-1], entries[30:], entries[:30][::-1]]
    await guarded(asyncio.gather(*(deliver(order) for deliver, order in zip(every, orders, strict=True))))
    assert store.rows("SELECT count(*), count(DISTINCT task) FROM attempt") == [(60, 60)]
    assert store.rows("SELECT count(*) FROM task") == [(60,)]


async def test_tables_that_somebody_removed_are_made_again(store: Archived, engine: Engine) -> None:
    await make(engine, State.COMPLETED)
    await store.delivered(engine)
    store.rows("DROP SCHEMA taskmill_archive CASCADE")
    await make(engine, State.DEAD)
    assert await store.delivered(engine) == 0
    assert await store.delivered(engine) == 1
    assert store.rows("SELECT state FROM tasks") == [("dead",)]


# Giving it up


async def test_an_archive_that_was_given_up_holds_nothing_back(store: Archived, engine: Engine) -> None:
    made = await make(engine, State.COMPLETED)
    hot = await store.engine(store.hot_url + "&archive=none")
    assert await store.delivered(hot) == 1
    store.clock.advance("15d")
    assert (await store.pruned(hot)).moved
    assert await hot.get([made.id]) == (None,)


def test_attempts_have_no_field_that_is_not_archived() -> None:
    assert Attempt.__struct_fields__ == ("number", "worker", "token", "started_at", "ended_at", "outcome", "error")


# Over HTTP


async def test_a_status_read_finds_what_only_the_archive_has(store: Archived, engine: Engine, tmp_path: Path) -> None:
    """The hot store first, the archive after; what neither has is unknown, never pending."""
    made = await make(engine, State.COMPLETED, payload={"to": "ada"})
    await store.delivered(engine)
    store.clock.advance("15d")
    assert (await store.pruned(engine)).moved
    service = Service(engine, Settings(), audit=tmp_path / "audit", open=True)
    with bound("127.0.0.1", 0) as sock:
        stop = asyncio.Event()
        serving = asyncio.create_task(serve_http(Http(service, ROUTES), sock, stop, grace=SECOND))
        at = f"http://127.0.0.1:{sock.getsockname()[1]}/api/v1/tasks"
        async with aiohttp.ClientSession() as session:
            async with session.get(f"{at}/{made.id}") as answer:
                found = await answer.json()
                assert (answer.status, found["state"], found["payload"]) == (200, "completed", {"to": "ada"})
            async with session.get(f"{at}/{made.id}/attempts") as answer:
                assert [each["outcome"] for each in (await answer.json())["attempts"]] == ["completed"]
            async with session.get(f"{at}/{new_id()}") as answer:
                assert (answer.status, (await answer.json())["code"]) == (404, "not_found")
        stop.set()
        await serving
