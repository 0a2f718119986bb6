"""An archive that is away: work goes on, what ends is kept, and all of it arrives when the archive is back."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from taskmill.clock import DAY, SECOND
from taskmill.config import Settings
from taskmill.engine import Finding, Target
from taskmill.engines import create, deliverers
from taskmill.errors import StoreError
from taskmill.maintenance import Maintenance
from taskmill.maintenance.outbox import Outbox
from taskmill.task import State, Task
from taskmill.telemetry import Metrics
from tests.conformance.tools import record, submit_many, worker
from tests.conformance.tools_b import guarded, make, the_only
from tests.engines.redis.archives import Archived, archived, with_archive
from tests.servers.postgres import Postgres
from tests.surfaces.workers import client, program, until

SOON = 60.0
"""Seconds after which something never comes; nothing is judged by it."""

APP = """
from taskmill import App

app = App()


@app.task(name="double")
async def double(number: int) -> int:
    return 2 * number
"""

DELIVERER = """
import asyncio, sys
from taskmill.engines import create, deliverers

async def main():
    engine = create(sys.argv[1])
    await engine.open()
    term = await engine.lead("outbox", "dies")
    await deliverers(engine)["archive"](await engine.outbox("archive", "", 100, term))
    print("written", flush=True)
    await asyncio.sleep(3600)

asyncio.run(main())
"""


@pytest.fixture
async def store(redis_url: str, private_postgres: Postgres) -> AsyncIterator[Archived]:
    async with archived(redis_url + "&busy_timeout=1s", private_postgres.url()) as store:
        yield store


def finding(found: tuple[Finding, ...], code: str) -> Finding | None:
    return next((each for each in found if each.code == code), None)


async def test_work_goes_on_and_nothing_is_dropped(store: Archived, private_postgres: Postgres, caplog: pytest.LogCaptureFixture) -> None:
    engine = await store.engine()
    first = await make(engine, State.COMPLETED)
    outbox = Outbox(engine, "me", deliverers(engine))
    assert await outbox.once() == 1
    private_postgres.stop("kill")

    hand = await worker(engine)
    ids = await submit_many(engine, 120)
    await hand.done(*await hand.claim_all())
    store.clock.advance("1s")
    assert await outbox.once() == 0
    assert outbox.lag["archive"] == SECOND
    store.clock.advance("15d")
    assert await outbox.once() == 0
    assert outbox.lag["archive"] == 15 * DAY + SECOND
    [line] = [record.getMessage() for record in caplog.records if "archive" in record.getMessage()]
    assert (private_postgres.password in line, "Traceback" in caplog.text) == (False, False)

    await store.pruned(engine)
    assert the_only(await engine.delete([Target(ids[0])])).code == "undelivered"
    assert all(isinstance(task, Task) for task in await engine.get(ids))
    with pytest.raises(StoreError) as refused:
        await engine.get([first.id])
    assert (refused.value.code, private_postgres.password in str(refused.value)) == ("archive_unavailable", False)
    found = await engine.check()
    unreachable, lag = finding(found, "archive_unreachable"), finding(found, "outbox_lag")
    assert unreachable is not None
    assert lag is not None
    assert (unreachable.level, bool(unreachable.hint), lag.level, "120 entries" in lag.message) == ("warning", True, "warning", True)

    private_postgres.start()
    delivered = 0
    while delivered < 120:
        delivered += await outbox.once()
    assert await outbox.once() == 0
    assert outbox.lag["archive"] == 0
    assert {id for (id,) in store.rows("SELECT id::text FROM tasks")} == {first.id, *ids}
    assert (await store.pruned(engine)).moved >= len(ids)
    assert all(isinstance(task, Task) for task in await engine.get([first.id, *ids]))
    found = await engine.check()
    assert (finding(found, "archive_unreachable"), finding(found, "outbox_lag")) == (None, None)
    assert finding(found, "archive") is not None


async def test_a_frozen_archive_holds_up_neither_work_nor_its_own_delivery(store: Archived, private_postgres: Postgres) -> None:
    """It takes connections and answers nothing; when it goes on, so does delivery."""
    engine = await store.engine()
    outbox = Outbox(engine, "me", deliverers(engine))
    first = await make(engine, State.COMPLETED)
    assert [await outbox.once() for _ in range(2)] == [1, 0]
    assert the_only(await engine.delete([Target(first.id)])).done
    frozen = private_postgres.processes()
    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)
    try:
        second = await make(engine, State.DEAD)
        for _ in range(2):
            assert await guarded(outbox.once()) == 0
            with pytest.raises(StoreError, match="did not answer"):
                await guarded(engine.get([first.id]))
    finally:
        for pid in reversed(frozen):
            os.kill(pid, signal.SIGCONT)
    while not await outbox.once():
        pass
    assert {id for (id,) in store.rows("SELECT id::text FROM tasks")} == {first.id, second.id}
    assert (await record(engine, first.id)).state is State.COMPLETED


async def test_the_lag_is_a_metric(store: Archived, private_postgres: Postgres) -> None:
    metrics = Metrics(clock=store.clock)
    engine = metrics.watch(await store.engine())
    private_postgres.stop("fast")
    await make(engine, State.COMPLETED)
    store.clock.advance("90s")
    outbox = Outbox(engine, "me", deliverers(engine))
    assert await outbox.once() == 0
    assert b'taskqueue_outbox_lag_seconds{kind="archive"} 90.0' in await metrics.scrape()


async def test_a_store_whose_url_names_no_archive_any_more_says_so(store: Archived) -> None:
    await make(await store.engine(), State.COMPLETED)
    found = finding(await (await store.hot()).check(), "archive_unnamed")
    assert found is not None
    assert "archive=none" in found.hint or "none to give it up" in found.hint


async def test_a_deliverer_killed_between_writing_and_cutting(redis_url: str, private_postgres: Postgres) -> None:
    """Its successor writes the same again, and each task and attempt is there once."""
    url = with_archive(redis_url, private_postgres.url())
    engine = create(url)
    await engine.open()
    ids = {(await make(engine, State.COMPLETED)).id for _ in range(5)}
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", DELIVERER, url, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    assert await process.stdout.readline() == b"written\n"
    process.kill()
    await process.wait()
    outbox = Outbox(engine, "successor", deliverers(engine))
    deadline = time.monotonic() + SOON
    while not (delivered := await outbox.once()):
        assert time.monotonic() < deadline, "the term of the dead one never ended"
        await asyncio.sleep(0.05)
    assert delivered == len(ids)
    assert {id for (id,) in _archived_ids(private_postgres)} == ids
    assert private_postgres.query("SELECT count(*), count(DISTINCT task) FROM taskmill_archive.attempt") == [(5, 5)]
    await engine.close()


async def test_maintenance_delivers_by_itself_through_an_outage(redis_url: str, private_postgres: Postgres) -> None:
    """Loops as in a worker, on the real clock; the archive goes and comes back under them."""
    engine = create(with_archive(redis_url, private_postgres.url()))
    await engine.open()
    maintaining = asyncio.create_task(Maintenance(engine, Settings(), "me").run())
    try:
        one = await make(engine, State.COMPLETED)
        await _arrived(private_postgres, {one.id})
        private_postgres.stop("kill")
        two = await make(engine, State.DEAD)
        assert (await record(engine, two.id)).state is State.DEAD
        private_postgres.start()
        await _arrived(private_postgres, {one.id, two.id})
    finally:
        maintaining.cancel()
        await asyncio.wait({maintaining})
        await guarded(engine.close())


async def _arrived(server: Postgres, ids: set[str]) -> None:
    deadline = time.monotonic() + SOON
    while not ids <= {id for (id,) in _archived_ids(server)}:
        assert time.monotonic() < deadline, "they never arrived"
        await asyncio.sleep(0.05)


def _archived_ids(server: Postgres) -> list[tuple[str]]:
    if not server.query("SELECT 1 FROM pg_tables WHERE schemaname = 'taskmill_archive' AND tablename = 'task'"):
        return []
    return [(str(id),) for (id,) in server.query("SELECT id FROM taskmill_archive.task")]


async def test_a_worker_archives_what_it_ran(redis_url: str, private_postgres: Postgres, tmp_path: Path) -> None:
    """The whole program, and no password in what it says, though its archive goes away."""
    (tmp_path / "app.py").write_text(APP)
    url = with_archive(redis_url + "&busy_timeout=1s", private_postgres.url())
    with program("worker", "app.py", folder=tmp_path, url=url) as running:
        async with client(url) as one:
            await one.joined()
            done = await one.run("double", number=21)
            await _arrived(private_postgres, {done.id})
            private_postgres.stop("kill")
            again = await one.run("double", number=4)
            assert again.result == b"8"
            await until(lambda: "archive entries cannot be delivered" in running.said, "a line in the log")
            private_postgres.start()
            await _arrived(private_postgres, {done.id, again.id})
        assert running.end() == 0
    assert private_postgres.password not in running.said
    assert "Traceback" not in running.said
