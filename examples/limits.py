"""How often and how many at once: limits hold over all workers of a store.

python examples/limits.py
"""

from __future__ import annotations

import asyncio
import time

from running import run

from taskmill import App, State

app = App()
app.limit("per-user", cap=1)


@app.task(rate_limit="3/s")
def send_sms(number: int) -> float:
    return time.time()


@app.task(concurrency=2)
async def convert(number: int) -> tuple[float, float]:
    began = time.time()
    await asyncio.sleep(0.2)
    return began, time.time()


@app.task(limits="per-user:{user}")
async def sync_mailbox(user: str, folder: str) -> tuple[str, float, float]:
    """One at a time for each user, many users at once."""
    began = time.time()
    await asyncio.sleep(0.2)
    return user, began, time.time()


@app.task(rate_limit="1/m", on_limit="reject")
def newsletter() -> str:
    return "sent"


def most_at_once(spans: list[tuple[float, float]]) -> int:
    return max(sum(other[0] <= began < other[1] for other in spans) for began, _ in spans)


async def main() -> None:
    async with app:
        handles = await app.submit_many(send_sms.call(number) for number in range(7))
        starts = sorted([await handle.result(timeout="30s") for handle in handles])
        print(f"7 messages at 3/s took more than 2 s: {starts[-1] - starts[0] >= 1.9}")

        spans = [await handle.result(timeout="30s") for handle in await app.submit_many(convert.call(number) for number in range(6))]
        print(f"6 conversions, at most at once: {most_at_once(spans)}")

        calls = [sync_mailbox.call(user, folder) for user in ("ada", "ben") for folder in ("in", "sent")]
        found = [await handle.result(timeout="30s") for handle in await app.submit_many(calls)]
        for user in ("ada", "ben"):
            print(f"mailboxes of {user}, at most at once: {most_at_once([(began, ended) for name, began, ended in found if name == user])}")

        first, second = await newsletter.submit(), None
        await first.result(timeout="30s")
        try:
            second = await newsletter.submit()
        except Exception as error:
            print(f"a second newsletter: {getattr(error, 'code', error)}")
        assert second is None or await second.status() is State.DEAD


if __name__ == "__main__":
    run(__file__, main)
