"""Submit: every task of a batch stored once, or told why not.

What becomes of each is decided by one function of the store, in one call for a batch (0003_submit.sql); here arguments are put together and answers taken
apart. What many tasks have in common (type, queue, priority, lane …) travels once, as a line that each of them names.

A task that meets somebody's open transaction (its id or its key is written there) leaves the batch, so that the others are stored without delay, and waits
for that transaction alone, not for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Container, Iterable, Sequence
from functools import partial
from typing import Any

import msgspec

from taskmill import codec
from taskmill.batching import Batcher
from taskmill.clock import MILLISECOND, SECOND
from taskmill.engine import Durability, Status, Submitted
from taskmill.engines.circles import circles
from taskmill.engines.postgres.errors import FAILURES, applied, translate
from taskmill.engines.postgres.store import Store
from taskmill.engines.refusals import cycle, over_limit
from taskmill.engines.rows import ON_FAILURE_NUMBERS, UNIQUE_ENDED, UNIQUE_STARTED, encode_meta, encode_retry
from taskmill.engines.settings import Settings
from taskmill.errors import Conflict, InvalidInput, InvalidPayload, NotFound, StoreError, TaskmillError
from taskmill.task import DEFAULT_DEDUPE_WINDOW, NewTask, OnLimit, Resolved, check_id, definition_of

__all__ = ["Together", "as_document", "document", "make_names", "refusal", "submit"]

PATIENCE = 100
"""Milliseconds that a batch waits for an id or a key which somebody's open transaction holds; alone, a task waits for as long as the URL's busy_timeout."""
ROUNDS = 20
SMALL = 20
"""Tasks of a call that may go together with others'."""
PARENT = 10
"""Added to the number of on_failure where the other task is the one that waits."""


async def submit(
    store: Store,
    tasks: Sequence[NewTask],
    *,
    unseal: Sequence[str] = (),
    reserved: bool = False,
    db: Any = None,
    turn: asyncio.Lock | None = None,
    durability: Durability | None = None,
) -> list[Submitted]:
    """`db`: the user's connection, in the user's transaction. `turn`: held while the store is asked. `durability`: where this commit goes further."""
    if reserved:
        return await _reserve(store, tasks, db, durability)
    step = _Step(store, tasks, db, turn)
    step.durability = durability
    await step.ask(range(len(tasks)), PATIENCE, unseal)
    if step.again:
        await step.ask_again()
    await step.settle(unseal)
    return [step.answers[place] for place in range(len(tasks))]


async def make_names(store: Store, db: Any, lines: str) -> None:
    """The queues and lanes of these lines, made beside the transaction that `db` is in; a user's has its own way."""
    if hasattr(db, "make_names"):
        await db.make_names(lines)
    else:
        await store.pool.fetch(store.load("submit.sql").make_names, lines)


class Together:
    """Small submits of one process that come at once are one call, and one commit."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._turn = asyncio.Lock()
        self._batcher: Batcher[Sequence[NewTask], _Step] = Batcher(self._send, most=10_000 // SMALL)

    async def submit(self, tasks: Sequence[NewTask]) -> list[Submitted]:
        """What must be asked again is asked by each caller for itself, so that nobody waits for what another's task meets. Large ones go one after the
        other, in the order they came: while one is being written the next is prepared, which takes as long."""
        if not 0 < len(tasks) <= SMALL:
            return await submit(self._store, tasks, turn=self._turn)
        step = await self._batcher.add(tasks)
        if step.again:
            await step.ask_again()
            await step.settle()
        return [step.answers[place] for place in range(len(tasks))]

    async def _send(self, calls: list[Sequence[NewTask]]) -> list[_Step]:
        whole = _Step(self._store, [new for tasks in calls for new in tasks], None)
        await whole.ask(range(len(whole.tasks)), PATIENCE)
        await whole.settle()
        return whole.divided(calls)


class _Step:
    """The calls that one submit takes: one, unless it meets settings that have changed, missing names, or somebody's open transaction."""

    def __init__(self, store: Store, tasks: Sequence[NewTask], db: Any, turn: asyncio.Lock | None = None) -> None:
        self.store = store
        self.tasks = tasks
        self.db = db
        self.turn = turn or contextlib.nullcontext()
        self.durability: Durability | None = None
        self.answers: dict[int, Submitted] = {}
        self.again: list[int] = []

    async def ask(self, places: Sequence[int], patience: int, unseal: Sequence[str] = (), *, hashed: bool = False) -> None:
        """One batch. What must be asked again, because others hold it back, is in `again`. `hashed`: with the hash of every payload, for reserved ids."""
        for _ in range(ROUNDS):
            batch = _Batch(self.store.settings)
            for place in places:
                batch.add(place, self.tasks[place])
            batch.hashed = hashed
            await self._walk(batch)
            rows = await self._call(batch, unseal, patience) if batch.ids or batch.refused or unseal else []
            if not rows or rows[0]["place"] != 0:
                return self._take(batch, rows)
            await self._prepare(rows[0], batch)
        raise StoreError("the settings change all the time", code="store_busy", hint="nothing was written, ask again")

    async def _walk(self, batch: _Batch) -> None:
        """Tasks that wait, and are waited for by one that is stored: what that one's way leads to is part of their circle."""
        if batch.may_close_circles():
            rows = await (self.db or self.store.pool).fetch(self.store.load("submit.sql").walk, batch.awaited())
            batch.stored = [(row["parent"], row["child"]) for row in rows]

    async def _call(self, batch: _Batch, unseal: Sequence[str], patience: int) -> list[Any]:
        store = self.store
        opened = [check_id(task, "unseal") for task in unseal] or None
        arguments = (*batch.arguments(), opened, store.generation, patience, self.db is None, store.now())
        statement = store.load("submit.sql").submit
        if self.db is None:
            async with self.turn:
                return await store.pool.fetch_durably(self.durability, statement, *arguments, timeout=store.pool.target.patience + patience * MILLISECOND)
        try:
            rows: list[Any] = await self.db.fetch(statement, *arguments)
        except FAILURES as error:
            raise translate(error, store.pool.target) from error
        return rows

    async def _prepare(self, row: Any, batch: _Batch) -> None:
        """Settings are read anew; lanes that a user's transaction would have to make are made outside of it."""
        if row["status"] == "unknown":
            raise NotFound(f"there is no task {row['id']}", field="unseal")
        if row["status"] == "names":
            await make_names(self.store, self.db, batch.lines_text())
        else:
            await self.store.read_settings(self.db)

    def _take(self, batch: _Batch, rows: Iterable[Any]) -> None:
        durability = self.durability or self.store.durability
        for place, error in batch.refused.items():
            self.answers[place] = Submitted(Status.REFUSED, self.tasks[place].id, durability, False, error)
        for place in batch.places:
            self.answers[place] = Submitted(Status.CREATED, self.tasks[place].id, durability)
        self.again = []
        for row in rows:
            place = batch.places[row["place"] - 1]
            if row["status"] == "busy" and (row["code"] != "compare" or _is_stored(self.tasks[place], row["message"])):
                self.again.append(place)
            self.answers[place] = _answer(self.tasks[place], row, durability)
        for place, first in batch.repeated:
            if self.answers[first].status is Status.REFUSED:
                self.again.append(place)
            same = self.tasks[place].payload == self.tasks[first].payload or _is_same(self.tasks[place], codec.payload_hash(self.tasks[first].payload))
            repeats = self.answers[first].status is Status.REJECTED and same
            self.answers[place] = self.answers[first] if repeats else _compared(self.answers[first].id, durability, same=same)

    async def settle(self, unseal: Sequence[str] = ()) -> None:
        """Edges onto tasks that have ended fall before the answer. In a user's transaction they fall after its commit."""
        if self.db is None and (unseal or any(new.edges or new.parent for new in self.tasks)):
            await self.store.settle()

    def divided(self, calls: Sequence[Sequence[NewTask]]) -> list[_Step]:
        """The step as each of its callers would have seen it alone."""
        steps, first = [], 0
        for tasks in calls:
            step = _Step(self.store, tasks, None)
            step.answers = {place: self.answers[first + place] for place in range(len(tasks))}
            step.again = [place - first for place in self.again if first <= place < first + len(tasks)] if self.again else []
            steps.append(step)
            first += len(tasks)
        return steps

    async def ask_again(self) -> None:
        """Each alone, or all together where they wait for each other, until the time is over that one alone may take."""
        with applied() if self.db is None else contextlib.nullcontext():
            await self._ask_again(self.again)

    async def _ask_again(self, again: Sequence[int]) -> None:
        clock = time.monotonic
        deadline = clock() + self.store.pool.target.busy_timeout / SECOND
        linked = any(self.tasks[place].edges or self.tasks[place].parent for place in again)
        for places in [again] if linked else [[place] for place in again]:
            await self.ask(places, max(round((deadline - clock()) * 1_000), 1), hashed=True)
            if linked and self.again:  # the first that is in flight was waited for: the next may be
                await self.ask(places, max(round((deadline - clock()) * 1_000), 1), hashed=True)


class _Batch:
    """Tasks as arrays, one element each, and what keeps some of them from being sent. An array that nobody needs is not sent."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.places: list[int] = []
        self.refused: dict[int, TaskmillError] = {}
        self.repeated: list[tuple[int, int]] = []
        self.ids: list[str] = []
        self.payloads: list[str] = []
        self.line: list[int] = []
        self.resolved: list[Resolved] = []
        self.hashed = False
        self.stored: list[tuple[str, str]] = []
        """Open edges of the store that edges of this batch lead to."""
        self._lines: dict[tuple[Any, ...], int] = {}
        self._seen: dict[str, int] = {}

    def add(self, place: int, new: NewTask) -> None:
        try:
            resolved = self.settings.resolve(new)
            if resolved.limits:
                self._check_limits(resolved)
            payload = _text(new.payload)
        except TaskmillError as error:
            self.refused[place] = error
            return
        if self._seen.setdefault(new.id, place) != place:
            self.repeated.append((place, self._seen[new.id]))
            return
        key = (
            *(new.type, resolved.queue, new.tenant, resolved.priority, resolved.timeout, resolved.max_crashes, resolved.retry, resolved.share),
            *(resolved.limits, resolved.order_key, resolved.on_limit, resolved.idempotency_window),
        )
        self.places.append(place)
        self.ids.append(new.id)
        self.payloads.append(payload)
        self.line.append(self._lines.setdefault(key, len(self._lines) + 1))
        self.resolved.append(resolved)

    def _check_limits(self, resolved: Resolved) -> None:
        for name in resolved.limits:
            definition = definition_of(name)
            if definition not in self.settings.limits:
                raise InvalidInput(
                    f"there is no limit {definition!r}", code="unknown_limit", field="limits", hint="put it first, or start a worker whose app declares it"
                )

    def lines_text(self) -> str:
        return msgspec.json.encode([_line(*key) for key in self._lines]).decode()

    def arguments(self) -> tuple[Any, ...]:
        """Those of the function, as far as `p_sealed`."""
        self._refuse_cycles()
        news = [resolved.new for resolved in self.resolved]
        keys = _sparse([new.idempotency_key for new in news])
        uniques = [_unique(number, resolved) for number, resolved in enumerate(self.resolved, 1) if resolved.unique is not None]
        sealed = [number for number, new in enumerate(news, 1) if new.sealed]
        return (
            self.ids,
            self.payloads,
            self.line,
            self.lines_text(),
            _sparse([new.run_at for new in news]),
            _sparse([new.delay for new in news]),
            _sparse([new.expires_at for new in news]),
            _sparse([encode_meta(resolved) for resolved in self.resolved]),
            _sparse([msgspec.json.encode(new.tags).decode() if new.tags else None for new in news]),
            keys,
            [codec.payload_hash(new.payload) if self.hashed or new.idempotency_key is not None else None for new in news] if keys or self.hashed else None,
            msgspec.json.encode(uniques).decode() if uniques else None,
            *self._edges(news),
            sealed or None,
        )

    def _edges(self, news: Sequence[NewTask]) -> tuple[list[int] | None, list[str] | None, list[int | None] | None, list[int] | None]:
        """Four arrays: whose edge it is, the other task, where that stands in this batch, and its kind; those of parents after all others."""
        own = [(number, edge, 0) for number, new in enumerate(news, 1) for edge in new.edges]
        own += [(number, new.parent, PARENT) for number, new in enumerate(news, 1) if new.parent is not None]
        if not own:
            return None, None, None, None
        at = {id: number for number, id in enumerate(self.ids, 1)}
        return (
            [number for number, _, _ in own],
            [edge.task for _, edge, _ in own],
            [at.get(edge.task) for _, edge, _ in own],
            [ON_FAILURE_NUMBERS[edge.on_failure] + kind for _, edge, kind in own],
        )

    def may_close_circles(self) -> bool:
        """Only a task that waits, and that a stored one waits for, can close a circle over what is stored."""
        return any(resolved.new.parent for resolved in self.resolved) and any(resolved.new.edges for resolved in self.resolved)

    def awaited(self) -> list[str]:
        return list({edge.task for resolved in self.resolved for edge in resolved.new.edges})

    def _refuse_cycles(self) -> None:
        """Tasks that wait for each other could never run."""
        waits = {resolved.new.id: {edge.task for edge in resolved.new.edges} for resolved in self.resolved if resolved.new.edges or resolved.new.parent}
        if not waits:
            return
        for resolved in self.resolved:
            if resolved.new.parent is not None:
                waits.setdefault(resolved.new.parent.task, set()).add(resolved.new.id)
        for parent, child in self.stored:
            waits.setdefault(parent, set()).add(child)
        if stuck := circles(waits):
            self._leave_out(stuck)

    def _leave_out(self, ids: Container[str]) -> None:
        error = cycle()
        kept = [number for number, id in enumerate(self.ids) if id not in ids]
        self.refused |= {place: error for place, id in zip(self.places, self.ids, strict=True) if id in ids}
        self.places = [self.places[number] for number in kept]
        self.ids = [self.ids[number] for number in kept]
        self.payloads = [self.payloads[number] for number in kept]
        self.line = [self.line[number] for number in kept]
        self.resolved = [self.resolved[number] for number in kept]


def document(settings: Settings, tasks: Sequence[NewTask]) -> str:
    """The tasks as `submit_document` takes them; the first that cannot be stored is raised."""
    batch = _Batch(settings)
    for place, new in enumerate(tasks):
        batch.add(place, new)
    arguments = batch.arguments()
    for error in batch.refused.values():
        raise error
    return msgspec.json.encode(as_document(arguments)).decode()


_MEMBERS = (
    *("ids", "payloads", "line", "lines", "run_at", "delay", "expires_at", "meta", "tags", "key", "hash", "uniques"),
    *("edge_of", "edge_to", "edge_at", "edge_kind", "sealed", "unseal"),
)


def as_document(arguments: Sequence[Any]) -> dict[str, Any]:
    """The function's arguments, as far as they are about tasks, as members of the document that `submit_document` takes; it may end before `unseal`."""
    found = dict(zip(_MEMBERS, arguments, strict=False))
    found["lines"] = msgspec.Raw(found["lines"].encode())
    if found["uniques"] is not None:
        found["uniques"] = msgspec.Raw(found["uniques"].encode())
    if found["hash"] is not None:
        found["hash"] = [None if hashed is None else hashed.hex() for hashed in found["hash"]]
    return {name: value for name, value in found.items() if value is not None}


def _text(payload: bytes) -> str:
    try:
        text = payload.decode()
    except UnicodeDecodeError as error:
        raise InvalidPayload(f"byte {error.start} is not UTF-8", code="invalid_utf8", field="payload", hint="send JSON in UTF-8") from None
    if "\0" in text:
        raise InvalidPayload("it holds a byte 0", code="invalid_json", field="payload", hint="send one JSON value in UTF-8")
    return text


def _sparse(column: list[Any]) -> list[Any] | None:
    """NULL for a column that nobody uses."""
    return column if any(item is not None for item in column) else None


def _line(
    type: str, queue: str, tenant: str, priority: int, timeout: int, max_crashes: int, retry: Any, share: str, limits: tuple[str, ...], order_key: str | None,
    on_limit: OnLimit, span: int,
) -> dict[str, Any]:  # fmt: skip
    line: dict[str, Any] = {"type": type, "queue": queue, "priority": priority, "timeout": timeout, "max_crashes": max_crashes}
    rare = {"tenant": tenant, "retry": encode_retry(retry), "share": share, "limits": limits, "order_key": order_key}
    line |= {name: value for name, value in rare.items() if value}
    if limits and on_limit is OnLimit.REJECT:
        line["rejects"] = True
    if span != DEFAULT_DEDUPE_WINDOW:
        line["span"] = span
    return line


def _unique(number: int, resolved: Resolved) -> dict[str, Any]:
    unique = resolved.unique
    assert unique is not None
    flag = UNIQUE_STARTED if unique.until == "started" else UNIQUE_ENDED
    return {"place": number, "key": unique.key, "flag": flag, "replaces": unique.on_conflict == "replace"}


# Answers


def _answer(new: NewTask, row: Any, durability: Durability) -> Submitted:
    _, status, first, reserved, code, message = row
    first = first or new.id
    match status:
        case "duplicate" | "conflict" | "busy" if code == "compare":
            return _compared(first, durability, same=_is_stored(new, message))
        case "duplicate" | "replaced" | "created":
            return Submitted(Status(status), first, durability, reserved)
        case "conflict" if code == "unique_runs":
            runs = Conflict(f"task {first} holds the unique key and runs", field="unique", hint="wait until it has ended")
            return Submitted(Status.CONFLICT, first, durability, False, runs)
        case "conflict":
            return _compared(first, durability, same=False)
        case "rejected" if message is None or _is_stored(new, message):
            return _rejected(new, code, durability)
        case "rejected":
            return _compared(first, durability, same=False)
    return Submitted(Status.REFUSED, new.id, durability, False, refusal(new, code, message))


def _rejected(new: NewTask, times: str, durability: Durability) -> Submitted:
    """`times`: when it was judged, and when its rates have room again, where one is full."""
    now, _, retry_at = times.partition(" ")
    return Submitted(Status.REJECTED, new.id, durability, False, over_limit(int(now), int(retry_at) if retry_at else None))


def _compared(first: str, durability: Durability, *, same: bool) -> Submitted:
    if same:
        return Submitted(Status.DUPLICATE, first, durability)
    error = Conflict(f"task {first} has the same id or key and another payload", field="payload", hint="use another key, or submit the same payload")
    return Submitted(Status.CONFLICT, first, durability, False, error)


def _is_stored(new: NewTask, stored: str) -> bool:
    """`stored`: the payload that is there, or the hash that is remembered of it."""
    if stored.startswith("hash:"):
        return _is_same(new, bytes.fromhex(stored.removeprefix("hash:")))
    payload = stored.encode()
    return payload == new.payload or _is_same(new, codec.payload_hash(payload))


def _is_same(new: NewTask, payload_hash: bytes) -> bool:
    return codec.payload_hash(new.payload) == payload_hash


def refusal(new: NewTask, code: str | None, message: str | None) -> TaskmillError:
    """Why the store did not take it."""
    match code:
        case "unknown_edge":
            return NotFound(f"there is no task {message} to wait for", code=code, field="edges", hint="submit it first, or in the same batch")
        case "no_seal":
            hint = "submit it sealed, and unseal it with the last of its children"
            return Conflict(f"task {message} has no seal: it cannot wait for more", code=code, field="parent", hint=hint)
        case "reject_in_transaction":
            hint = "submit it after the transaction, or let it wait with on_limit=delay"
            return Conflict("a limit that rejects cannot be judged before the transaction commits", code=code, field="on_limit", hint=hint)
        case "key_in_flight" | "id_in_flight" | "parent_in_flight":
            held = {"key_in_flight": "its key", "id_in_flight": "its id", "parent_in_flight": "the task that is to wait for it"}[code]
            field = {"key_in_flight": "idempotency_key", "id_in_flight": "id", "parent_in_flight": "parent"}[code]
            return Conflict(f"{held} is held by an open transaction", code="key_in_flight", field=field, hint="submit it again when that has ended")
        case "names_too_long":
            return InvalidInput("its keys are too long together", code=code, field="limits", hint="use shorter keys, or fewer limits")
    said = f"it is not JSON that PostgreSQL reads: {(message or '')[:200]}"
    return InvalidPayload(said, code="invalid_json", field="payload", hint="send one JSON value in UTF-8")


# Reserved


async def _reserve(store: Store, tasks: Sequence[NewTask], db: Any, durability: Durability | None) -> list[Submitted]:
    """Ids and keys are remembered, for a log that will bring the tasks."""
    ask = partial(store.pool.fetch_durably, durability) if db is None else db.fetch
    rows = await ask(
        store.load("submit.sql").reserve,
        [check_id(new.id) for new in tasks],
        [new.type for new in tasks],
        [new.tenant for new in tasks],
        [new.idempotency_key for new in tasks],
        [codec.payload_hash(new.payload) for new in tasks],
        [new.idempotency_window or store.settings.rules.dedupe_window for new in tasks],
        PATIENCE,
        store.now(),
    )
    return [_reserved(new, row, durability or store.durability) for new, row in zip(tasks, rows, strict=True)]


def _reserved(new: NewTask, row: Any, durability: Durability) -> Submitted:
    if row["status"] == "busy":
        return Submitted(Status.REFUSED, new.id, durability, False, refusal(new, row["code"], None))
    if row["status"] == "conflict" or (row["code"] == "compare" and not _is_stored(new, row["message"])):
        return _compared(row["id"], durability, same=False)
    return Submitted(Status(row["status"]), row["id"], durability, row["reserved"])
