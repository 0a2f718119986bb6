"""The program of a child: a process that claims, runs and finishes tasks, under a supervisor that beats for it.

    load the app ─▶ open the store ─▶ "loaded" ─▶ (the supervisor opens it too) "go" ─▶ join ─▶ "joined" ─▶ claim, run, finish … ─▶ "drain" ─▶ leave, exit 0

It exits when its supervisor is gone. When it is told that its leases are lost (it was silent for too long, and unregistered), it ends and
is replaced.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import sys
import traceback
from collections.abc import Coroutine, Sequence
from difflib import get_close_matches
from typing import Any

import msgspec

from taskmill import tracing
from taskmill.app import App
from taskmill.clock import MILLISECOND, SECOND
from taskmill.engine import Engine, Outcome, Refusal
from taskmill.engines.opening import open_in_time
from taskmill.errors import AppError, Conflict, TaskmillError
from taskmill.loading import load
from taskmill.task import check_name
from taskmill.telemetry import Metrics
from taskmill.worker import logs, output
from taskmill.worker.begun import Begun
from taskmill.worker.board import Board
from taskmill.worker.channel import Channel, Message
from taskmill.worker.claimer import Claimer
from taskmill.worker.executor import TICK, Executor
from taskmill.worker.finisher import Finisher
from taskmill.worker.isolation import Runners
from taskmill.worker.process import LAST_PART, children, end_copies, exit_soon, handlers_time, under
from taskmill.worker.settings import Start, StoreSettings
from taskmill.worker.stats import Stats
from taskmill.worker.watchdog import Watchdog

__all__ = ["main"]

log = logging.getLogger("taskmill")

LAST_WORDS = 0.5
"""How long handlers that were asked to end have before they are given up."""
AFTER_US = 750 * MILLISECOND
"""The part of the end that is its supervisor's."""


def main() -> None:
    channel_fd, board_fd, supervisor = (int(argument) for argument in sys.argv[1:4])
    end = socket.socket(fileno=channel_fd)
    under(supervisor, end)
    try:
        import uvloop
    except ImportError:
        code = asyncio.run(_run(end, board_fd))
    else:
        code = uvloop.run(_run(end, board_fd))
    os._exit(code)


async def _run(end: socket.socket, board_fd: int) -> int:
    end_copies()
    channel = await Channel.open(end)
    message = await channel.hear()
    if message is None:
        return 1
    start = msgspec.json.decode(message.data, type=Start)
    try:
        app = load(start.target)
        logs.configure(start.log_level or app.settings.log_level, app.settings.log_format, start.worker)
        output.install()
        _check_queues(app, start)
        await open_in_time(app.open, app.settings.wait_for_store)
        metrics = Metrics()
        app.observe(metrics.watch)
    except TaskmillError as error:
        channel.say(Message("failed", text=str(error), number=2 if error.status < 500 else 1))
        await channel.flush()
        return 1
    channel.say(Message("loaded", data=msgspec.Raw(msgspec.json.encode(StoreSettings.of(app)))))
    code = await Child(app, start, channel, Board(board_fd), metrics).run()
    exit_soon(code, LAST_WORDS)
    return code


def _check_queues(app: App, start: Start) -> None:
    """A worker without tasks, or of a queue that none of its tasks is in, would wait for ever."""
    if not app.types:
        raise AppError(f"{start.target} declares no tasks", code="no_tasks", field=None, hint="decorate a function with @app.task, or app.include(tasks)")
    known = sorted({declared.settings.queue for declared in app.types.values()})
    for queue in start.queues:
        if check_name(queue, "queue") not in known:
            near = get_close_matches(queue, known, 1)
            hint = f"did you mean {near[0]}?" if near else f"its queues are {', '.join(known)}"
            raise AppError(f"no task of {start.target} is in the queue {queue!r}", code="unknown_queue", field=None, hint=hint)


def _place(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].filename}, line {frames[-1].lineno}: " if frames else ""


class Child:
    """The parts of one worker process."""

    def __init__(self, app: App, start: Start, channel: Channel, board: Board, metrics: Metrics) -> None:
        settings = app.settings
        self._app = app
        self._start = start
        self._channel = channel
        self._board = board
        self._engine: Engine = app.engine
        self._stats = Stats()
        self._metrics = metrics
        self._runners = Runners(start.target, settings.kill_after, start.log_level, start_limit=settings.start_timeout)
        self._finisher = Finisher(self._engine, board, self._told)
        self._executor = Executor(
            app, board, self._finisher.add, self._room, self._runners, self._engine.clock, self._stats,
            concurrency=settings.concurrency, kill_after=settings.kill_after, settle=self._finisher.settle,
        )  # fmt: skip
        joining = app.joining(start.worker, start.queues, lease=settings.lease, info=start.info)
        self._joining = joining
        alone = [name for name in joining.types if app.types[name].mode == "isolated"]
        most = dict.fromkeys(alone, max(1, min(settings.concurrency, os.cpu_count() or 1)))
        self._claimer = Claimer(self._engine, start.worker, joining.queues, board, self._executor, most)
        self._drain = asyncio.Event()
        self._until: int | None = None
        """When handlers are asked to end; a later drain may say so of one that had no end."""
        self._leave_by: int | None = None
        """When it must be gone, whether the store answers or not."""

    def _room(self) -> None:
        self._claimer.make_room()

    def _told(self, batch: Sequence[Outcome], refused: tuple[Refusal, ...]) -> None:
        for refusal in refused:
            log.warning("the outcome of task %s was not taken: %s", refusal.task, refusal.message or refusal.code, extra={"task_id": refusal.task})
        self._room()  # rows of the board are free again: a claimer that waited for nothing else would wait for ever

    async def run(self) -> int:
        if not await self._go():
            return 1
        try:
            await self._app.start()
            await self._engine.join(self._joining)
        # Its hooks are the user's own code.
        except Exception as error:
            log.debug("it does not start", exc_info=True)
            self._channel.say(Message("failed", text=f"{_place(error)}{type(error).__name__}: {error}"[:1_000]))
            await self._channel.flush()
            return 1
        self._channel.say(Message("joined"))
        begun = Begun(self._engine, self._executor)
        watchdog = Watchdog(self._executor)
        watchdog.start()
        async with asyncio.TaskGroup() as tasks:
            loops = [tasks.create_task(loop) for loop in (self._listen(), self._turn(watchdog), self._report(), begun.run())]
            claiming = tasks.create_task(self._claim())
            await self._drain.wait()
            self._claimer.stop()
            claiming.cancel()
            await self._end(claiming)
            for loop in loops:
                loop.cancel()
        return 0

    async def _go(self) -> bool:
        message = await self._channel.hear()
        return message is not None and message.kind == "go"

    # Loops

    async def _claim(self) -> None:
        try:
            await self._claimer.run()
        except* Conflict as unknown:
            log.warning("this worker is no longer registered, a new one takes its place: %s", unknown.exceptions[0])
            self._channel.say(Message("unknown"))

    async def _listen(self) -> None:
        while (message := await self._channel.hear()) is not None:
            match message.kind:
                case "cancel":
                    self._executor.cancel(message.ids)
                case "lost":
                    self._executor.lose(message.tokens)
                case "quiet":
                    self._claimer.pause()
                case "pause":
                    self._claimer.pause()
                    self._executor.release_waiting()
                case "resume":
                    self._claimer.resume()
                case "drain":
                    self._drain_within(message.number)
        os._exit(1)  # the supervisor is gone, and with it the beats

    async def _turn(self, watchdog: Watchdog) -> None:
        """Shows that the loop turns, and hands back what it cannot begin while others might."""
        begun = -1
        while True:
            now = self._engine.clock.monotonic()
            self._board.tick(now)
            watchdog.turned(now)
            self._executor.release_stuck(begun)
            begun = self._executor.begun
            await asyncio.sleep(TICK / SECOND)

    async def _report(self) -> None:
        while True:
            await asyncio.sleep(1)
            self._say_stats()

    def _say_stats(self) -> None:
        if (counted := self._stats.take()) is not None:
            self._channel.say(Message("stats", data=msgspec.Raw(msgspec.json.encode(counted))))
        if (taken := self._metrics.take()) is not None:
            self._channel.say(Message("metrics", data=msgspec.Raw(taken)))

    # The end

    def _drain_within(self, grace: int | None) -> None:
        if grace is not None:
            self._until = self._engine.clock.monotonic() + handlers_time(grace)
            self._leave_by = self._until + LAST_PART - AFTER_US
        self._drain.set()

    async def _end(self, claiming: asyncio.Task[None]) -> None:
        """Release what has not begun; let run what runs, until the grace period is over; then release that too."""
        self._executor.release_waiting()
        if not await self._idle(claiming):
            self._executor.stop()
            self._until = self._engine.clock.monotonic() + int(LAST_WORDS * SECOND)
            if not await self._idle(claiming):
                self._executor.abandon()
        for farewell in (self._finisher.drain, self._leave, self._runners.close, self._app.stop, tracing.flush):
            if not await self._in_time(farewell()):
                log.warning("not everything came to its end in time: what this worker still holds runs elsewhere when its leases are over")
                self._channel.say(Message("away"))
                await self._channel.flush()
                os._exit(0)
        if left := children():
            log.warning("%d processes that handlers started go on without this worker: %s", len(left), ", ".join(map(str, sorted(left)[:10])))
        self._say_stats()
        await self._channel.flush()

    async def _leave(self) -> None:
        with contextlib.suppress(TaskmillError):
            await self._engine.leave(self._start.worker)

    async def _idle(self, claiming: asyncio.Task[None]) -> bool:
        """Whether every handler has ended in time, and the last claim was answered."""
        while self._executor.held or not claiming.done():
            if self._until is not None and self._engine.clock.monotonic() >= self._until:
                return False
            await asyncio.sleep(0.01)
        return True

    async def _in_time(self, farewell: Coroutine[Any, Any, None]) -> bool:
        """Whether it came to its end before this process must be gone; its own error is raised."""
        task = asyncio.ensure_future(farewell)
        while not task.done():
            if self._leave_by is not None and self._engine.clock.monotonic() >= self._leave_by:
                return False
            await asyncio.wait({task}, timeout=0.05)
        await task
        return True


if __name__ == "__main__":
    main()
