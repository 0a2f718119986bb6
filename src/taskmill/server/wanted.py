"""What a client wants to hear: a filter of live events, as a query (`?queue=mail&queue=sms&event=task.*`) or as JSON (`{"queue": ["mail", "sms"]}`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import Any
from urllib.parse import parse_qsl

from msgspec import Struct

from taskmill.errors import InvalidInput
from taskmill.server.news import TYPES, News
from taskmill.task import SHARE_LENGTH, check_id, check_key, check_name

__all__ = ["EVERYTHING", "Wanted", "filter_of", "read_filter", "read_query"]

MEASURED = frozenset({"queue.depth", "system.metrics", "resync"})
"""Types of events that this server makes by itself."""
MOST_VALUES = 100
"""Names in one filter."""
AFTER = "after"


class Wanted(Struct, frozen=True, kw_only=True):
    """All conditions hold; one that is empty always does. Where tenants, types or tasks are named, only events of tasks are meant."""

    tenants: frozenset[str] = frozenset()
    queues: frozenset[str] = frozenset()
    types: frozenset[str] = frozenset()
    tasks: frozenset[str] = frozenset()
    events: frozenset[str] = frozenset()

    def reads(self, news: News) -> bool:
        return (
            (not self.events or news.type in self.events)
            and (not self.queues or news.queue in self.queues)
            and (not self.types or news.task_type in self.types)
            and (not self.tasks or news.task in self.tasks)
            and (not self.tenants or news.tenant in self.tenants)
        )

    @property
    def needs_store(self) -> bool:
        """Whether it may mean an event that the store tells."""
        return not self.events or not self.events <= MEASURED

    def asks_for(self, event: str) -> bool:
        """Whether an event of this type, that is about no task, may be meant."""
        return (not self.events or event in self.events) and not (self.tenants or self.types or self.tasks)


EVERYTHING = Wanted()


def _event(value: object, field: str) -> Iterable[str]:
    """A type of event, or all that begin alike: `task.*`."""
    if isinstance(value, str):
        if value in TYPES:
            return (value,)
        found = [type for type in TYPES if value.endswith(".*") and type.startswith(value[:-1])]
        if found:
            return found
    near = get_close_matches(str(value)[:80], TYPES, 1)
    hint = f"did you mean {near[0]}?" if near else "a type of event such as task.completed, or all of a kind: task.* worker.*"
    raise InvalidInput(f"{value!r:.80} is no type of event", code="unknown_event", field=field, hint=hint)


_FIELDS: Mapping[str, tuple[str, Callable[[object, str], Iterable[str]]]] = {
    "tenant": ("tenants", lambda value, field: (check_key(value, field, length=SHARE_LENGTH),)),
    "queue": ("queues", lambda value, field: (check_name(value, field),)),
    "type": ("types", lambda value, field: (check_name(value, field),)),
    "task": ("tasks", lambda value, field: (check_id(value, field),)),
    "event": ("events", _event),
}


def read_query(text: bytes) -> tuple[Wanted, str | None]:
    """The filter in a URL, in which a name may come several times; and the last event that was heard (`after`), where it is named."""
    found: dict[str, list[object]] = {}
    try:
        pairs = parse_qsl(text.decode("ascii"), keep_blank_values=True, strict_parsing=bool(text), errors="strict", max_num_fields=2 * MOST_VALUES)
    except ValueError:
        raise InvalidInput("the query cannot be read", code="invalid_query", field="query", hint="name=value, joined by &, in UTF-8") from None
    for name, value in pairs:
        found.setdefault(name, []).append(value)
    after = found.pop(AFTER, [])
    if len(after) > 1:
        raise InvalidInput("it is given twice", code="invalid_value", field=AFTER, hint="give it once")
    return _read(found), str(after[0]) if after else None


def read_filter(value: object) -> Wanted:
    """The filter in a message: an object whose members are names or lists of them."""
    if not isinstance(value, dict):
        raise InvalidInput("a filter is an object", code="invalid_filter", field="filter", hint='for example {"queue": "mail"}; {} is everything')
    return _read({name: values if isinstance(values, list) else [values] for name, values in value.items()})


def _read(given: Mapping[str, list[object]]) -> Wanted:
    found: dict[str, frozenset[str]] = {}
    if sum(map(len, given.values())) > MOST_VALUES:
        raise InvalidInput(
            "the filter names too much", code="too_many_names", field="filter", hint=f"at most {MOST_VALUES} names; leave a condition out instead"
        )
    for name, values in given.items():
        if name not in _FIELDS:
            near = get_close_matches(name[:80], _FIELDS, 1)
            raise InvalidInput(
                "there is no such condition",
                code="unknown_field",
                field=name[:80],
                hint=f"did you mean {near[0]}?" if near else f"one of {', '.join(_FIELDS)}",
            )
        if not values:
            raise InvalidInput("it names nothing", code="invalid_value", field=name, hint="leave it out, or name something")
        member, check = _FIELDS[name]
        found[member] = frozenset(text for value in values for text in check(value, name))
    return Wanted(**found)


def filter_of(wanted: Wanted) -> dict[str, Any]:
    """The filter as a client writes it."""
    return {name: sorted(values) for name, (member, _) in _FIELDS.items() if (values := getattr(wanted, member))}
