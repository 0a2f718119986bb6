"""The verbs of `operations` for callers that have a server instead of a store: the same names, answers and errors.

Submits that are made while others are under way go together in one request. Every task has its id before it is sent, so a request whose answer got lost is sent
again as it was: what had arrived is known by its id and stays one task.
"""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw

from taskmill.batching import Batcher, batches
from taskmill.client.administration import Administration
from taskmill.client.http import Http
from taskmill.client.problems import Problem, error_of, understood, unexpected
from taskmill.client.records import attempt_of, edge_of, given_fields, query_of, task_body, task_of
from taskmill.client.waiting import Waits
from taskmill.engine import EVERYTHING, Durability, Filter, Page, Status, Submitted, Target
from taskmill.errors import InvalidInput, ResultTimeout, StoreError
from taskmill.operations import Tally, bulk, submitted
from taskmill.task import Attempt, EdgeResult, NewTask, State, Task, check_id, new_id

__all__ = ["RemoteOperations", "Sent"]

TASKS = "/api/v1/tasks"
BATCH = 500
BATCH_BYTES = 8_000_000
"""Of a request: a server takes four times as much."""
AT_ONCE = 4
"""Requests with submits that are under way at the same time: enough that a long way does not bound the rate, few enough that tasks gather."""

Which = Sequence[Target] | Filter


class Sent(NamedTuple):
    """A task on its way. `own`: its id was made here, so nobody else can have submitted it."""

    id: str
    own: bool
    data: bytes


class _Item(msgspec.Struct, frozen=True):
    id: str | None = None
    status: Status = Status.REFUSED
    durability: Durability = Durability.LOCAL
    error: Problem | None = None


class _Batch(msgspec.Struct, frozen=True):
    answers: list[_Item]


class _Tasks(msgspec.Struct, frozen=True):
    tasks: list[dict[str, Raw]]
    cursor: str | None


class _Attempts(msgspec.Struct, frozen=True):
    attempts: list[dict[str, Raw]]


class _Edges(msgspec.Struct, frozen=True):
    edges: list[dict[str, Raw]]


class _Tally(msgspec.Struct, frozen=True):
    matched: int
    done: int
    requested: int
    refused: dict[str, int]


class RemoteOperations(Administration):
    """The verbs over one server, for the callers of one event loop."""

    def __init__(self, http: Http) -> None:
        super().__init__(http)
        self._submits: Batcher[Sent, Submitted] = Batcher(self._send, BATCH, at_once=AT_ONCE, size=_size, most_size=BATCH_BYTES)
        self._waits = Waits(http)

    async def drain(self) -> None:
        """Until every submit that was begun has been answered."""
        await self._submits.drain()

    async def close(self) -> None:
        self._waits.close()
        await self.http.close()

    # Submitting

    async def submit(self, new: NewTask, *, durability: Durability | None = None) -> Submitted:
        """One task; concurrent callers share one request. Raises what became of it unless it exists now."""
        return submitted(await self.offer(_sent(new, durability)))

    async def offer(self, sent: Sent) -> Submitted:
        """The same with what became of it as the answer."""
        return await self._submits.add(sent)

    async def submit_many(self, new: Iterable[NewTask], *, durability: Durability | None = None) -> tuple[Submitted, ...]:
        """Any number, in batches; the answers in their order, refusals among them (`submitted` raises those)."""
        return await self.offer_many(_sent(task, durability) for task in new)

    async def offer_many(self, tasks: Iterable[Sent]) -> tuple[Submitted, ...]:
        """One batch after the other, in their order: one task may wait for another that stands before it."""
        answers: list[Submitted] = []
        for batch in batches(tasks, BATCH, _size, BATCH_BYTES):
            found = await self._send(batch)
            answers += found
            if isinstance(found[0].error, StoreError) and all(isinstance(answer.error, StoreError) for answer in found):
                raise found[0].error
        return tuple(answers)

    async def _send(self, batch: Sequence[Sent]) -> list[Submitted]:
        body = b'{"tasks":[' + b",".join([sent.data for sent in batch]) + b"]}"
        try:
            answered = await self.http.ask("POST", f"{TASKS}:batch", body)
        except StoreError as error:  # each of them is told its id, with which it may be submitted again
            return [Submitted(Status.REFUSED, sent.id, Durability.LOCAL, error=copy.copy(error)) for sent in batch]
        items = understood(answered.data, _Batch).answers
        if len(items) != len(batch):
            raise unexpected(f"{len(items)} answers came for {len(batch)} tasks")
        return [_submitted(sent, item, repeated=answered.repeated) for sent, item in zip(batch, items, strict=True)]

    async def unseal(self, ids: Sequence[str]) -> None:
        """Break the seals: all that these tasks wait for has been submitted (`parent=`), and they start when it has ended."""
        for id in ids:
            await self.http.ask("POST", f"{TASKS}/{check_id(id)}:unseal", b"{}")

    # Looking

    async def _get(self, path: str, kind: type[Any], query: Sequence[tuple[str, str]] = ()) -> Any:
        return understood((await self.http.ask("GET", path, query=query)).data, kind)

    async def _post(self, path: str, body: Mapping[str, object], kind: type[Any]) -> Any:
        return understood((await self.http.ask("POST", path, msgspec.json.encode(body))).data, kind)

    async def get(self, id: str) -> Task:
        """The whole record. NotFound, or Expired with the state it ended in."""
        return task_of(await self._get(f"{TASKS}/{check_id(id)}", dict[str, Raw]))

    async def attempts(self, id: str) -> tuple[Attempt, ...]:
        """Every attempt, oldest first."""
        found: _Attempts = await self._get(f"{TASKS}/{check_id(id)}/attempts", _Attempts)
        return tuple(attempt_of(each) for each in found.attempts)

    async def edges(self, id: str, *, after: int = 0, n: int = 1_000) -> tuple[EdgeResult, ...]:
        """What the task waits or waited for, in order."""
        found: _Edges = await self._get(f"{TASKS}/{check_id(id)}/edges", _Edges, [("after", str(after)), ("limit", str(n))])
        return tuple(edge_of(each) for each in found.edges)

    async def list(self, which: Filter = EVERYTHING, *, after: str | None = None, n: int = 100) -> Page:
        """A page, newest first; its cursor is the next one's `after`."""
        query = [*query_of(which), ("limit", str(n)), *([] if after is None else [("cursor", after)])]
        found: _Tasks = await self._get(TASKS, _Tasks, query)
        return Page(tuple(task_of(each) for each in found.tasks), found.cursor)

    async def stream(self, which: Filter = EVERYTHING, *, n: int = 500) -> AsyncIterator[Page]:
        """Every page, to the end."""
        cursor = None
        while True:
            page = await self.list(which, after=cursor, n=n)
            yield page
            cursor = page.cursor
            if cursor is None:
                return

    async def count(self, which: Filter = EVERYTHING) -> int:
        """How many match."""
        found: dict[str, int] = await self._get(f"{TASKS}:count", dict[str, int], query_of(which))
        return found["count"]

    # Waiting

    async def wait(self, ids: Sequence[str], timeout: int | None = None) -> dict[str, State]:
        """Those that have ended, as soon as one has; what is there when the time is over. None: for ever."""
        for id in ids:
            check_id(id)
        if len(ids) != 1:
            return await self._waits.any(ids, timeout) if ids else {}
        state = await self._waits.wait(ids[0], timeout)
        return {} if state is None else {ids[0]: state}

    async def result(self, id: str, timeout: int | None = None) -> Task:
        """The record once it has ended; ResultTimeout when the time is over before."""
        if not await self.wait([id], timeout):
            raise ResultTimeout(f"task {id} has not ended yet", task_id=id, hint="it goes on; wait longer, or look at it later")
        return await self.get(id)

    async def signal(self, id: str, name: str, data: bytes = b"null", *, signal_id: str | None = None) -> int:
        """Send a task a named value, once by its signal id; answers its number."""
        body = {"name": name, "data": Raw(data), "id": signal_id or new_id()}
        found: dict[str, int] = await self._post(f"{TASKS}/{check_id(id)}:signal", body, dict[str, int])
        return found["number"]

    # Changing many

    async def cancel(self, which: Which, *, dry_run: bool = False) -> Tally:
        """Waiting tasks are cancelled, running ones told."""
        return await self._change("cancel", which, dry_run=dry_run)

    async def requeue(self, which: Which, *, from_start: bool = False, dry_run: bool = False) -> Tally:
        """Ended tasks are ready again, from their checkpoints unless `from_start`. With a filter that names no state: the dead ones."""
        return await self._change("requeue", which, dry_run=dry_run, from_start=from_start)

    async def delete(self, which: Which, *, dry_run: bool = False) -> Tally:
        """The records of ended tasks are removed."""
        return await self._change("delete", which, dry_run=dry_run)

    async def _change(self, verb: str, which: Which, **words: bool) -> Tally:
        body: dict[str, object] = {name: True for name, said in words.items() if said}
        if isinstance(which, Filter):
            body |= {"filter": _filter_body(which), "confirm": True}
        elif not which:
            return Tally()
        else:
            body["ids"] = [_unversioned(target) for target in bulk.targets(which)]
        found: _Tally = await self._post(f"{TASKS}:{verb}", body, _Tally)
        return Tally(matched=found.matched, done=found.done, requested=found.requested, refused=found.refused)


def _sent(new: NewTask, durability: Durability | None) -> Sent:
    return Sent(new.id, False, task_body(new.type, new.payload, new.id, given_fields(new), durability=durability))


def _size(sent: Sent) -> int:
    return len(sent.data)


def _submitted(sent: Sent, item: _Item, *, repeated: bool) -> Submitted:
    """A task that was sent twice is a duplicate of itself; to its caller it was created."""
    status = item.status
    if repeated and sent.own and status is Status.DUPLICATE and item.id == sent.id:
        status = Status.CREATED
    return Submitted(status, item.id or sent.id, item.durability, error=None if item.error is None else error_of(item.error))


def _filter_body(which: Filter) -> dict[str, object]:
    body: dict[str, Any] = {}
    for name, value in query_of(which):
        if name in {"state", "type", "queue", "tag"}:
            body.setdefault(name, []).append(value)
        else:
            body[name] = value
    return body


def _unversioned(target: Target) -> str:
    if target.version is not None:
        raise InvalidInput("many tasks are changed whatever their version", field="version", hint="change one with its version: client.change")
    return check_id(target.task)
