"""How far a write has come when it is acknowledged: what each server can say, what is said, and what is not said when it is not sure."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import AsyncIterator, Iterator

import pytest
from redis.crc import key_slot

from taskmill.engine import Durability, Engine, Status
from taskmill.engines import create
from taskmill.engines.redis.placement import shards_of
from taskmill.engines.settings import Settings
from taskmill.errors import AnswerLost, InvalidSettings
from taskmill.task import Edge, NewTask, State, Task
from tests.conformance.tools import new, state, submit, worker
from tests.servers import redis as servers
from tests.servers import redis_cluster as clusters
from tests.servers.redis import RedisServer
from tests.servers.redis_cluster import RedisCluster

REPLICATED = "&durability=replicated"


@contextlib.asynccontextmanager
async def opened(url: str) -> AsyncIterator[Engine]:
    engine = create(url)
    await engine.open()
    try:
        yield engine
    finally:
        await engine.close()


@pytest.fixture
def pair(private_redis: RedisServer) -> Iterator[tuple[RedisServer, RedisServer]]:
    """A primary and its replica; `private_redis` says where there is no server at all."""
    with servers.started(repl_diskless_sync_delay=0) as primary, servers.started(replica_of=primary) as replica:
        linked(primary)
        yield primary, replica


def linked(primary: RedisServer) -> None:
    with primary.client() as client:
        RedisCluster.wait_until(lambda: bool(client.info("replication")["connected_slaves"] == 1 and client.execute_command("WAIT", 1, 1_000) == 1))


@contextlib.contextmanager
def paused(server: RedisServer) -> Iterator[None]:
    os.kill(server.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(server.pid, signal.SIGCONT)


async def unconfirmed(engine: Engine, task: NewTask, durability: Durability | None = None) -> None:
    with pytest.raises(AnswerLost) as lost:
        await engine.submit([task], durability=durability)
    assert lost.value.code == "durability_unconfirmed"
    assert lost.value.hint


# Replicated


async def test_what_a_replica_has(pair: tuple[RedisServer, RedisServer]) -> None:
    primary, replica = pair
    async with opened(primary.url() + REPLICATED) as engine:
        [answer] = await engine.submit([task := new()])
        assert (answer.status, answer.durability) == (Status.CREATED, Durability.REPLICATED)
    with replica.client() as client:
        assert client.exists(f"tm:{{0}}:t:{task.id}")


async def test_one_submit_may_ask_for_more(pair: tuple[RedisServer, RedisServer]) -> None:
    primary, replica = pair
    async with opened(primary.url()) as engine:
        [answer] = await engine.submit([new()])
        assert answer.durability is Durability.LOCAL
        [answer] = await engine.submit([task := new()], durability=Durability.REPLICATED)
        assert (answer.status, answer.durability) == (Status.CREATED, Durability.REPLICATED)
        with replica.client() as client:
            assert client.exists(f"tm:{{0}}:t:{task.id}")
        with paused(replica):
            await unconfirmed(engine, new(), Durability.REPLICATED)
            [answer] = await engine.submit([new()])
            assert answer.durability is Durability.LOCAL


async def test_no_replica(private_redis: RedisServer) -> None:
    with private_redis.client() as client:
        client.config_set("repl-diskless-sync-delay", 0)
    async with opened(private_redis.url() + REPLICATED) as engine:
        await engine.submit([new()], durability=Durability.LOCAL)
        await unconfirmed(engine, task := new())
        assert isinstance((await engine.get([task.id]))[0], Task)
        with servers.started(replica_of=private_redis):
            linked(private_redis)
            [answer] = await engine.submit([task])
            assert (answer.status, answer.durability) == (Status.DUPLICATE, Durability.REPLICATED)


async def test_a_replica_that_is_silent(pair: tuple[RedisServer, RedisServer]) -> None:
    """Also a repeat, which writes nothing, is not confirmed by what the replica had before."""
    primary, replica = pair
    async with opened(primary.url() + REPLICATED) as engine:
        await engine.submit([new()])
        with paused(replica):
            await unconfirmed(engine, task := new())
            assert isinstance((await engine.get([task.id]))[0], Task)
            await unconfirmed(engine, task)
        linked(primary)
        [answer] = await engine.submit([task])
        assert (answer.status, answer.durability) == (Status.DUPLICATE, Durability.REPLICATED)


async def test_a_repeat_on_a_server_that_takes_no_writes(pair: tuple[RedisServer, RedisServer]) -> None:
    """The mark that is waited for could not be written, so nothing is known of the replica."""
    primary, replica = pair
    async with opened(primary.url() + REPLICATED) as engine, opened(primary.url() + REPLICATED) as other:
        await engine.submit([new()])
        with paused(replica):
            await unconfirmed(engine, task := new())
            with primary.client() as client:
                client.config_set("maxmemory", "1")
            await unconfirmed(other, task)


@pytest.fixture(scope="module")
def cluster(redis_server: object) -> Iterator[RedisCluster]:
    """Nobody takes over so soon; `redis_server` says where there is no server at all."""
    with clusters.cluster(replicas=3, cluster_node_timeout=60_000) as made:
        yield made


async def test_where_a_task_is_must_have_come_as_far_as_the_task(cluster: RedisCluster) -> None:
    """An id that does not say its shard is found by a pointer, which lies on another server: its replica must have that too."""
    [shard] = shards_of("default", Settings(()))
    home = cluster.owner(key_slot(f"tm:{{{shard}}}:".encode()))
    async with opened(cluster.url(more=REPLICATED)) as engine:
        await engine.submit([new()])
        task = next(task for task in iter(new, None) if cluster.owner(key_slot(f"tm:at:{{{task.id}}}".encode())) is not home)
        pointed = cluster.primaries.index(cluster.owner(key_slot(f"tm:at:{{{task.id}}}".encode())))
        with paused(cluster.replicas[pointed]):
            await unconfirmed(engine, task)
            await unconfirmed(engine, task)
        RedisCluster.wait_until(lambda: confirmed(cluster.primaries[pointed]))
        [answer] = await engine.submit([task])
        assert answer.durability is Durability.REPLICATED


async def test_what_a_shard_owes_is_crossed_off_when_it_has_come_as_far(cluster: RedisCluster) -> None:
    """The end of a task is told to one who waits on another server, whose replica is silent: it is told again until that has it."""
    queues = ["left", *(f"right-{n}" for n in range(20))]
    owners = {queue: cluster.owner(key_slot(f"tm:{{{shards_of(queue, Settings(()))[0]}}}:".encode())) for queue in queues}
    zero = cluster.owner(key_slot(b"tm:{0}:"))
    other = next(queue for queue in queues if owners[queue] not in (owners["left"], zero))
    async with opened(cluster.url(more=REPLICATED)) as engine:
        hand = await worker(engine, queues=["left"])
        child = new(queue="left", id=engine.new_id("left"))
        waiter = new(queue=other, id=engine.new_id(other), edges=(Edge(child.id),))
        await submit(engine, child, waiter)
        claimed = await hand.claim_one()
        key = f"tm:{{{shards_of('left', Settings(()))[0]}}}:posts"
        with paused(cluster.replicas[cluster.primaries.index(owners[other])]):
            await hand.done(claimed)
            with owners["left"].client() as client:
                assert client.zcard(key) == 1
        RedisCluster.wait_until(lambda: confirmed(owners[other]))
        await engine.recover_lost()
        assert await state(engine, waiter.id) is State.PENDING
        with owners["left"].client() as client:
            assert client.zcard(key) == 0


def confirmed(primary: RedisServer) -> bool:
    with primary.client() as client:
        return bool(client.execute_command("WAIT", 1, 1_000) == 1)


# On the disk


@pytest.mark.parametrize("appendonly", ["no", "yes"])
async def test_a_disk_that_says_nothing(private_redis: RedisServer, appendonly: str) -> None:
    with servers.started(appendonly=appendonly, appendfsync="everysec") as server:
        with server.client() as client:
            version = tuple(int(part) for part in client.info("server")["redis_version"].split(".")[:2])
        if appendonly == "yes" and version >= (7, 2):
            pytest.skip("this server can be asked what its disk has")
        with pytest.raises(InvalidSettings) as refused:
            await create(server.url() + "&durability=fsync").open()
        assert (refused.value.code, refused.value.field) == ("contradiction", "durability")
        async with opened(server.url()) as engine:
            with pytest.raises(InvalidSettings) as refused:
                await engine.submit([new()], durability=Durability.FSYNC)
            assert refused.value.code == "contradiction"


async def test_a_disk_that_is_waited_for(private_redis: RedisServer) -> None:
    with servers.started(appendonly="yes", appendfsync="always") as server:
        async with opened(server.url() + "&durability=fsync") as engine:
            [answer] = await engine.submit([task := new()])
            assert (answer.status, answer.durability) == (Status.CREATED, Durability.FSYNC)
        server.stop("kill")
        server.start()
        async with opened(server.url()) as engine:
            assert isinstance((await engine.get([task.id]))[0], Task)
            [answer] = await engine.submit([task], durability=Durability.FSYNC)
            assert (answer.status, answer.durability) == (Status.DUPLICATE, Durability.FSYNC)


# What `check` says of it


async def said(url: str) -> dict[str, str]:
    async with opened(url) as engine:
        found = {finding.code: finding.level for finding in await engine.check()}
    return {code: level for code, level in found.items() if code != "old_lua"}


async def test_findings_of_one_server(private_redis: RedisServer) -> None:
    assert await said(private_redis.url()) == {"not_durable": "warning", "no_replica": "info"}
    assert (await said(private_redis.url() + REPLICATED))["no_replica"] == "warning"
    for mode in ("everysec", "always"):
        with servers.started(appendonly="yes", appendfsync=mode) as server:
            assert await said(server.url()) == {"append_only": "info", "no_replica": "info"}


async def test_findings_of_a_replica(pair: tuple[RedisServer, RedisServer]) -> None:
    primary, _ = pair
    assert (await said(primary.url()))["asynchronous_replica"] == "info"
    found = await said(primary.url() + REPLICATED)
    assert found["confirmed_replica"] == "info"
    assert "asynchronous_replica" not in found
