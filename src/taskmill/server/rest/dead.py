"""Dead letters over HTTP: tasks that failed for good and wait for a person. The state is always `dead`; all else is as it is for tasks."""

from __future__ import annotations

from taskmill.server.access import Scope
from taskmill.server.rest.pages import page_of
from taskmill.server.rest.tasks import Conditions, DeadBody, filter_of, tally_answer, task_answer, which_of
from taskmill.server.routes import Answer, Call, Handler, Nothing, Route
from taskmill.server.shapes import Cursor, Limit
from taskmill.task import State

__all__ = ["ROUTES"]

DEAD = (State.DEAD,)


class DeadQuery(Conditions, frozen=True, forbid_unknown_fields=True, kw_only=True):
    limit: Limit = 100
    cursor: Cursor | None = None


async def list_dead(call: Call[DeadQuery, None]) -> Answer:
    tasks, cursor = await page_of(call, filter_of(call.query, DEAD), call.query.limit, call.query.cursor)
    return Answer({"tasks": [task_answer(call.caller, task) for task in tasks], "cursor": cursor})


async def _change(verb: str, call: Call[Nothing, DeadBody]) -> Answer:
    body = call.body
    which = which_of(body, DEAD)
    tally = await call.desk.change_many(call.caller, verb, which, dry_run=body.dry_run, from_start=body.from_start, only=State.DEAD)
    return tally_answer(tally, dry_run=body.dry_run)


async def requeue_dead(call: Call[Nothing, DeadBody]) -> Answer:
    return await _change("requeue", call)


async def delete_dead(call: Call[Nothing, DeadBody]) -> Answer:
    return await _change("delete", call)


PATH = "/api/v1/dead"


def _many(verb: str, handler: Handler, summary: str) -> Route:
    return Route(method="POST", path=f"{PATH}:{verb}", handler=handler, summary=summary, scope=Scope.CANCEL, body=DeadBody, gives="Tally")


ROUTES = (
    Route(method="GET", path=PATH, handler=list_dead, summary="List dead tasks, newest first, with what they died of", scope=Scope.READ, query=DeadQuery,
          gives="Tasks"),
    _many("requeue", requeue_dead, "Run dead tasks again, those named, or all that match"),
    _many("delete", delete_dead, "Delete the records of dead tasks, those named, or all that match"),
)  # fmt: skip
