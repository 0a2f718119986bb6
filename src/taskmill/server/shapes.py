"""The forms of values in requests, as the OpenAPI document shows them.

Only the kind of a value is checked by these; whether a name is a name and a duration a duration is judged where it always is, with an error that says more.
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from taskmill.requests import LONGEST_CURSOR, MOST_PAGE, MOST_TASKS
from taskmill.task import State

__all__ = [
    "Cap",
    "Count",
    "CronText",
    "Cursor",
    "Duration",
    "DurationText",
    "Id",
    "Ids",
    "Instant",
    "Json",
    "Key",
    "Limit",
    "Micros",
    "Name",
    "RateText",
    "Reason",
    "RetryData",
    "Share",
    "StateWord",
    "Tag",
    "Version",
]

Json = Annotated[Any, Meta(description="Any JSON value.")]
Name = Annotated[str, Meta(extra_json_schema={"pattern": "^[a-z0-9][a-z0-9_.-]{0,127}$", "maxLength": 128})]
Id = Annotated[str, Meta(extra_json_schema={"format": "uuid", "pattern": "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"})]
Key = Annotated[str, Meta(extra_json_schema={"minLength": 1, "maxLength": 256})]
Count = Annotated[int, Meta(extra_json_schema={"minimum": 0, "maximum": 10_000})]
DurationText = Annotated[
    str,
    Meta(
        description='As people write it: "250ms", "90s", "10m", "2h", "1d".',
        extra_json_schema={"pattern": r"^\s*([0-9]+(\.[0-9]+)?(us|ms|s|m|h|d))+\s*$", "examples": ["90s"]},
    ),
]
Seconds = Annotated[float, Meta(description="Seconds.", extra_json_schema={"minimum": 0, "maximum": 3_162_240_000})]
Duration = DurationText | Seconds
Instant = Annotated[str, Meta(description="RFC 3339, with its time zone.", extra_json_schema={"format": "date-time"})]
RetryData = Annotated[dict[str, Any], Meta(description="A retry policy: kind, max_retries, base, factor, cap, jitter, delays, rules; times in microseconds.")]
StateWord = Annotated[str, Meta(extra_json_schema={"enum": [state.value for state in State]})]
Tag = Annotated[
    str, Meta(description="`name=value`; all that are named must be there.", extra_json_schema={"pattern": "^[a-z0-9][a-z0-9_.-]{0,127}=.{1,256}$"})
]
Ids = Annotated[list[Id], Meta(extra_json_schema={"minItems": 1, "maxItems": MOST_TASKS})]
Limit = Annotated[int, Meta(description="How many at most.", extra_json_schema={"minimum": 1, "maximum": MOST_PAGE})]
Cursor = Annotated[str, Meta(description="Where the page before ended.", extra_json_schema={"maxLength": LONGEST_CURSOR})]
Version = Annotated[int, Meta(ge=0, le=1 << 62)]
Reason = Annotated[str, Meta(description="Why, for those who find it paused.", extra_json_schema={"maxLength": 500})]
Micros = Annotated[int, Meta(description="Microseconds.", ge=0, le=(1 << 53) - 1)]
CronText = Annotated[str, Meta(description='Five fields, six with the second first, or a name: "0 9 * * MON-FRI", "@daily", "@every 5m".')]
Share = Annotated[str, Meta(extra_json_schema={"maxLength": 128})]
RateText = Annotated[
    str,
    Meta(
        description='At most so many starts in any such time: "100/s", "100/m", "10/5s".',
        extra_json_schema={"pattern": "^[ \\t]*[0-9]{1,12}[ \\t]*/[ \\t]*[0-9]{0,9}(ms|s|m|h|d)[ \\t]*$", "examples": ["100/m"]},
    ),
]
Cap = Annotated[int, Meta(extra_json_schema={"minimum": 0, "maximum": 1 << 30})]
