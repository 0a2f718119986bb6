"""The service Workers: the worker protocol, over a real store."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from taskmill.server.grpc.v1 import taskmill_pb2 as pb
from tests.surfaces.grpc.houses import HANGS, TYPE, Client, House, client, new, refused

Code = grpc.StatusCode


async def finish(caller: Client, worker: str, task: pb.ClaimedTask, **ending: Any) -> pb.FinishResponse:
    outcome = pb.Outcome(task=task.id, token=task.token, **ending)
    return await caller.workers.Finish(pb.FinishRequest(worker=worker, outcomes=[outcome]))


# Joining


async def test_a_worker_declares_its_types(caller: Client, house: House) -> None:
    await house.engine.put("limit", "gpu", b'{"cap": 1}')
    settings = pb.TypeSettings(queue="images", priority=pb.PRIORITY_LOW, max_crashes=1, limits=["gpu"], on_limit=pb.ON_LIMIT_REJECT, fair="tenant")
    settings.retry.max_retries = 0
    settings.timeout.FromSeconds(5)
    request = pb.JoinRequest(types=[pb.WorkerType(name="image.scale", settings=settings), pb.WorkerType(name="image.crop")], info={"language": "go"})
    answer = await caller.workers.Join(request)
    assert answer.lease.seconds == 30
    [worker] = await house.engine.workers()
    assert (worker.id, set(worker.types), set(worker.queues)) == (answer.worker, {"image.scale", "image.crop"}, {"images", "default"})
    assert worker.info["language"] == "go"
    task = await caller.get(await caller.submit(pb.NewTask(type="image.scale", payload=b"null")))
    assert (task.queue, task.priority, task.max_crashes, task.retry.max_retries, task.timeout.seconds) == ("images", pb.PRIORITY_LOW, 1, 0, 5)
    assert (list(task.limits), task.payload) == (["gpu"], b"null")


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, "required"),
        ({"types": [pb.WorkerType(name=f"t{number}") for number in range(1_001)]}, "out_of_range"),
        ({"types": [pb.WorkerType(name="No Name")]}, "invalid_name"),
        ({"types": [pb.WorkerType(name="a")], "queues": ["No Name"]}, "invalid_name"),
        ({"types": [pb.WorkerType(name="a", settings=pb.TypeSettings(priority=9))]}, "unknown_enum"),  # type: ignore[arg-type]
        ({"types": [pb.WorkerType(name="a", settings=pb.TypeSettings(retry=pb.Retry(kind="never")))]}, "invalid_retry"),
        ({"types": [pb.WorkerType(name="a")], "info": {f"n{number}": "x" for number in range(21)}}, "out_of_range"),
        ({"types": [pb.WorkerType(name="a")], "info": {"host": "a\nb"}}, "invalid_key"),
    ],
)
async def test_workers_that_cannot_be(caller: Client, house: House, fields: dict[str, Any], reason: str) -> None:
    await refused(caller.workers.Join(pb.JoinRequest(**fields)), Code.INVALID_ARGUMENT, reason)
    assert await house.engine.workers() == ()


@pytest.mark.parametrize("seconds", [1, 86_401, -1, 1 << 40])
async def test_leases_that_cannot_be(caller: Client, seconds: int) -> None:
    request = pb.JoinRequest(types=[pb.WorkerType(name="a")])
    request.lease.seconds = seconds
    await refused(caller.workers.Join(request), Code.INVALID_ARGUMENT)


# Claiming


async def test_a_claim_waits_for_a_task(caller: Client) -> None:
    worker = await caller.join()
    waiting = asyncio.create_task(caller.claim(worker, wait=50))
    await asyncio.sleep(0)
    id = await caller.submit(headers={"traceparent": "00"}, priority=pb.PRIORITY_CRITICAL)
    [task] = await waiting
    assert (task.id, task.type, task.queue, task.payload, task.attempt, task.priority) == (id, TYPE, "mail", b'{"to":"ann"}', 1, pb.PRIORITY_CRITICAL)
    assert (dict(task.headers), task.timeout.seconds) == ({"traceparent": "00"}, 3_600)
    assert task.claimed_at.seconds >= task.created_at.seconds


async def test_the_same_number_answers_the_same_tasks(caller: Client) -> None:
    worker = await caller.join()
    await caller.submit()
    await caller.submit()
    [first] = await caller.claim(worker, 1)
    [again] = await caller.claim(worker, 1)
    [second] = await caller.claim(worker, 2)
    assert (again.id, again.token) == (first.id, first.token)
    assert second.id != first.id


async def test_a_claim_answers_nothing_shortly_before_the_deadline(caller: Client) -> None:
    worker = await caller.join()
    request = pb.ClaimRequest(worker=worker, request=1, slots=1)
    request.wait.FromSeconds(50)
    assert not (await caller.workers.Claim(request, timeout=3.0)).tasks


async def test_a_claim_takes_no_more_of_a_type_than_it_can(caller: Client) -> None:
    worker = await caller.join(TYPE, "other")
    for _ in range(3):
        await caller.submit()
        await caller.submit(type="other")
    answer = await caller.workers.Claim(pb.ClaimRequest(worker=worker, request=1, slots=10, types={TYPE: 1}))
    assert sorted(task.type for task in answer.tasks) == [TYPE, "other", "other", "other"]


@pytest.mark.parametrize(
    ("fields", "code", "reason"),
    [
        ({"worker": ""}, Code.INVALID_ARGUMENT, "worker_required"),
        ({"worker": "remote--0123456789abcdef"}, Code.NOT_FOUND, "unknown_worker"),
        ({"worker": "somebody"}, Code.NOT_FOUND, "unknown_worker"),
        ({"slots": 0}, Code.INVALID_ARGUMENT, "out_of_range"),
        ({"slots": 1_001}, Code.INVALID_ARGUMENT, "out_of_range"),
        ({"request": 0}, Code.INVALID_ARGUMENT, "out_of_range"),
        ({"request": 1 << 60}, Code.INVALID_ARGUMENT, "out_of_range"),
        ({"types": {"No Name": 1}}, Code.INVALID_ARGUMENT, "invalid_name"),
        ({"types": {"a": -1}}, Code.INVALID_ARGUMENT, "out_of_range"),
    ],
)
async def test_claims_that_cannot_be(caller: Client, fields: dict[str, Any], code: grpc.StatusCode, reason: str) -> None:
    given = {"worker": await caller.join(), "request": 1, "slots": 1, **fields}
    await refused(caller.workers.Claim(pb.ClaimRequest(**given)), code, reason)


# Streams of claims


async def test_a_stream_gives_as_many_tasks_as_there_is_credit_for(caller: Client) -> None:
    worker = await caller.join()
    ids = [await caller.submit() for _ in range(5)]
    stream = caller.workers.ClaimStream(timeout=HANGS)
    await stream.write(pb.ClaimCredit(worker=worker, credit=2))
    tasks = await read(stream, 2)
    await stream.write(pb.ClaimCredit(credit=2))
    tasks += await read(stream, 2)
    for task in tasks:
        assert not (await finish(caller, worker, task, completed=pb.Completed())).refused
    await stream.write(pb.ClaimCredit(credit=1))
    await stream.done_writing()
    tasks += await read(stream, 1)
    assert await stream.read() is grpc.aio.EOF
    assert [task.id for task in tasks] == ids


async def read(stream: Any, n: int) -> list[pb.ClaimedTask]:
    tasks: list[pb.ClaimedTask] = []
    while len(tasks) < n:
        response = await stream.read()
        assert isinstance(response, pb.ClaimResponse)
        tasks += response.tasks
    assert len(tasks) == n
    return tasks


async def test_what_a_broken_stream_had_on_its_way_comes_again(caller: Client) -> None:
    worker = await caller.join()
    id = await caller.submit()
    first = caller.workers.ClaimStream(timeout=HANGS)
    await first.write(pb.ClaimCredit(worker=worker, credit=1))
    [task] = await read(first, 1)
    first.cancel()
    again = caller.workers.ClaimStream(timeout=HANGS)
    await again.write(pb.ClaimCredit(worker=worker, request=0, credit=1))
    response = await again.read()
    assert isinstance(response, pb.ClaimResponse)
    assert (response.request, [(one.id, one.token) for one in response.tasks]) == (1, [(id, task.token)])


async def test_streams_that_cannot_be(caller: Client) -> None:
    stream = caller.workers.ClaimStream(timeout=HANGS)
    await stream.done_writing()
    await refused(stream.read(), Code.INVALID_ARGUMENT, "worker_required")
    worker = await caller.join()
    stream = caller.workers.ClaimStream(timeout=HANGS)
    await stream.write(pb.ClaimCredit(worker=worker, credit=-1))
    await refused(stream.read(), Code.INVALID_ARGUMENT, "out_of_range")
    stream = caller.workers.ClaimStream(timeout=HANGS)
    await stream.write(pb.ClaimCredit(worker=worker))
    await stream.write(pb.ClaimCredit(credit=5_000))
    await refused(stream.read(), Code.INVALID_ARGUMENT, "out_of_range")


# While it runs


async def test_a_beat_tells_what_to_stop(caller: Client) -> None:
    worker = await caller.join()
    held, cancelled = await caller.submit(), await caller.submit()
    first, second = await caller.claim(worker, slots=2)
    answer = await caller.tasks.Cancel(pb.CancelRequest(id=cancelled))
    assert (answer.requested, answer.done, answer.state) == (1, 0, pb.STATE_RUNNING)
    tokens = {first.id: first.token, second.id: second.token}
    beat = await caller.workers.Heartbeat(pb.HeartbeatRequest(worker=worker, request=1, leases=[*tokens.values(), 999_999]))
    assert (beat.known, list(beat.cancelled)) == (True, [cancelled])
    assert 999_999 in beat.lost
    finished = await finish(caller, worker, second if second.id == cancelled else first, cancelled=pb.Cancelled())
    assert not finished.refused
    assert (await caller.get(cancelled)).state == pb.STATE_CANCELLED
    assert (await caller.get(held)).state == pb.STATE_RUNNING


async def test_a_lease_that_is_not_named_is_given_back(caller: Client) -> None:
    worker = await caller.join()
    id = await caller.submit()
    [task] = await caller.claim(worker)
    await caller.workers.Heartbeat(pb.HeartbeatRequest(worker=worker, request=1))
    refusal = (await finish(caller, worker, task, completed=pb.Completed())).refused[0]
    assert (refusal.task, refusal.token, refusal.code) == (id, task.token, "stale_lease")
    assert (await caller.get(id)).state == pb.STATE_PENDING


async def test_a_beat_of_a_worker_that_has_left(caller: Client) -> None:
    worker = await caller.join()
    await caller.workers.Leave(pb.LeaveRequest(worker=worker))
    assert not (await caller.workers.Heartbeat(pb.HeartbeatRequest(worker=worker))).known


async def test_steps_and_progress_are_kept_for_the_next_attempt(caller: Client) -> None:
    worker = await caller.join()
    id = await caller.submit()
    [task] = await caller.claim(worker)
    steps = [
        pb.Step(task=id, token=task.token, name="fetched", value=b'{"rows": 3}'),
        pb.Step(task=id, token=task.token, progress=pb.Progress(value=0.5, message="half")),
        pb.Step(task=id, token=task.token + 7, name="late"),
        pb.Step(task=id, token=task.token, started_after=Duration(nanos=1_000_000)),
    ]
    assert not (await caller.get(id)).HasField("started_at")
    answer = await caller.workers.Checkpoint(pb.CheckpointRequest(worker=worker, steps=steps))
    assert [(refusal.token, refusal.code) for refusal in answer.refused] == [(task.token + 7, "stale_lease")]
    assert (await caller.get(id)).progress.message == "half"
    assert (await caller.get(id)).HasField("started_at")
    await finish(caller, worker, task, released=pb.Released())
    [again] = await caller.claim(worker, 2, wait=20)
    assert dict(again.checkpoints) == {"fetched": b'{"rows":3}'}


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"task": "", "name": "a"}, "id_required"),
        ({"task": "x", "name": "a"}, "invalid_id"),
        ({}, "name_required"),
        ({"name": "No Name"}, "invalid_name"),
        ({"name": "a", "value": b"{"}, "invalid_json"),
        ({"progress": pb.Progress(value=float("nan"))}, "out_of_range"),
    ],
)
async def test_steps_that_cannot_be(caller: Client, fields: dict[str, Any], reason: str) -> None:
    worker = await caller.join()
    given = {"task": await caller.submit(), "token": 1, **fields}
    await refused(caller.workers.Checkpoint(pb.CheckpointRequest(worker=worker, steps=[pb.Step(**given)])), Code.INVALID_ARGUMENT, reason)


# Ending


async def test_every_ending(caller: Client) -> None:
    worker = await caller.join()
    for _ in range(6):
        await caller.submit()
    tasks = await caller.claim(worker, slots=6)
    later = pb.Failed(error=pb.Error(code="Busy"))
    later.retry_after.FromSeconds(500)
    snoozed = pb.Snoozed()
    snoozed.delay.FromSeconds(500)
    endings: list[dict[str, Any]] = [
        {"completed": pb.Completed()},
        {"failed": later},
        {"failed": pb.Failed(error=pb.Error(code="Broken"), permanent=True)},
        {"snoozed": snoozed},
        {"released": pb.Released()},
        {"cancelled": pb.Cancelled()},
    ]
    outcomes = [pb.Outcome(task=task.id, token=task.token, **ending) for task, ending in zip(tasks, endings, strict=True)]
    assert not (await caller.workers.Finish(pb.FinishRequest(worker=worker, outcomes=outcomes))).refused
    found = [await caller.get(task.id) for task in tasks]
    states = ["COMPLETED", "RETRYING", "DEAD", "SCHEDULED", "PENDING", "CANCELLED"]
    assert [pb.State.Name(task.state) for task in found] == [f"STATE_{state}" for state in states]
    assert found[0].result == b"null"
    assert 490 <= found[1].run_at.seconds - found[1].updated_at.seconds <= 510
    assert found[2].error.code == "Broken"


async def test_retries_end_by_the_policy_of_the_task(caller: Client) -> None:
    worker = await caller.join()
    once = new()
    once.retry.max_retries = 0
    id = await caller.submit(once)
    [task] = await caller.claim(worker)
    await finish(caller, worker, task, failed=pb.Failed())
    found = await caller.get(id)
    assert (found.state, found.error.code) == (pb.STATE_DEAD, "failed")


async def test_what_a_worker_writes_is_bounded(caller: Client) -> None:
    worker = await caller.join()
    id = await caller.submit()
    [task] = await caller.claim(worker)
    error = pb.Error(code="c" * 1_000, message="m" * 100_000, traceback="t" * 100_000 + "end")
    await finish(caller, worker, task, failed=pb.Failed(error=error, permanent=True))
    found = await caller.get(id)
    assert (len(found.error.code), len(found.error.message), len(found.error.traceback)) == (128, 2_000, 16_001)
    assert found.error.traceback.endswith("end")


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"task": "", "completed": pb.Completed()}, "id_required"),
        ({"task": "x", "completed": pb.Completed()}, "invalid_id"),
        ({}, "ending_required"),
        ({"completed": pb.Completed(result=b"NaN")}, "not_finite"),
        ({"completed": pb.Completed(result=b'"' + b"x" * 300_000 + b'"')}, "payload_too_large"),
    ],
)
async def test_endings_that_cannot_be(caller: Client, fields: dict[str, Any], reason: str) -> None:
    worker = await caller.join()
    id = await caller.submit()
    [task] = await caller.claim(worker)
    given = {"task": id, "token": task.token, **fields}
    await refused(caller.workers.Finish(pb.FinishRequest(worker=worker, outcomes=[pb.Outcome(**given)])), Code.INVALID_ARGUMENT, reason)
    assert (await caller.get(id)).state == pb.STATE_RUNNING


async def test_who_leaves_gives_back_what_it_holds(caller: Client) -> None:
    worker = await caller.join()
    id = await caller.submit()
    await caller.claim(worker)
    await caller.workers.Leave(pb.LeaveRequest(worker=worker))
    assert (await caller.get(id)).state == pb.STATE_PENDING


async def test_a_worker_belongs_to_the_key_that_joined(house: House) -> None:
    mine, other = await house.key("worker", "submit", "read"), await house.key("worker")
    async with client(house, mine) as first, client(house, other) as second:
        worker = await first.join()
        await refused(second.claim(worker), Code.NOT_FOUND, "unknown_worker")
        await refused(second.workers.Leave(pb.LeaveRequest(worker=worker), metadata=second.metadata), Code.NOT_FOUND, "unknown_worker")
        await first.submit()
        assert len(await first.claim(worker)) == 1
