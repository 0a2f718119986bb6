"""The server is silent for longer than a lease, forgets its scripts, cuts connections, or is emptied: nothing runs twice for it, and everybody goes on."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from taskmill import codec
from taskmill.clock import SECOND
from taskmill.engine import Ending, Joining, Outcome, Room
from taskmill.task import NewTask, Task
from tests.faults.clients import LEASE, at_work, judged
from tests.faults.growing import Growing
from tests.faults.invariants_redis import broken
from tests.faults.judging import judge
from tests.faults.processes import started
from tests.faults.workers import BRISK, Load, new, place_at, verdict
from tests.faults.workload import TYPES, client_of, prepare
from tests.history import Bounds
from tests.servers import redis as servers
from tests.servers.redis import RedisServer

AWAY = 2.5
"""Seconds: longer than a lease."""


@pytest.fixture
def sleepy(private_redis: RedisServer) -> Iterator[RedisServer]:
    """One that can be told to sleep; `private_redis` says where there is no server at all."""
    with servers.started(enable_debug_command="yes") as server:
        yield server


def pause(server: RedisServer, seconds: float) -> None:
    with server.client() as client:
        client.execute_command("CLIENT", "PAUSE", int(seconds * 1_000), "ALL")
        client.connection_pool.disconnect()


def sleep(server: RedisServer, seconds: float) -> None:
    with server.client() as client:
        client.execute_command("DEBUG", "SLEEP", str(seconds))


def stop(server: RedisServer, seconds: float) -> None:
    os.kill(server.pid, signal.SIGSTOP)
    threading.Event().wait(seconds)
    os.kill(server.pid, signal.SIGCONT)


Silence = Callable[[RedisServer, float], None]
SILENCES: tuple[Silence, ...] = (pause, sleep, stop)


@pytest.mark.parametrize("silence", [pause, pytest.param(sleep, marks=pytest.mark.chaos), pytest.param(stop, marks=pytest.mark.chaos)])
async def test_no_lease_is_lost(tmp_path: Path, sleepy: RedisServer, silence: Silence) -> None:
    """Nobody could beat, so nobody is judged by it: the leases are kept, and no crash is counted."""
    url, history = sleepy.url(), tmp_path / "history"
    async with client_of(url, history) as client:
        await prepare(client)
        await client.submit([NewTask(type="plain", payload=codec.encode({"do": "complete"})) for _ in range(6)])
    options = ("--lease", LEASE, "--batches", 3)
    async with started("sit", url, history, *options) as first, started("sit", url, history, *options) as second:
        held = [*await first.hear("claimed"), *await second.hear("claimed")]
        for sitter in (first, second):
            await sitter.hear("beat")
        await asyncio.to_thread(silence, sleepy, AWAY)
        for sitter in (first, second):
            await sitter.hear("beat")
            sitter.tell("finish")
        answers = [*await first.hear("answers"), *await second.hear("answers")]
        await asyncio.gather(first.done(), second.done())
    _, reads = await judge(url, history, Bounds(lease=LEASE // 2))
    assert answers == ["applied"] * 6
    assert {(reads[task].executions, reads[task].crashes) for task in held} == {(1, 0)}


async def silent_for_workers(tmp_path: Path, server: RedisServer, silence: Silence, seconds: float, env: dict[str, str]) -> None:
    async with place_at(tmp_path, env, url=server.url()) as place, place.worker() as first, place.worker() as second:
        children = [*await first.joined(), *await second.joined()]
        gate = place.gate("gate")
        tasks = await place.submit(*(new("hold", gate=gate.path) for _ in range(6)))
        await place.effects.count(6, "begin", tasks=tasks)
        growing = Growing(place.history)
        async with Load(place):
            await growing.completed(20)
            silent = asyncio.create_task(asyncio.to_thread(silence, server, seconds))
            gate.let(3)  # these end while nobody can be told
            await silent
            await growing.goes_on()
            gate.let(3)
        await place.all_ended(tasks)
        assert [*first.children(), *second.children()] == children
        assert [await first.stop(), await second.stop()] == [0, 0]
        gate.close()
        found = await verdict(place)
    assert {(read.executions, read.crashes, read.failures) for read in found.reads.values()} == {(1, 0, 0)}
    assert found.answers("stale") == []


async def test_workers_go_on(tmp_path: Path, sleepy: RedisServer) -> None:
    await silent_for_workers(tmp_path, sleepy, sleep, AWAY, BRISK)


@pytest.mark.chaos
@pytest.mark.parametrize("silence", SILENCES)
async def test_workers_go_on_after_ten_seconds(tmp_path: Path, sleepy: RedisServer, silence: Silence) -> None:
    await silent_for_workers(tmp_path, sleepy, silence, 10.0, {})


def demote(server: RedisServer, seconds: float) -> None:
    """It takes no writes, as a primary that another has taken the place of; then it is promoted again, with all it had."""
    with server.client() as client:
        client.replicaof("127.0.0.1", "1")
        threading.Event().wait(seconds)
        client.replicaof("NO", "ONE")


async def test_workers_go_on_after_their_server_was_read_only(tmp_path: Path, private_redis: RedisServer) -> None:
    """For longer than a lease; every refusal says that nothing was written, and nothing was."""
    async with place_at(tmp_path, BRISK, url=private_redis.url()) as place, place.worker() as first, place.worker() as second:
        children = [*await first.joined(), *await second.joined()]
        gate = place.gate("gate")
        tasks = await place.submit(*(new("hold", gate=gate.path) for _ in range(6)), *(new("work", ms=1, delay=SECOND) for _ in range(50)))
        await place.effects.count(6, "begin", tasks=tasks)
        silent = asyncio.create_task(asyncio.to_thread(demote, private_redis, AWAY))
        gate.let(6)
        await silent
        await place.all_ended(tasks)
        assert [*first.children(), *second.children()] == children
        assert [await first.stop(), await second.stop()] == [0, 0]
        gate.close()
        found = await verdict(place)
    assert {(read.executions, read.crashes, read.failures) for read in found.reads.values()} == {(1, 0, 0)}


# Scripts forgotten and connections cut, again and again


def trouble(server: RedisServer) -> None:
    with server.client() as client:
        client.script_flush()
        client.client_kill_filter(_type="normal", skipme=True)
        client.client_kill_filter(_type="pubsub", skipme=True)


async def test_scripts_are_forgotten_and_connections_cut_under_load(tmp_path: Path, private_redis: RedisServer) -> None:
    url, history = private_redis.url(), tmp_path / "history"
    async with at_work(url, history) as programs:
        growing = Growing(history)
        for _ in range(10):
            await growing.completed(40)
            await asyncio.to_thread(trouble, private_redis)
        await growing.goes_on()
    await judged(url, history, programs)


async def test_workers_go_on_whose_connections_are_cut(tmp_path: Path, private_redis: RedisServer) -> None:
    async with place_at(tmp_path, BRISK, url=private_redis.url()) as place, place.worker() as worker:
        children = await worker.joined()
        growing = Growing(place.history)
        async with Load(place):
            for _ in range(5):
                await growing.completed(10)
                await asyncio.to_thread(trouble, private_redis)
            await growing.goes_on()
        assert worker.children() == children
        assert await worker.stop() == 0
        await verdict(place)


# Emptied


async def test_an_emptied_store_refuses_those_of_before(tmp_path: Path, private_redis: RedisServer) -> None:
    history = tmp_path / "history"
    async with client_of(private_redis.url(), history) as client:
        joining = Joining(worker="worker", queues=("default",), types=TYPES)
        await client.join(joining)
        await client.submit([NewTask(type="plain") for _ in range(3)])
        before = (await client.claim("worker", 1, ("default",), Room(3))).tasks
        with private_redis.client() as other:
            other.flushall()
        await client.engine.recover_lost()
        assert not (await client.engine.heartbeat("worker", 1, [task.token for task in before])).known
        await client.join(joining)
        await client.submit([NewTask(type="plain", id=task.id) for task in before])  # the same ids, brought again
        again = (await client.claim("worker", 1, ("default",), Room(3))).tasks
        assert min(task.token for task in again) > max(task.token for task in before)
        late = [Outcome(task=task.id, worker="worker", token=task.token, ending=Ending.COMPLETED, started_after=0) for task in before]
        assert [refusal.code for refusal in (await client.engine.finish(late)).refused] == ["stale_lease"] * 3
        assert await client.engine.checkpoint([]) == ()
    assert broken(private_redis.url()) == []


async def test_a_worker_goes_on_in_an_emptied_store(tmp_path: Path, private_redis: RedisServer) -> None:
    """One critical line; what was there is gone and is not made up, what comes is worked on."""
    async with place_at(tmp_path, BRISK, url=private_redis.url()) as place, place.worker() as worker:
        await worker.joined()
        gate = place.gate("gate")
        before = await place.submit(*(new("hold", gate=gate.path) for _ in range(3)))
        await place.effects.count(3, "begin", tasks=before)
        with contextlib.closing(private_redis.client()) as client:
            client.flushall()
        await worker.says("was emptied")
        await worker.joined(2)  # under a new name, with its types
        gate.let(3)
        after = await place.submit(*(new("work", ms=1) for _ in range(20)))
        await place.all_ended(after)
        assert await place.engine.get(before) == (None,) * 3
        found = [task for task in await place.engine.get(after) if isinstance(task, Task)]
        assert {(task.executions, task.crashes) for task in found} == {(1, 0)}
        assert await worker.stop() == 0
        gate.close()
    assert broken(private_redis.url()) == []
