"""The program of a runner: a process that runs one attempt at a time for a child, until the child closes the channel."""

from __future__ import annotations

import asyncio
import locale
import logging
import os
import signal
import socket
import sys
from contextvars import copy_context
from pathlib import Path

import msgspec

from taskmill import tracing
from taskmill.app import App
from taskmill.engine import Outcome
from taskmill.loading import load
from taskmill.worker import logs, output
from taskmill.worker.attempt import LEASE_LOST, Running, attempt_async, attempt_sync
from taskmill.worker.channel import Channel, Message
from taskmill.worker.isolation import Job
from taskmill.worker.process import adopt_orphans, children, end_children, end_copies, under

__all__ = ["main"]

log = logging.getLogger("taskmill")


def main() -> None:
    end = socket.socket(fileno=int(sys.argv[1]))
    under(int(sys.argv[2]), end)
    adopt_orphans()
    asyncio.run(_serve(end))
    os._exit(0)  # threads of handlers that never return must not keep it


async def _serve(end: socket.socket) -> None:
    end_copies()
    channel = await Channel.open(end)
    first = await channel.hear()
    if first is None:
        return
    app = await _app(first, channel)
    if app is None:
        return
    running: Running | None = None
    while (message := await channel.hear()) is not None:
        if message.kind == "attempt":
            running = _running(app, msgspec.json.decode(message.data, type=Job))
            running.task = asyncio.create_task(_attempt(app, running, channel))
        elif message.kind == "ask" and running is not None and running.task is not None:
            running.reason, running.cancelled = message.text, True
            running.lease_lost = message.text == LEASE_LOST
            running.task.cancel()
    os._exit(0)


async def _app(first: Message, channel: Channel) -> App | None:
    """The app, ready to run; None when it is not to be had in this process, which the other side is told."""
    try:
        app = load(first.text)
        logs.configure(msgspec.json.decode(first.data, type=str | None) or app.settings.log_level, app.settings.log_format)
        output.install()
        await app.start()
    # Its hooks are the user's own code.
    except BaseException as error:
        channel.say(Message("failed", text=f"the app does not start in a new process: {type(error).__name__}: {error}"[:1_000]))
        await channel.flush()
        return None
    channel.say(Message("ready"))
    return app


def _running(app: App, job: Job) -> Running:
    running = Running(job.claimed, app.types[job.claimed.type], job.received, asyncio.get_running_loop())
    running.started = job.started
    running.deadline = job.deadline
    return running


async def _attempt(app: App, running: Running, channel: Channel) -> None:
    before, family = _traces(), children()
    if asyncio.iscoroutinefunction(running.declared.function):
        outcome = await attempt_async(app, running)
    else:
        outcome = await _in_thread(app, running)
    left = await asyncio.to_thread(end_children, family)
    changed = "" if _traces() == before and not left else "changed"
    if left:
        log.warning("task %s left %d processes behind, which were killed", running.claimed.id, left, extra={"task_id": running.claimed.id})
    channel.say(Message("outcome", text=changed, data=msgspec.Raw(msgspec.json.encode(outcome))))
    await tracing.flush()  # it may be killed at any time from now on


async def _in_thread(app: App, running: Running) -> Outcome:
    """Being asked to end only sets `ctx.cancelled` here; whoever does not look at it is killed."""
    work = asyncio.get_running_loop().run_in_executor(None, copy_context().run, attempt_sync, app, running)
    while True:
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            if work.done():
                return work.result()


def _traces() -> tuple[object, ...]:
    """What a handler can change about its process so that the next one notices."""
    mask = os.umask(0o22)
    os.umask(mask)
    handlers = [
        signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM, signal.SIGCHLD, signal.SIGUSR1, signal.SIGUSR2)
    ]
    return mask, _cwd(), locale.setlocale(locale.LC_ALL), dict(os.environ), handlers, _streams(), sys.getrecursionlimit()


def _cwd() -> Path | None:
    try:
        return Path.cwd()
    except OSError:
        return None


def _streams() -> list[object]:
    """The standard files and what Python makes of them."""
    closed = [getattr(stream, "closed", True) for stream in (sys.stdin, sys.stdout, sys.stderr)]
    return [*(_open(fd) for fd in range(3)), *closed]


def _open(fd: int) -> tuple[int, int] | None:
    try:
        found = os.fstat(fd)
    except OSError:
        return None
    return found.st_dev, found.st_ino


if __name__ == "__main__":
    main()
