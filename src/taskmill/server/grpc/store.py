"""The service Store: queues, types, schedules, workers, limits and keys, for operators.

Every change goes through the desk, which asks for the scope again and notes it in the audit log before and after.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from taskmill import requests
from taskmill.errors import InvalidInput
from taskmill.operations import Operations
from taskmill.server.desk import Desk
from taskmill.server.grpc.gate import Call
from taskmill.server.grpc.reading import limit_numbers, needed_id, queue_settings, schedule_spec
from taskmill.server.grpc.v1 import taskmill_pb2 as pb
from taskmill.server.grpc.writing import instant_of, key_of, limit_of, queue_of, schedule_of, submitted_of, tally_of, type_of, worker_of
from taskmill.task import State, check_id, check_name, check_range
from taskmill.version import __version__

__all__ = ["Store"]

SHOWN = 5
"""The next times of a schedule that are shown with it."""
COMMANDS: dict[str, str | None] = {"pause": "pause", "quiet": "quiet", "stop": "stop", "resume": None}

Pausing = Callable[..., Coroutine[Any, Any, bool]]


class Store:
    """Methods by the name that the table of RPCs gives them."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    async def _paused(self, call: Call, what: str, pause: Pausing, request: pb.PauseRequest) -> pb.PauseResponse:
        name, reason = _name(request.name), request.reason
        return pb.PauseResponse(
            paused=True,
            changed=await self._desk.administer(call.caller, f"{what}.pause", name, lambda operations: pause(operations, name, reason=reason), reason=reason),
        )

    async def _resumed(self, call: Call, what: str, resume: Pausing, request: pb.ResumeRequest) -> pb.PauseResponse:
        name = _name(request.name)
        changed = await self._desk.administer(call.caller, f"{what}.resume", name, lambda operations: resume(operations, name))
        return pb.PauseResponse(paused=False, changed=changed)

    # Queues

    async def list_queues(self, call: Call, request: pb.ListQueuesRequest) -> pb.ListQueuesResponse:
        return pb.ListQueuesResponse(queues=[queue_of(info) for info in await self._desk.read(call.caller, Operations.queues)])

    async def get_queue(self, call: Call, request: pb.GetQueueRequest) -> pb.Queue:
        name = _name(request.name)
        return queue_of(await self._desk.read(call.caller, lambda operations: operations.queue(name)))

    async def pause_queue(self, call: Call, request: pb.PauseRequest) -> pb.PauseResponse:
        return await self._paused(call, "queue", Operations.pause_queue, request)

    async def resume_queue(self, call: Call, request: pb.ResumeRequest) -> pb.PauseResponse:
        return await self._resumed(call, "queue", Operations.resume_queue, request)

    async def purge_queue(self, call: Call, request: pb.PurgeQueueRequest) -> pb.ChangeResponse:
        name, dry_run = _name(request.name), request.dry_run
        requests.check_confirmed(confirm=request.confirm, dry_run=dry_run)
        return tally_of(await self._desk.purge_queue(call.caller, name, dry_run=dry_run))

    async def put_queue_settings(self, call: Call, request: pb.PutQueueSettingsRequest) -> pb.Queue:
        name, wanted = _name(request.name), queue_settings(request.settings)
        version = request.version if request.HasField("version") else None
        return queue_of(await self._desk.put_queue_settings(call.caller, name, wanted, version=version))

    async def drop_queue_settings(self, call: Call, request: pb.DropRequest) -> pb.DropResponse:
        return pb.DropResponse(dropped=await self._desk.drop_queue_settings(call.caller, _name(request.name), version=_version(request)))

    async def scale(self, call: Call, request: pb.ScaleRequest) -> pb.ScaleResponse:
        name, per = check_name(request.queue, "queue"), check_range(request.per or 1, "per", 1, 1_000_000)
        queue = await self._desk.read(call.caller, lambda operations: operations.queue(name))
        tasks = queue.counts.get(State.PENDING, 0) + queue.counts.get(State.RUNNING, 0)
        return pb.ScaleResponse(value=-(-tasks // per))

    # Types

    async def list_types(self, call: Call, request: pb.ListTypesRequest) -> pb.ListTypesResponse:
        return pb.ListTypesResponse(types=[type_of(info) for info in await self._desk.read(call.caller, Operations.types)])

    async def pause_type(self, call: Call, request: pb.PauseRequest) -> pb.PauseResponse:
        return await self._paused(call, "type", Operations.pause_type, request)

    async def resume_type(self, call: Call, request: pb.ResumeRequest) -> pb.PauseResponse:
        return await self._resumed(call, "type", Operations.resume_type, request)

    # Schedules

    async def list_schedules(self, call: Call, request: pb.ListSchedulesRequest) -> pb.ListSchedulesResponse:
        return pb.ListSchedulesResponse(schedules=[schedule_of(info) for info in await self._desk.read(call.caller, Operations.schedules)])

    async def get_schedule(self, call: Call, request: pb.GetScheduleRequest) -> pb.Schedule:
        name = _name(request.name)
        info = await self._desk.read(call.caller, lambda operations: operations.schedule(name))
        times = info.schedule.cron.next_times(self._desk.clock.now(), SHOWN) if info.schedule is not None else ()
        found = schedule_of(info)
        found.next.extend(instant_of(time) for time in times)
        return found

    async def put_schedule(self, call: Call, request: pb.PutScheduleRequest) -> pb.Schedule:
        name, wanted = _name(request.name), schedule_spec(request.spec)
        version = request.version if request.HasField("version") else None
        return schedule_of(
            await self._desk.administer(call.caller, "schedule.put", name, lambda operations: operations.put_schedule(name, wanted, version=version))
        )

    async def delete_schedule(self, call: Call, request: pb.DropRequest) -> pb.DropResponse:
        name, version = _name(request.name), _version(request)
        await self._desk.administer(call.caller, "schedule.delete", name, lambda operations: operations.delete_schedule(name, version=version))
        return pb.DropResponse(dropped=True)

    async def pause_schedule(self, call: Call, request: pb.PauseRequest) -> pb.PauseResponse:
        return await self._paused(call, "schedule", Operations.pause_schedule, request)

    async def resume_schedule(self, call: Call, request: pb.ResumeRequest) -> pb.PauseResponse:
        return await self._resumed(call, "schedule", Operations.resume_schedule, request)

    async def trigger_schedule(self, call: Call, request: pb.TriggerScheduleRequest) -> pb.SubmitResponse:
        name, id = _name(request.name), check_id(request.id) if request.id else None
        return pb.SubmitResponse(
            submitted=submitted_of(
                await self._desk.administer(call.caller, "schedule.trigger", name, lambda operations: operations.trigger_schedule(name, id=id))
            )
        )

    # Workers

    async def list_workers(self, call: Call, request: pb.ListWorkersRequest) -> pb.ListWorkersResponse:
        return pb.ListWorkersResponse(workers=[worker_of(info) for info in await self._desk.read(call.caller, Operations.workers)])

    async def get_worker(self, call: Call, request: pb.GetWorkerRequest) -> pb.Worker:
        id = needed_id(request.id)
        return worker_of(await self._desk.read(call.caller, lambda operations: operations.worker(id)))

    async def command_worker(self, call: Call, request: pb.CommandWorkerRequest) -> pb.CommandWorkerResponse:
        id, word = needed_id(request.id), request.command
        if word not in COMMANDS:
            raise InvalidInput(f"{word!r:.40} is no command", code="unknown_command", field="command", hint=f"one of {', '.join(COMMANDS)}")
        await self._desk.administer(call.caller, f"worker.{word}", id[:128], lambda operations: operations.command_worker(id, COMMANDS[word]))
        return pb.CommandWorkerResponse()

    # Limits

    async def list_limits(self, call: Call, request: pb.ListLimitsRequest) -> pb.ListLimitsResponse:
        return pb.ListLimitsResponse(limits=[limit_of(info) for info in await self._desk.read(call.caller, Operations.limits)])

    async def get_limit(self, call: Call, request: pb.GetLimitRequest) -> pb.Limit:
        name = _name(request.name)
        return limit_of(await self._desk.read(call.caller, lambda operations: operations.limit(name)))

    async def put_limit(self, call: Call, request: pb.PutLimitRequest) -> pb.Limit:
        name, wanted = _name(request.name), limit_numbers(request.numbers)
        version = request.version if request.HasField("version") else None
        return limit_of(
            await self._desk.administer(
                call.caller,
                "limit.put",
                name,
                lambda operations: operations.put_limit(name, wanted, version=version),
                rate=wanted.rate,
                window=wanted.window,
                cap=wanted.cap,
            )
        )

    async def drop_limit(self, call: Call, request: pb.DropRequest) -> pb.DropResponse:
        name, version = _name(request.name), _version(request)
        await self._desk.administer(call.caller, "limit.drop", name, lambda operations: operations.drop_limit(name, version=version))
        return pb.DropResponse(dropped=True)

    # Keys

    async def list_keys(self, call: Call, request: pb.ListKeysRequest) -> pb.ListKeysResponse:
        return pb.ListKeysResponse(keys=[key_of(key) for key in await self._desk.keys_known(call.caller)])

    async def create_key(self, call: Call, request: pb.CreateKeyRequest) -> pb.CreateKeyResponse:
        token, key = await self._desk.key_create(
            call.caller,
            name=request.name,
            scopes=list(request.scopes),
            tenant=request.tenant or None,
            rate=request.rate or None,
            depth=request.depth or None,
        )
        return pb.CreateKeyResponse(key=key_of(key), token=token)

    async def revoke_key(self, call: Call, request: pb.RevokeKeyRequest) -> pb.RevokeKeyResponse:
        await self._desk.key_revoke(call.caller, needed_id(request.id))
        return pb.RevokeKeyResponse()

    # How it is

    async def list_leaders(self, call: Call, request: pb.ListLeadersRequest) -> pb.ListLeadersResponse:
        leaders = await self._desk.read(call.caller, Operations.leaders)
        return pb.ListLeadersResponse(
            leaders=[
                pb.Leader(role=role, holder="" if term is None else term.holder, term=0 if term is None else term.number) for role, term in leaders.items()
            ]
        )

    async def check(self, call: Call, request: pb.CheckRequest) -> pb.CheckResponse:
        findings = await self._desk.read(call.caller, Operations.check)
        return pb.CheckResponse(
            engine=self._desk.operations.engine.features.name,
            version=__version__,
            findings=[pb.Finding(level=each.level, code=each.code, message=each.message, hint=each.hint) for each in findings],
        )


def _name(text: str) -> str:
    return check_name(text, "name")


def _version(request: pb.DropRequest) -> int | None:
    return request.version if request.HasField("version") else None
