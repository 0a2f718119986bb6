"""The embedded engine: one SQLite file, any number of processes, nothing to install.

Every write is a step on the one writer thread of this process (`writer`), every inspection a read on its own connection, every beat a write to the live file.
What a verb does lies in the file of its name; here each is handed to its thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TypeVar

import apsw

from taskmill.batching import Shared
from taskmill.clock import MINUTE, SECOND, Clock, SystemClock
from taskmill.engine import (
    DEFAULT_RETENTION,
    EVERYTHING,
    Beat,
    Changes,
    Checkpoint,
    Claim,
    Count,
    Durability,
    Entry,
    Features,
    Filter,
    Finding,
    Finished,
    Fired,
    Item,
    Joining,
    Matching,
    Moved,
    Outcome,
    Page,
    Record,
    Refusal,
    Retention,
    Room,
    Submitted,
    Taken,
    Target,
    Term,
    Transaction,
    WorkerInfo,
)
from taskmill.engines.outcomes import check_outcomes
from taskmill.engines.sqlite import admin, claim, edges, finish, inspect, listing, migrate, recover, settings, submit
from taskmill.engines.sqlite import records as whole
from taskmill.engines.sqlite.check import check
from taskmill.engines.sqlite.connection import WriteLock, check_path, connect, rights, translate
from taskmill.engines.sqlite.live import Live
from taskmill.engines.sqlite.sql import Database
from taskmill.engines.sqlite.step import Step
from taskmill.engines.sqlite.transaction import Tx, writable
from taskmill.engines.sqlite.waiting import Events, Waiters, listen
from taskmill.engines.sqlite.wake import Hints, Waker
from taskmill.engines.sqlite.writer import Session, Writer
from taskmill.errors import Conflict, InvalidInput, StaleLease, StoreError
from taskmill.task import RULES, Attempt, EdgeResult, Gone, NewTask, Rules, State, Task, check_id, check_key, check_name, new_id, sequence_of

__all__ = ["SQLiteEngine"]

Answer = TypeVar("Answer")

COUNTS_AGE = 5 * SECOND
STUCK_SLICE = 5_000
"""Waiting tasks that one look of recovery goes through."""
PATIENCE_OF_A_BEAT = 0.25

_inside: contextvars.ContextVar[Tx | None] = contextvars.ContextVar("taskmill_transaction", default=None)


class SQLiteEngine:
    """A store in one file. `path` None: a private one that vanishes with the engine, for tests."""

    features = Features(name="sqlite", user_transactions=True)

    def __init__(
        self,
        path: Path | None,
        *,
        clock: Clock | None = None,
        durability: Durability = Durability.FSYNC,
        busy_timeout: int = 30 * SECOND,
        lease: int = 4 * SECOND,
        term: int = 4 * SECOND,
        rules: Rules = RULES,
        vfs: str | None = None,
    ) -> None:
        self._rules = rules
        self.clock: Clock = clock or SystemClock()
        self.durability = durability
        self._private = path is None
        self._given = path
        self._busy_timeout = busy_timeout
        self._lease = lease
        self._term = term
        self._vfs = vfs
        self._open = False
        self._counts = Shared(lambda: self._read(lambda db: inspect.counts(db, self.clock.now())), self.clock, COUNTS_AGE)
        self._look_for_stuck_at = 0
        self._stuck_after = 0
        self._results_dropped = (0, 0)
        """Up to which completed task results have been dropped."""

    # Coming and going

    async def open(self) -> None:
        if not self._open:
            await asyncio.to_thread(self._open_files)
            self._waiters = Waiters(self._read, self._waker)
            self._open = True

    def _open_files(self) -> None:
        # Resolved, because the files beside it must be the same for everybody, by whichever name they came.
        self.path = Path(tempfile.mkdtemp(prefix="taskmill-", dir=_memory())) / "taskmill.db" if self._given is None else self._given.resolve()
        check_path(self.path)
        self._run = Path(f"{self.path}-run")
        session = self._session(first=True)
        self._reader_db = self._connect(read_only=True)
        # One for the thread of beats, one for the writer: a beat never waits for a step.
        self._live, self._live_in_step = (Live(Path(f"{self.path}-live"), self.clock, self._busy_timeout, self._vfs) for _ in range(2))
        self._waker = Waker(self._run)
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="taskmill-reader")
        self._live_thread = ThreadPoolExecutor(1, thread_name_prefix="taskmill-live")
        # One transaction of this process waits for the lock at a time, and nobody who has it waits behind one who has not.
        self._beginning = ThreadPoolExecutor(1, thread_name_prefix="taskmill-begin")
        self._ending = ThreadPoolExecutor(2, thread_name_prefix="taskmill-end")
        self._transactions: set[Tx] = set()
        self._writer = Writer(session)

    def _session(self, *, first: bool = False) -> Session:
        connection = self._connect()
        try:
            if first:
                migrate.migrate(connection, self.clock)
            return Session(connection, WriteLock(self._run, rights(self.path)), self.clock, self._committed, self._rules)
        except BaseException as error:
            connection.close()
            if isinstance(error, (apsw.Error, OSError)):
                raise translate(error, str(self.path)) from None
            raise

    def _connect(self, *, read_only: bool = False) -> Database:
        return connect(self.path, durability=self.durability, busy_timeout=self._busy_timeout, vfs=self._vfs, read_only=read_only)

    def _committed(self, step: Step) -> None:
        """Tell those who wait for what this commit brought."""
        kinds = {kind for kind, happened in (("work", step.woke), ("wait", step.ended), ("events", step.events > 0)) if happened}
        if kinds:
            self._waker.wake(kinds)

    async def close(self) -> None:
        if not self._open:
            return
        self._open = False
        await self._waiters.close()
        await asyncio.to_thread(self._close_readers)
        await self._writer.close()
        self._live_in_step.close()
        self._waker.close()
        if self._private:
            shutil.rmtree(self.path.parent, ignore_errors=True)

    def _close_readers(self) -> None:
        """Before the writer: the last to close moves the WAL into the file, which a reader may not."""
        for tx in self._transactions:
            tx.abandon()
        for pool in (self._beginning, self._ending, self._reader, self._live_thread):
            pool.shutdown()
        self._live.close()
        self._reader_db.close()

    async def migrate(self) -> tuple[str, ...]:
        return tuple(await asyncio.to_thread(self._migrate))

    def _migrate(self) -> list[str]:
        check_path(self.path)
        with contextlib.closing(self._connect()) as connection:
            return migrate.migrate(connection, self.clock)

    async def check(self) -> tuple[Finding, ...]:
        return await self._read(lambda db: check(db, self.path, self.durability))

    def new_id(self, queue: str) -> str:
        return new_id()

    # The three threads

    async def _write(self, step: Callable[[Step], Answer]) -> Answer:
        self._check_outside()
        return await self._writer.run(step)

    async def _read(self, read: Callable[[Database], Answer]) -> Answer:
        self._check_open()
        return await self._in(self._reader, lambda: read(self._reader_db))

    async def _live_do(self, do: Callable[[Live], Answer]) -> Answer:
        self._check_open()

        return await self._in(self._live_thread, lambda: self._live.do(do))

    async def _in(self, pool: ThreadPoolExecutor, do: Callable[[], Answer]) -> Answer:
        try:
            return await asyncio.get_running_loop().run_in_executor(pool, do)
        except (apsw.Error, OSError) as error:
            raise translate(error, str(self.path)) from None

    def _check_open(self) -> None:
        if not self._open:
            raise StoreError("the engine is not open", code="closed", hint="await engine.open() first")

    def _check_outside(self) -> None:
        """A write that waits for the transaction it is called in would wait for ever."""
        self._check_open()
        if self.in_transaction():
            raise Conflict(
                "this would wait for the transaction it stands in",
                code="inside_transaction",
                hint="pass tx= to submit and finish, or ask after the transaction",
            )

    # Transactions

    def transaction(self) -> AbstractAsyncContextManager[Transaction]:
        return self._transaction()

    def in_transaction(self) -> bool:
        inside = _inside.get()
        return inside is not None and inside.open and inside.engine is self

    @contextlib.asynccontextmanager
    async def _transaction(self) -> AsyncIterator[Tx]:
        self._check_outside()
        session = await self._begun()
        tx = Tx(self, session)
        self._transactions.add(tx)
        token = _inside.set(tx)
        try:
            yield tx
        except BaseException:
            await self._leave(tx, session.rollback)
            raise
        else:
            await self._leave(tx, tx.commit)
        finally:
            _inside.reset(token)

    async def _leave(self, tx: Tx, end: Callable[[], None]) -> None:
        if tx.abandoned:
            raise StoreError("the engine was closed while the transaction was open; nothing of it was written", code="closed", hint="leave it before you close")
        tx.open = False
        self._transactions.discard(tx)
        ending = asyncio.ensure_future(self._in(self._ending, lambda: self._end(tx, end)))
        try:
            await asyncio.shield(ending)
        except asyncio.CancelledError:
            await asyncio.wait([ending])  # so that whoever looks for what was written finds it decided
            raise

    def _end(self, tx: Tx, end: Callable[[], None]) -> None:
        try:
            end()
        finally:
            tx.session.close()

    async def _begun(self) -> Session:
        """A caller that is cancelled while it waits for the lock must not come to hold it."""
        beginning = asyncio.ensure_future(self._in(self._beginning, self._begin))
        try:
            return await asyncio.shield(beginning)
        except asyncio.CancelledError:
            beginning.add_done_callback(self._give_up)
            raise

    def _give_up(self, beginning: asyncio.Future[Session]) -> None:
        if not beginning.cancelled() and beginning.exception() is None:
            session = beginning.result()
            session.rollback()
            session.close()

    def _begin(self) -> Session:
        session = self._session()
        try:
            session.begin()
        except BaseException:
            session.close()
            raise
        return session

    # A task's life

    async def submit(
        self,
        tasks: Sequence[NewTask],
        *,
        unseal: Sequence[str] = (),
        reserved: bool = False,
        durability: Durability | None = None,
        tx: Transaction | None = None,
    ) -> tuple[Submitted, ...]:
        sequence_of(tasks)
        reached, synced = self._reached(durability)
        if tx is not None:
            step = writable(tx, self)
            if synced and isinstance(tx, Tx):
                tx.synced = True
            return tuple(submit.submit(step, tasks, unseal=unseal, reserved=reserved, durability=reached))
        self._check_outside()
        if unseal or reserved:
            return tuple(await self._writer.run(lambda step: submit.submit(step, tasks, unseal=unseal, reserved=reserved, durability=reached), synced=synced))
        return tuple(await self._writer.submit(tasks, reached, synced=synced))

    def _reached(self, asked: Durability | None) -> tuple[Durability, bool]:
        """What a submit reaches that asks for this, and whether its commit must wait for the disk where others do not."""
        if asked is Durability.REPLICATED:
            hint = "this store reaches fsync; one of PostgreSQL can replicate"
            raise InvalidInput("one file has no second machine", code="durability_unavailable", field="durability", hint=hint)
        synced = self.durability is Durability.LOCAL and asked is Durability.FSYNC
        return Durability.FSYNC if synced else self.durability, synced

    async def claim(self, worker: str, request: int, queues: Sequence[str], room: Room) -> Claim:
        for queue in queues:
            check_name(queue, "queues")
        self._check_outside()
        return await self._writer.run_then(lambda step: claim.claim(step, worker, request, queues, room), claim.answer)

    async def finish(self, outcomes: Sequence[Outcome], *, tx: Transaction | None = None) -> Finished:
        check_outcomes(outcomes)
        if tx is None:
            return await self._write(lambda step: finish.finish(step, outcomes))
        finished = finish.finish(writable(tx, self), outcomes)
        if finished.refused:
            raise StaleLease(finished.refused[0].message, hint="the transaction is rolled back with it")
        return finished

    async def checkpoint(self, entries: Sequence[Checkpoint]) -> tuple[Refusal, ...]:
        return await self._write(lambda step: finish.checkpoint(step, entries))

    async def signal(self, task: str, name: str, data: bytes, id: str) -> int:
        check_name(name, "name")
        check_key(id, "id")
        return await self._write(lambda step: finish.signal(step, task, name, data, id))

    # Workers

    async def join(self, joining: Joining) -> None:
        await self._write(lambda step: self._join(step, joining))

    def _join(self, step: Step, joining: Joining) -> None:
        """Registered and alive in one moment: whoever looks for the silent holds the same lock."""
        settings.join(step, joining)
        self._live_in_step.do(lambda live: live.beat(joining.worker))

    async def leave(self, worker: str) -> None:
        await self._write(lambda step: recover.leave(step, worker))
        await self._live_do(lambda live: live.forget(worker))

    async def heartbeat(self, worker: str, request: int, leases: Iterable[int], *, tasks: bool = False) -> Beat:
        named = frozenset(leases)
        await self._live_do(lambda live: live.beat(worker))
        commands, held = await self._read(lambda db: (inspect.commands(db, worker), inspect.held_by(db, worker)))
        if commands is None:
            await self._live_do(lambda live: live.forget(worker))
            return Beat(False, tuple(sorted(named)))
        if any(token not in named and asked <= request for _, token, asked, _ in held):
            await self._give_back(worker, request, named)
        tokens = {token for _, token, _, _ in held}
        cancelled = tuple(task for task, token, _, cancel in held if cancel and token in named)
        told = {token: task for task, token, _, _ in held if token in named} if tasks else {}
        return Beat(True, tuple(sorted(named - tokens)), cancelled, commands, told)

    async def _give_back(self, worker: str, request: int, named: frozenset[int]) -> None:
        """A beat never waits for somebody's long transaction: what it gives back is then given back after it."""
        giving = asyncio.ensure_future(self._write(lambda step: recover.give_back(step, worker, request, named)))
        done, _ = await asyncio.wait({giving}, timeout=PATIENCE_OF_A_BEAT)
        if done:
            giving.result()
        else:
            giving.add_done_callback(_ignore_failure)

    async def recover_lost(self, n: int = 500) -> Moved:
        fair_since = await self._live_do(lambda live: live.mark(self._lease))
        newest, back, moved = await self._write(lambda step: self._recover(step, fair_since, n))
        if back and not moved.more:
            await self._live_do(lambda live: live.settle(newest))
        if moved.lost:
            await self._live_do(lambda live: live.forget_all(moved.lost))
        return moved

    def _recover(self, step: Step, fair_since: int, n: int) -> tuple[int, int, Moved]:
        newest = recover.newest(step)
        back = self._live_in_step.do(lambda live: live.set_back(newest))
        self._wake_stuck(step)
        return newest, back, recover.recover(step, self._silent(step, fair_since), n, back)

    def _wake_stuck(self, step: Step) -> None:
        """Once a minute a slice of those that wait: an error that left one behind is mended, and costs next to nothing where there is none."""
        now = self.clock.monotonic()
        if now >= self._look_for_stuck_at:
            self._look_for_stuck_at = now + MINUTE
            self._stuck_after = edges.wake_stuck(step, self._stuck_after, STUCK_SLICE) or 0

    def _silent(self, step: Step, fair_since: int) -> list[str]:
        """Beats are read under the write lock: whoever beat while this waited for it lives."""
        return self._live_in_step.do(lambda live: live.silent(inspect.workers(step.db), fair_since))

    async def prune(self, n: int, term: Term, retention: Retention = DEFAULT_RETENTION) -> Moved:
        moved = await self._write(lambda step: recover.prune(step, n, term, retention))
        if moved.more or retention.results >= retention.completed:
            return moved
        results, self._results_dropped = await self._write(lambda step: recover.drop_results(step, n, term, retention.results, self._results_dropped))
        return Moved(moved.moved + results.moved, results.more)

    # Administration

    async def cancel(self, which: Sequence[Target] | Filter, *, after: str | None = None, n: int = 500) -> Changes:
        return await self._write(lambda step: admin.cancel(step, which, after, n))

    async def requeue(self, which: Sequence[Target] | Filter, *, from_start: bool = False, after: str | None = None, n: int = 500) -> Changes:
        return await self._write(lambda step: admin.requeue(step, which, after, n, from_start=from_start))

    async def delete(self, which: Sequence[Target] | Filter, *, after: str | None = None, n: int = 500) -> Changes:
        return await self._write(lambda step: admin.delete(step, which, after, n))

    # Inspection

    async def get(self, ids: Sequence[str]) -> tuple[Task | Gone | None, ...]:
        now = self.clock.now()
        return await self._read(lambda db: inspect.get(db, ids, now))

    async def edges(self, task: str, *, after: int = 0, n: int = 1_000) -> tuple[EdgeResult, ...]:
        return await self._read(lambda db: inspect.edges(db, task, after, n))

    async def list(self, which: Filter = EVERYTHING, *, after: str | None = None, n: int = 100) -> Page:
        now = self.clock.now()
        return await self._read(lambda db: inspect.list_tasks(db, which, after, n, now))

    async def matching(self, which: Filter = EVERYTHING, *, after: str | None = None, n: int = 1_000) -> Matching:
        now = self.clock.now()
        ids, cursor = await self._read(lambda db: listing.matching(db, which, after, n, now))
        return Matching(tuple(ids), cursor)

    async def attempts(self, task: str) -> tuple[Attempt, ...]:
        now = self.clock.now()
        return await self._read(lambda db: inspect.attempts(db, task, now))

    async def counts(self) -> tuple[Count, ...]:
        return await self._counts.get()

    async def workers(self) -> tuple[WorkerInfo, ...]:
        silences = await self._live_do(lambda live: live.silences())
        return await self._read(lambda db: inspect.registered(db, silences))

    async def wait(self, ids: Sequence[str], timeout: int) -> dict[str, State]:
        for task in ids:
            check_id(task)
        return await self._waiters.wait(ids, timeout, self.clock)

    # Settings

    async def put(self, kind: str, name: str, value: bytes, *, version: int | None = None, operator: bool = True) -> Item:
        return await self._write(lambda step: settings.put(step, kind, name, value, version, operator=operator))

    async def drop(self, kind: str, name: str, *, version: int | None = None) -> bool:
        return await self._write(lambda step: settings.drop(step, kind, name, version))

    async def items(self, kind: str, *, tx: Transaction | None = None) -> tuple[Item, ...]:
        return await self._read(lambda db: inspect.items(db, kind))

    # Leadership and what is done under it

    async def lead(self, role: str, holder: str) -> Term | None:
        check_name(role, "role")
        check_key(holder, "holder", length=128)
        term = await self._read(lambda db: inspect.term(db, role))
        if term is not None and term.holder == holder and await self._live_do(lambda live: live.renew(term, self._term)):
            return term
        if await self._live_do(lambda live: live.led(role, holder, self._term)):
            return None
        return await self._write(lambda step: self._begin_term(step, role, holder))

    def _begin_term(self, step: Step, role: str, holder: str) -> Term | None:
        """Looked at again under the write lock, where two that saw the same empty seat cannot both be.

        The seat is taken in the live file before the commit. If that fails, the file names a term that was never given: nobody can renew it, so it runs out.
        """
        if self._live_in_step.do(lambda live: live.led(role, holder, self._term)):
            return None
        term = settings.lead(step, role, holder)
        self._live_in_step.do(lambda live: live.lead(term))
        return term

    async def resign(self, term: Term) -> None:
        await self._write(lambda step: settings.resign(step, term))
        await self._live_do(lambda live: live.resign(term))

    async def leaders(self, roles: Sequence[str]) -> tuple[Term, ...]:
        given = await self._read(lambda db: [inspect.term(db, check_name(role, "roles")) for role in roles])
        return await self._live_do(lambda live: tuple(term for term in given if term is not None and live.runs(term, self._term)))

    async def fire(self, schedule: str, version: int, tasks: Sequence[NewTask], next_at: int | None, term: Term) -> Fired:
        return await self._write(lambda step: settings.fire(step, schedule, version, tasks, next_at, term))

    async def take(self, limit: str, n: int, id: str) -> Taken:
        check_key(id, "id")
        return await self._write(lambda step: settings.take(step, limit, n, id))

    async def outbox(self, kind: str, after: str, n: int, term: Term) -> tuple[Entry, ...]:
        return await self._write(lambda step: settings.outbox(step, kind, after, n, term))

    async def records(self, ids: Sequence[str]) -> tuple[Record | None, ...]:
        now = self.clock.now()
        return await self._read(lambda db: whole.records(db, ids, now))

    async def restore(self, records: Sequence[Record]) -> tuple[bool, ...]:
        return tuple(await self._write(lambda step: whole.restore(step, records)))

    # Hints

    async def wakeups(self) -> Hints:
        self._check_open()
        return Hints(self._waker.listen("work"))

    async def events(self) -> Events:
        self._check_open()
        return await listen(self._write, self._read, self._waker)


def _ignore_failure(giving: asyncio.Future[int]) -> None:
    """The next beat gives back what this one could not."""
    giving.cancelled() or giving.exception()


def _memory() -> str | None:
    """Where files live in memory, if the system has such a place."""
    place = Path("/", "dev", "shm")
    return str(place) if place.is_dir() else None
