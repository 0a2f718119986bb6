"""What every process remembers of the store is forgotten when another changes or removes it: the next step obeys, whoever makes it."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from taskmill.clock import ManualClock
from taskmill.engine import Term
from taskmill.engines.sqlite.engine import SQLiteEngine
from taskmill.task import Task
from tests.conformance.tools import Worker, ids_of, new, refusal, submit, submit_one, worker
from tests.engines.sqlite.conftest import Opened

ROOT = Path(__file__).parents[3]

OTHER_PROGRAM = """
import asyncio, sys
from pathlib import Path
from taskmill.engines.sqlite.engine import SQLiteEngine

async def main():
    engine = SQLiteEngine(Path(sys.argv[1]))
    await engine.open()
    await engine.put(sys.argv[2], sys.argv[3], sys.argv[4].encode())
    await engine.close()

asyncio.run(main())
"""


async def put_elsewhere(engine: SQLiteEngine, kind: str, name: str, value: str) -> None:
    """By another program."""
    command = [sys.executable, "-c", OTHER_PROGRAM, str(engine.path), kind, name, value]
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT)
    assert await process.wait() == 0


async def prune(engine: SQLiteEngine) -> None:
    term = await engine.lead("retention", str(id(engine)))
    assert isinstance(term, Term)
    await engine.prune(1_000, term)
    await engine.prune(1_000, term)
    await engine.resign(term)


async def test_a_limit_put_by_another_program_is_obeyed_at_once(opened: Opened) -> None:
    engine = await opened()
    await engine.put("limit", "cap", b'{"cap": 10}')
    one = await worker(engine)
    await submit(engine, *(new(limits=("cap",)) for _ in range(10)))
    assert len(await one.claim(2)) == 2
    await put_elsewhere(engine, "limit", "cap", '{"cap": 3}')
    assert len(await one.claim(10)) == 1
    await put_elsewhere(engine, "limit", "cap", '{"cap": 5}')
    assert len(await one.claim(10)) == 2


async def test_a_pause_put_by_another_program_is_obeyed_at_once(opened: Opened) -> None:
    engine = await opened()
    one = await worker(engine)
    await submit(engine, new(), new())
    assert len(await one.claim()) == 1
    await put_elsewhere(engine, "pause", "queue:default", "{}")
    assert await one.claim() == []
    assert await engine.drop("pause", "queue:default")
    assert len(await one.claim()) == 1


async def test_a_limit_that_is_new_or_gone(opened: Opened) -> None:
    one, two = await opened(), await opened()
    assert refusal((await two.submit([new(limits=("cap",))]))[0]) == "unknown_limit"
    await one.put("limit", "cap", b'{"cap": 1}')
    await submit_one(two, limits=("cap",))
    await one.drop("limit", "cap")
    assert refusal((await two.submit([new(limits=("cap",))]))[0]) == "unknown_limit"


async def test_a_type_that_another_declared(opened: Opened) -> None:
    one, two = await opened(), await opened()
    assert refusal((await two.submit([new(queue=None)]))[0]) == "unknown_type"
    await worker(one)
    await submit_one(two, queue=None)


async def test_a_transaction_obeys_what_was_put_before_it_began(opened: Opened) -> None:
    one, two = await opened(), await opened()
    await submit_one(two)
    await one.put("limit", "cap", b'{"cap": 1}')
    async with two.transaction() as tx:
        await submit(two, new(limits=("cap",)), tx=tx)


@pytest.mark.parametrize("again", ["same", "other"])
async def test_lanes_that_another_pruned_are_not_used(opened: Opened, again: str) -> None:
    """Each remembers lanes by number; a number whose lane is gone may by now be that of another lane."""
    one, two = await opened(), await opened()
    await one.put("limit", "cap", b'{"cap": 1}')
    w = await worker(two)
    await submit_one(two, order_key="mine", limits=("cap:mine",))  # two remembers the lane, its share and its counter
    await w.done(await w.claim_one())
    await prune(one)
    if again == "other":  # takes the numbers
        await submit(one, new(order_key="others", limits=("cap:others",)), new(order_key="others", limits=("cap:others",)))
    mine = await submit(two, new(order_key="mine", limits=("cap:mine",)), new(order_key="mine", limits=("cap:mine",)))
    claimed = await w.claim(10)
    assert [id for id in ids_of(claimed) if id in mine] == [mine[0]]
    assert len(claimed) == (2 if again == "other" else 1)
    assert {task.limits for task in claimed} == {("cap:mine",)} | ({("cap:others",)} if again == "other" else set())
    await w.done(*claimed)
    assert [id for id in ids_of(await w.claim(10)) if id in mine] == [mine[1]]


async def test_two_that_prune_and_submit_in_turn_lose_nothing(opened: Opened, clock: ManualClock) -> None:
    engines = [await opened(), await opened(), await opened()]
    await engines[0].put("limit", "cap", b'{"cap": 1}')
    workers = [await worker(engine) for engine in engines]
    ids: list[str] = []
    taken: list[str] = []
    for turn in range(12):
        engine, w = engines[turn % 3], workers[(turn + 1) % 3]
        fields = {"limits": (f"cap:{turn % 4}",), "fair_key": f"s{turn % 2}", "order_key": f"k{turn % 5}"}
        ids += await submit(engine, new(**fields), new(**fields))
        claimed = await w.claim(10)
        assert len({limit for task in claimed for limit in task.limits}) == len(claimed)
        taken += ids_of(claimed)
        await w.done(*claimed)
        await prune(engines[(turn + 2) % 3])
        clock.advance(1)
    taken += await rest(workers[0])
    assert sorted(taken) == sorted(ids)
    assert all(isinstance(task, Task) for task in await engines[0].get(ids))


async def rest(w: Worker) -> list[str]:
    taken: list[str] = []
    while claimed := await w.claim(10):
        taken += ids_of(claimed)
        await w.done(*claimed)
    return taken
