"""A store of the version before is brought to this schema when it is opened."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from taskmill.clock import ManualClock
from taskmill.engine import Checkpoint, Ending, Engine, Filter
from taskmill.engines import create
from taskmill.engines.redis.records import AT, Header
from taskmill.task import State
from tests.conformance.tools import encode, new, outcome, record, submit, worker
from tests.faults.invariants_redis import broken
from tests.servers.redis import RedisServer

P = "tm:{0}:"
FIELDS = Header.__struct_fields__
TENANTS = ("acme", "zeta")


def age(server: RedisServer, tenants: dict[str, str]) -> None:
    """As the version before left it: no indexes of states, nothing measured, and tasks of tenants in lanes that are everybody's."""
    with server.client() as client:
        client.delete(f"{P}beside", *client.scan_iter(f"{P}in:*"))
        client.hset(f"{P}store", "schema", 1)
        for id, tenant in tenants.items():
            raw: Any = client.get(f"{P}t:{id}")
            end = AT + int(raw[28:AT], 16)
            row = msgspec.msgpack.decode(raw[AT:end])
            row[FIELDS.index("tenant")] = tenant
            array = msgspec.msgpack.encode(row)
            client.set(f"{P}t:{id}", raw[:28] + b"%08x" % len(array) + array + raw[end:])


async def opened(server: RedisServer, clock: ManualClock) -> Engine:
    engine = create(server.url(), clock=clock)
    await engine.open()
    return engine


@pytest.mark.parametrize("fields", [{"order_key": "k"}, {"limits": ("one:k",)}, {"fair_key": "f"}, {"limits": ("one:k",), "order_key": "k", "fair_key": "f"}])
async def test_tasks_of_tenants_move_into_lanes_of_their_own(private_redis: RedisServer, fields: dict[str, Any]) -> None:
    clock = ManualClock()
    engine = await opened(private_redis, clock)
    await engine.put("limit", "one", encode({"cap": 1}))
    made = await submit(engine, *(new(n, **fields) for n in range(6)))
    later = await submit(engine, *(new(n, delay=1_000_000, **fields) for n in range(2)))
    hand = await worker(engine)
    [running] = await hand.claim(1)
    tenants = {id: TENANTS[n % 2] for n, id in enumerate([*made, *later])}
    await engine.close()
    age(private_redis, tenants)

    engine = await opened(private_redis, clock)
    assert broken(private_redis.url()) == []
    task = await record(engine, made[2])
    assert (task.tenant, task.order_key, task.limits, task.fair_key) == (
        tenants[made[2]],
        fields.get("order_key"),
        fields.get("limits", ()),
        fields.get("fair_key", ""),
    )
    hand.engine = engine
    if "order_key" in fields or "limits" in fields:
        assert [task.id for task in await hand.claim(9)] == [made[1]], "another tenant's own, beside the one that runs"
        await hand.done(running)
        assert [task.id for task in await hand.claim(9)] == [made[2]]
    clock.advance(2)
    seen: list[str] = []
    while hand.held:
        await hand.done(*list(hand.held.values()))
        seen += [task.id for task in await hand.claim(9)]
    for tenant in TENANTS:
        mine = [id for id in [*made, *later] if tenants[id] == tenant]
        assert [id for id in seen if id in mine] == [id for id in mine if id in seen]
    assert {(await record(engine, id)).state for id in [*made, *later]} == {State.COMPLETED}
    assert broken(private_redis.url()) == []
    await engine.close()


async def test_states_are_found_and_what_tasks_have_is_measured(private_redis: RedisServer) -> None:
    clock = ManualClock()
    engine = await opened(private_redis, clock)
    hand = await worker(engine)
    [dead, waiting] = await submit(engine, new(1), new(2))
    first, second = await hand.claim(2)
    await engine.checkpoint([Checkpoint(task=second.id, worker=second.worker, token=second.token, name="step", value=b"12345")])
    await engine.finish([outcome(first, Ending.DEAD), outcome(second, Ending.WAITING, signals=("go",))])
    [scheduled] = await submit(engine, new(3, delay=1_000_000))
    await engine.close()
    age(private_redis, {})
    engine = await opened(private_redis, clock)
    for state, id in ((State.DEAD, dead), (State.WAITING, waiting), (State.SCHEDULED, scheduled)):
        assert [task.id for task in (await engine.list(Filter(states=frozenset({state})))).tasks] == [id]
    assert broken(private_redis.url()) == []
    await engine.close()


async def test_it_goes_on_where_another_one_stopped(private_redis: RedisServer) -> None:
    clock = ManualClock()
    engine = await opened(private_redis, clock)
    made = await submit(engine, *(new(n, order_key="k") for n in range(20)))
    await engine.close()
    age(private_redis, dict.fromkeys(made, "acme"))
    with private_redis.client() as client:
        client.delete(f"{P}wake:default")
    slow = create(private_redis.url(), clock=clock)
    assert await slow.store.run("upgrade", [7]) is True  # type: ignore[attr-defined]
    await slow.store.shards.close()  # type: ignore[attr-defined]
    engine = await opened(private_redis, clock)
    assert broken(private_redis.url()) == []
    hand = await worker(engine)
    seen = []
    while claimed := await hand.claim(9):
        seen += [task.id for task in claimed]
        await hand.done(*claimed)
    assert seen == made
    await engine.close()
