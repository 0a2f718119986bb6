"""What a key of a tenant, or of a worker, cannot do to others: choose a share, drop limits, wait for foreign tasks, change types; what the log has of it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from taskmill.clock import ManualClock
from taskmill.engine import Joining, Target
from taskmill.errors import StoreError
from taskmill.server.audit import Audit, first_broken
from taskmill.task import Task, TypeSettings, new_id
from tests.surfaces.api import AUDIT, Api, served

TASKS = "/api/v1/tasks"


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    async with served(tmp_path, keys=True) as found:
        await declare(found, "a", queue="default")
        yield found


async def declare(api: Api, name: str, **settings: object) -> None:
    """As an app does."""
    await api.engine.join(Joining(worker=new_id(), queues=(), types={name: TypeSettings(**settings)}))  # type: ignore[arg-type]


async def stored(api: Api, id: str) -> Task:
    [found] = await api.engine.get([id])
    assert isinstance(found, Task)
    return found


# Shares and limits


async def test_a_tenant_does_not_choose_its_share(api: Api) -> None:
    key = await api.key("submit", tenant="acme")
    said = await api.refused(403, "POST", TASKS, {"type": "a", "payload": 1, "fair_key": "beta"}, key=key)
    assert (said.code, said.data["field"]) == ("forbidden", "fair_key")
    answers = await api.ok("POST", f"{TASKS}:batch", {"tasks": [{"type": "a", "payload": 1, "fair_key": "x"}, {"type": "a", "payload": 1}]}, key=key)
    assert (answers["accepted"], answers["answers"][0]["error"]["code"]) == (1, "forbidden")
    whole = await api.key("submit")
    await api.ok("POST", TASKS, {"type": "a", "payload": 1, "fair_key": "beta"}, key=whole)


@pytest.mark.parametrize("given", [[], ["mine"]])
async def test_limits_of_a_type_are_kept_but_by_an_admin(api: Api, given: list[str]) -> None:
    for name in ("theirs", "mine"):
        await api.engine.put("limit", name, b'{"cap":1}')
    await declare(api, "a", limits=("theirs",))
    body = {"type": "a", "payload": 1, "limits": given}
    for key, limits in ((await api.key("submit", tenant="acme"), {"theirs", *given}), (await api.key("submit"), {"theirs", *given})):
        said = await api.ok("POST", TASKS, body, key=key)
        assert set((await stored(api, said["id"])).limits) == limits
        [one] = (await api.ok("POST", f"{TASKS}:batch", {"tasks": [body]}, key=key))["answers"]
        assert set((await stored(api, one["id"])).limits) == limits
    said = await api.ok("POST", TASKS, body, key=await api.key("admin"))
    assert set((await stored(api, said["id"])).limits) == set(given)


# What it waits for


async def test_edges_of_a_batch_are_looked_up_together(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    key = await api.key("submit", tenant="acme")
    own, foreign = (await api.submit("a", tenant="acme"))[0], (await api.submit("a", tenant="beta"))[0]
    reads = []
    get = api.service.operations.engine.get

    async def counted(ids: list[str]) -> object:
        reads.append(len(ids))
        return await get(ids)

    monkeypatch.setattr(api.service.operations.engine, "get", counted, raising=False)
    beside = new_id()
    tasks = [{"type": "a", "payload": 1, "id": beside}, *({"type": "a", "payload": 1, "after": [own, beside]} for _ in range(50))]
    answers = await api.ok("POST", f"{TASKS}:batch", {"tasks": [*tasks, {"type": "a", "payload": 1, "after": [foreign]}]}, key=key)
    assert [answer.get("error", {}).get("code") for answer in answers["answers"]] == [None] * 51 + ["unknown_task"]
    assert reads == [3]


async def test_the_id_of_a_deleted_task_tells_nothing_of_it(api: Api) -> None:
    key = await api.key("submit", tenant="acme")
    [id] = await api.submit("a", tenant="beta")
    await api.engine.cancel([Target(id)])
    await api.engine.delete([Target(id)])
    said = [await api.refused(409, "POST", TASKS, {"type": "a", "payload": payload, "id": id}, key=key) for payload in ({"n": 1}, {"n": 2})]
    assert {one.code for one in said} == {"id_taken"}
    assert said[0].data["title"] == said[1].data["title"]


# Types


async def test_a_worker_declares_what_no_other_has(api: Api) -> None:
    key, other = await api.key("worker"), await api.key("worker")
    await declare(api, "pay", queue="mail", timeout=30_000_000)
    attack = {"types": {"pay": {"queue": "attacker", "timeout": "1s", "rate_limit": "1000000/s"}}}
    said = await api.refused(403, "POST", "/api/v1/worker/join", attack, key=key)
    assert (said.code, said.data["field"]) == ("type_declared", "types.pay")
    assert not await api.engine.items("limit")
    for types in ({"pay": None}, {"own": {"queue": "q"}}, {"own": {"queue": "r", "rate_limit": "5/m"}}):
        await api.ok("POST", "/api/v1/worker/join", {"types": types}, key=key)
    for types in ({"own": {"queue": "s"}}, {"own": {"queue": "r", "rate_limit": "9/m"}}):
        assert (await api.refused(403, "POST", "/api/v1/worker/join", {"types": types}, key=other)).code == "type_declared"
    await api.ok("POST", "/api/v1/worker/join", attack, key=await api.key("admin"))
    found = {item.name: msgspec.json.decode(item.value, type=TypeSettings) for item in await api.engine.items("type")}
    assert (found["pay"].queue, found["own"].queue) == ("attacker", "r")


async def test_a_type_that_an_app_has_changed_since_is_its_own(api: Api) -> None:
    key = await api.key("worker")
    await api.ok("POST", "/api/v1/worker/join", {"types": {"own": {"queue": "q"}}}, key=key)
    await declare(api, "own", queue="mail")
    await api.refused(403, "POST", "/api/v1/worker/join", {"types": {"own": {"queue": "attacker"}}}, key=key)


async def test_declared_types_of_a_key_are_bounded(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taskmill.server.declarations.MOST_TYPES", 3)
    key = await api.key("worker")
    await api.ok("POST", "/api/v1/worker/join", {"types": ["x", "y", "z"]}, key=key)
    await api.ok("POST", "/api/v1/worker/join", {"types": ["x", "y", "z"]}, key=key)
    assert (await api.refused(422, "POST", "/api/v1/worker/join", {"types": ["d"]}, key=key)).code == "too_many_types"


async def test_what_a_worker_declares_is_in_the_log(api: Api) -> None:
    token = await api.key("worker")
    for _ in range(2):
        await api.ok("POST", "/api/v1/worker/join", {"types": {"x": {"queue": "q"}, "y": None}}, key=token)
    lines = [line for line in api.audit() if line["action"] == "type.declare"]
    assert [(line["outcome"], line["details"]["types"], line["key"]) for line in lines] == [(outcome, "x y", token[3:15]) for outcome in ("asked", "done")]


# The log


async def test_a_new_key_is_noted_by_its_id(api: Api) -> None:
    admin = await api.key("admin")
    made = await api.ok("POST", "/api/v1/keys", {"scopes": ["read"], "tenant": "acme", "rate": 5, "depth": 7}, key=admin)
    await api.ok("DELETE", f"/api/v1/keys/{made['id']}", key=admin)
    asked, _, revoked, _ = api.audit()
    assert asked["details"] == {"id": made["id"], "scopes": "read", "tenant": "acme", "rate": 5, "depth": 7}
    assert revoked["target"] == made["id"]


async def noted(path: Path, *actions: str) -> None:
    for action in actions:
        async with Audit(path, ManualClock()).deed(action, "it"):
            pass


async def test_lines_follow_each_other(tmp_path: Path) -> None:
    path = tmp_path / AUDIT
    await noted(path, "a", "b", "c")
    assert first_broken(path) is None
    lines = path.read_bytes().splitlines(keepends=True)
    for broken, changed in (
        (3, [lines[0], lines[1].replace(b"it", b"that"), *lines[2:]]),
        (2, [lines[0], *lines[2:]]),
        (4, [*lines[:2], lines[2], lines[1], *lines[3:]]),
    ):
        path.write_bytes(b"".join(changed))
        assert first_broken(path) == broken
        command = [sys.executable, "-m", "taskmill.server.audit", str(path)]
        said = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
        assert (said.returncode, said.stdout) == (1, f"line {broken} does not follow the one before it\n")


async def test_a_line_that_a_crash_has_cut_off_stays_apart(tmp_path: Path) -> None:
    path = tmp_path / AUDIT
    await noted(path, "a")
    with path.open("ab") as file:
        file.write(b'{"at":"2026')
    await noted(path, "b")
    lines = path.read_bytes().splitlines()
    assert [line.startswith(b'{"at":') and line.endswith(b"}") for line in lines] == [True, True, False, True, True]
    assert first_broken(path) is None


async def test_a_short_write_is_an_error_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a disk does that has room for part of a line."""
    path = tmp_path / AUDIT
    await noted(path, "a")
    before = path.read_bytes()
    write = os.write
    monkeypatch.setattr("taskmill.server.audit.os.write", lambda fd, data: write(fd, data[: len(data) // 2]))
    done = []
    with pytest.raises(StoreError, match="cannot be written"):
        async with Audit(path, ManualClock()).deed("b", "it"):
            done.append(True)
    assert not done
    assert path.read_bytes() == before


# The last key


async def test_the_store_remembers_that_it_had_keys(tmp_path: Path) -> None:
    async with served(tmp_path) as api:
        await api.ok("GET", TASKS)
        made = await api.ok("POST", "/api/v1/keys", {"scopes": ["admin"]})
        await api.ok("DELETE", f"/api/v1/keys/{made['id']}", key=made["token"])
    async with served(tmp_path) as api:
        assert (await api.refused(401, "GET", TASKS)).code == "unauthenticated"
        key = await api.key("admin")
        await api.ok("GET", TASKS, key=key)
