"""Queues, types, schedules, workers, limits, leader, engine and scale over HTTP: each verb on a real store, and what it refuses."""

from __future__ import annotations

import pytest

from taskmill.clock import SystemClock, instant
from taskmill.engine import Ending, Joining
from taskmill.operations import ROLES
from taskmill.task import TypeSettings
from taskmill.version import __version__
from tests.surfaces.api import Api

CRON = {"type": "report", "cron": "0 9 * * MON-FRI", "queue": "slow"}


# Queues and types


async def test_queues_with_their_numbers(api: Api) -> None:
    await api.submit("charge", "charge", queue="mail")
    await api.end(Ending.DEAD, "charge", queue="mail")
    await api.submit("charge", queue="mail")
    found = await api.ok("GET", "/api/v1/queues/mail")
    assert (found["counts"]["pending"], found["counts"]["dead"], found["paused"]) == (1, 2, False)
    assert [queue["name"] for queue in (await api.ok("GET", "/api/v1/queues"))["queues"]] == ["mail"]


async def test_a_queue_is_paused_and_resumed(api: Api) -> None:
    await api.submit("charge", queue="mail")
    pause = "/api/v1/queues/mail:pause"
    assert await api.ok("POST", pause, {"reason": "provider is down"}) == {"name": "mail", "paused": True, "changed": True}
    assert (await api.ok("POST", pause))["changed"] is False
    assert (await api.ok("POST", pause, {"reason": "still down"}))["changed"] is False
    assert (await api.ok("GET", "/api/v1/queues/mail"))["reason"] == "still down"
    assert await api.ok("POST", "/api/v1/queues/mail:resume") == {"name": "mail", "paused": False, "changed": True}
    assert (await api.ok("POST", "/api/v1/queues/mail:resume"))["changed"] is False


async def test_a_queue_is_purged_after_a_count(api: Api) -> None:
    await api.submit("charge", "charge", queue="mail")
    purge = "/api/v1/queues/mail:purge"
    assert (await api.refused(422, "POST", purge)).code == "confirm_required"
    assert await api.ok("POST", purge, {"dry_run": True}) == {"matched": 2, "done": 0, "requested": 0, "refused": {}, "dry_run": True}
    assert (await api.ok("GET", "/api/v1/tasks:count?queue=mail&state=pending"))["count"] == 2
    assert (await api.ok("POST", purge, {"confirm": True}))["done"] == 2
    assert (await api.ok("GET", "/api/v1/tasks?queue=mail"))["tasks"] == []


async def test_a_type_is_paused_and_resumed(api: Api) -> None:
    await api.join("anna", "charge", queue="mail")
    assert (await api.ok("POST", "/api/v1/types/charge:pause", {"reason": "no"}))["changed"] is True
    [found] = (await api.ok("GET", "/api/v1/types"))["types"]
    assert (found["name"], found["paused"], found["reason"], found["workers"], found["settings"]["queue"]) == ("charge", True, "no", 1, "mail")
    assert (await api.ok("POST", "/api/v1/types/charge:resume"))["changed"] is True


@pytest.mark.parametrize("path", ["queues/mial", "queues/mial:pause", "queues/mial:resume", "queues/mial:purge", "types/mial:pause", "types/mial:resume"])
async def test_a_name_that_nobody_knows(api: Api, path: str) -> None:
    await api.join("anna", "mail", queue="mail")
    body = {"confirm": True} if path.endswith("purge") else None
    said = await api.refused(404, "POST" if ":" in path else "GET", f"/api/v1/{path}", body)
    assert said.code in {"unknown_queue", "unknown_type"}
    assert said.data["hint"] == "did you mean 'mail'?"
    bad = path.replace("mial", "M%20l")
    assert (await api.refused(422, "POST" if ":" in bad else "GET", f"/api/v1/{bad}", body)).code == "invalid_name"


# Dead letters


async def test_dead_letters_are_listed_requeued_and_deleted(api: Api) -> None:
    await api.submit("charge", "report", "mail")
    dead = await api.end(Ending.DEAD, "charge", "report", "mail")
    [done] = await api.submit("done")
    await api.end(Ending.COMPLETED, "done")
    page = await api.ok("GET", "/api/v1/dead?limit=2")
    rest = await api.ok("GET", f"/api/v1/dead?limit=2&cursor={page['cursor']}")
    assert {task["id"] for task in [*page["tasks"], *rest["tasks"]]} == set(dead)
    assert page["tasks"][0]["error"]["code"] == "ValueError"
    assert [task["type"] for task in (await api.ok("GET", "/api/v1/dead?type=charge"))["tasks"]] == ["charge"]
    assert (await api.refused(422, "GET", "/api/v1/dead?state=completed")).code == "unknown_field"
    assert (await api.refused(422, "POST", "/api/v1/dead:requeue", {"filter": {"type": ["charge"]}})).code == "confirm_required"
    assert (await api.ok("POST", "/api/v1/dead:requeue", {"filter": {}, "dry_run": True}))["matched"] == 3
    assert (await api.ok("POST", "/api/v1/dead:requeue", {"filter": {"type": ["charge"]}, "confirm": True}))["done"] == 1
    left = [task["id"] for task in (await api.ok("GET", "/api/v1/dead"))["tasks"]]
    tally = await api.ok("POST", "/api/v1/dead:delete", {"ids": [*left, done, "00000000-0000-4000-8000-000000000000"]})
    assert (tally["done"], tally["refused"], tally["matched"]) == (2, {"not_dead": 1, "not_found": 1}, 4)
    assert (await api.ok("GET", f"/api/v1/tasks/{done}"))["state"] == "completed"


# Schedules


async def test_the_life_of_a_schedule(api: Api) -> None:
    path = "/api/v1/schedules/morning"
    made = await api("PUT", path, CRON, headers={"If-None-Match": "*"})
    assert (made.status, made.headers["etag"]) == (201, '"o1"')
    assert [schedule["name"] for schedule in (await api.ok("GET", "/api/v1/schedules"))["schedules"]] == ["morning"]
    found = await api("GET", path)
    assert found.headers["etag"] == '"o1"'
    assert found.data["schedule"]["cron"] == {"expression": "0 9 * * MON-FRI"}
    assert len(found.data["next"]) == 5
    assert instant(found.data["next"][0]) > SystemClock().now()

    triggered = await api("POST", f"{path}:trigger")
    assert triggered.status == 202
    task = await api.ok("GET", triggered.headers["location"])
    assert (task["type"], task["queue"]) == ("report", "slow")

    assert (await api.ok("POST", f"{path}:pause", {"reason": "holidays"}))["changed"] is True
    assert (await api.ok("GET", path))["paused"] is True
    assert (await api.ok("POST", f"{path}:resume"))["changed"] is True

    assert (await api("DELETE", path)).status == 204
    for method, more, body in (("GET", "", None), ("DELETE", "", None), ("POST", ":pause", None), ("POST", ":resume", None), ("POST", ":trigger", None)):
        assert (await api.refused(404, method, path + more, body)).code == "unknown_schedule"


async def test_a_schedule_is_changed_only_as_it_was_seen(api: Api) -> None:
    path = "/api/v1/schedules/morning"
    assert (await api.refused(412, "PUT", path, CRON, headers={"If-Match": '"o1"'})).code == "precondition_failed"
    await api.ok("PUT", path, CRON)
    hourly = {**CRON, "cron": {"expression": "@hourly", "timezone": "Europe/Paris"}}
    assert (await api.refused(412, "PUT", path, hourly, headers={"If-None-Match": "*"})).code == "precondition_failed"
    changed = await api("PUT", path, hourly, headers={"If-Match": '"o1"'})
    assert (changed.status, changed.headers["etag"]) == (200, '"o2"')
    for stale in ('"o1"', '"c2"', 'W/"o2"', "o2", '"o1", "o3"'):
        assert (await api.refused(412, "PUT", path, CRON, headers={"If-Match": stale})).code == "precondition_failed"
        assert (await api.refused(412, "DELETE", path, headers={"If-Match": stale})).code == "precondition_failed"
    assert (await api("PUT", path, CRON, headers={"If-Match": '"o1", "o2"'})).headers["etag"] == '"o3"'
    assert (await api("PUT", path, hourly, headers={"If-Match": "*"})).headers["etag"] == '"o4"'
    both = await api.refused(422, "PUT", path, CRON, headers={"If-Match": "*", "If-None-Match": "*"})
    assert both.code == "contradiction"
    assert (await api.refused(422, "PUT", path, CRON, headers={"If-None-Match": '"o4"'})).code == "invalid_value"
    assert (await api("DELETE", path, headers={"If-Match": '"o4"'})).status == 204


async def test_what_code_declares_is_seen_and_stood_over(api: Api) -> None:
    declared = {"nightly": b'{"type": "report", "cron": {"expression": "@daily"}}'}
    await api.engine.join(Joining(worker="anna", queues=("default",), types={"report": TypeSettings()}, app="shop", schedules=declared))
    path = "/api/v1/schedules/nightly"
    assert (await api("GET", path)).headers["etag"] == '"c1"'
    assert (await api.refused(409, "DELETE", path)).code == "declared"
    assert (await api.refused(412, "PUT", path, CRON, headers={"If-Match": '"o1"'})).code == "precondition_failed"
    put = await api("PUT", path, CRON, headers={"If-Match": '"c1"'})
    assert (put.status, put.headers["etag"]) == (200, '"o1"')
    assert (await api.refused(412, "PUT", path, {**CRON, "cron": "@weekly"}, headers={"If-Match": '"c1"'})).code == "precondition_failed"
    assert (await api("DELETE", path)).status == 204
    assert (await api("GET", path)).headers["etag"] == '"c1"'


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"cron": "60 * * * *"}, "cron"),
        ({"cron": {"expression": "@daily", "timezone": "Mars/Phobos"}}, "timezone"),
        ({"type": "A b"}, "type"),
        ({"overlap": "never"}, "overlap"),
        ({"priority": 9}, "priority"),
        ({"surprise": 1}, "surprise"),
        ({"expires": 1}, "expires"),
        ({"payload": {"a": "\ud800"}}, "body"),
    ],
)
async def test_a_schedule_that_cannot_be(api: Api, change: dict[str, object], field: str) -> None:
    said = await api("PUT", "/api/v1/schedules/morning", {**CRON, **change})
    assert said.status in {400, 422}, said
    assert field in said.data["field"] or field in said.data["title"]
    assert (await api.ok("GET", "/api/v1/schedules"))["schedules"] == []


# Workers


async def test_workers_are_seen_and_told(api: Api) -> None:
    await api.join("anna", "charge", queue="mail")
    [worker] = (await api.ok("GET", "/api/v1/workers"))["workers"]
    assert (worker["id"], worker["alive"], worker["queues"], worker["types"], worker["command"]) == ("anna", True, ["mail"], ["charge"], None)
    for verb in ("pause", "quiet", "stop"):
        assert await api.ok("POST", f"/api/v1/workers/anna:{verb}") == {"id": "anna", "command": verb}
        assert (await api.engine.heartbeat("anna", 0, ())).commands == (verb,)
        assert (await api.ok("GET", "/api/v1/workers/anna"))["command"] == verb
    assert await api.ok("POST", "/api/v1/workers/anna:resume") == {"id": "anna", "command": None}
    assert (await api.engine.heartbeat("anna", 0, ())).commands == ()
    assert (await api.refused(404, "GET", "/api/v1/workers/ana")).code == "unknown_worker"
    assert (await api.refused(404, "POST", "/api/v1/workers/ana:stop")).data["hint"] == "did you mean 'anna'?"


# Limits


async def test_the_life_of_a_limit(api: Api) -> None:
    path = "/api/v1/limits/gateway"
    made = await api("PUT", path, {"rate": "100/m", "cap": 5}, headers={"If-None-Match": "*"})
    assert (made.status, made.headers["etag"]) == (201, '"o1"')
    assert made.data["limit"] == {"rate": 100, "window": "1m", "cap": 5}
    assert (await api.refused(412, "PUT", path, {"cap": 6}, headers={"If-None-Match": "*"})).code == "precondition_failed"
    changed = await api("PUT", path, {"cap": 6}, headers={"If-Match": '"o1"'})
    assert (changed.status, changed.data["limit"]) == (200, {"window": "1s", "cap": 6})
    assert (await api.refused(412, "DELETE", path, headers={"If-Match": '"o1"'})).code == "precondition_failed"
    assert [limit["name"] for limit in (await api.ok("GET", "/api/v1/limits"))["limits"]] == ["gateway"]
    assert (await api("GET", path)).headers["etag"] == '"o2"'
    assert (await api("DELETE", path)).status == 204
    assert (await api.refused(404, "GET", path)).code == "unknown_limit"
    assert (await api.refused(404, "DELETE", path)).code == "unknown_limit"


@pytest.mark.parametrize("body", [{}, {"rate": "many"}, {"rate": "0/s"}, {"cap": -1}, {"cap": 1.5}, {"rate": None}, {"window": 3}])
async def test_a_limit_that_cannot_be(api: Api, body: dict[str, object]) -> None:
    await api.refused(422, "PUT", "/api/v1/limits/gateway", body)
    assert (await api.ok("GET", "/api/v1/limits"))["limits"] == []


# The store


async def test_who_leads(api: Api) -> None:
    assert await api.ok("GET", "/api/v1/leader") == {"roles": dict.fromkeys(ROLES)}
    term = await api.engine.lead("schedules", "anna")
    assert term is not None
    assert (await api.ok("GET", "/api/v1/leader"))["roles"] == {"schedules": {"holder": "anna", "term": term.number}, "pruning": None, "outbox": None}


async def test_the_engine(api: Api) -> None:
    found = await api.ok("GET", "/api/v1/engine")
    assert (found["engine"], found["version"], found["durability"]) == ("sqlite", __version__, "fsync")
    assert found["features"]["user_transactions"] is True
    assert "no_live_worker" in {finding["code"] for finding in found["findings"]}


async def test_one_number_to_scale_by(api: Api) -> None:
    await api.submit("charge", "charge", "charge", queue="mail")
    await api.submit("charge", queue="mail", delay=3_600_000_000)
    assert await api.ok("GET", "/api/v1/scale/mail") == {"value": 3}
    assert await api.ok("GET", "/api/v1/scale/mail?per=2") == {"value": 2}
    for bad in ("0", "-1", "x", "1.5"):
        await api.refused(422, "GET", f"/api/v1/scale/mail?per={bad}")
    assert (await api.refused(404, "GET", "/api/v1/scale/mial")).code == "unknown_queue"


# Itself


async def test_the_page_has_nothing_from_elsewhere(api: Api) -> None:
    page = await api("GET", "/docs")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "<script" not in page.text
    assert "http://" not in page.text
    assert "https://" not in page.text
    document = await api.ok("GET", "/openapi.json")
    assert document["openapi"] == "3.1.0"
    for path in document["paths"]:
        assert path in page.text


async def test_no_state_is_changed_by_get(api: Api) -> None:
    await api.submit("charge", queue="mail")
    for verb in ("pause", "resume", "purge"):
        said = await api.refused(405, "GET", f"/api/v1/queues/mail:{verb}")
        assert said.headers["allow"] == "POST"
