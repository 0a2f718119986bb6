"""What happens when a handler fails: it is tried again, later, or not at all.

python examples/retries.py
"""

from __future__ import annotations

from typing import Any

from running import run

from taskmill import App, Call, Context, Fail, Handle, Retry, RetryAfter, TaskFailed
from taskmill.engine import Target

app = App()


@app.task(retry=Retry.fixed("100ms", max_retries=5))
def flaky(ctx: Context) -> str:
    """Fails twice, then works: what a network does."""
    if ctx.attempt < 3:
        raise ConnectionError("the other side hung up")
    return f"worked in attempt {ctx.attempt}"


@app.task(retry=Retry.fixed("100ms", max_retries=1))
def hopeless() -> None:
    raise ValueError("wrong again")


@app.task
def no_such_user(user_id: int) -> None:
    raise Fail(f"there is no user {user_id}")


@app.task(retry=Retry.exponential(max_retries=5).on(PermissionError, "fail"))
def refused() -> None:
    """Retried for everything but this."""
    raise PermissionError("not yours")


@app.task
def polite(ctx: Context) -> str:
    """The other side says when to come back."""
    if ctx.attempt == 1:
        raise RetryAfter("200ms", "busy")
    return "let in"


@app.task
def patient(ctx: Context) -> str:
    """Not ready yet, and that is no failure."""
    if ctx.attempt == 1:
        ctx.snooze("200ms")
    return "ready"


async def tell(handle: Handle[Any]) -> None:
    try:
        print(f"{handle.type}: {await handle.result(timeout='30s')}")
    except TaskFailed as failed:
        print(f"{handle.type}: {failed.message}")
    for attempt in await app.operations.attempts(handle.id):
        print(f"    attempt {attempt.number}: {attempt.outcome}{f' ({attempt.error.message})' if attempt.error else ''}")


async def main() -> None:
    async with app:
        calls: list[Call[Any]] = [flaky.call(), hopeless.call(), no_such_user.call(7), refused.call(), polite.call(), patient.call()]
        for call in calls:
            await tell(await app.submit(call))

        dead = await no_such_user.submit(8)
        await dead.wait(timeout="30s")
        tally = await app.operations.requeue([Target(dead.id)])
        print("run again by hand:", tally.done, "task;", "it ends as", await dead.wait(timeout="30s"))


if __name__ == "__main__":
    run(__file__, main)
