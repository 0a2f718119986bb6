"""An app of handlers that misbehave, each on the loop, in a thread and in a process of its own, and one that looks whether anything is left of it."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import ctypes
import functools
import locale
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from taskmill import App, Context, Retry

app = App()
once = Retry(max_retries=0)
left = contextvars.ContextVar("left", default="")
kept: list[object] = []


def everywhere(function: Callable[[], object]) -> Callable[[], object]:
    """Declare it as `name.sync`, `name.async` and `name.isolated`."""

    @functools.wraps(function)
    async def on_loop() -> object:
        return function()

    for mode, handler in (("sync", function), ("async", on_loop), ("isolated", function)):
        app.task(name=f"{function.__name__}.{mode}", retry=once, max_crashes=0, timeout="30s", isolated=mode == "isolated")(handler)
    return function


# Raising


class Odd(BaseException):
    """Nothing that `except Exception` catches."""


class Unwritable(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


class Leaving(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


@everywhere
def system_exit() -> NoReturn:
    sys.exit("bye")


@everywhere
def keyboard_interrupt() -> NoReturn:
    raise KeyboardInterrupt


@everywhere
def generator_exit() -> NoReturn:
    raise GeneratorExit


@everywhere
def base_exception() -> NoReturn:
    raise Odd("odd")


@everywhere
def stop_iteration() -> NoReturn:
    raise StopIteration


@everywhere
def stop_async_iteration() -> NoReturn:
    raise StopAsyncIteration


@everywhere
def cancelled_error() -> NoReturn:
    raise asyncio.CancelledError


@everywhere
def unwritable() -> NoReturn:
    raise Unwritable


@everywhere
def leaving() -> NoReturn:
    raise Leaving


@everywhere
def odd_text() -> NoReturn:
    raise ValueError("a\0b\ud800c")


@everywhere
def long_text() -> NoReturn:
    raise ValueError("x" * 10_000_000)


@everywhere
def recursion() -> object:
    return recursion()


@everywhere
def deep() -> object:
    def down(n: int) -> NoReturn:
        if n == 0:
            raise ValueError("at the bottom")
        down(n - 1)

    return down(500)


@everywhere
def many_causes() -> NoReturn:
    error = ValueError("the first")
    for n in range(2_000):
        later = ValueError(f"error {n}")
        later.__cause__ = error
        error = later
    raise error


@everywhere
def group() -> NoReturn:
    raise BaseExceptionGroup("both", [SystemExit(1), ValueError("no")])


# Returning


@everywhere
def unencodable() -> object:
    return object()


@everywhere
def cyclic() -> object:
    found: list[object] = []
    found.append(found)
    return found


@everywhere
def huge() -> object:
    return "x" * 100_000_000


@everywhere
def surrogate() -> object:
    return "\ud800"


# Ending or harming the process


@everywhere
def os_exit() -> NoReturn:
    os._exit(7)


@everywhere
def segfault() -> object:
    return ctypes.string_at(0)


@everywhere
def close_all() -> None:
    os.closerange(0, 4_096)


@everywhere
def close_standard() -> str:
    for fd in range(3):
        os.close(fd)
    return "closed"


@everywhere
def fork_returning() -> str:
    return "parent" if os.fork() else "child"


@everywhere
def fork_raising() -> str:
    if os.fork() == 0:
        raise ValueError("in the copy")
    return "parent"


@everywhere
def fork_living() -> int:
    """The copy lives until it is killed; its number is the result."""
    pid = os.fork()
    if pid == 0:
        signal.pause()
        os._exit(0)
    return pid


@everywhere
def print_much() -> None:
    for _ in range(1_024):
        print("x" * 65_536)


@everywhere
def close_streams() -> None:
    sys.stdout.close()
    sys.stderr.close()
    logging.getLogger("app").warning("nobody reads this")


@everywhere
def leave_thread() -> None:
    threading.Thread(target=threading.Event().wait).start()


@everywhere
def set_variable() -> None:
    left.set("something")


@everywhere
def look_variable() -> str:
    return left.get()


@everywhere
def fake_lines() -> None:
    logging.getLogger("app").warning("one\r\n\x1b[2J fake line", extra={"task_type": "two\n2026-01-01 fake field"})


@everywhere
def fine() -> str:
    return "fine"


# On the loop only


@app.task(retry=once, timeout="30s")
async def fork_awaiting() -> str:
    """The copy must not go on with the loop of its parent, which waits here for its end."""
    copy = os.fork()
    if copy == 0:
        await asyncio.sleep(3_600)
    _, status = await asyncio.to_thread(os.waitpid, copy, 0)
    return f"the copy ended with {os.waitstatus_to_exitcode(status)}"


@app.task(retry=once)
async def cancel_itself() -> str:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    return "cancelled myself"


@app.task(retry=once)
async def cancel_itself_and_wait() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(30)


@app.task(retry=once)
async def leave_task() -> None:
    kept.append(asyncio.get_running_loop().create_task(asyncio.sleep(3_600)))


@app.task(retry=once)
async def leave_failing_task() -> None:
    async def fail() -> None:
        raise ValueError("nobody awaits me")

    kept.append(asyncio.get_running_loop().create_task(fail()))


@app.task(retry=once, timeout="30s")
async def block_loop(release: str) -> str:
    """Until somebody has seen it."""
    wait_for(release)
    return "awake"


def wait_for(path: str) -> None:
    while not Path(path).exists():
        time.sleep(0.05)


def touch(path: str) -> None:
    Path(path).touch()


# Not ending


@app.task(name="swallow.async", retry=once, timeout="300ms")
async def swallow_on_loop() -> None:
    while True:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(3_600)


@app.task(name="swallow.sync", retry=once, timeout="300ms")
def swallow_in_thread() -> None:
    while True:
        time.sleep(0.05)


@app.task(name="swallow.isolated", retry=once, timeout="300ms", isolated=True)
def swallow_alone() -> None:
    while True:
        time.sleep(0.05)


@app.task(name="swallow.spin", retry=once, timeout="300ms")
async def swallow_spinning() -> None:
    while True:
        pass


@app.task(name="swallow.async_isolated", retry=once, timeout="300ms", isolated=True)
async def swallow_on_own_loop() -> None:
    while True:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(3_600)


@app.task(name="slow.async", retry=once, timeout="300ms")
async def slow_on_loop() -> None:
    await asyncio.sleep(3_600)


@app.task(name="slow.sync", retry=once, timeout="300ms")
def slow_in_thread(ctx: Context) -> None:
    while not ctx.cancelled:
        time.sleep(0.01)
    raise TimeoutError(f"asked to end: {ctx.cancel_reason}")


@app.task(name="slow.isolated", retry=once, timeout="300ms", isolated=True)
def slow_alone(ctx: Context) -> None:
    slow_in_thread.function(ctx)


def held(ctx: Context, started: str) -> None:
    touch(started)
    while not ctx.cancelled:
        time.sleep(0.01)
    raise RuntimeError("asked to end")


@app.task(name="held.async", retry=once, timeout="60s")
async def held_on_loop(started: str) -> None:
    touch(started)
    await asyncio.sleep(3_600)


app.task(name="held.sync", retry=once, timeout="60s")(held)
app.task(name="held.isolated", retry=once, timeout="60s", isolated=True)(held)


def deaf(started: str) -> None:
    touch(started)
    while True:
        time.sleep(0.05)


app.task(name="deaf.sync", retry=once, timeout="60s")(deaf)
app.task(name="deaf.isolated", retry=once, timeout="60s", isolated=True)(deaf)


@app.task(name="deaf.async", retry=once, timeout="60s")
async def deaf_on_loop(started: str) -> None:
    touch(started)
    await swallow_on_loop()


@app.task(retry=once, timeout="60s")
def read_pipe(fifo: str) -> str:
    """Ends when the other side of the pipe is closed, and shows by opening it that it runs."""
    with open(fifo) as file:
        return file.read()


# The process it runs in


def look() -> dict[str, Any]:
    return {
        "pid": os.getpid(),
        "cwd": str(Path.cwd()),
        "umask": (mask := os.umask(0o22), os.umask(mask))[0],
        "usr1": str(signal.getsignal(signal.SIGUSR1)),
        "locale": locale.setlocale(locale.LC_ALL),
        "environ": os.environ.get("LEFT_BEHIND"),
        "recursion": sys.getrecursionlimit(),
        "open": [_is_open(fd) for fd in range(3)],
    }


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


app.task(name="look.isolated", isolated=True)(look)


def change(what: str) -> dict[str, Any]:
    match what:
        case "cwd":
            os.chdir("/")
        case "umask":
            os.umask(0o77)
        case "locale":
            locale.setlocale(locale.LC_ALL, "C")
        case "environ":
            os.environ["LEFT_BEHIND"] = "yes"
        case "recursion":
            sys.setrecursionlimit(2_000)
        case "fds":
            os.close(0)
            os.close(1)
    return look()


app.task(name="change.isolated", isolated=True)(change)


@app.task(name="change_signal.isolated", isolated=True)
async def change_signal() -> dict[str, Any]:
    """Only the main thread may do this."""
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    return look()


# Arguments


@app.task(name="wants.sync")
def wants(number: int, *, name: str = "x") -> int:
    return number


@app.task(name="wants.async")
async def wants_on_loop(number: int, *, name: str = "x") -> int:
    return number


app.task(name="wants.isolated", isolated=True)(wants.function)
