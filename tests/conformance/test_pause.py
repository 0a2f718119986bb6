"""A pause holds from its answer on: no claim after it takes a task of that queue or type."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

import pytest

from taskmill.clock import HOUR
from taskmill.engine import Claimed, Ending, Engine
from tests.conformance.tools import Worker, new, submit, worker
from tests.conformance.tools_b import guarded

ROUNDS = 15


@dataclass
class Race:
    """Claimers that go on until they are told; a claim that was under way when the pause was answered may have been first."""

    claimers: int
    paused: bool = False
    over: bool = False
    taken: asyncio.Event = field(default_factory=asyncio.Event)
    refused: asyncio.Event = field(default_factory=asyncio.Event)
    """As many claims as there are claimers began after the pause was answered, and were answered too."""
    asked_after: int = 0
    begun_before: list[Claimed] = field(default_factory=list)
    begun_after: list[Claimed] = field(default_factory=list)

    async def claim(self, hand: Worker) -> None:
        while not self.over:
            after = self.paused
            taken = await hand.claim(1)
            (self.begun_after if after else self.begun_before).extend(taken)
            self.asked_after += after
            if taken:
                self.taken.set()
            if self.asked_after >= self.claimers:
                self.refused.set()
            await hand.done(*taken, ending=Ending.RELEASED)
            await asyncio.sleep(0)


@pytest.mark.heard_only("several claim at once, by the clock of the store")
@pytest.mark.parametrize("name", ["queue:default", "type:work"])
async def test_no_claim_after_the_answer_takes_one(racing: list[Engine], name: str) -> None:
    await submit(racing[0], *(new(n) for n in range(20)))
    hands = [await worker(each, lease=HOUR) for each in racing[1:]]
    for _ in range(ROUNDS):
        race = Race(len(hands))
        claimers = [asyncio.create_task(race.claim(hand)) for hand in hands]
        await guarded(race.taken.wait())
        await racing[0].put("pause", name, b"{}")
        answered = time.time_ns() // 1_000
        race.paused = True
        await guarded(race.refused.wait())
        race.over = True
        await asyncio.gather(*claimers)
        assert race.begun_after == []
        assert [task.claimed_at for task in race.begun_before if task.claimed_at > answered] == []
        await racing[0].drop("pause", name)


async def test_what_runs_goes_on(engine: Engine) -> None:
    one = await worker(engine)
    await submit(engine, new(1), new(2))
    running = await one.claim_one()
    await engine.put("pause", "queue:default", b"{}")
    assert await one.claim(5) == []
    await one.done(running)
    await engine.drop("pause", "queue:default")
    assert len(await one.claim(5)) == 1
