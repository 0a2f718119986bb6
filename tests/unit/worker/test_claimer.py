"""The claimer: asks for what there is room for, sleeps until there may be work, and holds what it was given."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import pytest

from taskmill import App
from taskmill.clock import HOUR
from taskmill.engine import Filter, Outcome, Room
from taskmill.task import NewTask, State
from taskmill.worker import claimer as module
from taskmill.worker.attempt import Running
from taskmill.worker.board import ROWS, Board
from taskmill.worker.claimer import Claimer
from taskmill.worker.executor import Executor
from taskmill.worker.finisher import Finisher
from taskmill.worker.stats import Stats

GENEROUS = 60.0
SLOTS = 4
FEW = 2


class Nowhere:
    async def attempt(self, running: Running, begin: Callable[[], bool]) -> Outcome:
        raise AssertionError(running)


class Mill:
    """The parts of a child, without a supervisor."""

    def __init__(self, app: App, board: Board) -> None:
        self.app = app
        self.board = board
        self.gate = asyncio.Event()
        self.moved = asyncio.Event()
        self.finisher = Finisher(app.engine, board, lambda *_: self.claimer.make_room())
        self.executor = Executor(
            app, board, self.finisher.add, self._room, Nowhere(), app.engine.clock, Stats(), concurrency=SLOTS
        )  # fmt: skip
        self.claimer = Claimer(app.engine, "anna", ["default"], board, self.executor, {"few": FEW})
        self.running = asyncio.create_task(self.claimer.run())

    def _room(self) -> None:
        self.moved.set()
        self.claimer.make_room()

    async def submit(self, type: str, n: int) -> list[str]:
        return [answer.id for answer in await self.app.engine.submit([NewTask(type=type, payload=b"{}") for _ in range(n)])]

    async def ended(self, ids: list[str]) -> None:
        async with asyncio.timeout(GENEROUS):
            assert set((await self.app.operations.wait(ids, every=True)).values()) == {State.COMPLETED}

    async def stop(self) -> None:
        self.gate.set()
        self.running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.running
        async with asyncio.timeout(GENEROUS):
            while self.executor.free < SLOTS:
                self.moved.clear()
                await self.moved.wait()
        await self.finisher.drain()
        self.executor._timer.cancel()


@pytest.fixture(params=[SLOTS + 20, ROWS], ids=["small_board", "large_board"])
async def mill(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Mill]:
    monkeypatch.setattr(module, "MOST_AHEAD", request.param // 4)
    app = App("sqlite://:memory:")
    gates: list[asyncio.Event] = []
    begun: asyncio.Queue[None] = asyncio.Queue()

    @app.task
    async def hold() -> None:
        begun.put_nowait(None)
        await gates[0].wait()

    @app.task
    async def few() -> None:
        begun.put_nowait(None)
        await gates[0].wait()

    @app.task
    async def on_loop() -> None:
        pass

    @app.task
    def in_thread() -> None:
        pass

    async with app:
        await app.engine.join(app.joining("anna"))
        board = Board(rows=request.param)
        mill = Mill(app, board)
        gates.append(mill.gate)
        app.state.begun = begun
        yield mill
        await mill.stop()
        assert board.leases() == []
        board.close()


@pytest.mark.parametrize("type", ["on_loop", "in_thread"])
async def test_all_of_many_end_also_on_a_small_board(mill: Mill, type: str) -> None:
    """Whoever waits for rows of the board is told when the store has answered."""
    await mill.ended(await mill.submit(type, 500))


async def test_no_more_than_there_are_slots_while_they_are_long(mill: Mill) -> None:
    ids = await mill.submit("hold", 3 * SLOTS)
    async with asyncio.timeout(GENEROUS):
        for _ in range(SLOTS):
            await mill.app.state.begun.get()
    page = await mill.app.engine.list(Filter(states=frozenset({State.RUNNING})))
    assert len(page.tasks) == SLOTS == len(mill.board.leases())
    mill.gate.set()
    await mill.ended(ids)


async def test_a_pause_claims_nothing_and_a_resume_at_once(mill: Mill) -> None:
    await mill.ended(await mill.submit("on_loop", 1))
    mill.claimer.pause()
    ids = await mill.submit("on_loop", 3)
    other = mill.app.joining("berta")
    await mill.app.engine.join(other)
    # One claim may have been under way when the pause came; what is submitted after it is not taken.
    later = await mill.submit("on_loop", 1)
    taken = (await mill.app.engine.claim("berta", 1, ["default"], Room(10))).tasks
    assert later[0] in {task.id for task in taken}
    await mill.app.engine.leave("berta")
    mill.claimer.resume()
    await mill.ended(ids + later)


async def test_a_hint_wakes_it(mill: Mill, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing else does here: the polls are an hour apart."""
    monkeypatch.setattr(module, "POLL", HOUR)
    for _ in range(10):
        await mill.ended(await mill.submit("on_loop", 1))


async def test_no_more_of_a_type_than_its_share(mill: Mill) -> None:
    """Also when its slots are taken claim by claim; others go by."""
    ids = await mill.submit("few", 1)
    async with asyncio.timeout(GENEROUS):
        await mill.app.state.begun.get()
    ids += await mill.submit("few", 2 * FEW)
    await mill.ended(await mill.submit("on_loop", 20))
    running = await mill.app.operations.list(Filter(states=frozenset({State.RUNNING})))
    assert len(running.tasks) == FEW
    mill.gate.set()
    await mill.ended(ids)
