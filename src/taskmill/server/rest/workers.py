"""Workers over HTTP: who runs tasks, and what an operator tells them."""

from __future__ import annotations

from taskmill.operations import Operations
from taskmill.server.access import Scope
from taskmill.server.routes import Answer, Call, Handler, Nothing, Route
from taskmill.views import worker_data

__all__ = ["ROUTES"]


async def list_workers(call: Call[Nothing, None]) -> Answer:
    return Answer({"workers": [worker_data(worker) for worker in await call.desk.read(call.caller, Operations.workers)]})


async def get_worker(call: Call[Nothing, None]) -> Answer:
    id = call.params["id"]
    return Answer(worker_data(await call.desk.read(call.caller, lambda operations: operations.worker(id))))


async def _tell(call: Call[Nothing, Nothing], verb: str, command: str | None) -> Answer:
    id = call.params["id"]
    await call.desk.administer(call.caller, f"worker.{verb}", id[:128], lambda operations: operations.command_worker(id, command))
    return Answer({"id": id, "command": command})


async def pause_worker(call: Call[Nothing, Nothing]) -> Answer:
    return await _tell(call, "pause", "pause")


async def quiet_worker(call: Call[Nothing, Nothing]) -> Answer:
    return await _tell(call, "quiet", "quiet")


async def stop_worker(call: Call[Nothing, Nothing]) -> Answer:
    return await _tell(call, "stop", "stop")


async def resume_worker(call: Call[Nothing, Nothing]) -> Answer:
    return await _tell(call, "resume", None)


PATH = "/api/v1/workers"


def _verb(verb: str, handler: Handler, summary: str) -> Route:
    return Route(method="POST", path=f"{PATH}/{{id}}:{verb}", handler=handler, summary=summary, scope=Scope.ADMIN, whole=True, body=Nothing, gives="Told",
                 refuses=(404,))  # fmt: skip


ROUTES = (
    Route(method="GET", path=PATH, handler=list_workers, summary="Every worker: what it runs, and when it was last heard of", scope=Scope.READ, whole=True,
          gives="Workers"),
    _verb("pause", pause_worker, "Let a worker claim nothing until it is resumed; what it has in hand waits"),
    _verb("quiet", quiet_worker, "Let a worker finish what it runs and claim nothing more, before a stop"),
    _verb("stop", stop_worker, "Let a worker finish or release what it runs, and end"),
    _verb("resume", resume_worker, "Take back pause and quiet"),
    Route(method="GET", path=f"{PATH}/{{id}}", handler=get_worker, summary="One worker", scope=Scope.READ, whole=True, gives="Worker", refuses=(404,)),
)  # fmt: skip
