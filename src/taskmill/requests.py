"""What a caller can say, read once for every surface: which tasks, what to change, how long to wait, how many.

    REST   ?state=dead&queue=mail        ─┐
    gRPC   Filter{states, queues}         ├──▶ requests ──▶ engine.Filter, ids, numbers
    client client.list(state="dead")      │
    CLI    --state dead --queue mail     ─┘

A surface hands over the values as its protocol has them and the words that it uses for them. Everything else is here, so a request that one surface refuses
is refused by all, with the same code and hint, and its own word as the field.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence, Sized
from typing import NamedTuple

from taskmill.clock import MINUTE, DurationLike, duration, instant
from taskmill.engine import Filter
from taskmill.errors import InvalidInput, nearest
from taskmill.task import MOST_BATCH, SHARE_LENGTH, State, check_id, check_key, check_name, check_range

__all__ = [
    "LONGEST_CURSOR",
    "LONGEST_WAIT",
    "MOST_PAGE",
    "MOST_TASKS",
    "MOST_VALUES",
    "Words",
    "check_condition",
    "check_confirmed",
    "check_values",
    "cursor_of",
    "filter_of",
    "ids_of",
    "page_size",
    "state_of",
    "tag_of",
    "wait_of",
    "which_of",
]

MOST_VALUES = 100
"""Values of one condition."""
MOST_TASKS = MOST_BATCH
"""Tasks that one request names or submits."""
MOST_PAGE = 1_000
LONGEST_CURSOR = 24_000
LONGEST_WAIT = MINUTE

Values = str | Iterable[str] | None
Moment = str | int | dt.datetime | None


class Words(NamedTuple):
    """What a surface calls each thing: the `field` of a refusal is the word that the caller wrote."""

    state: str = "state"
    type: str = "type"
    queue: str = "queue"
    tenant: str = "tenant"
    tag: str = "tag"
    since: str = "since"
    until: str = "until"
    ids: str = "ids"
    confirm: str = "confirm"


WORDS = Words()


# Which tasks


def filter_of(
    *,
    state: Values = None,
    type: Values = None,
    queue: Values = None,
    tenant: str | None = None,
    tags: Mapping[str, str] | Iterable[str | tuple[str, str]] = (),
    since: Moment = None,
    until: Moment = None,
    words: Words = WORDS,
) -> Filter:
    """The filter that these conditions make; all of them hold. An empty tenant is that of tasks without one."""
    created_from = None if since is None else instant(since, field=words.since)
    created_to = None if until is None else instant(until, field=words.until)
    if created_from is not None and created_to is not None and created_from >= created_to:
        hint = f"{words.until} is later than {words.since}"
        raise InvalidInput(f"no time lies between {words.since} and {words.until}", code="contradiction", field=words.since, hint=hint)
    return Filter(
        states=frozenset(state_of(each, words.state) for each in _values(state, words.state)),
        types=frozenset(check_name(each, words.type) for each in _values(type, words.type)),
        queues=frozenset(check_name(each, words.queue) for each in _values(queue, words.queue)),
        tenant=check_key(tenant, words.tenant, length=SHARE_LENGTH) if tenant else tenant,
        tags=_tags(tags, words.tag),
        created_from=created_from,
        created_to=created_to,
    )


def _values(given: Values, field: str) -> Sequence[str]:
    values = () if given is None else (given,) if isinstance(given, str) else tuple(given)
    check_values(values, field)
    return values


def check_values(values: Sized, field: str) -> None:
    """At most so many values of one condition."""
    if len(values) > MOST_VALUES:
        raise InvalidInput(f"{len(values)} are too many", code="too_many", field=field, hint=f"at most {MOST_VALUES} values of one condition")


def state_of(text: str, field: str = WORDS.state) -> State:
    """A state by its name."""
    if text in set(State):
        return State(text)
    near = nearest(text, State)
    hint = f"did you mean {near}?" if near else f"one of {', '.join(State)}"
    raise InvalidInput(f"{text!r:.40} is no state", code="invalid_value", field=field, hint=hint)


def _tags(given: Mapping[str, str] | Iterable[str | tuple[str, str]], field: str) -> Mapping[str, str]:
    pairs = list(given.items()) if isinstance(given, Mapping) else [tag_of(each, field) if isinstance(each, str) else each for each in given]
    check_values(pairs, field)
    found: dict[str, str] = {}
    for name, value in pairs:
        if found.setdefault(check_name(name, field), check_key(value, field)) != value:
            raise InvalidInput(f"the tag {name} is given two values", code="contradiction", field=field, hint="a task has one value for each tag")
    return found


def tag_of(text: str, field: str = WORDS.tag) -> tuple[str, str]:
    """A tag as people write it: `name=value`."""
    name, equals, value = text.partition("=")
    if not equals:
        raise InvalidInput(f"{text[:80]!r} is not a tag", code="invalid_tag", field=field, hint="write it as name=value")
    return check_name(name, field), check_key(value, field)


def check_condition(name: str, known: Iterable[str]) -> None:
    """Refuse a condition that there is not, with the one that was meant."""
    known = list(known)
    if name not in known:
        near = nearest(name, known)
        hint = f"did you mean {near}?" if near else f"one of {', '.join(known)}"
        raise InvalidInput("there is no such condition", code="unknown_field", field=name[:80], hint=hint)


def ids_of(ids: Iterable[str], field: str = WORDS.ids) -> tuple[str, ...]:
    """The tasks named, each once."""
    found = tuple(ids)
    if not 1 <= len(found) <= MOST_TASKS:
        code = "batch_too_large" if found else "batch_empty"
        raise InvalidInput(f"{len(found)} ids in one request", code=code, field=field, hint=f"1 to {MOST_TASKS:,}")
    return tuple(dict.fromkeys(check_id(id, field) for id in found))


# Changing many


def which_of(ids: Iterable[str] | None, which: Filter | None, *, confirm: bool, dry_run: bool, words: Words = WORDS) -> tuple[str, ...] | Filter:
    """The tasks that a change is about: those named, or all that match. All that match are changed only if the caller confirms it."""
    if ids is not None and which is not None:
        raise InvalidInput("both ids and a filter are given", code="contradiction", field=words.ids, hint="name the tasks by one of them")
    if ids is not None:
        return ids_of(ids, words.ids)
    if which is None:
        raise InvalidInput("nothing says which tasks", code="which_required", field=words.ids, hint="give ids, or a filter")
    check_confirmed(confirm=confirm, dry_run=dry_run, field=words.confirm)
    return which


def check_confirmed(*, confirm: bool, dry_run: bool, field: str = WORDS.confirm) -> None:
    """Refuse to change all that match unless the caller has said so, or only counts."""
    if not confirm and not dry_run:
        raise InvalidInput("all that match would be changed", code="confirm_required", field=field, hint="count them first with dry_run, then confirm")


# Waits and bounds


def wait_of(value: DurationLike, field: str = "wait") -> int:
    """How long a request may wait for something, in microseconds."""
    micros = duration(value, field=field)
    if micros > LONGEST_WAIT:
        raise InvalidInput(f"{value!s:.40} is too long", code="invalid_duration", field=field, hint="at most 60s; ask again to wait longer")
    return micros


def page_size(value: int, field: str = "limit") -> int:
    return check_range(value, field, 1, MOST_PAGE)


def cursor_of(text: str | None, field: str = "cursor") -> str | None:
    """Where the page before ended; None for the first page."""
    if text and len(text) > LONGEST_CURSOR:
        raise InvalidInput("it is no cursor of this list", code="invalid_cursor", field=field, hint="pass on what the page before answered")
    return text or None
