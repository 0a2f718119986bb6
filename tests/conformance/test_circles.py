"""A wait that would close a circle is refused where one step can see it: tasks that wait for each other never end."""

from __future__ import annotations

import pytest

from taskmill.engine import Claimed, Ending, Engine
from taskmill.engines.refusals import cycle
from taskmill.task import Edge, NewTask, State
from tests.conformance.tools import QUEUE, accepted, ids_of, new, refusal, state, submit, worker
from tests.conformance.tools_b import Made, after, finish_next, make, settle


async def sealed(engine: Engine) -> NewTask:
    task = new("sealed", sealed=True)
    await submit(engine, task)
    return task


async def running(engine: Engine) -> tuple[Made, Claimed]:
    made = await make(engine, State.RUNNING, queue=QUEUE)
    assert made.claimed
    return made, made.claimed


async def refused_wait(engine: Engine, made: Made, claimed: Claimed, **fields: object) -> None:
    """The wait is refused, and the lease stands."""
    answer = await made.holder.finish(claimed, ending=Ending.WAITING, **fields)
    assert [(each.task, each.token, each.code) for each in answer.refused] == [(claimed.id, claimed.token, "refused")]
    assert cycle().message in answer.refused[0].message
    assert await state(engine, claimed.id) is State.RUNNING


async def run_all(engine: Engine) -> None:
    hand = await worker(engine)
    while claimed := await hand.claim(100):
        await hand.done(*claimed)
        await settle(engine)


async def all_ended(engine: Engine, *tasks: NewTask) -> None:
    await run_all(engine)
    assert [await state(engine, task.id) for task in tasks] == [State.COMPLETED] * len(tasks)


# At submit.


async def test_a_child_that_waits_for_its_parent(engine: Engine) -> None:
    parent = await sealed(engine)
    [answer] = await engine.submit([after(parent, parent=Edge(parent.id))])
    assert refusal(answer) == "cycle"
    await engine.submit([], unseal=[parent.id])
    await all_ended(engine, parent)


@pytest.mark.parametrize("length", [1, 2, 20, 400])
async def test_a_child_that_waits_for_what_waits_for_its_parent(engine: Engine, length: int) -> None:
    parent = await sealed(engine)
    chain = [after(parent)]
    for _ in range(length - 1):
        chain.append(after(chain[-1]))
    await submit(engine, *chain)
    child = after(chain[-1], parent=Edge(parent.id))
    [answer] = await engine.submit([child])
    assert refusal(answer) == "cycle"
    assert await engine.get([child.id]) == (None,)
    await engine.submit([], unseal=[parent.id])
    await all_ended(engine, parent, *chain[:3])


async def test_the_circle_in_one_batch(engine: Engine) -> None:
    parent = await sealed(engine)
    waiting = after(parent)
    child = after(waiting, parent=Edge(parent.id))
    answers = await engine.submit([waiting, child])
    assert refusal(answers[1]) == "cycle"
    await engine.submit([], unseal=[parent.id])
    await all_ended(engine, parent)


async def test_parents_of_parents(engine: Engine) -> None:
    """The child of a sealed child waits for the grandparent."""
    grandparent = await sealed(engine)
    parent = new("parent", sealed=True, parent=Edge(grandparent.id))
    await submit(engine, parent)
    [answer] = await engine.submit([after(grandparent, parent=Edge(parent.id))])
    assert refusal(answer) == "cycle"
    for each in (parent, grandparent):
        await engine.submit([], unseal=[each.id])
    await all_ended(engine, parent, grandparent)


async def test_beside_a_circle_the_rest_of_the_batch_is_stored(engine: Engine) -> None:
    parent = await sealed(engine)
    waiting, plain = after(parent), new("plain")
    await submit(engine, waiting)
    answers = await engine.submit([new("before"), after(waiting, parent=Edge(parent.id)), plain])
    assert refusal(answers[1]) == "cycle"
    assert accepted(answers[2]) == plain.id


async def test_a_diamond_is_no_circle(engine: Engine) -> None:
    parent = await sealed(engine)
    top = new("top")
    left, right = after(top), after(top)
    await submit(engine, top, left, right)
    child = after(left, right, parent=Edge(parent.id))
    await submit(engine, child)
    behind = after(parent, child)
    await submit(engine, behind)
    await engine.submit([], unseal=[parent.id])
    await all_ended(engine, top, left, right, child, parent, behind)


async def test_a_wait_that_is_over_closes_no_circle(engine: Engine) -> None:
    parent = await sealed(engine)
    hand = await worker(engine)
    done = new("done")
    await submit(engine, done)
    await hand.done(await hand.claim_one())
    child = after(done, parent=Edge(parent.id))
    await submit(engine, child)
    await engine.submit([], unseal=[parent.id])
    await all_ended(engine, child, parent)


async def test_waiting_for_one_that_waits_for_very_many(engine: Engine) -> None:
    many = [new(n) for n in range(3_000)]
    hub = after(*many)
    await submit(engine, *many, hub)
    parent = await sealed(engine)
    child = after(hub, parent=Edge(parent.id))
    await submit(engine, child)
    await engine.submit([], unseal=[parent.id])
    await all_ended(engine, hub, child, parent)


# At the end of an attempt.


async def test_a_task_that_waits_for_itself(engine: Engine) -> None:
    made, claimed = await running(engine)
    await refused_wait(engine, made, claimed, tasks=(made.id,))
    await made.holder.done(claimed)


@pytest.mark.parametrize("length", [1, 2, 20])
async def test_a_running_task_waits_for_what_is_after_it(engine: Engine, length: int) -> None:
    made, claimed = await running(engine)
    chain = [after(made.id)]
    for _ in range(length - 1):
        chain.append(after(chain[-1]))
    await submit(engine, *chain)
    await refused_wait(engine, made, claimed, tasks=(chain[-1].id,))
    await made.holder.done(claimed)
    await all_ended(engine, *chain)


async def test_a_running_task_waits_for_its_parent(engine: Engine) -> None:
    parent = await sealed(engine)
    hand = await worker(engine)
    child = new("child", parent=Edge(parent.id))
    await submit(engine, child)
    claimed = await hand.claim_one()
    assert claimed.id == child.id
    await refused_wait(engine, Made(child.id, hand, claimed), claimed, tasks=(parent.id,))
    await hand.done(claimed)
    await engine.submit([], unseal=[parent.id])
    await all_ended(engine, child, parent)


async def test_what_it_starts_waits_for_it(engine: Engine) -> None:
    made, claimed = await running(engine)
    follower = after(made.id)
    await refused_wait(engine, made, claimed, then=(follower,))
    assert await engine.get([follower.id]) == (None,)
    await made.holder.done(claimed)


async def test_what_it_starts_waits_for_what_waits_for_it(engine: Engine) -> None:
    made, claimed = await running(engine)
    behind = after(made.id)
    await submit(engine, behind)
    follower = after(behind)
    await refused_wait(engine, made, claimed, then=(follower,))
    assert await engine.get([follower.id]) == (None,)
    await made.holder.done(claimed, then=(follower,))
    await all_ended(engine, behind, follower)


async def test_two_running_tasks_wait_for_each_other(engine: Engine) -> None:
    first, claimed_first = await running(engine)
    second, claimed_second = await running(engine)
    await first.holder.done(claimed_first, ending=Ending.WAITING, tasks=(second.id,))
    await refused_wait(engine, second, claimed_second, tasks=(first.id,))
    await second.holder.done(claimed_second)
    await settle(engine)
    assert ids_of(await first.holder.claim(5)) == [first.id]


async def test_a_wait_for_one_that_waits_for_another(engine: Engine) -> None:
    made, claimed = await running(engine)
    other = new("other")
    between = after(other)
    await submit(engine, other, between)
    await made.holder.done(claimed, ending=Ending.WAITING, tasks=(between.id,))
    assert await finish_next(engine) == other.id
    await settle(engine)
    assert await finish_next(engine) == between.id
    await settle(engine)
    assert ids_of(await made.holder.claim(5)) == [made.id]
