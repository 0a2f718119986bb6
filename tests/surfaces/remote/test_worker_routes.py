"""The worker protocol over HTTP, message by message, on a real server."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from taskmill.operations import Operations
from taskmill.server.access import list_keys, revoke_key
from taskmill.task import new_id
from tests.surfaces.remote.serving import Caller, Remote, Server, serving


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    async with serving(f"sqlite:///{tmp_path / 'store.db'}", tmp_path) as found:
        yield found


@pytest.fixture
def caller(server: Server) -> Caller:
    return server.anybody


# Joining


async def test_join_says_how_to_go_on(caller: Caller) -> None:
    worker = await Remote.join(caller, "resize", lease="6s", info={"language": "go"})
    assert worker.joined["lease"] == 6
    assert worker.joined["beat_every"] == 2


async def test_types_come_with_settings_as_people_write_them(server: Server, caller: Caller) -> None:
    settings = {
        "queue": "images",
        "timeout": "5m",
        "priority": "high",
        "retry": {"max_retries": 2},
        "rate_limit": "100/m",
        "concurrency": 4,
        "ordered": "{user}",
    }
    await caller.post("/api/v1/worker/join", {"types": {"resize": settings, "plain": None}, "queues": ["images"]})
    types = {item.name: item.value for item in await server.engine.items("type")}
    assert b'"timeout":300000000' in types["resize"]
    assert b'"limits":["resize"]' in types["resize"]
    assert types["plain"] == b'{"queue":"images"}'
    [limit] = await server.engine.items("limit")
    assert b'"rate":100' in limit.value
    assert b'"cap":4' in limit.value
    assert await caller.submit("resize", {"user": "ada"})


async def test_settings_that_the_store_has_are_left_alone(server: Server, caller: Caller) -> None:
    await caller.post("/api/v1/worker/join", {"types": {"resize": {"timeout": "5m"}}})
    before = await server.engine.items("type")
    await Remote.join(caller, "resize", queues=())
    assert await server.engine.items("type") == before


@pytest.mark.parametrize(
    ("body", "field", "code"),
    [
        ({"types": []}, "types", "required"),
        ({"types": ["no/name"]}, "types", "invalid_name"),
        ({"types": {"a": {"timeout": "soon"}}}, "timeout", "invalid_duration"),
        ({"types": {"a": {"retry": {"kind": "never"}}}}, "retry.kind", "invalid_retry"),
        ({"types": {"a": {"tiemout": "1s"}}}, "types[...].tiemout", "unknown_field"),
        ({"types": ["a"], "queues": ["A"]}, "queues", "invalid_name"),
        ({"types": ["a"], "lease": "1s"}, "lease", "out_of_range"),
        ({"types": ["a"], "lease": "2d"}, "lease", "out_of_range"),
        ({"types": ["a"], "info": {"host": "a\u0007b"}}, "info.host", "invalid_key"),
        ({"types": ["a"], "info": {f"k{n}": "v" for n in range(21)}}, "info", "out_of_range"),
        ({"queues": ["a"]}, "types", "required"),
    ],
)
async def test_what_nobody_can_join_with(caller: Caller, body: dict[str, Any], field: str, code: str) -> None:
    answer = await caller.ask("POST", "/api/v1/worker/join", body)
    assert (answer.status, answer.code, answer.data["field"]) == (422, code, field)


async def test_no_answer_waits_for_the_acknowledgement_of_its_head(server: Server) -> None:
    """Head and body are written one after the other; with Nagle's algorithm the second would wait 40 ms for whoever does not acknowledge at once."""
    [listening] = [one for one in _open_sockets() if one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) and one.getsockname()[1] == _port(server)]
    assert listening.proto == socket.IPPROTO_TCP
    await server.anybody.ask("GET", "/healthz")
    accepted = [one for one in _open_sockets() if not one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) and one.getsockname()[1] == _port(server)]
    assert accepted
    assert all(one.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) for one in accepted)


def _port(server: Server) -> int:
    return int(server.url.rpartition(":")[2])


def _open_sockets() -> list[socket.socket]:
    found = [one for one in gc.get_objects() if issubclass(type(one), socket.socket)]  # isinstance would wake lazy objects of other libraries
    return [one for one in found if one.fileno() >= 0 and one.family == socket.AF_INET]


# Claiming


async def test_a_claim_brings_everything_that_a_handler_needs(caller: Caller) -> None:
    worker = await Remote.join(caller, "resize")
    first = await caller.submit("resize", {"n": 1}, queue="jobs")
    done = await worker.one()
    await worker.finish(done, "completed", result={"w": 7})
    await caller.submit("resize", [1, "ä", None], queue="jobs", priority="high", timeout="90s", headers={"trace": "t"}, after=first)
    task = await worker.one()
    assert task["payload"] == [1, "ä", None]
    assert (task["type"], task["queue"], task["priority"], task["attempt"], task["timeout"]) == ("resize", "jobs", "high", 1, 90)
    assert isinstance(task["token"], str)
    assert task["token"].isdigit()
    assert task["results"] == [{"task": first, "outcome": "completed", "result": {"w": 7}}]
    assert (task["headers"], task["checkpoints"], task["signals"], task["must_end"]) == ({"trace": "t"}, {}, [], None)
    assert task["claimed_at"] < task["deadline"]


async def test_a_claim_waits_for_a_task(caller: Caller) -> None:
    worker = await Remote.join(caller, "resize")
    waiting = asyncio.create_task(worker.one())
    id = await caller.submit("resize", queue="jobs")
    assert (await waiting)["id"] == id


async def test_a_claim_that_waits_for_nothing_is_answered_when_its_time_is_over(caller: Caller) -> None:
    worker = await Remote.join(caller, "resize")
    assert await worker.claim(wait="100ms") == []


async def test_the_same_number_again_answers_the_same_tasks(caller: Caller) -> None:
    worker = await Remote.join(caller, "resize")
    for _ in range(3):
        await caller.submit("resize", queue="jobs")
    two = await worker.claim(slots=2)
    assert await worker.repeat(slots=2) == two
    [third] = await worker.claim(slots=2)
    assert third["id"] not in {task["id"] for task in two}


async def test_a_number_that_is_used_up_is_answered_soon_and_not_looked_at_for_ever(caller: Caller) -> None:
    worker = await Remote.join(caller, "resize")
    await caller.submit("resize", queue="jobs")
    await worker.finish(await worker.one(), "completed")
    answer = await worker.ask("claim", request=worker.request, wait="60s")
    assert answer.data == {"request": worker.request, "tasks": [], "next_at": None, "more": True}


async def test_a_claim_takes_at_most_so_many_of_a_type(caller: Caller) -> None:
    worker = await Remote.join(caller, "resize", "mail")
    for type in ("resize", "resize", "mail"):
        await caller.submit(type, queue="jobs")
    assert sorted(task["type"] for task in await worker.claim(slots=10, types={"resize": 1})) == ["mail", "resize"]


async def test_who_goes_away_while_the_claim_waits_gets_nothing_and_loses_nothing(server: Server, caller: Caller) -> None:
    """Nobody waits on for it: what comes then is another's."""
    worker, other = await Remote.join(caller, "resize"), await Remote.join(caller, "resize")
    async with aiohttp.ClientSession(server.url) as going:
        waiting = asyncio.create_task(Remote(Caller(going), {"worker": worker.id}).ask("claim", request=1, wait="60s"))
        await server.waits(1)
        waiting.cancel()
        await server.waits(0)
    id = await caller.submit("resize", queue="jobs")
    assert (await other.one())["id"] == id


async def test_a_worker_that_left_is_unknown(caller: Caller) -> None:
    worker = await Remote.join(caller, "resize")
    assert (await worker.ask("leave")).data == {"left": True}
    answer = await worker.ask("claim", request=1)
    assert (answer.status, answer.code) == (404, "unknown_worker")
    assert (await worker.ask("beat", request=0, leases=[])).data["known"] is False
    assert (await worker.ask("leave")).status == 200


async def test_workers_of_other_keys_are_unknown(server: Server) -> None:
    one, other = await server.caller("worker"), await server.caller("worker")
    worker = await Remote.join(one, "resize")
    stranger = Remote(other, worker.joined)
    bodies: dict[str, dict[str, Any]] = {
        "claim": {"request": 1},
        "beat": {"request": 0, "leases": []},
        "leave": {},
        "finish": {"outcomes": [{"task": new_id(), "token": "1", "ending": "completed"}]},
        "checkpoint": {"entries": [{"task": new_id(), "token": "1", "name": "a"}]},
    }
    for verb, body in bodies.items():
        answer = await stranger.ask(verb, **body)
        assert (verb, answer.status, answer.code) == (verb, 404, "unknown_worker")
    assert (await worker.ask("beat", request=0, leases=[])).data["known"] is True


async def test_a_key_without_the_scope_or_with_a_tenant_cannot_work(server: Server) -> None:
    for caller, code in ((await server.caller("submit", "read"), "forbidden"), (await server.caller("admin", tenant="acme"), "tenant_key")):
        answer = await caller.ask("POST", "/api/v1/worker/join", {"types": ["a"]})
        assert (answer.status, answer.code) == (403, code)


async def test_a_key_that_is_revoked_ends_the_claim_that_waits(server: Server) -> None:
    admin = await server.caller("admin")
    worker = await Remote.join(await server.caller("worker"), "resize")
    waiting = asyncio.create_task(worker.ask("claim", request=1, wait="60s"))
    await server.waits(1)
    [key] = [key for key in await list_keys(server.engine) if "worker" in key.scopes]
    await revoke_key(server.engine, key.id)
    async with asyncio.timeout(30):
        answer = await waiting
    assert (answer.status, answer.code) == (401, "unauthenticated")
    assert (await admin.ask("GET", "/api/v1/tasks")).status == 200


async def test_a_server_that_stops_answers_those_who_wait(server: Server, caller: Caller) -> None:
    worker = await Remote.join(caller, "resize")
    waiting = asyncio.create_task(worker.claim(wait="60s"))
    await server.waits(1)
    server.stop.set()
    async with asyncio.timeout(20):
        assert await waiting == []


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"request": 0}, "request"),
        ({"request": 1 << 53}, "request"),
        ({"request": 1, "slots": 0}, "slots"),
        ({"request": 1, "slots": 1_001}, "slots"),
        ({"request": 1, "wait": "61s"}, "wait"),
        ({"request": 1, "wait": "-1s"}, "wait"),
        ({"request": 1, "types": {"a": -1}}, "types.a"),
        ({"request": "1"}, "request"),
        ({}, "request"),
    ],
)
async def test_claims_that_nobody_understands(caller: Caller, body: dict[str, Any], field: str) -> None:
    worker = await Remote.join(caller, "resize")
    answer = await worker.ask("claim", **body)
    assert (answer.status, answer.data["field"]) == (422, field)


# Beating


async def test_a_beat_tells_what_is_cancelled_and_what_is_lost(caller: Caller) -> None:
    worker = await Remote.join(caller, "resize")
    await caller.submit("resize", queue="jobs")
    task = await worker.one()
    assert await worker.beat(task) == {"known": True, "lost": [], "cancelled": [], "commands": []}
    await caller.post(f"/api/v1/tasks/{task['id']}:cancel", {})
    assert (await worker.beat(task))["cancelled"] == [task["id"]]
    assert (await worker.finish(task, "cancelled")).status == 200
    assert (await worker.beat(task))["lost"] == [task["token"]]


async def test_what_a_beat_does_not_name_is_given_back(caller: Caller) -> None:
    worker = await Remote.join(caller, "resize")
    await caller.submit("resize", queue="jobs")
    task = await worker.one()
    await worker.beat()
    again = await worker.one()
    assert again["id"] == task["id"]
    assert again["token"] != task["token"]


async def test_a_beat_leaves_claims_whose_answer_is_not_there_yet(caller: Caller) -> None:
    worker = await Remote.join(caller, "resize")
    await caller.submit("resize", queue="jobs")
    task = await worker.one()
    assert (await worker.ask("beat", request=worker.request - 1, leases=[])).data["lost"] == []
    assert (await worker.beat(task))["lost"] == []


async def test_operators_are_heard(server: Server, caller: Caller) -> None:
    worker = await Remote.join(caller, "resize")
    await Operations(server.engine).command_worker(worker.id, "pause")
    assert (await worker.beat())["commands"] == ["pause"]


@pytest.mark.parametrize("token", ["-1", "1.5", "", "x", "٣", str(1 << 63), "1" * 20])
async def test_tokens_that_are_none(caller: Caller, token: str) -> None:
    worker = await Remote.join(caller, "resize")
    answer = await worker.ask("beat", request=0, leases=[token])
    assert (answer.status, answer.code) == (422, "invalid_token")
