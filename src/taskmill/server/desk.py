"""Every verb of the server, once for all surfaces: what a caller may do, and with whose tasks.

    rest, grpc ──▶ desk ──▶ operations ──▶ engine

A surface says who calls; the desk asks for the scope, keeps the caller to its tenant, notes what is changed, and passes the verb on. The tenant of a task comes
from the key of whoever submits it and from nowhere else, and every id that a request names, be it in a list, as something to wait for or as a parent, is
looked up under it: a task of another tenant is as unknown as one that never was.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, TypeVar

from msgspec.json import encode
from msgspec.structs import replace

from taskmill.clock import Clock, rfc3339
from taskmill.engine import Changed, Durability, Filter, Page, Status, Submitted, Target
from taskmill.errors import Conflict, Expired, InvalidInput, NotFound, StaleVersion, TaskmillError
from taskmill.operations import Operations, QueueInfo, QueueSettings, Tally
from taskmill.server.access import Caller, Forbidden, Key, Keys, Scope, create_key, key_details, list_keys, new_key_id, revoke_key
from taskmill.server.audit import Audit, Detail
from taskmill.server.quotas import Quotas
from taskmill.task import TERMINAL, UUID, Attempt, Edge, EdgeResult, Gone, NewTask, State, Task, check_id, sequence_of

__all__ = ["Desk"]

MOST_NOTED = 100
"""Ids that the audit log has of one step."""
LOOKED_AT = 2_000
"""Tasks and edges that are judged before others have their turn."""
LOOKED_UP = 100
"""Tasks that are read at once to see whose they are: each may have half a megabyte."""

Answer = TypeVar("Answer")


class Desk:
    """The verbs over one open store, for callers of many tenants."""

    def __init__(self, operations: Operations, keys: Keys, quotas: Quotas, audit: Audit, clock: Clock) -> None:
        self.operations = operations
        self.keys = keys
        self.quotas = quotas
        self.clock = clock
        self._audit = audit

    def _deed(self, caller: Caller, action: str, target: str, **details: Detail) -> AbstractAsyncContextManager[None]:
        return self._audit.deed(action, target, key=caller.key, tenant=caller.tenant, details=details)

    # Submitting

    async def submit(self, caller: Caller, new: NewTask, durability: Durability | None = None) -> Submitted:
        """One task; concurrent callers share one commit. Raises what became of it unless it exists now."""
        caller.need(Scope.SUBMIT)
        new = _allowed(caller, new)
        if caller.tenant is None and caller.depth is None:
            return await self.operations.submit(new, durability=durability)
        await self.quotas.submit(caller, [new])
        _check_waits(new, await self._known(caller, [new]), frozenset())
        try:
            answer = await self.operations.submit(new, durability=durability)
        except Conflict as error:
            if error.task_id == new.id and await self._not_own(caller, [new.id]):
                raise _taken(new.id) from None
            raise
        if await self._foreign(caller, [new], [answer]):
            raise _taken(answer.id)
        return answer

    async def submit_many(self, caller: Caller, tasks: Sequence[NewTask], durability: Durability | None = None) -> tuple[Submitted, ...]:
        """Any number; the answers in their order, refusals among them: one that is refused keeps no other from being stored."""
        caller.need(Scope.SUBMIT)
        sequence_of(tasks)
        await self.quotas.submit(caller, tasks)
        refused: dict[int, TaskmillError] = {}
        sent: dict[int, NewTask] = {}
        known, beside = await self._known(caller, tasks), frozenset(new.id for new in tasks)
        looked = 0
        for place, new in enumerate(tasks):
            looked += 1 + len(new.edges)
            if looked > LOOKED_AT:
                looked = 0
                await asyncio.sleep(0)
            try:
                _check_waits(new, known, beside)
                sent[place] = _allowed(caller, new)
            except TaskmillError as error:
                refused[place] = error
        answers = dict(zip(sent, await self.operations.submit_many(list(sent.values()), durability=durability) if sent else (), strict=True))
        foreign = await self._foreign(caller, list(sent.values()), list(answers.values()))
        for place, answer in answers.items():
            if answer.id in foreign:
                refused[place] = _taken(answer.id)
        return tuple(_not_stored(new, refused[place], durability) if place in refused else answers[place] for place, new in enumerate(tasks))

    async def _known(self, caller: Caller, tasks: Sequence[NewTask]) -> Mapping[str, bool] | None:
        """Of all that these tasks wait for: whether it is the caller's own; what is not in it does not exist. None: the caller may wait for anything."""
        if caller.tenant is None:
            return None
        named = sorted({edge.task for new in tasks for edge in _waits(new)})
        ids = [id for id in named if UUID.fullmatch(id)]  # what is none is refused where it is used
        own: dict[str, bool] = {}
        for start in range(0, len(ids), LOOKED_UP):
            found = await self.operations.engine.get(ids[start : start + LOOKED_UP])
            for id, task in zip(ids[start : start + LOOKED_UP], found, strict=True):
                if task is not None:
                    own[id] = isinstance(task, Task) and task.tenant == caller.tenant
        return own

    async def _foreign(self, caller: Caller, tasks: Sequence[NewTask], answers: Sequence[Submitted]) -> frozenset[str]:
        """Ids of the caller's own making that were taken already, by tasks that are not the caller's."""
        known = (Status.DUPLICATE, Status.CONFLICT)
        return await self._not_own(caller, [answer.id for new, answer in zip(tasks, answers, strict=True) if answer.id == new.id and answer.status in known])

    async def _not_own(self, caller: Caller, ids: Sequence[str]) -> frozenset[str]:
        """Those of tasks that are another's, or whose record is gone: nobody knows any more whose they were, and whether a foreign one had the same payload
        is not to be learned by trying."""
        if caller.tenant is None:
            return frozenset()
        foreign: set[str] = set()
        for start in range(0, len(ids), LOOKED_UP):
            found = await self.operations.engine.get(ids[start : start + LOOKED_UP])
            foreign.update(task.id for task in found if isinstance(task, Gone) or (task is not None and task.tenant != caller.tenant))
        return frozenset(foreign)

    # Looking

    async def get(self, caller: Caller, id: str, scope: Scope = Scope.READ) -> Task:
        """The whole record. NotFound for one that is not there, or not the caller's; Expired with the state it ended in."""
        caller.need(scope)
        return await self._find(caller, id)

    async def _find(self, caller: Caller, id: str) -> Task:
        """Whoever has a tenant cannot tell a foreign task from none; of one whose record is gone nobody knows the tenant any more."""
        try:
            task = await self.operations.get(id)
        except InvalidInput:
            raise _unknown(id) from None
        except (Expired, Conflict):  # gone, or reserved: of neither the tenant is known
            if caller.tenant is not None:
                raise _unknown(id) from None
            raise
        if caller.tenant is not None and task.tenant != caller.tenant:
            raise _unknown(id)
        return task

    async def result(self, caller: Caller, id: str, timeout: int) -> Task:
        """The record as soon as the task has ended, or as it is when the time is over. One that is accepted and not yet here is waited for, too."""
        try:
            task = await self.get(caller, id)
        except Conflict:
            if not timeout:
                raise
        else:
            if not timeout and task.state not in TERMINAL:
                return task
        await self.operations.wait([id], timeout)
        return await self._find(caller, id)

    async def wait(self, caller: Caller, ids: Sequence[str], timeout: int) -> tuple[dict[str, State], list[str]]:
        """Those that have ended, as soon as one has, and those that the caller cannot see; of such nobody waits for the others."""
        caller.need(Scope.READ)
        for id in ids:
            check_id(id, "ids")
        if caller.tenant is None:
            with suppress(NotFound):
                return await self.operations.wait(ids, timeout), []
        seen: list[str] = []
        unknown: list[str] = []
        for id, found in zip(ids, await self.operations.engine.get(ids), strict=True):
            own = caller.tenant is None or (isinstance(found, Task) and found.tenant == caller.tenant)
            (seen if found is not None and own else unknown).append(id)
        return (await self.operations.wait(seen, 0 if unknown else timeout) if seen else {}), unknown

    async def attempts(self, caller: Caller, id: str) -> tuple[Attempt, ...]:
        await self.get(caller, id)
        return await self.operations.engine.attempts(id)

    async def edges(self, caller: Caller, id: str, *, after: int = 0, n: int = 1_000) -> tuple[EdgeResult, ...]:
        """What the task waits or waited for."""
        await self.get(caller, id)
        return await self.operations.engine.edges(id, after=after, n=n)

    async def list(self, caller: Caller, which: Filter, *, after: str | None, n: int) -> Page:
        caller.need(Scope.READ)
        return await self.operations.list(self._within(caller, which), after=after, n=n)

    async def count(self, caller: Caller, which: Filter) -> int:
        caller.need(Scope.READ)
        return await self.operations.count(self._within(caller, which))

    def _within(self, caller: Caller, which: Filter) -> Filter:
        if caller.tenant is None:
            return which
        if which.tenant not in (None, caller.tenant):
            raise Forbidden("this key is for another tenant", code="tenant_key", hint="leave the tenant out: it comes from the key")
        return replace(which, tenant=caller.tenant)

    async def signal(self, caller: Caller, id: str, name: str, data: bytes, signal_id: str | None) -> int:
        """Send a task a named value, once by its signal id; answers its number."""
        await self.get(caller, id, Scope.SUBMIT)
        return await self.operations.signal(id, name, data, signal_id=signal_id)

    async def unseal(self, caller: Caller, ids: Sequence[str]) -> None:
        """Break seals; a task of another tenant is as unknown as one that never was."""
        caller.need(Scope.SUBMIT)
        for id, task in zip(ids, await self.operations.engine.get(ids), strict=True):
            if not isinstance(task, Task) or caller.tenant not in (None, task.tenant):
                raise _unknown(id)
        await self.operations.unseal(ids)

    # Changing

    async def change(self, caller: Caller, verb: str, id: str, *, version: int | None = None, from_start: bool = False) -> Changed:
        """cancel, requeue or delete one task; refused with why it cannot be."""
        try:
            task = await self.get(caller, id, Scope.CANCEL)
        except Conflict:
            if verb != "cancel":  # the id of a task that is still to come can be cancelled, and nothing else
                raise
        else:
            if verb == "requeue" and version is None and task.state is State.COMPLETED:
                raise _needs_version(task)
        engine = self.operations.engine
        async with self._deed(caller, f"task.{verb}", id):
            target = [Target(id, version)]
            match verb:
                case "cancel":
                    changes = await engine.cancel(target)
                case "requeue":
                    changes = await engine.requeue(target, from_start=from_start)
                case _:
                    changes = await engine.delete(target)
            [changed] = changes.tasks
            if not changed.done:
                raise _refused(verb, changed)
        return changed

    async def change_many(
        self, caller: Caller, verb: str, which: Sequence[str] | Filter, *, dry_run: bool, from_start: bool = False, only: State | None = None
    ) -> Tally:
        """cancel, requeue or delete all that are named, or all that match; dry: only counted. `only`: those named must be in this state."""
        caller.need(Scope.CANCEL)
        again = verb == "requeue"
        wanted, refused = (self._within(caller, which), {}) if isinstance(which, Filter) else await self._targets(caller, which, only, again=again)
        if dry_run:
            return await self._many(verb, wanted, dry_run=True, from_start=from_start)
        target = "all that match" if isinstance(which, Filter) else f"{len(which)} tasks"
        async with self._deed(caller, f"task.{verb}", target, **_meant(wanted if isinstance(wanted, Filter) else which)):
            return _with_refused(await self._many(verb, wanted, dry_run=False, from_start=from_start), refused)

    async def _many(self, verb: str, which: Sequence[Target] | Filter, *, dry_run: bool, from_start: bool) -> Tally:
        match verb:
            case "cancel":
                return await self.operations.cancel(which, dry_run=dry_run)
            case "requeue":
                return await self.operations.requeue(which, from_start=from_start, dry_run=dry_run)
            case _:
                return await self.operations.delete(which, dry_run=dry_run)

    async def _targets(self, caller: Caller, ids: Sequence[str], only: State | None, *, again: bool) -> tuple[Sequence[Target], Mapping[str, int]]:
        """Those that the caller can see and that are as they must be, and how many are not, by why. `again`: they are to run again, so a completed one
        is refused. A repeat of a request whose answer got lost would otherwise run what the first one ran to its end."""
        for id in ids:
            check_id(id, "ids")
        if caller.tenant is None and only is None and not again:
            return [Target(id) for id in ids], {}
        found = await self.operations.engine.get(ids)
        own = [task for task in found if isinstance(task, Task) and caller.tenant in (None, task.tenant)]
        fit = [task for task in own if only in (None, task.state)]
        taken = [task for task in fit if not again or task.state is not State.COMPLETED]
        refused = {"not_found": len(ids) - len(own), f"not_{only}": len(own) - len(fit), "version_required": len(fit) - len(taken)}
        seen = only is not None or again
        return [Target(task.id, task.version if seen else None) for task in taken], {code: number for code, number in refused.items() if number}

    # The whole store: queues, types, schedules, workers, limits, keys

    async def read(self, caller: Caller, ask: Callable[[Operations], Coroutine[Any, Any, Answer]]) -> Answer:
        """Something about the whole store."""
        caller.need(Scope.READ, whole=True)
        return await ask(self.operations)

    async def administer(self, caller: Caller, action: str, target: str, act: Callable[[Operations], Coroutine[Any, Any, Answer]], **details: Detail) -> Answer:
        """A change of the whole store, noted in the audit log before and after."""
        caller.need(Scope.ADMIN, whole=True)
        async with self._deed(caller, action, target, **details):
            return await act(self.operations)

    async def purge_queue(self, caller: Caller, name: str, *, dry_run: bool) -> Tally:
        """Throw away every task that waits in a queue; dry: only counted."""
        if dry_run:
            caller.need(Scope.ADMIN, whole=True)
            return await self.operations.purge_queue(name, dry_run=True)
        return await self.administer(caller, "queue.purge", name, lambda operations: operations.purge_queue(name))

    async def put_queue_settings(self, caller: Caller, name: str, settings: QueueSettings, *, version: int | None) -> QueueInfo:
        """How a queue shares itself out from now on."""

        def act(operations: Operations) -> Coroutine[Any, Any, QueueInfo]:
            return operations.put_queue_settings(name, settings, version=version)

        return await self.administer(caller, "queue.settings", name, act, settings=encode(settings).decode())

    async def drop_queue_settings(self, caller: Caller, name: str, *, version: int | None) -> bool:
        return await self.administer(caller, "queue.defaults", name, lambda operations: operations.drop_queue_settings(name, version=version))

    # Keys

    async def keys_known(self, caller: Caller) -> Sequence[Key]:
        caller.need(Scope.ADMIN, whole=True)
        return await list_keys(self.operations.engine)

    async def key_create(
        self, caller: Caller, *, name: str, scopes: Sequence[str], tenant: str | None = None, rate: int | None = None, depth: int | None = None
    ) -> tuple[str, Key]:
        """A new key and its token, which is shown here and never again."""
        id = new_key_id()

        def act(operations: Operations) -> Coroutine[Any, Any, tuple[str, Key]]:
            return create_key(operations.engine, name=name, scopes=scopes, tenant=tenant, rate=rate, depth=depth, id=id)

        made = await self.administer(caller, "key.create", name or "a key", act, **key_details(id, scopes, tenant, rate, depth))
        self.keys.changed()
        return made

    async def key_revoke(self, caller: Caller, id: str) -> None:
        await self.administer(caller, "key.revoke", id[:80], lambda operations: revoke_key(operations.engine, id))
        self.keys.changed()


def _allowed(caller: Caller, new: NewTask) -> NewTask:
    """The task as this caller may submit it: under its tenant, in the share that it has, and under the limits of its type whatever it adds to them."""
    if caller.tenant is not None and new.fair_key is not None:
        raise Forbidden("a key of a tenant cannot choose its share", field="fair_key", hint="leave fair_key out: the tenant of the key is its share")
    if new.limits is not None and not caller.may(Scope.ADMIN):
        new = replace(new, more_limits=True)
    return new if caller.tenant is None else replace(new, tenant=caller.tenant)


def _waits(new: NewTask) -> Sequence[Edge]:
    return new.edges if new.parent is None else (*new.edges, new.parent)


def _check_waits(new: NewTask, known: Mapping[str, bool] | None, beside: frozenset[str]) -> None:
    """What it waits for is the caller's own. One that stands beside it may be new; if it is there already it is the caller's, too, or somebody could wait for a
    foreign task by naming its id."""
    if known is None:
        return
    for edge in _waits(new):
        if not known.get(check_id(edge.task, "after"), edge.task in beside):
            raise InvalidInput(f"there is no task {edge.task}", code="unknown_task", field="after", hint="it waits for tasks that exist")


def _not_stored(new: NewTask, error: TaskmillError, durability: Durability | None) -> Submitted:
    return Submitted(Status.REFUSED, new.id, durability or Durability.LOCAL, error=error)


def _meant(which: Sequence[str] | Filter) -> dict[str, Detail]:
    """Which tasks a step on many was about, for the audit log; of very many ids the first."""
    if not isinstance(which, Filter):
        return {"ids": " ".join(which[:MOST_NOTED])}
    found: dict[str, Detail] = {name: " ".join(sorted(getattr(which, name))) for name in ("states", "types", "queues")}
    found |= {"tenant": which.tenant, "tags": " ".join(f"{name}={value}" for name, value in which.tags.items())}
    found |= {name: None if at is None else rfc3339(at) for name, at in (("since", which.created_from), ("until", which.created_to))}
    return {name: value for name, value in found.items() if value not in ("", None)}


def _needs_version(task: Task) -> Conflict:
    hint = "read it, and requeue it with its version; then a repeat of the request does not run it twice"
    error = Conflict(f"task {task.id} has completed", code="version_required", field="version", hint=hint, task_id=task.id)
    error.state = task.state
    return error


def _unknown(id: str) -> NotFound:
    error = NotFound(f"there is no task {id[:80]}", field="id", hint="ids are known for 72 h after the submit, or as long as the task's own window says")
    error.task_id = id[:80]
    return error


def _taken(id: str) -> Conflict:
    return Conflict(f"the id {id} is taken", code="id_taken", field="id", hint="leave the id out, or make another", task_id=id)


def _with_refused(tally: Tally, refused: Mapping[str, int]) -> Tally:
    if not refused:
        return tally
    return replace(tally, matched=tally.matched + sum(refused.values()), refused=dict(Counter(tally.refused) + Counter(refused)))


_WHY = {
    "terminal": "has ended as {state}",
    "not_terminal": "is {state}",
    "unique_held": "cannot come back: another task holds its unique key",
    "edges_falling": "is still told to those that waited for it",
    "undelivered": "still owes something to another place",
}
_REMEDY = {
    "cancel": "only a task that has not ended can be cancelled",
    "requeue": "only a task that has ended can be requeued",
    "delete": "only a task that has ended can be deleted; cancel it first",
}


def _refused(verb: str, changed: Changed) -> TaskmillError:
    if changed.code == "not_found":
        return _unknown(changed.task)
    error: Conflict | Expired
    if changed.code == "stale_version":
        error = StaleVersion(f"task {changed.task} has version {changed.version}", field="version", hint="read it again")
    elif changed.code == "expired":
        error = Expired(f"the record of task {changed.task} is gone; it was {changed.state}", field="id", hint="it was pruned or deleted")
    else:
        why = _WHY.get(changed.code or "", "was refused: " + (changed.code or "")).format(state=changed.state)
        error = Conflict(f"task {changed.task} {why}", code=changed.code, field="id", hint=_REMEDY[verb])
    error.task_id, error.state = changed.task, changed.state
    return error
