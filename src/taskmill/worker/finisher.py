"""Gives every ending to the store, in batches that form by themselves: while one is being written, the next gathers.

A lease is cleared from the board when the store has answered, never before, so beats name it until then. The store being away changes
nothing: outcomes stay here and are tried again, for a repeat is safe, and the beats of the supervisor keep the leases meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable

from taskmill.engine import Ending, Engine, Outcome, Refusal
from taskmill.errors import StoreError, TaskmillError
from taskmill.task import ErrorInfo
from taskmill.worker.board import Board

__all__ = ["Finisher"]

log = logging.getLogger("taskmill")

MOST = 1_000
LONGEST_PAUSE = 1.0


class Finisher:
    """The way of outcomes out of one process."""

    def __init__(self, engine: Engine, board: Board, told: Callable[[list[Outcome], tuple[Refusal, ...]], None]) -> None:
        self._engine = engine
        self._board = board
        self._told = told
        self._waiting: list[Outcome] = []
        self._writing: asyncio.Task[None] | None = None

    def add(self, outcome: Outcome) -> None:
        self._waiting.append(outcome)
        if self._writing is None:
            self._writing = asyncio.create_task(self._write())

    def settle(self, outcome: Outcome) -> None:
        """The store has it already: its handler wrote it, in a transaction."""
        self._settle([outcome], ())

    @property
    def backlog(self) -> int:
        return len(self._waiting)

    async def drain(self) -> None:
        """Until the store has answered everything."""
        while self._writing is not None:
            await asyncio.wait([self._writing])

    async def _write(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[:MOST], self._waiting[MOST:]
                await self._finish(batch)
        finally:
            self._writing = None

    async def _finish(self, batch: list[Outcome]) -> None:
        try:
            refused = await self._answered(batch)
        # Whatever one outcome does to the store must not keep the others from it.
        except Exception as error:
            await self._apart(batch, error)
            return
        self._settle(batch, refused)

    def _settle(self, batch: list[Outcome], refused: tuple[Refusal, ...]) -> None:
        self._board.clear([outcome.token for outcome in batch])
        self._told(batch, refused)

    async def _answered(self, batch: list[Outcome]) -> tuple[Refusal, ...]:
        pause = 0.02
        while True:
            try:
                return (await self._engine.finish(batch)).refused
            except StoreError as error:
                log.warning("the store does not take %d outcomes, trying again: %s", len(batch), error)
                await asyncio.sleep(pause * random.uniform(0.5, 1.5))
                pause = min(2 * pause, LONGEST_PAUSE)

    async def _apart(self, batch: list[Outcome], error: Exception) -> None:
        """One of them cannot be written; alone, it is known which."""
        if len(batch) > 1:
            for outcome in batch:
                await self._finish([outcome])
            return
        [outcome] = batch
        log.error("the outcome of task %s cannot be written, it is dead instead: %s", outcome.task, error, extra={"task_id": outcome.task})
        code, message = (error.code, error.message) if isinstance(error, TaskmillError) else (type(error).__name__, str(error))
        instead = Outcome(
            task=outcome.task, worker=outcome.worker, token=outcome.token, ending=Ending.DEAD, error=ErrorInfo(code, message),
            started_after=outcome.started_after,
        )  # fmt: skip
        refused: tuple[Refusal, ...] = ()
        try:
            refused = await self._answered([instead])
        # Then it has no end from here: its lease is no longer named, and the store gives the task to others.
        except Exception:
            log.exception("task %s is given back", outcome.task, extra={"task_id": outcome.task})
        self._settle([instead], refused)
