"""What becomes of the tasks of a child that died, said to the store at once and not only when its leases have run out.

its handler was past its deadline, and the child was killed for it     failed as `timeout`, or cancelled if that was asked for; a suspect
it ran beside such a one                                               released: not its fault
it ran when the child died by itself                                   crashed; a suspect
it ran in a process of its own beside such a one                       released: it cannot be the one
it had not begun                                                       released, its attempt number given back

What a task is suspected of stands in its record: from then on it runs in a process of its own, whichever worker has it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from taskmill.clock import format_duration
from taskmill.engine import Ending, Engine, Outcome
from taskmill.retry import decide, error_names
from taskmill.task import ErrorInfo, Task
from taskmill.worker.attempt import TIMEOUT
from taskmill.worker.board import Lease

__all__ = ["outcomes"]


async def outcomes(engine: Engine, worker: str, leases: Sequence[Lease], culprits: frozenset[int], *, killed: bool, death: str) -> list[Outcome]:
    """One for each lease that its child still held."""
    found = await engine.get([lease.id for lease in leases if lease.token in culprits]) if culprits else ()
    tasks = {task.id: task for task in found if isinstance(task, Task)}
    blamed = frozenset() if killed else _suspects(leases)
    return [_outcome(worker, lease, tasks.get(lease.id), blamed=lease.token in blamed, death=death) for lease in leases]


def _outcome(worker: str, lease: Lease, culprit: Task | None, *, blamed: bool, death: str) -> Outcome:
    began = 0 if lease.started else None
    if culprit is not None:
        return _late(worker, lease, culprit)
    if blamed:
        error = ErrorInfo("crashed", f"the worker died while it ran: {death}")
        return Outcome(task=lease.id, worker=worker, token=lease.token, ending=Ending.CRASHED, error=error, started_after=began)
    return Outcome(task=lease.id, worker=worker, token=lease.token, ending=Ending.RELEASED, started_after=began)


def _late(worker: str, lease: Lease, task: Task) -> Outcome:
    if task.cancel_requested:
        return Outcome(task=lease.id, worker=worker, token=lease.token, ending=Ending.CANCELLED, started_after=0)
    error = ErrorInfo(TIMEOUT, f"it took longer than its {format_duration(task.timeout)} and did not end when asked; its process was killed")
    decision = decide(task.retry, task.failures + 1, error_names(TimeoutError), random.random())
    ending = Ending.DEAD if decision.after is None else Ending.RETRY
    return Outcome(
        task=lease.id, worker=worker, token=lease.token, ending=ending, error=error, after=decision.after or 0, started_after=0, suspect=True
    )  # fmt: skip


def _suspects(leases: Sequence[Lease]) -> frozenset[int]:
    """What ran when its child died by itself: one of them did it. Those in processes of their own only when there is nobody else."""
    running = [lease for lease in leases if lease.started]
    within = [lease for lease in running if not lease.alone]
    return frozenset(lease.token for lease in within or running)
