"""What it costs to restore whole records into PostgreSQL, and to read them: processor time of the client and of the server, a record.

python -m bench.restore [--records 10000]
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from pathlib import Path

from bench.postgres_server import Server, started
from taskmill.engine import Record
from taskmill.engines import create
from taskmill.task import Attempt, State, Task, new_id

__all__ = ["costs"]

BATCH = 1_000
THEN = 1_700_000_000_000_000


def _record(number: int) -> Record:
    """Every other has ended, every fifth has a key."""
    key = f"key-{number}" if number % 5 == 0 else None
    task = Task(
        id=new_id(), type="work", queue="default", payload=b'{"number":%d}' % number, priority=1, state=State.PENDING, version=3, run_at=THEN + number,
        created_at=THEN + number, updated_at=THEN + number, idempotency_key=key,
    )  # fmt: skip
    if number % 2 == 0:
        return Record(task=task)
    attempt = Attempt(number=1, worker="w", token=number, started_at=THEN, ended_at=THEN + 1_000, outcome="completed", error=None)
    ended = {"state": State.COMPLETED, "executions": 1, "finished_at": THEN + 1_000, "token": number, "worker": "w", "started_at": THEN, "result": b"1"}
    return Record(task=Task(**{name: getattr(task, name) for name in task.__struct_fields__} | ended), attempts=(attempt,))


async def costs(server: Server, number: int) -> dict[str, float]:
    """Microseconds a record of each."""
    engine = create(server.url())
    await engine.migrate()
    await engine.open()
    records = [_record(each) for each in range(number)]
    found = {}
    try:
        for name in ("restore", "read"):
            own, theirs = time.process_time(), server.cpu()
            for first in range(0, number, BATCH):
                batch = records[first : first + BATCH]
                if name == "restore":
                    assert all(await engine.restore(batch))
                else:
                    assert None not in await engine.records([record.task.id for record in batch])
            found[f"{name}, client"] = (time.process_time() - own) / number * 1e6
            found[f"{name}, server"] = (server.cpu() - theirs) / number * 1e6
    finally:
        await engine.close()
    return found


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0] if __doc__ else "")
    parser.add_argument("--records", type=int, default=10_000)
    arguments = parser.parse_args()
    with started(Path(tempfile.gettempdir())) as server:
        for name, micros in asyncio.run(costs(server, arguments.records)).items():
            print(f"{name}: {micros:.0f} µs a record")


if __name__ == "__main__":
    _main()
