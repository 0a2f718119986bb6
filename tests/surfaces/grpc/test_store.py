"""The service Store: what an operator sees and changes, with the audit log beside it; and the verbs of tasks that came with it."""

from __future__ import annotations

import json
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from taskmill.engine import Joining
from taskmill.server.grpc.v1 import taskmill_pb2 as pb
from taskmill.task import TypeSettings, new_id
from tests.surfaces.grpc.houses import QUEUE, TYPE, Client, House, client, details, new, refused

Code = grpc.StatusCode


# Tasks


async def test_a_payload_is_required(caller: Client) -> None:
    error = await refused(caller.tasks.Submit(pb.SubmitRequest(task=pb.NewTask(type=TYPE, queue=QUEUE))), Code.INVALID_ARGUMENT, "required")
    assert details(error)["BadRequest"].field_violations[0].field == "payload"
    [answer] = (await caller.tasks.SubmitBatch(pb.SubmitBatchRequest(tasks=[pb.NewTask(type=TYPE, queue=QUEUE)]))).answers
    assert (answer.problem.code, answer.problem.field) == ("required", "payload")
    assert await caller.submit(pb.NewTask(type=TYPE, queue=QUEUE, payload=b"null"))


async def test_a_signal_is_sent_once_by_its_id(caller: Client) -> None:
    task = await caller.submit()
    numbers = [(await caller.tasks.Signal(pb.SignalRequest(id=task, name="paid", data=b'{"sum":7}', signal_id="s1"))).number for _ in range(2)]
    assert numbers == [1, 1]
    assert (await caller.tasks.Signal(pb.SignalRequest(id=task, name="paid"))).number == 2
    await refused(caller.tasks.Signal(pb.SignalRequest(id=task, name="No Name")), Code.INVALID_ARGUMENT, "invalid_name")
    await refused(caller.tasks.Signal(pb.SignalRequest(id=new_id(), name="paid")), Code.NOT_FOUND, "not_found")


async def test_edges_in_pages(caller: Client) -> None:
    first = [await caller.submit() for _ in range(3)]
    task = await caller.submit(new(after=[pb.Edge(task=id, on_failure=pb.ON_FAILURE_IGNORE) for id in first]))
    page = (await caller.tasks.Edges(pb.EdgesRequest(id=task, page_size=2))).edges
    assert [(edge.task, edge.on_failure, edge.outcome) for edge in page] == [(id, pb.ON_FAILURE_IGNORE, pb.STATE_UNSPECIFIED) for id in first[:2]]
    assert [edge.task for edge in (await caller.tasks.Edges(pb.EdgesRequest(id=task, after=2))).edges] == first[2:]
    await refused(caller.tasks.Edges(pb.EdgesRequest(id=task, page_size=1_001)), Code.INVALID_ARGUMENT, "out_of_range")


async def test_a_seal_takes_children_until_it_is_broken(caller: Client) -> None:
    parent = await caller.submit(new(sealed=True))
    children = [await caller.submit(new(parent=pb.Edge(task=parent))) for _ in range(2)]
    assert (await caller.get(parent)).sealed
    await caller.tasks.Unseal(pb.UnsealRequest(ids=[parent]))
    found = await caller.get(parent)
    assert (found.sealed, found.open_edges, found.state) == (False, 2, pb.STATE_WAITING)
    for id in children:
        await caller.tasks.Cancel(pb.CancelRequest(id=id))
    await refused(caller.tasks.Submit(pb.SubmitRequest(task=new(parent=pb.Edge(task=parent)))), Code.FAILED_PRECONDITION, "no_seal")
    await refused(caller.tasks.Unseal(pb.UnsealRequest(ids=[new_id()])), Code.NOT_FOUND, "not_found")


async def test_a_foreign_seal_stays(house: House) -> None:
    async with client(house, await house.key("submit", tenant="acme")) as acme, client(house, await house.key("submit", tenant="beta")) as beta:
        parent = await acme.submit(new(sealed=True))
        await refused(beta.tasks.Unseal(pb.UnsealRequest(ids=[parent]), metadata=beta.metadata), Code.NOT_FOUND, "not_found")
        await acme.tasks.Unseal(pb.UnsealRequest(ids=[parent]), metadata=acme.metadata)


async def test_counts_and_waits(caller: Client) -> None:
    task = await caller.submit()
    assert (await caller.tasks.Count(pb.CountRequest(filter=pb.Filter(queues=[QUEUE])))).count == 1
    assert not (await caller.tasks.Wait(pb.WaitRequest(ids=[task]))).ended
    await caller.tasks.Cancel(pb.CancelRequest(id=task))
    unknown = new_id()
    answer = await caller.tasks.Wait(pb.WaitRequest(ids=[task, unknown], wait=Duration(seconds=60)))
    assert (dict(answer.ended), list(answer.unknown)) == ({task: pb.STATE_CANCELLED}, [unknown])
    for call in (
        caller.tasks.Wait(pb.WaitRequest(ids=[task], wait=Duration(seconds=61))),
        caller.tasks.Get(pb.GetRequest(id=task, wait=Duration(seconds=61))),
        caller.workers.Claim(pb.ClaimRequest(worker="x", request=1, slots=1, wait=Duration(seconds=61))),
    ):
        error = await refused(call, Code.INVALID_ARGUMENT, "invalid_duration")
        assert "60s" in details(error)["ErrorInfo"].metadata["hint"]


async def test_a_completed_task_is_run_again_only_by_its_version(caller: Client) -> None:
    task, worker = await caller.submit(), await caller.join()
    [claimed] = await caller.claim(worker)
    done = pb.Outcome(task=task, token=claimed.token, completed=pb.Completed(result=b"1"))
    await caller.workers.Finish(pb.FinishRequest(worker=worker, outcomes=[done]))
    await refused(caller.tasks.Requeue(pb.RequeueRequest(id=task)), Code.FAILED_PRECONDITION, "version_required")
    assert dict((await caller.tasks.Requeue(pb.RequeueRequest(ids=pb.Ids(ids=[task])))).refused) == {"version_required": 1}
    version = (await caller.get(task)).version
    again = pb.RequeueRequest(id=task, version=version)
    assert (await caller.tasks.Requeue(again)).state == pb.STATE_PENDING
    [claimed] = await caller.claim(worker, 2)
    done = pb.Outcome(task=task, token=claimed.token, completed=pb.Completed(result=b"2"))
    await caller.workers.Finish(pb.FinishRequest(worker=worker, outcomes=[done]))
    await _repeated(caller.tasks.Requeue(again))
    assert (await caller.get(task)).state == pb.STATE_COMPLETED


async def _repeated(call: Awaitable[Any]) -> None:
    """It is known by its version: answered as the first time, or refused as stale."""
    try:
        await call
    except grpc.aio.AioRpcError as error:
        assert error.code() is Code.ABORTED, error


# Queues and types


async def test_queues(caller: Client, house: House) -> None:
    await caller.submit()
    [queue] = (await caller.store.ListQueues(pb.ListQueuesRequest())).queues
    assert (queue.name, queue.counts["pending"], queue.paused, queue.version) == (QUEUE, 1, False, 0)
    pause = pb.PauseRequest(name=QUEUE, reason="repairs")
    assert [(await caller.store.PauseQueue(pause)).changed for _ in range(2)] == [True, False]
    found = await caller.store.GetQueue(pb.GetQueueRequest(name=QUEUE))
    assert (found.paused, found.reason) == (True, "repairs")
    assert (await caller.store.ResumeQueue(pb.ResumeRequest(name=QUEUE))).changed
    assert (await caller.store.Scale(pb.ScaleRequest(queue=QUEUE, per=10))).value == 1
    error = await refused(caller.store.GetQueue(pb.GetQueueRequest(name="mial")), Code.NOT_FOUND, "unknown_queue")
    assert "mail" in details(error)["ErrorInfo"].metadata["hint"]
    await refused(caller.store.PurgeQueue(pb.PurgeQueueRequest(name=QUEUE)), Code.INVALID_ARGUMENT, "confirm_required")
    assert (await caller.store.PurgeQueue(pb.PurgeQueueRequest(name=QUEUE, dry_run=True))).matched == 1
    assert (await caller.store.PurgeQueue(pb.PurgeQueueRequest(name=QUEUE, confirm=True))).done == 1


async def test_queue_settings(caller: Client) -> None:
    wanted = pb.QueueSettings(weights={"acme": 3}, priorities=[1, 2, 4, 8], fair="tenant", partitions=1)
    put = await caller.store.PutQueueSettings(pb.PutQueueSettingsRequest(name=QUEUE, settings=wanted, version=0))
    assert (put.settings, put.version) == (wanted, 1)
    again = pb.PutQueueSettingsRequest(name=QUEUE, settings=pb.QueueSettings(), version=7)
    await refused(caller.store.PutQueueSettings(again), Code.ABORTED, "stale_version")
    short = pb.PutQueueSettingsRequest(name=QUEUE, settings=pb.QueueSettings(priorities=[1, 2]))
    await refused(caller.store.PutQueueSettings(short), Code.INVALID_ARGUMENT, "invalid_value")
    await caller.submit()
    assert (await caller.store.DropQueueSettings(pb.DropRequest(name=QUEUE, version=1))).dropped
    assert (await caller.store.GetQueue(pb.GetQueueRequest(name=QUEUE))).version == 0


async def test_types(caller: Client, house: House) -> None:
    settings = TypeSettings(queue=QUEUE, priority=2, fair="tenant", limits=("sms",))
    await house.engine.join(Joining(worker="w", queues=(QUEUE,), types={TYPE: settings}, limits={"sms": b'{"cap": 2}'}))
    [found] = (await caller.store.ListTypes(pb.ListTypesRequest())).types
    assert (found.name, found.workers, found.settings.priority, found.settings.fair) == (TYPE, 1, pb.PRIORITY_HIGH, "tenant")
    assert (await caller.store.PauseType(pb.PauseRequest(name=TYPE))).changed
    assert (await caller.store.ListTypes(pb.ListTypesRequest())).types[0].paused
    assert (await caller.store.ResumeType(pb.ResumeRequest(name=TYPE))).changed


# Schedules, workers, limits


async def test_schedules(caller: Client) -> None:
    task = pb.NewTask(type=TYPE, queue=QUEUE, payload=b'{"a":1}', priority=pb.PRIORITY_LOW, tags={"by": "night"})
    spec = pb.ScheduleSpec(cron="0 3 * * *", timezone="Europe/Paris", overlap="skip", misfire="once", task=task, expires=Duration(seconds=60))
    made = await caller.store.PutSchedule(pb.PutScheduleRequest(name="nightly", spec=spec, version=0))
    assert (made.spec, made.operator) == (spec, True)
    found = await caller.store.GetSchedule(pb.GetScheduleRequest(name="nightly"))
    assert (found.spec, len(found.next)) == (spec, 5)
    assert [each.name for each in (await caller.store.ListSchedules(pb.ListSchedulesRequest())).schedules] == ["nightly"]
    other = pb.ScheduleSpec(cron="@daily", task=task)
    await refused(caller.store.PutSchedule(pb.PutScheduleRequest(name="nightly", spec=other, version=9)), Code.ABORTED, "stale_version")
    assert (await caller.store.PauseSchedule(pb.PauseRequest(name="nightly"))).changed
    assert (await caller.store.ResumeSchedule(pb.ResumeRequest(name="nightly"))).changed
    own = new_id()
    answers = [(await caller.store.TriggerSchedule(pb.TriggerScheduleRequest(name="nightly", id=own))).submitted for _ in range(2)]
    assert [(answer.id, answer.status) for answer in answers] == [(own, pb.SUBMIT_STATUS_CREATED), (own, pb.SUBMIT_STATUS_DUPLICATE)]
    assert (await caller.store.DeleteSchedule(pb.DropRequest(name="nightly"))).dropped
    await refused(caller.store.GetSchedule(pb.GetScheduleRequest(name="nightly")), Code.NOT_FOUND, "unknown_schedule")


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"cron": "never"}, "invalid_cron"),
        ({"cron": "@daily", "task": {}}, "invalid_name"),
        ({"cron": "@daily", "overlap": "sometimes"}, "invalid_input"),
        ({"cron": "@daily", "task": {"type": TYPE, "id": new_id()}}, "unknown_field"),
    ],
)
async def test_schedules_that_cannot_be(caller: Client, spec: dict[str, Any], reason: str) -> None:
    task = pb.NewTask(**spec.pop("task", {"type": TYPE}))
    await refused(caller.store.PutSchedule(pb.PutScheduleRequest(name="s", spec=pb.ScheduleSpec(task=task, **spec))), Code.INVALID_ARGUMENT, reason)


async def test_workers_are_seen_and_told(caller: Client) -> None:
    worker = await caller.join()
    [found] = (await caller.store.ListWorkers(pb.ListWorkersRequest())).workers
    assert (found.id, found.alive, list(found.types)) == (worker, True, [TYPE])
    for word, command in (("quiet", "quiet"), ("resume", "")):
        await caller.store.CommandWorker(pb.CommandWorkerRequest(id=worker, command=word))
        assert (await caller.store.GetWorker(pb.GetWorkerRequest(id=worker))).command == command
    await refused(caller.store.CommandWorker(pb.CommandWorkerRequest(id=worker, command="dance")), Code.INVALID_ARGUMENT, "unknown_command")
    await refused(caller.store.GetWorker(pb.GetWorkerRequest(id="nobody")), Code.NOT_FOUND, "unknown_worker")


async def test_limits(caller: Client) -> None:
    numbers = pb.LimitNumbers(rate=100, window=Duration(seconds=60), cap=3)
    put = await caller.store.PutLimit(pb.PutLimitRequest(name="sms", numbers=numbers, version=0))
    assert (put.numbers, put.operator) == (numbers, True)
    assert await caller.store.GetLimit(pb.GetLimitRequest(name="sms")) == put
    assert list((await caller.store.ListLimits(pb.ListLimitsRequest())).limits) == [put]
    await refused(caller.store.PutLimit(pb.PutLimitRequest(name="sms")), Code.INVALID_ARGUMENT, "invalid_input")
    await refused(caller.store.PutLimit(pb.PutLimitRequest(name="sms", numbers=pb.LimitNumbers(cap=1), version=9)), Code.ABORTED, "stale_version")
    assert (await caller.store.DropLimit(pb.DropRequest(name="sms"))).dropped
    await refused(caller.store.GetLimit(pb.GetLimitRequest(name="sms")), Code.NOT_FOUND, "unknown_limit")


# Keys, leaders, findings


async def test_keys_are_made_used_and_revoked(house: House) -> None:
    async with client(house, await house.key("admin")) as admin:
        created = await admin.store.CreateKey(pb.CreateKeyRequest(name="shop", scopes=["submit", "read"], tenant="acme", rate=100), metadata=admin.metadata)
        assert (created.key.name, list(created.key.scopes), created.key.tenant, created.key.rate) == ("shop", ["submit", "read"], "acme", 100)
        async with client(house, created.token) as shop:
            assert await shop.submit()
            await refused(shop.store.ListKeys(pb.ListKeysRequest(), metadata=shop.metadata), Code.PERMISSION_DENIED, "forbidden")
            await refused(shop.store.ListQueues(pb.ListQueuesRequest(), metadata=shop.metadata), Code.PERMISSION_DENIED, "tenant_key")
        keys = (await admin.store.ListKeys(pb.ListKeysRequest(), metadata=admin.metadata)).keys
        assert created.key in keys
        await admin.store.RevokeKey(pb.RevokeKeyRequest(id=created.key.id), metadata=admin.metadata)
        async with client(house, created.token) as shop:
            await refused(shop.tasks.Submit(pb.SubmitRequest(task=new()), metadata=shop.metadata), Code.UNAUTHENTICATED)
        await refused(admin.store.CreateKey(pb.CreateKeyRequest(scopes=["everything"]), metadata=admin.metadata), Code.INVALID_ARGUMENT, "unknown_scope")


async def test_leaders_and_findings(caller: Client, house: House) -> None:
    term = await house.engine.lead("pruning", "somewhere")
    assert term is not None
    leaders = {each.role: (each.holder, each.term) for each in (await caller.store.ListLeaders(pb.ListLeadersRequest())).leaders}
    assert leaders == {"schedules": ("", 0), "pruning": ("somewhere", term.number), "outbox": ("", 0)}
    assert (await caller.store.Check(pb.CheckRequest())).engine == "sqlite"


def audited(folder: Path) -> list[tuple[str, str]]:
    [log] = folder.rglob("audit*.jsonl")
    entries = [json.loads(line) for line in log.read_text().splitlines()]
    return [(each["action"], each["target"]) for each in entries if each["outcome"] == "done"]


async def test_every_change_is_in_the_audit_log(caller: Client, tmp_path: Path) -> None:
    await caller.store.PutLimit(pb.PutLimitRequest(name="sms", numbers=pb.LimitNumbers(cap=3)))
    await caller.store.PutQueueSettings(pb.PutQueueSettingsRequest(name=QUEUE, settings=pb.QueueSettings(weights={"acme": 2})))
    assert audited(tmp_path) == [("limit.put", "sms"), ("queue.settings", QUEUE)]
