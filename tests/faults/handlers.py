"""The app that the workers of fault tests run: handlers that say what they do, and some that do what handlers should not."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from taskmill import Retry
from taskmill.context import Context
from tests.faults import effects, stepped
from tests.faults.observed import ObservedApp, folder

__all__ = ["app"]

stepped.install()
app = ObservedApp(name="faults")
OFTEN = 1_000


@app.on_start
def began() -> None:
    effects.note(folder() / "effects", "process")


@contextmanager
def noted(ctx: Context) -> Iterator[None]:
    """A handler that is cut off, cancelled included, has no end."""
    effects.note(folder() / "effects", "begin", task=ctx.id, attempt=ctx.attempt, token=ctx.token)
    yield
    effects.note(folder() / "effects", "end", task=ctx.id, attempt=ctx.attempt, token=ctx.token)


def pass_through(gate: str) -> None:
    with Path(gate).open("rb", buffering=0) as file:
        file.read(1)


@app.task(max_crashes=OFTEN)
async def work(ctx: Context, ms: int) -> int:
    with noted(ctx):
        await asyncio.sleep(ms / 1_000)
        return ms


@app.task(max_crashes=OFTEN)
def grind(ctx: Context, ms: int) -> int:
    with noted(ctx):
        time.sleep(ms / 1_000)
        return ms


@app.task(max_crashes=OFTEN, isolated=True)
def alone(ctx: Context, ms: int) -> int:
    with noted(ctx):
        time.sleep(ms / 1_000)
        return ms


@app.task(max_crashes=OFTEN)
def hold(ctx: Context, gate: str) -> None:
    """The first attempt waits at a gate; later ones go straight through."""
    with noted(ctx):
        if ctx.attempt == 1:
            pass_through(gate)


@app.task(max_crashes=OFTEN)
async def hold_async(ctx: Context, gate: str) -> None:
    with noted(ctx):
        if ctx.attempt == 1:
            await asyncio.to_thread(pass_through, gate)


@app.task(max_crashes=OFTEN, isolated=True)
def hold_alone(ctx: Context, gate: str) -> None:
    with noted(ctx):
        if ctx.attempt == 1:
            pass_through(gate)


@app.task(max_crashes=OFTEN)
async def block(ctx: Context, gate: str) -> None:
    """Keeps the loop of its process to itself."""
    with noted(ctx):
        if ctx.attempt == 1:
            pass_through(gate)


@app.task(max_crashes=OFTEN)
async def freeze(ctx: Context) -> None:
    """The first attempt stops its whole process until somebody continues it; not with the store's lock in its hand, for which everybody would wait."""
    with noted(ctx):
        if ctx.attempt == 1:
            await app.observed.quiet()
            os.kill(os.getpid(), signal.SIGSTOP)


@app.task(max_crashes=OFTEN)
async def meet(ctx: Context, gate: str) -> None:
    """The first attempt stays until its process ends; a second one says how long it lasts, so that many of them would be seen side by side."""
    with noted(ctx):
        if ctx.attempt == 1:
            await asyncio.to_thread(pass_through, gate)
        await asyncio.sleep(0.01)


@app.task(timeout="200ms", retry=Retry.fixed(max_retries=1, delay="10ms"))
def deaf(ctx: Context, gate: str) -> None:
    """The first attempt does not listen when its time is over."""
    with noted(ctx):
        if ctx.attempt == 1:
            pass_through(gate)


@app.task(max_crashes=2)
async def fatal(ctx: Context, gate: str | None = None) -> None:
    """Takes its process down, every time; the first time at a gate, where there is one."""
    with noted(ctx):
        if gate and ctx.attempt == 1:
            await asyncio.to_thread(pass_through, gate)
        os.kill(os.getpid(), signal.SIGKILL)
        await asyncio.Event().wait()
