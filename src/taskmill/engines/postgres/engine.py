"""The engine on PostgreSQL: the database is the queue.

Every verb is one call of a function in the store's schema, which is a transaction of its own, or one that the user has begun. What a verb does lies in the
file of its name or of its kin, and in the migrations; here each is handed to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from weakref import WeakSet

from taskmill.batching import Shared
from taskmill.clock import SECOND, Clock, SystemClock
from taskmill.engine import (
    DEFAULT_RETENTION,
    EVERYTHING,
    Beat,
    Changes,
    Checkpoint,
    Claim,
    Count,
    Durability,
    Ending,
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
from taskmill.engines.postgres import admin, claim, finish, inspect, listing, migrate, recover, restore, settings, submit
from taskmill.engines.postgres import target as targets
from taskmill.engines.postgres.announcing import Announcer
from taskmill.engines.postgres.check import check
from taskmill.engines.postgres.connecting import Pool
from taskmill.engines.postgres.drivers import driver_of
from taskmill.engines.postgres.horizon import Horizon
from taskmill.engines.postgres.store import Store
from taskmill.engines.postgres.ticking import ServerClock
from taskmill.engines.postgres.transaction import Foreign, Home, Inside, Tx
from taskmill.engines.postgres.waiting import Events, Hints, Hub, Waiters, listen
from taskmill.errors import Conflict, InvalidInput, StaleLease, StoreError, WrongStore
from taskmill.task import RULES, Attempt, EdgeResult, Gone, NewTask, Rules, State, Task, check_id, check_key, check_name, new_id, sequence_of

__all__ = ["PostgresEngine"]

COUNTS_AGE = 5 * SECOND
LEVELS = (Durability.LOCAL, Durability.FSYNC, Durability.REPLICATED)
LEAVE_WORK = frozenset((Ending.RETRY, Ending.SNOOZED, Ending.RELEASED, Ending.CRASHED, Ending.WAITING))
LAST_STEPS = 2 * SECOND
"""How long a step under way may take when the engine is closed: with a server that is away, a program ends all the same."""
SPARE = 2
"""Connections of the pool that users' transactions never take: claims, beats and ends go on."""

_inside: contextvars.ContextVar[Tx | None] = contextvars.ContextVar("taskmill_postgres_transaction", default=None)


class PostgresEngine:
    """A store in one schema of a database."""

    features = Features(name="postgres", user_transactions=True, inbox=True)

    def __init__(
        self,
        target: targets.Target,
        *,
        clock: Clock | None = None,
        lease: int = 4 * SECOND,
        term: int = 4 * SECOND,
        rules: Rules = RULES,
    ) -> None:
        self.target = target
        self.durability = target.durability
        self._server_clock = ServerClock() if clock is None or isinstance(clock, SystemClock) else None
        self.clock: Clock = self._server_clock or clock or SystemClock()
        self._pool = Pool(target)
        self._store = Store(self._pool, target.schema, clock=clock, durability=target.durability, lease=lease, term=term, rules=rules)
        self._outbox = Horizon(self._store, "outbox", "outbox_number_seq")
        self._bodies = Horizon(self._store, "body", "seq")
        self._together = submit.Together(self._store)
        self._transactions: set[Tx] = set()
        self._users = asyncio.Semaphore(max(1, target.pool - SPARE))
        self._counts = Shared(lambda: inspect.counts(self._reading(), self._bodies), self.clock, COUNTS_AGE)
        self._pages: dict[tuple[str, int], int] = {}
        self._open = False

    # Coming and going

    async def open(self) -> None:
        """A store that is not there, older, or changed by a newer program is refused and left as it is."""
        if self._open:
            return
        await self._pool.open()
        try:
            await self._check_schema()
            await self._store.read_settings()
            if not self._pool.in_recovery:
                await self._pool.fetchval(self._store.load("settings.sql").lift_tokens, self._store.now())
            self._home = await self._find_home()
            if self._server_clock is not None:
                await self._server_clock.follow(self._pool)
        except BaseException:
            await self._pool.close()
            raise
        self._hub = Hub(self._store)
        self._waiters = Waiters(self._store, self._hub)
        self._announcer = Announcer(self._store)
        self._open = True

    async def _find_home(self) -> Home:
        row = await self._pool.fetchrow(self._store.load("transaction.sql").place)
        assert row is not None
        return Home(asyncio.get_running_loop(), threading.get_ident(), row["database"], row["created_at"], WeakSet())

    async def _check_schema(self) -> None:
        async with self._pool.transaction() as connection:
            applied = await migrate.applied(connection, self.target.schema)
            missing = await migrate.pending(connection, self.target.schema)
        if not applied:
            raise WrongStore(f"there is no store at {self.target}", code="no_store", field="url", hint="`taskmill db upgrade` makes one")
        if missing:
            message = f"the store at {self.target} has schema {applied[-1].number}, this program needs {missing[-1].number}"
            raise WrongStore(
                message, code="older_schema", field="url", hint="`taskmill db upgrade` brings it there; programs of the version before go on working"
            )

    async def close(self) -> None:
        if not self._open:
            return
        self._open = False
        for tx in tuple(self._transactions):
            tx.abandon()
        await self._announcer.close()
        await self._waiters.close()
        await self._hub.close()
        if self._server_clock is not None:
            await self._server_clock.stop()
        await self._pool.close(LAST_STEPS)

    async def migrate(self) -> tuple[str, ...]:
        pool = Pool(self.target)
        await pool.open()
        try:
            return tuple(await migrate.upgrade(pool))
        finally:
            await pool.close()

    async def check(self) -> tuple[Finding, ...]:
        self._check_open()
        return await check(self._pool)

    def new_id(self, queue: str) -> str:
        return new_id()

    def _check_open(self) -> None:
        if not self._open:
            raise StoreError("the engine is not open", code="closed", hint="await engine.open() first")

    def _outside(self) -> Store:
        """The store, for a step of its own: one that needs rows which the transaction it is called in has locked would wait for ever."""
        self._check_open()
        if self.in_transaction():
            raise Conflict(
                "this would wait for the transaction it stands in",
                code="inside_transaction",
                hint="pass tx= to submit and finish, or ask after the transaction",
            )
        return self._store

    def _reading(self) -> Store:
        self._check_open()
        return self._store

    # Transactions

    def transaction(self) -> AbstractAsyncContextManager[Transaction]:
        return self._transaction()

    def in_transaction(self) -> bool:
        inside = _inside.get()
        return inside is not None and inside.open and inside.engine is self

    @contextlib.asynccontextmanager
    async def _transaction(self) -> AsyncIterator[Tx]:
        """A connection that breaks while it commits is told as AnswerLost: whether it did, the ids of what was submitted say."""
        self._outside()
        self._home.check_here()
        async with self._for_users(), self._pool.transaction(own=False) as connection:
            tx = Tx(self, connection)
            self._transactions.add(tx)
            token = _inside.set(tx)
            try:
                yield tx
                self._leave(tx)
            finally:
                tx.open = False
                self._transactions.discard(tx)
                _inside.reset(token)
        self._announcer.tell(tx.queues, tx.owes)

    @contextlib.asynccontextmanager
    async def _for_users(self) -> AsyncIterator[None]:
        """Those who begin a transaction wait for each other, first come, first served, before they wait with the steps for a connection."""
        try:
            async with asyncio.timeout(self.target.patience / SECOND):
                await self._users.acquire()
        except TimeoutError:
            hint = "raise ?pool= in the URL, or make the transactions shorter; nothing was written, ask again"
            raise StoreError("other transactions of this process hold its connections all this time", code="pool_busy", hint=hint) from None
        try:
            yield
        finally:
            self._users.release()

    def _leave(self, tx: Tx) -> None:
        if tx.abandoned:
            raise StoreError("the engine was closed while the transaction was open; nothing of it was written", code="closed", hint="leave it before you close")
        tx.check_inside()

    async def _within(self, tx: object) -> Inside:
        """The way into a transaction that this engine handed out, or that the user has begun on a connection of their own."""
        if not isinstance(tx, Tx):
            foreign = Foreign(self._store, self._home, driver_of(tx))
            await foreign.check()
            return foreign
        if tx.engine is not self:
            raise WrongStore("this transaction is of another engine", code="foreign_connection", field="tx", hint="use `async with app.transaction() as tx`")
        tx.check()
        self._home.check_here()
        return Inside(self._store, self._home, tx.connection)

    def _announce(self, tx: object, within: Inside, tasks: Sequence[NewTask]) -> None:
        """Those who wait for work are told after the commit, where there is somebody who says that it has come."""
        types = within.store.settings.types
        queues = {new.queue or types[new.type].queue for new in tasks if new.queue or new.type in types}
        self._tell_after(tx, within, queues, owes=any(new.edges or new.parent for new in tasks))

    def _tell_after(self, tx: object, within: Inside, queues: set[str], *, owes: bool) -> None:
        if isinstance(tx, Tx):
            tx.queues |= queues
            tx.owes |= owes
        elif isinstance(within, Foreign):
            within.driver.after_commit(partial(self._announcer.tell_from_anywhere, queues, owes=owes))

    async def inbox(self, tx: Transaction, source: str, message_id: str) -> bool:
        """Whether this message comes for the first time: of all transactions that ask so, one that commits is told yes."""
        check_key(source, "source")
        check_key(message_id, "message_id")
        self._check_open()
        return await (await self._within(tx)).is_first(source, message_id)

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
        self._check_open()
        level = self._more_durable(durability, tx)
        if tx is not None:
            within = await self._within(tx)
            answers = await submit.submit(within.store, tasks, unseal=unseal, reserved=reserved, db=within)
            self._announce(tx, within, tasks)
            return tuple(answers)
        store = self._outside()
        if unseal or reserved or level is not None:
            return tuple(await submit.submit(store, tasks, unseal=unseal, reserved=reserved, durability=level))
        return tuple(await self._together.submit(tasks))

    def _more_durable(self, asked: Durability | None, tx: object) -> Durability | None:
        """What one submit asks for is the least that it gets: None where every commit goes as far."""
        reached = self._store.durability
        if asked is None or LEVELS.index(asked) <= LEVELS.index(reached):
            return None
        if tx is not None or (asked is Durability.REPLICATED and not self._pool.replicates):
            why = "in a transaction of yours, whose commit is not the store's" if tx is not None else "without a synchronous standby"
            hint = f"this store reaches {reached} here; ask for that, or set it in the URL" if tx is not None else f"this store reaches {Durability.FSYNC}"
            raise InvalidInput(f"a submit cannot be {asked} {why}", code="durability_unavailable", field="durability", hint=hint)
        return asked

    async def claim(self, worker: str, request: int, queues: Sequence[str], room: Room) -> Claim:
        for queue in queues:
            check_name(queue, "queues")
        claimed = await claim.claim(self._outside(), worker, request, queues, room)
        if claimed.tasks:
            self._hub.active()
        return claimed

    async def finish(self, outcomes: Sequence[Outcome], *, tx: Transaction | None = None) -> Finished:
        check_outcomes(outcomes)
        self._check_open()
        if tx is None:
            finished = await finish.finish(self._outside(), outcomes)
            if any(outcome.ending in LEAVE_WORK for outcome in outcomes):
                self._hub.changed()
            return finished
        within = await self._within(tx)
        finished = await finish.finish(within.store, outcomes, db=within)
        if finished.refused:
            raise StaleLease(finished.refused[0].message, hint="roll the transaction back")
        self._tell_after(tx, within, set(), owes=True)
        return finished

    async def checkpoint(self, entries: Sequence[Checkpoint]) -> tuple[Refusal, ...]:
        return await finish.checkpoint(self._outside(), entries)

    async def signal(self, task: str, name: str, data: bytes, id: str) -> int:
        check_name(name, "name")
        check_key(id, "id")
        return await finish.signal(self._outside(), task, name, data, id)

    # Workers

    async def join(self, joining: Joining) -> None:
        await recover.join(self._outside(), joining)

    async def leave(self, worker: str) -> None:
        await recover.leave(self._outside(), worker)

    async def heartbeat(self, worker: str, request: int, leases: Iterable[int], *, tasks: bool = False) -> Beat:
        return await recover.heartbeat(self._reading(), worker, request, leases, tasks)

    async def recover_lost(self, n: int = 500) -> Moved:
        return await recover.recover_lost(self._outside(), n)

    async def prune(self, n: int, term: Term, retention: Retention = DEFAULT_RETENTION) -> Moved:
        store = self._outside()
        moved = await recover.prune(store, n, term, retention)
        if not moved.more and retention.results < retention.completed:
            moved = await recover.drop_results(store, n, term, retention.results, moved.moved)
        return moved if moved.more else await recover.prune_inbox(store, n, term, retention, moved.moved)

    # Administration

    async def cancel(self, which: Sequence[Target] | Filter, *, after: str | None = None, n: int = 500) -> Changes:
        return await admin.cancel(self._outside(), which, after, n)

    async def requeue(self, which: Sequence[Target] | Filter, *, from_start: bool = False, after: str | None = None, n: int = 500) -> Changes:
        return await admin.requeue(self._outside(), which, after, n, from_start=from_start)

    async def delete(self, which: Sequence[Target] | Filter, *, after: str | None = None, n: int = 500) -> Changes:
        return await admin.delete(self._outside(), which, after, n)

    # Inspection

    async def get(self, ids: Sequence[str]) -> tuple[Task | Gone | None, ...]:
        return await inspect.get(self._reading(), ids)

    async def edges(self, task: str, *, after: int = 0, n: int = 1_000) -> tuple[EdgeResult, ...]:
        return await inspect.edges(self._reading(), self._pages, task, after, n)

    async def list(self, which: Filter = EVERYTHING, *, after: str | None = None, n: int = 100) -> Page:
        return await inspect.list_tasks(self._reading(), which, after, n)

    async def matching(self, which: Filter = EVERYTHING, *, after: str | None = None, n: int = 1_000) -> Matching:
        ids, cursor = await listing.matching(self._reading(), which, after, n)
        return Matching(tuple(ids), cursor)

    async def attempts(self, task: str) -> tuple[Attempt, ...]:
        return await inspect.attempts(self._reading(), task)

    async def counts(self) -> tuple[Count, ...]:
        self._reading()
        return await self._counts.get()

    async def workers(self) -> tuple[WorkerInfo, ...]:
        return await recover.workers(self._reading())

    async def wait(self, ids: Sequence[str], timeout: int) -> dict[str, State]:
        for task in ids:
            check_id(task)
        self._check_open()
        return await self._waiters.wait(ids, timeout)

    # Settings

    async def put(self, kind: str, name: str, value: bytes, *, version: int | None = None, operator: bool = True) -> Item:
        return await settings.put(self._outside(), kind, name, value, version, operator=operator)

    async def drop(self, kind: str, name: str, *, version: int | None = None) -> bool:
        return await settings.drop(self._outside(), kind, name, version)

    async def items(self, kind: str, *, tx: Transaction | None = None) -> tuple[Item, ...]:
        store = self._reading()
        return await settings.items(store, kind, None if tx is None else await self._within(tx))

    # Leadership and what is done under it

    async def lead(self, role: str, holder: str) -> Term | None:
        check_name(role, "role")
        check_key(holder, "holder", length=128)
        return await recover.lead(self._outside(), role, holder)

    async def resign(self, term: Term) -> None:
        await recover.resign(self._outside(), term)

    async def leaders(self, roles: Sequence[str]) -> tuple[Term, ...]:
        return await recover.leaders(self._reading(), roles)

    async def fire(self, schedule: str, version: int, tasks: Sequence[NewTask], next_at: int | None, term: Term) -> Fired:
        return await settings.fire(self._outside(), schedule, version, tasks, next_at, term)

    async def take(self, limit: str, n: int, id: str) -> Taken:
        check_key(id, "id")
        return await settings.take(self._outside(), limit, n, id)

    async def outbox(self, kind: str, after: str, n: int, term: Term) -> tuple[Entry, ...]:
        return await settings.outbox(self._outside(), self._outbox, kind, after, n, term)

    async def records(self, ids: Sequence[str]) -> tuple[Record | None, ...]:
        return await restore.records(self._reading(), ids)

    async def restore(self, records: Sequence[Record]) -> tuple[bool, ...]:
        return await restore.restore(self._outside(), records)

    # Hints

    async def wakeups(self) -> Hints:
        self._check_open()
        return await self._hub.wakeups()

    async def events(self) -> Events:
        self._check_open()
        return await listen(self._store, self._hub)
