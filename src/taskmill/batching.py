"""Many callers, one call: what arrives while a call is under way goes together with the next.

Nobody waits for company: the first item is sent at once, and a batch forms only because the store is busy with the one before. So a lone
caller pays no delay, and a thousand concurrent ones share one commit.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

__all__ = ["Batcher"]

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class Batcher(Generic[Item, Answer]):
    """`send` takes a batch and answers one answer per item, in order; what it raises, every caller of that batch gets."""

    def __init__(self, send: Callable[[list[Item]], Awaitable[Sequence[Answer]]], most: int = 500) -> None:
        self._send = send
        self._most = most
        self._waiting: deque[tuple[Item, asyncio.Future[Answer]]] = deque()
        self._sender: asyncio.Task[None] | None = None

    def add(self, item: Item) -> asyncio.Future[Answer]:
        """The answer to come. A caller that stops waiting does not take its item back."""
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        if self._sender is None:
            self._sender = asyncio.create_task(self._run())
        return future

    async def drain(self) -> None:
        """Until everything added has been answered."""
        while self._sender is not None:
            await asyncio.wait([self._sender])

    async def _run(self) -> None:
        try:
            while self._waiting:
                batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), self._most))]
                await self._answer(batch)
        finally:
            self._sender = None

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
