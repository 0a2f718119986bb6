"""Many callers, one call: what arrives while a call is under way goes together with the next (`Batcher`), or has its answer (`Shared`).

Nobody waits for company: the first item is sent at once, and a batch forms only because the store is busy with the one before. So a lone
caller pays no delay, and a thousand concurrent ones share one commit. Where the way is long, a few calls may be under way at once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from itertools import accumulate, islice, takewhile
from typing import Generic, TypeVar

from taskmill.clock import Clock

__all__ = ["Batcher", "Shared", "batches"]

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class Batcher(Generic[Item, Answer]):
    """`send` takes a batch and answers one answer per item, in order; what it raises, every caller of that batch gets. At most so many items in a batch, and of
    such a `size` in sum; `at_once`: so many batches under way, which may then reach the other side in any order."""

    def __init__(
        self,
        send: Callable[[list[Item]], Awaitable[Sequence[Answer]]],
        most: int = 500,
        *,
        at_once: int = 1,
        size: Callable[[Item], int] | None = None,
        most_size: int = 0,
    ) -> None:
        self._send = send
        self._most = most
        self._at_once = at_once
        self._size = size
        self._most_size = most_size
        self._waiting: deque[tuple[Item, asyncio.Future[Answer]]] = deque()
        self._senders: set[asyncio.Task[None]] = set()
        self._starting = 0
        """Senders that were made and have not begun: each of them will take a batch of what waits now."""

    def add(self, item: Item) -> asyncio.Future[Answer]:
        """The answer to come. A caller that stops waiting does not take its item back."""
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        if len(self._senders) < self._at_once and len(self._waiting) > self._starting * self._most:
            self._starting += 1
            self._senders.add(asyncio.create_task(self._run()))
        return future

    async def drain(self) -> None:
        """Until everything added has been answered."""
        while self._senders:
            await asyncio.wait(self._senders)

    async def _run(self) -> None:
        self._starting -= 1
        try:
            while self._waiting:
                await self._answer(self._batch())
        finally:
            self._senders -= {asyncio.current_task()}

    def _batch(self) -> list[tuple[Item, asyncio.Future[Answer]]]:
        waiting, size = self._waiting, self._size
        number = min(len(waiting), self._most)
        if size is not None:
            sums = accumulate(size(item) for item, _ in islice(waiting, number))
            number = max(1, sum(1 for _ in takewhile(lambda so_far: so_far <= self._most_size, sums)))
        return [waiting.popleft() for _ in range(number)]

    async def _answer(self, batch: list[tuple[Item, asyncio.Future[Answer]]]) -> None:
        futures = [future for _, future in batch]
        try:
            answers = await self._send([item for item, _ in batch])
        # Whatever went wrong belongs to those who asked; the next batch goes its own way.
        except Exception as error:
            for future in futures:
                if not future.done():
                    future.set_exception(error)
            return
        except asyncio.CancelledError:
            for future in [*futures, *(future for _, future in self._waiting)]:
                future.cancel()
            self._waiting.clear()
            raise
        for future, answer in zip(futures, answers, strict=True):
            if not future.done():
                future.set_result(answer)


class Shared(Generic[Answer]):
    """A read that is dear: one for all who ask while it is under way. Its answer is good for `age` from when it came. When the last caller gives up, the read
    is given up too."""

    def __init__(self, read: Callable[[], Awaitable[Answer]], clock: Clock, age: int) -> None:
        self._read = read
        self._clock = clock
        self._age = age
        self._last: tuple[int, Answer] | None = None
        self._reading: asyncio.Task[Answer] | None = None
        self._asking = 0

    async def get(self) -> Answer:
        if self._last is not None and 0 <= self._clock.now() - self._last[0] < self._age:
            return self._last[1]
        if self._reading is None:
            self._reading, self._asking = asyncio.create_task(self._ask()), 0
        reading = self._reading
        self._asking += 1
        try:
            return await asyncio.shield(reading)
        except asyncio.CancelledError:
            if reading is self._reading and self._asking == 1:
                self._reading = None
                reading.cancel()
            raise
        finally:
            if reading is self._reading:
                self._asking -= 1

    def forget(self) -> None:
        """The last answer is not true any more."""
        self._last = None

    async def _ask(self) -> Answer:
        try:
            answer = await self._read()
            self._last = (self._clock.now(), answer)
            return answer
        finally:
            if self._reading is asyncio.current_task():
                self._reading = None


def batches(items: Iterable[Item], most: int, size: Callable[[Item], int], most_size: int) -> Iterator[list[Item]]:
    """Bounded in items and in their size; nothing is read ahead of the batch that is sent."""
    batch: list[Item] = []
    so_far = 0
    for item in items:
        if batch and (len(batch) == most or so_far + size(item) > most_size):
            yield batch
            batch, so_far = [], 0
        batch.append(item)
        so_far += size(item)
    if batch:
        yield batch
