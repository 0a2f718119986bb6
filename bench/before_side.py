"""One side of before.py: fill a store, claim from it, drain it; the figures go to standard output as JSON."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path

import taskmill
from bench.store import fill, opened

CLAIMS = 300
"""Claims of ten tasks each, before the rest is drained."""


async def _measure(url: str, tasks: int) -> dict[str, float]:
    async with opened(url) as loop:
        used = time.process_time()
        began = time.perf_counter()
        await fill(loop.engine, tasks)
        submitted = time.perf_counter() - began
        began = time.perf_counter()
        held = [await loop.claim(10) for _ in range(CLAIMS)]
        claimed = time.perf_counter() - began
        await loop.finish(tuple(task for claim in held for task in claim))
        drained = await loop.timed_drain(tasks - sum(map(len, held)))
        return {"submit": tasks / submitted, "claim": CLAIMS / claimed, "drain": drained, "own": time.process_time() - used}


def main() -> None:
    url, tasks, source = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    assert Path(taskmill.__file__).is_relative_to(source), f"{taskmill.__file__} is not of {source}"
    print(json.dumps(asyncio.run(_measure(url, tasks))))


if __name__ == "__main__":
    main()
