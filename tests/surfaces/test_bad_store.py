"""Bad input to the routes that are not about tasks: queues, schedules, limits, keys, workers, the worker protocol. Nothing is stored by any of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.surfaces.bad_bodies import GOOD, OTHER_ID, SOME_ID
from tests.surfaces.bad_http import TASKS, Answer, Server, problem, request

V1 = "/api/v1"
DAILY = {"type": "mail", "cron": "@daily"}
WORK = f"{V1}/worker"


def put(server: Server, path: str, body: object, **headers: str) -> Answer:
    return server.call("PUT", path, json.dumps(body).encode(), {name.replace("_", "-"): value for name, value in headers.items()})


def nothing_but_tasks(server: Server) -> list[Any]:
    return [server.call("GET", f"{V1}/{name}").data for name in ("schedules", "limits", "keys")]


@pytest.fixture(autouse=True)
def unchanged(server: Server) -> Any:
    before = nothing_but_tasks(server)
    yield
    assert nothing_but_tasks(server) == before


# Names in paths


@pytest.mark.parametrize("name", ["A", "a%20b", "%C3%A9", "a:b", "*", "%27--", "a" * 129, "_a", ".."])
@pytest.mark.parametrize(
    ("method", "path"), [("GET", "queues/{}"), ("GET", "schedules/{}"), ("GET", "limits/{}"), ("GET", "scale/{}"), ("DELETE", "limits/{}")]
)
def test_what_is_no_name(server: Server, method: str, path: str, name: str) -> None:
    problem(server.call(method, f"{V1}/{path.format(name)}"), 422, "invalid_name")


@pytest.mark.parametrize(
    ("method", "path", "code"),
    [
        ("GET", "queues/nobody", "unknown_queue"),
        ("GET", "scale/nobody", "unknown_queue"),
        ("GET", "schedules/nobody", "unknown_schedule"),
        ("DELETE", "schedules/nobody", "unknown_schedule"),
        ("POST", "schedules/nobody:trigger", "unknown_schedule"),
        ("POST", "schedules/nobody:pause", "unknown_schedule"),
        ("GET", "limits/nobody", "unknown_limit"),
        ("DELETE", "limits/nobody", "unknown_limit"),
        ("GET", "workers/nobody", "unknown_worker"),
        ("POST", "workers/nobody:stop", "unknown_worker"),
        ("GET", "workers/%27--", "unknown_worker"),
        ("DELETE", "keys/nobody", "not_found"),
        ("DELETE", "keys/%27--", "not_found"),
        ("DELETE", "keys/" + "a" * 5_000, "not_found"),
    ],
)
def test_what_is_not_there(server: Server, method: str, path: str, code: str) -> None:
    problem(server.call(method, f"{V1}/{path}"), 404, code)


@pytest.mark.parametrize("query", ["per=0", "per=-1", "per=x", "per=1e9", "per=10000000"])
def test_bad_numbers_to_scale_by(server: Server, query: str) -> None:
    problem(server.call("GET", f"{V1}/scale/default?{query}"), 422, "invalid_value", "per")


def test_a_purge_must_be_meant(server: Server) -> None:
    server.post(GOOD)
    before = server.ids()
    for body in (b"", b"{}", b'{"confirm":false}'):
        problem(server.call("POST", f"{V1}/queues/default:purge", body), 422, "confirm_required", "confirm")
    problem(server.call("POST", f"{V1}/queues/default:purge", b'{"confirm":1}'), 422, "invalid_value", "confirm")
    assert server.ids() == before


# Schedules and limits


@pytest.mark.parametrize(
    ("change", "code"),
    [
        *(
            ({"cron": cron}, "invalid_cron")
            for cron in ("* * * *", "60 * * * *", "*/0 * * * *", "5-1 * * * *", "a b c d e", "@yearlyy", "", "* * * * * * *", "\n")
        ),
        ({"cron": {"expression": "@daily", "timezone": "Mars/Phobos"}}, "invalid_timezone"),
        ({"cron": {"expression": "@daily", "timezone": "../../etc/passwd"}}, "invalid_timezone"),
        ({"cron": {"expression": "@daily", "zone": "UTC"}}, "unknown_field"),
        ({"cron": {"expression": "@daily", "start": -1}}, "invalid_value"),
        ({"cron": 5}, "invalid_value"),
        ({"type": "A"}, "invalid_name"),
        ({"type": None}, "invalid_value"),
        ({"queue": "A"}, "invalid_name"),
        ({"payload": "x" * (256 << 10)}, "payload_too_large"),
        ({"overlap": "never"}, "invalid_value"),
        ({"misfire": 1}, "invalid_value"),
        ({"priority": 4}, "invalid_value"),
        ({"timeout": -1}, "invalid_value"),
        ({"timeout": 0}, "out_of_range"),
        ({"max_crashes": -1}, "out_of_range"),
        ({"tags": {"A": "x"}}, "invalid_name"),
        ({"headers": {"X": "a\r\nb"}}, "invalid_header"),
        ({"tenant": "\x07"}, "invalid_key"),
        ({"limits": ["A"]}, "invalid_name"),
        ({"nonsense": 1}, "unknown_field"),
    ],
    ids=str,
)
def test_bad_schedules(server: Server, change: dict[str, Any], code: str) -> None:
    problem(put(server, f"{V1}/schedules/nightly", {**DAILY, **change}), 413 if code == "payload_too_large" else 422, code)


@pytest.mark.parametrize(
    ("body", "code", "field"),
    [
        ({}, "invalid_input", "rate"),
        *(({"rate": rate}, "invalid_rate", "rate") for rate in ("", "many", "0/s", "-1/s", "1/0s", "1/y", "1/400d", "٣/s", "9" * 13 + "/s")),
        ({"rate": 5}, "invalid_value", "rate"),
        ({"cap": -1}, "out_of_range", "cap"),
        ({"cap": 2**40}, "out_of_range", "cap"),
        ({"cap": 1.5}, "invalid_value", "cap"),
        ({"burst": 1}, "unknown_field", "burst"),
    ],
    ids=str,
)
def test_bad_limits(server: Server, body: object, code: str, field: str) -> None:
    problem(put(server, f"{V1}/limits/gateway", body), 422, code, field)


@pytest.mark.parametrize("path", ["schedules/nightly", "limits/gateway"])
def test_bad_conditions(server: Server, path: str) -> None:
    body = DAILY if path.startswith("schedules") else {"cap": 1}
    problem(put(server, f"{V1}/{path}", body, If_Match='"o1"'), 412, "precondition_failed", "If-Match")
    problem(put(server, f"{V1}/{path}", body, If_Match="*"), 412, "precondition_failed", "If-Match")
    problem(put(server, f"{V1}/{path}", body, If_None_Match='"o1"'), 422, "invalid_value", "If-None-Match")
    problem(put(server, f"{V1}/{path}", body, If_Match="*", If_None_Match="*"), 422, "contradiction", "If-Match")


# Keys


@pytest.mark.parametrize(
    ("body", "code", "field"),
    [
        ({}, "required", "scopes"),
        ({"scopes": []}, "invalid_value", "scopes"),
        ({"scopes": "admin"}, "invalid_value", "scopes"),
        ({"scopes": ["root"]}, "unknown_scope", "scopes"),
        ({"scopes": ["admin"] * 21}, "invalid_value", "scopes"),
        ({"scopes": ["worker"], "tenant": "acme"}, "contradiction", "scopes"),
        ({"scopes": ["read"], "tenant": ""}, "invalid_key", "tenant"),
        ({"scopes": ["read"], "tenant": "a\nb"}, "invalid_key", "tenant"),
        ({"scopes": ["read"], "name": "x" * 129}, "invalid_key", "name"),
        ({"scopes": ["read"], "rate": 0}, "invalid_value", "rate"),
        ({"scopes": ["read"], "depth": -1}, "invalid_value", "depth"),
        ({"scopes": ["read"], "token": "tm_mine"}, "unknown_field", "token"),
    ],
    ids=str,
)
def test_bad_keys(server: Server, body: object, code: str, field: str) -> None:
    problem(server.post(body, f"{V1}/keys"), 422, code, field)


# The worker protocol


@pytest.fixture(scope="module")
def worker(server: Server) -> str:
    return str(server.post({"types": {"mail": None}}, f"{WORK}/join").data["worker"])


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({}, "required"),
        ({"types": []}, "required"),
        ({"types": ["A"]}, "invalid_name"),
        ({"types": [1]}, "invalid_value"),
        ({"types": {"mail": {"timeout": 0}}}, "out_of_range"),
        ({"types": {"mail": {"concurrency": -1}}}, "out_of_range"),
        ({"types": {"mail": {"rate_limit": "fast"}}}, "invalid_rate"),
        ({"types": {"mail": {"nonsense": 1}}}, "unknown_field"),
        ({"types": ["mail"], "queues": ["A"]}, "invalid_name"),
        ({"types": ["mail"], "lease": "1s"}, "out_of_range"),
        ({"types": ["mail"], "lease": "25h"}, "out_of_range"),
        ({"types": ["mail"], "lease": "soon"}, "invalid_duration"),
        ({"types": ["mail"], "info": {"a": 1}}, "invalid_value"),
    ],
    ids=str,
)
def test_bad_joins(server: Server, body: object, code: str) -> None:
    problem(server.post(body, f"{WORK}/join"), 422, code)


@pytest.mark.parametrize("name", ["", "x", "remote--0000000000000000", "remote-abc-0000000000000000", "a" * 5_000, "../x", "remote-\x00"])
@pytest.mark.parametrize("verb", ["claim", "beat", "finish", "checkpoint", "leave"])
def test_a_worker_that_never_joined(server: Server, verb: str, name: str) -> None:
    lease = {"task": SOME_ID, "token": "1"}
    every: dict[str, dict[str, Any]] = {
        "claim": {"request": 1}, "beat": {"request": 0, "leases": []}, "finish": {"outcomes": [{**lease, "ending": "released"}]},
        "checkpoint": {"entries": [{**lease, "name": "a"}]}, "leave": {},
    }  # fmt: skip
    answer = server.post({"worker": name, **every[verb]}, f"{WORK}/{verb}")
    if answer.status == 200:  # one that has the form of a worker: it has nothing, and holds nothing
        assert verb in {"beat", "leave"}
        assert name == "remote--0000000000000000"
        return
    problem(answer, answer.status)
    assert (answer.status, answer.code) in {(404, "not_found"), (404, "unknown_worker"), (409, "stale_lease"), (404, "unknown_task"), (422, "nul_character")}


@pytest.mark.parametrize(
    ("change", "code"),
    [
        *(({"request": value}, "out_of_range") for value in (0, -1, 2**53)),
        ({"request": "1"}, "invalid_value"),
        *(({"slots": value}, "out_of_range") for value in (0, -1, 1_001)),
        *(({"wait": value}, "invalid_duration") for value in ("61s", -1, "soon", 1e308)),
        ({"types": {"A": 1}}, "invalid_name"),
        ({"types": {"mail": -1}}, "out_of_range"),
        ({"types": {"mail": "1"}}, "invalid_value"),
    ],
    ids=str,
)
def test_bad_claims(server: Server, worker: str, change: dict[str, Any], code: str) -> None:
    problem(server.post({"worker": worker, "request": 1, **change}, f"{WORK}/claim"), 422, code)


@pytest.mark.parametrize("leases", [["x"], ["-1"], [1], ["9" * 30], ["1.5"], "1", [""], ["٣"]], ids=str)
def test_bad_beats(server: Server, worker: str, leases: object) -> None:
    answer = server.post({"worker": worker, "request": 0, "leases": leases}, f"{WORK}/beat")
    problem(answer, 422)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"ending": "exploded"}, "invalid_value"),
        ({"ending": "completed", "error": {"code": "x"}}, "contradiction"),
        ({"ending": "failed", "result": 1}, "contradiction"),
        ({"ending": "waiting"}, "required"),
        ({"ending": "snoozed"}, "required"),
        ({"ending": "snoozed", "after": -1}, "invalid_duration"),
        ({"ending": "completed", "result": "x" * (256 << 10)}, "payload_too_large"),
        ({"ending": "completed", "then": [{"type": "A", "payload": 1}]}, "invalid_name"),
        ({"ending": "completed", "then": [1]}, "invalid_value"),
        ({"ending": "waiting", "tasks": ["x"]}, "invalid_id"),
        ({"ending": "completed", "token": "x"}, None),
        ({"ending": "completed", "task": "x"}, "invalid_id"),
    ],
    ids=str,
)
def test_bad_outcomes(server: Server, worker: str, change: dict[str, Any], code: str | None) -> None:
    outcome = {"task": SOME_ID, "token": "1", **change}
    answer = server.post({"worker": worker, "outcomes": [outcome]}, f"{WORK}/finish")
    problem(answer, 413 if code == "payload_too_large" else 422, code)
    both = server.post({"worker": worker, "outcomes": [outcome, outcome]}, f"{WORK}/finish")
    assert (both.status, both.data["refused"]) == (200, 2)


def test_an_old_token(server: Server, worker: str) -> None:
    id = server.post({**GOOD, "queue": "protocol", "type": "mail"}).data["id"]
    mine = server.post({"types": {"mail": None}, "queues": ["protocol"]}, f"{WORK}/join").data["worker"]
    [claimed] = server.post({"worker": mine, "request": 1}, f"{WORK}/claim").data["tasks"]
    assert claimed["id"] == id
    old = {"task": id, "token": str(int(claimed["token"]) - 1), "ending": "completed"}
    problem(server.post({"worker": mine, "outcomes": [old]}, f"{WORK}/finish"), 409, "stale_lease")
    problem(server.post({"worker": worker, "outcomes": [{**old, "token": claimed["token"]}]}, f"{WORK}/finish"), 409, "stale_lease")
    assert problem(server.post(b"", f"{TASKS}/{id}:requeue"), 409, "not_terminal")["state"] == "running"
    assert server.post({"worker": mine, "outcomes": [{**old, "token": claimed["token"]}]}, f"{WORK}/finish").data["applied"] == 1
    problem(server.post({"worker": mine, "outcomes": [old]}, f"{WORK}/finish"), 409, "stale_lease")
    assert server.call("GET", f"{TASKS}/{id}").data["state"] == "completed"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({}, "required"),
        ({"ids": []}, "batch_empty"),
        ({"ids": ["x"]}, None),
        ({"ids": [SOME_ID] * 10_001}, "batch_too_large"),
        ({"ids": [OTHER_ID], "timeout": "2m"}, None),
        ({"ids": [OTHER_ID], "nonsense": 1}, "unknown_field"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_bad_waits_for_many(server: Server, body: object, code: str | None) -> None:
    problem(server.post(body, f"{TASKS}:wait"), 422, code)


# Streams


@pytest.mark.parametrize("path", ["/ws", f"{V1}/events"])
def test_streams_have_the_same_door(server: Server, path: str) -> None:
    upgrade = (
        {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ=="}
        if path == "/ws"
        else {}
    )
    problem(server.raw(request("GET", path, headers={**upgrade, "Host": "evil.example"})), 403, "invalid_host")
    problem(server.raw(request("GET", path, headers={**upgrade, "Origin": "https://evil.example"})), 403)
    large = server.raw(request("GET", path + "?x=" + "a" * 40_000, headers=upgrade))
    problem(large, 431 if upgrade else 414)
    problem(server.raw(request("GET", path, headers={**upgrade, **{f"X-{number}": "a" for number in range(120)}})), 431, "headers_too_large")
    problem(server.raw(request("GET", path, headers={**upgrade, "X": "a" * 33_000})), 431, "headers_too_large")


@pytest.mark.parametrize("path", ["/", "/wss", "/api/v1/tasks", "/healthz"])
def test_an_upgrade_where_there_is_none(server: Server, path: str) -> None:
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ=="}
    problem(server.raw(request("GET", path, headers=upgrade)), 404, "no_route")
