"""Inspection: reads for people and surfaces, apart from the hot path. Lists are in listing.py."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from taskmill.engine import Count, Item, Record, Term, WorkerInfo
from taskmill.engines.redis.records import Body, Header, parts, task_from, under_lease
from taskmill.engines.redis.store import Store, items_of
from taskmill.engines.rows import COMPLETED, ON_FAILURE, RUNNING, STATES, decode_error
from taskmill.errors import Expired, InvalidInput, NotFound
from taskmill.task import Attempt, EdgeResult, Gone, Signal, State, Task, check_name

__all__ = ["attempts", "check_records", "counts", "edges", "ended", "get", "items", "leaders", "look", "records", "workers"]

LOOK = 500
"""Records of one look."""
MOST_RECORDS = 1_000
WHOLE = 100
"""Whole records of one look."""

_decode = msgspec.msgpack.Decoder().decode


async def now_of(store: Store) -> int:
    if store.given is not None:
        return store.given.now()
    seconds, micros = await store.ask("TIME")
    return int(seconds) * 1_000_000 + int(micros)


class Known(msgspec.Struct, array_like=True, frozen=True):
    """What is left of a task whose record is gone; `elsewhere`: it was given to another shard; `awaited`: tasks wait for it that came before it."""

    state: int | bool
    version: int
    hash: str
    until: int
    elsewhere: bool = False
    awaited: bool = False


Found = tuple[Header, Body] | Known | None

_known = msgspec.msgpack.Decoder(Known).decode


async def look(store: Store, ids: Sequence[str]) -> tuple[int, list[Found]]:
    """The store's time, and what it has of each task: its record, what is left of it, or nothing."""
    now, found = 0, list[Found]()
    for first in range(0, len(ids), LOOK):
        (now, rows), raws = await store.run_raw("look", ids[first : first + LOOK])
        found += [_found(row, raws, now) for row in rows]
    return now, found


def _found(row: Any, raws: Sequence[bytes], now: int) -> Found:
    if row is False:
        return None
    raw = raws[row[0] - 1]
    if len(row) == 1:
        left = _known(raw)
        return left if left.until > now and not (left.elsewhere or left.awaited) else None
    header, body = parts(raw)
    return (under_lease(header, row[1]) if row[1] else header), body


async def get(store: Store, ids: Sequence[str]) -> tuple[Task | Gone | None, ...]:
    now, found = await look(store, ids)
    return tuple(_shown(id, one, now) for id, one in zip(ids, found, strict=True))


def _shown(id: str, one: Found, now: int) -> Task | Gone | None:
    if isinstance(one, Known):
        return Gone(id, None if one.state is False else STATES[one.state])
    return None if one is None else task_from(id, *one, now)


# One task


async def attempts(store: Store, task: str) -> tuple[Attempt, ...]:
    [found] = (await look(store, [task]))[1]
    if isinstance(found, Known):
        raise Expired(f"the record of task {task} is gone", field="task", hint="it was pruned or deleted")
    if found is None:
        raise NotFound(f"there is no task {task}", field="task")
    return _history(found[0], await store.ask("LRANGE", store.key(f"attempts:{task}"), 0, -1))


def _history(h: Header, beside: Iterable[bytes]) -> tuple[Attempt, ...]:
    """The attempts beside a record, and the one that lies in it."""
    earlier = [_attempt(_decode(found)) for found in beside]
    if h.token is False or h.claimed_at is False or any(attempt.token == int(h.token) for attempt in earlier):
        return tuple(earlier)
    outcome = {5: "completed", 6: "failed", 7: "cancelled"}.get(h.state)
    if outcome is None and h.state != RUNNING:
        return tuple(earlier)
    last = Attempt(
        number=h.executions, worker=str(h.worker), token=int(h.token), started_at=int(h.started_at or h.claimed_at), ended_at=int(h.finished_at) or None,
        outcome=outcome, error=decode_error(h.error if isinstance(h.error, str) else None),
    )  # fmt: skip
    return (*earlier, last)


def check_records(ids: Sequence[str]) -> None:
    if len(ids) > MOST_RECORDS:
        raise InvalidInput(f"{len(ids)} ids are too many", code="out_of_range", field="ids", hint=f"at most {MOST_RECORDS}")


async def records(store: Store, ids: Sequence[str]) -> tuple[Record | None, ...]:
    """Each whole and of one moment."""
    check_records(ids)
    found: list[Record | None] = []
    for first in range(0, len(ids), WHOLE):
        some = ids[first : first + WHOLE]
        rows, raws = await store.run_raw("whole", some)
        found += [None if row is False else _record(id, row, raws) for id, row in zip(some, rows, strict=True)]
    return tuple(found)


def _record(id: str, row: Sequence[Any], raws: Sequence[bytes]) -> Record:
    number, lease, attempts, steps, signals, edges, results = row
    header, body = parts(raws[number - 1])
    header = under_lease(header, lease) if lease else header
    rows = [_decode(raws[number - 1]) for number in edges[1::2]] if edges else []
    return Record(
        task=task_from(id, header, body, 0),
        attempts=_history(header, [raws[number - 1] for number in attempts or ()]),
        checkpoints=dict(zip(steps[::2], map(str.encode, steps[1::2]), strict=True)) if steps else {},
        signals=tuple(signal_of(*_decode(raws[number - 1])) for number in signals or ()),
        edges=tuple(_edge(child, row, result) for child, row, result in zip(edges[::2] if edges else (), rows, results or (), strict=True)),
    )


def signal_of(number: int, name: str, data: str, id: str, at: int) -> Signal:
    return Signal(number, name, data.encode(), id, at)


def _attempt(row: Sequence[Any]) -> Attempt:
    number, worker, token, started_at, ended_at, outcome, error = row
    return Attempt(number=number, worker=worker, token=token, started_at=started_at, ended_at=ended_at, outcome=outcome, error=decode_error(error or None))


async def edges(store: Store, task: str, after: int, n: int) -> tuple[EdgeResult, ...]:
    children = [child.decode() for child in await store.ask("ZRANGE", store.key(f"edge_order:{task}"), after, after + n - 1)]
    if not children:
        return ()
    rows = await store.ask("HMGET", store.key(f"edges:{task}"), *children)
    _, records = await look(store, children)
    results = [record[0].result if isinstance(record, tuple) else False for record in records]
    return tuple(_edge(child, _decode(row), result) for child, row, result in zip(children, rows, results, strict=True))


def _edge(child: str, row: Sequence[Any], own: str | bool) -> EdgeResult:
    """A fallen edge shows the child's own result, or what was kept of it."""
    _, on_failure, outcome, result, *kept = row
    state = None if outcome is False else STATES[outcome]
    if not (kept and kept[0]) and own is not False:
        result = own
    return EdgeResult(child, ON_FAILURE[on_failure], state, result.encode() if state is not None and isinstance(result, str) else None)


async def ended(store: Store, ids: Iterable[str]) -> dict[str, State | None]:
    """The final state of those that ended, None for those that live; what is not there at all is left out."""
    wanted = list(ids)
    found: dict[str, State | None] = {}
    for id, task in zip(wanted, await get(store, wanted), strict=True):
        if isinstance(task, Task):
            found[id] = task.state if STATES.index(task.state) >= COMPLETED else None
        elif task is not None:
            found[id] = task.state
    return found


# The whole store


async def counts(store: Store) -> tuple[Count, ...]:
    more, flat, oldest = True, [], []
    while more:
        more, flat, oldest = await store.run("counts", [])
    types = {name for raw in (await store.ask("HGETALL", store.key("workers"))).values() for name in _decode(raw)[1]}
    ages = {(queue, type, priority): at for queue, type, priority, at in oldest or ()}
    found = []
    for field, tasks in zip(flat[::2], flat[1::2], strict=True):
        queue, type, priority, number = field.split("\t")
        state = STATES[int(number)]
        pending = state is State.PENDING
        found.append(
            Count(
                queue=queue, type=type, priority=int(priority), state=state, tasks=int(tasks), no_worker=pending and type not in types,
                oldest=ages.get((queue, type, int(priority))) if pending else None,
            )
        )  # fmt: skip
    return tuple(sorted((count for count in found if count.tasks), key=lambda count: (count.queue, count.type, count.priority, count.state)))


async def items(store: Store, kind: str) -> tuple[Item, ...]:
    """An operator's setting stands over the declared one of the same name."""
    found = items_of(await store.ask("HGETALL", store.key(f"items:{kind}")))
    merged = {name: Item(kind=kind, name=name, value=item.value.encode(), version=item.version, operator=operator) for name, operator, item in found}
    return tuple(merged.values())


def commands(value: str | bool) -> tuple[str, ...]:
    """What an operator tells a worker."""
    command = msgspec.json.decode(value, type=dict[str, Any]).get("command") if isinstance(value, str) else None
    return () if command is None else (command,)


async def workers(store: Store, mono: int) -> tuple[WorkerInfo, ...]:
    found = await store.ask("HGETALL", store.key("workers"))
    told = {item.name: item.value.decode() for item in await items(store, "worker")}
    infos = []
    for name, raw in found.items():
        worker = name.decode()
        queues, types, lease, joined_at, info = _decode(raw)
        beat = await store.ask("ZSCORE", store.key("beats"), worker)
        silent = None if beat is None else max(0, mono - int(float(beat)))
        running = await store.ask("HLEN", store.key(f"run:{worker}"))
        command = told.get(worker)
        infos.append(
            WorkerInfo(
                id=worker, queues=tuple(queues or ()), types=tuple(types or ()), lease=lease, joined_at=joined_at, silent=silent,
                alive=silent is not None and silent <= lease, running=running, info=info or {},
                command=next(iter(commands(command)), None) if command else None,
            )
        )  # fmt: skip
    return tuple(sorted(infos, key=lambda worker: (worker.joined_at, worker.id)))


async def leaders(store: Store, roles: Sequence[str], mono: int, lasts: int) -> tuple[Term, ...]:
    """As the script `lead` judges it: a term that ends later than one could is of a clock that was set back."""
    found = []
    for role in roles:
        holder, number, until = await store.ask("HMGET", store.key(f"term:{check_name(role, 'roles')}"), "holder", "number", "until")
        if holder and mono < int(until or 0) <= mono + 2 * lasts:
            found.append(Term(role, holder.decode(), int(number)))
    return tuple(found)
