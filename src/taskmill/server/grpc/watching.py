"""Live events as a stream of messages: what the hub tells every listener, in gRPC's own form."""

from __future__ import annotations

import msgspec

from taskmill.clock import Clock, instant
from taskmill.errors import RateLimited, StoreError, TaskmillError
from taskmill.server.grpc.gate import Call, revoked
from taskmill.server.grpc.statuses import Stopping
from taskmill.server.grpc.v1 import taskmill_pb2 as pb
from taskmill.server.grpc.writing import instant_of
from taskmill.server.hub import Ended, Hub
from taskmill.server.wanted import read_filter

__all__ = ["watch"]

READY = "ready"


class _Told(msgspec.Struct):
    """An event as every listener gets it."""

    type: str
    timestamp: str
    id: str = ""
    data: msgspec.Raw = msgspec.Raw(b"{}")


async def watch(call: Call, request: pb.WatchRequest, hub: Hub | None, clock: Clock) -> None:
    if hub is None:
        raise StoreError("this server tells no events", code="no_events", hint="ask a server that has them")
    named = {"event": request.events, "queue": request.queues, "type": request.types, "task": request.tasks}
    conditions: dict[str, object] = {name: list(values) for name, values in named.items() if values}
    if request.tenant:
        conditions["tenant"] = [request.tenant]
    after = request.resume_after or None
    async with await hub.subscribe(call.caller, [read_filter(conditions)], after=after) as told:
        await call.write(pb.Event(type=READY, timestamp=instant_of(clock.now()), data=b"{}", id=after or hub.place))  # what follows that comes now
        async for data in told:
            await call.write(_event(data))
    raise _ended(told.ended)


def _event(data: bytes) -> pb.Event:
    told = msgspec.json.decode(data, type=_Told)
    return pb.Event(type=told.type, timestamp=instant_of(instant(told.timestamp)), data=bytes(told.data), id=told.id)


def _ended(why: Ended | None) -> TaskmillError:
    """A stream that the server ends says why."""
    if why is Ended.REVOKED:
        return revoked()
    if why is Ended.SLOW:
        return RateLimited(why.text, code=why.code, hint="read faster, or watch less; then watch again, and read what matters")
    return Stopping("this server stops", hint="watch again; another one answers")
