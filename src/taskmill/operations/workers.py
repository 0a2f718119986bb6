"""Workers: what an operator tells one."""

from __future__ import annotations

import msgspec

from taskmill.engine import Engine, WorkerInfo
from taskmill.errors import InvalidInput
from taskmill.operations.names import check_known, unknown

__all__ = ["COMMANDS", "command", "find"]

REMEDY = "`taskmill workers list` shows them"
COMMANDS = ("pause", "quiet", "stop")


async def find(engine: Engine, id: str) -> WorkerInfo:
    known = {worker.id: worker for worker in await engine.workers()}
    if id not in known:
        raise unknown("worker", id, known, REMEDY, field="id")
    return known[id]


async def command(engine: Engine, id: str, command: str | None) -> None:
    """A worker's id is never used again, so commands to those that are gone are taken away by the way."""
    if command is not None and command not in COMMANDS:
        raise InvalidInput(f"{command!r:.40} is no command", code="unknown_command", field="command", hint=f"one of {', '.join(COMMANDS)}")
    registered = {worker.id for worker in await engine.workers()}
    for item in await engine.items("worker"):
        if item.name not in registered:
            await engine.drop("worker", item.name)
    check_known("worker", id, registered, REMEDY, field="id")
    if command is None:
        await engine.drop("worker", id)
    else:
        await engine.put("worker", id, msgspec.json.encode({"command": command}))
