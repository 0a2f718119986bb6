"""Who may call what: keys, scopes and tenants for every RPC; the matrix is made from the service descriptors, so no RPC can be forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from itertools import product
from typing import Any, NamedTuple

import grpc
import pytest
from google.protobuf import message_factory

from taskmill.server.access import Scope, revoke_key
from taskmill.server.grpc.gate import RPCS
from taskmill.server.grpc.v1 import taskmill_pb2 as pb
from taskmill.task import NewTask
from tests.surfaces.grpc.houses import HANGS, Client, House, client, details, new, refused

Code = grpc.StatusCode
METHODS = [(service.name, method.name) for service in pb.DESCRIPTOR.services_by_name.values() for method in service.methods]


def test_every_rpc_has_a_row() -> None:
    assert {(service, name) for service, named in RPCS.items() for name in named} == set(METHODS)


# The matrix


class Subject(NamedTuple):
    """What a call is about: a task and a worker."""

    task: str
    worker: str


async def _stream(begin: Callable[[], Any], *messages: Any) -> Any:
    call = begin()
    try:
        for message in messages:
            await call.write(message)
    except grpc.aio.AioRpcError:  # refused before the message had left: the library tells only of that, so the refusal is asked for by a call without one
        return await begin().read()
    if hasattr(call, "done_writing"):
        await call.done_writing()
    answer = await call.read()
    call.cancel()
    return answer


Try = Callable[[Client, Subject], Awaitable[Any]]


def _named(client: Client) -> dict[str, Any]:
    return {"metadata": client.metadata, "timeout": HANGS}


def _of_the_store(name: str) -> Try:
    """Rights are judged before a message is, so an empty one will do."""
    kind = message_factory.GetMessageClass(pb.DESCRIPTOR.services_by_name["Store"].methods_by_name[name].input_type)
    return lambda c, s: getattr(c.store, name)(kind(), **_named(c))


TRIES: Mapping[tuple[str, str], Try] = {
    ("Tasks", "Submit"): lambda c, s: c.tasks.Submit(pb.SubmitRequest(task=new()), **_named(c)),
    ("Tasks", "SubmitBatch"): lambda c, s: c.tasks.SubmitBatch(pb.SubmitBatchRequest(tasks=[new()]), **_named(c)),
    ("Tasks", "SubmitStream"): lambda c, s: _stream(lambda: c.tasks.SubmitStream(**_named(c)), pb.SubmitBatchRequest(tasks=[new()])),
    ("Tasks", "Get"): lambda c, s: c.tasks.Get(pb.GetRequest(id=s.task), **_named(c)),
    ("Tasks", "List"): lambda c, s: c.tasks.List(pb.ListRequest(), **_named(c)),
    ("Tasks", "Cancel"): lambda c, s: c.tasks.Cancel(pb.CancelRequest(id=s.task), **_named(c)),
    ("Tasks", "Requeue"): lambda c, s: c.tasks.Requeue(pb.RequeueRequest(id=s.task), **_named(c)),
    ("Tasks", "Delete"): lambda c, s: c.tasks.Delete(pb.DeleteRequest(id=s.task), **_named(c)),
    ("Tasks", "Count"): lambda c, s: c.tasks.Count(pb.CountRequest(), **_named(c)),
    ("Tasks", "Wait"): lambda c, s: c.tasks.Wait(pb.WaitRequest(ids=[s.task]), **_named(c)),
    ("Tasks", "Edges"): lambda c, s: c.tasks.Edges(pb.EdgesRequest(id=s.task), **_named(c)),
    ("Tasks", "Signal"): lambda c, s: c.tasks.Signal(pb.SignalRequest(id=s.task, name="go"), **_named(c)),
    ("Tasks", "Unseal"): lambda c, s: c.tasks.Unseal(pb.UnsealRequest(ids=[s.task]), **_named(c)),
    **{("Store", name): _of_the_store(name) for service, name in METHODS if service == "Store"},
    ("Tasks", "Watch"): lambda c, s: _stream(lambda: c.tasks.Watch(pb.WatchRequest(), **_named(c))),
    ("Workers", "Join"): lambda c, s: c.workers.Join(pb.JoinRequest(types=[pb.WorkerType(name="a")]), **_named(c)),
    ("Workers", "Claim"): lambda c, s: c.workers.Claim(pb.ClaimRequest(worker=s.worker, request=1, slots=1), **_named(c)),
    ("Workers", "ClaimStream"): lambda c, s: _stream(lambda: c.workers.ClaimStream(**_named(c)), pb.ClaimCredit(worker=s.worker, credit=0)),
    ("Workers", "Heartbeat"): lambda c, s: c.workers.Heartbeat(pb.HeartbeatRequest(worker=s.worker), **_named(c)),
    ("Workers", "Finish"): lambda c, s: c.workers.Finish(_finish(s), **_named(c)),
    ("Workers", "Checkpoint"): lambda c, s: c.workers.Checkpoint(_checkpoint(s), **_named(c)),
    ("Workers", "Leave"): lambda c, s: c.workers.Leave(pb.LeaveRequest(worker=s.worker), **_named(c)),
}


def _finish(subject: Subject) -> pb.FinishRequest:
    return pb.FinishRequest(worker=subject.worker, outcomes=[pb.Outcome(task=subject.task, token=1, released=pb.Released())])


def _checkpoint(subject: Subject) -> pb.CheckpointRequest:
    return pb.CheckpointRequest(worker=subject.worker, steps=[pb.Step(task=subject.task, token=1, name="a")])


ABOUT_ONE_TASK = {("Tasks", name) for name in ("Get", "Edges", "Signal", "Unseal", "Cancel", "Requeue", "Delete")}
OWN, FOREIGN, WHOLE = "own tenant", "foreign tenant", "whole store"


class Cell(NamedTuple):
    """One cell: the RPC, the one scope that the key has, and whose task it is about."""

    service: str
    method: str
    scope: Scope
    whose: str

    def expected(self) -> grpc.StatusCode | None:
        """None: it is not a matter of rights any more."""
        rpc = RPCS[self.service][self.method]
        if self.scope not in (rpc.scope, Scope.ADMIN):
            return Code.PERMISSION_DENIED
        if rpc.whole and self.whose != WHOLE:
            return Code.PERMISSION_DENIED
        return Code.NOT_FOUND if self.whose == FOREIGN and (self.service, self.method) in ABOUT_ONE_TASK else None


CELLS = [Cell(service, method, scope, whose) for (service, method), scope, whose in product(METHODS, Scope, (OWN, FOREIGN, WHOLE))]


def test_no_cell_is_left_out() -> None:
    assert len(CELLS) == len(METHODS) * 6 * 3
    assert set(TRIES) == set(METHODS)


@pytest.mark.parametrize(("service", "method"), METHODS)
async def test_the_matrix(house: House, service: str, method: str) -> None:
    for cell in (cell for cell in CELLS if (cell.service, cell.method) == (service, method)):
        await _try(house, cell)


async def _try(house: House, cell: Cell) -> None:
    tenant = None if cell.whose == WHOLE else "acme"
    owner = {OWN: "acme", FOREIGN: "evil", WHOLE: "acme"}[cell.whose]
    if tenant is not None and cell.scope is Scope.WORKER:
        return  # there is no such key: a worker claims tasks of every tenant (tests below)
    [task] = await house.engine.submit([NewTask(type="mail.send", queue="mail", tenant=owner)])
    token = await house.key(cell.scope, tenant=tenant)
    async with client(house, token) as caller:
        worker = f"remote-{token[3:15]}-0123456789abcdef"
        if Scope.WORKER in (cell.scope, RPCS[cell.service][cell.method].scope) and tenant is None and cell.scope in (Scope.WORKER, Scope.ADMIN):
            worker = await caller.join()
        expected = cell.expected()
        if expected is None:
            await _not_refused(TRIES[cell.service, cell.method](caller, Subject(task.id, worker)), store=cell.service == "Store")
        else:
            error = await refused(TRIES[cell.service, cell.method](caller, Subject(task.id, worker)), expected)
            assert details(error)["ErrorInfo"].reason in {"forbidden", "tenant_key", "not_found"}
    if expected is not None and cell.method in {"Cancel", "Requeue", "Delete"}:
        [found] = await house.engine.get([task.id])
        assert getattr(found, "state", None) == "pending"


async def _not_refused(call: Awaitable[Any], *, store: bool = False) -> None:
    """It went through, or was refused for what it asked and not for who did."""
    try:
        await call
    except grpc.aio.AioRpcError as error:
        asked = {Code.FAILED_PRECONDITION, Code.INVALID_ARGUMENT} if store else {Code.FAILED_PRECONDITION}
        assert error.code() in asked, (error.code(), error.details())


async def test_no_key_of_a_worker_has_a_tenant(house: House) -> None:
    with pytest.raises(Exception, match="every tenant"):
        await house.key("worker", tenant="acme")


# Keys


@pytest.mark.parametrize(
    "metadata",
    [
        None,
        (("authorization", "Bearer"),),
        (("authorization", "Bearer "),),
        (("authorization", "Basic dXNlcjpwdw=="),),
        (("authorization", "Bearer tm_0123456789ab_short"),),
        (("authorization", "Bearer tm_0123456789ab_" + "A" * 43),),
        (("authorization", "tm_0123456789ab_" + "A" * 43),),
        (("key", "tm_0123456789ab_" + "A" * 43),),
    ],
)
@pytest.mark.parametrize(("service", "method"), METHODS)
async def test_without_a_key_nothing_is_answered(house: House, service: str, method: str, metadata: Any) -> None:
    await house.key("read")
    async with client(house) as caller:
        caller.metadata = metadata
        await refused(TRIES[service, method](caller, Subject("", "")), Code.UNAUTHENTICATED, "unauthenticated")


async def test_two_keys_are_none(house: House) -> None:
    token = await house.key("read")
    async with client(house) as caller:
        caller.metadata = (("authorization", f"Bearer {token}"), ("authorization", f"Bearer {token}"))  # type: ignore[assignment]
        await refused(caller.tasks.List(pb.ListRequest(), metadata=caller.metadata), Code.UNAUTHENTICATED)


async def test_who_guesses_keys_is_slowed_down_and_who_has_one_is_not(house: House) -> None:
    token = await house.key("read")
    async with client(house, "tm_0123456789ab_" + "A" * 43) as guesser, client(house, token) as caller:
        errors = [await refused_by_any(guesser.tasks.List(pb.ListRequest(), metadata=guesser.metadata)) for _ in range(25)]
        assert {error.code() for error in errors[:20]} == {Code.UNAUTHENTICATED}
        assert errors[-1].code() is Code.RESOURCE_EXHAUSTED
        assert details(errors[-1])["RetryInfo"].retry_delay.seconds > 0
        assert await caller.tasks.List(pb.ListRequest(), metadata=caller.metadata) is not None


async def refused_by_any(call: Awaitable[object]) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value


# What a key may see


async def test_payloads_are_for_those_who_may_read_them(house: House) -> None:
    reader, both = await house.key("read"), await house.key("read", "read-payload", "submit")
    async with client(house, reader) as blind, client(house, both) as seeing:
        id = await seeing.submit(headers={"secret": "x"})
        assert ((await seeing.get(id)).payload, dict((await seeing.get(id)).headers)) == (b'{"to":"ann"}', {"secret": "x"})
        assert ((await blind.get(id)).payload, dict((await blind.get(id)).headers)) == (b"", {})
        await refused(blind.tasks.List(pb.ListRequest(payloads=True), metadata=blind.metadata), Code.PERMISSION_DENIED, "forbidden")


# Tenants


@pytest.fixture
async def tenants(house: House) -> AsyncIterator[tuple[Client, Client]]:
    acme, evil = await house.key("submit", "read", "read-payload", "cancel", tenant="acme"), await house.key("submit", "read", "cancel", tenant="evil")
    async with client(house, acme) as first, client(house, evil) as second:
        yield first, second


async def test_a_tenant_sees_and_changes_its_own_tasks_only(tenants: tuple[Client, Client]) -> None:
    acme, evil = tenants
    id = await acme.submit(tags={"n": "1"})
    assert (await acme.get(id)).tenant == "acme"
    missing = await refused(evil.get("01890000-0000-7000-8000-000000000000"), Code.NOT_FOUND, "not_found")
    foreign = await refused(evil.get(id), Code.NOT_FOUND, "not_found")
    assert str(foreign.details()).replace(id, "") == str(missing.details()).replace("01890000-0000-7000-8000-000000000000", "")
    assert not (await evil.tasks.List(pb.ListRequest(), metadata=evil.metadata)).tasks
    await refused(evil.tasks.List(pb.ListRequest(filter=pb.Filter(tenant="acme")), metadata=evil.metadata), Code.PERMISSION_DENIED, "tenant_key")
    for which in (pb.Filter(), pb.Filter(tags={"n": "1"})):
        assert (await evil.tasks.Cancel(pb.CancelRequest(filter=which, confirm=True), metadata=evil.metadata)).matched == 0
    answer = await evil.tasks.Cancel(pb.CancelRequest(ids=pb.Ids(ids=[id])), metadata=evil.metadata)
    assert (answer.done, dict(answer.refused)) == (0, {"not_found": 1})
    assert (await acme.get(id)).state == pb.STATE_PENDING


async def test_nobody_waits_for_a_foreign_task(tenants: tuple[Client, Client]) -> None:
    acme, evil = tenants
    id = await acme.submit()
    after = new(after=[pb.Edge(task=id)])
    await refused(evil.submit(after), Code.INVALID_ARGUMENT, "unknown_task")
    answers = (await evil.tasks.SubmitBatch(pb.SubmitBatchRequest(tasks=[new(id=id), after, new()]), metadata=evil.metadata)).answers
    assert [answer.problem.code for answer in answers] == ["id_taken", "unknown_task", ""]
    mine = await acme.submit(new(after=[pb.Edge(task=id)]))
    assert (await acme.get(mine)).open_edges == 1


async def test_an_id_that_is_taken_by_another_tenant(tenants: tuple[Client, Client]) -> None:
    acme, evil = tenants
    id = await acme.submit()
    await refused(evil.submit(new(id=id)), Code.FAILED_PRECONDITION, "id_taken")
    answers = (await evil.tasks.SubmitBatch(pb.SubmitBatchRequest(tasks=[new(id=id), new()]), metadata=evil.metadata)).answers
    assert [answer.status for answer in answers] == [pb.SUBMIT_STATUS_REFUSED, pb.SUBMIT_STATUS_CREATED]
    assert answers[0].problem.code == "id_taken"
    assert (await acme.get(id)).tenant == "acme"


async def test_the_same_idempotency_key_of_two_tenants_is_two_tasks(tenants: tuple[Client, Client]) -> None:
    acme, evil = tenants
    assert await acme.submit(idempotency_key="k") != await evil.submit(idempotency_key="k")


async def test_a_watcher_hears_its_own_tenant(tenants: tuple[Client, Client]) -> None:
    acme, evil = tenants
    stream = evil.tasks.Watch(pb.WatchRequest(events=["task.*"]), metadata=evil.metadata, timeout=HANGS)
    await stream.read()
    await acme.submit()
    own = await evil.submit()
    heard = await stream.read()
    assert isinstance(heard, pb.Event)
    assert own.encode() in heard.data
    id = await acme.submit()
    await refused(evil.tasks.Watch(pb.WatchRequest(tasks=[id]), metadata=evil.metadata).read(), Code.NOT_FOUND)
    await refused(evil.tasks.Watch(pb.WatchRequest(tenant="acme"), metadata=evil.metadata).read(), Code.PERMISSION_DENIED)


# Revocation


@pytest.mark.parametrize("rpc", ["SubmitStream", "Watch", "ClaimStream", "Claim", "Get"])
async def test_a_revoked_key_ends_what_lasts(house: House, rpc: str) -> None:
    token = await house.key("admin")
    await house.key("read")
    async with client(house, token) as caller:
        worker, id = await caller.join("other"), await caller.submit()
        call = await _lasting(caller, rpc, worker, id)
        await revoke_key(house.engine, token[3:15])
        loop = asyncio.get_running_loop()
        began = loop.time()
        await refused(call, Code.UNAUTHENTICATED, "unauthenticated")
        assert loop.time() - began < 5 + 5, "a revoked key is refused within five seconds (and five that a busy machine may take)"
        await refused(caller.get(id), Code.UNAUTHENTICATED)


async def _lasting(caller: Client, rpc: str, worker: str, id: str) -> Awaitable[object]:
    """A call that is under way, and what it comes to."""
    named = _named(caller)
    match rpc:
        case "SubmitStream":
            submits = caller.tasks.SubmitStream(**named)
            await submits.write(pb.SubmitBatchRequest(tasks=[new()]))
            await submits.read()
            return submits.read()
        case "Watch":
            watching = caller.tasks.Watch(pb.WatchRequest(events=["leader.changed"]), **named)
            await watching.read()
            return watching.read()
        case "ClaimStream":
            claims = caller.workers.ClaimStream(**named)
            await claims.write(pb.ClaimCredit(worker=worker, credit=1))
            return claims.read()
        case "Claim":
            claim = pb.ClaimRequest(worker=worker, request=1, slots=1)
            claim.wait.FromSeconds(50)
            return asyncio.ensure_future(caller.workers.Claim(claim, **named))
        case _:
            get = pb.GetRequest(id=id)
            get.wait.FromSeconds(50)
            return asyncio.ensure_future(caller.tasks.Get(get, **named))
