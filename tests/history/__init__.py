"""Recorded histories and the checker that knows the promises of the design.

A test lets its clients note every call they make of a store (`Recorder`), reads the lines of all processes back (`load`), and asks `check`
what no store that keeps its promises can have answered. An answer that was lost may or may not have been applied: only what breaks a promise in
every interpretation is reported, so a violation is always worth reading.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from tests.history.events import Event
from tests.history.index import Bounds, Index, Violation
from tests.history.recording import Recorder, load
from tests.history.rules_lease import completed_twice, lease_lost, not_rerun, repeat_differs, stale_write, token_order, two_leases
from tests.history.rules_life import attempts_wrong, foreign_type, terminal_left, version_back
from tests.history.rules_limit import concurrency_exceeded, rate_exceeded
from tests.history.rules_order import claim_order
from tests.history.rules_submit import early_start, key_answer, key_two_tasks, live_vanished, submit_lost
from tests.history.rules_term import deposed_write, fired_twice, two_leaders

__all__ = ["RULES", "Bounds", "Recorder", "Violation", "check", "load"]

RULES: dict[str, Callable[[Index], Iterator[Violation]]] = {
    rule.__name__: rule
    for rule in (
        submit_lost,
        completed_twice,
        stale_write,
        two_leases,
        token_order,
        live_vanished,
        early_start,
        key_two_tasks,
        key_answer,
        not_rerun,
        lease_lost,
        fired_twice,
        deposed_write,
        two_leaders,
        foreign_type,
        claim_order,
        repeat_differs,
        concurrency_exceeded,
        rate_exceeded,
        attempts_wrong,
        terminal_left,
        version_back,
    )
}
"""Every rule by its name; the docstring of each starts with the number of its promise."""


def check(history: Iterable[Event], bounds: Bounds | None = None) -> list[Violation]:
    """Everything in this history that breaks a promise, in the order of RULES; empty for a store that kept them."""
    index = Index(history, bounds or Bounds())
    return [violation for rule in RULES.values() for violation in rule(index)]
