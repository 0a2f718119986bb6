"""The options of `@app.task`, `@app.schedule` and `.options(…)`: their names and types for editors, and what they mean.

Each is a TypedDict, so that a misspelt option is an error in the editor; at run time it is refused with the name that was meant. An option
that is None counts as not given.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypedDict

import msgspec

from taskmill.clock import DAY, HOUR, MILLISECOND, MINUTE, SECOND, DurationLike, duration, instant
from taskmill.engine import Durability, Transaction
from taskmill.errors import InvalidInput, nearest
from taskmill.retry import Retry
from taskmill.task import MOST_CRASHES, Edge, OnFailure, OnLimit, Priority, TypeSettings, Unique, check_id, check_limit, check_name, check_range

if TYPE_CHECKING:
    from taskmill.handle import Handle
    from taskmill.sync import SyncHandle

__all__ = ["ScheduleOptions", "SubmitOptions", "TaskOptions", "Wanted", "choice", "known", "limit_value", "submit_fields", "type_settings"]

PriorityLike = Literal["critical", "high", "normal", "low"] | Priority
InstantLike = str | int | dt.datetime


class TaskOptions(TypedDict, total=False):
    """What `@app.task` takes."""

    name: str | None
    """The type's name; the function's, if not given."""
    queue: str | None
    priority: PriorityLike | None
    retry: Retry | None
    timeout: DurationLike | None
    """How long one attempt may take."""
    max_crashes: int | None
    rate_limit: str | None
    """At most so many starts in any such time, over all workers: "100/m", "10/5s"."""
    concurrency: int | None
    """At most so many at once, over all workers."""
    limits: str | Iterable[str] | None
    """Limits of `app.limit` that it stands under: "gateway", or with a count per value, "per-user:{user_id}"."""
    on_limit: Literal["delay", "reject"] | OnLimit | None
    unique: str | Unique | None
    """One live task per key: a text with fields of the payload in braces, "report-{region}"."""
    fair: str | None
    """What the queue takes turns by: "tenant", or "{field}"."""
    ordered: bool | str | None
    """One at a time, in the order of submission: all of the type (True), or those of the same "{field}"."""
    isolated: bool | None
    """In a process of its own: for work that holds the processor, or may have to be killed."""


class ScheduleOptions(TaskOptions, total=False):
    """What `@app.schedule` takes; those of a task only when it decorates a plain function."""

    timezone: str | None
    overlap: Literal["allow", "skip", "replace"] | None
    misfire: Literal["once", "skip", "all"] | None
    start: InstantLike | None
    arguments: Mapping[str, object] | None
    expires: DurationLike | None
    tenant: str | None
    tags: Mapping[str, str] | None
    headers: Mapping[str, str] | None


class SubmitOptions(TypedDict, total=False):
    """What `.options(…)` and `app.submit` take."""

    delay: DurationLike | None
    run_at: InstantLike | None
    priority: PriorityLike | None
    queue: str | None
    retry: Retry | None
    timeout: DurationLike | None
    max_crashes: int | None
    expires: DurationLike | None
    """The deadline of the whole task, this long from now: unless it runs at that time, it is cancelled, also one that waits for a retry, a signal or other
    tasks. A running attempt goes on and may complete; it is not tried again."""
    expires_at: InstantLike | None
    idempotency_key: str | None
    idempotency_window: DurationLike | None
    unique: str | Unique | None
    tenant: str | None
    tags: Mapping[str, str] | None
    headers: Mapping[str, str] | None
    after: str | Handle[Any] | SyncHandle[Any] | Iterable[str | Handle[Any] | SyncHandle[Any]] | None
    """The tasks that this one waits for; its handler sees what they returned as `ctx.results`."""
    on_failure: Literal["cancel", "ignore", "hold"] | OnFailure | None
    """What it means when one of those does not complete."""
    parent: str | Edge | Handle[Any] | SyncHandle[Any] | None
    """The task that waits for this one. It was submitted with `sealed=True`, and `unseal` has not broken its seal yet. An `Edge` says what a failure of this
    task means to it."""
    sealed: bool | None
    """It waits until its seal is broken and every task that names it as its parent has ended: for more than 10,000 tasks to wait for."""
    limits: str | Iterable[str] | None
    on_limit: Literal["delay", "reject"] | OnLimit | None
    fair_key: str | None
    order_key: str | None
    id: str | None
    tx: Transaction | Any
    """Exists if and only if this transaction commits: one of `app.transaction()`, or a connection or session of your own."""
    durability: Literal["local", "fsync", "replicated"] | Durability | None


def known(options: Mapping[str, Any], kind: type[TaskOptions | ScheduleOptions | SubmitOptions], where: str) -> dict[str, Any]:
    """The options that were given; one that does not exist is refused with the one that was meant."""
    for name in options:
        if name not in kind.__annotations__:
            near = nearest(name, kind.__annotations__) or next((each for each in kind.__annotations__ if each.startswith(f"{name}_")), None)
            hint = f"did you mean {near}?" if near else f"there are {', '.join(kind.__annotations__)}"
            raise InvalidInput(f"{where} has no such option", code="unknown_option", field=name[:80], hint=hint)
    return {name: value for name, value in options.items() if value is not None}


# Of a type


_TYPE_FIELDS = frozenset(TypeSettings.__struct_fields__)


def type_settings(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of TypeSettings that a declaration names."""
    fields = {field: _READERS[field](value, field) for field, value in given.items() if field in _TYPE_FIELDS and field != "ordered"}
    if given.get("ordered"):
        fields["ordered"] = name if given["ordered"] is True else _text(given["ordered"], "ordered")
    if "rate_limit" in given or "concurrency" in given:
        fields["limits"] = (*fields.get("limits", ()), name)
    return fields


def limit_value(rate: str | None, cap: int | None, field: str = "rate") -> bytes:
    """A limit as the store keeps it."""
    found: dict[str, int] = {}
    if rate is not None:
        found["rate"], found["window"] = _rate(rate, field)
    if cap is not None:
        found["cap"] = check_range(cap, "cap" if field == "rate" else "concurrency", 0, 1 << 30)
    if not found:
        raise InvalidInput("it limits nothing", field=field, hint='give rate="100/m", cap=5, or both')
    return msgspec.json.encode(found)


_RATE = re.compile(r"\s*(\d{1,12})\s*/\s*(\d{0,9})(ms|s|m|h|d)\s*", re.ASCII)
_WINDOWS = {"ms": MILLISECOND, "s": SECOND, "m": MINUTE, "h": HOUR, "d": DAY}
_LONGEST_WINDOW = 366 * DAY


def _rate(text: object, field: str) -> tuple[int, int]:
    """How many, and in which time: "100/m", "10/5s"."""
    found = _RATE.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise InvalidInput(f"{text!r:.80} is not a rate", code="invalid_rate", field=field, hint='write "100/s", "100/m", "100/h", "100/d" or "10/5s"')
    count, window = int(found[1]), int(found[2] or 1) * _WINDOWS[found[3]]
    if not 1 <= count <= 1 << 40 or not MILLISECOND <= window <= _LONGEST_WINDOW:
        raise InvalidInput(f"{text!r:.80} is out of range", code="invalid_rate", field=field, hint="at least one start, in 1ms to 366d")
    return count, window


# Of a submit


class Wanted(NamedTuple):
    """What the options of a submit come to: fields of its new task, and what is not one of its fields."""

    fields: dict[str, Any]
    expires: int | None
    tx: Transaction | None
    durability: Durability | None


def submit_fields(options: Mapping[str, Any], where: str) -> Wanted:
    """Options as people write them, as what a new task holds."""
    given = known(options, SubmitOptions, where)
    tx = given.pop("tx", None)
    level = given.pop("durability", None)
    durability = None if level is None else Durability(choice(level, Durability, "durability"))
    expires = given.pop("expires", None)
    if expires is not None and "expires_at" in given:
        raise InvalidInput("both expires and expires_at are given", field="expires", hint="give one of them")
    if "delay" in given and "run_at" in given:
        raise InvalidInput("both run_at and delay are given", field="delay", hint="give one of them")
    after, on_failure = given.pop("after", None), given.pop("on_failure", OnFailure.CANCEL)
    fields = {name: _READERS[name](value, name) for name, value in given.items()}
    if after is not None:
        fields["edges"] = _edges(after, OnFailure(choice(on_failure, OnFailure, "on_failure")))
    return Wanted(fields, None if expires is None else duration(expires, field="expires", minimum=MILLISECOND), tx, durability)


def _edges(after: Any, on_failure: OnFailure) -> tuple[Edge, ...]:
    those = [after] if isinstance(after, str) or hasattr(after, "id") else list(after)
    return tuple(Edge(check_id(each if isinstance(each, str) else getattr(each, "id", each), "after"), on_failure) for each in those)


# Values


def choice(value: object, kind: Iterable[str], field: str) -> str:
    """One of a few words."""
    words = [str(word) for word in kind]
    if isinstance(value, str) and value in words:
        return str(value)
    near = nearest(f"{value!s:.80}", words)
    raise InvalidInput(f"{value!r:.80} is not known", field=field, hint=f"did you mean {near}?" if near else f"one of {', '.join(words)}")


def _priority(value: object, field: str) -> int:
    if isinstance(value, Priority):
        return int(value)
    return int(Priority[choice(value, [each.name.lower() for each in reversed(Priority)], field).upper()])


def _retry(value: object, field: str) -> Retry:
    if not isinstance(value, Retry):
        raise InvalidInput(f"{value!r:.80} is no retry policy", code="invalid_retry", field=field, hint="for example Retry.exponential(max_retries=5)")
    return value


def _unique(value: object, field: str) -> Unique:
    return value if isinstance(value, Unique) else Unique(_text(value, field))


def _limits(value: Any, field: str) -> tuple[str, ...]:
    names = (value,) if isinstance(value, str) else tuple(value)
    for name in names:
        check_limit(_text(name, field))
    return names


def _texts(value: object, field: str) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise InvalidInput(f"{value!r:.80} is no mapping", field=field, hint=f'for example {field}={{"name": "value"}}')
    return {_text(name, field): _text(text, f"{field}.{name}") for name, text in value.items()}


def _parent(value: Any, field: str) -> Edge:
    if isinstance(value, Edge):
        check_id(value.task, field)
        return value
    return Edge(check_id(value if isinstance(value, str) else getattr(value, "id", value), field))


def _flag(value: object, field: str) -> bool:
    if not isinstance(value, bool):
        raise InvalidInput(f"{value!r:.80} is neither true nor false", field=field, hint="true or false")
    return value


def _text(value: object, field: str) -> str:
    if not isinstance(value, str):
        raise InvalidInput(f"{value!r:.80} is no text", field=field, hint="write it as a text")
    return value


def _duration(value: Any, field: str) -> int:
    return duration(value, field=field)


def _instant(value: Any, field: str) -> int:
    return instant(value, field=field)


def _crashes(value: object, field: str) -> int:
    return check_range(value, field, 0, MOST_CRASHES)


def _on_limit(value: object, field: str) -> OnLimit:
    return OnLimit(choice(value, OnLimit, field))


_READERS: Mapping[str, Any] = {
    "queue": check_name,
    "priority": _priority,
    "retry": _retry,
    "timeout": _duration,
    "max_crashes": _crashes,
    "limits": _limits,
    "on_limit": _on_limit,
    "unique": _unique,
    "fair": _text,
    "delay": _duration,
    "run_at": _instant,
    "expires_at": _instant,
    "idempotency_key": _text,
    "idempotency_window": _duration,
    "tenant": _text,
    "tags": _texts,
    "headers": _texts,
    "fair_key": _text,
    "order_key": _text,
    "id": check_id,
    "parent": _parent,
    "sealed": _flag,
}
