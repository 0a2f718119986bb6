"""Finish: every ending of an attempt, applied only under its current lease; and checkpoints and signals, which live under the same rule."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

from msgspec import Struct

from taskmill.engine import Checkpoint, Ending, Finished, Outcome, Refusal
from taskmill.engines.redis.records import completed
from taskmill.engines.redis.store import Store
from taskmill.engines.redis.submit import Batch, refusal
from taskmill.engines.refusals import cycle
from taskmill.engines.rows import ON_FAILURE_NUMBERS, STATES, encode_progress
from taskmill.errors import Conflict, Expired, InvalidInput, NotFound, StoreError
from taskmill.task import MOST_SIGNAL_BYTES, MOST_SIGNALS, MOST_STEP_BYTES, MOST_STEPS, ErrorInfo, OnFailure, State

__all__ = ["Far", "checkpoint", "finish", "signal"]

PIECE = 200
ROUNDS = 20
SLICES = 20
"""Of edges that are left to fall: so many are applied before others are left to do it."""
STALE = "the lease is no longer current; nothing was written"
BOUNDS = {"too_many_signals": f"at most {MOST_SIGNALS}", "signals_too_large": f"at most {MOST_SIGNAL_BYTES} bytes in all"}
MESSAGES = {
    "stale_lease": STALE,
    "not_found": "there is no such task",
    "too_many_steps": f"a task has at most {MOST_STEPS} steps",
    "steps_too_large": f"the steps of a task have at most {MOST_STEP_BYTES} bytes, with their names",
}


class Far(Struct, frozen=True):
    """What outcomes have to do with other shards: where the tasks are that they wait for, and by task what they start there (NewTasks, as JSON)."""

    elsewhere: dict[str, int] = {}
    starts: dict[str, str] = {}


NEAR = Far()


async def finish(store: Store, outcomes: Sequence[Outcome], far: Far = NEAR) -> Finished:
    refused: list[Refusal] = []
    instead: dict[str, State] = {}
    more = False
    outcomes = await _complete(store, outcomes, far)
    for first in range(0, len(outcomes), PIECE):
        more = await _piece(store, outcomes[first : first + PIECE], far, refused, instead) or more
    for _ in range(SLICES):
        if not more:
            break
        more = bool(await store.run("fell", []))
    return Finished(tuple(refused), MappingProxyType(instead), more)


async def _complete(store: Store, outcomes: Sequence[Outcome], far: Far) -> Sequence[Outcome]:
    """Those that have completed, start nothing, and that nobody has touched since their claim; the rest is left."""
    swift: list[Outcome] = []
    left: list[Outcome] = []
    for outcome in outcomes:
        one = store.held.get(outcome.token)
        ends = outcome.ending is Ending.COMPLETED and not outcome.then and outcome.task not in far.starts
        (swift if ends and one is not None and one.header.worker == outcome.worker else left).append(outcome)
    swift.sort(key=lambda outcome: store.held[outcome.token].tail)
    for first in range(0, len(swift), PIECE):
        some = swift[first : first + PIECE]
        groups: list[list[Any]] = []
        raws: list[bytes] = []
        for outcome in some:
            one = store.held[outcome.token]
            h = one.header
            group = [h.queue, h.type, h.priority, h.worker, one.tail]
            if not groups or groups[-1][:5] != group:
                groups.append([*group, 0])
            groups[-1][5] += 1
            raws.append(f"{outcome.task}{outcome.token:016x}".encode())
            raws.append(completed(one, outcome.started_after, False if outcome.result is None else outcome.result.decode()))
        refused = set(await store.run("complete", groups, raws) or ())
        for place, outcome in enumerate(some, 1):
            del store.held[outcome.token]
            if place in refused:
                left.append(outcome)
    return left


async def _piece(store: Store, outcomes: Sequence[Outcome], far: Far, refused: list[Refusal], instead: dict[str, State]) -> bool:
    for _ in range(ROUNDS):
        raws: list[bytes] = []
        sent = [_packed(store, outcome, far, raws) for outcome in outcomes]
        found = await store.run("finish", [store.generation, sent, far.elsewhere], raws)
        if found != "settings":
            break
        await store.read_settings()
    else:
        raise StoreError("the settings change all the time", code="store_busy", hint="nothing was written, ask again")
    more, wrong, other = found
    refused += [_refusal(outcomes[place - 1], code, message) for place, code, message in wrong or ()]
    instead |= {task: STATES[state] for task, state in other or ()}
    return bool(more)


def _packed(store: Store, outcome: Outcome, far: Far, raws: list[bytes]) -> list[Any]:
    more: dict[str, Any] = {}
    if outcome.result is not None:
        more["result"] = outcome.result.decode()
    if outcome.error is not None:
        more["error"] = _error(outcome.error)
    if outcome.after:
        more["after"] = outcome.after
    if outcome.started_after is not None:
        more["started_after"] = outcome.started_after
    if outcome.suspect:
        more["suspect"] = True
    if outcome.ending is Ending.WAITING:
        more |= {"seen": outcome.seen, "on_failure": ON_FAILURE_NUMBERS[OnFailure(outcome.on_failure)]}
        more |= {name: list(value) for name, value in (("signals", outcome.signals), ("tasks", outcome.tasks)) if value}
        if outcome.deadline is not None:
            more["deadline"] = outcome.deadline
    if outcome.then:
        batch = Batch(store.settings, outcome.then)
        if batch.refused:
            place, error = next(iter(batch.refused.items()))
            more["wrong"] = f"the task {outcome.then[place].id} that follows was refused: {error}"
        else:
            more["starts"] = batch.packed(raws)
    if outcome.task in far.starts:
        more["away"] = far.starts[outcome.task]
    return [outcome.task, outcome.worker, outcome.token, str(outcome.ending), more]


def _error(error: ErrorInfo) -> dict[str, str]:
    return {name: value for name, value in (("code", error.code), ("message", error.message), ("traceback", error.traceback)) if value or name == "code"}


def _refusal(outcome: Outcome, code: str, message: str) -> Refusal:
    if code == "cycle":
        return Refusal(outcome.task, outcome.token, "refused", cycle().message)
    if code == "unknown_edge":
        return Refusal(outcome.task, outcome.token, code, f"there is no task {message} to wait for")
    if code == "refused" and not message.startswith("the task "):
        id, cause, other = message.split(" ", 2)
        message = f"the task {id} that follows was refused: {refusal(cause, other)}"
    return Refusal(outcome.task, outcome.token, code, MESSAGES.get(code, message))


async def checkpoint(store: Store, entries: Sequence[Checkpoint]) -> tuple[Refusal, ...]:
    sent = [
        [
            entry.task, entry.worker, entry.token, entry.name or False, entry.value.decode(),
            False if entry.progress is None else encode_progress(entry.progress), -1 if entry.unwind is None else int(entry.unwind), entry.phase or False,
            {"value": entry.progress.value, "message": entry.progress.message} if entry.progress else {"checkpoint": entry.name},
            False if entry.started_after is None else entry.started_after,
        ]
        for entry in entries
    ]  # fmt: skip
    found = await store.run("checkpoint", [sent, MOST_STEPS, MOST_STEP_BYTES]) if sent else []
    return tuple(Refusal(entries[place - 1].task, entries[place - 1].token, code, MESSAGES[code]) for place, code in found or ())


async def signal(store: Store, task: str, name: str, data: bytes, id: str) -> int:
    number, code, state = (*await store.run("signal", [task, name, data.decode(), id, MOST_SIGNALS, MOST_SIGNAL_BYTES]), None, None)[:3]
    if code in BOUNDS:
        raise InvalidInput(f"task {task} has as many signals as it can", code=code, field="data", hint=BOUNDS[code])
    if code == "not_found":
        raise NotFound(f"there is no task {task}", field="task")
    if code == "expired":
        raise Expired(f"the record of task {task} is gone", field="task")
    if code == "terminal":
        raise Conflict(f"task {task} has ended ({STATES[state]})", code="terminal", field="task", hint="a signal reaches live tasks only")
    return int(number)
