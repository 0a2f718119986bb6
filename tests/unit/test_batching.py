"""Many callers, one call: what goes together, how much of it, and how many calls are under way."""

from __future__ import annotations

import asyncio

import pytest

from taskmill.batching import Batcher, Shared
from taskmill.clock import SECOND, ManualClock


class Side:
    """The other side: it answers a batch when told to."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.open = asyncio.Event()

    async def send(self, batch: list[int]) -> list[int]:
        self.batches.append(batch)
        await self.open.wait()
        return [-item for item in batch]


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_the_first_goes_at_once_and_the_others_together() -> None:
    side = Side()
    batcher = Batcher(side.send)
    answers = [batcher.add(0)]
    await settled()
    answers += [batcher.add(item) for item in range(1, 5)]
    await settled()
    assert side.batches == [[0]]
    side.open.set()
    assert await asyncio.gather(*answers) == [0, -1, -2, -3, -4]
    assert side.batches == [[0], [1, 2, 3, 4]]
    await batcher.drain()


async def test_several_under_way_and_no_more() -> None:
    side = Side()
    batcher = Batcher(side.send, at_once=3)
    answers = []
    for item in range(6):
        answers.append(batcher.add(item))
        await settled()
    assert side.batches == [[0], [1], [2]]
    side.open.set()
    assert await asyncio.gather(*answers) == [-item for item in range(6)]
    assert side.batches[3] == [3, 4, 5]


async def test_those_of_one_moment_are_as_few_batches_as_can_be() -> None:
    side = Side()
    side.open.set()
    batcher = Batcher(side.send, 4, at_once=8)
    answers = [batcher.add(item) for item in range(10)]
    assert await asyncio.gather(*answers) == [-item for item in range(10)]
    assert [len(batch) for batch in side.batches] == [4, 4, 2]


async def test_a_batch_is_bounded_in_size_and_one_that_is_larger_goes_alone() -> None:
    side = Side()
    side.open.set()
    batcher = Batcher(side.send, size=lambda item: item, most_size=10)
    answers = [batcher.add(item) for item in (4, 5, 3, 99, 10, 1)]
    await asyncio.gather(*answers)
    assert side.batches == [[4, 5], [3], [99], [10], [1]]


async def test_a_call_that_fails_belongs_to_those_who_asked() -> None:
    calls = 0

    async def send(batch: list[int]) -> list[int]:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise ValueError("no")
        return batch

    batcher = Batcher(send)
    with pytest.raises(ValueError, match="no"):
        await batcher.add(1)
    assert await batcher.add(2) == 2


async def test_whoever_stops_waiting_is_left_out() -> None:
    side = Side()
    batcher = Batcher(side.send)
    first, second = batcher.add(1), batcher.add(2)
    await settled()
    first.cancel()
    side.open.set()
    assert await second == -2


class Reading:
    """A read that answers when told to, with how often it was asked."""

    def __init__(self) -> None:
        self.begun = 0
        self.given_up = 0
        self.open = asyncio.Event()

    async def __call__(self) -> int:
        self.begun += 1
        number = self.begun
        try:
            await self.open.wait()
        except asyncio.CancelledError:
            self.given_up += 1
            raise
        return number


async def test_those_who_ask_at_once_share_one_read_and_its_age_begins_when_it_came() -> None:
    clock, read = ManualClock(), Reading()
    shared = Shared(read, clock, 5 * SECOND)
    asking = [asyncio.create_task(shared.get()) for _ in range(5)]
    await settled()
    clock.advance("1m")
    read.open.set()
    assert await asyncio.gather(*asking) == [1] * 5
    clock.advance("4s")
    assert await shared.get() == 1
    clock.advance("2s")
    assert await shared.get() == 2
    shared.forget()
    assert await shared.get() == 3


async def test_a_read_is_given_up_when_the_last_who_asked_has() -> None:
    read = Reading()
    shared = Shared(read, ManualClock(), SECOND)
    first, second = (asyncio.create_task(shared.get()) for _ in range(2))
    await settled()
    first.cancel()
    await settled()
    assert (read.begun, read.given_up) == (1, 0)
    second.cancel()
    await settled()
    assert (read.begun, read.given_up) == (1, 1)
    third = asyncio.create_task(shared.get())
    await settled()
    read.open.set()
    assert await third == 2


async def test_an_error_of_a_read_is_everybodys_and_the_next_asks_anew() -> None:
    async def fails() -> int:
        raise KeyError("lost")

    shared = Shared(fails, ManualClock(), SECOND)
    assert all(isinstance(error, KeyError) for error in await asyncio.gather(shared.get(), shared.get(), return_exceptions=True))
    with pytest.raises(KeyError, match="lost"):
        await shared.get()
