"""Every two kinds of tasks in one batch, in both orders: each comes to the end that it would have come to alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from taskmill.clock import HOUR, SECOND, ManualClock
from taskmill.engine import Engine, Status, Submitted
from taskmill.task import Edge, NewTask, OnFailure, OnLimit, State, Unique, new_id
from tests.conformance.tools import Worker, encode, new, submit, worker
from tests.conformance.tools_b import make, settle

Wanted = State | Status
"""Where a task comes to in the end, or how its submit is answered when there is no such task."""
Kind = Callable[["Pair"], list[tuple[NewTask, Wanted]]]

LIMITS: dict[str, dict[str, int]] = {
    "cap": {"cap": 2},
    "rate": {"rate": 1_000, "window": HOUR},
    "both": {"rate": 1_000, "window": HOUR, "cap": 2},
    "shut": {"cap": 0},
    "spent": {"rate": 1, "window": HOUR},
}


@dataclass
class Before:
    """What the store has before any batch."""

    now: int
    completed: str = ""
    dead: str = ""
    there: NewTask = field(default_factory=new)
    seals: list[str] = field(default_factory=list)


@dataclass
class Pair:
    """One batch of two kinds; its keys are its own."""

    before: Before
    number: int
    neighbours: list[NewTask] = field(default_factory=list)
    """The tasks of the other kind, where those are known first."""
    parent: str = ""

    def key(self, name: str) -> str:
        return f"{name}-{self.number}"


def alone(wanted: Wanted = State.COMPLETED, **fields: object) -> Kind:
    return lambda _: [(new(**fields), wanted)]


def after(task: str, on_failure: OnFailure = OnFailure.CANCEL) -> dict[str, Any]:
    return {"edges": (Edge(task, on_failure),)}


def behind_one_of_the_batch(first: dict[str, object], wanted: Wanted, on_failure: OnFailure, then: State) -> Kind:
    def made(_: Pair) -> list[tuple[NewTask, Wanted]]:
        awaited = new(**first)
        return [(awaited, wanted), (new(**after(awaited.id, on_failure)), then)]

    return made


def with_child(pair: Pair) -> list[tuple[NewTask, Wanted]]:
    parent = new()
    return [(parent, State.COMPLETED), (new(parent=Edge(parent.id)), State.COMPLETED)]


def sealed(pair: Pair) -> list[tuple[NewTask, Wanted]]:
    task = new(sealed=True)
    pair.before.seals.append(task.id)
    return [(task, State.COMPLETED)]


def circle(_: Pair) -> list[tuple[NewTask, Wanted]]:
    one, two = new_id(), new_id()
    return [(new(id=one, **after(two)), Status.REFUSED), (new(id=two, **after(one)), Status.REFUSED)]


def behind_the_neighbour(pair: Pair) -> list[tuple[NewTask, Wanted]]:
    return [(new(**after(task.id, OnFailure.IGNORE)), State.COMPLETED) for task in pair.neighbours[:1]]


REFUSED_CAP: dict[str, object] = {"limits": ("shut",), "on_limit": OnLimit.REJECT}
REFUSED_RATE: dict[str, object] = {"limits": ("spent",), "on_limit": OnLimit.REJECT}

KINDS: dict[str, Kind] = {
    "plain": alone(),
    "delayed": alone(delay=SECOND),
    "under a cap": alone(limits=("cap",)),
    "under a rate": alone(limits=("rate",)),
    "accepted by a cap": lambda pair: alone(limits=(f"cap:{pair.number}",), on_limit=OnLimit.REJECT)(pair),
    "accepted by a rate": alone(limits=("rate",), on_limit=OnLimit.REJECT),
    "accepted by both": alone(limits=("both",), on_limit=OnLimit.REJECT),
    "rejected by a cap": alone(State.DEAD, **REFUSED_CAP),
    "rejected by a rate": alone(State.DEAD, **REFUSED_RATE),
    "keyed": lambda pair: alone(idempotency_key=pair.key("k"))(pair),
    "unique": lambda pair: alone(unique=Unique(pair.key("u")))(pair),
    "unique until started": lambda pair: alone(unique=Unique(pair.key("s"), until="started"))(pair),
    "replacing": lambda pair: alone(unique=Unique(pair.key("r"), on_conflict="replace"))(pair),
    "ordered": lambda pair: alone(order_key=pair.key("o"))(pair),
    "of a tenant": lambda pair: alone(tenant="acme", order_key=pair.key("o"), limits=(pair.key("cap:t"),))(pair),
    "in a share": alone(fair_key="x"),
    "there already": lambda pair: [(pair.before.there, State.COMPLETED)],
    "after a completed one": lambda pair: alone(**after(pair.before.completed))(pair),
    "after a dead one": lambda pair: alone(State.CANCELLED, **after(pair.before.dead))(pair),
    "ignoring a dead one": lambda pair: alone(**after(pair.before.dead, OnFailure.IGNORE))(pair),
    "after one of the batch": behind_one_of_the_batch({}, State.COMPLETED, OnFailure.CANCEL, State.COMPLETED),
    "after a limited one": behind_one_of_the_batch({"limits": ("cap",)}, State.COMPLETED, OnFailure.CANCEL, State.COMPLETED),
    "after a rejected one": behind_one_of_the_batch(REFUSED_CAP, State.DEAD, OnFailure.CANCEL, State.CANCELLED),
    "ignoring a rejected one": behind_one_of_the_batch(REFUSED_RATE, State.DEAD, OnFailure.IGNORE, State.COMPLETED),
    "child of a sealed parent": lambda pair: alone(parent=Edge(pair.parent))(pair),
    "rejected child": lambda pair: alone(State.DEAD, parent=Edge(pair.parent, OnFailure.IGNORE), **REFUSED_CAP)(pair),
    "parent and child": with_child,
    "sealed": sealed,
    "expired": lambda pair: alone(State.CANCELLED, delay=3 * SECOND, expires_at=pair.before.now + 2 * SECOND)(pair),
    "refused": alone(Status.REFUSED, queue="Not A Name"),
    "circle": circle,
}
BEHIND = "behind its neighbour"


async def before(engine: Engine, clock: ManualClock) -> Before:
    for name, numbers in LIMITS.items():
        await engine.put("limit", name, encode(numbers))
    await submit(engine, new(**REFUSED_RATE))
    made = Before(clock.now())
    made.completed = (await make(engine, State.COMPLETED, queue="before")).id
    made.dead = (await make(engine, State.DEAD, queue="before-that")).id
    await submit(engine, made.there)
    return made


async def pair_of(engine: Engine, made: Before, number: int) -> Pair:
    """Its sealed parent is there before the batch."""
    [parent] = await submit(engine, new(sealed=True))
    made.seals.append(parent)
    return Pair(made, number, parent=parent)


def batch_of(pair: Pair, first: str, second: str) -> list[tuple[NewTask, Wanted]]:
    """The tasks of both kinds in this order; one that waits for its neighbour may stand before it."""
    kinds = {**KINDS, BEHIND: behind_the_neighbour}
    if first == BEHIND:
        others = kinds[second](pair)
        pair.neighbours = [task for task, _ in others]
        return [*_unless_refused(pair, others), *others]
    these = kinds[first](pair)
    pair.neighbours = [task for task, _ in these]
    return [*these, *(_unless_refused(pair, these) if second == BEHIND else kinds[second](pair))]


def _unless_refused(pair: Pair, others: Sequence[tuple[NewTask, Wanted]]) -> list[tuple[NewTask, Wanted]]:
    """To wait for what was refused is refused."""
    return [(task, Status.REFUSED if others[0][1] is Status.REFUSED else wanted) for task, wanted in behind_the_neighbour(pair)]


def check_answers(batch: Sequence[tuple[NewTask, Wanted]], answers: Sequence[Submitted]) -> dict[str, State]:
    """What each answer says fits what it comes to; by the id that exists."""
    wanted: dict[str, State] = {}
    for (task, end), answer in zip(batch, answers, strict=True):
        if isinstance(end, Status):
            assert answer.status is end, (task, answer)
        else:
            rejected = end is State.DEAD and task.on_limit is OnLimit.REJECT
            assert (answer.status is Status.REJECTED) == rejected, (task, answer)
            assert answer.status in {Status.CREATED, Status.DUPLICATE, Status.REPLACED, Status.REJECTED}, (task, answer)
            wanted[answer.id] = end
    return wanted


async def drain(engine: Engine, clock: ManualClock, seals: Sequence[str]) -> None:
    """Everything that can run runs; then what waits for time or a seal gets it."""
    hand = await worker(engine)
    await run_all(engine, hand)
    for seal in seals:
        await engine.submit([], unseal=[seal])
    await run_all(engine, hand)
    clock.advance(5)
    await run_all(engine, hand)


async def run_all(engine: Engine, hand: Worker) -> None:
    await settle(engine)
    while claimed := await hand.claim(100):
        await hand.done(*claimed)
        await settle(engine)


async def ends(engine: Engine, wanted: dict[str, State]) -> dict[str, State]:
    found = await engine.get(list(wanted))
    return {id: getattr(task, "state", None) or State.PENDING for id, task in zip(wanted, found, strict=True)}


@pytest.mark.parametrize("first", [*KINDS, BEHIND])
async def test_every_task_of_a_batch_comes_to_its_end(engine: Engine, clock: ManualClock, first: str) -> None:
    made = await before(engine, clock)
    wanted: dict[str, State] = {}
    names: dict[str, str] = {}
    for number, second in enumerate(KINDS):
        pair = await pair_of(engine, made, number)
        batch = batch_of(pair, first, second)
        ids = check_answers(batch, await engine.submit([task for task, _ in batch]))
        wanted |= ids
        names |= dict.fromkeys(ids, f"{first} + {second}")
    wanted |= dict.fromkeys(made.seals, State.COMPLETED)
    await drain(engine, clock, made.seals)
    found = await ends(engine, wanted)
    assert {(names.get(id), found[id], wanted[id]) for id in wanted if found[id] is not wanted[id]} == set()


async def test_every_kind_at_once_by_callers_of_their_own(engine: Engine, clock: ManualClock) -> None:
    """A store may put them into one step: that changes the end of none."""
    made = await before(engine, clock)
    pairs = [await pair_of(engine, made, number) for number in range(4)]
    batches = [KINDS[name](pair) for pair in pairs for name in KINDS]
    answers = await asyncio.gather(*(engine.submit([task for task, _ in batch]) for batch in batches))
    wanted: dict[str, State] = {}
    for batch, answer in zip(batches, answers, strict=True):
        wanted |= check_answers(batch, answer)
    await drain(engine, clock, made.seals)
    assert await ends(engine, wanted) == wanted
