"""CPU-bound work in processes of its own: it holds up nobody, and can be killed.

python examples/isolated.py
"""

from __future__ import annotations

import asyncio
import os

from running import run

from taskmill import App, Retry, TaskFailed

app = App()


@app.task(isolated=True)
def count_primes(below: int) -> tuple[int, int]:
    found = sum(all(number % divisor for divisor in range(2, int(number**0.5) + 1)) for number in range(2, below))
    return found, os.getpid()


@app.task
async def who() -> int:
    return os.getpid()


@app.task(isolated=True, timeout="500ms", retry=Retry.fixed(max_retries=0))
def endless() -> None:
    """It never looks whether it should stop, so it is killed."""
    while True:
        pass


@app.task(isolated=True, max_crashes=0)
def falls() -> None:
    os._exit(3)


async def main() -> None:
    async with app:
        counting, asking = await count_primes.submit(30_000), await who.submit()
        (found, process), worker = await asyncio.gather(counting.result(timeout="30s"), asking.result(timeout="30s"))
        print(f"{found} primes, counted in a process of its own: {process != worker}")
        for handle in (await endless.submit(), await falls.submit()):
            try:
                await handle.result(timeout="30s")
            except TaskFailed as failed:
                print(f"{handle.type}: {failed.message}")
        print("the worker is the same:", await (await who.submit()).result(timeout="30s") == worker)


if __name__ == "__main__":
    run(__file__, main)
