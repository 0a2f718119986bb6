"""How attempts of remote workers end, and what they leave behind on the way; each ending on every store that is there."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from taskmill import App, Client
from taskmill.task import new_id
from tests.surfaces.remote.serving import Caller, Remote, Server, serving


@pytest.fixture(params=["sqlite", "postgres", "redis"])
async def server(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Server]:
    store = f"sqlite:///{tmp_path / 'store.db'}" if request.param == "sqlite" else request.getfixturevalue(f"{request.param}_url")
    async with serving(store, tmp_path) as found:
        yield found


@pytest.fixture
def caller(server: Server) -> Caller:
    return server.anybody


@pytest.fixture
async def worker(caller: Caller) -> Remote:
    return await Remote.join(caller, "resize")


async def claimed(caller: Caller, worker: Remote, payload: object = None, **options: object) -> dict[str, Any]:
    id = await caller.submit("resize", payload, queue="jobs", **options)
    task = await worker.one()
    assert task["id"] == id
    return task


async def test_completed(caller: Caller, worker: Remote) -> None:
    task = await claimed(caller, worker)
    answer = await worker.finish(task, "completed", result={"w": [1, "ü"]})
    assert answer.data == {"applied": 1, "refused": 0, "answers": [{"task": task["id"], "token": task["token"], "applied": True}]}
    record = await caller.task(task["id"])
    assert (record["state"], record["result"]) == ("completed", {"w": [1, "ü"]})


async def test_finished_again_the_same_way_is_applied_and_another_way_is_refused(caller: Caller, worker: Remote) -> None:
    task = await claimed(caller, worker)
    for _ in range(3):
        assert (await worker.finish(task, "completed", result=1)).data["applied"] == 1
    answer = await worker.finish(task, "dead", error={"code": "late"})
    assert (answer.status, answer.code, answer.data["task_id"]) == (409, "stale_lease", task["id"])
    assert (await caller.task(task["id"]))["state"] == "completed"


@pytest.mark.parametrize("retries", [0, 1, 3])
async def test_failed_is_what_the_policy_of_the_task_says_however_often_it_is_told(caller: Caller, worker: Remote, retries: int) -> None:
    """The answer of each may be lost: a repeat is no second failure."""
    error = {"code": "no_disk", "message": "it is full", "traceback": "line 1"}
    task = await claimed(caller, worker, retry={"kind": "fixed", "base": 1_000, "max_retries": retries})
    for attempt in range(1, retries + 2):
        for _ in range(3):
            answer = await worker.finish(task, "failed", error=error)
            assert answer.status == 200, answer
        assert (await caller.task(task["id"]))["failures"] == attempt
        if attempt <= retries:
            task = await worker.one()
            assert task["attempt"] == attempt + 1
    record = await caller.task(task["id"])
    assert (record["state"], record["error"]) == ("dead", error)
    assert [attempt["outcome"] for attempt in await caller.attempts(task["id"])] == ["failed"] * (retries + 1)


async def test_failed_with_a_time_of_its_own(caller: Caller, worker: Remote) -> None:
    task = await claimed(caller, worker, retry={"kind": "fixed", "base": 1_000, "max_retries": 1})
    await worker.finish(task, "failed", retry_after="1h", error={"code": "busy"})
    record = await caller.task(task["id"])
    assert record["state"] == "retrying"
    assert await worker.claim() == []


async def test_a_timeout_is_covered_by_the_rules_for_timeouts(caller: Caller, worker: Remote) -> None:
    rules = [{"error": "TimeoutError", "action": "fail"}]
    task = await claimed(caller, worker, retry={"max_retries": 5, "rules": rules})
    await worker.finish(task, "failed", error={"code": "timeout"})
    assert (await caller.task(task["id"]))["state"] == "dead"


@pytest.mark.parametrize(
    ("ending", "more", "state"),
    [
        ("dead", {"error": {"code": "hopeless"}}, "dead"),
        ("snoozed", {"after": "1h"}, "scheduled"),
        ("cancelled", {}, "cancelled"),
        ("released", {}, "pending"),
        ("crashed", {"error": {"code": "segfault"}}, "pending"),
        ("waiting", {"deadline": "1h"}, "waiting"),
    ],
)
async def test_every_other_ending(caller: Caller, worker: Remote, ending: str, more: dict[str, Any], state: str) -> None:
    task = await claimed(caller, worker)
    assert (await worker.finish(task, ending, **more)).status == 200
    assert (await caller.task(task["id"]))["state"] == state


async def test_waiting_for_a_signal_and_for_tasks_that_follow(caller: Caller, worker: Remote) -> None:
    task = await claimed(caller, worker)
    await worker.finish(task, "waiting", signals=["go"])
    await caller.post(f"/api/v1/tasks/{task['id']}:signal", {"name": "go", "data": {"by": "ada"}})
    second = await worker.one()
    assert [(one["name"], one["data"]) for one in second["signals"]] == [("go", {"by": "ada"})]
    child = new_id()
    answer = await worker.finish(second, "waiting", then=[{"type": "resize", "payload": 7, "queue": "jobs", "id": child}])
    assert answer.status == 200
    follower = await worker.one()
    assert (follower["id"], follower["payload"]) == (child, 7)
    await worker.finish(follower, "completed", result="done")
    third = await worker.one()
    assert third["results"] == [{"task": child, "outcome": "completed", "result": "done"}]


async def test_tasks_that_follow_belong_to_the_tenant_of_the_first(server: Server) -> None:
    tenant, hands = await server.caller("submit", tenant="acme"), await server.caller("worker", "read", "read-payload")
    worker = await Remote.join(hands, "resize")
    await tenant.submit("resize", queue="jobs")
    child = new_id()
    task = await worker.one()
    assert task["tenant"] == "acme"
    answer = await worker.finish(task, "completed", then=[{"type": "resize", "payload": None, "queue": "jobs", "id": child}])
    assert answer.status == 200
    assert (await hands.task(child))["tenant"] == "acme"


async def test_checkpoints_and_progress(caller: Caller, worker: Remote) -> None:
    task = await claimed(caller, worker, retry={"kind": "fixed", "base": 1_000, "max_retries": 1})
    entry = {"task": task["id"], "token": task["token"]}
    answer = await worker.ask("checkpoint", entries=[{**entry, "name": "rows", "value": {"n": 5}}, {**entry, "progress": {"value": 0.5, "message": "half"}}])
    assert (answer.status, answer.data["applied"]) == (200, 2)
    assert (await caller.task(task["id"]))["progress"] == {"value": 0.5, "message": "half"}
    await worker.finish(task, "failed", error={"code": "broke"})
    assert (await worker.one())["checkpoints"] == {"rows": {"n": 5}}
    answer = await worker.ask("checkpoint", entries=[{**entry, "name": "late", "value": 1}])
    assert (answer.status, answer.code) == (409, "stale_lease")


async def test_a_claimed_task_has_begun_when_its_worker_says_so(caller: Caller, worker: Remote) -> None:
    task = await claimed(caller, worker)
    before = await caller.task(task["id"])
    assert (before["state"], before["started_at"]) == ("running", None)
    answer = await worker.ask("checkpoint", entries=[{"task": task["id"], "token": task["token"], "started_after": "250ms"}])
    assert (answer.status, answer.data["applied"]) == (200, 1)
    after = await caller.task(task["id"])
    assert after["started_at"] is not None
    assert after["version"] == before["version"]


async def test_each_of_a_batch_is_judged_by_itself(caller: Caller, worker: Remote) -> None:
    tasks = [await claimed(caller, worker) for _ in range(2)]
    stale = {"task": tasks[0]["id"], "token": "1", "ending": "completed"}
    outcomes = [
        {"task": tasks[0]["id"], "token": tasks[0]["token"], "ending": "completed"},
        stale,
        {"task": tasks[1]["id"], "token": tasks[1]["token"], "ending": "finished"},
        {"task": new_id(), "token": "1", "ending": "completed"},
        7,
    ]
    answer = await worker.ask("finish", outcomes=outcomes)
    assert (answer.status, answer.data["applied"], answer.data["refused"]) == (200, 1, 4)
    codes = [one.get("error", {}).get("code") for one in answer.data["answers"]]
    assert codes == [None, "stale_lease", "invalid_value", "not_found", "invalid_value"]
    assert [(await caller.task(task["id"]))["state"] for task in tasks] == ["completed", "running"]
    alone = await worker.ask("finish", outcomes=[stale])
    assert (alone.status, alone.code) == (409, "stale_lease")


async def test_a_cancel_that_was_asked_for_meanwhile_is_told(caller: Caller, worker: Remote) -> None:
    task = await claimed(caller, worker)
    await caller.post(f"/api/v1/tasks/{task['id']}:cancel", {})
    answer = await worker.finish(task, "failed", error={"code": "broke"})
    assert answer.data["answers"][0]["state"] == "cancelled"


@pytest.mark.parametrize(
    ("more", "field", "code"),
    [
        ({"ending": "completed", "error": {"code": "x"}}, "error", "contradiction"),
        ({"ending": "failed", "result": 1}, "result", "contradiction"),
        ({"ending": "completed", "retry_after": "1s"}, "retry_after", "contradiction"),
        ({"ending": "failed", "then": [{"type": "a", "payload": 1}]}, "then", "contradiction"),
        ({"ending": "waiting"}, "signals", "required"),
        ({"ending": "snoozed"}, "after", "required"),
        ({"ending": "snoozed", "after": "-1s"}, "after", "invalid_duration"),
        ({"ending": "completed", "token": "x"}, "token", "invalid_token"),
        ({"ending": "completed", "task": "x"}, "task", "invalid_id"),
        ({"ending": "completed", "result": "x" * 300_000}, "result", "payload_too_large"),
        ({"ending": "completed", "then": [{"payload": 1}]}, "type", "required"),
        ({"ending": "failed", "error": {"message": "x"}}, "error.code", "required"),
        ({"token": "1"}, "ending", "required"),
    ],
)
async def test_outcomes_that_nobody_understands(tmp_path: Path, more: dict[str, Any], field: str, code: str) -> None:
    async with serving(f"sqlite:///{tmp_path / 'store.db'}", tmp_path) as server:
        worker = await Remote.join(server.anybody, "resize")
        task = await claimed(server.anybody, worker)
        answer = await worker.ask("finish", outcomes=[{"task": task["id"], "token": task["token"], **more}])
        assert (answer.code, answer.data["field"]) == (code, field)
        assert answer.status in {413, 422}
        assert (await server.anybody.task(task["id"]))["state"] == "running"


async def test_tokens_of_a_cluster_are_larger_than_a_double_holds_and_survive_as_text(redis_cluster_url: str, tmp_path: Path) -> None:
    async with serving(redis_cluster_url, tmp_path) as server:
        worker = await Remote.join(server.anybody, "resize")
        task = await claimed(server.anybody, worker)
        assert int(task["token"]) > 1 << 53
        assert (await worker.beat(task))["lost"] == []
        assert (await server.anybody.task(task["id"]))["token"] == task["token"]
        async with Client(server.url) as client, App(redis_cluster_url) as app:
            assert await client.get(task["id"]) == await app.operations.get(task["id"])
            assert (await worker.finish(task, "completed")).status == 200
            assert await client.attempts(task["id"]) == await app.engine.attempts(task["id"])
        [attempt] = await server.anybody.attempts(task["id"])
        assert (attempt["outcome"], attempt["token"]) == ("completed", task["token"])
        assert (await server.anybody.task(task["id"]))["state"] == "completed"
