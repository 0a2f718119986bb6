"""An engine whose calls are all written down: what a client asks for and what it is told goes into the history, nothing else.

`Recorded` has the verbs that fault tests use, under the same names and with the same answers. `LosingAnswers` is the store that does what it is asked and
then says nothing: put it under `Recorded` and ask again with `until_answered`.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from random import Random
from typing import Any, TypeVar, cast

from taskmill import codec
from taskmill.clock import SECOND
from taskmill.engine import (
    Beat,
    Checkpoint,
    Claim,
    Ending,
    Engine,
    Entry,
    Finished,
    Fired,
    Joining,
    Moved,
    Outcome,
    Refusal,
    Retention,
    Room,
    Status,
    Submitted,
    Term,
    Transaction,
)
from taskmill.errors import AnswerLost, StaleTerm, StaleVersion
from taskmill.task import TERMINAL, Gone, NewTask, State, Task
from tests.history import Recorder, events
from tests.history.recording import Open

__all__ = ["LosingAnswers", "Recorded", "until_answered"]

Answer = TypeVar("Answer")

MOST_REPEATS = 50


class LosingAnswers:
    """Every verb is done; then, now and then, its answer is lost."""

    def __init__(self, engine: Engine, chance: float, random: Random) -> None:
        self.engine = engine
        self._chance = chance
        self._random = random

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self.engine, name)
        return self._losing(verb) if asyncio.iscoroutinefunction(verb) and name not in {"open", "close"} else verb

    def _losing(self, verb: Callable[..., Awaitable[Answer]]) -> Callable[..., Awaitable[Answer]]:
        async def do(*args: Any, **named: Any) -> Answer:
            lost = self._random.random() < self._chance
            try:
                answer = await verb(*args, **named)
            except Exception as error:
                if lost:
                    raise AnswerLost("nobody heard the refusal") from error
                raise
            if lost:
                raise AnswerLost("nobody heard the answer")
            return answer

        return do


async def until_answered(ask: Callable[[], Awaitable[Answer]]) -> Answer:
    """Every verb may be repeated: so repeat it until it answers, first at once and then more and more slowly; a store that never does is another fault."""
    for n in range(MOST_REPEATS):
        try:
            return await ask()
        except AnswerLost:
            await asyncio.sleep(n / 100)
    return await ask()


class Recorded:
    """The verbs of an engine, each with its line in the history."""

    def __init__(self, engine: Engine | LosingAnswers, recorder: Recorder) -> None:
        self.engine = cast("Engine", engine)
        self.recorder = recorder

    # Submit

    async def submit(self, tasks: Sequence[NewTask], *, unseal: Sequence[str] = (), tx: Transaction | None = None) -> tuple[Submitted, ...]:
        with self.recorder.calling(*map(self._submit, tasks)) as calls:
            answers = await self.engine.submit(tasks, unseal=unseal, tx=tx)
            for call, answer in zip(calls, answers, strict=True):
                _answer_submit(call, answer)
        return answers

    def _submit(self, new: NewTask) -> events.Submit:
        now = self.engine.clock.now()
        run_at = new.run_at if new.run_at is not None else now + new.delay if new.delay is not None else 0
        return events.Submit(
            task=new.id,
            type=new.type,
            queue=new.queue or "default",
            tenant=new.tenant,
            key=new.idempotency_key,
            unique=new.unique.key if new.unique else None,
            hash=hashlib.sha256(codec.payload_hash(new.payload)).hexdigest()[:16],
            run_at=run_at,
            priority=1 if new.priority is None else new.priority,
            share=new.fair_key or "",
            limits=new.limits or (),
            waits=bool(new.edges or new.parent or new.sealed),
            expires_at=new.expires_at,
        )

    # Workers

    async def join(self, joining: Joining) -> None:
        with self.recorder.calling(events.Join(worker=joining.worker, types=tuple(joining.types))) as (call,):
            await self.engine.join(joining)
            call.answer("applied")

    async def leave(self, worker: str) -> None:
        with self.recorder.calling(events.Leave(worker=worker)) as (call,):
            await self.engine.leave(worker)
            call.answer("applied")

    async def claim(self, worker: str, request: int, queues: Sequence[str], room: Room) -> Claim:
        with self.recorder.calling(events.Claim(worker=worker, request=request, queues=tuple(queues), per_type=bool(room.types))) as (call,):
            answer = await self.engine.claim(worker, request, queues, room)
            given = (events.Given(task.id, task.token, task.attempt, task.claimed_at, task.type, task.limits) for task in answer.tasks)
            call.answer("given", given=tuple(given))
        return answer

    async def finish(self, outcomes: Sequence[Outcome], *, tx: Transaction | None = None) -> Finished:
        """The tasks of `then` are written down as submits: they are as much a promise as any other."""
        follow = [new for outcome in outcomes for new in outcome.then]
        with self.recorder.calling(*map(self._submit, follow)) as submits, self.recorder.calling(*map(_finish, outcomes)) as calls:
            answer = await self.engine.finish(outcomes, tx=tx)
            refused = {(refusal.task, refusal.token) for refusal in answer.refused}
            for call, outcome in zip(calls, outcomes, strict=True):
                _answer_finish(call, outcome, answer, stale=(outcome.task, outcome.token) in refused)
            applied = [(outcome.task, outcome.token) not in refused for outcome in outcomes for _ in outcome.then]
            for submit, was_applied in zip(submits, applied, strict=True):
                submit.answer("created" if was_applied else "error")
        return answer

    async def checkpoint(self, entries: Sequence[Checkpoint]) -> tuple[Refusal, ...]:
        writes = [events.Finish(worker=entry.worker, task=entry.task, token=entry.token, outcome="checkpoint") for entry in entries]
        with self.recorder.calling(*writes) as calls:
            refused = await self.engine.checkpoint(entries)
            stale = {(refusal.task, refusal.token) for refusal in refused}
            for call in calls:
                call.answer("stale" if (call.call.task, call.call.token) in stale else "applied")
        return refused

    async def heartbeat(self, worker: str, request: int, leases: Iterable[int]) -> Beat:
        named = tuple(leases)
        with self.recorder.calling(events.Beat(worker=worker, request=request, leases=named)) as (call,):
            beat = await self.engine.heartbeat(worker, request, named)
            kept = tuple(token for token in named if token not in beat.lost) if beat.known else ()
            call.answer("applied", kept=kept, gone=tuple(token for token in named if token not in kept))
        return beat

    async def recover_lost(self) -> Moved:
        with self.recorder.calling(events.Recover()) as (call,):
            moved = await self.engine.recover_lost()
            call.answer("applied", moved=None if moved.moved else ())
        return moved

    # Leadership

    async def lead(self, role: str, holder: str, length: int) -> Term | None:
        """`since` and `until` are what is sure: the term had begun when the answer came, and lasts at least its length from the question on."""
        asked = self.recorder.now()
        with self.recorder.calling(events.Lead(role=role, holder=holder)) as (call,):
            term = await self.engine.lead(role, holder)
            if term is None:
                call.answer("refused")
            else:
                call.answer("applied", term=term.number, since=self.recorder.now(), until=asked + length)
        return term

    async def fire(self, schedule: str, version: int, tasks: Sequence[NewTask], times: Sequence[int], next_at: int, term: Term) -> Fired:
        fires = [events.Fire(role=term.role, term=term.number, schedule=schedule, time=time, task=new.id) for new, time in zip(tasks, times, strict=True)]
        with self.recorder.calling(*map(self._submit, tasks)) as submits, self.recorder.calling(*fires) as calls:
            try:
                fired = await self.engine.fire(schedule, version, tasks, next_at, term)
            except (StaleTerm, StaleVersion):
                for call in calls:
                    call.answer("refused")
                raise
            for call, submit in zip(calls, submits, strict=True):
                call.answer("applied")
                submit.answer("created")
        return fired

    async def prune(self, n: int, term: Term, retention: Retention) -> Moved:
        return await self._led("prune", term, lambda: self.engine.prune(n, term, retention))

    async def outbox(self, kind: str, after: str, n: int, term: Term) -> tuple[Entry, ...]:
        return await self._led("outbox", term, lambda: self.engine.outbox(kind, after, n, term))

    async def _led(self, verb: str, term: Term, ask: Callable[[], Awaitable[Answer]]) -> Answer:
        with self.recorder.calling(events.Led(role=term.role, term=term.number, verb=verb)) as (call,):
            try:
                answer = await ask()
            except StaleTerm:
                call.answer("refused")
                raise
            call.answer("applied")
        return answer

    # Settings

    async def put_limit(self, name: str, *, cap: int | None = None, rate: int | None = None, window: int = SECOND, keys: Sequence[str] = ()) -> None:
        """`keys`: a limit counted for each key stands under each of its names in the history."""
        names = [f"{name}:{key}" for key in keys] or [name]
        limits = [events.Limit(name=each, cap=cap, rate=rate, window=window) for each in names]
        value = {"cap": cap, "rate": rate, "window": window}
        with self.recorder.calling(*limits) as calls:
            await self.engine.put("limit", name, codec.encode({key: number for key, number in value.items() if number is not None}))
            for call in calls:
                call.answer("applied")

    # The last look

    async def read_all(self, tasks: Iterable[str]) -> dict[str, events.Read]:
        """Every task as the store shows it in the end."""
        reads: dict[str, events.Read] = {}
        ids = sorted(set(tasks))
        for start in range(0, len(ids), 500):
            began = self.recorder.now()
            for task, found in zip(ids[start : start + 500], await self.engine.get(ids[start : start + 500]), strict=True):
                reads[task] = await self._read(task, found)
                self.recorder.note(reads[task], began)
        return reads

    async def _read(self, task: str, found: Task | Gone | None) -> events.Read:
        if found is None:
            return events.Read(task=task, state="missing", final=True)
        if isinstance(found, Gone):
            return events.Read(task=task, state="expired", final=True)
        attempts = tuple(events.Attempt(each.number, each.outcome) for each in await self.engine.attempts(task))
        return events.Read(
            task=task,
            state=found.state.value,
            version=found.version,
            executions=found.executions,
            failures=found.failures,
            crashes=found.crashes,
            attempts=attempts,
            final=True,
        )


def _answer_submit(call: Open[events.Submit], answer: Submitted) -> None:
    if answer.status is Status.REFUSED:
        call.answer("error")
    else:
        call.answer(answer.status.value, id=answer.id)


def _finish(outcome: Outcome) -> events.Finish:
    delay = outcome.after if outcome.ending in {Ending.RETRY, Ending.SNOOZED} else 0
    return events.Finish(worker=outcome.worker, task=outcome.task, token=outcome.token, outcome=outcome.ending.value, delay=delay)


def _answer_finish(call: Open[events.Finish], outcome: Outcome, answer: Finished, *, stale: bool) -> None:
    instead = answer.instead.get(outcome.task)
    if stale:
        call.answer("stale")
    elif instead is None:
        call.answer("applied")
    else:
        call.answer("applied", outcome=State(instead).value if instead in TERMINAL else "released")
