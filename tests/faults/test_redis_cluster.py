"""A Cluster moves slots, loses a primary, or one of its primaries is silent for a while: its clients go on by themselves, and nothing is done twice."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis.crc import key_slot

from taskmill.engines.redis.placement import shards_of
from taskmill.engines.settings import Settings
from tests.conftest import GIVEN
from tests.faults.clients import at_work, judged
from tests.faults.flowing import LEASE, QUEUES, Flow, flowing
from tests.faults.growing import Growing
from tests.faults.invariants_redis import broken
from tests.faults.judging import judge
from tests.faults.workers import BRISK, Load, new, place_at, verdict
from tests.faults.workload import client_of
from tests.history import Bounds, check, events, load
from tests.servers import redis_cluster as clusters
from tests.servers.absence import skip
from tests.servers.programs import FOLDERS, Absent
from tests.servers.redis import RedisServer
from tests.servers.redis_cluster import RedisCluster

BOUNDS = Bounds(lease=LEASE // 2, max_crashes=1_000)
STILL = frozenset({"token_order", "foreign_type", "early_start", "deposed_write"})
"""Rules that hold also over what was lost."""
REPLICATED = "&durability=replicated"


@pytest.fixture
def cluster(pytestconfig: pytest.Config) -> Iterator[RedisCluster]:
    """Three primaries, each with a replica."""
    try:
        with clusters.cluster(replicas=3, folders=pytestconfig.stash[GIVEN].get(FOLDERS)) as made:
            yield made
    except Absent as absent:
        skip(absent)


def shard_of(queue: str) -> int:
    [shard] = shards_of(queue, Settings(()))
    return shard


def slot_of(shard: int) -> int:
    return key_slot(f"tm:{{{shard}}}:".encode())


def reshard(cluster: RedisCluster, slots: list[int], rounds: int) -> None:
    """Each slot goes round the primaries, a few keys at a time."""
    for _ in range(rounds):
        for slot in slots:
            place = cluster.primaries.index(cluster.owner(slot))
            cluster.move(slot, cluster.primaries[(place + 1) % len(cluster.primaries)], keys=3)


def completed(reads: dict[str, events.Read]) -> None:
    assert {read.state for read in reads.values()} == {"completed"}
    assert [task for task, read in reads.items() if [attempt.outcome for attempt in read.attempts or ()].count("completed") != 1] == []


# Slots move


async def test_slots_move_under_tasks_that_wait_over_queues(tmp_path: Path, cluster: RedisCluster) -> None:
    """Also shard 0, where everybody's settings are."""
    history = tmp_path / "history"
    async with flowing(cluster.url(), history) as flow:
        await flow.goes_on()
        await asyncio.to_thread(reshard, cluster, [slot_of(shard_of(queue)) for queue in QUEUES] + [slot_of(0)], 3)
        await flow.goes_on()
    _, reads = await judge(cluster.url(), history, BOUNDS)
    completed(reads)
    assert {read.executions for read in reads.values()} == {1}
    assert flow.accepted == reads.keys()


@pytest.mark.chaos
async def test_slots_move_under_tasks_of_every_kind(tmp_path: Path, cluster: RedisCluster) -> None:
    url, history = cluster.url(), tmp_path / "history"
    async with at_work(url, history) as programs:
        growing = Growing(history)
        for _ in range(4):
            await growing.completed(100)
            await asyncio.to_thread(reshard, cluster, [slot_of(shard_of("default")), slot_of(0)], 1)
        await growing.goes_on()
    await judged(url, history, programs)


@pytest.mark.chaos
async def test_slots_move_under_workers(tmp_path: Path, cluster: RedisCluster) -> None:
    async with place_at(tmp_path, BRISK, url=cluster.url()) as place, place.worker() as worker:
        children = await worker.joined()
        async with Load(place):
            await place.effects.count(20, "end")
            await asyncio.to_thread(reshard, cluster, [slot_of(shard_of("default")), slot_of(0)], 2)
            done = len(place.effects.of("end"))
            await place.effects.count(done + 20, "end")
        assert worker.children() == children
        assert await worker.stop() == 0
        found = await verdict(place)
    assert {(read.executions, read.crashes) for read in found.reads.values()} == {(1, 0)}


# A primary is lost


def kill(cluster: RedisCluster, slot: int) -> None:
    """Its replica has taken over when this returns; it comes back later as a replica."""
    lost = cluster.owner(slot)
    lost.stop("kill")
    cluster.wait_until(lambda: owned(cluster, slot, not_by=lost))
    lost.start()


def owned(cluster: RedisCluster, slot: int, *, not_by: RedisServer) -> bool:
    try:
        return cluster.owner(slot) is not not_by
    except AssertionError:
        return False


async def loses_primaries(cluster: RedisCluster, flow: Flow, n: int = 1) -> None:
    for _ in range(n):
        for shard in (shard_of(QUEUES[0]), 0):
            await flow.goes_on()
            await asyncio.to_thread(kill, cluster, slot_of(shard))
            await flow.goes_on()
            await asyncio.to_thread(cluster.wait_until, lambda: all(cluster._stands(server) for server in cluster.servers))


async def test_a_primary_dies_and_nothing_confirmed_is_lost(tmp_path: Path, cluster: RedisCluster) -> None:
    """Every task that was accepted is there and completes, also those that wait over queues."""
    url, history = cluster.url(more=REPLICATED), tmp_path / "history"
    async with flowing(url, history) as flow:
        await loses_primaries(cluster, flow)
    recorded, reads = await judge(url, history, BOUNDS)
    completed({task: reads[task] for task in flow.accepted})
    assert any(event.answer == "lost" for event in recorded if isinstance(event, events.Submit | events.Claim | events.Finish))


def replica_of(cluster: RedisCluster, slot: int) -> RedisServer:
    primary = cluster.owner(slot)
    with primary.client() as client:
        port = client.info("replication")["slave0"]["port"]
    return next(server for server in cluster.servers if server.port == port)


@pytest.mark.chaos
async def test_a_primary_dies_and_what_was_lost_is_lost_whole(tmp_path: Path, cluster: RedisCluster) -> None:
    """At `local` the last writes are gone, because the replica was behind; what is there agrees with itself, and everybody goes on."""
    url, history = cluster.url(), tmp_path / "history"
    slot = slot_of(shard_of(QUEUES[0]))
    async with flowing(url, history, drained=False) as flow:
        await flow.goes_on()
        replica = await asyncio.to_thread(replica_of, cluster, slot)
        os.kill(replica.pid, signal.SIGSTOP)
        with cluster.owner(slot).client() as client:
            client.client_kill_filter(_type="replica")
        await flow.goes_on(30)
        cluster.owner(slot).stop("kill")
        os.kill(replica.pid, signal.SIGCONT)
        await flow.goes_on()
    assert broken(url) == []
    assert [violation for violation in check(load(history), BOUNDS) if violation.rule in STILL] == []
    assert set(flow.refused) <= {"stale_lease", "not_found"}
    async with client_of(url, history) as client:
        states = Counter(read.state for read in (await client.read_all(flow.accepted)).values())
    assert states["missing"] > 0
    assert states.keys() <= {"completed", "missing", "waiting", "cancelled"}, states


@pytest.mark.chaos
async def test_a_primary_dies_under_workers(tmp_path: Path, cluster: RedisCluster) -> None:
    async with place_at(tmp_path, BRISK, url=cluster.url(more=REPLICATED)) as place, place.worker() as worker:
        children = await worker.joined()
        async with Load(place):
            await place.effects.count(20, "end")
            await asyncio.to_thread(kill, cluster, slot_of(shard_of("default")))
            await place.effects.count(len(place.effects.of("end")) + 20, "end")
        assert worker.children() == children
        assert await worker.stop() == 0
        await verdict(place)


# A primary is silent


@contextlib.contextmanager
def silent(server: RedisServer) -> Iterator[None]:
    os.kill(server.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(server.pid, signal.SIGCONT)


@pytest.mark.parametrize("shard", [shard_of(QUEUES[0]), pytest.param(0, marks=pytest.mark.chaos)], ids=["queue", "everybody"])
async def test_a_silent_primary_is_left_for_the_new_one(tmp_path: Path, cluster: RedisCluster, shard: int) -> None:
    """No call waits as long as it might. What the new primary has accepted is there when the old one is back."""
    url, history = cluster.url(more="&busy_timeout=10m"), tmp_path / "history"
    slot = slot_of(shard)
    old = cluster.owner(slot)
    async with flowing(url, history, drained=False) as flow:
        await flow.goes_on()
        with silent(old):
            await asyncio.to_thread(replaced, cluster, slot, old)
            await flow.goes_on()
            before = set(flow.asked)
            await flow.goes_on()
        await flow.goes_on()
        kept = flow.accepted - before
        await asyncio.to_thread(cluster.wait_until, lambda: all(cluster._stands(server) for server in cluster.servers))
        await flow.goes_on()
    assert broken(url) == []
    assert [violation for violation in check(load(history), BOUNDS) if violation.rule in STILL] == []
    async with client_of(url, history) as client:
        completed(await client.read_all(kept))


def replaced(cluster: RedisCluster, slot: int, old: RedisServer) -> None:
    """All others know of a new primary."""
    others = [server for server in cluster.servers if server is not old]
    cluster.wait_until(lambda: all(sees_another(server, slot, old) for server in others))


def sees_another(server: RedisServer, slot: int, old: RedisServer) -> bool:
    with server.client() as client:
        slots = client.execute_command("CLUSTER", "SLOTS")
    return any(first <= slot <= last and primary[1] != old.port for first, last, primary, *_ in slots)


@pytest.mark.chaos
async def test_a_silent_primary_under_workers(tmp_path: Path, cluster: RedisCluster) -> None:
    slot = slot_of(shard_of("default"))
    old = cluster.owner(slot)
    async with place_at(tmp_path, BRISK, url=cluster.url(more="&busy_timeout=10m")) as place, place.worker() as worker:
        children = await worker.joined()
        await place.all_ended(await place.submit(*(new("work", ms=1) for _ in range(10))))
        with silent(old):
            during = await place.submit(*(new("work", ms=1) for _ in range(10)))
            await asyncio.to_thread(replaced, cluster, slot, old)
            await place.all_ended(during)
        await asyncio.to_thread(cluster.wait_until, lambda: all(cluster._stands(server) for server in cluster.servers))
        await place.all_ended([*during, *await place.submit(*(new("work", ms=1) for _ in range(10)))])
        assert worker.children() == children
        assert await worker.stop() == 0
    assert broken(cluster.url()) == []
