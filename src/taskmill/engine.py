"""The contract between Taskmill and a store: 38 verbs, each one atomic step, batched, safe to repeat.

An engine makes transitions and keeps promises; it has no policy. When to retry, what a saga does next, when cron fires are pure
functions above it. What an engine lacks is said in `Engine.features`, never made up for in silence.

Four mechanisms carry the rest:

* **Lanes.** To claim is to admit, and the store decides it. A task under limits waits in a lane of its own; a lane is open when all
  its limits are. Claim looks at open lanes only, so a closed lane costs nothing however long it is.
* **Edges.** "This task waits for that one" is a record that falls once, when the other ends, and keeps its outcome.
* **Checkpoints.** What a running task has done so far, by name, written only under its lease.
* **Outbox.** What a step owes to another place is a numbered entry written in that step, kept until it was delivered.

An answer that got lost may be asked for again: every verb repeated with the same arguments gives the same end. Submit is known by
the task's id, claim by its request number, finish by its lease, signal and take by an id the caller makes; put, cancel, requeue and delete by the
version they saw.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Protocol, TypeVar, cast

from msgspec import Struct

from taskmill.clock import DAY, Clock
from taskmill.errors import TaskmillError
from taskmill.events import Event
from taskmill.retry import Retry
from taskmill.task import Attempt, EdgeResult, ErrorInfo, Gone, NewTask, Progress, Signal, State, Task, TypeSettings

__all__ = [
    "DEFAULT_RETENTION",
    "EVERYTHING",
    "VERBS",
    "Beat",
    "Call",
    "Changed",
    "Changes",
    "Checkpoint",
    "Claim",
    "Claimed",
    "Count",
    "Durability",
    "Ending",
    "Engine",
    "Entry",
    "Features",
    "Filter",
    "Finding",
    "Finished",
    "Fired",
    "Item",
    "Joining",
    "Moved",
    "Outcome",
    "Page",
    "Record",
    "Refusal",
    "Retention",
    "Room",
    "Status",
    "Stream",
    "Submitted",
    "Taken",
    "Target",
    "Term",
    "Transaction",
    "WorkerInfo",
    "observed",
]


Told_co = TypeVar("Told_co", covariant=True)


class Durability(StrEnum):
    """How far an acknowledged write has come."""

    LOCAL = "local"
    FSYNC = "fsync"
    REPLICATED = "replicated"


class Features(Struct, frozen=True, kw_only=True):
    """What this engine can do; a conformance test may skip only by this."""

    name: str
    user_transactions: bool
    order_over_queue: bool = True
    limits_over_queues: bool = True
    edges_in_step: bool = True
    token_never_repeats: bool = True
    filters_by_index: bool = True
    survives_store_loss: bool = False
    inbox: bool = False
    """Whether a user's transaction can ask if a message comes for the first time."""
    max_batch: int = 10_000


class Status(StrEnum):
    """What became of one submitted task."""

    CREATED = "created"
    DUPLICATE = "duplicate"
    REPLACED = "replaced"
    CONFLICT = "conflict"
    REJECTED = "rejected"
    REFUSED = "refused"


class Submitted(Struct, frozen=True, gc=False):
    """The answer for one task of a submit; `id` is the task that exists now, the caller's own or the first one's."""

    status: Status
    id: str
    durability: Durability
    reserved: bool = False
    error: TaskmillError | None = None


class Room(Struct, frozen=True):
    """How much a worker can take: tasks in all, per type where it has fewer, how many more of the common lane to have in hand, and bytes of payload."""

    slots: int
    types: Mapping[str, int] = MappingProxyType({})
    prefetch: int = 0
    max_bytes: int = 1_000_000


class Claimed(Struct, frozen=True, gc=False):
    """A task under a new lease, with all that its handler needs. `claimed_at` is the store's clock, read when every limit was held."""

    id: str
    type: str
    queue: str
    payload: bytes
    worker: str
    token: int
    attempt: int
    claimed_at: int
    priority: int
    failures: int
    crashes: int
    max_crashes: int
    version: int
    created_at: int
    retry: Retry
    timeout: int
    expires_at: int | None
    tenant: str
    limits: tuple[str, ...]
    unwind: bool
    must_end: str | None
    phase: str | None
    headers: Mapping[str, str]
    checkpoints: Mapping[str, bytes]
    signals: tuple[Signal, ...]
    results: tuple[EdgeResult, ...]
    """The edges of this task, the first 1,000; `edges` shows the rest."""
    ready_at: int = 0
    """Since when it could have been claimed; one that was released or lost keeps its age, and so its place."""
    idempotency_key: str | None = None
    suspect: bool = False
    """An earlier attempt took its process down or had to be killed: it runs in a process of its own, whichever worker has it."""


class Claim(Struct, frozen=True):
    """An answer to `claim`. `next_at`: when something may become claimable, where nothing was now; `more`: not everything was looked at, ask again."""

    tasks: tuple[Claimed, ...]
    next_at: int | None = None
    more: bool = False


class Ending(StrEnum):
    """How an attempt ends."""

    COMPLETED = "completed"
    RETRY = "retry"
    DEAD = "dead"
    SNOOZED = "snoozed"
    WAITING = "waiting"
    CANCELLED = "cancelled"
    RELEASED = "released"
    CRASHED = "crashed"


class Outcome(Struct, frozen=True, kw_only=True, gc=False):
    """The end of one attempt, under its lease (`worker`, `token`)."""

    task: str
    worker: str
    token: int
    ending: Ending
    result: bytes | None = None
    error: ErrorInfo | None = None
    after: int = 0
    """retry, snoozed: how long until it is ready again."""
    signals: tuple[str, ...] = ()
    """waiting: ready when one of these has come behind number `seen` …"""
    seen: int = 0
    tasks: tuple[str, ...] = ()
    """… and all of these have ended (those of `then` are waited for too) …"""
    on_failure: str = "cancel"
    deadline: int | None = None
    """… or when this much time has passed."""
    then: tuple[NewTask, ...] = ()
    started_after: int | None = None
    """How long after the claim its handler started; None: it never did."""
    suspect: bool = False
    """Its process had to be killed. The store keeps it in the task's record, as it does for `crashed`; a requeue clears it."""


class Refusal(Struct, frozen=True):
    """An outcome that was not applied, and why: stale_lease, not_found, refused."""

    task: str
    token: int
    code: str
    message: str = ""


class Finished(Struct, frozen=True):
    """An answer to `finish`. `instead`: tasks that came to another state than asked for (a requested cancel). `more`: edges are still falling."""

    refused: tuple[Refusal, ...] = ()
    instead: Mapping[str, State] = MappingProxyType({})
    more: bool = False


class Checkpoint(Struct, frozen=True, kw_only=True):
    """Something a running task has done: a named step's value, its progress, its saga's phase, that only its handler may end it (`unwind`), that it began."""

    task: str
    worker: str
    token: int
    name: str | None = None
    value: bytes = b"null"
    progress: Progress | None = None
    unwind: bool | None = None
    phase: str | None = None
    started_after: int | None = None
    """How long after the claim its handler began: `Task.started_at` of a running task is this, once it was said."""


class Joining(Struct, frozen=True, kw_only=True):
    """A worker that registers, with its types' settings and its app's schedules as data."""

    worker: str
    queues: tuple[str, ...]
    types: Mapping[str, TypeSettings]
    lease: int = 4_000_000
    app: str = ""
    version: int = 0
    limits: Mapping[str, bytes] = MappingProxyType({})
    schedules: Mapping[str, bytes] = MappingProxyType({})
    info: Mapping[str, str] = MappingProxyType({})


class Beat(Struct, frozen=True):
    """An answer to `heartbeat`. `known` False: this worker is not registered any more, it must take a new id."""

    known: bool
    lost: tuple[int, ...] = ()
    cancelled: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    tasks: Mapping[int, str] = MappingProxyType({})
    """By token, the tasks of the leases that it named and holds, where it asked for them."""


class WorkerInfo(Struct, frozen=True, kw_only=True):
    """A registered worker. `silent`: how long ago the store last heard of it, None when it cannot say; `alive`: that is within its lease."""

    id: str
    queues: tuple[str, ...]
    types: tuple[str, ...]
    lease: int
    joined_at: int
    silent: int | None
    alive: bool
    running: int
    """How many leases it holds."""
    info: Mapping[str, str] = MappingProxyType({})
    command: str | None = None
    """What an operator tells it: pause, quiet, stop."""


class Moved(Struct, frozen=True):
    """How much a bounded step of maintenance moved, and whether to call it again at once."""

    moved: int
    more: bool
    lost: tuple[str, ...] = ()
    """Workers found dead."""


class Retention(Struct, frozen=True, kw_only=True):
    """How long what has ended is kept."""

    completed: int = 14 * DAY
    dead: int = 14 * DAY
    cancelled: int = 14 * DAY
    results: int = 14 * DAY
    """Results of completed tasks; after this the record stays without its result, unless `completed` has passed first."""
    inbox: int = 14 * DAY
    """Messages that a user's transaction has dealt with: how long their repeats are known."""


DEFAULT_RETENTION = Retention()


class Target(Struct, frozen=True):
    """A task to act on, and the version the caller saw (None: whichever it has)."""

    task: str
    version: int | None = None


class Filter(Struct, frozen=True, kw_only=True):
    """Which tasks: all conditions hold; `created_*` is a half-open interval."""

    states: frozenset[State] = frozenset()
    types: frozenset[str] = frozenset()
    queues: frozenset[str] = frozenset()
    tenant: str | None = None
    tags: Mapping[str, str] = MappingProxyType({})
    created_from: int | None = None
    created_to: int | None = None


EVERYTHING = Filter()


class Changed(Struct, frozen=True):
    """What an administrative step did to one task: `done`, `requested` (it runs; its worker is told), or refused with a code."""

    task: str
    done: bool
    state: State | None
    version: int | None = None
    requested: bool = False
    code: str | None = None


class Changes(Struct, frozen=True):
    """An answer to cancel, requeue or delete; with a filter, `cursor` continues where this batch ended, None at the end."""

    tasks: tuple[Changed, ...]
    cursor: str | None = None


class Page(Struct, frozen=True):
    """A page of a listing, newest first; `cursor` continues it, None at the end."""

    tasks: tuple[Task, ...]
    cursor: str | None


class Matching(Struct, frozen=True):
    """Ids of tasks that match, newest first; `cursor` is the next call's `after`, None at the end."""

    ids: tuple[str, ...]
    cursor: str | None


class Count(Struct, frozen=True, kw_only=True):
    """How many tasks of one queue, type, priority and state there are; `oldest` is when the first of them became ready."""

    queue: str
    type: str
    priority: int
    state: State
    tasks: int
    oldest: int | None = None
    no_worker: bool = False


class Item(Struct, frozen=True, kw_only=True):
    """A small setting. `operator`: put by a person, stands over what code declares until dropped."""

    kind: str
    name: str
    value: bytes
    version: int
    operator: bool = False


class Term(Struct, frozen=True):
    """A leadership period; its number fences every write made under it."""

    role: str
    holder: str
    number: int


class Fired(Struct, frozen=True):
    """What a schedule's firing made."""

    tasks: tuple[Submitted, ...]
    version: int


class Taken(Struct, frozen=True):
    """Whether the rate had room; if not, when it may be asked again."""

    granted: bool
    retry_at: int | None = None


class Entry(Struct, frozen=True):
    """Something a step owes to another place. `cursor`: whoever has delivered up to here passes it on as `after`."""

    cursor: str
    kind: str
    subject: str
    data: bytes
    at: int


class Record(Struct, frozen=True, kw_only=True):
    """A whole task as `restore` takes it: everything that a move or a rebuild must not forget."""

    task: Task
    attempts: tuple[Attempt, ...] = ()
    checkpoints: Mapping[str, bytes] = MappingProxyType({})
    signals: tuple[Signal, ...] = ()
    edges: tuple[EdgeResult, ...] = ()


class Finding(Struct, frozen=True):
    """Something `check` found: what cannot be promised, and the remedy. `level`: error, warning, info."""

    level: str
    code: str
    message: str
    hint: str = ""


class Transaction(Protocol):
    """The user's own transaction, on a connection the engine can write through."""

    def execute(self, statement: str, bindings: Any = None) -> Any: ...

    def executemany(self, statement: str, rows: Iterable[Any]) -> Any: ...


class Stream(Protocol[Told_co]):
    """What is told as it happens; whoever stops listening closes it."""

    def __aiter__(self) -> Stream[Told_co]: ...

    async def __anext__(self) -> Told_co: ...

    async def aclose(self) -> None: ...


class Engine(Protocol):
    """One of the four stores."""

    features: Features
    clock: Clock

    async def open(self) -> None:
        """Connect; a store of a newer schema, or one that this program must not touch, is refused and left as it is."""

    async def close(self) -> None:
        """Let go of the store; steps under way are finished, nothing acknowledged is lost."""

    async def migrate(self) -> tuple[str, ...]:
        """Bring the store to this program's schema; resumable, and safe when two programs do it at once. Answers what was applied."""

    async def check(self) -> tuple[Finding, ...]:
        """Read the store's own settings and say what they cannot promise."""

    def new_id(self, queue: str) -> str:
        """An id for a task of this queue; needs no answer of the store."""

    def transaction(self) -> AbstractAsyncContextManager[Transaction]:
        """The user's transaction: what is submitted or finished with `tx=` exists if and only if it commits."""

    def in_transaction(self) -> bool:
        """Whether the caller stands in such a transaction: a step that is not given its `tx=` would wait for itself there, and is refused."""

    async def submit(
        self,
        tasks: Sequence[NewTask],
        *,
        unseal: Sequence[str] = (),
        reserved: bool = False,
        durability: Durability | None = None,
        tx: Transaction | None = None,
    ) -> tuple[Submitted, ...]:
        """Every task is stored once, by id and by key, with its edges resolved, or its refusal says why; acknowledged means kept."""

    async def claim(self, worker: str, request: int, queues: Sequence[str], room: Room) -> Claim:
        """The tasks that are next, ready and admitted by all their limits, become running under new tokens; no limit is ever exceeded."""

    async def finish(self, outcomes: Sequence[Outcome], *, tx: Transaction | None = None) -> Finished:
        """Each outcome is applied if and only if its lease is current; slots return and edges fall exactly once, in this step or a following one."""

    async def checkpoint(self, entries: Sequence[Checkpoint]) -> tuple[Refusal, ...]:
        """Each entry is merged into its running task if and only if its lease is current."""

    async def signal(self, task: str, name: str, data: bytes, id: str) -> int:
        """The signal is kept, once by its id, in order, until the task ends; a task that waits for it becomes ready."""

    async def join(self, joining: Joining) -> None:
        """The worker is registered and alive; its types' settings are stored unless a higher version of the app already did."""

    async def leave(self, worker: str) -> None:
        """The worker is gone; what it still held is released."""

    async def heartbeat(self, worker: str, request: int, leases: Iterable[int], *, tasks: bool = False) -> Beat:
        """The worker lives and holds exactly these leases of its requests up to this one; others of those are given back, later ones kept."""

    async def recover_lost(self, n: int = 500) -> Moved:
        """Leases of workers that no longer beat become ready again, or dead as `poison`; what time decided is applied; the store's pauses never count."""

    async def prune(self, n: int, term: Term, retention: Retention = DEFAULT_RETENTION) -> Moved:
        """What ended longer ago than its retention and owes nothing is removed; never a live task."""

    async def cancel(self, which: Sequence[Target] | Filter, *, after: str | None = None, n: int = 500) -> Changes:
        """A waiting task is cancelled, a running one's worker is told; one that must unwind becomes ready to do so."""

    async def requeue(self, which: Sequence[Target] | Filter, *, from_start: bool = False, after: str | None = None, n: int = 500) -> Changes:
        """An ended task is ready again, with failures and crashes 0, its attempt numbers going on; fallen edges stay fallen."""

    async def delete(self, which: Sequence[Target] | Filter, *, after: str | None = None, n: int = 500) -> Changes:
        """An ended task's record is removed; its id and key stay known for their window. A live one is refused: cancel it first."""

    async def get(self, ids: Sequence[str]) -> tuple[Task | Gone | None, ...]:
        """The records, in the order asked; Gone for those removed within their window, None for those never seen."""

    async def edges(self, task: str, *, after: int = 0, n: int = 1_000) -> tuple[EdgeResult, ...]:
        """What a task waits or waited for, in order."""

    async def list(self, which: Filter = EVERYTHING, *, after: str | None = None, n: int = 100) -> Page:
        """A page, newest first; following the cursors neither skips nor repeats a task that existed when the first page was read."""

    async def matching(self, which: Filter = EVERYTHING, *, after: str | None = None, n: int = 1_000) -> Matching:
        """The ids alone of what `list` would show, for callers that count."""

    async def attempts(self, task: str) -> tuple[Attempt, ...]:
        """Every attempt of a task, oldest first."""

    async def counts(self) -> tuple[Count, ...]:
        """How many tasks there are, by queue, type, priority and state; may be 5 s old."""

    async def workers(self) -> tuple[WorkerInfo, ...]:
        """Who is registered, oldest first, and when each was last heard of; a dead one is shown until recovery has found it."""

    async def wait(self, ids: Sequence[str], timeout: int) -> dict[str, State]:
        """Those of the tasks that have ended, as soon as one has; empty when the time is over."""

    async def put(self, kind: str, name: str, value: bytes, *, version: int | None = None, operator: bool = True) -> Item:
        """The setting has this value for every following step; refused when its version is not the one the caller saw (0: it must be new)."""

    async def drop(self, kind: str, name: str, *, version: int | None = None) -> bool:
        """The operator's setting is gone; what code declares, if anything, holds again."""

    async def items(self, kind: str, *, tx: Transaction | None = None) -> tuple[Item, ...]:
        """The settings of a kind in force, by name."""

    async def lead(self, role: str, holder: str) -> Term | None:
        """Begin or go on leading; None while another does. A new term has a higher number than any before."""

    async def resign(self, term: Term) -> None:
        """The term ends now; another may begin at once."""

    async def leaders(self, roles: Sequence[str]) -> tuple[Term, ...]:
        """The terms that run now, of these roles; nobody begins one by asking."""

    async def fire(self, schedule: str, version: int, tasks: Sequence[NewTask], next_at: int | None, term: Term) -> Fired:
        """The schedule's tasks exist, once each by id, and it is advanced; refused when its version or the term is old."""

    async def take(self, limit: str, n: int, id: str) -> Taken:
        """n starts are counted against a rate, once by the id, if it has room."""

    async def records(self, ids: Sequence[str]) -> tuple[Record | None, ...]:
        """All that `restore` takes, of live tasks too, in the order asked; None for those the store has no record of. At most 1,000 ids."""

    async def restore(self, records: Sequence[Record]) -> tuple[bool, ...]:
        """Whole records are inserted as they are, never over an existing one. An edge onto a task that comes later falls when that one has ended."""

    async def wakeups(self) -> Stream[None]:
        """Hints, from the moment this answers, that there may be work; some may be missed, so always poll underneath."""

    async def events(self) -> Stream[Event]:
        """What happens from the moment this answers; a listener that fell behind gets `resync`."""

    async def outbox(self, kind: str, after: str, n: int, term: Term) -> tuple[Entry, ...]:
        """The entries behind `after` ("": from the first), in the order of each task; those up to it are delivered and cut, no others ever."""


VERBS = frozenset(name for name, member in vars(Engine).items() if inspect.iscoroutinefunction(member))
"""The verbs that ask the store."""


class Call(Struct, frozen=True):
    """One verb as it was called: what metrics and traces are made of. `size` is the length of its batch, `code` that of its error."""

    engine: str
    verb: str
    size: int
    duration: int
    code: str | None


def observed(engine: Engine, tell: Callable[[Call], None]) -> Engine:
    """The same engine, each of whose verbs tells how it went: telemetry is written here once, for every engine and every surface."""
    return cast("Engine", _Observed(engine, tell))


class _Observed:
    def __init__(self, engine: Engine, tell: Callable[[Call], None]) -> None:
        self._engine = engine
        self._tell = tell

    def __getattr__(self, name: str) -> Any:
        member = getattr(self._engine, name)
        return self._watched(name, member) if name in VERBS else member

    def _watched(self, verb: str, call: Callable[..., Any]) -> Callable[..., Any]:
        async def watched(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter_ns()
            code = None
            try:
                return await call(*args, **kwargs)
            except BaseException as error:
                code = error.code if isinstance(error, TaskmillError) else type(error).__name__
                raise
            finally:
                size = len(args[0]) if args and isinstance(args[0], (list, tuple)) else 1
                self._tell(Call(self._engine.features.name, verb, size, (time.perf_counter_ns() - began) // 1_000, code))

        return watched
