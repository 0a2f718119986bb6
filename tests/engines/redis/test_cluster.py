"""What only a Cluster has: shards, ids that say theirs, pointers, partitions, and what crosses queues."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from redis.crc import key_slot

from taskmill.clock import HOUR, ManualClock
from taskmill.engine import Ending, Engine, Filter, Retention, Status
from taskmill.engines import create
from taskmill.engines.redis.cluster import ClusterEngine
from taskmill.engines.redis.placement import shard_said, shards_of
from taskmill.engines.settings import Settings
from taskmill.errors import InvalidInput, InvalidSettings, WrongStore
from taskmill.task import Edge, NewTask, State, Task, Unique, new_id
from tests.conformance.tools import Worker, accepted, ids_of, new, record, state, states, submit, submit_many, worker
from tests.conformance.tools_b import led
from tests.servers.redis import RedisServer
from tests.servers.redis_cluster import RedisCluster

NOTHING = Settings(())


@pytest.fixture
async def engine(redis_cluster_url: str) -> AsyncIterator[ClusterEngine]:
    engine = create(redis_cluster_url)
    assert isinstance(engine, ClusterEngine)
    await engine.open()
    yield engine
    await engine.close()


def shard_of(queue: str) -> int:
    [shard] = shards_of(queue, NOTHING)
    return shard


def keys_of(cluster: RedisCluster, pattern: str) -> set[str]:
    found: set[str] = set()
    for server in cluster.primaries:
        with server.client() as client:
            found |= {key.decode() for key in client.keys(pattern)}
    return found


async def test_a_queue_is_whole_in_its_shard_and_queues_are_spread(engine: ClusterEngine, redis_cluster: RedisCluster) -> None:
    queues = [f"queue-{n}" for n in range(40)]
    for queue in queues:
        await submit_many(engine, 2, queue=queue)
    owners = {redis_cluster.owner(key_slot(f"{{{shard_of(queue)}}}".encode())).port for queue in queues}
    assert owners == {server.port for server in redis_cluster.primaries}
    for queue in queues[:5]:
        assert keys_of(redis_cluster, f"tm:*:q:{queue}:*") == {f"tm:{{{shard_of(queue)}}}:q:{queue}:1"}


async def test_an_id_that_we_made_says_its_shard_and_has_no_pointer(engine: ClusterEngine, redis_cluster: RedisCluster) -> None:
    id = engine.new_id("mail")
    assert shard_said(id) == shard_of("mail")
    await submit(engine, new(queue="mail", id=id))
    assert await state(engine, id) is State.PENDING
    assert not keys_of(redis_cluster, "tm:at:*")


@pytest.mark.parametrize("made", ["by the caller", "for another queue"])
async def test_any_other_id_has_a_pointer(engine: ClusterEngine, redis_cluster: RedisCluster, made: str) -> None:
    id = new_id() if made == "by the caller" else engine.new_id("other")
    await submit(engine, new(queue="mail", id=id))
    assert keys_of(redis_cluster, "tm:at:*") == {f"tm:at:{{{id}}}"}
    assert await state(engine, id) is State.PENDING
    hand = await worker(engine, queues=["mail"])
    await hand.done(await hand.claim_one())
    assert len(await engine.attempts(id)) == 1


@pytest.mark.parametrize("made", ["by the caller", "by us"])
async def test_an_id_is_one_task_whatever_queue_is_named(engine: ClusterEngine, made: str) -> None:
    id = new_id() if made == "by the caller" else engine.new_id("one")
    await submit(engine, new("same", queue="one", id=id))
    same, other = [(await engine.submit([new(payload, queue="two", id=id)]))[0] for payload in ("same", "other")]
    assert (same.status, other.status) == (Status.DUPLICATE, Status.CONFLICT)
    assert (await record(engine, id)).queue == "one"
    assert [task.id for task in (await engine.list()).tasks] == [id]


async def test_an_id_is_one_task_also_in_a_race(redis_cluster_url: str) -> None:
    engines = [create(redis_cluster_url) for _ in range(4)]
    for engine in engines:
        await engine.open()
    for _ in range(20):
        id = new_id()
        answers = await asyncio.gather(*(each.submit([new("same", queue=f"race-{n}", id=id)]) for n, each in enumerate(engines)), return_exceptions=True)
        created = [answer for answer in answers if isinstance(answer, tuple) and answer[0].status is Status.CREATED]
        assert len(created) == 1
        assert [task.id for task in (await engines[0].list()).tasks].count(id) == 1
    for engine in engines:
        await engine.close()


async def test_pointers_are_forgotten_with_their_tasks(redis_cluster: RedisCluster, redis_cluster_url: str) -> None:
    clock = ManualClock()
    engine = create(redis_cluster_url, clock=clock)
    await engine.open()
    hand = await worker(engine)
    [id] = await submit(engine, new(idempotency_window=HOUR))
    await hand.done(await hand.claim_one())
    clock.advance("4d")
    term = await led(engine)
    while (await engine.prune(100, term, Retention(completed=0))).moved:
        pass
    owner = redis_cluster.owner(key_slot(f"tm:at:{{{id}}}".encode()))
    with owner.client() as client:
        assert 0 < client.ttl(f"tm:at:{{{id}}}") <= 3_600
    await submit(engine, new(id=id))
    with owner.client() as client:
        assert client.ttl(f"tm:at:{{{id}}}") == -1
    await engine.close()


# What crosses queues


async def crossing(engine: Engine) -> tuple[Worker, Worker]:
    return await worker(engine, queues=["left"]), await worker(engine, queues=["right"])


async def test_a_chain_over_many_queues(engine: ClusterEngine) -> None:
    tasks = [new(0, queue="stage-0")]
    for n in range(1, 6):
        tasks.append(new(n, queue=f"stage-{n}", edges=(Edge(tasks[-1].id),)))
    await submit(engine, *reversed(tasks))
    for n, task in enumerate(tasks):
        hand = await worker(engine, queues=[f"stage-{n}"])
        claimed = await hand.claim_one()
        assert claimed.id == task.id
        assert [edge.result for edge in claimed.results] == ([str(n - 1).encode()] if n else [])
        await hand.done(claimed, result=str(n).encode())


async def test_a_child_that_had_ended_before(engine: ClusterEngine) -> None:
    left, right = await crossing(engine)
    [child] = await submit(engine, new(queue="left"))
    await left.done(await left.claim_one(), result=b"7")
    await submit(engine, new(queue="right", edges=(Edge(child),)))
    assert [edge.result for edge in (await right.claim_one()).results] == [b"7"]


async def test_children_of_other_queues_under_a_seal(engine: ClusterEngine) -> None:
    left, right = await crossing(engine)
    parent = new(queue="left", sealed=True)
    await submit(engine, parent)
    children = [new(n, queue="right", parent=Edge(parent.id)) for n in range(3)]
    await submit(engine, *children[:2])
    answers = await engine.submit(children[2:], unseal=[parent.id])
    assert [accepted(answer) for answer in answers] == [children[2].id]
    await right.done(*await right.claim(3), result=b"1")
    assert [edge.task for edge in (await left.claim_one()).results] == [child.id for child in children]


async def test_a_whole_group_in_one_batch(engine: ClusterEngine) -> None:
    """The parent is not sealed: it must not run before its children of other queues are known to it."""
    left, right = await crossing(engine)
    parent = new(queue="left")
    children = [new(n, queue="right", parent=Edge(parent.id)) for n in range(20)]
    await submit(engine, parent, *children)
    assert await left.claim(1) == []
    await right.done(*await right.claim(20))
    assert (await left.claim_one()).id == parent.id


async def test_a_cycle_over_shards_is_refused(engine: ClusterEngine) -> None:
    a, b = new_id(), new_id()
    answers = await engine.submit([new(queue="left", id=a, edges=(Edge(b),)), new(queue="right", id=b, edges=(Edge(a),))])
    assert [answer.error.code for answer in answers if answer.error] == ["cycle", "cycle"]


async def test_what_a_dead_process_left_is_done_by_another(redis_cluster_url: str) -> None:
    """It ended between its step and what the step left for another shard."""
    dying, other = create(redis_cluster_url), create(redis_cluster_url)
    for engine in (dying, other):
        await engine.open()
    left, right = await worker(dying, queues=["left"]), await worker(other, queues=["right"])
    [child] = await submit(other, new(queue="left"))
    [waiter] = await submit(other, new(queue="right", edges=(Edge(child),)))
    follower = new(queue="right")
    claimed = await left.claim_one()
    assert isinstance(dying, ClusterEngine)
    dying._crossing.deliver = dying._crossing.settle = nothing  # type: ignore[method-assign, assignment]
    await left.done(claimed, then=(follower,))
    assert await states(other, [child, waiter]) == [State.COMPLETED, State.WAITING]
    assert await other.get([follower.id]) == (None,)
    looked = create(redis_cluster_url)
    await looked.open()
    await looked.recover_lost()
    assert await states(other, [waiter, follower.id]) == [State.PENDING, State.PENDING]
    assert set(ids_of(await right.claim(5))) == {waiter, follower.id}
    for engine in (dying, other, looked):
        await engine.close()


async def nothing() -> bool:
    return False


# Partitions


async def test_a_queue_with_partitions_lies_in_several_shards(engine: ClusterEngine, redis_cluster: RedisCluster) -> None:
    await engine.put("queue", "wide", b'{"partitions": 4}')
    ids = [accepted(answer) for answer in await engine.submit([NewTask(type="work", queue="wide", id=engine.new_id("wide")) for _ in range(100)])]
    shards = {shard_said(id) for id in ids}
    assert len(shards) == 4
    hand = await worker(engine, queues=["wide"])
    taken: list[str] = []
    while some := await hand.claim(30):
        taken += ids_of(some)
        await hand.done(*some)
    assert sorted(taken) == sorted(ids)
    assert sum(count.tasks for count in await engine.counts()) == 100


async def test_what_must_meet_meets_in_one_partition(engine: ClusterEngine) -> None:
    await engine.put("queue", "wide", b'{"partitions": 8}')
    for fields in ({"idempotency_key": "k"}, {"unique": Unique("u")}):
        answers = [(await engine.submit([new(queue="wide", **fields)]))[0] for _ in range(5)]
        assert len({answer.id for answer in answers}) == 1
    for n in range(6):
        await submit(engine, new(n, queue="wide", order_key="o"))
    hand = await worker(engine, queues=["wide"])
    order = []
    while some := await hand.claim(10):
        order += [task.payload for task in some if task.payload != b"null"]
        await hand.done(*some)
    assert order == [str(n).encode() for n in range(6)]


async def test_a_queue_that_gets_partitions_is_served_by_those_who_are_there(engine: ClusterEngine, redis_cluster_url: str) -> None:
    hand = await worker(engine, queues=["wide"])
    before = await submit_many(engine, 5, queue="wide")
    operator = create(redis_cluster_url)
    await operator.open()
    await operator.put("queue", "wide", b'{"partitions": 6}')
    after = await submit_many(operator, 30, queue="wide")
    await engine.recover_lost()
    await hand.beat()
    taken: list[str] = []
    while some := await hand.claim(10):
        taken += ids_of(some)
        await hand.done(*some)
    assert sorted(taken) == sorted([*before, *after])
    with pytest.raises(InvalidInput, match="6 partitions"):
        await operator.put("queue", "wide", b'{"partitions": 2}')
    await operator.close()


# Refused


async def test_a_server_of_a_cluster_is_no_server_alone(redis_cluster: RedisCluster) -> None:
    engine = create(redis_cluster.primaries[0].url())
    with pytest.raises(InvalidSettings, match="Cluster") as refused:
        await engine.open()
    assert (refused.value.code, refused.value.hint) == ("is_a_cluster", "say so: ?cluster=true")


async def test_a_server_alone_is_no_cluster(redis_server: RedisServer) -> None:
    engine = create(f"{redis_server.url()}&cluster=true")
    with pytest.raises(InvalidSettings) as refused:
        await engine.open()
    assert refused.value.code == "not_a_cluster"


async def test_a_store_with_another_number_of_shards(redis_cluster: RedisCluster, redis_cluster_url: str) -> None:
    with redis_cluster.owner(key_slot(b"{0}")).client() as client:
        client.hset("tm:{0}:store", mapping={"schema": 1, "shards": 1})
    with pytest.raises(WrongStore, match="made with 1 shards, not 1024"):
        await create(redis_cluster_url).open()


async def test_ends_are_waited_for_over_shards(engine: ClusterEngine, redis_cluster_url: str) -> None:
    left, _ = await crossing(engine)
    ids = await submit(engine, new(queue="left"), new(queue="right"))
    waiting = asyncio.create_task(engine.wait(ids, 30_000_000))
    await left.done(await left.claim_one(), ending=Ending.COMPLETED)
    assert await waiting == {ids[0]: State.COMPLETED}
    assert isinstance((await engine.get(ids))[0], Task)


async def test_a_list_of_shards_that_a_failover_lost_is_made_again(engine: ClusterEngine, redis_cluster: RedisCluster) -> None:
    await worker(engine, queues=["left"])
    [id] = await submit(engine, new(queue="left"))
    with redis_cluster.owner(key_slot(b"tm:{0}:")).client() as client:
        client.delete("tm:{0}:shards")
    assert (await engine.list()).tasks == ()
    await engine.recover_lost()
    assert [task.id for task in (await engine.list()).tasks] == [id]


# Settings that an engine has not read yet


async def test_a_type_that_was_declared_after_the_engine_was_opened(engine: ClusterEngine, redis_cluster_url: str) -> None:
    """The submit says only the type; where its queue lies is learnt on the way."""
    other = create(redis_cluster_url)
    await other.open()
    await other.put("type", "post", b'{"queue": "mail"}')
    ids = [accepted(answer) for answer in await engine.submit([NewTask(type="post") for _ in range(3)])]
    assert await states(other, ids) == [State.PENDING] * 3
    await other.put("type", "post", b'{"queue": "parcels"}')
    moved = [accepted(answer) for answer in await engine.submit([NewTask(type="post")])]
    assert [task.queue for task in await engine.get([*ids, *moved]) if isinstance(task, Task)] == ["mail"] * 3 + ["parcels"]
    assert {count.queue: count.tasks for count in await engine.counts()} == {"mail": 3, "parcels": 1}
    await other.close()


async def test_what_follows_is_of_a_type_that_was_declared_later(engine: ClusterEngine, redis_cluster_url: str) -> None:
    hand = await worker(engine, queues=["left"])
    await submit(engine, new(queue="left"))
    claimed = await hand.claim_one()
    other = create(redis_cluster_url)
    await other.open()
    await other.put("type", "post", b'{"queue": "mail"}')
    follower = NewTask(type="post")
    await hand.done(claimed, then=(follower,))
    [found] = await engine.get([follower.id])
    assert isinstance(found, Task)
    assert (found.queue, found.state) == ("mail", State.PENDING)
    assert [task.id for task in (await engine.list(Filter(queues=frozenset({"mail"})))).tasks] == [follower.id]
    await other.close()
