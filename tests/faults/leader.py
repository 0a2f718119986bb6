"""A leader as naive as leaders are: between two renewals it believes that it leads, and it finds out only from the store's refusal."""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Callable

import apsw

from taskmill import codec
from taskmill.clock import MILLISECOND
from taskmill.engine import Retention, Term
from taskmill.errors import StaleTerm
from taskmill.task import NewTask
from tests.faults.recorded import Recorded

__all__ = ["EVERY", "MOMENTS", "Leader", "Pause", "prepare_schedule"]

SCHEDULE = "tick"
EVERY = 20 * MILLISECOND
ROLE = "upkeep"
MOMENTS = ("fire", "deliver", "prune", "inside")
"""Where a leader can be told to pause: before one of its writes, or inside the transaction of one."""
KEEP_NOTHING = Retention(completed=0, dead=0, cancelled=0)


async def prepare_schedule(client: Recorded) -> None:
    await client.engine.put("schedule", SCHEDULE, codec.encode({"overlap": "allow"}))


class Pause:
    """Stops this process once, at a moment of its own choice, so that no luck is needed to hit it."""

    def __init__(self, moment: str, say: Callable[..., None]) -> None:
        self.moment = moment
        self.say = say
        self.armed = False
        if moment == "inside":
            apsw.connection_hooks.append(self._watch)

    def _watch(self, connection: apsw.Connection) -> None:
        connection.trace_v2(apsw.SQLITE_TRACE_STMT, self._executes)

    def _executes(self, event: dict[str, object]) -> None:
        if str(event["sql"]).startswith("INSERT INTO taskmill_task"):
            self.at("inside")

    def at(self, moment: str) -> None:
        if self.armed and moment == self.moment:
            self.armed = False
            self.moment = ""
            self.say("pausing")
            os.kill(os.getpid(), signal.SIGSTOP)


class Leader:
    def __init__(self, client: Recorded, holder: str, length: int, pause: Pause) -> None:
        self.client = client
        self.holder = holder
        self.length = length
        self.pause = pause
        self.term: Term | None = None
        self.delivered = ""
        self.rounds = 0

    async def round(self) -> None:
        """Renew, and do what leaders do. One that is told it no longer leads does it all once more: that is the write of a deposed leader."""
        before, self.term = self.term, await self.client.lead(ROLE, self.holder, self.length)
        believed = self.term or before
        if believed is None:
            return
        self.rounds += 1
        self.pause.armed = self.rounds > 3
        if self.term is not None and self.term != before:
            self.pause.say("leading", self.term.number)
        refused = 0
        for write in (self._fire, self._deliver, self._prune):
            try:
                await write(believed)
            except StaleTerm:
                refused += 1
        self.pause.say("refused" if refused else "led", refused)

    async def _fire(self, term: Term) -> None:
        """All times that are due. Real ids come from the fire time alone; these have the leader's name in them, so that a second firing would be seen."""
        (schedule,) = await self.client.engine.items("schedule")
        fired = await self.client.engine.items("fired")
        now = self.client.engine.clock.now()
        state = codec.decode(fired[0].value) if fired else {}
        assert isinstance(state, dict)
        first = int(state.get("next_at") or now // EVERY * EVERY)
        times = list(range(first, now, EVERY))[:20] or [first]
        tasks = [self._task(time) for time in times]
        self.pause.at("fire")
        await self.client.fire(SCHEDULE, schedule.version, tasks, times, times[-1] + EVERY, term)

    def _task(self, time: int) -> NewTask:
        return NewTask(type="plain", payload=codec.encode({"do": "complete", "time": time}), id=str(uuid.uuid5(uuid.NAMESPACE_OID, f"{self.holder} {time}")))

    async def _deliver(self, term: Term) -> None:
        self.pause.at("deliver")
        for entry in await self.client.outbox("ended", self.delivered, 100, term):
            self.delivered = entry.cursor

    async def _prune(self, term: Term) -> None:
        self.pause.at("prune")
        await self.client.prune(50, term, KEEP_NOTHING)
