"""Every verb of the product and its name on each surface: SDK, command line, REST, gRPC and client.

A surface that leaves a verb out on purpose says why: that text begins with a dash. docs/reference/surfaces.md is made from this table, and a test holds it
against the real commands, routes, descriptors and classes, so a verb cannot be added to one surface and forgotten on the others.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["LEFT_OUT", "PROTOCOL", "SURFACES", "VERBS", "Verb"]

LEFT_OUT = "- "
SURFACES = ("sdk", "cli", "rest", "grpc", "client")

_MANY = "- programs submit many: a file of lines is `taskmill submit` in a loop"
_LOCAL = "- it is about the program's own calls"
_PEOPLE = "- keys are made and revoked by people, with the command line or over the API"
_PAGES = "- List follows its cursor"


class Verb(NamedTuple):
    """One verb. Several names of one surface are separated by commas."""

    name: str
    sdk: str
    cli: str
    rest: str
    grpc: str
    client: str

    def names(self, surface: str) -> tuple[str, ...]:
        """What the surface calls it; nothing where it is left out."""
        text: str = getattr(self, surface)
        return () if text.startswith(LEFT_OUT) else tuple(text.split(", "))


def _task(verb: str) -> tuple[str, str]:
    return f"POST /api/v1/tasks/{{id}}:{verb}", f"POST /api/v1/tasks:{verb}"


def _store(verb: str, cli: str, rest: str, grpc: str) -> Verb:
    """A verb that an App and a Client have among their operations."""
    return Verb(verb, f"app.operations.{verb}", cli, rest, grpc, f"client.operations.{verb}")


VERBS = (
    # Submitting
    Verb("submit", "app.submit, app.operations.submit", "submit", "POST /api/v1/tasks", "Tasks.Submit", "client.submit, client.operations.submit"),
    Verb(
        "submit_many", "app.submit_many, app.operations.submit_many", _MANY, "POST /api/v1/tasks:batch", "Tasks.SubmitBatch, Tasks.SubmitStream",
        "client.submit_many, client.operations.submit_many",
    ),
    Verb(
        "unseal", "app.unseal, app.operations.unseal", "- a seal belongs to a program that submits more than 10,000 tasks", "POST /api/v1/tasks/{id}:unseal",
        "Tasks.Unseal", "client.unseal, client.operations.unseal",
    ),
    Verb("drain", "app.operations.drain", _LOCAL, _LOCAL, _LOCAL, "client.operations.drain"),
    # Looking
    Verb("get", "handle.task, handle.status, handle.progress, app.operations.get", "task get", "GET /api/v1/tasks/{id}", "Tasks.Get",
         "client.get, client.operations.get"),
    Verb("attempts", "app.operations.attempts", "task attempts", "GET /api/v1/tasks/{id}/attempts", "Tasks.Get", "client.attempts, client.operations.attempts"),
    _store("edges", "task edges", "GET /api/v1/tasks/{id}/edges", "Tasks.Edges"),
    Verb("list", "app.operations.list", "task list, dead list", "GET /api/v1/tasks, GET /api/v1/dead", "Tasks.List", "client.list, client.operations.list"),
    Verb("stream", "app.operations.stream", "task list", "- a list follows its cursor", _PAGES, "client.list, client.operations.stream"),
    Verb("count", "app.operations.count", "- `--dry-run` counts what a change would be tried on", "GET /api/v1/tasks:count", "Tasks.Count",
         "client.count, client.operations.count"),
    Verb("check_names", "app.operations.check_names", "task list", "- a program that filters by a name nobody has used yet is right",
         "- a program that filters by a name nobody has used yet is right", "- a program that filters by a name nobody has used yet is right"),
    # Waiting
    Verb("wait", "handle.wait, app.operations.wait", "task wait", "POST /api/v1/tasks:wait", "Tasks.Wait", "handle.wait, client.operations.wait"),
    Verb("result", "handle.result, app.operations.result", "task wait", "GET /api/v1/tasks/{id}", "Tasks.Get", "handle.result, client.operations.result"),
    Verb("events", "app.operations.events", "task tail", "GET /api/v1/events, GET /ws", "Tasks.Watch",
         "- a browser or a gRPC client listens; the client waits for ends"),
    Verb("signal", "app.operations.signal", "task signal", "POST /api/v1/tasks/{id}:signal", "Tasks.Signal", "client.signal, client.operations.signal"),
    # Changing
    Verb("cancel", "handle.cancel, app.operations.cancel", "task cancel", ", ".join(_task("cancel")), "Tasks.Cancel",
         "client.cancel, client.operations.cancel"),
    Verb("requeue", "app.operations.requeue", "task requeue, dead requeue", ", ".join([*_task("requeue"), "POST /api/v1/dead:requeue"]), "Tasks.Requeue",
         "client.requeue, client.operations.requeue"),
    Verb("delete", "app.operations.delete", "task delete, dead purge", ", ".join([*_task("delete"), "POST /api/v1/dead:delete"]), "Tasks.Delete",
         "client.delete, client.operations.delete"),
    # Queues and types
    _store("queues", "queue list", "GET /api/v1/queues", "Store.ListQueues"),
    _store("queue", "queue list", "GET /api/v1/queues/{name}, GET /api/v1/scale/{queue}", "Store.GetQueue, Store.Scale"),
    _store("pause_queue", "queue pause", "POST /api/v1/queues/{name}:pause", "Store.PauseQueue"),
    _store("resume_queue", "queue resume", "POST /api/v1/queues/{name}:resume", "Store.ResumeQueue"),
    _store("purge_queue", "queue purge", "POST /api/v1/queues/{name}:purge", "Store.PurgeQueue"),
    _store("put_queue_settings", "queue set", "PUT /api/v1/queues/{name}/settings", "Store.PutQueueSettings"),
    _store("drop_queue_settings", "queue set", "DELETE /api/v1/queues/{name}/settings", "Store.DropQueueSettings"),
    _store("types", "type list", "GET /api/v1/types", "Store.ListTypes"),
    _store("pause_type", "type pause", "POST /api/v1/types/{name}:pause", "Store.PauseType"),
    _store("resume_type", "type resume", "POST /api/v1/types/{name}:resume", "Store.ResumeType"),
    # Schedules
    _store("schedules", "schedule list", "GET /api/v1/schedules", "Store.ListSchedules"),
    _store("schedule", "schedule list", "GET /api/v1/schedules/{name}", "Store.GetSchedule"),
    _store("put_schedule", "schedule put", "PUT /api/v1/schedules/{name}", "Store.PutSchedule"),
    _store("delete_schedule", "schedule delete", "DELETE /api/v1/schedules/{name}", "Store.DeleteSchedule"),
    _store("pause_schedule", "schedule pause", "POST /api/v1/schedules/{name}:pause", "Store.PauseSchedule"),
    _store("resume_schedule", "schedule resume", "POST /api/v1/schedules/{name}:resume", "Store.ResumeSchedule"),
    _store("trigger_schedule", "schedule trigger", "POST /api/v1/schedules/{name}:trigger", "Store.TriggerSchedule"),
    _store("next_times", "schedule next", "GET /api/v1/schedules/{name}", "Store.GetSchedule"),
    # Workers and limits
    _store("workers", "workers list", "GET /api/v1/workers", "Store.ListWorkers"),
    _store("worker", "workers list", "GET /api/v1/workers/{id}", "Store.GetWorker"),
    _store("command_worker", "workers pause, workers quiet, workers stop, workers resume",
           ", ".join(f"POST /api/v1/workers/{{id}}:{word}" for word in ("pause", "quiet", "stop", "resume")), "Store.CommandWorker"),
    _store("limits", "limit list", "GET /api/v1/limits", "Store.ListLimits"),
    _store("limit", "limit list", "GET /api/v1/limits/{name}", "Store.GetLimit"),
    _store("put_limit", "limit put", "PUT /api/v1/limits/{name}", "Store.PutLimit"),
    _store("drop_limit", "limit drop", "DELETE /api/v1/limits/{name}", "Store.DropLimit"),
    # Keys and health
    Verb("list_keys", _PEOPLE, "key list", "GET /api/v1/keys", "Store.ListKeys", _PEOPLE),
    Verb("create_key", _PEOPLE, "key create", "POST /api/v1/keys", "Store.CreateKey", _PEOPLE),
    Verb("revoke_key", _PEOPLE, "key revoke", "DELETE /api/v1/keys/{id}", "Store.RevokeKey", _PEOPLE),
    Verb("me", "- a program with a store has no key", "- the command line has no key", "GET /api/v1/me", "- the status of a refused call names the scope",
         "- the error of a refused call names the scope"),
    _store("leaders", "leader list", "GET /api/v1/leader", "Store.ListLeaders"),
    _store("check", "check", "GET /api/v1/engine", "Store.Check"),
)  # fmt: skip
"""In the order of `Operations`, then what only surfaces have."""

PROTOCOL = ("/api/v1/worker/", "Workers.")
"""Routes and RPCs of the worker protocol, which docs/api/worker-protocol.md describes: no verbs of callers."""
