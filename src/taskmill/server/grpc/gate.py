"""What every call passes: who calls, whether it may, how long it has; and how errors leave.

    bytes ──▶ key ──▶ scope ──▶ quota ──▶ message ──▶ the RPC ──▶ bytes
                any of them may refuse ──▶ status with details

`RPCS` is the table of who may call what; nothing is judged of a message before its caller is. A call without a deadline has the server's: a minute for
one answer, an hour for a stream. A call that lasts is looked after: its key is asked for every two seconds, so one that was revoked ends it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote

from google.protobuf.message import Message

from taskmill.errors import RateLimited, TaskmillError
from taskmill.server.access import Caller, Keys, Scope, Unauthenticated
from taskmill.server.grpc.reading import parsed
from taskmill.server.grpc.statuses import DeadlineExceeded, Stopping, refuse
from taskmill.server.quotas import Quotas

__all__ = ["RPCS", "Call", "Gate", "Observed", "Rpc", "revoked"]

log = logging.getLogger("taskmill")

DEADLINE = 60.0
"""Seconds for a call that answers once, when the caller names none."""
STREAM_DEADLINE = 3_600.0
RECHECK = 2.0
"""Seconds between looks at the key of a call that lasts: with those that the keys themselves may be old, a revoked one ends within five."""
DEADLINE_MARGIN = 0.5
"""Seconds before its deadline at which a long poll answers, so that the answer arrives; a fifth of the time, where that is less."""


class Rpc(NamedTuple):
    """Who may call. `whole`: it is about the store, not one tenant's tasks; `lasts`: it waits or streams; `ends`: it ends when the server stops, in
    the middle of whatever it does; others that last end by themselves."""

    name: str
    scope: Scope
    whole: bool = False
    lasts: bool = False
    ends: bool = False


RPCS: Mapping[str, Mapping[str, Rpc]] = {
    "Tasks": {
        "Submit": Rpc("submit", Scope.SUBMIT),
        "SubmitBatch": Rpc("submit_batch", Scope.SUBMIT),
        "SubmitStream": Rpc("submit_stream", Scope.SUBMIT, lasts=True),
        "Get": Rpc("get", Scope.READ, lasts=True, ends=True),
        "List": Rpc("list", Scope.READ),
        "Count": Rpc("count", Scope.READ),
        "Wait": Rpc("wait", Scope.READ, lasts=True, ends=True),
        "Edges": Rpc("edges", Scope.READ),
        "Signal": Rpc("signal", Scope.SUBMIT),
        "Unseal": Rpc("unseal", Scope.SUBMIT),
        "Cancel": Rpc("cancel", Scope.CANCEL),
        "Requeue": Rpc("requeue", Scope.CANCEL),
        "Delete": Rpc("delete", Scope.CANCEL),
        "Watch": Rpc("watch", Scope.READ, lasts=True, ends=True),
    },
    "Store": {
        "ListQueues": Rpc("list_queues", Scope.READ, whole=True),
        "GetQueue": Rpc("get_queue", Scope.READ, whole=True),
        "PauseQueue": Rpc("pause_queue", Scope.ADMIN, whole=True),
        "ResumeQueue": Rpc("resume_queue", Scope.ADMIN, whole=True),
        "PurgeQueue": Rpc("purge_queue", Scope.ADMIN, whole=True),
        "PutQueueSettings": Rpc("put_queue_settings", Scope.ADMIN, whole=True),
        "DropQueueSettings": Rpc("drop_queue_settings", Scope.ADMIN, whole=True),
        "Scale": Rpc("scale", Scope.READ, whole=True),
        "ListTypes": Rpc("list_types", Scope.READ, whole=True),
        "PauseType": Rpc("pause_type", Scope.ADMIN, whole=True),
        "ResumeType": Rpc("resume_type", Scope.ADMIN, whole=True),
        "ListSchedules": Rpc("list_schedules", Scope.READ, whole=True),
        "GetSchedule": Rpc("get_schedule", Scope.READ, whole=True),
        "PutSchedule": Rpc("put_schedule", Scope.ADMIN, whole=True),
        "DeleteSchedule": Rpc("delete_schedule", Scope.ADMIN, whole=True),
        "PauseSchedule": Rpc("pause_schedule", Scope.ADMIN, whole=True),
        "ResumeSchedule": Rpc("resume_schedule", Scope.ADMIN, whole=True),
        "TriggerSchedule": Rpc("trigger_schedule", Scope.ADMIN, whole=True),
        "ListWorkers": Rpc("list_workers", Scope.READ, whole=True),
        "GetWorker": Rpc("get_worker", Scope.READ, whole=True),
        "CommandWorker": Rpc("command_worker", Scope.ADMIN, whole=True),
        "ListLimits": Rpc("list_limits", Scope.READ, whole=True),
        "GetLimit": Rpc("get_limit", Scope.READ, whole=True),
        "PutLimit": Rpc("put_limit", Scope.ADMIN, whole=True),
        "DropLimit": Rpc("drop_limit", Scope.ADMIN, whole=True),
        "ListKeys": Rpc("list_keys", Scope.ADMIN, whole=True),
        "CreateKey": Rpc("create_key", Scope.ADMIN, whole=True),
        "RevokeKey": Rpc("revoke_key", Scope.ADMIN, whole=True),
        "ListLeaders": Rpc("list_leaders", Scope.READ, whole=True),
        "Check": Rpc("check", Scope.READ, whole=True),
    },
    "Workers": {
        "Join": Rpc("join", Scope.WORKER, whole=True),
        "Claim": Rpc("claim", Scope.WORKER, whole=True, lasts=True),
        "ClaimStream": Rpc("claim_stream", Scope.WORKER, whole=True, lasts=True),
        "Heartbeat": Rpc("heartbeat", Scope.WORKER, whole=True),
        "Finish": Rpc("finish", Scope.WORKER, whole=True),
        "Checkpoint": Rpc("checkpoint", Scope.WORKER, whole=True),
        "Leave": Rpc("leave", Scope.WORKER, whole=True),
    },
}
"""Every RPC of the .proto file, by service."""


Observed = Callable[[str, str, str, int], None]
"""Told of every call that has ended: the surface, the route, the status, and how many microseconds it took."""


class Call:
    """One call that was let in."""

    def __init__(self, caller: Caller, context: Any, left: float, stopping: asyncio.Event) -> None:
        self.caller = caller
        self.stopping = stopping
        self._context = context
        self._until = asyncio.get_running_loop().time() + left

    def wait(self, wanted: int) -> int:
        """How long a long poll may wait, in microseconds: it answers before the deadline."""
        left = self._until - asyncio.get_running_loop().time()
        return max(0, min(wanted, int((left - min(DEADLINE_MARGIN, left / 5)) * 1_000_000)))

    async def write(self, message: Message) -> None:
        """The next message of a stream; waits while the caller does not read."""
        await self._context.write(message.SerializeToString())


Unary = Callable[[Call, Any], Coroutine[Any, Any, Message]]
Streaming = Callable[[Call, Any], Coroutine[Any, Any, None]]


class Gate:
    """Makes handlers of bytes out of the methods of a service."""

    def __init__(self, keys: Keys, quotas: Quotas, observed: Observed | None = None) -> None:
        self.stopping = asyncio.Event()
        self._keys = keys
        self._quotas = quotas
        self._observed = observed

    # Handlers, one for each shape of an RPC

    def unary(self, route: str, rpc: Rpc, kind: type[Message], run: Unary) -> Callable[[bytes, Any], Awaitable[bytes]]:
        async def handle(data: bytes, context: Any) -> bytes:
            async def act(call: Call) -> bytes:
                return (await run(call, parsed(kind, data))).SerializeToString()

            answer: bytes = await self._pass(route, rpc, context, DEADLINE, act)
            return answer

        return handle

    def server_stream(self, route: str, rpc: Rpc, kind: type[Message], run: Streaming) -> Callable[[bytes, Any], Awaitable[None]]:
        async def handle(data: bytes, context: Any) -> None:
            async def act(call: Call) -> None:
                await run(call, parsed(kind, data))

            await self._pass(route, rpc, context, STREAM_DEADLINE, act)

        return handle

    def both_streams(self, route: str, rpc: Rpc, kind: type[Message], run: Streaming) -> Callable[[AsyncIterator[bytes], Any], Awaitable[None]]:
        async def handle(data: AsyncIterator[bytes], context: Any) -> None:
            async def requests() -> AsyncIterator[Message]:
                async for each in data:
                    yield parsed(kind, each)

            async def act(call: Call) -> None:
                await run(call, requests())

            await self._pass(route, rpc, context, STREAM_DEADLINE, act)

        return handle

    # The way of a call

    async def _pass(self, route: str, rpc: Rpc, context: Any, deadline: float, act: Callable[[Call], Coroutine[Any, Any, Any]]) -> Any:
        """It is told of before its answer leaves, so whoever has been answered finds the call counted."""
        began = time.perf_counter_ns()
        status = "OK"
        try:
            return await self._let_in(rpc, context, deadline, act)
        except asyncio.CancelledError:
            status = "CANCELLED"
            raise
        except TaskmillError as error:
            failure = error
            status = error.grpc
        # The last stop of a defect: the caller is told nothing of it, the log is told where.
        except Exception:
            log.exception("the gRPC call %s failed", route)
            failure = TaskmillError("something went wrong here", code="internal", hint="it is in the server's log")
            status = failure.grpc
        finally:
            if self._observed is not None:
                self._observed("grpc", route, status, (time.perf_counter_ns() - began) // 1_000)
        return await refuse(context, failure)

    async def _let_in(self, rpc: Rpc, context: Any, deadline: float, act: Callable[[Call], Coroutine[Any, Any, Any]]) -> Any:
        left: float | None = context.time_remaining()
        allowed = deadline if left is None else left
        caller = await self._keys.identify(_token(context.invocation_metadata()), _address(context.peer()))
        caller.need(rpc.scope, whole=rpc.whole)
        self._quotas.request(caller)
        call = Call(caller, context, allowed, self.stopping)
        if rpc.lasts:
            return await self._looked_after(rpc, call, allowed, act(call))
        limit = asyncio.timeout(allowed)
        try:
            async with limit:
                return await act(call)
        except TimeoutError:
            if not limit.expired():
                raise
            raise _over(allowed) from None

    async def _looked_after(self, rpc: Rpc, call: Call, allowed: float, work: Coroutine[Any, Any, Any]) -> Any:
        """A call that lasts, until it ends, its time is over, its key is revoked, or the server stops."""
        loop = asyncio.get_running_loop()
        until = loop.time() + allowed
        task = loop.create_task(work)
        stopping = loop.create_task(self.stopping.wait()) if rpc.ends else None
        watched = {task} if stopping is None else {task, stopping}
        try:
            while not task.done():
                await asyncio.wait(watched, timeout=min(RECHECK, max(0.0, until - loop.time())), return_when=asyncio.FIRST_COMPLETED)
                if task.done():
                    break
                if stopping is not None and stopping.done():
                    raise Stopping("this server stops", hint="call again; another one answers")
                if loop.time() >= until:
                    raise _over(allowed)
                if not await self._keys.still(call.caller):
                    raise revoked()
            return task.result()
        finally:
            await _let_go(task, stopping)

    async def paced(self, call: Call) -> None:
        """One more request of a stream: where the key's rate is used up the stream waits, and so does who writes to it."""
        while True:
            try:
                return self._quotas.request(call.caller)
            except RateLimited as error:
                await asyncio.sleep((error.retry_after or 0) / 1_000_000)


def revoked() -> Unauthenticated:
    return Unauthenticated("this API key is not known any more", hint="it was revoked or changed; `taskmill key list` shows those that are valid")


async def _let_go(*tasks: asyncio.Task[Any] | None) -> None:
    begun = [task for task in tasks if task is not None]
    for task in begun:
        task.cancel()
    await asyncio.wait(begun)
    for task in begun:
        if not task.cancelled():
            task.exception()  # whatever it was, the call has ended for another reason


def _over(seconds: float) -> DeadlineExceeded:
    return DeadlineExceeded(f"it took longer than {seconds:.0f} s", hint="name a longer deadline; what was begun may have been done")


def _token(metadata: Any) -> str | None:
    """What stands behind `Bearer`; text that no key can be, where it is something else."""
    values = [value for name, value in metadata or () if name == "authorization"]
    if not values:
        return None
    scheme, _, token = values[0].partition(" ") if isinstance(values[0], str) else ("", "", "")
    return token.strip() if len(values) == 1 and scheme.lower() == "bearer" else ""


def _address(peer: str) -> str:
    """The host of `ipv4:127.0.0.1:4711` or `ipv6:%5B::1%5D:4711`: who guesses keys has many ports."""
    kind, _, rest = unquote(peer).partition(":")
    return rest.rpartition(":")[0] if kind in {"ipv4", "ipv6"} else peer
