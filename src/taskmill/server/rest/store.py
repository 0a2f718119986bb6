"""The store as a whole over HTTP: who leads, what the engine promises, and one number for whatever scales workers."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from taskmill.operations import Operations
from taskmill.server.access import Scope
from taskmill.server.routes import Answer, Call, Nothing, Route
from taskmill.task import State, check_name
from taskmill.version import __version__
from taskmill.views import finding_data

__all__ = ["ROUTES"]


async def get_leader(call: Call[Nothing, None]) -> Answer:
    """Each role is led by itself; nobody begins to lead by being asked about."""
    leaders = await call.desk.read(call.caller, Operations.leaders)
    return Answer({"roles": {role: None if term is None else {"holder": term.holder, "term": term.number} for role, term in leaders.items()}})


async def get_engine(call: Call[Nothing, None]) -> Answer:
    service = call.service
    findings = await call.desk.read(call.caller, Operations.check)
    return Answer(
        {
            "engine": service.engine.features.name,
            "version": __version__,
            "durability": service.settings.durability,
            "features": msgspec.to_builtins(service.engine.features),
            "findings": [finding_data(finding) for finding in findings],
        }
    )


class ScaleQuery(Struct, frozen=True, forbid_unknown_fields=True):
    per: Annotated[int, Meta(ge=1, le=1_000_000, description="Tasks of one worker: the answer is how many workers are needed, rounded up.")] = 1


async def get_scale(call: Call[ScaleQuery, None]) -> Answer:
    """What is ready and what runs: a worker that is busy must not be scaled away, and what is not due yet needs none."""
    name = check_name(call.params["queue"], "queue")
    queue = await call.desk.read(call.caller, lambda operations: operations.queue(name))
    tasks = queue.counts.get(State.PENDING, 0) + queue.counts.get(State.RUNNING, 0)
    return Answer({"value": -(-tasks // call.query.per)})


ROUTES = (
    Route(method="GET", path="/api/v1/leader", handler=get_leader, summary="Who fires schedules, prunes and delivers the outbox", scope=Scope.READ, whole=True,
          gives="Leader"),
    Route(method="GET", path="/api/v1/engine", handler=get_engine, summary="The engine, what it can do, and what is not as it should be", scope=Scope.READ,
          whole=True, gives="Engine"),
    Route(method="GET", path="/api/v1/scale/{queue}", handler=get_scale, summary="One number to scale workers by: ready and running tasks of a queue",
          scope=Scope.READ, whole=True, query=ScaleQuery, gives="Scale", refuses=(404,)),
)  # fmt: skip
