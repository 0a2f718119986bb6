"""Who may do what, for every route: generated from the table of routes, so that none can be added without being in here.

Each route is asked with a key of each single scope, of the whole store, of the tenant whose object is named, and of another tenant. What is expected is
computed from the route alone: the scope it needs, whether it is about the whole store, and whether the object in its path belongs to a tenant.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from taskmill.engine import Ending
from taskmill.server.access import Scope
from taskmill.server.rest import ROUTES
from taskmill.server.routes import Route
from tests.surfaces.api import Api, Said, served

OWN, FOREIGN = "acme", "globex"
WHO = {"whole": None, "own": OWN, "foreign": FOREIGN}
MISSING = "00000000-0000-4000-8000-000000000000"
LEASE = {"task": MISSING, "token": "1"}
CRON = {"type": "mail", "cron": "@daily", "queue": "mail"}


class Ask(NamedTuple):
    """How a route is asked so that whoever may, succeeds."""

    body: object = None
    query: str = ""
    prepare: Callable[[Api], Any] | None = None
    """Makes the object of the path, and answers its name."""
    joins: bool = False
    """The body names a worker, which the same key has to have joined as."""


async def pending(api: Api) -> str:
    [id] = await api.submit("mail", queue="mail", tenant=OWN)
    return id


async def ended(api: Api) -> str:
    id = await pending(api)
    await api.end(Ending.DEAD, "mail", queue="mail")
    return id


async def queue(api: Api) -> str:
    await api.submit("mail", queue="mail", tenant=OWN)
    return "mail"


async def type_(api: Api) -> str:
    await api.join("bob", "mail", queue="mail")
    return "mail"


async def schedule(api: Api) -> str:
    await api.engine.put("schedule", "mail", b'{"type":"mail","cron":{"expression":"@daily"},"queue":"mail"}')
    return "mail"


async def worker(api: Api) -> str:
    await api.join("anna", "mail", queue="mail")
    return "anna"


async def limit(api: Api) -> str:
    await api.engine.put("limit", "mail", b'{"cap":5}')
    return "mail"


async def key(api: Api) -> str:
    return (await api.key("read")).split("_")[1]


ASKS: Mapping[str, Ask] = {
    "submit_task": Ask({"type": "mail", "payload": 1, "queue": "mail"}),
    "submit_batch": Ask({"tasks": [{"type": "mail", "payload": 1, "queue": "mail"}]}),
    "list_tasks": Ask(),
    "count_tasks": Ask(),
    "wait_tasks": Ask({"ids": [MISSING]}),
    "cancel_tasks": Ask({"filter": {"type": ["none"]}, "confirm": True}),
    "requeue_tasks": Ask({"filter": {"type": ["none"]}, "confirm": True}),
    "delete_tasks": Ask({"filter": {"type": ["none"]}, "confirm": True}),
    "cancel_task": Ask({}, prepare=pending),
    "requeue_task": Ask({}, prepare=ended),
    "delete_task": Ask({}, prepare=ended),
    "signal_task": Ask({"name": "go"}, prepare=pending),
    "unseal_task": Ask({}, prepare=pending),
    "get_task": Ask(prepare=pending),
    "get_attempts": Ask(prepare=pending),
    "get_edges": Ask(prepare=pending),
    "list_queues": Ask(),
    "get_queue": Ask(prepare=queue),
    "pause_queue": Ask({"reason": "no"}, prepare=queue),
    "put_queue_settings": Ask({"weights": {"acme": 2}}, prepare=queue),
    "drop_queue_settings": Ask(prepare=queue),
    "resume_queue": Ask(prepare=queue),
    "purge_queue": Ask({"confirm": True}, prepare=queue),
    "list_types": Ask(),
    "pause_type": Ask({}, prepare=type_),
    "resume_type": Ask(prepare=type_),
    "list_dead": Ask(),
    "requeue_dead": Ask({"filter": {"type": ["none"]}, "confirm": True}),
    "delete_dead": Ask({"filter": {"type": ["none"]}, "confirm": True}),
    "list_schedules": Ask(),
    "get_schedule": Ask(prepare=schedule),
    "put_schedule": Ask(CRON, prepare=schedule),
    "delete_schedule": Ask(prepare=schedule),
    "pause_schedule": Ask({}, prepare=schedule),
    "resume_schedule": Ask(prepare=schedule),
    "trigger_schedule": Ask(prepare=schedule),
    "list_workers": Ask(),
    "get_worker": Ask(prepare=worker),
    "pause_worker": Ask(prepare=worker),
    "quiet_worker": Ask(prepare=worker),
    "stop_worker": Ask(prepare=worker),
    "resume_worker": Ask(prepare=worker),
    "list_limits": Ask(),
    "get_limit": Ask(prepare=limit),
    "put_limit": Ask({"cap": 5}, prepare=limit),
    "drop_limit": Ask(prepare=limit),
    "get_leader": Ask(),
    "get_engine": Ask(),
    "get_scale": Ask(prepare=queue),
    "list_keys": Ask(),
    "create_key": Ask({"scopes": ["read"]}),
    "revoke_key": Ask(prepare=key),
    "get_me": Ask(),
    "join_worker": Ask({"types": ["mail"], "queues": ["mail"]}),
    "claim_tasks": Ask({"request": 1}, joins=True),
    "beat_worker": Ask({"request": 0, "leases": []}, joins=True),
    "checkpoint_tasks": Ask({"entries": [LEASE, LEASE]}, joins=True),
    "finish_tasks": Ask({"outcomes": [{**LEASE, "ending": "completed"}] * 2}, joins=True),
    "leave_worker": Ask({}, joins=True),
    "healthz": Ask(),
    "livez": Ask(),
    "readyz": Ask(),
    "startupz": Ask(),
    "metrics": Ask(),
    "openapi": Ask(),
    "docs": Ask(),
}

CELLS = [(route, scope, who) for route in ROUTES for scope in Scope for who in WHO if not (scope is Scope.WORKER and who != "whole")]
"""A worker's key has no tenant: it is refused when it is made (test_keys.py)."""


def expected(route: Route, scope: Scope, who: str) -> tuple[int, str | None]:
    """The status, and the code of a refusal."""
    if route.scope is None:
        return route.status, None
    if scope not in {route.scope, Scope.ADMIN}:
        return 403, "forbidden"
    if route.whole and who != "whole":
        return 403, "tenant_key"
    if who == "foreign" and "{" in route.path:
        return 404, "not_found"
    return route.status, None


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    async with served(tmp_path, keys=True) as found:
        yield found


async def asked(api: Api, route: Route, token: str | None, name: str = "") -> Said:
    ask = ASKS[route.name]
    path = re.sub(r"\{\w+\}", name, route.path)
    body = {} if ask.body is None and route.body is not None else ask.body
    if ask.joins and isinstance(body, dict):
        joined = await api("POST", "/api/v1/worker/join", {"types": ["mail"], "queues": ["mail"]}, key=token)
        body = {**body, "worker": joined.data.get("worker", "remote-nobody")}
    return await api(route.method, path + ask.query, body, key=token)


def test_every_route_is_asked_and_no_other() -> None:
    names = [route.name for route in ROUTES]
    assert len(set(names)) == len(names)
    assert sorted(ASKS) == sorted(names), "each route has its line in ASKS"


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.name)
async def test_each_scope_and_tenant_gets_what_the_table_says(api: Api, route: Route) -> None:
    """One server for all cells of a route; each cell has an object of its own."""
    ask = ASKS[route.name]
    tokens = {(scope, who): await api.key(scope, tenant=WHO[who]) for of, scope, who in CELLS if of is route}
    assert len(tokens) == 6 * 3 - 2
    for (scope, who), token in tokens.items():
        name = "" if ask.prepare is None else await ask.prepare(api)
        said = await asked(api, route, token, name)
        status, code = expected(route, scope, who)
        assert said.status in {status, *route.also} - ({503} if status == 200 else set()), (scope, who, said)
        if code is not None:
            assert said.code == code, (scope, who, said)


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.name)
async def test_nobody_is_let_in_without_a_key(api: Api, route: Route) -> None:
    open_to_all = route.scope is None and not route.any_key
    for token in (None, "tm_0123456789ab_" + "x" * 43):
        said = await asked(api, route, token, "mail")
        if open_to_all:
            assert said.status == route.status
        else:
            assert (said.status, said.code, said.headers["www-authenticate"]) == (401, "unauthenticated", "Bearer")


@pytest.mark.parametrize("route", [route for route in ROUTES if "{id}" in route.path and not route.whole], ids=lambda route: route.name)
async def test_a_foreign_id_is_answered_like_a_missing_one(api: Api, route: Route) -> None:
    prepare = ASKS[route.name].prepare
    assert prepare is not None
    id = await prepare(api)
    token = await api.key("admin", tenant=FOREIGN)
    foreign, missing = await asked(api, route, token, id), await asked(api, route, token, MISSING)
    assert (foreign.status, missing.status) == (404, 404)
    hidden = [re.sub(r'"request_id":"\w+"', "", said.text.replace(named, "ID")) for said, named in ((foreign, id), (missing, MISSING))]
    assert hidden[0] == hidden[1]
    assert sorted(foreign.headers) == sorted(missing.headers)
    assert (await api.engine.get([id]))[0] is not None


# Ids inside of bodies


async def test_ids_in_bodies_are_looked_up_under_the_tenant(api: Api) -> None:
    token, foreign = await api.key("admin", tenant=FOREIGN), await pending(api)
    dead = await ended(api)
    task = {"type": "mail", "payload": 1, "queue": "mail"}
    for id in (foreign, MISSING):
        said = await api.refused(422, "POST", "/api/v1/tasks", {**task, "after": id}, key=token)
        assert said.code == "unknown_task"
        tally = await api.ok("POST", "/api/v1/tasks:cancel", {"ids": [id]}, key=token)
        assert (tally["done"], tally["refused"]) == (0, {"not_found": 1})
    for id in (dead, MISSING):
        for verb in ("requeue", "delete"):
            tally = await api.ok("POST", f"/api/v1/dead:{verb}", {"ids": [id]}, key=token)
            assert (tally["done"], tally["refused"]) == (0, {"not_found": 1})
    for payload in (1, {"n": 1}):
        taken = {**task, "payload": payload, "id": foreign}
        assert (await api.refused(409, "POST", "/api/v1/tasks", taken, key=token)).code == "id_taken"
        [answer] = (await api.ok("POST", "/api/v1/tasks:batch", {"tasks": [taken]}, key=token))["answers"]
        assert answer["error"]["code"] == "id_taken"
    [answer] = (await api.ok("POST", "/api/v1/tasks:batch", {"tasks": [{**task, "after": foreign}]}, key=token))["answers"]
    assert answer["error"]["code"] == "unknown_task"
    waited = await api.ok("POST", "/api/v1/tasks:wait", {"ids": [dead, MISSING]}, key=token)
    assert waited == {"ended": {}, "unknown": [dead, MISSING]}
    assert {task.id for task in (await api.engine.list()).tasks} == {foreign, dead}


async def test_lists_and_filters_stay_within_the_tenant(api: Api) -> None:
    own, token = await pending(api), await api.key("admin", tenant=FOREIGN)
    assert (await api.ok("GET", "/api/v1/tasks", key=token))["tasks"] == []
    assert (await api.ok("GET", "/api/v1/tasks:count", key=token))["count"] == 0
    assert (await api.ok("GET", "/api/v1/dead", key=token))["tasks"] == []
    assert (await api.ok("POST", "/api/v1/tasks:cancel", {"filter": {}, "confirm": True}, key=token))["matched"] == 0
    assert (await api.refused(403, "GET", f"/api/v1/tasks?tenant={OWN}", key=token)).code == "tenant_key"
    assert (await api.refused(403, "POST", "/api/v1/tasks:delete", {"filter": {"tenant": OWN}, "dry_run": True}, key=token)).code == "tenant_key"
    whole = await api.key("read")
    assert [task["id"] for task in (await api.ok("GET", f"/api/v1/tasks?tenant={OWN}", key=whole))["tasks"]] == [own]


async def test_a_task_has_the_tenant_of_the_key(api: Api) -> None:
    token = await api.key("submit", tenant=OWN)
    task = {"type": "mail", "payload": 1, "queue": "mail"}
    assert (await api.refused(422, "POST", "/api/v1/tasks", {**task, "tenant": FOREIGN}, key=token)).code == "unknown_field"
    id = (await api.ok("POST", "/api/v1/tasks", task, key=token))["id"]
    reader = await api.key("read", tenant=OWN)
    found = await api.ok("GET", f"/api/v1/tasks/{id}", key=reader)
    assert found["tenant"] == OWN


@pytest.mark.parametrize("scope", ["read", "read-payload"])
async def test_payloads_are_for_those_who_may_read_them(api: Api, scope: str) -> None:
    id = await ended(api)
    token = await api.key("read", scope)
    found = await api.ok("GET", f"/api/v1/tasks/{id}", key=token)
    listed = (await api.ok("GET", "/api/v1/dead", key=token))["tasks"][0]
    [attempt] = (await api.ok("GET", f"/api/v1/tasks/{id}/attempts", key=token))["attempts"]
    may = scope == "read-payload"
    for each in (found, listed):
        assert ("payload" in each, "result" in each, "headers" in each) == (may, may, may)
        assert each["error"] == ({"code": "ValueError", "message": "no", "traceback": "Traceback …"} if may else {"code": "ValueError"})
    assert ("traceback" in attempt["error"]) == may
