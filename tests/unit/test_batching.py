"""Many callers, one call: what goes together, how much of it, and how many calls are under way."""

from __future__ import annotations

import asyncio

import pytest

from taskmill.batching import Batcher


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
