"""The end of every fault test: read everything, and let the history and the store be judged."""

from __future__ import annotations

from pathlib import Path

from tests.faults.invariants import broken_at
from tests.faults.workload import client_of
from tests.history import Bounds, check, events, load
from tests.history.events import TERMINAL, Event, Read

__all__ = ["judge", "submitted"]


def submitted(history: list[Event]) -> set[str]:
    """Every task that anybody tried to submit."""
    return {event.task for event in history if isinstance(event, events.Submit)}


async def judge(store: Path | str, history: Path, bounds: Bounds, *, all_ended: bool = True) -> tuple[list[Event], dict[str, Read]]:
    """Nothing that was promised is broken, the store agrees with itself, and all that was accepted has ended."""
    async with client_of(store, history) as client:
        reads = await client.read_all(submitted(load(history)))
    recorded = load(history)
    violations = check(recorded, bounds)
    assert not violations, "\n".join(map(str, violations))
    broken = await _broken(store)
    assert not broken, "\n".join(broken)
    if all_ended:
        alive = {task: read.state for task, read in reads.items() if read.state not in TERMINAL | {"expired", "missing"}}
        assert not alive, alive
    return recorded, reads


async def _broken(store: Path | str) -> list[str]:
    if isinstance(store, Path):
        return broken_at(store)
    if str(store).startswith("redis"):
        from tests.faults.invariants_redis import broken

        return broken(store)
    from tests.faults.invariants_postgres import broken_in

    return await broken_in(store)
