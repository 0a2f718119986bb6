"""The app of the tour: one type for each kind of thing that can happen to a task. `taskmill worker examples/tour/app.py` would run it too."""

from __future__ import annotations

import asyncio

from taskmill import App, Context, Fail, Retry

app = App()


@app.task
async def welcome(name: str) -> str:
    """Plain, delayed, or submitted twice under one idempotency key."""
    return f"Welcome, {name}!"


@app.task(retry=Retry.fixed("1s", max_retries=3))
def charge(ctx: Context, order: int) -> str:
    """Fails twice, then works."""
    if ctx.attempt < 3:
        raise ConnectionError("the bank does not answer")
    return f"order {order} is paid"


@app.task
def refund(order: int) -> None:
    """Trying again would not help: dead at once."""
    raise Fail(f"order {order} was never paid")


@app.task(rate_limit="2/s")
async def send_sms(number: int) -> str:
    """Two a second over all workers; the others wait in the store."""
    return f"message {number}"


@app.task(timeout="2m")
async def encode_video(ctx: Context, seconds: int) -> str:
    """Long, says how far it is, and stops when it is cancelled."""
    for second in range(seconds):
        await ctx.progress(second / seconds, f"second {second} of {seconds}")
        await asyncio.sleep(1)
    return "encoded"


@app.task(isolated=True)
def count_primes(below: int) -> int:
    """Holds the processor, so it has a process of its own."""
    return sum(all(number % divisor for divisor in range(2, int(number**0.5) + 1)) for number in range(2, below))


@app.task
async def chapter(number: int) -> int:
    await asyncio.sleep(number / 2)
    return number * 1_000


@app.task
async def book(ctx: Context) -> str:
    """Waits for its chapters and gets what they returned."""
    return f"{sum(ctx.results)} words in {len(ctx.results)} chapters"


@app.schedule("@every 5s", overlap="skip")
def heartbeat() -> str:
    """Made by the schedule, every five seconds."""
    return "still here"
