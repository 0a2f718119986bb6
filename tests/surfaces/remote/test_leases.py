"""The leases of remote workers: what is a sign of life and what is none, on every store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from taskmill.clock import ManualClock
from taskmill.engine import Engine
from taskmill.server.grpc.server import GrpcServer
from taskmill.server.grpc.v1 import taskmill_pb2 as pb
from taskmill.server.grpc.v1 import taskmill_pb2_grpc as stubs
from tests.surfaces.remote.serving import Answered, Caller, Remote, Server, serving

LEASE = 6
ALMOST = LEASE - 1


@pytest.fixture(params=["sqlite", "postgres", "redis", "redis_cluster"])
def anywhere(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty store of each engine."""
    url: str = f"sqlite:///{tmp_path / 'store.db'}" if request.param == "sqlite" else request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture
def clock() -> ManualClock:
    """That of the store; it stands still until the test moves it."""
    return ManualClock()


async def pass_time(engine: Engine, clock: ManualClock, seconds: int) -> None:
    """Nobody beats, and every second somebody looks for the lost."""
    await engine.recover_lost()
    for _ in range(seconds):
        clock.advance(1)
        await engine.recover_lost()


async def joined(caller: Caller, *types: str) -> Remote:
    return await Remote.join(caller, *(types or ("resize",)), lease=f"{LEASE}s")


async def test_who_comes_back_with_a_claim_has_a_whole_lease_for_what_it_is_given(anywhere: str, tmp_path: Path, clock: ManualClock) -> None:
    """It was cut off for most of its lease; its next beat comes late, but in time."""
    async with serving(anywhere, tmp_path, clock) as server:
        worker = await joined(server.anybody)
        await pass_time(server.engine, clock, ALMOST)
        await server.anybody.submit("resize", queue="jobs")
        task = await worker.one("0s")
        await pass_time(server.engine, clock, ALMOST)
        assert (await worker.beat(task)) == {"known": True, "lost": [], "cancelled": [], "commands": []}
        assert (await worker.finish(task, "completed")).status == 200
        assert [each["outcome"] for each in await server.anybody.attempts(task["id"])] == ["completed"]


async def test_a_claim_keeps_what_is_held_already(anywhere: str, tmp_path: Path, clock: ManualClock) -> None:
    async with serving(anywhere, tmp_path, clock) as server:
        worker = await joined(server.anybody)
        await server.anybody.submit("resize", queue="jobs")
        held = await worker.one("0s")
        for _ in range(3):
            await pass_time(server.engine, clock, ALMOST)
            assert await worker.claim() == []
        assert (await worker.beat(held))["lost"] == []
        await pass_time(server.engine, clock, LEASE + 2)
        assert (await worker.beat(held)) == {"known": False, "lost": [held["token"]], "cancelled": [], "commands": []}


async def test_a_claim_that_only_waits_is_no_sign_of_life(anywhere: str, tmp_path: Path, clock: ManualClock) -> None:
    """Its connection may be dead without a word; what it holds is given to another in time."""
    async with serving(anywhere, tmp_path, clock) as server:
        worker = await joined(server.anybody)
        await server.anybody.submit("resize", queue="jobs")
        held = await worker.one("0s")
        waiting = asyncio.create_task(worker.ask("claim", request=worker.request + 1, wait="60s"))
        await server.waits(1)
        for _ in range(LEASE + 2):
            await pass_time(server.engine, clock, 1)
            await _looked_again(server, waiting)
        assert waiting.done()
        answer = await waiting
        assert (answer.status, answer.code) == (404, "unknown_worker")
        [lost] = await server.anybody.attempts(held["id"])
        assert (lost["outcome"], lost["error"]["code"]) == ("crashed", "lease_lost")


async def _looked_again(server: Server, waiting: asyncio.Task[Answered]) -> None:
    """The claim that waits has asked the store once more, or has been refused."""
    asked = asyncio.create_task(server.verbs.next("claim").wait())
    server.service.crew._wake()
    async with asyncio.timeout(30):
        await asyncio.wait({asked, waiting}, return_when=asyncio.FIRST_COMPLETED)
    asked.cancel()


async def test_each_message_of_a_stream_of_claims_is_a_sign_of_life(tmp_path: Path, clock: ManualClock) -> None:
    async with serving(f"sqlite:///{tmp_path / 'store.db'}", tmp_path, clock) as server, over_grpc(server) as workers:
        worker = await joined(server.anybody)
        stream = workers.ClaimStream()
        await pass_time(server.engine, clock, ALMOST)
        await stream.write(pb.ClaimCredit(worker=worker.id, credit=1))
        await server.waits(1)
        await pass_time(server.engine, clock, ALMOST)
        heard = server.verbs.next("heartbeat")
        await stream.write(pb.ClaimCredit(credit=1))
        await asyncio.wait_for(heard.wait(), 30)
        id = await server.anybody.submit("resize", queue="jobs")
        answer = await stream.read()
        assert isinstance(answer, pb.ClaimResponse)
        [task] = answer.tasks
        assert task.id == id
        await pass_time(server.engine, clock, ALMOST)
        assert (await worker.finish({"id": task.id, "token": str(task.token)}, "completed")).status == 200
        stream.cancel()


@asynccontextmanager
async def over_grpc(server: Server) -> AsyncIterator[stubs.WorkersAsyncStub]:
    service = server.service
    beside = GrpcServer(service.desk, service.crew, service.keys, hub=service.hub)
    port = await beside.start("127.0.0.1", 0)
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield stubs.WorkersStub(channel)
    finally:
        await beside.stop(0)


# What the metrics say of them


async def counted(server: Server, name: str) -> float:
    text = (await server.service.scrape()).decode()
    return sum(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.partition(" ")[0].partition("{")[0] == name)


async def test_leases_that_are_lost_are_counted_once(anywhere: str, tmp_path: Path, clock: ManualClock) -> None:
    async with serving(anywhere, tmp_path, clock) as server:
        worker = await joined(server.anybody)
        for _ in range(2):
            await server.anybody.submit("resize", queue="jobs")
        held = await worker.claim(slots=2)
        await pass_time(server.engine, clock, LEASE + 2)
        for _ in range(2):
            assert sorted((await worker.beat(*held))["lost"]) == sorted(task["token"] for task in held)
        assert await counted(server, "taskqueue_leases_lost_total") == 2


async def test_ends_that_come_too_late_are_counted(anywhere: str, tmp_path: Path, clock: ManualClock) -> None:
    async with serving(anywhere, tmp_path, clock) as server:
        worker = await joined(server.anybody)
        await server.anybody.submit("resize", queue="jobs")
        held = await worker.one("0s")
        await pass_time(server.engine, clock, LEASE + 2)
        assert (await worker.finish(held, "completed")).code == "stale_lease"
        assert await counted(server, "taskqueue_finishes_refused_total") == 1


async def test_a_beat_that_its_own_finish_overtook_has_lost_nothing(tmp_path: Path, clock: ManualClock) -> None:
    async with serving(f"sqlite:///{tmp_path / 'store.db'}", tmp_path, clock) as server:
        worker = await joined(server.anybody)
        await server.anybody.submit("resize", queue="jobs")
        held = await worker.one("0s")
        await worker.finish(held, "completed")
        assert (await worker.beat(held))["lost"] == [held["token"]]
        assert await counted(server, "taskqueue_leases_lost_total") == 0


# Attempts that do not end


async def overrun(server: Server, clock: ManualClock, worker: Remote, task: dict[str, Any], seconds: int) -> dict[str, Any]:
    """It beats every second, and never ends; the last answer."""
    answer: dict[str, Any] = {}
    for _ in range(seconds):
        await pass_time(server.engine, clock, 1)
        answer = await worker.beat(task)
    return answer


async def test_an_attempt_that_its_worker_does_not_end_is_ended(anywhere: str, tmp_path: Path, clock: ManualClock) -> None:
    """Failed, as a local one; it is tried again, what its worker says late is refused, and no lease counts as lost."""
    async with serving(anywhere, tmp_path, clock) as server:
        worker = await joined(server.anybody)
        await server.anybody.submit("resize", queue="jobs", timeout="2s", retry={"kind": "fixed", "base": 1_000_000})
        task = await worker.one("0s")
        assert await overrun(server, clock, worker, task, 2 + LEASE) == {"known": True, "lost": [], "cancelled": [], "commands": []}
        assert await overrun(server, clock, worker, task, 1) == {"known": True, "lost": [task["token"]], "cancelled": [], "commands": []}
        assert (await worker.finish(task, "completed")).code == "stale_lease"
        [attempt] = await server.anybody.attempts(task["id"])
        assert (attempt["outcome"], attempt["error"]["code"]) == ("failed", "timeout")
        await pass_time(server.engine, clock, 2)
        again = await worker.one("0s")
        assert (again["id"], again["attempt"], again["failures"]) == (task["id"], 2, 1)
        assert await counted(server, "taskqueue_leases_lost_total") == 0


async def test_an_attempt_that_is_the_last_is_dead(anywhere: str, tmp_path: Path, clock: ManualClock) -> None:
    async with serving(anywhere, tmp_path, clock) as server:
        worker = await joined(server.anybody)
        await server.anybody.submit("resize", queue="jobs", timeout="2s", max_retries=0)
        task = await worker.one("0s")
        assert (await overrun(server, clock, worker, task, 3 + LEASE))["lost"] == [task["token"]]
        found = await server.anybody.task(task["id"])
        assert (found["state"], found["error"]["code"]) == ("dead", "timeout")


async def test_a_server_that_did_not_give_the_lease_ends_it_too(anywhere: str, tmp_path: Path, clock: ManualClock) -> None:
    """The one that did is gone. The other counts from the first beat that it hears: late rather than early."""
    async with serving(anywhere, tmp_path, clock) as other:
        async with serving(anywhere, tmp_path, clock) as server:
            first = await joined(server.anybody)
            await server.anybody.submit("resize", queue="jobs", timeout="2s", max_retries=0)
            task = await first.one("0s")
            await overrun(server, clock, first, task, 2)
        worker = Remote(other.anybody, first.joined)
        worker.request = first.request
        assert (await overrun(other, clock, worker, task, 3 + LEASE))["lost"] == []
        assert (await overrun(other, clock, worker, task, 1))["lost"] == [task["token"]]
        assert (await other.anybody.task(task["id"]))["state"] == "dead"


async def test_a_worker_that_ends_its_attempts_in_time_is_left_alone(tmp_path: Path, clock: ManualClock) -> None:
    async with serving(f"sqlite:///{tmp_path / 'store.db'}", tmp_path, clock) as server:
        worker = await joined(server.anybody)
        for _ in range(2):
            await server.anybody.submit("resize", queue="jobs", timeout="2s")
        one, two = await worker.claim(slots=2)
        await overrun(server, clock, worker, two, 1)  # it gives one back, whose time begins anew with its next claim
        again = await worker.one("0s")
        assert again["id"] == one["id"]
        assert (await worker.finish(two, "snoozed", after="1s")).status == 200
        await overrun(server, clock, worker, again, 2 + LEASE)
        assert (await worker.finish(again, "completed")).status == 200
        assert [each["outcome"] for each in await server.anybody.attempts(again["id"])] == ["completed"]
