"""The service Tasks: submits, looks, changes, and what happens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from typing import Any

from taskmill import requests
from taskmill.engine import Durability, Page, Status, Submitted
from taskmill.errors import InvalidInput, TaskmillError
from taskmill.requests import MOST_TASKS
from taskmill.server.access import Scope
from taskmill.server.desk import Desk
from taskmill.server.grpc.arrived import Arrived
from taskmill.server.grpc.gate import Call
from taskmill.server.grpc.reading import WORDS, count, durability, filter_of, json, needed_id, new_task, wait_of
from taskmill.server.grpc.statuses import Stopping
from taskmill.server.grpc.v1 import taskmill_pb2 as pb
from taskmill.server.grpc.watching import watch
from taskmill.server.grpc.writing import answers_of, changed_of, edge_of, state_of, submitted_of, tally_of, task_of
from taskmill.server.hub import Hub
from taskmill.server.pages import Pages
from taskmill.task import NewTask, check_key, check_name, check_range

__all__ = ["MOST_TASKS", "Tasks"]

PAGE = 100
PAGE_BYTES = 1_500_000
"""Of tasks in one page: clients take messages of 4 MB unless they say otherwise."""
SLICE = 500
"""Tasks, edges and kilobytes of payloads read at once before others have their turn."""


class Tasks:
    """Methods by the name that the table of RPCs gives them."""

    def __init__(self, desk: Desk, hub: Hub | None, paced: Callable[[Call], Awaitable[None]]) -> None:
        self._desk = desk
        self._hub = hub
        self._paced = paced
        self._pages = Pages()
        self._make_id = desk.operations.engine.new_id

    # Submitting

    async def submit(self, call: Call, request: pb.SubmitRequest) -> pb.SubmitResponse:
        if not request.HasField("task"):
            raise InvalidInput("there is no task", code="task_required", field="task", hint="a type and a payload")
        new = new_task(request.task, self._make_id)
        return pb.SubmitResponse(submitted=submitted_of(await self._desk.submit(call.caller, new, durability(request.durability))))

    async def submit_batch(self, call: Call, request: pb.SubmitBatchRequest) -> pb.SubmitBatchResponse:
        count(request.tasks, "tasks", MOST_TASKS)
        level = durability(request.durability)
        return answers_of(await self._stored(call, await self._read(request), level))

    async def _read(self, request: pb.SubmitBatchRequest) -> list[NewTask | Submitted]:
        """Tasks, and the answers of those that cannot be any."""
        read: list[NewTask | Submitted] = []
        since = 0
        for message in request.tasks:
            try:
                read.append(new_task(message, self._make_id))
            except TaskmillError as error:
                read.append(Submitted(Status.REFUSED, message.id[:80], Durability.LOCAL, error=error))
            since += 1 + len(message.after) + len(message.payload) // 1_000
            if since > SLICE:
                since = 0
                await asyncio.sleep(0)
        return read

    async def _stored(self, call: Call, read: Sequence[NewTask | Submitted], level: Durability | None) -> Sequence[Submitted]:
        """The answers of all, in order."""
        tasks = [each for each in read if isinstance(each, NewTask)]
        if len(tasks) == len(read):
            return await self._desk.submit_many(call.caller, tasks, level)
        answers = iter(await self._desk.submit_many(call.caller, tasks, level) if tasks else ())
        return [next(answers) if isinstance(each, NewTask) else each for each in read]

    async def submit_stream(self, call: Call, requests: AsyncIterator[pb.SubmitBatchRequest]) -> None:
        """While the store takes what has arrived the next is read."""
        arrived = Arrived(call.stopping)
        reading = asyncio.create_task(self._fill(arrived, requests))
        try:
            while taken := await arrived.take():
                await self._paced(call)
                await call.write(answers_of(await self._stored(call, taken.read, taken.level)))
            if call.stopping.is_set() and not reading.done():
                raise Stopping("this server stops", hint="go on with another stream: all tasks that were answered are stored")
            await reading
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            arrived.close()

    async def _fill(self, arrived: Arrived, requests: AsyncIterator[pb.SubmitBatchRequest]) -> None:
        try:
            async for request in requests:
                count(request.tasks, "tasks", MOST_TASKS)
                await arrived.add(await self._read(request), durability(request.durability))
        finally:
            arrived.end()

    # Looking

    async def get(self, call: Call, request: pb.GetRequest) -> pb.Task:
        id = needed_id(request.id)
        wait = call.wait(wait_of(request.wait)) if request.HasField("wait") else 0
        task = await (self._desk.result(call.caller, id, wait) if wait else self._desk.get(call.caller, id))
        attempts = await self._desk.attempts(call.caller, id) if request.attempts else ()
        return task_of(task, payloads=call.caller.may(Scope.READ_PAYLOAD), attempts=attempts)

    async def list(self, call: Call, request: pb.ListRequest) -> pb.ListResponse:
        wanted = filter_of(request.filter)
        n, cursor = requests.page_size(request.page_size or PAGE, "page_size"), requests.cursor_of(request.cursor)
        if request.payloads:
            call.caller.need(Scope.READ_PAYLOAD)

        def portion(after: str | None, n: int) -> Coroutine[Any, Any, Page]:
            return self._desk.list(call.caller, wanted, after=after, n=n)

        tasks, cursor = await self._pages.read(portion, cursor, n, PAGE_BYTES, payloads=request.payloads)
        return pb.ListResponse(tasks=[task_of(task, payloads=request.payloads) for task in tasks], cursor=cursor or "")

    async def count(self, call: Call, request: pb.CountRequest) -> pb.CountResponse:
        return pb.CountResponse(count=await self._desk.count(call.caller, filter_of(request.filter)))

    async def wait(self, call: Call, request: pb.WaitRequest) -> pb.WaitResponse:
        ids, wait = requests.ids_of(request.ids), call.wait(wait_of(request.wait))
        ended, unknown = await self._desk.wait(call.caller, ids, wait)
        return pb.WaitResponse(ended={id: state_of(state) for id, state in ended.items()}, unknown=unknown)

    async def edges(self, call: Call, request: pb.EdgesRequest) -> pb.EdgesResponse:
        after, n = check_range(request.after, "after", 0, 1 << 31), requests.page_size(request.page_size or PAGE, "page_size")
        edges = await self._desk.edges(call.caller, needed_id(request.id), after=after, n=n)
        whole = call.caller.may(Scope.READ_PAYLOAD)
        return pb.EdgesResponse(edges=[edge_of(edge, payloads=whole) for edge in edges])

    # What happens

    async def watch(self, call: Call, request: pb.WatchRequest) -> None:
        await watch(call, request, self._hub, self._desk.clock)

    # Changing

    async def signal(self, call: Call, request: pb.SignalRequest) -> pb.SignalResponse:
        name, data = check_name(request.name, "name"), json(request.data, "data")
        once = check_key(request.signal_id, "signal_id") if request.signal_id else None
        return pb.SignalResponse(number=await self._desk.signal(call.caller, needed_id(request.id), name, data, once))

    async def unseal(self, call: Call, request: pb.UnsealRequest) -> pb.UnsealResponse:
        await self._desk.unseal(call.caller, requests.ids_of(request.ids))
        return pb.UnsealResponse()

    async def cancel(self, call: Call, request: pb.CancelRequest) -> pb.ChangeResponse:
        return await self._change(call, "cancel", request)

    async def requeue(self, call: Call, request: pb.RequeueRequest) -> pb.ChangeResponse:
        return await self._change(call, "requeue", request, from_start=request.from_start)

    async def delete(self, call: Call, request: pb.DeleteRequest) -> pb.ChangeResponse:
        return await self._change(call, "delete", request)

    async def _change(
        self, call: Call, verb: str, request: pb.CancelRequest | pb.RequeueRequest | pb.DeleteRequest, *, from_start: bool = False
    ) -> pb.ChangeResponse:
        which = request.WhichOneof("which")
        if which == "id":
            if request.dry_run:
                raise InvalidInput("one task is not counted", code="contradiction", field="dry_run", hint="leave it out, or use ids or filter")
            version = request.version if request.HasField("version") else None
            return changed_of(await self._desk.change(call.caller, verb, needed_id(request.id), version=version, from_start=from_start))
        if request.HasField("version"):
            raise InvalidInput("a version is that of one task", code="contradiction", field="version", hint="use it with id")
        ids, matching = request.ids.ids if which == "ids" else None, filter_of(request.filter) if which == "filter" else None
        wanted = requests.which_of(ids, matching, confirm=request.confirm, dry_run=request.dry_run, words=WORDS._replace(ids=which or "which"))
        return tally_of(await self._desk.change_many(call.caller, verb, wanted, dry_run=request.dry_run, from_start=from_start))
