"""Workers in another language that are killed, paused, or lose their server: nothing is lost, and every task completes once."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

from taskmill import codec
from taskmill.clock import SECOND
from taskmill.retry import Retry
from taskmill.task import Attempt, NewTask
from taskmill.testing.workers.stage import Scene, stage
from tests.faults.invariants import broken_at
from tests.faults.recorded import Recorded
from tests.faults.remote import history_of
from tests.history import Bounds, Recorder, check, events, load

LEASE = 3 * SECOND
LONG = 15 * SECOND
"""No server is away for as long as this, also on a busy machine, where it takes longer than LEASE to start one."""
SLOTS = 4


class Place:
    """A server with remote workers, and a caller whose submits are recorded."""

    def __init__(self, scene: Scene, client: Recorded, folder: Path, bounds: Bounds) -> None:
        self.scene = scene
        self.client = client
        self.folder = folder
        self.bounds = bounds
        self.tasks: list[str] = []

    async def submit(self, type: str, payload: object, n: int = 1) -> list[str]:
        engine = self.scene.engine
        queue = self.scene.queue
        new = [
            NewTask(type=type, payload=codec.encode(payload), queue=queue, id=engine.new_id(queue), retry=Retry.fixed("10ms"), max_crashes=1_000)
            for _ in range(n)
        ]
        ids = [answer.id for answer in await self.client.submit(new)]
        self.tasks += ids
        return ids

    async def load(self, random: Random, n: int) -> None:
        for _ in range(n):
            await self.submit("kit.slow", {"seconds": random.uniform(0, 0.3)})
            await self.submit("kit.echo", 1)

    async def given(self, n: int) -> None:
        """Until so many leases more were given."""
        proxy = self.scene.proxy
        before = len(proxy.exchanges)
        await self.scene.within(self._given(before, n), f"{n} leases were not given")

    async def _given(self, before: int, n: int) -> None:
        proxy = self.scene.proxy
        while sum(len(one.tasks) for one in proxy.exchanges[before:]) < n:
            await proxy.until(lambda one: bool(one.tasks), len(proxy.exchanges))

    async def verdict(self) -> tuple[list[events.Event], dict[str, tuple[Attempt, ...]]]:
        """Every task has completed, once; what was recorded breaks no promise; the store agrees with itself."""
        await self.scene.ended(*self.tasks, more=60)
        await self.client.read_all(self.tasks)
        history = [*load(self.folder / "history"), *history_of(self.scene.proxy.exchanges, self.scene.queue)]
        history.sort(key=lambda event: event.began)
        assert check(history, self.bounds) == []
        assert broken_at(self.folder / "kit.db") == []
        attempts = {task: await self.scene.attempts(task) for task in self.tasks}
        for task, those in attempts.items():
            assert [each.outcome for each in those].count("completed") == 1, (task, those)
            assert those[-1].outcome == "completed"
        return history, attempts


@asynccontextmanager
async def place_of(folder: Path, command: tuple[str, ...], lease: int = LEASE) -> AsyncIterator[Place]:
    async with stage(command, {}, folder, lease, 60.0, ["faults"]) as found, found.scene("faults") as scene:
        with Recorder(folder / "history") as recorder:
            yield Place(scene, Recorded(scene.engine, recorder), folder, Bounds(lease=lease // 2, max_crashes=1_000))


async def test_killed_in_the_middle_of_tasks(tmp_path: Path, typescript_worker: tuple[str, ...]) -> None:
    random = Random(7)
    async with place_of(tmp_path, typescript_worker) as place:
        survivor = await place.scene.start()
        loading = asyncio.create_task(place.load(random, 120))
        for _ in range(3):
            victim = await place.scene.start()
            await place.given(random.randrange(4, 16))
            victim.signal(signal.SIGKILL)
            await victim.ended()
        await loading
        _, attempts = await place.verdict()
        assert survivor.alive
    outcomes = [each.outcome for those in attempts.values() for each in those]
    assert set(outcomes) <= {"completed", "crashed"}
    assert "crashed" in outcomes


async def test_the_server_is_killed_and_comes_back(tmp_path: Path, typescript_worker: tuple[str, ...]) -> None:
    """Its workers wait for it: they keep what they hold, tell the ends they came to meanwhile, and nothing runs twice."""
    random = Random(11)
    async with place_of(tmp_path, typescript_worker, LONG) as place:
        workers = [await place.scene.start() for _ in range(2)]
        loading = asyncio.create_task(place.load(random, 120))
        server = place.scene.stage.server
        for _ in range(3):
            await place.given(random.randrange(4, 16))
            await server.kill()
            await server.start()
        await loading
        _, attempts = await place.verdict()
        assert all(worker.alive for worker in workers)
    assert {len(those) for those in attempts.values()} == {1}


async def test_paused_past_the_lease(tmp_path: Path, typescript_worker: tuple[str, ...]) -> None:
    """What it tells late is refused; its tasks ran elsewhere once more, and completed there. All its slots are taken, so no claim of its own says it first."""
    async with place_of(tmp_path, typescript_worker) as place:
        paused = await place.scene.start()
        first = place.scene.worker
        tasks = await place.submit("kit.slow", {"seconds": 2.5}, SLOTS)
        begun = place.scene.proxy.until(lambda one: one.verb == "beat" and len(one.body["leases"]) == SLOTS)
        await place.scene.within(begun, "it does not beat for what it runs")
        paused.signal(signal.SIGSTOP)
        await place.scene.start()
        second = place.scene.worker
        await place.scene.ended(*tasks, more=60)
        paused.signal(signal.SIGCONT)
        late = place.scene.proxy.until(lambda one: one.verb == "finish" and one.worker == first and one.status is not None)
        answer = await place.scene.within(late, "it does not tell its end late")
        assert (answer.status, answer.answer["code"]) == (409, "stale_lease")
        await place.verdict()
        attempts = {task: await place.scene.attempts(task) for task in tasks}
    for task in tasks:
        assert [(each.outcome, each.worker) for each in attempts[task]] == [("crashed", first), ("completed", second)]
