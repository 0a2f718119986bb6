"""Keys: shown once, stored as a hash, revoked everywhere, bounded in what they use up; and what is written of whoever changes something."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from taskmill.server.access import Scope, create_key
from taskmill.server.rest import ROUTES
from taskmill.server.routes import Route
from tests.surfaces.api import Api, process, served
from tests.surfaces.test_access_matrix import ASKS, asked

TOKEN = re.compile(r"tm_([0-9a-f]{12})_[A-Za-z0-9_-]{43}")
UNKNOWN = "tm_0123456789ab_" + "x" * 43


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    async with served(tmp_path) as found:
        yield found


# Made, listed, revoked


async def test_a_key_is_shown_once_and_stored_as_its_hash(api: Api) -> None:
    wanted = {"scopes": ["submit", "read"], "name": "shop", "tenant": "acme", "rate": 100, "depth": 5}
    made = await api("POST", "/api/v1/keys", wanted)
    assert made.status == 201
    token, id = made.data["token"], made.data["id"]
    found = TOKEN.fullmatch(token)
    assert found is not None
    assert found[1] == id
    assert made.headers["location"] == f"/api/v1/keys/{id}"
    [item] = await api.engine.items("key")
    assert json.loads(item.value)["hash"] == hashlib.sha256(token.encode()).hexdigest()
    assert token.encode() not in (api.folder / "store.db").read_bytes() + (api.folder / "store.db-wal").read_bytes()
    assert (await api.refused(401, "GET", "/api/v1/keys")).code == "unauthenticated"
    admin = await api.key("admin")
    listed = await api("GET", "/api/v1/keys", key=admin)
    shown = next(key for key in listed.data["keys"] if key["id"] == id)
    assert {name: shown[name] for name in wanted} == wanted
    for secret in (token, token.split("_", 2)[2], hashlib.sha256(token.encode()).hexdigest(), "hash"):
        assert secret not in listed.text


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"scopes": []}, "scopes"),
        ({"scopes": ["root"]}, "scopes"),
        ({}, "scopes"),
        ({"scopes": ["read"], "rate": 0}, "rate"),
        ({"scopes": ["read"], "depth": -1}, "depth"),
        ({"scopes": ["read"], "tenant": ""}, "tenant"),
        ({"scopes": ["read"], "name": "a\nb"}, "name"),
        ({"scopes": ["worker"], "tenant": "acme"}, "scopes"),
    ],
)
async def test_a_key_that_cannot_be(api: Api, body: dict[str, object], field: str) -> None:
    said = await api.refused(422, "POST", "/api/v1/keys", body)
    assert said.data["field"].startswith(field)
    assert await api.engine.items("key") == ()


async def test_what_a_key_may_do(api: Api) -> None:
    assert (await api.ok("GET", "/api/v1/me")) == {"key": None, "scopes": sorted(Scope), "tenant": None, "rate": None, "depth": None}
    token = await api.key("submit", "read", tenant="acme", rate=7, depth=9)
    found = await api.ok("GET", "/api/v1/me", key=token)
    assert found == {"key": token.split("_")[1], "scopes": ["read", "submit"], "tenant": "acme", "rate": 7, "depth": 9}


async def test_a_revoked_key_is_refused_in_every_process(tmp_path: Path) -> None:
    async with served(tmp_path) as api:
        admin, token = await api.key("admin"), await api.key("read")
        with process(tmp_path) as other:

            def asks() -> int:
                try:
                    with urlopen(Request(f"{other.url}/api/v1/queues", headers={"Authorization": f"Bearer {token}"}), timeout=10) as answer:
                        return int(answer.status)
                except HTTPError as error:
                    return error.code

            assert await asyncio.to_thread(asks) == 200
            assert (await api("DELETE", f"/api/v1/keys/{token.split('_')[1]}", key=admin)).status == 204
            revoked = last = time.monotonic()
            while True:
                began = time.monotonic()
                if await asyncio.to_thread(asks) == 401:
                    break
                last = began
            assert last - revoked < 5, "it was let in for longer than the promise says"
        assert (await api.refused(404, "DELETE", f"/api/v1/keys/{token.split('_')[1]}", key=admin)).code == "not_found"


# At the door


async def test_guessing_is_slowed_down_and_nobody_else(api: Api) -> None:
    token = await api.key("read")
    answers = [await api("GET", "/api/v1/queues", key=UNKNOWN) for _ in range(25)]
    assert [said.status for said in answers] == [401] * 20 + [429] * 5
    assert answers[-1].code == "too_many_failures"
    assert 1 <= int(answers[-1].headers["retry-after"]) <= 60
    assert (await api("GET", "/api/v1/queues", key=token)).status == 200
    assert (await api("GET", "/api/v1/queues")).status == 401


@pytest.mark.parametrize(
    "authorization",
    ["", "Bearer", "Bearer ", "Basic dXNlcjpwYXNz", "Bearer tm_short", f"Bearer {UNKNOWN}extra", f"Bearer {UNKNOWN[:-1]}", "Bearer \u00e9", "tm_x"],
)
async def test_what_is_no_key(api: Api, authorization: str) -> None:
    await api.key("read")
    assert (await api.refused(401, "GET", "/api/v1/queues", headers={"Authorization": authorization})).code == "unauthenticated"


async def test_a_key_in_the_query_is_no_key(api: Api) -> None:
    token = await api.key("read")
    for name in ("key", "token", "api_key", "authorization"):
        assert (await api.refused(401, "GET", f"/api/v1/queues?{name}={token}")).code == "unauthenticated"


async def test_without_keys_only_this_machine_s_names_are_answered(api: Api) -> None:
    for host in ("evil.example", "evil.example:8080", "127.0.0.1.evil.example", "localhost.evil.example"):
        assert (await api.refused(403, "GET", "/api/v1/queues", headers={"Host": host})).code == "invalid_host"
    for host in ("localhost", "localhost:8080", "127.0.0.1", "[::1]:8080"):
        assert (await api("GET", "/api/v1/queues", headers={"Host": host})).status == 200
    token = await api.key("read")
    assert (await api("GET", "/api/v1/queues", key=token, headers={"Host": "tasks.example"})).status == 200


async def test_without_keys_nobody_else_can_reach_it(tmp_path: Path) -> None:
    async with served(tmp_path) as api:
        command = [sys.executable, "-m", "taskmill", "api", "--host", "0.0.0.0", "--port", "0", "--url", f"sqlite:///{tmp_path}/store.db"]
        refused = await asyncio.to_thread(subprocess.run, command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert refused.returncode == 1
        assert refused.stderr.count("\n") == 1
        assert "taskmill key create" in refused.stderr
        await api.key("read")
        with process(tmp_path, "--host", "0.0.0.0") as open_to_others, pytest.raises(HTTPError, match="401"):
            await asyncio.to_thread(urlopen, f"{open_to_others.url}/api/v1/queues")


# Quotas


async def test_a_key_makes_so_many_requests_a_second(api: Api) -> None:
    token = await api.key("read", rate=2)
    answers = await asyncio.gather(*(api("GET", "/api/v1/me", key=token) for _ in range(10)))
    refused = [said for said in answers if said.status == 429]
    assert len(refused) >= 5
    assert {said.status for said in answers} == {200, 429}
    assert {said.code for said in refused} == {"request_quota"}
    assert {said.headers["retry-after"] for said in refused} == {"1"}
    free = await api.key("read")
    assert (await api("GET", "/api/v1/me", key=free)).status == 200


async def test_a_key_submits_while_the_queue_has_room(api: Api) -> None:
    token = await api.key("submit", depth=2)
    task = {"type": "mail", "payload": 1, "queue": "mail"}
    await api.submit("mail", "mail", queue="mail")
    for path, body in (("/api/v1/tasks", task), ("/api/v1/tasks:batch", {"tasks": [task]})):
        said = await api.refused(429, "POST", path, body, key=token)
        assert (said.code, said.data["field"], said.headers["retry-after"]) == ("queue_quota", "queue", "1")
    assert (await api("POST", "/api/v1/tasks", {**task, "queue": "other"}, key=token)).status == 202
    assert (await api("POST", "/api/v1/tasks", task, key=await api.key("submit"))).status == 202


# The audit log

CHANGING = [route for route in ROUTES if route.method != "GET" and route.scope is Scope.ADMIN]
NAMED = [route for route in CHANGING if "{" in route.path]


def test_what_changes_the_store_needs_admin_and_the_whole_of_it() -> None:
    assert len(CHANGING) >= 15
    assert all(route.whole for route in CHANGING)
    changing = {route.scope for route in ROUTES if route.method != "GET" and route.name != "wait_tasks"}
    assert changing == {Scope.ADMIN, Scope.SUBMIT, Scope.CANCEL, Scope.WORKER}


@pytest.mark.parametrize("route", CHANGING, ids=lambda route: route.name)
async def test_what_is_changed_is_noted_before_and_after(api: Api, route: Route) -> None:
    prepare = ASKS[route.name].prepare
    name = "" if prepare is None else await prepare(api)
    token = await api.key("admin")
    assert (await asked(api, route, token, name)).status < 300
    before, after = api.audit()
    assert before["request"] == after["request"] != ""
    assert (before["outcome"], after["outcome"]) == ("asked", "done")
    noun = re.split(r"[/:]", route.path)[3].removesuffix("s")
    for line in (before, after):
        assert line["action"].startswith(f"{noun}.")
        assert line["target"] == (name or "a key")
        assert line["key"] == token.split("_")[1]
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+Z", line["at"])


@pytest.mark.parametrize("route", NAMED, ids=lambda route: route.name)
async def test_what_is_refused_is_noted_too(api: Api, route: Route) -> None:
    token = await api.key("admin")
    headers = {"Authorization": f"Bearer {token}", **({"If-Match": '"o9"'} if route.method == "PUT" else {})}
    body = {} if ASKS[route.name].body is None and route.body is not None else ASKS[route.name].body
    said = await api(route.method, re.sub(r"\{\w+\}", "nothing", route.path), body, headers=headers)
    assert said.status in {404, 412}
    assert [(line["outcome"], line["target"]) for line in api.audit()] == [("asked", "nothing"), (said.code, "nothing")]


async def test_changes_of_tasks_are_noted_with_their_tenant(api: Api) -> None:
    [id] = await api.submit("mail", tenant="acme")
    token = await api.key("cancel", tenant="acme")
    await api.refused(409, "POST", f"/api/v1/tasks/{id}:delete", key=token)
    await api.ok("POST", f"/api/v1/tasks/{id}:cancel", key=token)
    await api.ok("POST", "/api/v1/tasks:delete", {"filter": {"tag": ["a=b"], "since": "2020-01-01T00:00:00Z"}, "confirm": True}, key=token)
    lines = api.audit()
    assert lines[-1]["details"] == {"tenant": "acme", "tags": "a=b", "since": "2020-01-01T00:00:00Z"}
    assert [line["outcome"] for line in lines] == ["asked", "not_terminal", "asked", "done", "asked", "done"]
    assert {line["tenant"] for line in lines} == {"acme"}
    assert [line["action"] for line in lines[::2]] == ["task.delete", "task.cancel", "task.delete"]


async def test_what_cannot_be_noted_is_not_done(api: Api) -> None:
    await api.submit("mail", queue="mail")
    (api.folder / "audit.jsonl").mkdir()
    said = await api.refused(503, "POST", "/api/v1/queues/mail:pause")
    assert said.code == "audit_unavailable"
    assert (await api.ok("GET", "/api/v1/queues/mail"))["paused"] is False


async def test_reads_and_counts_leave_no_line(api: Api) -> None:
    await api.submit("mail", queue="mail")
    for path in ("/api/v1/queues", "/api/v1/keys", "/api/v1/engine", "/api/v1/tasks"):
        await api.ok("GET", path)
    await api.ok("POST", "/api/v1/queues/mail:purge", {"dry_run": True})
    await api.ok("POST", "/api/v1/tasks:cancel", {"filter": {}, "dry_run": True})
    assert api.audit() == []


# Secrets


async def test_no_key_is_in_any_log(api: Api, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    admin = await api.key("admin")
    made = await api.ok("POST", "/api/v1/keys", {"scopes": ["read"], "name": "shop"}, key=admin)
    await api("GET", f"/api/v1/queues?key={made['token']}", key=made["token"])
    await api("GET", f"/api/v1/nothing/{made['token']}", key=made["token"])
    await api("DELETE", f"/api/v1/keys/{made['id']}", key=admin)
    audit = (api.folder / "audit.jsonl").read_text(encoding="utf-8")
    for token in (admin, made["token"], UNKNOWN):
        await api("GET", "/api/v1/queues", key=token)
        assert token not in caplog.text
        assert token.split("_", 2)[2] not in audit


async def test_no_key_is_in_what_the_server_process_writes(tmp_path: Path) -> None:
    async with served(tmp_path) as api:
        token, _ = await create_key(api.engine, name="", scopes=["admin"])
        with process(tmp_path, "--log-level", "debug") as other:
            for path in ("/api/v1/queues", f"/api/v1/queues?key={token}", f"/{token}"):
                request = Request(f"{other.url}{path}", headers={"Authorization": f"Bearer {token}"})
                try:
                    await asyncio.to_thread(urlopen, request)
                except HTTPError as error:
                    error.close()
        assert token.split("_", 2)[2] not in other.log.read_text(encoding="utf-8")
