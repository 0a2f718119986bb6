"""The service Tasks: every RPC, over a real store."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from taskmill.server.grpc.v1 import taskmill_pb2 as pb
from taskmill.task import new_id
from tests.surfaces.grpc.houses import HANGS, Client, House, client, details, housed, new, refused

Code = grpc.StatusCode


# Submitting


async def test_a_task_is_submitted_and_read_back_whole(caller: Client) -> None:
    first = await caller.submit()
    task = new(priority=pb.PRIORITY_HIGH, headers={"traceparent": "00-1"}, tags={"shop": "eu"}, idempotency_key="k1", order_key="ann", fair_key="ann")
    task.retry.CopyFrom(pb.Retry(kind="fixed", max_retries=7, rules=[pb.RetryRule(error="Busy", action="fail")]))
    task.retry.base.FromSeconds(3)
    task.timeout.FromSeconds(9)
    task.delay.FromSeconds(3_600)
    task.unique.key = "only"
    task.max_crashes = 0
    task.after.add(task=first, on_failure=pb.ON_FAILURE_IGNORE)
    id = await caller.submit(task)
    got = await caller.get(id)
    assert (got.id, got.type, got.queue, got.payload) == (id, "mail.send", "mail", b'{"to":"ann"}')
    assert (got.priority, got.state, got.open_edges) == (pb.PRIORITY_HIGH, pb.STATE_WAITING, 1)
    assert (dict(got.headers), dict(got.tags)) == ({"traceparent": "00-1"}, {"shop": "eu"})
    assert (got.retry.kind, got.retry.max_retries, got.retry.base.seconds, got.retry.rules[0].error) == ("fixed", 7, 3, "Busy")
    assert (got.timeout.seconds, got.max_crashes, got.unique.key, got.unique.until) == (9, 0, "only", "ended")
    assert (got.idempotency_key, got.order_key, got.fair_key) == ("k1", "ann", "ann")
    assert got.run_at.seconds - got.created_at.seconds >= 3_599
    assert not got.HasField("expires_at")
    assert not got.HasField("error")


async def test_the_same_key_is_one_task(caller: Client) -> None:
    request = pb.SubmitRequest(task=new(idempotency_key="once"))
    first = (await caller.tasks.Submit(request)).submitted
    again = (await caller.tasks.Submit(request)).submitted
    assert (first.status, again.status) == (pb.SUBMIT_STATUS_CREATED, pb.SUBMIT_STATUS_DUPLICATE)
    assert again.id == first.id
    other = pb.SubmitRequest(task=new(idempotency_key="once", payload=b"1"))
    error = await refused(caller.tasks.Submit(other), Code.FAILED_PRECONDITION)
    assert first.id in str(error.trailing_metadata())


async def test_each_task_of_a_batch_has_its_own_answer(caller: Client) -> None:
    own = new_id()
    tasks = [new(), new(payload=b"{"), new(type="No Name"), new(id=own), new(id=own, payload=b"2"), new(type="unheard", queue=""), new(priority=99)]
    answers = (await caller.tasks.SubmitBatch(pb.SubmitBatchRequest(tasks=tasks))).answers
    created, refusal = pb.SUBMIT_STATUS_CREATED, pb.SUBMIT_STATUS_REFUSED
    assert [answer.status for answer in answers[:4]] == [created, refusal, refusal, created]
    assert [answer.problem.code for answer in answers] == ["", "invalid_json", "invalid_name", "", answers[4].problem.code, "unknown_type", "unknown_enum"]
    assert (answers[1].problem.field, answers[2].problem.field, answers[6].problem.field) == ("payload", "type", "priority")
    assert answers[3].id == answers[4].id == own
    assert answers[1].problem.hint
    listed = await caller.tasks.List(pb.ListRequest())
    assert {task.id for task in listed.tasks} == {answers[0].id, own}


async def test_a_batch_as_large_as_may_be(caller: Client, house: House) -> None:
    answers = (await caller.tasks.SubmitBatch(pb.SubmitBatchRequest(tasks=[new(payload=b"1")] * 10_000), timeout=HANGS)).answers
    assert len({answer.id for answer in answers}) == 10_000
    assert {answer.status for answer in answers} == {pb.SUBMIT_STATUS_CREATED}
    assert await house.service.operations.count() == 10_000


@pytest.mark.parametrize(("n", "reason"), [(0, "batch_empty"), (10_001, "batch_too_large")])
async def test_a_batch_of_a_size_that_cannot_be(caller: Client, n: int, reason: str) -> None:
    error = await refused(caller.tasks.SubmitBatch(pb.SubmitBatchRequest(tasks=[pb.NewTask()] * n)), Code.INVALID_ARGUMENT, reason)
    assert "tasks" in str(error.details())


async def test_a_stream_answers_every_task_in_order(caller: Client, house: House) -> None:
    ids = [new_id() for _ in range(2_500)]

    async def requests() -> AsyncIterator[pb.SubmitBatchRequest]:
        for start in range(0, len(ids), 50):
            yield pb.SubmitBatchRequest(tasks=[new(id=id) for id in ids[start : start + 50]])
        yield pb.SubmitBatchRequest(tasks=[new(payload=b"nothing")])
        yield pb.SubmitBatchRequest(tasks=[new(id=ids[0])], durability=pb.DURABILITY_LOCAL)

    answers = [answer async for response in caller.tasks.SubmitStream(requests(), timeout=HANGS) for answer in response.answers]
    assert [answer.id for answer in answers[:2_500]] == ids
    assert (answers[2_500].status, answers[2_500].problem.code) == (pb.SUBMIT_STATUS_REFUSED, "invalid_json")
    assert (answers[2_501].status, len(answers)) == (pb.SUBMIT_STATUS_DUPLICATE, 2_502)
    assert await house.service.operations.count() == 2_500


async def test_a_stream_answers_while_it_is_open(caller: Client) -> None:
    stream = caller.tasks.SubmitStream(timeout=HANGS)
    for _ in range(3):
        await stream.write(pb.SubmitBatchRequest(tasks=[new(), new()]))
        response = await stream.read()
        assert isinstance(response, pb.SubmitBatchResponse)
        assert [answer.status for answer in response.answers] == [pb.SUBMIT_STATUS_CREATED] * 2
    await stream.done_writing()
    assert await stream.read() is grpc.aio.EOF
    assert await stream.code() is Code.OK


async def test_a_wrong_message_ends_a_stream_behind_the_answers_it_owes(caller: Client) -> None:
    stream = caller.tasks.SubmitStream(timeout=HANGS)
    await stream.write(pb.SubmitBatchRequest(tasks=[new()]))
    await stream.write(pb.SubmitBatchRequest())
    response = await stream.read()
    assert isinstance(response, pb.SubmitBatchResponse)
    assert response.answers[0].status == pb.SUBMIT_STATUS_CREATED
    await refused(stream.read(), Code.INVALID_ARGUMENT, "batch_empty")


# Looking


async def test_get_waits_for_the_end(caller: Client) -> None:
    id = await caller.submit()
    worker = await caller.join()
    request = pb.GetRequest(id=id)
    request.wait.FromSeconds(50)
    waiting = asyncio.ensure_future(caller.tasks.Get(request, timeout=HANGS))
    [claimed] = await caller.claim(worker)
    done = pb.Outcome(task=id, token=claimed.token, completed=pb.Completed(result=b'{"sent":true}'))
    await caller.workers.Finish(pb.FinishRequest(worker=worker, outcomes=[done]))
    task = await waiting
    assert (task.state, task.result) == (pb.STATE_COMPLETED, b'{"sent":true}')
    assert task.HasField("finished_at")


async def test_get_answers_a_task_as_it_is_shortly_before_the_deadline(caller: Client) -> None:
    request = pb.GetRequest(id=await caller.submit())
    request.wait.FromSeconds(50)
    assert (await caller.tasks.Get(request, timeout=3.0)).state == pb.STATE_PENDING


async def test_attempts_are_shown_where_they_are_asked_for(caller: Client) -> None:
    id = await caller.submit()
    worker = await caller.join()
    [claimed] = await caller.claim(worker)
    error = pb.Error(code="Busy", message="try later", traceback="line 1")
    await caller.workers.Finish(pb.FinishRequest(worker=worker, outcomes=[pb.Outcome(task=id, token=claimed.token, failed=pb.Failed(error=error))]))
    task = await caller.get(id, attempts=True)
    assert [(one.number, one.worker, one.outcome, one.error.code) for one in task.attempts] == [(1, worker, "failed", "Busy")]
    assert (task.attempts[0].error.message, task.attempts[0].error.traceback, task.state) == ("try later", "line 1", pb.STATE_RETRYING)
    assert not (await caller.get(id)).attempts


@pytest.mark.parametrize(("id", "code", "reason"), [("", Code.INVALID_ARGUMENT, "id_required"), ("x", Code.NOT_FOUND, "not_found")])
async def test_ids_that_are_none(caller: Client, id: str, code: grpc.StatusCode, reason: str) -> None:
    await refused(caller.tasks.Get(pb.GetRequest(id=id)), code, reason)
    await refused(caller.tasks.Cancel(pb.CancelRequest(id=id)), code, reason)


async def test_lists_by_filter_in_pages(caller: Client) -> None:
    ids = [await caller.submit(tags={"n": str(number % 2)}, payload=b'"%d"' % number) for number in range(6)]
    request = pb.ListRequest(filter=pb.Filter(tags={"n": "1"}, queues=["mail"], types=["mail.send"], states=[pb.STATE_PENDING]), page_size=2)
    first = await caller.tasks.List(request)
    assert [task.id for task in first.tasks] == [ids[5], ids[3]]
    assert first.tasks[0].payload == b""
    request.cursor, request.payloads = first.cursor, True
    rest = await caller.tasks.List(request)
    assert [(task.id, task.payload) for task in rest.tasks] == [(ids[1], b'"1"')]
    assert rest.cursor == ""
    request = pb.ListRequest()
    request.filter.created_to.CopyFrom((await caller.get(ids[0])).created_at)
    assert not (await caller.tasks.List(request)).tasks


async def test_a_page_with_payloads_fits_into_a_message(caller: Client) -> None:
    large = b'"' + b"x" * 200_000 + b'"'
    ids = [await caller.submit(payload=large) for _ in range(20)]
    request, found = pb.ListRequest(payloads=True), []
    while True:
        page = await caller.tasks.List(request)
        assert page.ByteSize() < 4_000_000
        found += [task.id for task in page.tasks]
        if not page.cursor:
            break
        request.cursor = page.cursor
    assert found == ids[::-1]


# Changing


async def test_one_task_is_cancelled_requeued_and_deleted(caller: Client) -> None:
    id = await caller.submit()
    error = await refused(caller.tasks.Requeue(pb.RequeueRequest(id=id)), Code.FAILED_PRECONDITION, "not_terminal")
    assert details(error)["ErrorInfo"].metadata["state"] == "pending"
    answer = await caller.tasks.Cancel(pb.CancelRequest(id=id))
    assert (answer.matched, answer.done, answer.state) == (1, 1, pb.STATE_CANCELLED)
    await refused(caller.tasks.Requeue(pb.RequeueRequest(id=id, version=answer.version + 5)), Code.ABORTED, "stale_version")
    answer = await caller.tasks.Requeue(pb.RequeueRequest(id=id, version=answer.version, from_start=True))
    assert answer.state == pb.STATE_PENDING
    await refused(caller.tasks.Delete(pb.DeleteRequest(id=id)), Code.FAILED_PRECONDITION, "not_terminal")
    await caller.tasks.Cancel(pb.CancelRequest(id=id))
    await caller.tasks.Delete(pb.DeleteRequest(id=id))
    await refused(caller.tasks.Get(pb.GetRequest(id=id)), Code.NOT_FOUND, "expired")


async def test_many_are_counted_and_then_changed(caller: Client) -> None:
    ids = [await caller.submit(tags={"n": str(number % 2)}) for number in range(6)]
    odd = pb.Filter(tags={"n": "1"})
    assert (await caller.tasks.Cancel(pb.CancelRequest(filter=odd, dry_run=True))).matched == 3
    assert (await caller.get(ids[1])).state == pb.STATE_PENDING
    await refused(caller.tasks.Cancel(pb.CancelRequest(filter=odd)), Code.INVALID_ARGUMENT, "confirm_required")
    assert (await caller.tasks.Cancel(pb.CancelRequest(filter=odd, confirm=True))).done == 3
    answer = await caller.tasks.Delete(pb.DeleteRequest(ids=pb.Ids(ids=ids)))
    assert (answer.matched, answer.done, dict(answer.refused)) == (6, 3, {"not_terminal": 3})
    assert (await caller.tasks.Cancel(pb.CancelRequest(filter=pb.Filter(), confirm=True))).done == 3
    assert (await caller.tasks.Requeue(pb.RequeueRequest(filter=pb.Filter(states=[pb.STATE_CANCELLED]), confirm=True))).done == 3


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, "which_required"),
        ({"id": "x", "dry_run": True}, "contradiction"),
        ({"filter": pb.Filter(), "version": 3}, "contradiction"),
        ({"ids": pb.Ids()}, "batch_empty"),
        ({"ids": pb.Ids(ids=[""])}, "invalid_id"),
        ({"filter": pb.Filter()}, "confirm_required"),
        ({"ids": pb.Ids(ids=["x"])}, "invalid_id"),
        ({"filter": pb.Filter(states=[77])}, "unknown_enum"),  # type: ignore[list-item]
        ({"filter": pb.Filter(queues=["No Name"])}, "invalid_name"),
        ({"filter": pb.Filter(tags={"__proto__": "x"})}, "invalid_name"),
    ],
)
async def test_changes_that_cannot_be_meant(caller: Client, fields: dict[str, Any], reason: str) -> None:
    await refused(caller.tasks.Cancel(pb.CancelRequest(**fields)), Code.INVALID_ARGUMENT, reason)
    await refused(caller.tasks.Delete(pb.DeleteRequest(**fields)), Code.INVALID_ARGUMENT, reason)


# What happens


async def test_a_watcher_hears_what_happens_to_the_tasks_it_wants(caller: Client, house: House) -> None:
    stream = caller.tasks.Watch(pb.WatchRequest(events=["task.submitted", "task.cancelled"], queues=["mail"]), timeout=HANGS)
    ready = await stream.read()
    assert isinstance(ready, pb.Event)
    assert ready.type == "ready"
    await caller.submit(queue="other")
    id = await caller.submit()
    await caller.tasks.Cancel(pb.CancelRequest(id=id))
    heard = [await stream.read() for _ in range(2)]
    assert [(event.type, id.encode() in event.data) for event in heard if isinstance(event, pb.Event)] == [("task.submitted", True), ("task.cancelled", True)]
    stream.cancel()
    async with asyncio.timeout(HANGS):
        while house.service.hub.listeners:  # noqa: ASYNC110 - the hub tells nobody when a listener goes
            await asyncio.sleep(0.01)


async def test_watching_goes_on_behind_the_last_event_that_was_heard(caller: Client) -> None:
    watching = pb.WatchRequest(events=["task.submitted"], queues=["mail"])
    stream = caller.tasks.Watch(watching, timeout=HANGS)
    ready = await _event(stream)
    assert ready.type == "ready"
    first = await caller.submit()
    heard = await _event(stream)
    assert (json.loads(heard.data)["task_id"], heard.id != ready.id) == (first, True)
    stream.cancel()
    missed = [await caller.submit() for _ in range(2)]
    watching.resume_after = heard.id
    again = caller.tasks.Watch(watching, timeout=HANGS)
    assert (await _event(again)).id == heard.id  # ready: what follows that comes now
    assert [json.loads((await _event(again)).data)["task_id"] for _ in missed] == missed
    again.cancel()
    watching.resume_after = "0197d82cba37-1"
    elsewhere = caller.tasks.Watch(watching, timeout=HANGS)
    ready, told = await _event(elsewhere), await _event(elsewhere)
    assert (ready.type, told.type, json.loads(told.data)) == ("ready", "resync", {"reason": "reconnected"})
    last = await caller.submit()
    assert json.loads((await _event(elsewhere)).data)["task_id"] == last
    elsewhere.cancel()


async def _event(stream: Any) -> pb.Event:
    event = await stream.read()
    assert isinstance(event, pb.Event)
    return event


async def test_a_watch_that_cannot_be_meant(caller: Client) -> None:
    await refused(caller.tasks.Watch(pb.WatchRequest(events=["task.complete"])).read(), Code.INVALID_ARGUMENT, "unknown_event")
    await refused(caller.tasks.Watch(pb.WatchRequest(tasks=["x"])).read(), Code.INVALID_ARGUMENT, "invalid_id")


# On other stores


@pytest.mark.parametrize("store", ["postgres_url", "redis_url"])
async def test_tasks_go_through_every_store(store: str, request: pytest.FixtureRequest, tmp_path: Any) -> None:
    async with housed(request.getfixturevalue(store), tmp_path) as house, client(house) as caller:
        answers = (await caller.tasks.SubmitBatch(pb.SubmitBatchRequest(tasks=[new(), new(payload=b"["), new()]))).answers
        assert [answer.status for answer in answers] == [pb.SUBMIT_STATUS_CREATED, pb.SUBMIT_STATUS_REFUSED, pb.SUBMIT_STATUS_CREATED]
        worker = await caller.join()
        claimed = await caller.claim(worker, slots=10, wait=20)
        assert {task.id for task in claimed} == {answers[0].id, answers[2].id}
        good, bad = claimed
        outcomes = [
            pb.Outcome(task=good.id, token=good.token, completed=pb.Completed(result=b"[1]")),
            pb.Outcome(task=bad.id, token=bad.token, failed=pb.Failed(error=pb.Error(code="No\0", message="nul \0 in it"), permanent=True)),
            pb.Outcome(task=good.id, token=good.token + 1_000, released=pb.Released()),
        ]
        finished = await caller.workers.Finish(pb.FinishRequest(worker=worker, outcomes=outcomes))
        assert [(refusal.task, refusal.code) for refusal in finished.refused] == [(good.id, "stale_lease")]
        assert (await caller.get(good.id)).result == b"[1]"
        dead = await caller.get(bad.id)
        assert (dead.state, dead.error.code, dead.error.message) == (pb.STATE_DEAD, "No\\0", "nul \\0 in it")
