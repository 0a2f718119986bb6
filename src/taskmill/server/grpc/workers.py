"""The service Workers: the worker protocol for any language, over the crew."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

from taskmill.clock import SECOND
from taskmill.errors import InvalidInput
from taskmill.server.crew import MOST_SLOTS, Crew
from taskmill.server.grpc.gate import Call
from taskmill.server.grpc.reading import count, duration, outcome, step, type_settings, wait_of
from taskmill.server.grpc.statuses import Stopping
from taskmill.server.grpc.v1 import taskmill_pb2 as pb
from taskmill.server.grpc.writing import claim_of, duration_of, refusals_of, state_of
from taskmill.task import check_range

__all__ = ["Workers"]

STREAM_WAIT = 20 * SECOND
MOST_CREDIT = 10_000
LAST_REQUEST = (1 << 53) - 1


class Workers:
    """Methods by the name that the table of RPCs gives them."""

    def __init__(self, crew: Crew) -> None:
        self._crew = crew

    async def join(self, call: Call, request: pb.JoinRequest) -> pb.JoinResponse:
        types = {each.name: type_settings(each.settings) if each.HasField("settings") else None for each in request.types}
        lease = duration(request.lease, "lease") if request.HasField("lease") else None
        worker, granted = await self._crew.join(call.caller, queues=list(request.queues), types=types, lease=lease, info=dict(request.info))
        return pb.JoinResponse(worker=worker, lease=duration_of(granted))

    # Claiming

    async def claim(self, call: Call, request: pb.ClaimRequest) -> pb.ClaimResponse:
        wait = call.wait(wait_of(request.wait))
        claim = await self._crew.claim(call.caller, _worker(request.worker), request.request, slots=request.slots, wait=wait, types=dict(request.types) or None)
        return claim_of(claim, request.request)

    async def claim_stream(self, call: Call, credits: AsyncIterator[pb.ClaimCredit]) -> None:
        """Claims as long as there is credit. A worker that closes its side gives none any more; what it gave is still used. Each of its messages is a sign
        of life; the claims that are made for it between them are none."""
        first = await anext(credits, None)
        if first is None:
            raise InvalidInput("there is no message", code="worker_required", field="worker", hint="the first message names the worker and gives credit")
        worker = _worker(first.worker)
        request = check_range(first.request, "request", 0, LAST_REQUEST)
        credit = _Credit(first.credit)
        await self._crew.hear(call.caller, worker)
        reading = asyncio.create_task(credit.fill(credits, lambda: self._crew.hear(call.caller, worker)))
        try:
            while await credit.some(reading):
                slots, wait = min(credit.left, MOST_SLOTS), call.wait(STREAM_WAIT)
                claim = await self._crew.claim(call.caller, worker, request + 1, slots=slots, wait=wait, heard=False)
                if claim.tasks:
                    request += 1
                    credit.use(len(claim.tasks))
                    await call.write(claim_of(claim, request))
                elif self._crew.drained:
                    raise Stopping("this server stops", hint="claim again; another one answers")
            await reading
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    # While it runs

    async def heartbeat(self, call: Call, request: pb.HeartbeatRequest) -> pb.HeartbeatResponse:
        beat = await self._crew.beat(call.caller, _worker(request.worker), request.request, list(request.leases))
        return pb.HeartbeatResponse(known=beat.known, lost=beat.lost, cancelled=beat.cancelled, commands=beat.commands)

    async def checkpoint(self, call: Call, request: pb.CheckpointRequest) -> pb.CheckpointResponse:
        count(request.steps, "steps", MOST_SLOTS)
        worker = _worker(request.worker)
        refused = await self._crew.checkpoint(call.caller, [step(each, worker, self._crew.payload_limit) for each in request.steps])
        return pb.CheckpointResponse(refused=refusals_of(refused))

    # Ending

    async def finish(self, call: Call, request: pb.FinishRequest) -> pb.FinishResponse:
        count(request.outcomes, "outcomes", MOST_SLOTS)
        worker = _worker(request.worker)
        finished = await self._crew.finish(call.caller, [outcome(each, worker, self._crew.payload_limit) for each in request.outcomes])
        return pb.FinishResponse(refused=refusals_of(finished.refused), instead={task: state_of(state) for task, state in finished.instead.items()})

    async def leave(self, call: Call, request: pb.LeaveRequest) -> pb.LeaveResponse:
        await self._crew.leave(call.caller, _worker(request.worker))
        return pb.LeaveResponse()


def _worker(id: str) -> str:
    if not id:
        raise InvalidInput("it is empty", code="worker_required", field="worker", hint="join first; the answer has the worker's id")
    return id


class _Credit:
    """How many tasks a worker can take."""

    def __init__(self, first: int) -> None:
        self.left = check_range(first, "credit", 0, MOST_SLOTS)
        self._more = asyncio.Event()

    async def fill(self, credits: AsyncIterator[pb.ClaimCredit], heard: Callable[[], Awaitable[None]]) -> None:
        async for message in credits:
            await heard()
            self.left += check_range(message.credit, "credit", 0, MOST_SLOTS)
            if self.left > MOST_CREDIT:
                raise InvalidInput(f"{self.left} is too much credit", code="out_of_range", field="credit", hint=f"at most {MOST_CREDIT:,} together")
            self._more.set()

    def use(self, n: int) -> None:
        self.left = max(0, self.left - n)

    async def some(self, reading: asyncio.Task[None]) -> bool:
        """Waits for credit; False when none is left and none will come."""
        while self.left == 0 and not reading.done():
            self._more.clear()
            waiting = asyncio.ensure_future(self._more.wait())
            try:
                await asyncio.wait({waiting, reading}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                waiting.cancel()
        if reading.done() and not reading.cancelled() and reading.exception() is not None:
            return False  # what is wrong with the worker's message is the answer
        return self.left > 0
