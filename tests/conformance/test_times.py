"""Times of the store's own clock do not contradict each other: no lease begins before the one ended whose slot it took."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from taskmill.clock import HOUR
from taskmill.engine import Claimed, Ending, Engine, Status
from taskmill.task import Attempt, OnLimit
from tests.conformance.tools import Worker, encode, new, submit, worker

TASKS = 120

pytestmark = pytest.mark.heard_only("what several do at once, by the clock of the store; a repeat is a step of its own")


async def run(hand: Worker, left: list[str], claimed: list[Claimed]) -> None:
    """Claim and end until all are done; what is given back comes again."""
    while left:
        for task in await hand.claim(2):
            claimed.append(task)
            again = task.attempt == 1 and task.payload.endswith(b"0")
            await hand.done(task, ending=Ending.RELEASED if again else Ending.COMPLETED)
            if not again:
                left.remove(task.id)
        await asyncio.sleep(0)


async def attempts_of(engine: Engine, ids: list[str]) -> dict[int, Attempt]:
    return {attempt.token: attempt for id in ids for attempt in await engine.attempts(id)}


def overlapping(spans: list[tuple[int, int]], most: int) -> list[int]:
    """The moments at which more than `most` stood; one may begin in the microsecond in which another ended."""
    moments = sorted([(begin, 1) for begin, _ in spans] + [(end, 0) for _, end in spans])
    found, running = [], 0
    for at, begins in moments:
        running += 1 if begins else -1
        if running > most:
            found.append(at)
    return found


@pytest.mark.parametrize("kind", ["cap", "order", "both"])
async def test_a_slot_is_not_taken_before_it_was_free(racing: list[Engine], kind: str) -> None:
    await racing[0].put("limit", "two", encode({"cap": 2}))
    kinds: dict[str, dict[str, Any]] = {"cap": {"limits": ("two",)}, "order": {"order_key": "k"}, "both": {"limits": ("two",), "on_limit": OnLimit.REJECT}}
    hands = [await worker(each, lease=HOUR) for each in racing]
    ids = await submit(racing[0], *(new(n, **kinds[kind]) for n in range(TASKS)))
    claimed: list[Claimed] = []
    left = list(ids)
    await asyncio.gather(*(run(hand, left, claimed) for hand in hands))
    ended = await attempts_of(racing[0], ids)
    spans = []
    for task in claimed:
        end = ended[task.token].ended_at
        assert end is not None
        assert task.claimed_at <= end
        spans.append((task.claimed_at, end))
    assert overlapping(spans, 1 if kind == "order" else 2) == []


async def test_no_attempt_begins_before_the_one_before_it_ended(racing: list[Engine]) -> None:
    hands = [await worker(each, lease=HOUR) for each in racing]
    ids = await submit(racing[0], *(new(n * 10) for n in range(TASKS)))
    claimed: list[Claimed] = []
    left = list(ids)
    await asyncio.gather(*(run(hand, left, claimed) for hand in hands))
    begun = {task.token: task.claimed_at for task in claimed}
    for id in ids:
        first, second = await racing[0].attempts(id)
        assert first.ended_at is not None
        assert first.ended_at <= begun[second.token]


async def test_a_task_is_accepted_when_there_was_room(racing: list[Engine]) -> None:
    """What rejects at a full cap has a time of creation at which the cap was not full."""
    await racing[0].put("limit", "one", encode({"cap": 1}))
    hands = [await worker(each, lease=HOUR) for each in racing[:2]]
    claimed: list[Claimed] = []
    created: dict[str, int] = {}
    left: list[str] = ["more"]

    async def submits(engine: Engine) -> None:
        while len(created) < TASKS:
            task = new("x", limits=("one",), on_limit=OnLimit.REJECT)
            left.append(task.id)
            [answer] = await engine.submit([task])
            if answer.status is Status.CREATED:
                created[task.id] = 0
            else:
                left.remove(task.id)
            await asyncio.sleep(0)
        if "more" in left:
            left.remove("more")

    await asyncio.gather(*(run(hand, left, claimed) for hand in hands), *(submits(each) for each in racing[2:]))
    ended = await attempts_of(racing[0], list(created))
    spans = [(task.claimed_at, ended[task.token].ended_at or 0) for task in claimed]
    for id in created:
        [task] = await racing[0].get([id])
        assert task is not None
        at = getattr(task, "created_at", 0)
        assert not any(begin < at < end for begin, end in spans)
