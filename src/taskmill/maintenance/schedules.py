"""Schedules: at each fire time one task, made by whoever leads.

What is stored of a schedule's past is its next fire time, of which cron entry that is, and its last task; `fire` makes the tasks and
moves the next time in one step, under the schedule's version and the leader's term. From that the rest follows:

* A schedule that is new, was changed, or was paused goes on from now: its next time is computed and stored, nothing is made up for.
* While it is paused it has no next time, so that whoever resumes it finds nothing missed. (Paused and resumed while no process did
  maintenance, it was never seen paused: then its missed times are a misfire.)
* The clock jumps ahead, or nobody was there: the times in between are missed, and the schedule's `misfire` says which are made.
* The clock is set back: the next time stays where it is. The times in between were made before, so the schedule rightly rests until
  the clock has come there again; a time that is fired again for another reason meets its own task, by its id.

The loop sleeps until the next fire time. Settings are read once a second, so what an operator puts is obeyed within a second; if it was
changed in between, the version makes the store refuse the firing and everything is read again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

import msgspec

from taskmill.clock import MILLISECOND, SECOND
from taskmill.cron import due
from taskmill.engine import Engine, Fired, Item, Status, Term
from taskmill.errors import InvalidInput, NotFound, StaleTerm, StaleVersion, StoreError, TaskmillError
from taskmill.maintenance.leader import Leader
from taskmill.maintenance.loop import Loop, Outage, tick
from taskmill.schedule import Schedule, cron_of, tasks_for
from taskmill.task import check_name

__all__ = ["Firing", "Planned", "Schedules", "firing"]

logger = logging.getLogger("taskmill")

READ_EVERY = 900 * MILLISECOND
"""A little less than the second in which the loop looks again, so that it reads each time."""
SHORTEST_SLEEP = 5 * MILLISECOND
"""Fire times closer together than this are made together."""
TOGETHER = 100
"""Schedules fired at once, so that they share a commit; between two such groups the term is renewed."""
TRIES = 3


class State(msgspec.Struct):
    """What `fire` has stored of a schedule."""

    next_at: int | None = None
    cron: object = None


class Planned(msgspec.Struct):
    """A schedule as it stands in the store. `next_at` is None where it has to be computed from now."""

    name: str
    version: int
    schedule: Schedule
    paused: bool
    next_at: int | None
    stored: int | None
    """The next time in the store, also one that no longer counts."""


class Firing(msgspec.Struct):
    """What a schedule is due to do: make the tasks of these times (perhaps none), and wait for the next."""

    planned: Planned
    times: list[int]
    next_at: int | None


def firing(planned: Planned, now: int) -> Firing | None:
    """What is to be done about a schedule at this time; None: nothing."""
    if planned.paused:
        return None if planned.stored is None else Firing(planned, [], None)
    if planned.next_at is None:
        following = next(planned.schedule.cron.times(now), None)
        return None if following is None and planned.stored is None else Firing(planned, [], following)
    if now < planned.next_at:
        return None
    return Firing(planned, *due(planned.schedule.cron, planned.next_at, now, planned.schedule.misfire))


class Schedules:
    """The leader's loop over all schedules."""

    def __init__(self, engine: Engine, holder: str, *, beat: int = SECOND, outage: Outage | None = None, read_every: int = READ_EVERY) -> None:
        self._engine = engine
        self._beat = beat
        self._read_every = read_every
        self._planned: list[Planned] = []
        self._decoded: dict[str, tuple[bytes, Schedule | None]] = {}
        self._told: dict[str, int] = {}
        self._read_under: Term | None = None
        self._read_at = 0
        self._needed = False
        self.leader = Leader(engine, "schedules", holder, beat=beat)
        self._loop = Loop("schedules", self._turn, outage or Outage(engine.clock))

    async def run(self) -> None:
        try:
            await self._loop.run()
        finally:
            await self.leader.resign()

    async def once(self) -> int:
        """Fire what is due by the present clock, whatever was read before; how many tasks were made."""
        self.forget()
        return await self.fire_due()

    def forget(self) -> None:
        """What was read may have changed."""
        self._read_under = None

    def due_at(self) -> int | None:
        """The earliest time at which one of those fires that were read last."""
        return min((planned.next_at for planned in self._planned if planned.next_at is not None), default=None)

    async def next_at(self) -> int | None:
        """The earliest time at which a schedule fires, whoever leads; one that nobody has seen yet is counted from now."""
        now = self._engine.clock.now()
        times = [planned.next_at or next(planned.schedule.cron.times(now), None) for planned in await self._read() if not planned.paused]
        return min((time for time in times if time is not None), default=None)

    async def _turn(self) -> int:
        await self.fire_due()
        clock = self._engine.clock
        wait = tick(clock, self._beat)
        if self.leader.term is not None:
            due_at = self.due_at()
            wait = wait if due_at is None else min(wait, due_at - clock.now())
        return max(wait, SHORTEST_SLEEP)

    async def fire_due(self) -> int:
        """Fire what is due; how many tasks were made. Tries again at once where a schedule was changed under its hands."""
        made = 0
        for _ in range(TRIES):
            term = await self._lead()
            if term is None:
                return made
            await self._refresh(term)
            now = self._engine.clock.now()
            answers = await self._fire_all([found for planned in self._planned if (found := self._firing(planned, now)) is not None], term)
            made += sum(answer for answer in answers if answer is not None)
            if None not in answers:
                return made
            self._read_under = None
        return made

    async def _lead(self) -> Term | None:
        """Where there never was a schedule, nobody leads: looking for one costs a third of it."""
        if not self._needed:
            self._needed = bool(await self._engine.items("schedule"))
        return await self.leader.lead() if self._needed else None

    # Reading

    async def _refresh(self, term: Term) -> None:
        """Under one term nobody else fires, so what was read a moment ago, and fired since by us, is still so."""
        now = self._engine.clock.monotonic()
        if term != self._read_under or not 0 <= now - self._read_at < self._read_every:
            self._planned = await self._read()
            self._read_under, self._read_at = term, now

    async def _read(self) -> list[Planned]:
        items = await self._engine.items("schedule")
        for gone in self._decoded.keys() - {item.name for item in items}:
            del self._decoded[gone]
            self._told.pop(gone, None)
        if not items:
            return []
        fired = {item.name: item.value for item in await self._engine.items("fired")}
        paused = {item.name for item in await self._engine.items("pause")}
        return [planned for item in items if (planned := self._plan(item, fired.get(item.name), f"schedule:{item.name}" in paused)) is not None]

    def _plan(self, item: Item, fired: bytes | None, paused: bool) -> Planned | None:
        schedule = self._decode(item)
        if schedule is None:
            return None
        state = State() if fired is None else msgspec.json.decode(fired, type=State)
        next_at = None if paused or _changed(schedule, state) else state.next_at
        return Planned(item.name, item.version, schedule, paused, next_at, state.next_at)

    def _decode(self, item: Item) -> Schedule | None:
        """Decoded once for each value; one that cannot be used is told of, and holds up no other."""
        known = self._decoded.get(item.name)
        if known is not None and known[0] == item.value:
            return known[1]
        schedule = None
        try:
            check_name(item.name, "schedule")
            schedule = Schedule.decode(item.value)
        except InvalidInput as error:
            logger.warning("schedule %s cannot be used: %s", item.name, error)
        self._decoded[item.name] = (item.value, schedule)
        return schedule

    # Firing

    def _firing(self, planned: Planned, now: int) -> Firing | None:
        try:
            return firing(planned, now)
        except Exception as error:  # one schedule that cannot be reckoned with must not stop the others
            self._tell(planned, error)
            planned.next_at = None
            return None

    async def _fire_all(self, firings: list[Firing], term: Term) -> list[int | None]:
        """How many tasks each made; None where things must be read again. What fails for one stops no other."""
        answers: list[int | None] = []
        for start in range(0, len(firings), TOGETHER):
            if await self.leader.lead() != term:
                return [*answers, None]
            group = firings[start : start + TOGETHER]
            results = await asyncio.gather(*(self._fire(one, term) for one in group), return_exceptions=True)
            failures = [result for result in results if isinstance(result, BaseException)]
            if any(isinstance(failure, StaleTerm) for failure in failures):
                self.leader.deposed()
                break
            _raise_first(failures)
            answers += [result for result in results if not isinstance(result, BaseException)]
        return answers

    async def _fire(self, one: Firing, term: Term) -> int | None:
        planned = one.planned
        try:
            fired = await self._engine.fire(planned.name, planned.version, tasks_for(planned.name, planned.schedule, one.times), one.next_at, term)
        except (StaleVersion, NotFound):
            return None
        except (StaleTerm, StoreError):
            raise
        except Exception as error:  # its own fault: it goes on from now, and the others at their time
            self._tell(planned, error)
            planned.next_at = None
            return 0
        planned.next_at = planned.stored = one.next_at
        self._tell_refused(planned, fired)
        return sum(answer.status is Status.CREATED for answer in fired.tasks)

    def _tell_refused(self, planned: Planned, fired: Fired) -> None:
        refused = next((answer.error for answer in fired.tasks if answer.status is Status.REFUSED), None)
        if refused is not None:
            self._tell(planned, refused)

    def _tell(self, planned: Planned, error: Exception) -> None:
        """Once for each version of a schedule: it will be the same at every fire time until somebody changes it."""
        if self._told.get(planned.name) != planned.version:
            self._told[planned.name] = planned.version
            trace = None if isinstance(error, TaskmillError) else error
            logger.warning("schedule %s makes no task of type %s: %s", planned.name, planned.schedule.type, error, exc_info=trace)


def _changed(schedule: Schedule, state: State) -> bool:
    """Whether the stored next time is that of another cron entry. Versions do not say it: they change with every other field too."""
    if state.cron is None:
        return False
    try:
        return cron_of(state.cron) != schedule.cron
    except InvalidInput:
        return True


def _raise_first(failures: Iterable[BaseException]) -> None:
    for failure in failures:
        raise failure
