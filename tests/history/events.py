"""What a history is made of: one event for each call that a client made of a store, and what it read in the end.

Every event has the moments between which its step happened, if it happened: `began` just before the call and `ended` just after its answer
(the machine's monotonic clock, microseconds, the same for all its processes). What the store itself says of time (`claimed_at`,
`created_at`, `run_at`, `since`, `until`) is on the store's clock; the two are never compared.

Answers: `lost` means that nobody knows: the step may have been applied, or not, or may be still. `error` means that the store said nothing
was written. A call whose process died in it keeps the answer it was begun with, `lost`.
"""

from __future__ import annotations

from typing import Literal

import msgspec

__all__ = [
    "TERMINAL",
    "Attempt",
    "Beat",
    "Call",
    "Claim",
    "Died",
    "Event",
    "Finish",
    "Fire",
    "Given",
    "Join",
    "Lead",
    "Leave",
    "Led",
    "Limit",
    "Operate",
    "Read",
    "Recover",
    "Submit",
]

TERMINAL = frozenset({"completed", "dead", "cancelled"})
FOREVER = 1 << 62
HOURS_72 = 72 * 3600 * 1_000_000


class Call(msgspec.Struct, kw_only=True, frozen=True, tag_field="event", omit_defaults=True):
    """The moments of one call, and which process made it."""

    began: int = 0
    ended: int | None = None
    process: int = 0
    number: int = 0
    """Counts the calls of its process; the line of the invocation and the line of the answer carry the same."""


class Submit(Call, frozen=True, tag="submit"):
    """One task of a submit."""

    task: str
    type: str
    queue: str = "default"
    tenant: str = ""
    key: str | None = None
    window: int = HOURS_72
    unique: str | None = None
    hash: str = ""
    """Of the payload."""
    run_at: int = 0
    priority: int = 1
    share: str = ""
    limits: tuple[str, ...] = ()
    waits: bool = False
    """It has edges: others decide when it is ready."""
    expires_at: int | None = None
    created_at: int | None = None
    """From the answer."""
    id: str | None = None
    """The task that the answer names; its own where it is not said."""
    answer: Literal["created", "duplicate", "replaced", "conflict", "rejected", "error", "lost"] = "lost"


class Join(Call, frozen=True, tag="join"):
    worker: str
    types: tuple[str, ...]
    answer: Literal["applied", "error", "lost"] = "lost"


class Leave(Call, frozen=True, tag="leave"):
    worker: str
    answer: Literal["applied", "error", "lost"] = "lost"


class Died(Call, frozen=True, tag="died"):
    """The tester ended a worker, or cut it off for good."""

    worker: str


class Given(msgspec.Struct, frozen=True, omit_defaults=True):
    """One task in the answer of a claim: a lease."""

    task: str
    token: int
    attempt: int
    claimed_at: int
    type: str = ""
    limits: tuple[str, ...] = ()


class Claim(Call, frozen=True, tag="claim"):
    worker: str
    request: int
    queues: tuple[str, ...] = ("default",)
    per_type: bool = False
    """The room had slots per type, so a type may have been passed over."""
    given: tuple[Given, ...] = ()
    answer: Literal["given", "error", "lost"] = "lost"


class Finish(Call, frozen=True, tag="finish"):
    """One outcome of a finish, or one checkpoint: a write under a lease."""

    worker: str
    task: str
    token: int
    outcome: Literal["completed", "retry", "dead", "snoozed", "waiting", "cancelled", "released", "crashed", "checkpoint"]
    delay: int = 0
    """Of a retry or a snooze that nothing else can shorten (no signal, no cancel, no expiry)."""
    answer: Literal["applied", "stale", "error", "lost"] = "lost"


class Beat(Call, frozen=True, tag="beat"):
    """`kept` are the leases that the answer confirms; `gone` those it says are no longer held. A lease in neither was not judged."""

    worker: str
    request: int
    leases: tuple[int, ...]
    kept: tuple[int, ...] = ()
    gone: tuple[int, ...] = ()
    answer: Literal["applied", "error", "lost"] = "lost"


class Recover(Call, frozen=True, tag="recover"):
    """`moved`: the tokens it took back; none given: the caller does not know which."""

    moved: tuple[int, ...] | None = None
    answer: Literal["applied", "error", "lost"] = "lost"


class Operate(Call, frozen=True, tag="operate"):
    verb: Literal["cancel", "requeue", "delete"]
    task: str
    version: int | None = None
    """The version the caller saw, if it named one."""
    answer: Literal["applied", "refused", "error", "lost"] = "lost"


class Limit(Call, frozen=True, tag="limit"):
    """A definition that was put; nothing given: no bound."""

    name: str
    cap: int | None = None
    rate: int | None = None
    window: int = 0
    answer: Literal["applied", "error", "lost"] = "lost"


class Lead(Call, frozen=True, tag="lead"):
    """Leadership given or renewed (`applied`, with term, since, until on the store's clock), refused, or given up (`resigned`)."""

    role: str
    holder: str
    term: int = 0
    since: int = 0
    until: int = 0
    answer: Literal["applied", "resigned", "refused", "error", "lost"] = "lost"


class Led(Call, frozen=True, tag="led"):
    """A write under a term: prune, outbox."""

    role: str
    term: int
    verb: str
    answer: Literal["applied", "refused", "error", "lost"] = "lost"


class Fire(Call, frozen=True, tag="fire"):
    """One fire time of a schedule."""

    role: str
    term: int
    schedule: str
    time: int
    task: str
    answer: Literal["applied", "refused", "error", "lost"] = "lost"


class Attempt(msgspec.Struct, frozen=True):
    number: int
    outcome: str | None = None


class Read(Call, frozen=True, tag="read"):
    """A task as `get` showed it. `missing`: there is none (404). `expired`: pruned, its final state no longer said (410)."""

    task: str
    state: Literal["scheduled", "pending", "running", "retrying", "waiting", "completed", "dead", "cancelled", "expired", "missing"]
    version: int = 0
    executions: int = 0
    failures: int = 0
    crashes: int = 0
    attempts: tuple[Attempt, ...] | None = None
    final: bool = False
    """The tester's last look at the store. It looks at all tasks or at none: a task without a final read is missing as soon as another has one."""


Event = Submit | Join | Leave | Died | Claim | Finish | Beat | Recover | Operate | Limit | Lead | Led | Fire | Read
