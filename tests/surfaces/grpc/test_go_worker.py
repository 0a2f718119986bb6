"""The reference worker in Go, really built and really run: it completes, retries, is cancelled, killed and stopped."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from taskmill.server.grpc.v1 import taskmill_pb2 as pb
from tests.servers.absence import skip
from tests.servers.programs import Absent
from tests.surfaces.grpc.go import built, started
from tests.surfaces.grpc.houses import HANGS, Client, House, client, housed


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    base = tmp_path_factory.getbasetemp()
    try:
        return built((base if worker_id == "master" else base.parent) / "go-worker")
    except Absent as absent:
        skip(absent)


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    """A server whose store is looked after, as by `taskmill up`."""
    async with housed(f"sqlite:///{tmp_path}/store.db", tmp_path) as made:

        async def recover() -> None:
            while True:
                await made.engine.recover_lost()
                await asyncio.sleep(0.1)

        recovering = asyncio.create_task(recover())
        yield made
        recovering.cancel()
        await asyncio.gather(recovering, return_exceptions=True)


@pytest.fixture
async def key(house: House) -> str:
    return await house.key("worker")


@pytest.fixture
async def caller(house: House) -> AsyncIterator[Client]:
    async with client(house, await house.key("submit", "read", "read-payload", "cancel")) as made:
        yield made


def task(type: str, payload: bytes = b"null") -> pb.NewTask:
    made = pb.NewTask(type=type, queue="go", payload=payload)
    made.retry.kind = "fixed"
    made.retry.base.FromMilliseconds(20)
    return made


async def end_of(caller: Client, id: str, *, attempts: bool = False) -> pb.Task:
    request = pb.GetRequest(id=id, attempts=attempts)
    request.wait.FromSeconds(50)
    return await caller.tasks.Get(request, metadata=caller.metadata, timeout=HANGS)


async def test_it_completes_tasks(program: Path, house: House, key: str, caller: Client) -> None:
    async with started(program, house.address, key):
        ids = [await caller.submit(task("go.echo", b'{"n":%d}' % number)) for number in range(40)]
        ended = [await end_of(caller, id) for id in ids]
        assert [(one.state, one.result) for one in ended] == [(pb.STATE_COMPLETED, b'{"n":%d}' % number) for number in range(40)]
        [worker] = await house.engine.workers()
        assert (worker.info["language"], worker.running) == ("go", 0)


async def test_it_fails_and_tries_again(program: Path, house: House, key: str, caller: Client) -> None:
    async with started(program, house.address, key):
        ended = await end_of(caller, await caller.submit(task("go.flaky")), attempts=True)
        assert (ended.state, ended.result) == (pb.STATE_COMPLETED, b'{"attempt":3}')
        errors = [(attempt.outcome, attempt.error.code, attempt.error.message) for attempt in ended.attempts]
        assert errors[:2] == [("failed", "go_error", "attempt 1 fails"), ("failed", "go_error", "attempt 2 fails")]


async def test_a_cancel_reaches_it(program: Path, house: House, key: str, caller: Client) -> None:
    async with started(program, house.address, key, "-lease", "3s") as worker:
        id = await caller.submit(task("go.sleep", b'{"seconds":3600}'))
        await worker.until(f"sleeping: {id}")
        answer = await caller.tasks.Cancel(pb.CancelRequest(id=id), metadata=caller.metadata)
        assert answer.requested == 1
        assert (await end_of(caller, id)).state == pb.STATE_CANCELLED
        await worker.until(f"{id}: the task was cancelled")


async def test_a_timeout_is_kept(program: Path, house: House, key: str, caller: Client) -> None:
    async with started(program, house.address, key):
        slow = task("go.sleep", b'{"seconds":3600}')
        slow.timeout.FromMilliseconds(100)
        slow.retry.max_retries = 0
        ended = await end_of(caller, await caller.submit(slow))
        assert (ended.state, ended.error.message) == (pb.STATE_DEAD, "the attempt took too long")


async def test_killed_in_the_middle_its_task_runs_elsewhere(program: Path, house: House, key: str, caller: Client) -> None:
    async with started(program, house.address, key, "-lease", "2s") as first:
        id = await caller.submit(task("go.sleep", b'{"seconds":0.5}'))
        await first.until(f"sleeping: {id}")
        first.process.send_signal(signal.SIGKILL)
        async with started(program, house.address, key, "-lease", "2s") as second:
            await second.until(f"sleeping: {id}")
            ended = await end_of(caller, id, attempts=True)
            assert (ended.state, ended.result, ended.crashes) == (pb.STATE_COMPLETED, b'"slept"', 1)
            assert [attempt.outcome for attempt in ended.attempts] == ["crashed", "completed"]
            assert ended.attempts[0].worker != ended.attempts[1].worker


async def test_a_task_longer_than_its_lease_is_kept(program: Path, house: House, key: str, caller: Client) -> None:
    async with started(program, house.address, key, "-lease", "2s"):
        ended = await end_of(caller, await caller.submit(task("go.sleep", b'{"seconds":4}')))
        assert (ended.state, ended.executions) == (pb.STATE_COMPLETED, 1)


async def test_it_ends_what_it_runs_on_sigterm(program: Path, house: House, key: str, caller: Client) -> None:
    async with started(program, house.address, key) as worker:
        id = await caller.submit(task("go.sleep", b'{"seconds":1}'))
        await worker.until(f"sleeping: {id}")
        worker.process.send_signal(signal.SIGTERM)
        assert await worker.ended() == 0
        assert worker.said[-1].endswith("left")
        assert (await caller.get(id)).state == pb.STATE_COMPLETED
        assert await house.engine.workers() == ()


async def test_it_gives_back_what_does_not_end(program: Path, house: House, key: str, caller: Client) -> None:
    async with started(program, house.address, key) as worker:
        id = await caller.submit(task("go.sleep", b'{"seconds":3600}'))
        await worker.until(f"sleeping: {id}")
        worker.process.send_signal(signal.SIGTERM)
        assert await worker.ended() == 0
        found = await caller.get(id)
        assert (found.state, found.failures, found.crashes) == (pb.STATE_PENDING, 0, 0)


async def test_without_a_valid_key_it_says_so(program: Path, house: House, key: str) -> None:
    process = await asyncio.create_subprocess_exec(
        program, "-address", house.address, env={"TASKMILL_API_KEY": "tm_0123456789ab_" + "A" * 43}, stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(HANGS):
        _, said = await process.communicate()
    assert process.returncode == 1
    assert b"cannot join" in said
    assert b"Unauthenticated" in said
