"""Workers in any language: the worker protocol, once for HTTP and gRPC.

    join ──▶ worker id ──▶ claim (long poll) ──▶ run ──▶ finish
                             └── beat, every third of a lease: which leases are held; answers what is cancelled, lost, and told

A remote worker has no supervisor beside it, so it beats itself, and its lease is longer: 30 s unless it asks otherwise. Its id is given by `join` and carries
the id of the key that joined, so nobody else's key can claim, beat or finish for it. When to try again is the store's policy: a worker says that an attempt
failed, and `retry` of the task decides what that means, unless it names a time itself.

A claim that finds nothing waits here for a hint of the store, one listener for all who wait, and asks again at least every second. It ends early when its
caller goes away, when the key is revoked, and when the server stops. What a claim took for somebody who is gone is answered again under the same number.

A claim is a sign of life, as a beat is: whoever was cut off for most of its lease and comes back with one has a whole lease for what it is given. A claim that
only waits is none: nobody was heard, and one whose connection is dead without a word would keep what it holds for as long as its claim waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import re
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from taskmill.clock import SECOND
from taskmill.engine import Beat, Checkpoint, Claim, Ending, Engine, Finished, Joining, Outcome, Refusal, Room
from taskmill.errors import Conflict, InvalidInput, NotFound, StoreError
from taskmill.operations.types import settings_of
from taskmill.retry import decide, error_names
from taskmill.server.access import Caller, Keys, Scope, Unauthenticated
from taskmill.task import ErrorInfo, State, Task, TypeSettings, check_key, check_name, check_range

__all__ = ["Crew"]

LEASE = 30 * SECOND
SHORTEST, LONGEST = 2 * SECOND, 3_600 * SECOND
POLL = 1.0
MOST_SLOTS = 1_000
MOST_LOOKS = 5
"""How often a claim that has not seen everything looks on by itself, before its worker is told to ask again."""
MOST_TYPES = 1_000
MOST_QUEUES = 100
MOST_INFO = 20
MOST_LEASES = 10_000
MOST_REMEMBERED = 10_000
TIMEOUT = "timeout"
CODE_LENGTH, MESSAGE_LENGTH, TRACEBACK_LENGTH = 128, 2_000, 16_000
WORKER = re.compile(r"remote-([0-9a-f]{0,12})-[0-9a-f]{16}")
_DEFAULTS = TypeSettings()


class Crew:
    """The remote workers of one server process."""

    def __init__(self, engine: Engine, keys: Keys | None = None, lost: Callable[[int], None] = lambda leases: None) -> None:
        """`lost` hears how many leases workers are told to have lost."""
        self._engine = engine
        self._keys = keys
        self._lost = lost
        self._over: dict[tuple[str, int], None] = {}
        """Leases that their workers have ended here, or know to be lost; the last of them."""
        self._queues: dict[str, tuple[str, ...]] = {}
        """By worker, the queues that it joined for."""
        self._hint = asyncio.Event()
        """Set when a hint comes; then there is another one for the next."""
        self.waiting = 0
        """Claims that wait now."""
        self._listening: asyncio.Task[None] | None = None
        self._drained = False

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
        granted = LEASE if lease is None else check_range(lease, "lease", SHORTEST, LONGEST)
        worker = f"remote-{caller.key}-{secrets.token_hex(8)}"
        declared = await self._declared(types, TypeSettings(queue=queues[0]) if queues else _DEFAULTS)
        served = tuple(queues) or tuple(sorted({settings.queue for settings in declared.values()}))
        told = {**(info or {}), "protocol": "remote"}
        await self._engine.join(
            Joining(worker=worker, queues=served, types=declared, lease=granted, app=f"remote-{caller.key}", limits=limits or {}, info=told)
        )
        self._remember(worker, served)
        return worker, granted

    async def _declared(self, types: Mapping[str, TypeSettings | None], new: TypeSettings) -> dict[str, TypeSettings]:
        """A type that nobody has said anything about yet gets the settings of a `new` one: it belongs to the first queue of the worker that knows it."""
        stored = await settings_of(self._engine) if None in types.values() else {}
        return {name: stored.get(name, new) if settings is None else settings for name, settings in types.items()}

    def _remember(self, worker: str, queues: tuple[str, ...]) -> None:
        if len(self._queues) >= MOST_REMEMBERED:
            del self._queues[next(iter(self._queues))]
        self._queues[worker] = queues

    async def leave(self, caller: Caller, worker: str) -> None:
        """What it still holds is released."""
        await self._engine.leave(self._own(caller, worker))
        self._queues.pop(worker, None)

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
        queues = self._queues.get(worker) or await self._joined_for(worker)
        if heard:
            await self.hear(caller, worker)
        room = Room(slots, types or {})
        loop = asyncio.get_running_loop()
        until = loop.time() + wait / SECOND
        looks = 0
        while True:
            hint = self._hint
            claim = await self._ask(worker, request, queues, room)
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
            self._queues.pop(worker, None)
            raise _unknown(worker)

    async def _ask(self, worker: str, request: int, queues: Sequence[str], room: Room) -> Claim:
        try:
            return await self._engine.claim(worker, request, queues, room)
        except Conflict as error:
            if error.code != "unknown_worker":
                raise
            self._queues.pop(worker, None)
            raise _unknown(worker) from None

    async def _joined_for(self, worker: str) -> tuple[str, ...]:
        """It may have joined at another server."""
        for info in await self._engine.workers():
            if info.id == worker:
                self._remember(worker, info.queues)
                return info.queues
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
        beat = await self._engine.heartbeat(worker, request, leases)
        self._lost(self._end(worker, beat.lost))
        return beat

    def _end(self, worker: str, tokens: Iterable[int]) -> int:
        """How many of these leases were not over yet. A beat and a finish may pass each other, and a beat may come again: nothing is lost twice."""
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
        return await self._engine.checkpoint([_storable_entry(entry) for entry in entries])

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
        judged = [_judged(_storable_outcome(outcome), tasks.get(outcome.task)) for outcome in outcomes]
        for outcome in judged:
            self._end(outcome.worker, (outcome.token,))
        return await self._engine.finish(judged)


def _judged(outcome: Outcome, task: Task | None) -> Outcome:
    """An outcome as the task's record has it. Of a task that is not there, or a lease that is not current, the store itself says so."""
    if task is None:
        return outcome
    if outcome.then:
        outcome = replace(outcome, then=tuple(replace(new, tenant=task.tenant) for new in outcome.then))
    if outcome.ending is not Ending.RETRY or (task.worker, task.token) != (outcome.worker, outcome.token):
        return outcome
    if task.state is State.DEAD:  # by this very outcome, whose answer was lost: it was decided already, and is not decided anew
        return replace(outcome, ending=Ending.DEAD)
    return _decided(outcome, task) if task.state is State.RUNNING else outcome


def _decided(outcome: Outcome, task: Task) -> Outcome:
    """A failed attempt as the task's policy has it."""
    error = outcome.error or ErrorInfo("failed")
    names = (error.code, *error_names(TimeoutError)) if error.code == TIMEOUT else (error.code,)
    decision = decide(task.retry, task.failures + 1, names, random.random(), after=outcome.after or None)
    if decision.after is None:
        return replace(outcome, ending=Ending.DEAD, after=0, error=error)
    return replace(outcome, after=decision.after, error=error)


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


# What workers write: any language, any text


def _storable_outcome(outcome: Outcome) -> Outcome:
    error = outcome.error
    if error is None:
        return outcome
    traceback = error.traceback if len(error.traceback) <= TRACEBACK_LENGTH else "…" + error.traceback[-TRACEBACK_LENGTH:]
    kept = ErrorInfo(_storable(error.code, CODE_LENGTH) or "failed", _storable(error.message, MESSAGE_LENGTH), _storable(traceback, TRACEBACK_LENGTH + 1))
    return replace(outcome, error=kept)


def _storable_entry(entry: Checkpoint) -> Checkpoint:
    progress = entry.progress
    if progress is None:
        return entry
    if not math.isfinite(progress.value):
        raise InvalidInput("it is no finite number", code="out_of_range", field="progress.value", hint="for example 0.5 when half is done")
    return replace(entry, progress=replace(progress, message=_storable(progress.message, MESSAGE_LENGTH)))


def _storable(text: str, length: int) -> str:
    """What every store can hold: bounded, no NUL, no half of a surrogate pair."""
    return text[:length].replace("\0", "\\0").encode("utf-8", "backslashreplace").decode()
