"""The executor: lines, slots, deadlines, and what is handed back; without a store, and with handlers that wait to be told."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import AsyncIterator, Callable
from queue import SimpleQueue
from typing import Any

import pytest

from taskmill import App, Context
from taskmill.clock import MILLISECOND, SECOND, SystemClock
from taskmill.engine import Ending, Outcome
from taskmill.worker import executor as module
from taskmill.worker.attempt import Running, ended
from taskmill.worker.board import Board, Lease
from taskmill.worker.executor import Executor, HandlerUnavailable
from taskmill.worker.stats import Stats
from taskmill.worker.threads import Threads
from tests.unit.worker.parts import claimed

GENEROUS = 30.0
left = contextvars.ContextVar("left", default="")


class Alone:
    """Where attempts would run in processes of their own; here each is in a process that starts when it may, and ends when the test lets it."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.at_once = 0
        self.most_at_once = 0
        self.start = asyncio.Event()
        self.start.set()
        self.end = asyncio.Event()
        self.end.set()
        self.broken = False

    async def attempt(self, running: Running, begin: Callable[[], bool]) -> Outcome | None:
        await self.start.wait()
        if self.broken:
            raise HandlerUnavailable("the app does not import")
        if not begin():
            return None
        self.begun.append(running.claimed.type)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await self.end.wait()
        self.at_once -= 1
        return ended(running, Ending.COMPLETED)


class Hall:
    """An executor of two slots, and the gates its handlers wait at."""

    def __init__(self) -> None:
        self.app = App("sqlite://:memory:")
        self.gate = asyncio.Event()
        self.let_go = threading.Event()
        self.order: list[str] = []
        self.leases: list[Lease] = []
        """As the supervisor saw them when their outcomes went to the store."""
        self.seen: list[str] = []
        self.outcomes: asyncio.Queue[Outcome] = asyncio.Queue()
        self.begun: asyncio.Queue[str] = asyncio.Queue()
        self.moved = asyncio.Event()
        self.loop = asyncio.get_running_loop()
        self.board = Board()
        self.alone = Alone()
        self.declare()
        self.stats = Stats()
        self.executor = Executor(
            self.app, self.board, self._finish, self.moved.set, self.alone, SystemClock(), self.stats, concurrency=2, kill_after=SECOND
        )  # fmt: skip
        self.token = 0

    def _finish(self, outcome: Outcome) -> None:
        self.leases += [lease for lease in self.board.leases() if lease.token == outcome.token]
        self.board.clear([outcome.token])
        self.outcomes.put_nowait(outcome)

    def declare(self) -> None:
        @self.app.task(name="hold.async")
        async def hold_async() -> None:
            self.begun.put_nowait("hold")
            await self.gate.wait()

        @self.app.task(name="hold.sync")
        def hold_sync(ctx: Context) -> str | None:
            self.loop.call_soon_threadsafe(self.begun.put_nowait, "hold")
            while not self.let_go.wait(0.01) and not ctx.cancelled:
                pass
            self.loop.call_soon_threadsafe(self.begun.put_nowait, "asked" if ctx.cancelled else "let go")
            self.let_go.wait(GENEROUS)
            return ctx.cancel_reason

        @self.app.task
        async def note(line: str) -> None:
            self.order.append(line)

        @self.app.task(name="variable.async")
        async def variable_async() -> None:
            self.seen.append(left.get())
            left.set("something")

        @self.app.task(name="variable.sync")
        def variable_sync() -> None:
            self.seen.append(left.get())
            left.set("something")

        @self.app.task(isolated=True)
        def apart() -> None:
            raise AssertionError

    def offer(self, type: str, n: int = 1, **fields: Any) -> list[int]:
        tasks = [claimed(type, self.token + number, **fields) for number in range(1, n + 1)]
        self.token += n
        self.board.hold(tasks, self.token)
        self.executor.offer(tasks)
        self.last = tasks
        return [task.token for task in tasks]

    async def ended(self, n: int = 1) -> list[Outcome]:
        async with asyncio.timeout(GENEROUS):
            return [await self.outcomes.get() for _ in range(n)]

    async def full(self, mode: str) -> None:
        """Both slots are taken."""
        self.offer(f"hold.{mode}", 2)
        async with asyncio.timeout(GENEROUS):
            for _ in range(2):
                await self.begun.get()

    async def at_rest(self) -> None:
        """Every slot is back, those of threads too."""
        async with asyncio.timeout(GENEROUS):
            while self.executor.free < 2:
                self.moved.clear()
                await self.moved.wait()

    def open_gates(self) -> None:
        self.gate.set()
        self.let_go.set()


@pytest.fixture
async def hall() -> AsyncIterator[Hall]:
    hall = Hall()
    yield hall
    hall.open_gates()
    await hall.at_rest()
    hall.executor._timer.cancel()
    hall.board.close()


@pytest.mark.parametrize("mode", ["async", "sync"])
async def test_never_more_than_there_are_slots(hall: Hall, mode: str) -> None:
    await hall.full(mode)
    hall.offer(f"hold.{mode}", 3)
    await asyncio.sleep(0)
    assert (hall.executor.free, hall.executor.waiting, hall.begun.qsize()) == (0, 3, 0)
    hall.open_gates()
    assert [outcome.ending for outcome in await hall.ended(5)] == [Ending.COMPLETED] * 5
    assert hall.executor.held == {}


@pytest.mark.parametrize("mode", ["async", "sync"])
async def test_whoever_has_ended_has_no_deadline(hall: Hall, mode: str) -> None:
    """The store may take longer to answer than the handler was allowed to; its process must not be killed for that."""
    await hall.full(mode)
    assert all(lease.deadline > 0 for lease in hall.board.leases())
    hall.open_gates()
    await hall.ended(2)
    assert [(lease.started > 0, lease.deadline) for lease in hall.leases] == [(True, 0)] * 2


async def test_by_priority_then_as_claimed(hall: Hall) -> None:
    await hall.full("async")
    for priority, line in ((1, "b"), (0, "d"), (3, "a"), (1, "c")):
        hall.offer("note", payload=f'{{"line":"{line}"}}'.encode(), priority=priority)
    hall.open_gates()
    await hall.ended(6)
    assert hall.order == ["a", "b", "c", "d"]


async def test_what_waits_is_handed_back_when_nothing_moves(hall: Hall) -> None:
    await hall.full("async")
    begun = hall.executor.begun
    tokens = hall.offer("note", 3, payload=b'{"line":"x"}')
    hall.executor.release_stuck(begun - 1)  # one has begun since
    assert hall.executor.waiting == 3
    hall.executor.release_stuck(begun)
    outcomes = await hall.ended(3)
    assert {outcome.token for outcome in outcomes} == set(tokens)
    assert {(outcome.ending, outcome.started_after) for outcome in outcomes} == {(Ending.RELEASED, None)}
    assert hall.order == []


@pytest.mark.parametrize("mode", ["async", "sync"])
async def test_a_cancel_of_one_that_waits_and_of_one_that_runs(hall: Hall, mode: str) -> None:
    await hall.full(mode)
    [waiting] = hall.offer("note", payload=b'{"line":"x"}')
    hall.executor.cancel([task.claimed.id for task in hall.executor.held.values()])
    hall.let_go.set()
    outcomes = {outcome.token: outcome for outcome in await hall.ended(3)}
    assert outcomes[waiting].ending == Ending.CANCELLED
    assert hall.order == []
    running = {outcome.ending for token, outcome in outcomes.items() if token != waiting}
    assert running == ({Ending.CANCELLED} if mode == "async" else {Ending.COMPLETED})  # a value is a completion, however late


@pytest.mark.parametrize("mode", ["async", "sync"])
async def test_the_time_of_a_handler_is_over(hall: Hall, mode: str) -> None:
    hall.offer(f"hold.{mode}", timeout=50 * MILLISECOND)
    await hall.begun.get()
    if mode == "sync":
        async with asyncio.timeout(GENEROUS):
            assert await hall.begun.get() == "asked"
        [lease] = hall.board.leases()
        assert lease.started < lease.deadline <= SystemClock().monotonic() + SECOND
        hall.let_go.set()
    [outcome] = await hall.ended()
    if mode == "async":
        assert outcome.error is not None
        assert (outcome.ending, outcome.error.code) == (Ending.RETRY, "timeout")
    else:
        assert (outcome.ending, outcome.result) == (Ending.COMPLETED, b'"timeout"')


async def test_a_lost_lease_and_a_stop_release(hall: Hall) -> None:
    await hall.full("async")
    hall.executor.lose([1, 99])
    [outcome] = await hall.ended()
    assert (outcome.token, outcome.ending) == (1, Ending.RELEASED)
    hall.executor.stop()
    [outcome] = await hall.ended()
    assert (outcome.token, outcome.ending) == (2, Ending.RELEASED)


async def test_lost_leases_are_counted_begun_or_not(hall: Hall) -> None:
    await hall.full("async")
    hall.offer("note", payload=b'{"line":"x"}')
    hall.executor.lose([1, 3, 99])
    assert {outcome.token for outcome in await hall.ended(2)} == {1, 3}
    hall.executor.lose([1])  # told again, when it has ended
    counted = hall.stats.take() or {}
    assert {name: one.lost for name, one in counted.items()} == {"hold.async": 1, "note": 1}


async def test_the_time_in_queue_ends_when_the_handler_begins(hall: Hall) -> None:
    hall.offer("note", payload=b'{"line":"x"}', ready_at=5 * SECOND, claimed_at=8 * SECOND)
    await hall.ended()
    hall.offer("note", payload=b'{"line":"x"}')  # of an engine that does not say since when
    await hall.ended()
    counted = (hall.stats.take() or {})["note"]
    assert (sum(counted.buckets), sum(counted.waits)) == (2, 1)
    assert counted.waited >= 3 * SECOND


async def test_what_does_not_end_is_given_up(hall: Hall) -> None:
    await hall.full("sync")
    hall.executor.stop()
    hall.executor.abandon()
    assert {outcome.ending for outcome in await hall.ended(2)} == {Ending.RELEASED}
    hall.let_go.set()
    hall.offer("note", payload=b'{"line":"after"}')
    assert [outcome.ending for outcome in await hall.ended()] == [Ending.COMPLETED]
    assert hall.outcomes.empty()  # those given up have no second end


async def test_what_was_withdrawn_does_not_begin(hall: Hall) -> None:
    await hall.full("async")
    [token] = hall.offer("note", payload=b'{"line":"x"}')
    hall.board.withdraw([token])
    hall.gate.set()
    outcomes = {outcome.token: outcome.ending for outcome in await hall.ended(3)}
    assert outcomes[token] == Ending.RELEASED
    assert hall.order == []


@pytest.mark.parametrize("mode", ["async", "sync"])
async def test_context_variables_end_with_the_task(hall: Hall, mode: str) -> None:
    hall.offer(f"variable.{mode}", 20)
    await hall.ended(20)
    assert hall.seen == [""] * 20


@pytest.mark.parametrize("crashes", [0, 1, 2, 3])
async def test_suspects_run_alone(hall: Hall, crashes: int) -> None:
    hall.offer("note", payload=b'{"line":"x"}', crashes=crashes)
    await hall.ended()
    assert hall.alone.begun == (["note"] if crashes >= 2 else [])


async def test_one_that_took_a_process_with_it_runs_alone(hall: Hall) -> None:
    hall.offer("note", payload=b'{"line":"x"}', suspect=True)
    hall.offer("apart")
    await hall.ended(2)
    assert sorted(hall.alone.begun) == ["apart", "note"]


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_suspects_have_one_slot_beside_the_others(hall: Hall) -> None:
    """However many there are, one runs at a time; both slots and the claimer's room are for others meanwhile."""
    hall.alone.end.clear()
    hall.offer("note", 60, payload=b'{"line":"suspect"}', suspect=True)
    await turns()
    assert (hall.alone.begun, hall.executor.free, hall.executor.waiting, hall.executor.crowded) == (["note"], 2, 0, False)
    await hall.full("async")
    hall.executor.release_stuck(hall.executor.begun)
    hall.gate.set()
    assert {outcome.ending for outcome in await hall.ended(2)} == {Ending.COMPLETED}
    hall.alone.end.set()
    assert {outcome.ending for outcome in await hall.ended(60)} == {Ending.COMPLETED}
    assert (len(hall.alone.begun), hall.alone.most_at_once) == (60, 1)


async def test_suspects_behind_a_long_one_get_another_slot_then_another_worker(hall: Hall, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PROCESSORS", 2)
    monkeypatch.setattr(module, "SUSPECTS_WAIT", -1)
    hall.alone.end.clear()
    tokens = hall.offer("note", 4, payload=b'{"line":"x"}', suspect=True)
    await turns()
    assert len(hall.alone.begun) == 1
    hall.executor.release_stuck(0)
    await turns()
    assert (len(hall.alone.begun), hall.outcomes.qsize()) == (2, 0)
    hall.executor.release_stuck(0)
    outcomes = await hall.ended(2)
    assert {(outcome.token, outcome.ending, outcome.started_after) for outcome in outcomes} == {(token, Ending.RELEASED, None) for token in tokens[2:]}
    hall.alone.end.set()
    await hall.ended(2)


async def test_with_very_many_suspects_nothing_more_is_claimed(hall: Hall) -> None:
    hall.alone.end.clear()
    hall.offer("note", module.MOST_SUSPECTS + 1, payload=b'{"line":"x"}', suspect=True)
    await turns()
    assert hall.executor.crowded
    hall.executor.release_waiting()
    hall.alone.end.set()
    await hall.ended(module.MOST_SUSPECTS + 1)
    assert not hall.executor.crowded


@pytest.mark.parametrize("suspect", [False, True], ids=["isolated", "suspect"])
async def test_the_time_of_a_task_begins_when_its_process_is_ready(hall: Hall, suspect: bool) -> None:
    hall.alone.start.clear()
    hall.offer("apart", timeout=MILLISECOND, suspect=suspect)
    await asyncio.sleep(0.05)
    [lease] = hall.board.leases()
    assert (lease.started, lease.deadline, hall.alone.begun) == (0, 0, [])
    hall.alone.start.set()
    [outcome] = await hall.ended()
    assert outcome.ending == Ending.COMPLETED
    assert outcome.started_after is not None
    assert outcome.started_after >= 50 * MILLISECOND


@pytest.mark.parametrize(("asked", "ending"), [("cancel", Ending.CANCELLED), ("stop", Ending.RELEASED), ("withdraw", Ending.RELEASED)])
async def test_asked_to_end_while_its_process_starts(hall: Hall, asked: str, ending: Ending) -> None:
    hall.alone.start.clear()
    [token] = hall.offer("apart")
    await turns()
    if asked == "cancel":
        hall.executor.cancel([hall.last[0].id])
    elif asked == "stop":
        hall.executor.stop()
    else:
        hall.board.withdraw([token])
        hall.alone.start.set()
    [outcome] = await hall.ended()
    assert (outcome.ending, outcome.started_after, hall.alone.begun) == (ending, None, [])


async def test_without_a_process_a_task_comes_back_later_and_has_not_failed(hall: Hall) -> None:
    hall.alone.broken = True
    hall.offer("apart")
    [outcome] = await hall.ended()
    assert outcome.error is not None
    assert (outcome.ending, outcome.started_after, outcome.after > 0, outcome.error.code) == (Ending.SNOOZED, None, True, "handler_unavailable")


def test_a_thread_that_gives_its_slot_back_when_the_loop_is_gone() -> None:
    """The loop ends with the last outcome, and the thread a moment later; it says nothing, and would go on."""
    loop, seen = asyncio.new_event_loop(), SimpleQueue[int]()
    loop.close()

    def work(_arrive: Callable[[], None], _tell: Callable[[Running, Outcome], None]) -> None:
        seen.put(threading.get_ident())

    threads = Threads(work, lambda *_: None, loop)
    threads.wake()
    first = seen.get(timeout=GENEROUS)
    threads._slots.put(None)
    assert seen.get(timeout=GENEROUS) == first
