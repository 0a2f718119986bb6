"""Workers in any language: the worker protocol, once for HTTP and gRPC.

    join ──▶ worker id ──▶ claim (long poll) ──▶ run ──▶ finish
                             └── beat, every third of a lease: which leases are held; answers what is cancelled, lost, and told

A remote worker has no supervisor beside it, so it beats itself, and its lease is longer: the setting `remote_lease`, unless it asks otherwise. Its id is given
by `join` and carries the id of the key that joined, so no other key can claim, beat or finish for it. When to try again is the store's policy: a worker says
that an attempt failed, and `retry` of the task decides what that means, unless it names a time itself.

A claim that finds nothing waits here for a hint of the store, one listener for all who wait, and asks again at least every second. It ends early when its
caller goes away, when the key is revoked, and when the server stops. What a claim took for somebody who is gone is answered again under the same number.

A claim is a sign of life, as a beat is: whoever was cut off for most of its lease and comes back with one has a whole lease for what it is given. A claim that
only waits is none: nobody was heard, and one whose connection is dead without a word would keep what it holds for as long as its claim waits.

An attempt that its worker beats for longer than its timeout and a lease is ended here (`deadlines`): failed with the code `timeout`, as a local one, and the
worker reads in the answer to its beat that it has lost it.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from taskmill.clock import SECOND
from taskmill.config import Settings
from taskmill.engine import Beat, Checkpoint, Claim, Ending, Engine, Finished, Joining, Outcome, Refusal, Room
from taskmill.errors import Conflict, InvalidInput, NotFound, StoreError
from taskmill.operations.types import settings_of
from taskmill.server.access import Caller, Keys, Scope, Unauthenticated
from taskmill.server.audit import Audit
from taskmill.server.deadlines import Deadlines
from taskmill.server.declarations import MOST_TYPES, Declarations
from taskmill.server.outcomes import judged, storable_entry, storable_outcome, timed_out
from taskmill.task import LONGEST_REMOTE_LEASE, SHORTEST_REMOTE_LEASE, Task, TypeSettings, check_key, check_name, check_range

__all__ = ["Crew"]

POLL = 1.0
MOST_SLOTS = 1_000
MOST_LOOKS = 5
"""How often a claim that has not seen everything looks on by itself, before its worker is told to ask again."""
MOST_QUEUES = 100
MOST_INFO = 20
MOST_LEASES = 10_000
MOST_REMEMBERED = 10_000
WORKER = re.compile(r"remote-([0-9a-f]{0,12})-[0-9a-f]{16}")
_DEFAULTS = TypeSettings()


class _Joined(NamedTuple):
    """A worker: the queues that it joined for, and its lease."""

    queues: tuple[str, ...]
    lease: int


class Crew:
    """The remote workers of one server process."""

    def __init__(
        self,
        engine: Engine,
        keys: Keys | None = None,
        lost: Callable[[int], None] = lambda leases: None,
        settings: Settings | None = None,
        audit: Audit | None = None,
    ) -> None:
        """`lost` hears how many leases workers are told to have lost; `audit` has what they declare."""
        self._declarations = Declarations(engine, audit)
        self._settings = settings or Settings()
        self._engine = engine
        self._keys = keys
        self._lost = lost
        self._over: dict[tuple[str, int], None] = {}
        """Leases that their workers have ended here, or know to be lost; the last of them."""
        self._joined: dict[str, _Joined] = {}
        self._deadlines = Deadlines(engine.clock)
        self._hint = asyncio.Event()
        """Set when a hint comes; then there is another one for the next."""
        self.waiting = 0
        """Claims that wait now."""
        self._listening: asyncio.Task[None] | None = None
        self._drained = False

    @property
    def payload_limit(self) -> int:
        """The largest result or checkpoint that a worker can store."""
        return self._settings.payload_limit

    # Joining

    async def join(
        self,
        caller: Caller,
        *,
        queues: Sequence[str],
        types: Mapping[str, TypeSettings | None],
        lease: int | None = None,
        info: Mapping[str, str] | None = None,
        limits: Mapping[str, bytes] | None = None,
    ) -> tuple[str, int]:
        """A new worker: its id, and the lease it has. `types` are those it can run, with the settings that it declares for them, or None for
        those that the store has; `limits` are those that its settings name and that it declares with them."""
        caller.need(Scope.WORKER, whole=True)
        _check_joining(queues, types, info or {})
        granted = self._settings.remote_lease if lease is None else check_range(lease, "lease", SHORTEST_REMOTE_LEASE, LONGEST_REMOTE_LEASE)
        worker = f"remote-{caller.key}-{secrets.token_hex(8)}"
        stored = await settings_of(self._engine)
        new = TypeSettings(queue=queues[0]) if queues else _DEFAULTS  # a type that nobody declared yet belongs to the first queue of the worker that knows it
        declared = {name: stored.get(name, new) if settings is None else settings for name, settings in types.items()}
        served = tuple(queues) or tuple(sorted({settings.queue for settings in declared.values()}))
        told = {**(info or {}), "protocol": "remote"}
        joining = Joining(worker=worker, queues=served, types=declared, lease=granted, app=f"remote-{caller.key}", limits=limits or {}, info=told)
        await self._declarations.join(caller, joining, stored)
        self._remember(worker, _Joined(served, granted))
        return worker, granted

    def _remember(self, worker: str, joined: _Joined) -> None:
        if len(self._joined) >= MOST_REMEMBERED:
            del self._joined[next(iter(self._joined))]
        self._joined[worker] = joined

    def _forget(self, worker: str) -> None:
        self._joined.pop(worker, None)
        self._deadlines.leave(worker)

    async def leave(self, caller: Caller, worker: str) -> None:
        """What it still holds is released."""
        await self._engine.leave(self._own(caller, worker))
        self._forget(worker)

    def _own(self, caller: Caller, worker: str) -> str:
        """The worker of this caller's key. Of another's, nobody says whether it exists."""
        caller.need(Scope.WORKER, whole=True)
        found = WORKER.fullmatch(worker)
        if found is None or found[1] != caller.key:
            raise _unknown(worker)
        return worker

    # Claiming

    async def claim(
        self,
        caller: Caller,
        worker: str,
        request: int,
        *,
        slots: int,
        wait: int = 0,
        types: Mapping[str, int] | None = None,
        gone: asyncio.Future[None] | None = None,
        heard: bool = True,
    ) -> Claim:
        """Up to so many tasks, as soon as there are any; none when the time is over. Asked again under the same number it answers the same tasks.
        `gone` is done when nobody waits for the answer any more; `heard`: the worker has just sent it."""
        self._own(caller, worker)
        check_range(request, "request", 1, (1 << 53) - 1)
        check_range(slots, "slots", 1, MOST_SLOTS)
        for name, most in (types or {}).items():
            check_range(most, f"types.{check_name(name, 'types')}", 0, MOST_SLOTS)
        joined = self._joined.get(worker) or await self._joined_for(worker)
        if heard:
            await self.hear(caller, worker)
        room = Room(slots, types or {})
        loop = asyncio.get_running_loop()
        until = loop.time() + wait / SECOND
        looks = 0
        while True:
            hint = self._hint
            claim = await self._ask(worker, request, joined, room)
            looks = looks + 1 if claim.more else 0
            left = until - loop.time()
            if claim.tasks or left <= 0 or self._drained or looks > MOST_LOOKS:
                return claim
            await self._sleep(claim, left, hint, gone)
            if gone is not None and gone.done():
                return Claim(())
            await self._check_still(caller)

    async def hear(self, caller: Caller, worker: str) -> None:
        """It lives: its lease is whole again. Before its first request there is none, so nothing is said about what it holds."""
        if not (await self._engine.heartbeat(self._own(caller, worker), 0, ())).known:
            self._forget(worker)
            raise _unknown(worker)

    async def _ask(self, worker: str, request: int, joined: _Joined, room: Room) -> Claim:
        try:
            claim = await self._engine.claim(worker, request, joined.queues, room)
        except Conflict as error:
            if error.code != "unknown_worker":
                raise
            self._forget(worker)
            raise _unknown(worker) from None
        for task in claim.tasks:
            self._deadlines.begin(worker, joined.lease, task.token, task.id, task.timeout, request)
        return claim

    async def _joined_for(self, worker: str) -> _Joined:
        """It may have joined at another server."""
        for info in await self._engine.workers():
            if info.id == worker:
                joined = _Joined(info.queues, info.lease)
                self._remember(worker, joined)
                return joined
        raise _unknown(worker)

    async def _check_still(self, caller: Caller) -> None:
        if self._keys is not None and not await self._keys.still(caller):
            raise Unauthenticated("this API key is not valid any more", hint="it was revoked while the claim waited; `taskmill key list` shows those that are")

    async def _sleep(self, claim: Claim, left: float, hint: asyncio.Event, gone: asyncio.Future[None] | None) -> None:
        """Until there may be work for it, or nobody waits for it."""
        wait = random.uniform(0.001, 0.01) if claim.more else min(left, POLL * random.uniform(0.8, 1.0))
        if claim.next_at is not None:
            wait = min(wait, max(0, claim.next_at - self._engine.clock.now()) / SECOND)
        if self._listening is None:
            self._listening = asyncio.create_task(self._listen())
        hinted = asyncio.create_task(hint.wait())
        awaited: set[asyncio.Future[Any]] = {hinted} if gone is None else {hinted, gone}
        self.waiting += 1
        try:
            await asyncio.wait(awaited, timeout=wait, return_when=asyncio.FIRST_COMPLETED)
        finally:
            hinted.cancel()
            self.waiting -= 1

    async def _listen(self) -> None:
        """Hints for everybody who waits, until one comes that nobody waits for."""
        try:
            while self.waiting:
                with contextlib.suppress(StoreError):
                    async with contextlib.aclosing(await self._engine.wakeups()) as hints:
                        async for _ in hints:
                            if not self.waiting:
                                return
                            self._wake()
                await asyncio.sleep(random.uniform(0.5, 1.5))
        finally:
            self._listening = None

    def _wake(self) -> None:
        hint, self._hint = self._hint, asyncio.Event()
        hint.set()

    @property
    def drained(self) -> bool:
        """Whether the server stops: claims are answered at once, with what there is."""
        return self._drained

    def drain(self) -> None:
        """The server stops: those who wait are answered now."""
        self._drained = True
        self._wake()

    async def close(self) -> None:
        self.drain()
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.gather(self._listening, return_exceptions=True)

    # While it runs

    async def beat(self, caller: Caller, worker: str, request: int, leases: Sequence[int]) -> Beat:
        """It lives, has the answers of all requests up to this one, and of those holds exactly these leases."""
        self._own(caller, worker)
        check_range(request, "request", 0, (1 << 53) - 1)
        if len(leases) > MOST_LEASES:
            raise InvalidInput(f"{len(leases)} leases are too many", code="out_of_range", field="leases", hint=f"at most {MOST_LEASES}")
        foreign = self._deadlines.named(worker, request, frozenset(leases))
        beat = await self._engine.heartbeat(worker, request, leases, tasks=bool(foreign))
        self._lost(self._end(worker, beat.lost))
        if not beat.known:
            self._forget(worker)
            return beat
        await self._hear_of(worker, {token: beat.tasks[token] for token in foreign if token in beat.tasks})
        return await self._without_overdue(worker, leases, beat)

    async def _hear_of(self, worker: str, leases: Mapping[int, str]) -> None:
        """Of leases that another server gave."""
        if not leases:
            return
        joined = self._joined.get(worker) or await self._joined_for(worker)
        for token, task in zip(leases, await self._engine.get(list(leases.values())), strict=True):
            if isinstance(task, Task) and task.token == token:
                self._deadlines.begin(worker, joined.lease, token, task.id, task.timeout)

    async def _without_overdue(self, worker: str, leases: Iterable[int], beat: Beat) -> Beat:
        """Attempts that go on for too long are over; what their worker still says of them comes too late."""
        overdue = self._deadlines.over(worker, leases)
        if not overdue:
            return beat
        found = await self._engine.get([attempt.task for attempt in overdue])
        outcomes = [timed_out(worker, attempt, task) for attempt, task in zip(overdue, found, strict=True)]
        await self._engine.finish(outcomes)
        self._end(worker, [attempt.token for attempt in overdue])
        ended = {attempt.task for attempt in overdue}
        lost = {*beat.lost, *(attempt.token for attempt in overdue)}
        return replace(beat, lost=tuple(sorted(lost)), cancelled=tuple(task for task in beat.cancelled if task not in ended))

    def _end(self, worker: str, tokens: Iterable[int]) -> int:
        """They are over; how many of them were not so yet. A beat and a finish may pass each other, and a beat may come again: nothing is lost twice."""
        tokens = list(tokens)
        self._deadlines.end(worker, tokens)
        ended = [(worker, token) for token in tokens if (worker, token) not in self._over]
        for lease in ended:
            self._over[lease] = None
            if len(self._over) > MOST_REMEMBERED:
                del self._over[next(iter(self._over))]
        return len(ended)

    async def checkpoint(self, caller: Caller, entries: Sequence[Checkpoint]) -> tuple[Refusal, ...]:
        """What running tasks have done so far."""
        for entry in entries:
            self._own(caller, entry.worker)
            if entry.name is not None:
                check_name(entry.name, "name")
        return await self._engine.checkpoint([storable_entry(entry) for entry in entries])

    # Ending

    async def finish(self, caller: Caller, outcomes: Sequence[Outcome]) -> Finished:
        """Ends of attempts, each applied if and only if its lease is current. `retry` asks the task's policy, which decides when, or that it is dead;
        an `after` over 0 is the worker's own wish and stands above the policy's time, not above its number of retries. Tasks that follow belong to the
        tenant of the one they follow."""
        for outcome in outcomes:
            self._own(caller, outcome.worker)
        asked = [outcome.task for outcome in outcomes if outcome.ending is Ending.RETRY or outcome.then]
        found = await self._engine.get(asked) if asked else ()
        tasks = {task.id: task for task in found if isinstance(task, Task)}
        for outcome in outcomes:
            self._end(outcome.worker, (outcome.token,))
        return await self._engine.finish([judged(storable_outcome(outcome), tasks.get(outcome.task)) for outcome in outcomes])


def _check_joining(queues: Sequence[str], types: Mapping[str, TypeSettings | None], info: Mapping[str, str]) -> None:
    if not types:
        raise InvalidInput("a worker that knows no type gets no task", code="required", field="types", hint="name the types that it can run")
    for field, given, most in (("types", types, MOST_TYPES), ("queues", queues, MOST_QUEUES), ("info", info, MOST_INFO)):
        if len(given) > most:
            raise InvalidInput(f"{len(given)} are too many", code="out_of_range", field=field, hint=f"at most {most}")
    for name in types:
        check_name(name, "types")
    for name in queues:
        check_name(name, "queues")
    for name, text in info.items():
        check_name(name, "info")
        check_key(text, f"info.{name}")


def _unknown(worker: str) -> NotFound:
    """Of another's worker nobody says whether it exists."""
    return NotFound(f"there is no worker {worker[:80]!r}", code="unknown_worker", field="worker", hint="join, and go on under the id that the answer has")
