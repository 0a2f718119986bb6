"""Runs what was claimed, at most `concurrency` handlers at once, and gives each outcome to the finisher.

    offer ──▶ line (by priority, then as claimed) ──▶ slot ──▶ attempt ──▶ outcome

There are three lines: async handlers run on the loop, plain functions in threads, isolated ones in processes of their own. A slot is a
coroutine, a thread or a process that runs one handler at a time. Whoever has a slot takes one task after the other out of its line before it
gives the slot back: short tasks share one hop, and a long one holds up nobody, because what has not begun is still in the line. After a
slice of time it lets the loop turn, and the other lines have their say.

Suspects stand in a fourth line: tasks whose earlier attempt took a process down, or had to be killed with it. They run in processes of their
own, in one slot beside the others, so that a crash with many tasks in flight is not followed by as many processes. Those that wait for that
slot hold up no other task. When it stays taken for long, one more opens, up to the number of processors; after that they go back to the store,
and other workers can have them.

One timer serves all deadlines: it looks four times a second, and earlier when a handler begins whose time is over before that. A handler that
is past its deadline, or whose task was cancelled, is asked to end: its coroutine is cancelled, `ctx.cancelled` is true. If it does not, the
supervisor kills the whole process at the hard deadline, which stands on the board; so it happens also when this loop is blocked.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine, Sequence
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Protocol

from msgspec.structs import replace

from taskmill.clock import MILLISECOND, SECOND, Clock, format_duration
from taskmill.engine import Claimed, Ending, Outcome
from taskmill.task import ErrorInfo
from taskmill.worker.attempt import CANCELLED, LEASE_LOST, STOPPING, TIMEOUT, Running, attempt_async, attempt_sync, ended, unbegun
from taskmill.worker.board import Board
from taskmill.worker.lines import Line
from taskmill.worker.process import keep_standard_streams
from taskmill.worker.stats import Stats
from taskmill.worker.threads import Threads

if TYPE_CHECKING:
    from taskmill.app import App

__all__ = ["Executor", "HandlerUnavailable", "Isolation"]

log = logging.getLogger("taskmill")

SLICE = MILLISECOND
"""How long a slot goes on before the loop turns."""
THREAD_SLICE = 5 * MILLISECOND
TICK = 250 * MILLISECOND
SUSPECT_AFTER = 2
"""Losses after which a task runs in a process of its own: one may be a machine's fault, two look like the task's."""
PROCESSORS = os.cpu_count() or 1
MOST_SUSPECTS = 1_000
"""Suspects that may wait here; with so many, the worker claims nothing until some have run."""
SUSPECTS_WAIT = 5 * SECOND
"""How long suspects wait for a slot that does not come back: then they get one more, or others may have them."""
COME_BACK = 10 * SECOND
"""When a task comes back for which no process could be started."""


class HandlerUnavailable(Exception):
    """The app does not import in a new process, does not start there, or takes too long: no fault of the task."""


class Isolation(Protocol):
    """Where attempts run in processes of their own."""

    async def attempt(self, running: Running, begin: Callable[[], bool]) -> Outcome | None: ...


class Executor:
    """The handlers of one process."""

    def __init__(
        self,
        app: App,
        board: Board,
        finish: Callable[[Outcome], None],
        room: Callable[[], None],
        isolation: Isolation,
        clock: Clock,
        stats: Stats,
        *,
        concurrency: int,
        kill_after: int = 5 * SECOND,
        settle: Callable[[Outcome], None] | None = None,
    ) -> None:
        self._app = app
        self._types = app.types
        self._board = board
        self._finish = finish
        self._settle = settle or finish
        """For an outcome that the store has already."""
        self._room = room
        self._isolation = isolation
        self._now = clock.monotonic
        self._stats = stats
        self._kill_after = kill_after
        self._loop = asyncio.get_running_loop()
        self._on_loop, self._in_threads, self._alone, self._suspects = Line(), Line(), Line(), Line()
        self._suspect_slots = 0
        self._suspect_begun = 0
        self._coming = {self._on_loop: 0, self._alone: 0}
        """Slots that have not taken their first task yet."""
        self._threads = Threads(self._on_thread, self._collect, self._loop)
        self._slots: set[asyncio.Task[None]] = set()
        self._context = copy_context()
        self.held: dict[int, Running] = {}
        self.concurrency = concurrency
        self.free = concurrency
        self.ran = 0
        self._begun = 0
        self._next_look = 0
        self._timer: asyncio.Handle = self._loop.call_soon(self._look)

    # Taking in

    def offer(self, tasks: Sequence[Claimed]) -> None:
        """These were claimed; each begins as soon as it has a slot."""
        received = self._now()
        for claimed in tasks:
            declared = self._types[claimed.type]
            running = Running(claimed, declared, received, self._loop)
            self.held[claimed.token] = running
            self._line_of(running).add(running)
        self._fill()

    def _line_of(self, running: Running) -> Line:
        claimed = running.claimed
        if claimed.suspect or claimed.crashes >= SUSPECT_AFTER:
            return self._suspects
        match running.declared.mode:
            case "isolated":
                return self._alone
            case "async":
                return self._on_loop
            case _:
                return self._in_threads

    @property
    def waiting(self) -> int:
        """How many have no slot yet, nor one on its way: the claimer is not told when a slot arrives, so it must not wait for that.

        Suspects do not count: the slot that they wait for is none of those that the claimer fills.
        """
        there = len(self._on_loop) + len(self._in_threads) + len(self._alone)
        return max(0, there - self._coming[self._on_loop] - self._coming[self._alone] - self._threads.coming)

    @property
    def crowded(self) -> bool:
        """So many suspects wait that a claim could bring more than this process may hold."""
        return len(self._suspects) >= MOST_SUSPECTS

    def _fill(self) -> None:
        """A slot for each task that waits, as long as there are any."""
        if len(self._suspects) and not self._suspect_slots:
            self._open_suspect_slot()
        while self.free > 0 and (line := self._next_line()) is not None:
            self.free -= 1
            if line is self._in_threads:
                self._threads.wake()
            else:
                self._coming[line] += 1
                self._open_slot(self._on_slot() if line is self._on_loop else self._on_process())
        self._room()

    def _open_suspect_slot(self) -> None:
        self._suspect_slots += 1
        self._suspect_begun = self._now()
        self._open_slot(self._on_suspect())

    def _open_slot(self, work: Coroutine[Any, Any, None]) -> None:
        """Not in the context of the handler that made room for it."""
        slot = self._loop.create_task(work, context=self._context.copy())
        self._slots.add(slot)
        slot.add_done_callback(self._slots.discard)

    def _next_line(self) -> Line | None:
        """The line that has more tasks than slots on their way to it, and whose first task comes first: by priority, then by age.

        Slots that run a handler do not count: nobody knows how long it takes, and a task that waited for it could begin elsewhere.
        """
        on_their_way = {**self._coming, self._in_threads: self._threads.coming}
        lines = [line for line, coming in on_their_way.items() if len(line) > coming]
        return max(lines, key=Line.head) if lines else None

    def _give_back(self) -> None:
        keep_standard_streams()
        self.free += 1
        self._fill()

    # Running

    def _begin(self, running: Running, *, alone: bool = False) -> bool:
        """Its time runs from now on; False when it must not begin: cancelled, or taken away while this process did not turn."""
        claimed = running.claimed
        now = self._now()
        deadline = now + claimed.timeout
        if running.reason is not None or not self._board.start(claimed.token, now, deadline + self._kill_after, alone=alone):
            self._loop.call_soon_threadsafe(self._not_begun, running)
            return False
        running.started = now
        running.deadline = deadline
        self._begun += 1
        if deadline < self._next_look:
            self._loop.call_soon_threadsafe(self._look_earlier, deadline)
        return True

    def _not_begun(self, running: Running) -> None:
        if self.held.pop(running.claimed.token, None) is not None:
            if running.lease_lost:
                self._stats.lose(running.claimed.type)
            self._finish(unbegun(running, Ending.CANCELLED if running.reason == CANCELLED else Ending.RELEASED))

    async def _on_slot(self) -> None:
        """A slot on the loop."""
        mine = asyncio.current_task()
        assert mine is not None
        fresh = copy_context()
        line = self._on_loop
        self._coming[line] -= 1
        until = self._now() + SLICE
        while (running := line.take()) is not None:
            running.task = mine
            if not self._begin(running):
                continue
            now = self._ended(running, await attempt_async(self._app, running))
            if copy_context() != fresh or mine.cancelling():
                break  # what a handler left behind in its coroutine is not for the next one
            if now >= until:
                if len(self._in_threads) or len(self._alone):
                    break
                await asyncio.sleep(0)
                until = self._now() + SLICE
        self._give_back()

    async def _on_process(self) -> None:
        """A slot in a process: one task, since it may be asked to end by cancelling this coroutine."""
        self._coming[self._alone] -= 1
        await self._run_alone(self._alone.take())
        self._give_back()

    async def _on_suspect(self) -> None:
        """A slot of the suspects: one task, as above."""
        await self._run_alone(self._suspects.take())
        keep_standard_streams()
        self._suspect_slots -= 1
        if len(self._suspects):
            self._open_suspect_slot()
        self._room()

    async def _run_alone(self, running: Running | None) -> None:
        if running is None:
            return
        running.task = asyncio.current_task()
        try:
            outcome = await self._isolation.attempt(running, lambda: self._begin(running, alone=True))
        except HandlerUnavailable as error:
            self._put_off(running, error)
        except asyncio.CancelledError:  # asked to end before it began
            self._not_begun(running)
        else:
            if outcome is not None:
                self._ended(running, outcome)

    def _put_off(self, running: Running, error: HandlerUnavailable) -> None:
        """No process could be started for it: no failure, and it comes back when that may have changed."""
        claimed = running.claimed
        log.error("task %s cannot begin and comes back in %s: %s", claimed.id, format_duration(COME_BACK), error, extra={"task_id": claimed.id})
        if self.held.pop(claimed.token, None) is not None:
            self._finish(replace(unbegun(running, Ending.SNOOZED), after=COME_BACK, error=ErrorInfo("handler_unavailable", str(error))))

    def _on_thread(self, arrived: Callable[[], None], done: Callable[[Running, Outcome], None]) -> None:
        """A slot in a thread."""
        until = self._now() + THREAD_SLICE
        fresh = copy_context()
        running = self._in_threads.take()
        arrived()
        while running is not None:
            if self._begin(running):
                done(running, attempt_sync(self._app, running))
            if self._now() >= until or copy_context() != fresh:
                return
            running = self._in_threads.take()

    def _collect(self, ended: list[tuple[Running, Outcome]], slots: int) -> None:
        """On the loop again: what the threads have done, and slots they gave back."""
        for running, outcome in ended:
            self._ended(running, outcome)
        for _ in range(slots):
            self._give_back()

    def _ended(self, running: Running, outcome: Outcome) -> int:
        """Count it and give it to the finisher; what time it is now."""
        now = self._now()
        self.ran += 1
        claimed = running.claimed
        self._stats.count(claimed.type, outcome.ending, now - running.started, _waited(running))
        if running.lease_lost:
            self._stats.lose(claimed.type)
        if self.held.pop(claimed.token, None) is not None:
            self._board.hurry(claimed.token, 0)  # it has ended: however long the store takes to answer, nobody is to be killed for it
            (self._finish if running.ending is None else self._settle)(outcome)
        if self.ran % 16 == 0:  # a slot that is given back says so itself; here only what waits grows less
            self._room()
        return now

    # Deadlines

    def _look(self) -> None:
        """Ask those to end whose time is over, and look again when the next one's is, at the latest after a tick."""
        now = self._now()
        self._next_look = now + TICK
        for running in list(self.held.values()):
            if running.started and running.reason is None:
                if running.deadline <= now or running.asked is not None:
                    self._ask(running, running.asked or TIMEOUT)
                else:
                    self._next_look = min(self._next_look, running.deadline)
        self._timer = self._loop.call_later((self._next_look - now) / SECOND, self._look)

    def _look_earlier(self, at: int) -> None:
        if at < self._next_look:
            self._next_look = at
            self._timer.cancel()
            self._timer = self._loop.call_later(max(0, at - self._now()) / SECOND, self._look)

    def _ask(self, running: Running, reason: str) -> None:
        """Ask a handler to end; it has `kill_after` to do so. One that has ended its task itself has nothing to lose and nothing to cancel; one that is just
        doing so learns from the store whether it still holds its lease, and of anything else at the next look."""
        if running.reason is not None or (running.ending is not None and reason in (LEASE_LOST, CANCELLED)):
            return
        if running.committing:
            if reason == LEASE_LOST:
                return
            running.asked = running.asked or reason
            return
        running.reason = reason
        running.cancelled = True
        running.lease_lost = reason == LEASE_LOST
        if running.started:
            self._board.hurry(running.claimed.token, self._now() + self._kill_after)
        if running.task is not None:
            running.task.cancel()

    # What the outside asks for

    def cancel(self, ids: Sequence[str]) -> None:
        """Somebody cancelled these."""
        wanted = frozenset(ids)
        for running in [running for running in self.held.values() if running.claimed.id in wanted]:
            self._ask(running, CANCELLED)

    def lose(self, tokens: Sequence[int]) -> None:
        """These leases are no longer ours: whatever their handlers do now, counts for nothing."""
        for token in tokens:
            running = self.held.get(token)
            if running is not None:
                self._ask(running, LEASE_LOST)

    def release_waiting(self) -> None:
        """Whatever has not begun goes back, for others to run."""
        self._release(self._on_loop, self._in_threads, self._alone, self._suspects)

    def release_stuck(self, begun_before: int) -> None:
        """Whatever waits for slots that do not come back goes back, for others to run."""
        if self.free <= 0 and self._begun == begun_before and self.waiting > 0:
            self._release(self._on_loop, self._in_threads, self._alone)
        if len(self._suspects) and self._now() - self._suspect_begun > SUSPECTS_WAIT:
            if self._suspect_slots < PROCESSORS:
                self._open_suspect_slot()
            else:
                self._suspect_begun = self._now()
                self._release(self._suspects)

    def _release(self, *lines: Line) -> None:
        for line in lines:
            while (running := line.take()) is not None:
                self._not_begun(running)

    def stop(self) -> None:
        """Time is over: ask every handler to end; what is asked so is released."""
        for running in list(self.held.values()):
            self._ask(running, STOPPING)

    def abandon(self) -> None:
        """Those that did not end when asked: given up as they are. The process must end after this."""
        for running in list(self.held.values()):
            self.held.pop(running.claimed.token, None)
            if running.ending is not None:
                self._settle(running.ending)
            else:
                self._finish(ended(running, Ending.RELEASED) if running.started else unbegun(running, Ending.RELEASED))

    @property
    def begun(self) -> int:
        return self._begun


def _waited(running: Running) -> int | None:
    """From ready to begun: until the claim by the store's clock, from there on by ours."""
    claimed = running.claimed
    return max(0, claimed.claimed_at - claimed.ready_at) + running.started - running.received if claimed.ready_at else None
