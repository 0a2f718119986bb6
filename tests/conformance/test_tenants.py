"""Order keys, limits by key and shares of a task belong to its tenant: two tenants with the same key do not meet."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest

from taskmill.clock import DAY, MINUTE, ManualClock
from taskmill.engine import Engine, Record, Status, Target
from taskmill.task import OnLimit, State, TypeSettings, new_id
from tests.conformance.tools import QUEUE, TYPE, encode, ids_of, new, record, refusal, submit, submit_many, submit_one, worker
from tests.conformance.tools_b import settle

QUANTUM = 8
"""How many tasks a share takes in one turn."""
TENANTS = ("acme", "beta", "")


async def limit(engine: Engine, name: str, **numbers: int) -> None:
    await engine.put("limit", name, encode(numbers))


# Order keys.


async def test_an_order_key_of_one_tenant_holds_up_no_other(engine: Engine) -> None:
    one = await worker(engine)
    await submit_one(engine, tenant="acme", order_key="customer-1", delay=900 * DAY)
    ids = await submit(engine, new(tenant="beta", order_key="customer-1"), new(tenant="beta", order_key="customer-2"), new(order_key="customer-1"))
    assert sorted(ids_of(await one.claim(10))) == sorted(ids)


async def test_inside_a_tenant_an_order_key_holds(engine: Engine) -> None:
    one = await worker(engine)
    ids = {tenant: await submit_many(engine, 3, tenant=tenant, order_key="k") for tenant in TENANTS}
    for place in range(3):
        claimed = await one.claim(10)
        assert sorted(ids_of(claimed)) == sorted(ids[tenant][place] for tenant in TENANTS)
        await one.done(*claimed)


async def test_an_order_key_of_the_type_is_of_the_tenant(engine: Engine) -> None:
    one = await worker(engine, settings={TYPE: TypeSettings(ordered="{customer}")})
    ids = await submit(engine, *(new({"customer": 1}, tenant=tenant) for tenant in TENANTS for _ in range(2)))
    assert sorted(ids_of(await one.claim(10))) == sorted(ids[::2])


@pytest.mark.parametrize("key", ["acme", "acme:k", "k", "a/b"])
async def test_no_key_reads_as_one_of_a_tenant(engine: Engine, key: str) -> None:
    """Whatever a caller without a tenant writes, it is not the key of a tenant."""
    one = await worker(engine)
    ids = await submit(engine, *(new(tenant=tenant, order_key=key) for tenant in TENANTS))
    assert len(await one.claim(10)) == len(ids)


# Limits.


async def test_a_cap_by_key_is_of_the_tenant(engine: Engine) -> None:
    one = await worker(engine)
    await limit(engine, "per-user", cap=1)
    ids = await submit(engine, *(new(tenant=tenant, limits=("per-user:1",)) for tenant in TENANTS for _ in range(2)))
    claimed = await one.claim(10)
    assert sorted(ids_of(claimed)) == sorted(ids[::2])
    await one.done(*claimed)
    assert sorted(ids_of(await one.claim(10))) == sorted(ids[1::2])


async def test_a_rate_by_key_is_of_the_tenant(engine: Engine, clock: ManualClock) -> None:
    one = await worker(engine)
    await limit(engine, "per-user", rate=1, window=MINUTE)
    await submit(engine, *(new(tenant=tenant, limits=("per-user:1",)) for tenant in TENANTS for _ in range(2)))
    assert sorted(task.tenant for task in await one.claim(10)) == sorted(TENANTS)
    assert await one.claim(10) == []
    clock.advance("61s")
    assert sorted(task.tenant for task in await one.claim(10)) == sorted(TENANTS)


async def test_a_rate_by_key_rejects_for_its_tenant_alone(engine: Engine, fresh: Status) -> None:
    await limit(engine, "per-user", rate=1, window=MINUTE)
    for wanted in (fresh, Status.REJECTED):
        answers = await engine.submit([new(tenant=tenant, limits=("per-user:1",), on_limit=OnLimit.REJECT) for tenant in TENANTS])
        assert [answer.status for answer in answers] == [wanted] * 3


async def test_a_limit_without_a_key_is_one_for_all(engine: Engine) -> None:
    one = await worker(engine)
    await limit(engine, "all", cap=2)
    await submit(engine, *(new(tenant=tenant, limits=("all",)) for tenant in TENANTS))
    assert len(await one.claim(10)) == 2


async def test_a_limit_that_the_type_gets_later_is_of_the_tenant(engine: Engine) -> None:
    await worker(engine)
    await submit(engine, *(new({"user": 1}, tenant=tenant) for tenant in TENANTS for _ in range(2)))
    one = await worker(engine, settings={TYPE: TypeSettings(limits=("per-user:{user}",))}, limits={"per-user": b'{"cap": 1}'})
    await settle(engine)
    claimed = await one.claim(10)
    assert sorted(task.tenant for task in claimed) == sorted(TENANTS)
    assert {task.limits for task in claimed} == {("per-user:1",)}


# What callers see.


async def test_keys_are_shown_as_they_were_given(engine: Engine) -> None:
    one = await worker(engine)
    await limit(engine, "per-user", cap=1)
    await limit(engine, "all", cap=5)
    id = await submit_one(engine, tenant="acme", order_key="k", fair_key="x", limits=("per-user:1", "all"))
    for _ in range(2):
        task = await record(engine, id)
        assert (task.tenant, task.order_key, task.fair_key, task.limits) == ("acme", "k", "x", ("all", "per-user:1"))
        [listed] = (await engine.list()).tasks
        assert (listed.order_key, listed.fair_key, listed.limits) == ("k", "x", ("all", "per-user:1"))
        if task.state is State.PENDING:
            assert (await one.claim_one()).limits == ("all", "per-user:1")


async def test_a_restored_key_is_of_its_tenant(engine: Engine) -> None:
    one = await worker(engine)
    await limit(engine, "per-user", cap=1)
    id = await submit_one(engine, tenant="acme", order_key="k", fair_key="x", limits=("per-user:1",), delay=DAY)
    task = msgspec.structs.replace(await record(engine, id), id=new_id())
    await engine.restore([Record(task=task)])
    shown = await record(engine, task.id)
    assert (shown.order_key, shown.fair_key, shown.limits) == ("k", "x", ("per-user:1",))
    await engine.cancel([Target(id)])
    behind = await submit_one(engine, tenant="acme", order_key="k", fair_key="x", limits=("per-user:1",))
    others = await submit(engine, *(new(tenant=tenant, order_key="k", fair_key="x", limits=("per-user:1",)) for tenant in ("beta", "")))
    assert behind not in ids_of(await one.claim(10))
    assert sorted(ids_of(one.held.values())) == sorted(others)


async def test_a_requeued_task_keeps_the_key_of_its_tenant(engine: Engine) -> None:
    one = await worker(engine)
    first = await submit_one(engine, tenant="acme", order_key="k")
    await one.done(await one.claim_one())
    await engine.requeue([Target(first, (await record(engine, first)).version)])
    [other] = await submit(engine, new(tenant="beta", order_key="k"))
    assert sorted(ids_of(await one.claim(10))) == sorted([first, other])
    assert (await record(engine, first)).order_key == "k"


# Shares.


async def test_shares_of_two_tenants_with_one_name_are_two(engine: Engine) -> None:
    one = await worker(engine)
    await submit_many(engine, 100, tenant="acme", fair_key="x")
    await submit_many(engine, 100, tenant="beta", fair_key="x")
    counted = Counter([task.tenant for _ in range(8) for task in await one.claim(10)])
    assert abs(counted["acme"] - 40) <= QUANTUM


async def test_where_a_type_shares_by_tenant_a_task_cannot_choose(engine: Engine) -> None:
    one = await worker(engine, settings={TYPE: TypeSettings(fair="tenant")})
    answers = await engine.submit([new(tenant="acme", fair_key=key) for key in ("x1", "x2", "beta")])
    assert [refusal(answer) for answer in answers] == ["share_by_tenant"] * 3
    await submit_many(engine, 50, tenant="acme")
    await submit_many(engine, 3, tenant="beta", fair_key="beta")
    taken = [task.tenant for task in await one.claim(2 * QUANTUM)]
    assert taken.count("beta") == 3


@pytest.mark.parametrize("share", ["x", None])
async def test_a_weight_of_a_tenant_is_that_of_its_shares(engine: Engine, share: str | None) -> None:
    fair = None if share else "tenant"
    one = await worker(engine, settings={TYPE: TypeSettings(fair=fair)})
    await engine.put("queue", QUEUE, b'{"weights": {"acme": 4}}')
    await submit_many(engine, 150, tenant="beta", fair_key=share)
    await submit_many(engine, 300, tenant="acme", fair_key=share)
    counted = Counter([task.tenant for _ in range(24) for task in await one.claim(10)])
    assert abs(counted["acme"] - counted.total() * 4 / 5) <= 2 * QUANTUM, counted
