"""Finish: every ending of an attempt, applied only under its current lease; and checkpoints and signals, which live under the same rule.

What becomes of each is decided by functions of the store, in one call for a batch (0004_finish.sql); here arguments are put together and answers taken apart.
Completed attempts of one worker travel as arrays, everything else as a JSON list.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Sequence
from operator import attrgetter
from types import MappingProxyType
from typing import Any

import msgspec

from taskmill.clock import MILLISECOND
from taskmill.engine import Checkpoint, Ending, Finished, Outcome, Refusal
from taskmill.engines.postgres.errors import FAILURES, applied, translate
from taskmill.engines.postgres.store import Store
from taskmill.engines.postgres.submit import PATIENCE, document, make_names, refusal
from taskmill.engines.refusals import cycle
from taskmill.engines.rows import ON_FAILURE_NUMBERS, STATES, encode_error, encode_progress
from taskmill.engines.settings import Settings
from taskmill.errors import Conflict, Expired, InvalidInput, NotFound, TaskmillError
from taskmill.task import MOST_SIGNAL_BYTES, MOST_SIGNALS, MOST_STEP_BYTES, MOST_STEPS, UUID, ErrorInfo, OnFailure, Progress, State

__all__ = ["checkpoint", "finish", "signal"]

ROUNDS = 20

IDS = re.compile(f"({UUID.pattern} )*")
STALE = "the lease is no longer current; nothing was written"
_PLAIN = frozenset((None, b"null"))
MESSAGES = {
    "stale_lease": STALE,
    "not_found": "there is no such task",
    "too_many_steps": f"a task can have {MOST_STEPS} checkpoints; nothing was written",
    "steps_too_large": f"the checkpoints of a task can have {MOST_STEP_BYTES} bytes; nothing was written",
}


async def finish(store: Store, outcomes: Sequence[Outcome], *, db: Any = None) -> Finished:
    """`db`: the user's connection, in the user's transaction."""
    step = _Step(store, db)
    rest = step.sorted_out(outcomes)
    if rest:
        rest = await step.ask(rest, PATIENCE)
    with applied() if db is None else contextlib.nullcontext():
        await _ask_again(step, rest)
    more = await store.settle(wait=False) if step.owes and db is None else False
    places = {(outcome.task, outcome.token): place for place, outcome in enumerate(outcomes)} if len(step.refused) > 1 else {}
    step.refused.sort(key=lambda refused: places.get((refused.task, refused.token), 0))
    return Finished(tuple(step.refused), MappingProxyType(step.instead), more)


async def _ask_again(step: _Step, rest: Sequence[Outcome]) -> None:
    for _ in range(ROUNDS):
        if not rest:
            break
        rest = await step.ask(rest, PATIENCE)
    for outcome in [*rest, *step.busy]:
        await step.ask_alone(outcome)


class _Step:
    """The calls that one finish takes: one, unless tasks that follow meet settings which have changed or somebody's open transaction."""

    def __init__(self, store: Store, db: Any) -> None:
        self.store = store
        self.db = db
        self.refused: list[Refusal] = []
        self.instead: dict[str, State] = {}
        self.busy: list[Outcome] = []
        self.owes = False

    def sorted_out(self, outcomes: Sequence[Outcome]) -> Sequence[Outcome]:
        """Without those that cannot be asked for at all."""
        if IDS.fullmatch("".join([f"{outcome.task} " for outcome in outcomes])) and not any(
            outcome.tasks or outcome.result not in _PLAIN for outcome in outcomes
        ):
            return outcomes
        bad = {id(outcome): refused for outcome in outcomes if (refused := _unaskable(outcome)) is not None}
        self.refused += bad.values()
        return [outcome for outcome in outcomes if id(outcome) not in bad] if bad else outcomes

    async def ask(self, outcomes: Sequence[Outcome], patience: int) -> list[Outcome]:
        """One call. Answers those that must be asked again at once; `busy` are those that wait for others."""
        store = self.store
        arguments = _arguments(outcomes, store.settings)
        statement = store.load("finish.sql").finish
        rows = await self._fetch(statement, patience, *arguments, store.generation, patience, self.db is None, store.now())
        again: dict[tuple[str, int], str] = {}
        for task, token, code, message, state in rows:
            if task is None:
                self.owes = True
            elif code is None:
                self.instead[task] = STATES[state]
            elif code in ("settings", "names", "busy"):
                again[task, token] = code
            else:
                self.refused.append(_refusal(outcomes, task, token, code, message))
        if not again:
            return []
        waiting = [(again[outcome.task, outcome.token], outcome) for outcome in outcomes if (outcome.task, outcome.token) in again]
        await self._prepare(waiting)
        self.busy += [outcome for code, outcome in waiting if code == "busy"]
        return [outcome for code, outcome in waiting if code != "busy"]

    async def _fetch(self, statement: str, patience: int, *arguments: Any) -> Sequence[Any]:
        pool = self.store.pool
        if self.db is None:
            return await pool.fetch(statement, *arguments, timeout=pool.target.patience + patience * MILLISECOND)
        try:
            rows: list[Any] = await self.db.fetch(statement, *arguments)
        except FAILURES as error:
            raise translate(error, pool.target) from error
        return rows

    async def _prepare(self, waiting: Iterable[tuple[str, Outcome]]) -> None:
        """Settings are read anew; lanes that a user's transaction would have to make are made outside of it."""
        for code, outcome in waiting:
            if code == "names":
                batch = msgspec.json.decode(document(self.store.settings, outcome.then))
                await make_names(self.store, self.db, msgspec.json.encode(batch["lines"]).decode())
        if any(code == "settings" for code, _ in waiting):
            await self.store.read_settings(self.db)

    async def ask_alone(self, outcome: Outcome) -> None:
        """One that met somebody's open transaction waits for it alone, and not for ever."""
        self.busy = []
        if await self.ask([outcome], self.store.pool.target.busy_timeout // MILLISECOND) or self.busy:
            message = "a key of the tasks that follow is held by an open transaction; the lease is as it was"
            self.refused.append(Refusal(outcome.task, outcome.token, "refused", message))


def _unaskable(outcome: Outcome) -> Refusal | None:
    if not UUID.fullmatch(outcome.task):
        return Refusal(outcome.task, outcome.token, "not_found", MESSAGES["not_found"])
    for task in outcome.tasks:
        if not UUID.fullmatch(task):
            return Refusal(outcome.task, outcome.token, "unknown_edge", _no_such_edge(task))
    if outcome.result is not None and _text(outcome.result) is None:
        return Refusal(outcome.task, outcome.token, "refused", "its result is no JSON")
    return None


def _text(document: bytes) -> str | None:
    try:
        text = document.decode()
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text


def _arguments(outcomes: Sequence[Outcome], settings: Settings) -> tuple[Any, ...]:
    """The completed ones of the first one's worker, in the order of their ids, which is that of their locks; and all others."""
    worker = outcomes[0].worker
    plain: list[Outcome] = []
    rest: list[Outcome] = []
    for outcome in outcomes:
        is_plain = outcome.ending is Ending.COMPLETED and not outcome.then and outcome.worker == worker and outcome.error is None
        (plain if is_plain else rest).append(outcome)
    plain.sort(key=attrgetter("task", "token"))
    return (
        worker,
        f"{{{','.join([outcome.task for outcome in plain])}}}",  # arrays as texts: element by element they cost a fifth of a worker's time
        f"{{{','.join([str(outcome.token) for outcome in plain])}}}",
        f"{{{','.join(['NULL' if outcome.started_after is None else str(outcome.started_after) for outcome in plain])}}}",
        _results([outcome.result for outcome in plain]),
        msgspec.json.encode([_encoded(outcome, settings) for outcome in rest]).decode() if rest else None,
    )


def _results(results: Sequence[bytes | None]) -> list[str | None] | None:
    """One for each; one for all where they are the same, as those of handlers without a result are."""
    first = results[0] if results else None
    if results.count(first) == len(results):
        return None if first is None else [first.decode()]
    return [None if result is None else result.decode() for result in results]


def _encoded(outcome: Outcome, settings: Settings) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "task": outcome.task,
        "token": outcome.token,
        "worker": outcome.worker,
        "ending": outcome.ending,
        "after": outcome.after,
        "started_after": outcome.started_after,
    }
    if outcome.suspect:
        fields["suspect"] = True
    if outcome.result is not None:
        fields["result"] = outcome.result.decode()
    if outcome.error is not None:
        fields["error"] = _encoded_error(outcome.error)
    if outcome.ending is Ending.WAITING:
        fields |= {"signals": outcome.signals, "seen": outcome.seen, "tasks": outcome.tasks, "deadline": outcome.deadline}
        fields["on_failure"] = ON_FAILURE_NUMBERS[OnFailure(outcome.on_failure)]
    if outcome.then:
        fields |= _encoded_then(outcome, settings)
    return fields


def _encoded_then(outcome: Outcome, settings: Settings) -> dict[str, Any]:
    try:
        return {"starts": msgspec.Raw(document(settings, outcome.then).encode())}
    except TaskmillError as error:
        return {"wrong": f"a task that follows was refused: {error}"}


def _encoded_error(error: ErrorInfo) -> str | None:
    return encode_error(ErrorInfo(_readable(error.code), _readable(error.message), _readable(error.traceback)))


def _encoded_progress(progress: Progress | None) -> str | None:
    return None if progress is None else encode_progress(Progress(progress.value, _readable(progress.message)))


def _readable(text: str) -> str:
    """PostgreSQL reads no document in which a text holds a zero."""
    return text.replace("\0", "\ufffd")


def _refusal(outcomes: Sequence[Outcome], task: str, token: int, code: str, message: str | None) -> Refusal:
    if code == "unknown_edge":
        return Refusal(task, token, code, _no_such_edge(message or ""))
    if code == "cycle":
        return Refusal(task, token, "refused", cycle().message)
    if code != "refused":
        return Refusal(task, token, code, MESSAGES.get(code, message or ""))
    outcome = next(outcome for outcome in outcomes if (outcome.task, outcome.token) == (task, token))
    id, _, why = (message or "").partition(" ")
    new = next((new for new in outcome.then if new.id == id), None)
    if new is None:
        return Refusal(task, token, code, "its result is no JSON" if why.startswith("invalid_json") else message or "")
    cause, _, text = why.partition(" ")
    return Refusal(task, token, code, f"the task {id} that follows was refused: {refusal(new, cause, text)}")


def _no_such_edge(task: str) -> str:
    return f"there is no task {task} to wait for"


async def checkpoint(store: Store, entries: Sequence[Checkpoint]) -> tuple[Refusal, ...]:
    refused = [Refusal(entry.task, entry.token, "not_found", STALE) for entry in entries if not UUID.fullmatch(entry.task)]
    asked = [entry for entry in entries if UUID.fullmatch(entry.task)] if refused else entries
    if asked:
        rows = await store.pool.fetch(
            store.load("finish.sql").checkpoint,
            [entry.task for entry in asked],
            [entry.token for entry in asked],
            [entry.worker for entry in asked],
            [entry.name for entry in asked],
            [entry.value for entry in asked],
            [_encoded_progress(entry.progress) for entry in asked],
            [entry.unwind for entry in asked],
            [entry.phase for entry in asked],
            [entry.started_after for entry in asked],
            MOST_STEPS,
            MOST_STEP_BYTES,
            store.now(),
        )
        refused += [Refusal(task, token, code, MESSAGES[code]) for task, token, code in rows]
    return tuple(refused)


async def signal(store: Store, task: str, name: str, data: bytes, signal_id: str) -> int:
    asked = (task, name, data, signal_id, MOST_SIGNALS, MOST_SIGNAL_BYTES, store.now())
    row = await store.pool.fetchrow(store.load("finish.sql").signal, *asked) if UUID.fullmatch(task) else None
    if row is None or row["code"] == "not_found":
        raise NotFound(f"there is no task {task}", field="task")
    if row["code"] == "expired":
        raise Expired(f"the record of task {task} is gone", field="task")
    if row["code"] is not None:
        most = f"{MOST_SIGNALS} signals" if row["code"] == "too_many_signals" else f"signals of {MOST_SIGNAL_BYTES} bytes"
        raise InvalidInput(f"task {task} can have {most} and no more", code=row["code"], field="data", hint="let the task end and start another")
    if row["state"] is not None:
        raise Conflict(f"task {task} has ended ({STATES[row['state']]})", code="terminal", field="task", hint="a signal reaches live tasks only")
    if row["stirs"]:
        await store.settle()
    number: int = row["number"]
    return number
