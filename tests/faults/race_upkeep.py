"""Those who look after a race: operators who change their minds, and whoever asks a rate."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random

import msgspec

from taskmill.clock import MILLISECOND
from taskmill.engine import Target
from taskmill.errors import Conflict, Expired, NotFound
from taskmill.task import TERMINAL, Task, TypeSettings
from tests.faults.race import LIMITS, Race
from tests.faults.race_model import Limit
from tests.faults.recorded import Recorded
from tests.history import events

__all__ = ["ASKED", "Asker", "Operator"]

ASKED = Limit(rate=10, window=300 * MILLISECOND)
OTHERS = {
    "three": (LIMITS["three"], Limit(cap=2), Limit(cap=4)),
    "pace": (LIMITS["pace"], Limit(rate=15, window=LIMITS["pace"].window), Limit(rate=30, window=LIMITS["pace"].window)),
    "each": (LIMITS["each"], Limit(cap=1, rate=30, window=LIMITS["each"].window)),
}


class Operator:
    """Cancels, requeues, deletes, signals, pauses, and changes limits and types."""

    def __init__(self, race: Race, client: Recorded) -> None:
        self.race = race
        self.client = client
        self.chance = Random(race.seed)
        self.paused = False
        self.moved = False
        self.signals = 0
        self.coming: list[Callable[[], Awaitable[None]]] = []

    async def act(self) -> None:
        """Each in its turn, in an order of chance."""
        if not self.coming:
            often = [self.cancel, self.requeue, self.signal]
            self.coming = [*often, *often, self.delete, self.limit, self.pause, self.type]
            self.chance.shuffle(self.coming)
        await self.coming.pop()()

    async def end(self) -> None:
        if self.paused:
            await self.pause()

    async def _some(self) -> list[Task]:
        ids = [self.chance.choice(self.race.ids[-300:]) for _ in range(5)] if self.race.ids else []
        return [task for task in await self.client.engine.get(ids) if isinstance(task, Task)]

    async def cancel(self) -> None:
        for task in [task for task in await self._some() if task.state not in TERMINAL][:1]:
            with self._operating("cancel", task) as (call,):
                [changed] = (await self.client.engine.cancel([Target(task.id, task.version)])).tasks
                call.answer("applied" if changed.code is None else "refused")

    async def requeue(self) -> None:
        for task in [task for task in await self._some() if task.state in TERMINAL][:1]:
            self.race.requeued.add(task.id)
            with self._operating("requeue", task) as (call,):
                [changed] = (await self.client.engine.requeue([Target(task.id, task.version)])).tasks
                call.answer("applied" if changed.code is None else "refused")

    async def delete(self) -> None:
        for task in [task for task in await self._some() if task.state in TERMINAL][:1]:
            with self._operating("delete", task) as (call,):
                [changed] = (await self.client.engine.delete([Target(task.id, task.version)])).tasks
                call.answer("applied" if changed.code is None else "refused")

    def _operating(self, verb: str, task: Task):  # type: ignore[no-untyped-def]
        return self.client.recorder.calling(events.Operate(verb=verb, task=task.id, version=task.version))  # type: ignore[arg-type]

    async def signal(self) -> None:
        for task in await self._some():
            self.signals += 1
            try:
                await self.client.engine.signal(task.id, "go", b"1", f"signal-{self.signals}")
            except (Conflict, NotFound, Expired):
                continue

    async def limit(self) -> None:
        name = self.chance.choice(list(OTHERS))
        await self.race.put(self.client, name, self.chance.choice([other for other in OTHERS[name] if other != self.race.puts[name][-1]]))

    async def pause(self) -> None:
        if self.paused:
            await self.client.engine.drop("pause", "type:other")
        else:
            await self.client.engine.put("pause", "type:other", b"{}")
        self.paused = not self.paused

    async def type(self) -> None:
        """Tasks of this type move into lanes, and new ones go there, or no longer do."""
        self.moved = not self.moved
        await self.client.engine.put("type", "moved", msgspec.json.encode(TypeSettings(limits=("tight",) if self.moved else (), max_crashes=1_000)))
        await self.client.engine.counts()


class Asker:
    """Asks a rate directly, each question twice."""

    def __init__(self, client: Recorded, number: int) -> None:
        self.client = client
        self.number = number
        self.asked = 0
        self.granted: list[tuple[int, int]] = []
        """Between which moments each was given."""

    async def ask(self) -> None:
        self.asked += 1
        id, began = f"{self.number} {self.asked}", self.client.recorder.now()
        first = await self.client.engine.take("asked", 1, id)
        if first.granted:
            self.granted.append((began, self.client.recorder.now()))
        assert (await self.client.engine.take("asked", 1, id)).granted is first.granted
