"""How long the attempts of remote workers may go on. Nobody stands beside such a worker to stop a handler that does not end, so its server does, from afar.

A worker keeps to the timeout of a task by itself. One that beats for it a whole lease longer does not: then its attempt is over, as a local one's would be.
Time is counted here, by this process's own clock, from the moment at which the attempt was heard of: by the claim that this process answered, or by the first
beat that named a lease which another one gave. So nothing ends too early, whatever the clocks of others say; behind a restart it may end later.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from msgspec import Struct

from taskmill.clock import Clock

__all__ = ["Attempt", "Deadlines"]

MOST_KNOWN = 100_000
"""Attempts; the first to be heard of are forgotten, and heard of anew with their next beat."""


class Attempt(Struct, frozen=True):
    """One that a worker holds. `request`: the claim that brought it, 0 where another process answered it."""

    task: str
    token: int
    timeout: int
    until: int
    request: int = 0


class Deadlines:
    """Those of one server process."""

    def __init__(self, clock: Clock, most: int = MOST_KNOWN) -> None:
        self._clock = clock
        self._most = most
        self._of: dict[str, dict[int, Attempt]] = {}
        self._known = 0

    def begin(self, worker: str, lease: int, token: int, task: str, timeout: int, request: int = 0) -> None:
        """Heard of; the first time counts."""
        held = self._of.setdefault(worker, {})
        if token not in held:
            held[token] = Attempt(task, token, timeout, self._clock.monotonic() + timeout + lease, request)
            self._known += 1
        while self._known > self._most:
            oldest = next(iter(self._of))
            self.end(oldest, (next(iter(self._of[oldest])),))

    def end(self, worker: str, tokens: Iterable[int]) -> None:
        held = self._of.get(worker, {})
        for token in tokens:
            if held.pop(token, None) is not None:
                self._known -= 1
        if not held:
            self._of.pop(worker, None)

    def leave(self, worker: str) -> None:
        self.end(worker, list(self._of.get(worker, ())))

    def named(self, worker: str, request: int, tokens: Collection[int]) -> list[int]:
        """A beat names these leases, of its claims up to this one: others of those it does not hold. Answers which are not known here."""
        held = self._of.get(worker, {})
        self.end(worker, [token for token, attempt in held.items() if token not in tokens and attempt.request <= request])
        return [token for token in tokens if token not in held]

    def over(self, worker: str, tokens: Iterable[int]) -> list[Attempt]:
        """Those of these leases whose attempts have gone on for too long."""
        now, held = self._clock.monotonic(), self._of.get(worker, {})
        return [held[token] for token in tokens if token in held and now > held[token].until]
