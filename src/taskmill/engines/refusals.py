"""What every engine answers to a task it does not take, in the same words."""

from __future__ import annotations

from taskmill.errors import InvalidInput, RateLimited

__all__ = ["cycle", "over_limit"]


def over_limit(now: int, retry_at: int | None) -> RateLimited:
    """A submit with `on_limit="reject"` that met a full limit. `retry_at`: when a rate has room again; None where a running task must end first."""
    error = RateLimited("over its limit when it was submitted", hint="submit it later, or let it wait with on_limit=delay")
    if retry_at is not None:
        error.retry_at = retry_at
        error.retry_after = max(retry_at - now, 0)
    return error


def cycle() -> InvalidInput:
    return InvalidInput("these tasks wait for each other", code="cycle", field="edges", hint="a task cannot wait for one that waits for it")
