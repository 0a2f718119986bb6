"""Submit: every task of a batch stored once, or told why not. What becomes of each is decided by a script, in one call for a piece of the batch (place.lua)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec

from taskmill import codec
from taskmill.engine import Durability, Status, Submitted
from taskmill.engines.circles import circles
from taskmill.engines.redis.inspect import get, look, now_of
from taskmill.engines.redis.records import Body, body_of, entered
from taskmill.engines.redis.store import Store
from taskmill.engines.refusals import cycle, over_limit
from taskmill.engines.rows import ON_FAILURE_NUMBERS, REJECTED, UNIQUE_ENDED, UNIQUE_STARTED, encode_meta, encode_retry
from taskmill.engines.settings import Settings
from taskmill.errors import Conflict, InvalidInput, NotFound, StoreError, TaskmillError
from taskmill.task import TERMINAL, NewTask, OnLimit, Resolved, Task, check_id, definition_of

__all__ = ["Batch", "is_valid", "key_holder", "known_elsewhere", "refusal", "refused", "submit"]

PIECE = 200
"""Tasks of one script."""
ROUNDS = 20

_encode = msgspec.msgpack.Encoder().encode


async def submit(
    store: Store,
    tasks: Sequence[NewTask],
    *,
    unseal: Sequence[str] = (),
    reserved: bool = False,
    durability: Durability | None = None,
    elsewhere: Mapping[str, int] = MappingProxyType({}),
) -> list[Submitted]:
    """`elsewhere`: tasks that these wait for and that live in other shards, each with its own."""
    level = durability or store.target.durability
    store.shards.check_durability(level)
    if reserved:
        return await _reserve(store, tasks, level)
    opened = [check_id(task, "unseal") for task in unseal]
    linked = bool(opened) or any(new.edges or new.parent for new in tasks)
    size = max(len(tasks), 1) if linked else PIECE
    answers: list[Submitted] = []
    for first in range(0, max(len(tasks), 1), size):
        answers += await _piece(store, tasks[first : first + size], opened, level, elsewhere)
    return answers


async def _piece(store: Store, tasks: Sequence[NewTask], unseal: list[str], level: Durability, elsewhere: Mapping[str, int]) -> list[Submitted]:
    plain, hashed = not unseal, False
    for _ in range(ROUNDS):
        batch = Batch(store.settings, tasks, hashed=hashed)
        if not (batch.places or batch.refused or unseal):
            return batch.answers([], [], level)
        if plain and batch.is_plain():
            groups, records = batch.entered()
            found = await store.run("enter", [store.generation, groups], records, durability=level)
            if found is True:
                return batch.created(level)
            if found == "settings":
                await store.read_settings()
            else:
                plain = False
            continue
        sent: list[bytes] = []
        found, stored = await store.run_raw("submit", [store.generation, batch.packed(sent), unseal, dict(elsewhere)], sent, durability=level)
        if found == "settings":
            await store.read_settings()
        elif found == "hashes":
            hashed = True
        elif found and found[0] == "unknown":
            raise NotFound(f"there is no task {found[1]}", field="unseal")
        else:
            return batch.answers(found or [], stored, level)
    raise StoreError("the settings change all the time", code="store_busy", hint="nothing was written, ask again")


class Batch:
    """Tasks as the script takes them, and those that are not sent at all."""

    def __init__(self, settings: Settings, tasks: Sequence[NewTask], *, hashed: bool = False) -> None:
        """`hashed`: each says the hash of its payload, because the id of one is reserved and may be so for another payload."""
        self.tasks = tasks
        self.settings = settings
        self._hashed = hashed
        self.places: list[int] = []
        self.refused: dict[int, TaskmillError] = {}
        self._lines: dict[tuple[Any, ...], int] = {}
        self._sent: list[tuple[str, int, int, Any]] = []
        self._bodies: list[bytes] = []
        for place, new in enumerate(tasks):
            self._add(place, new)
        self._refuse_cycles()

    def _add(self, place: int, new: NewTask) -> None:
        try:
            resolved = self.settings.resolve(new)
            for name in resolved.limits:
                self._check_limit(name)
            payload = new.payload
        except TaskmillError as error:
            self.refused[place] = error
            return
        rejects = bool(resolved.limits) and resolved.on_limit is OnLimit.REJECT
        key = (
            *(new.type, resolved.queue, new.tenant, resolved.priority, resolved.share, resolved.limits, resolved.order_key or "", rejects),
            *(resolved.max_crashes, resolved.idempotency_window),
        )
        line = self._lines.setdefault(key, len(self._lines) + 1)
        meta = encode_meta(resolved)
        body = _encode(Body(payload, encode_retry(resolved.retry), resolved.timeout, meta))
        self.places.append(place)
        self._bodies.append(body)
        self._sent.append((new.id, line, len(payload) + len(meta or ""), _more(resolved, hashed=self._hashed)))

    def _check_limit(self, name: str) -> None:
        definition = definition_of(name)
        if definition not in self.settings.limits:
            raise InvalidInput(
                f"there is no limit {definition!r}", code="unknown_limit", field="limits", hint="put it first, or start a worker whose app declares it"
            )

    def _refuse_cycles(self) -> None:
        """Tasks that wait for each other could never run."""
        news = [self.tasks[place] for place in self.places]
        waits = {new.id: {edge.task for edge in new.edges} for new in news if new.edges or new.parent}
        for new in news:
            if new.parent is not None:
                waits.setdefault(new.parent.task, set()).add(new.id)
        stuck = circles(waits)
        for number in reversed([number for number, new in enumerate(news) if new.id in stuck]):
            self.refused[self.places[number]] = cycle()
            del self.places[number], self._sent[number], self._bodies[number]

    def is_plain(self) -> bool:
        """Whether nothing sets any of its tasks apart (enter.lua)."""
        if not self.places or any(more is not None for *_, more in self._sent) or len({id for id, *_ in self._sent}) < len(self._sent):
            return False
        return not any(share or limits or order for _, _, _, _, share, limits, order, *_ in self._lines)

    def entered(self) -> tuple[list[list[Any]], list[bytes]]:
        """As enter.lua takes it: groups of tasks that differ in nothing but their bodies, and these tasks."""
        lines = list(self._lines)
        arrays: dict[tuple[int, int], bytes] = {}
        groups: list[list[Any]] = []
        records: list[bytes] = []
        last = 0
        for (id, line, size, _), body in zip(self._sent, self._bodies, strict=True):
            type, queue, tenant, priority, _, _, _, _, max_crashes, _ = lines[line - 1]
            if line != last:
                groups.append([queue, type, priority, 0, tenant])
                last = line
            groups[-1][3] += 1
            array = arrays.get((line, size))
            if array is None:
                array = arrays[line, size] = entered(type, queue, tenant, priority, max_crashes, size)
            records += (id.encode(), array + body)
        return groups, records

    def packed(self, raws: list[bytes]) -> list[Any]:
        """As the script takes it; bodies go beside."""
        first = len(raws)
        raws += self._bodies
        names = ("type", "queue", "tenant", "priority", "share", "limits", "order_key", "rejects", "max_crashes", "span")
        sent = [[id, line, first + number, size, more] for number, (id, line, size, more) in enumerate(self._sent, 1)]
        return [[dict(zip(names, key, strict=True)) for key in self._lines], sent]

    def created(self, durability: Durability) -> list[Submitted]:
        """The answers where all that was sent is new."""
        made = [Submitted(Status.CREATED, new.id, durability) for new in self.tasks]
        for place, error in self.refused.items():
            made[place] = Submitted(Status.REFUSED, self.tasks[place].id, durability, error=error)
        return made

    def answers(self, found: Sequence[Any], raws: Sequence[bytes], durability: Durability) -> list[Submitted]:
        answers = {place: Submitted(Status.REFUSED, self.tasks[place].id, durability, False, error) for place, error in self.refused.items()}
        for place, answer in zip(self.places, found, strict=True):
            new = self.tasks[place]
            if len(answer) > 2 and answer[2] == "repeats":
                at = self.places[answer[3] - 1]
                first, same = answers[at], _same(new, self.tasks[at].payload)
                kept = first.status is Status.REFUSED or (first.status is Status.REJECTED and same)
                answers[place] = first if kept else _compared(first.id, durability, same=same)
            else:
                answers[place] = _answer(new, answer, raws, durability)
        return [answers[place] for place in range(len(self.tasks))]


def _more(resolved: Resolved, *, hashed: bool) -> dict[str, Any] | None:
    """What few tasks have."""
    new = resolved.new
    more: dict[str, Any] = {}
    for name in ("run_at", "delay", "expires_at"):
        value = getattr(new, name)
        if value is not None:
            more[name] = value
    if new.idempotency_key is not None:
        more["key"] = new.idempotency_key
    if hashed or new.idempotency_key is not None:
        more["hash"] = codec.payload_hash(new.payload).hex()
    if new.idempotency_window is not None:
        more["window"] = new.idempotency_window
    if resolved.unique is not None:
        unique = resolved.unique
        more["unique"] = [unique.key, UNIQUE_STARTED if unique.until == "started" else UNIQUE_ENDED, unique.on_conflict == "replace"]
    if new.edges:
        more["edges"] = [[edge.task, ON_FAILURE_NUMBERS[edge.on_failure]] for edge in new.edges]
    if new.parent is not None:
        more["parent"] = [new.parent.task, ON_FAILURE_NUMBERS[new.parent.on_failure]]
    if new.sealed:
        more["sealed"] = True
    return more or None


def _answer(new: NewTask, answer: Sequence[Any], raws: Sequence[bytes], durability: Durability) -> Submitted:
    status, first, code, message, more = (*answer, None, None, None, False)[:5]
    match status:
        case "rejected" if code != "compare" or _is_stored(new, message, raws):
            retry_at, now = more
            return Submitted(Status.REJECTED, first, durability, False, over_limit(now, retry_at or None))
        case "duplicate" | "rejected" if code == "compare":
            return _compared(first, durability, same=_is_stored(new, message, raws))
        case "created" | "duplicate" | "replaced":
            return Submitted(Status(status), first, durability, bool(more))
        case "conflict" if code == "unique_runs":
            runs = Conflict(f"task {first} holds the unique key and runs", field="unique", hint="wait until it has ended")
            return Submitted(Status.CONFLICT, first, durability, False, runs)
        case "conflict":
            return _compared(first, durability, same=False)
        case "elsewhere":
            raise StoreError(f"the id {first} was given to a task of another queue just now", code="store_busy", hint="ask again")
    return Submitted(Status.REFUSED, new.id, durability, False, refusal(code, message))


def refusal(code: str, message: str) -> TaskmillError:
    if code == "cycle":
        return cycle()
    if code == "no_seal":
        hint = "submit it sealed, and unseal it with the last of its children"
        return Conflict(f"task {message} has no seal: it cannot wait for more", code=code, field="parent", hint=hint)
    return NotFound(f"there is no task {message} to wait for", code="unknown_edge", field="edges", hint="submit it first, or in the same batch")


def is_valid(new: NewTask, settings: Settings) -> bool:
    """Whether it gets as far as the store."""
    try:
        settings.resolve(new)
    except TaskmillError:
        return False
    return True


def refused(settings: Settings, tasks: Sequence[NewTask], places: Sequence[int], durability: Durability | None) -> dict[int, Submitted]:
    """Those of a batch that are not sent at all, by their place."""
    level = durability or Durability.LOCAL
    found = Batch(settings, tasks).refused
    return {places[place]: Submitted(Status.REFUSED, tasks[place].id, level, False, error) for place, error in found.items()}


async def key_holder(store: Store, new: NewTask) -> str | None:
    """The task that has its idempotency key already."""
    if new.idempotency_key is None:
        return None
    raw = await store.ask("GET", store.key(f"d:{new.tenant}\t{new.type}\t{new.idempotency_key}"))
    if raw is None:
        return None
    first, _, until = msgspec.msgpack.decode(raw)
    [task] = await get(store, [first])
    live = isinstance(task, Task) and task.state not in TERMINAL
    return str(first) if live or until > await now_of(store) else None


async def known_elsewhere(store: Store, new: NewTask) -> Submitted:
    """The answer for a task whose id is another's, of this shard."""
    level = store.target.durability
    [found] = (await look(store, [new.id]))[1]
    if isinstance(found, tuple):
        same = _same(new, found[1].payload)
        if same and found[0].flags & REJECTED:
            return Submitted(Status.REJECTED, new.id, level, False, over_limit(0, None))
        return _compared(new.id, level, same=same)
    return _compared(new.id, level, same=found is None or found.hash == codec.payload_hash(new.payload).hex())


def _compared(first: str, durability: Durability, *, same: bool) -> Submitted:
    if same:
        return Submitted(Status.DUPLICATE, first, durability)
    error = Conflict(f"task {first} has the same id or key and another payload", field="payload", hint="use another key, or submit the same payload")
    return Submitted(Status.CONFLICT, first, durability, False, error)


def _is_stored(new: NewTask, stored: int | str, raws: Sequence[bytes]) -> bool:
    """`stored`: the body that is there, or the hash that is remembered of its payload."""
    if isinstance(stored, str):
        return codec.payload_hash(new.payload).hex() == stored.removeprefix("hash:")
    return _same(new, body_of(raws[stored - 1]).payload)


def _same(new: NewTask, payload: bytes) -> bool:
    return payload == new.payload or codec.payload_hash(payload) == codec.payload_hash(new.payload)


async def _reserve(store: Store, tasks: Sequence[NewTask], level: Durability) -> list[Submitted]:
    """Ids and keys are remembered, for a log that will bring the tasks."""
    window = store.settings.rules.dedupe_window
    sent = [
        [check_id(new.id), new.tenant, new.type, new.idempotency_key or False, codec.payload_hash(new.payload).hex(), new.idempotency_window or window]
        for new in tasks
    ]
    found, raws = await store.run_raw("reserve", sent, durability=level)
    answers = []
    for new, (status, first, reserved, body) in zip(tasks, found, strict=True):
        if status == "conflict" or (body and not _is_stored(new, body, raws)):
            answers.append(_compared(first, level, same=False))
        else:
            answers.append(Submitted(Status(status), first, level, reserved))
    return answers
