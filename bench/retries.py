"""How late retries begin on a worker that has nothing else to do: tasks that fail at once and are to be tried again after 100 ms.

    python -m bench.retries [URL] [--tasks 80] [--retries 5]

The store's own times are compared: when an attempt could have been claimed, and when it was. Without a URL a PostgreSQL server is started for it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import tempfile
from pathlib import Path

from bench.postgres_server import started
from bench.report import percentile
from taskmill.clock import MILLISECOND, SECOND
from taskmill.engine import Claimed, Ending, Engine, Joining, Outcome, Room
from taskmill.engines import create
from taskmill.task import NewTask, TypeSettings

__all__ = ["lateness"]

QUEUE, TYPE, WORKER = "default", "retried", "bench"
AFTER = 100 * MILLISECOND
POLL = 0.9
SLOTS = 10


async def lateness(url: str, tasks: int, retries: int) -> list[int]:
    """Microseconds of each attempt after the first."""
    engine = create(url)
    await engine.migrate()
    await engine.open()
    try:
        await engine.join(Joining(worker=WORKER, queues=(QUEUE,), types={TYPE: TypeSettings(queue=QUEUE)}))
        submitting = asyncio.create_task(_submit(engine, tasks))
        try:
            return await _work(engine, tasks * retries, retries)
        finally:
            await submitting
    finally:
        await engine.close()


async def _submit(engine: Engine, tasks: int) -> None:
    for number in range(tasks):
        await engine.submit([NewTask(type=TYPE, payload=str(number).encode())])
        await asyncio.sleep(random.uniform(0, 0.05))


async def _work(engine: Engine, wanted: int, retries: int) -> list[int]:
    late: list[int] = []
    hinted = asyncio.Event()
    listening = asyncio.create_task(_listen(engine, hinted))
    ending: set[asyncio.Task[None]] = set()
    request = 0
    try:
        while len(late) < wanted:
            hinted.clear()
            request += 1
            claim = await engine.claim(WORKER, request, [QUEUE], Room(SLOTS))
            late += [task.claimed_at - task.ready_at for task in claim.tasks if task.attempt > 1]
            ending |= {asyncio.create_task(_end(engine, task, retries)) for task in claim.tasks}
            ending = {one for one in ending if not one.done()}
            if not claim.tasks:
                await _sleep(engine, hinted, claim.next_at)
        await asyncio.gather(*ending)
    finally:
        listening.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await listening
    return late


async def _end(engine: Engine, task: Claimed, retries: int) -> None:
    await asyncio.sleep(random.uniform(0, 0.01))
    ending = Ending.RETRY if task.attempt <= retries else Ending.COMPLETED
    await engine.finish([Outcome(task=task.id, worker=WORKER, token=task.token, ending=ending, after=AFTER, started_after=0)])


async def _sleep(engine: Engine, hinted: asyncio.Event, next_at: int | None) -> None:
    """As a worker does it."""
    wait = POLL if next_at is None else min(POLL, max(0, next_at - engine.clock.now()) / SECOND)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(wait):
            await hinted.wait()


async def _listen(engine: Engine, hinted: asyncio.Event) -> None:
    async with contextlib.aclosing(await engine.wakeups()) as hints:
        async for _ in hints:
            hinted.set()


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0] if __doc__ else "")
    parser.add_argument("url", nargs="?")
    parser.add_argument("--tasks", type=int, default=80)
    parser.add_argument("--retries", type=int, default=5)
    arguments = parser.parse_args()
    with contextlib.ExitStack() as stack:
        url = arguments.url or stack.enter_context(started(Path(tempfile.gettempdir()))).url()
        late = [each / MILLISECOND for each in asyncio.run(lateness(url, arguments.tasks, arguments.retries))]
    print(f"{len(late)} retries: late by p50 {percentile(late, 0.5):.1f} ms, p99 {percentile(late, 0.99):.1f} ms, worst {max(late):.1f} ms")


if __name__ == "__main__":
    _main()
