"""On the user's own connection, whichever its driver: tasks, ends and inbox entries exist if and only if the business rows do."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from taskmill.engine import Ending
from taskmill.engines.postgres.engine import PostgresEngine
from taskmill.errors import StaleLease, StoreError
from taskmill.task import Edge, NewTask, State
from tests.conformance.tools import accepted, encode, ids_of, new, outcome, record, refusal, submit_one, worker
from tests.engines.postgres.stores import Stores
from tests.engines.postgres.ways import WAYS, Way, way_of

SOME = ("asyncpg", "Session", "Django")
"""One that is awaited, one that blocks, one with its own idea of transactions: what the server alone decides is tried on these."""


@pytest.fixture
async def engine(stores: Stores) -> AsyncIterator[PostgresEngine]:
    """Beside a table of the user's own. It is gone afterwards, so that the next test can have the same database."""
    db = await stores.connect()
    await db.execute("CREATE TABLE purchase (number integer PRIMARY KEY)")
    yield await stores.engine()
    await db.execute("DROP TABLE purchase")


@pytest.fixture
async def way(request: pytest.FixtureRequest, stores: Stores, engine: PostgresEngine) -> AsyncIterator[Way]:
    """A connection in its transaction. Each test is run on every way, unless it names some."""
    async with way_of(request.param, stores.url) as way:
        await way.begin()
        yield way


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "way" in metafunc.fixturenames:
        chosen = SOME if "level" in metafunc.fixturenames else WAYS
        metafunc.parametrize("way", list(chosen), indirect=True)


async def purchases(stores: Stores) -> list[int]:
    db = await stores.connect()
    return [row["number"] for row in await db.fetch("SELECT number FROM purchase ORDER BY number")]


async def buy(engine: PostgresEngine, way: Way, number: int, **fields: Any) -> NewTask:
    """A business row and its task, in the user's transaction."""
    task = new({"purchase": number}, **fields)
    await way.execute(f"INSERT INTO purchase VALUES ({number})")
    [answer] = await way.ask(lambda tx: engine.submit([task], tx=tx))
    assert accepted(answer) == task.id
    return task


# Submit


async def test_a_commit_brings_both(stores: Stores, engine: PostgresEngine, way: Way) -> None:
    task = await buy(engine, way, 1)
    assert (await purchases(stores), await engine.get([task.id])) == ([], (None,))
    await way.commit()
    assert await purchases(stores) == [1]
    assert (await record(engine, task.id)).payload == encode({"purchase": 1})
    assert ids_of(await (await worker(engine)).claim(10)) == [task.id]


async def test_a_rollback_takes_both(stores: Stores, engine: PostgresEngine, way: Way) -> None:
    task = await buy(engine, way, 1, idempotency_key="one", queue="elsewhere")
    await way.rollback()
    assert (await purchases(stores), await engine.get([task.id])) == ([], (None,))
    assert await (await worker(engine, queues=["elsewhere"])).claim(10) == []
    await submit_one(engine, 2, idempotency_key="one")


async def test_a_savepoint_that_is_rolled_back_takes_what_came_after_it(stores: Stores, engine: PostgresEngine, way: Way) -> None:
    made: list[NewTask] = [await buy(engine, way, 1)]

    async def more() -> None:
        made.append(await buy(engine, way, 2))

    await way.nested(more)
    made.append(await buy(engine, way, 3))
    await way.commit()
    assert await purchases(stores) == [1, 3]
    first, second, third = await engine.get([task.id for task in made])
    assert (first is None, second, third is None) == (False, None, False)


async def test_several_transactions_in_turn_on_one_connection(stores: Stores, engine: PostgresEngine, way: Way) -> None:
    first = await buy(engine, way, 1)
    await way.commit()
    await way.begin()
    second = await buy(engine, way, 2)
    await way.rollback()
    await way.begin()
    third = await buy(engine, way, 3)
    await way.commit()
    assert await purchases(stores) == [1, 3]
    assert [found is not None for found in await engine.get([first.id, second.id, third.id])] == [True, False, True]


async def test_many_at_once_with_edges_keys_and_limits(stores: Stores, engine: PostgresEngine, way: Way) -> None:
    await engine.put("limit", "narrow", b'{"cap": 1}')
    kept = await submit_one(engine, 0, idempotency_key="known")
    child = new("child", queue="fresh", limits=("narrow",))
    batch = [new(0, idempotency_key="known"), child, new("parent", edges=(Edge(child.id),)), *(new(n) for n in range(50))]
    answers = await way.ask(lambda tx: engine.submit(batch, tx=tx))
    await way.commit()
    assert [answer.id for answer in answers] == [kept, *(task.id for task in batch[1:])]
    assert (await record(engine, batch[2].id)).state is State.WAITING
    assert (await record(engine, child.id)).limits == ("narrow",)


async def test_a_refused_task_leaves_the_transaction_as_it_was(stores: Stores, engine: PostgresEngine, way: Way) -> None:
    good = new(1)
    await way.execute("INSERT INTO purchase VALUES (1)")
    bad, unknown, kept = await way.ask(lambda tx: engine.submit([new(queue="Not A Name"), new(edges=(Edge(new().id),)), good], tx=tx))
    assert (refusal(bad), refusal(unknown), accepted(kept)) == ("invalid_name", "unknown_edge", good.id)
    await way.execute("INSERT INTO purchase VALUES (2)")
    await way.commit()
    assert (await purchases(stores), (await record(engine, good.id)).state) == ([1, 2], State.PENDING)


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
async def test_every_isolation_level(stores: Stores, engine: PostgresEngine, way: Way, level: str) -> None:
    await submit_one(engine)
    await way.execute(f"SET TRANSACTION ISOLATION LEVEL {level}")
    await way.execute("SELECT count(*) FROM purchase")
    other = await submit_one(engine)
    task = await buy(engine, way, 1)
    await engine.put("limit", "unseen", b'{"cap": 1}')
    again = await buy(engine, way, 2)
    await way.commit()
    assert await purchases(stores) == [1, 2]
    assert None not in await engine.get([task.id, other, again.id])


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
async def test_a_queue_that_the_snapshot_does_not_see_is_there_for_the_next_run(stores: Stores, engine: PostgresEngine, way: Way, level: str) -> None:
    """It is made beside the transaction, so that nobody waits for that; one which has looked before does not see it, and is run again as such ones must be."""
    await way.execute(f"SET TRANSACTION ISOLATION LEVEL {level}")
    await way.execute("INSERT INTO purchase VALUES (1)")
    with pytest.raises(StoreError) as caught:
        await way.ask(lambda tx: engine.submit([new(queue="fresh")], tx=tx))
    assert (caught.value.code, "run it again" in str(caught.value.hint)) == ("store_busy", True)
    await way.rollback()
    await way.begin()
    await way.execute(f"SET TRANSACTION ISOLATION LEVEL {level}")
    task = await buy(engine, way, 1, queue="fresh")
    await way.commit()
    assert (await purchases(stores), (await record(engine, task.id)).queue) == ([1], "fresh")


async def test_settings_that_change_while_the_transaction_is_open(stores: Stores, engine: PostgresEngine, way: Way) -> None:
    await buy(engine, way, 1)
    await engine.put("limit", "late", b'{"cap": 1}')
    task = await buy(engine, way, 2, limits=("late",))
    await way.commit()
    assert (await record(engine, task.id)).limits == ("late",)


# The end of a task


async def test_an_end_commits_with_the_rows(stores: Stores, engine: PostgresEngine, way: Way) -> None:
    id = await submit_one(engine)
    claimed = await (await worker(engine)).claim_one()
    for undone in (True, False):
        await way.execute("INSERT INTO purchase VALUES (1)")
        await way.ask(lambda tx: engine.finish([outcome(claimed, result=encode("paid"), then=(new("then"),))], tx=tx))
        assert (await record(engine, id)).state is State.RUNNING
        await (way.rollback() if undone else way.commit())
        if undone:
            await way.begin()
            assert (await purchases(stores), (await record(engine, id)).state) == ([], State.RUNNING)
    ended = await record(engine, id)
    assert (await purchases(stores), ended.state, ended.result) == ([1], State.COMPLETED, encode("paid"))


async def test_an_end_without_the_lease_is_refused_and_the_transaction_can_be_rolled_back(stores: Stores, engine: PostgresEngine, way: Way) -> None:
    one, two = await worker(engine), await worker(engine)
    id = await submit_one(engine)
    late = await one.claim_one()
    await engine.leave(one.id)
    current = await two.claim_one()
    await way.execute("INSERT INTO purchase VALUES (1)")
    for ending in (Ending.COMPLETED, Ending.DEAD):
        with pytest.raises(StaleLease):
            await way.ask(lambda tx, ending=ending: engine.finish([outcome(late, ending)], tx=tx))  # type: ignore[misc]
    await way.rollback()
    assert (await purchases(stores), (await record(engine, id)).state) == ([], State.RUNNING)
    await two.done(current)


# Messages


async def test_a_message_is_dealt_with_when_the_transaction_commits(stores: Stores, engine: PostgresEngine, way: Way) -> None:
    assert await way.ask(lambda tx: engine.inbox(tx, "shop", "1"))
    assert not await way.ask(lambda tx: engine.inbox(tx, "shop", "1"))
    await way.rollback()
    await way.begin()
    assert await way.ask(lambda tx: engine.inbox(tx, "shop", "1"))
    await way.commit()
    await way.begin()
    assert not await way.ask(lambda tx: engine.inbox(tx, "shop", "1"))
    assert await way.ask(lambda tx: engine.inbox(tx, "bank", "1"))
