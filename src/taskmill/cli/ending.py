"""Waiting for tasks on the command line: what each came to, and the exit code of it all."""

from __future__ import annotations

from collections.abc import Sequence

import click

from taskmill.cli.output import clean, note, print_json
from taskmill.clock import format_duration
from taskmill.errors import Expired
from taskmill.operations import Operations
from taskmill.task import State, Task, check_id
from taskmill.views import task_data

__all__ = ["end_of"]


async def end_of(operations: Operations, ids: Sequence[str], timeout: int | None, *, as_json: bool) -> int:
    """Wait for all of them, then a line for each that ended, in the order asked; 0 when all completed."""
    for id in ids:
        check_id(id, "ID")
    ended = await operations.wait(ids, timeout, every=True)
    for id in ids:
        if id in ended:
            await _tell(operations, id, ended[id], as_json=as_json)
    late = len(ids) - len(ended)
    if late and timeout is not None:
        note(f"{late} of {len(ids)} not ended after {format_duration(timeout)}")
    return 0 if not late and set(ended.values()) <= {State.COMPLETED} else 1


async def _tell(operations: Operations, id: str, state: State, *, as_json: bool) -> None:
    try:
        task = await operations.get(id)
    except Expired:
        task = None
    if as_json:
        print_json(task_data(task) if task else {"id": id, "state": state.value})
    else:
        click.echo("\t".join(filter(None, (id, state.value, _outcome(task)))))


def _outcome(task: Task | None) -> str:
    if task is None:
        return ""
    if task.error is not None and task.state is not State.COMPLETED:
        return clean(f"{task.error.code}: {task.error.message}")
    return clean(task.result.decode()) if task.result else ""
