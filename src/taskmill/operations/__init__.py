"""Every verb of the product once: the SDK, the CLI, REST and gRPC are thin skins over `Operations`.

An operation is what a person or a program wants done, over any engine: it asks the contract, follows cursors to the end, and turns refusals into
errors that say what to do. It keeps no state but the submits under way, so any number of programs may operate one store.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence

from taskmill import tracing
from taskmill.batching import Batcher
from taskmill.engine import EVERYTHING, Durability, Engine, Filter, Finding, Page, Stream, Submitted, Target, Term, Transaction, WorkerInfo
from taskmill.events import Event
from taskmill.operations import bulk, findings, limits, queues, schedules, tasks, types, workers
from taskmill.operations.model import Limit, LimitInfo, QueueInfo, QueueSettings, ScheduleInfo, Tally, TypeInfo
from taskmill.schedule import Schedule
from taskmill.task import Attempt, EdgeResult, NewTask, State, Task

__all__ = ["ROLES", "Limit", "LimitInfo", "Operations", "QueueInfo", "QueueSettings", "ScheduleInfo", "Tally", "TypeInfo", "submitted"]

submitted = tasks.submitted

ROLES = ("schedules", "pruning", "outbox")
"""What maintenance does under a term."""

Which = Sequence[Target] | Filter
Progress = Callable[[int], None]


class Operations:
    """The verbs over one open engine, for the callers of one event loop."""

    def __init__(self, engine: Engine, queue_of: Callable[[str], str | None] = lambda _: None) -> None:
        self.engine = engine
        self._in_transaction = engine.in_transaction
        self._queue_of = queue_of
        """The queue that this program declares for a type, where it does: traces name it."""
        self._submits: dict[Durability | None, Batcher[NewTask, Submitted]] = {}

    # Submitting

    async def submit(self, new: NewTask, *, tx: Transaction | None = None, durability: Durability | None = None) -> Submitted:
        """One task; concurrent callers share one commit. Raises what became of it unless it exists now: Conflict, RateLimited, or why it was refused."""
        tracer = tracing.tracer()
        if tracer is None:
            return submitted(await self._submit(new, tx, durability))
        with tracing.send(tracer, new, new.queue or self._queue_of(new.type)) as sending:
            answer = submitted(await self._submit(sending.carried(new), tx, durability))
            sending.told(answer)
            return answer

    async def _submit(self, new: NewTask, tx: Transaction | None, durability: Durability | None) -> Submitted:
        # Who stands in a transaction must not wait for others' commits, which wait for it; without its tx= the engine refuses.
        if tx is not None or self._in_transaction():
            [answer] = await self.engine.submit([new], durability=durability, tx=tx)
            return answer
        return await self._batcher(durability).add(new)

    def _batcher(self, durability: Durability | None) -> Batcher[NewTask, Submitted]:
        if durability not in self._submits:
            self._submits[durability] = Batcher(lambda batch: self.engine.submit(batch, durability=durability))
        return self._submits[durability]

    async def drain(self) -> None:
        """Until every submit that was begun has been answered."""
        for batcher in self._submits.values():
            await batcher.drain()

    async def submit_many(
        self, new: Iterable[NewTask], *, progress: Progress | None = None, tx: Transaction | None = None, durability: Durability | None = None
    ) -> tuple[Submitted, ...]:
        """Any number, in batches; the answers in their order, refusals among them (`submitted` raises those). Who waits for another stands after it."""
        tracer = tracing.tracer()
        if tracer is None:
            return await tasks.submit_many(self.engine, new, progress, tx, durability)
        with tracing.send(tracer) as sending:
            answers = await tasks.submit_many(self.engine, map(sending.carried, new), progress, tx, durability)
            sending.counted(len(answers))
            return answers

    async def unseal(self, ids: Sequence[str]) -> None:
        """Break the seals: all that these tasks wait for has been submitted (`parent=`), and they start when it has ended."""
        await self.engine.submit((), unseal=ids)

    # Looking

    async def get(self, id: str) -> Task:
        """The whole record. NotFound, or Expired with the state it ended in."""
        return await tasks.get(self.engine, id)

    async def attempts(self, id: str) -> tuple[Attempt, ...]:
        """Every attempt, oldest first."""
        return await tasks.attempts(self.engine, id)

    async def edges(self, id: str, *, after: int = 0, n: int = 1_000) -> tuple[EdgeResult, ...]:
        """What the task waits or waited for, in order."""
        return await tasks.edges(self.engine, id, after, n)

    async def list(self, which: Filter = EVERYTHING, *, after: str | None = None, n: int = 100) -> Page:
        """A page, newest first; its cursor is the next one's `after`."""
        return await tasks.page(self.engine, which, after, n)

    def stream(self, which: Filter = EVERYTHING, *, n: int = 500) -> AsyncIterator[Page]:
        """Every page, to the end."""
        return tasks.pages(self.engine, which, n)

    async def count(self, which: Filter = EVERYTHING) -> int:
        """How many match: of states, types and queues at once and up to 5 s old; of tenants, tags and times by reading them all."""
        return await tasks.count(self.engine, which)

    async def check_names(self, which: Filter) -> None:
        """Refuse a filter whose queue or type nobody ever named: NotFound with what was meant, instead of an empty answer."""
        await queues.check_filter(self.engine, which)

    # Waiting

    async def wait(self, ids: Sequence[str], timeout: int | None = None, *, every: bool = False) -> dict[str, State]:
        """Those that have ended, as soon as one has (`every`: as soon as all have); what is there when the time is over. None: for ever."""
        return await tasks.wait(self.engine, ids, timeout, every=every)

    async def result(self, id: str, timeout: int | None = None) -> Task:
        """The record once it has ended; ResultTimeout when the time is over before."""
        return await tasks.result(self.engine, id, timeout)

    async def events(self) -> Stream[Event]:
        """What happens from now on; `resync` after a gap. Whoever stops listening closes it."""
        return await self.engine.events()

    async def signal(self, id: str, name: str, data: bytes = b"null", *, signal_id: str | None = None) -> int:
        """Send a task a named value, once by its signal id; answers its number."""
        return await tasks.signal(self.engine, id, name, data, signal_id)

    # Changing many

    async def cancel(self, which: Which, *, dry_run: bool = False, progress: Progress | None = None) -> Tally:
        """Waiting tasks are cancelled, running ones told. A filter is followed to its end; with one, only live tasks count as matched."""
        return await bulk.cancel(self.engine, which, dry_run=dry_run, progress=progress)

    async def requeue(self, which: Which, *, from_start: bool = False, dry_run: bool = False, progress: Progress | None = None) -> Tally:
        """Ended tasks are ready again, from their checkpoints unless `from_start`. With a filter that names no state: the dead ones."""
        return await bulk.requeue(self.engine, which, from_start=from_start, dry_run=dry_run, progress=progress)

    async def delete(self, which: Which, *, dry_run: bool = False, progress: Progress | None = None) -> Tally:
        """The records of ended tasks are removed; with a filter, only ended tasks count as matched."""
        return await bulk.delete(self.engine, which, dry_run=dry_run, progress=progress)

    # Queues and types

    async def queues(self) -> tuple[QueueInfo, ...]:
        """Every queue that a task, a type, a worker or a setting names."""
        return await queues.queues(self.engine)

    async def queue(self, name: str) -> QueueInfo:
        """One queue; NotFound says which was meant."""
        return await queues.find(self.engine, name)

    async def pause_queue(self, name: str, *, reason: str = "") -> bool:
        """Nothing of it is claimed until it is resumed; what runs goes on. Whether that is new."""
        return await queues.pause(self.engine, name, reason)

    async def resume_queue(self, name: str) -> bool:
        """Claimed from again. Whether it was paused."""
        return await queues.resume(self.engine, name)

    async def put_queue_settings(self, name: str, settings: QueueSettings, *, version: int | None = None) -> QueueInfo:
        """How the queue shares itself out from now on: weights of shares and priorities, what shares are, partitions. `version`: the one seen, 0: none."""
        return await queues.put(self.engine, name, settings, version)

    async def drop_queue_settings(self, name: str, *, version: int | None = None) -> bool:
        """The defaults hold again. Whether any were put."""
        return await queues.drop(self.engine, name, version)

    async def purge_queue(self, name: str, *, dry_run: bool = False, progress: Progress | None = None) -> Tally:
        """Every waiting task of it is cancelled and its record removed; running and ended ones stay."""
        return await queues.purge(self.engine, name, dry_run=dry_run, progress=progress)

    async def types(self) -> tuple[TypeInfo, ...]:
        """Every type that a worker has registered or an operator has put."""
        return await types.types(self.engine)

    async def pause_type(self, name: str, *, reason: str = "") -> bool:
        """None of its tasks is claimed until it is resumed. Whether that is new."""
        return await types.pause(self.engine, name, reason)

    async def resume_type(self, name: str) -> bool:
        """Claimed again. Whether it was paused."""
        return await types.resume(self.engine, name)

    # Schedules

    async def schedules(self) -> tuple[ScheduleInfo, ...]:
        """Every schedule, those that code declares and those that were put."""
        return await schedules.schedules(self.engine)

    async def schedule(self, name: str) -> ScheduleInfo:
        """One schedule; NotFound says which was meant."""
        return await schedules.find(self.engine, name)

    async def put_schedule(self, name: str, schedule: Schedule, *, version: int | None = None, operator: bool | None = None) -> ScheduleInfo:
        """Make or change it; over one that code declares it stands until it is deleted. `version`: the one seen, 0: it must be new; `operator`: whether
        that was a person's."""
        return await schedules.put(self.engine, name, schedule, version, operator)

    async def delete_schedule(self, name: str, *, version: int | None = None) -> None:
        """What was put is gone; what code declares under this name, if anything, holds again."""
        await schedules.delete(self.engine, name, version)

    async def pause_schedule(self, name: str, *, reason: str = "") -> bool:
        """It fires no more until it is resumed. Whether that is new."""
        return await schedules.pause(self.engine, name, reason)

    async def resume_schedule(self, name: str) -> bool:
        """It fires again. Whether it was paused."""
        return await schedules.resume(self.engine, name)

    async def trigger_schedule(self, name: str, *, id: str | None = None) -> Submitted:
        """Its task now, with an id of its own; its times stay as they are. `id`: the task's, so that whoever asks twice has one."""
        return await self.submit(await schedules.task_now(self.engine, name, id))

    async def next_times(self, name: str, n: int = 5) -> tuple[int, ...]:
        """When it would fire next, paused or not."""
        return await schedules.next_times(self.engine, name, n)

    # Workers and limits

    async def workers(self) -> tuple[WorkerInfo, ...]:
        """Everybody registered, oldest first."""
        return await self.engine.workers()

    async def worker(self, id: str) -> WorkerInfo:
        """One of them; NotFound says which was meant."""
        return await workers.find(self.engine, id)

    async def command_worker(self, id: str, command: str | None) -> None:
        """Told with its next beat: pause (claim nothing), quiet (finish what runs, claim nothing more), stop (finish and leave); None takes it back."""
        await workers.command(self.engine, id, command)

    async def limits(self) -> tuple[LimitInfo, ...]:
        """Every limit in force."""
        return await limits.limits(self.engine)

    async def limit(self, name: str) -> LimitInfo:
        """One limit; NotFound says which was meant."""
        return await limits.find(self.engine, name)

    async def put_limit(self, name: str, limit: Limit, *, version: int | None = None, operator: bool | None = None) -> LimitInfo:
        """These numbers for every claim from now on, over what code declares, until dropped. `version`, `operator`: as of a schedule."""
        return await limits.put(self.engine, name, limit, version, operator)

    async def drop_limit(self, name: str, *, version: int | None = None) -> None:
        """What was put is gone; what code declares under this name, if anything, holds again."""
        await limits.drop(self.engine, name, version)

    # Health

    async def leaders(self) -> dict[str, Term | None]:
        """Who does what only one may do, by role; None: nobody does now."""
        led = {term.role: term for term in await self.engine.leaders(ROLES)}
        return {role: led.get(role) for role in ROLES}

    async def check(self) -> tuple[Finding, ...]:
        """What is not as it should be, of the store and of the work in it, each with its remedy."""
        return await findings.check(self.engine)
