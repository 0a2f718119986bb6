"""Which tasks a command is about: `--state --type --queue --tenant --tag --since --until`, as one `Filter`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from taskmill import requests
from taskmill.cli.options import OneOf
from taskmill.clock import SystemClock, duration, instant
from taskmill.engine import EVERYTHING, Filter
from taskmill.errors import InvalidInput
from taskmill.requests import Words
from taskmill.task import Priority, State, check_name

__all__ = ["DURATION", "INSTANT", "NAME", "PRIORITIES", "PRIORITY", "TAG", "WEIGHT", "filters", "is_everything"]

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

WORDS = Words(*(f"--{word}" for word in Words._fields))._replace(ids="ID", confirm="--yes")


def _shown(param: click.Parameter | None) -> str:
    """What the caller wrote the value under."""
    return param.opts[0] if param is not None else "value"


if TYPE_CHECKING:
    _ParamType = click.ParamType[Any]
else:
    _ParamType = click.ParamType  # generic since click 8.5 only


class _Read(_ParamType):
    """A value read by a function of ours, whose refusal names the option."""

    def __init__(self, name: str, read: Callable[[str, str], object]) -> None:
        self.name = name
        self._read = read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return self._read(value, _shown(param)) if isinstance(value, str) else value


def _duration(text: str, field: str) -> int:
    return duration(float(text) if text.replace(".", "", 1).isdecimal() and text.isascii() else text, field=field)


def _instant(text: str, field: str) -> int:
    return instant(text, field=field)


def _moment(text: str, field: str) -> int:
    """A time, or how long ago it was."""
    try:
        return max(0, SystemClock().now() - duration(text, field=field))
    except InvalidInput as not_a_duration:
        if not_a_duration.message.endswith(("too long", "too short")):
            raise
    try:
        return instant(text, field=field)
    except InvalidInput as error:
        hint = error.hint if error.code == "timezone_required" else 'RFC 3339, for example "2026-01-31T09:00:00Z", or how long ago: "10m"'
        raise InvalidInput(error.message, code=error.code, field=field, hint=hint) from None


def _weight(text: str, field: str) -> tuple[str, int]:
    share, equals, turns = text.rpartition("=")
    if not equals or not turns.isdecimal() or not turns.isascii() or len(turns) > 4:
        raise InvalidInput(f"{text[:80]!r} is no weight", code="invalid_weight", field=field, hint="write it as share=3, with a whole number from 1 to 1000")
    return share, int(turns)


def _priorities(text: str, field: str) -> tuple[int, ...]:
    """Written as people think of them, the most urgent first; stored the other way round."""
    parts = [part.strip() for part in text.split(",")]
    if len(parts) != len(Priority) or not all(part.isdecimal() and part.isascii() and len(part) <= 4 for part in parts):
        hint = "four whole numbers from 1 to 1000, of critical, high, normal and low tasks: 8,4,2,1"
        raise InvalidInput(f"{text[:80]!r} says no turns", code="invalid_priorities", field=field, hint=hint)
    return tuple(int(part) for part in reversed(parts))


DURATION = _Read("duration", _duration)
INSTANT = _Read("time", _instant)
MOMENT = _Read("time", _moment)
NAME = _Read("name", check_name)
TAG = _Read("name=value", requests.tag_of)
STATE = _Read("state", requests.state_of)
WEIGHT = _Read("share=n", _weight)
PRIORITIES = _Read("c,h,n,l", _priorities)
PRIORITY = OneOf(*(priority.name.lower() for priority in sorted(Priority, reverse=True)))

_STATE = click.option("--state", "states", type=STATE, multiple=True, metavar="[" + "|".join(State) + "]", help="In this state; more than one may be named.")
_OTHERS = (
    click.option("--type", "types", type=NAME, multiple=True, help="Of this type; more than one may be named."),
    click.option("--queue", "queues", type=NAME, multiple=True, help="In this queue; more than one may be named."),
    click.option("--tenant", help="Of this tenant."),
    click.option("--tag", "tags", type=TAG, multiple=True, metavar="NAME=VALUE", help="With this tag; all that are named must be there."),
    click.option("--since", type=MOMENT, metavar="TIME", help="Submitted then or later: RFC 3339, or how long ago (10m, 2h, 1d)."),
    click.option("--until", type=MOMENT, metavar="TIME", help="Submitted before then."),
)


def filters(*, states: bool = True) -> Callable[[Decorated], Decorated]:
    """The options of a filter; the command gets `which`, the one it makes. Without `states` for those whose state is given."""

    def wrap(function: Decorated) -> Decorated:
        @functools.wraps(function)
        def gather(*args: Any, **given: Any) -> Any:
            return function(*args, which=_taken(given), **given)

        wrapped: Any = gather
        for option in reversed((_STATE, *_OTHERS) if states else _OTHERS):
            wrapped = option(wrapped)
        return cast("Decorated", wrapped)

    return wrap


def _taken(given: dict[str, Any]) -> Filter:
    """The filter of a command's options, which are taken out of what it was given."""
    return requests.filter_of(
        state=given.pop("states", ()),
        type=given.pop("types"),
        queue=given.pop("queues"),
        tenant=given.pop("tenant"),
        tags=given.pop("tags"),
        since=given.pop("since"),
        until=given.pop("until"),
        words=WORDS,
    )


def is_everything(which: Filter) -> bool:
    """Whether nothing was asked for but everything."""
    return which == EVERYTHING
