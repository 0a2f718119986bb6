"""A disk that fills up under the engine: what is refused was not written, what was acknowledged stays, and work goes on when there is space again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from random import Random

import apsw
import pytest

from taskmill.clock import SECOND
from taskmill.errors import StoreError
from tests.faults.full import FullVFS
from tests.faults.invariants import broken_at
from tests.faults.judging import judge
from tests.faults.recorded import Recorded
from tests.faults.workload import Worker, batch, client_of, prepare
from tests.history import Bounds, events

LEASE = 4 * SECOND
BOUNDS = Bounds(lease=LEASE // 2, max_crashes=1_000)


@pytest.fixture
def disk() -> Iterator[FullVFS]:
    with FullVFS("full") as vfs:
        yield vfs


async def refusal(ask: Callable[[], Awaitable[object]]) -> str | None:
    try:
        await ask()
    except StoreError as error:
        return error.code
    return None


async def fill_up(client: Recorded, worker: Worker, disk: FullVFS, left: int, random: Random) -> set[str]:
    """Work with so little space until it is gone, and some more; the codes of all refusals."""
    codes: list[str | None] = []
    disk.fill(left)
    while codes.count("disk_full") < 6:
        codes.append(await refusal(lambda: client.submit(batch(random))))
        codes.append(await refusal(worker.turn))
        assert len(codes) < 400, "the disk never got full"
    disk.free()
    return {code for code in codes if code is not None}


@pytest.mark.parametrize("seed", range(4))
async def test_the_disk_fills_up(tmp_path: Path, disk: FullVFS, seed: int) -> None:
    store, history = tmp_path / "store.db", tmp_path / "history"
    random = Random(seed)
    codes = set()
    async with client_of(store, history, lease=LEASE, vfs=disk.name) as client:
        await prepare(client)
        worker = Worker(client, LEASE)
        await worker.join()
        for _ in range(8):
            codes |= await fill_up(client, worker, disk, random.randrange(60_000), random)
            await client.submit(batch(random))
            await worker.turn(slots=20)
            _checkpoint(store, disk)
        await worker.join()
        await worker.drain()
        await client.leave(worker.name)
    recorded, reads = await judge(store, history, BOUNDS)
    assert codes == {"disk_full"}
    assert disk.refused >= 8
    answers: dict[str, set[str]] = {}
    for event in recorded:
        if isinstance(event, events.Submit):
            answers.setdefault(event.task, set()).add(event.answer)
    refused = {task for task, given in answers.items() if given == {"error"}}
    assert len(refused) >= 8
    assert {reads[task].state for task in refused} == {"missing"}, "it was refused and is there"


def _checkpoint(store: Path, disk: FullVFS) -> None:
    """The log goes into the file, so that both have grown and shrunk when the next fill comes."""
    connection = apsw.Connection(str(store), vfs=disk.name)
    connection.set_busy_timeout(30_000)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    connection.close()


async def test_a_checkpoint_on_a_full_disk(tmp_path: Path, disk: FullVFS) -> None:
    store, history = tmp_path / "store.db", tmp_path / "history"
    async with client_of(store, history, lease=LEASE, vfs=disk.name) as client:
        await prepare(client)
        for n in range(30):
            await client.submit(batch(Random(n)))
        disk.fill()
        with pytest.raises(apsw.FullError):
            _checkpoint(store, disk)
        assert await refusal(lambda: client.submit(batch(Random(100)))) == "disk_full"
        disk.free()
        _checkpoint(store, disk)
        worker = Worker(client, LEASE)
        await worker.join()
        await worker.drain()
        await client.leave(worker.name)
    await judge(store, history, BOUNDS)


async def test_a_term_that_could_not_be_written(tmp_path: Path) -> None:
    """The seat was taken in the live file, then the commit failed: whoever leads next must have a term that the store knows."""
    with FullVFS("full-log", only=("store.db-wal",)) as disk:
        async with client_of(tmp_path / "store.db", tmp_path / "history", vfs=disk.name) as client:
            await prepare(client)
            disk.fill()
            assert await refusal(lambda: client.lead("upkeep", "first", 4 * SECOND)) == "disk_full"
            disk.free()
            term = await client.lead("upkeep", "first", 4 * SECOND)
            assert term is not None
            await client.outbox("ended", "", 10, term)
    assert broken_at(tmp_path / "store.db") == []
