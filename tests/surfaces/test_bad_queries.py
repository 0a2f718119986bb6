"""Bad paths, methods, ids, parameters and changes over REST."""

from __future__ import annotations

import json
import re
from pathlib import Path
from urllib.parse import quote

import pytest

from taskmill.engine import Ending as End
from taskmill.server.rest import ROUTES, STREAMS
from taskmill.server.rest.pages import PAGE_SIZE
from tests.surfaces.bad_bodies import GOOD, SOME_ID, task
from tests.surfaces.bad_http import TASKS, Server, problem, request, serving, upgraded
from tests.surfaces.cli_tools import Cli

ID = "0189abcd-0000-7000-8000-0000000000ff"
"""A task that never was."""


@pytest.fixture(scope="module")
def stored(server: Server) -> str:
    """One task that is there."""
    return str(server.post(GOOD).data["id"])


# Paths and methods


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "//",
        "/api",
        "/api/v1",
        "/api/v1/",
        "/api/v2/tasks",
        "/API/V1/TASKS",
        f"{TASKS}/",
        "//api/v1/tasks",
        "/api//v1/tasks",
        "/api/v1//tasks",
        "/api/v1/%2e%2e/%2e%2e/etc/passwd",
        "/api/v1/../../etc/passwd",
        "/%2e%2e",
        "/..%2f..%2f",
        "/api/v1/./tasks",
        f"{TASKS}%00",
        "/api%2fv1%2ftasks",
        "/%00",
        f"{TASKS}/%E2%80%AE",
        f"{TASKS};v=1",
        f"{TASKS}:nothing",
        f"{TASKS}%0a",
        "/healthz/",
        "/healthz%20",
        "/%F0%9F%98%80",
        "/%ff%fe",
        "/favicon.ico",
        f"{TASKS}:",
        f"{TASKS}:batch:batch",
        f"{TASKS}/{ID}/attempts/",
        f"{TASKS}/{ID}/nothing",
        f"{TASKS}/{ID}%2fattempts",
        f"{TASKS}/{ID}//attempts",
        f"{TASKS}/{ID}:cancel%0a",
        "/api/v1/tasks\\..\\x",
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_no_such_path(server: Server, method: str, path: str) -> None:
    problem(server.call(method, path), 404, "no_route")


@pytest.mark.parametrize("path", sorted({route.path for route in ROUTES}))
@pytest.mark.parametrize("method", ["TRACE", "PUT", "PATCH", "DELETE", "OPTIONS", "PROPFIND", "GET", "POST"])
def test_a_method_that_a_path_does_not_have(server: Server, path: str, method: str) -> None:
    there = {route.method for route in ROUTES if route.path == path}
    if method in there:
        return
    answer = server.call(method, re.sub(r"\{\w+\}", ID, path), b"" if method in {"PUT", "PATCH", "POST"} else None)
    problem(answer, 405, "method_not_allowed")
    assert set(answer.headers["allow"].split(", ")) == there | ({"HEAD"} if "GET" in there else set())


@pytest.mark.parametrize("path", [stream.path for stream in STREAMS])
@pytest.mark.parametrize("method", ["TRACE", "PUT", "PATCH", "DELETE", "OPTIONS", "PROPFIND", "POST", "HEAD"])
def test_a_method_that_a_stream_does_not_have(server: Server, path: str, method: str) -> None:
    answer = server.call(method, path, b"" if method in {"PUT", "PATCH", "POST"} else None)
    assert (answer.status, answer.headers["allow"]) == (405, "GET")
    if method != "HEAD":
        problem(answer, 405, "method_not_allowed")


def test_a_websocket_that_is_asked_for_without_an_upgrade(server: Server) -> None:
    answer = server.call("GET", "/ws?queue=mail")
    problem(answer, 426, "upgrade_required")
    assert answer.headers["upgrade"] == "websocket"


@pytest.mark.parametrize(
    "id",
    ["x", "1", "-1", "null", "undefined", "..", ID.upper(), ID[:-1], ID + "0", ID.replace("-", ""), f"%7B{ID}%7D", f"urn:uuid:{ID}", "%27%20OR%201=1--",
     "%F0%9F%98%80",      "a" * 5_000, f"{ID}%00".replace("%00", "%20"), f"{ID}:x", "%ff"],
)  # fmt: skip
@pytest.mark.parametrize("rest", ["", "/attempts", "/edges", "?wait=1s"])
def test_an_id_that_is_none_is_a_task_that_is_not_there(server: Server, id: str, rest: str) -> None:
    problem(server.call("GET", f"{TASKS}/{id}{rest}"), 404, "not_found", "id")


@pytest.mark.parametrize("verb", ["cancel", "requeue", "delete"])
def test_a_change_of_a_task_that_is_not_there(server: Server, verb: str) -> None:
    for id in (ID, "x", ID.upper()):
        problem(server.post(b"", f"{TASKS}/{id}:{verb}"), 404, "not_found", "id")


# Parameters


@pytest.mark.parametrize(
    ("query", "code", "field"),
    [
        *((f"limit={value}", "out_of_range", "limit") for value in ("0", "-1", "1e9", "1001", "9" * 30)),
        *((f"limit={value}", "invalid_value", "limit") for value in ("ten", "", "1.5", "0x10", "%D9%A1", "true", "null")),
        ("limit[]=1", "unknown_field", "limit[]"),
        ("limit=1&limit=2", "invalid_value", "limit"),
        ("order_by=payload;--", "unknown_field", "order_by"),
        ("Limit=1", "unknown_field", "Limit"),
        ("=1", "unknown_field", ""),
        ("key=tm_0", "unknown_field", "key"),
        ("limit", "invalid_query", "query"),
        ("a=1&&b=2", "invalid_query", "query"),
        ("&", "invalid_query", "query"),
        ("type=%ff", "invalid_query", "query"),
        ("state=%zz", "invalid_value", "state"),
        ("&".join(f"a{n}=1" for n in range(300)), "invalid_query", "query"),
        *((f"state={value}", "invalid_value", "state") for value in ("", "done", "PENDING", "pending%00", "pending,dead")),
        *((f"type={value}", "invalid_name", "type") for value in ("", "A", "../x", "a%20b", "%27--")),
        ("queue=Q", "invalid_name", "queue"),
        ("queue=%00", "invalid_value", "queue"),
        ("tenant=%07", "invalid_key", "tenant"),
        *((f"tag={value}", "invalid_tag", "tag") for value in ("a", "")),
        ("tag=A=x", "invalid_name", "tag"),
        ("tag=a=x&tag=a=y", "contradiction", "tag"),
        *((f"since={value}", "invalid_time", "since") for value in ("yesterday", "", "2026-02-30T00:00:00Z", "10000-01-01T00:00:00Z")),
        ("until=2026-01-01T00:00:00", "timezone_required", "until"),
        ("since=2026-01-02T00:00:00Z&until=2026-01-01T00:00:00Z", "contradiction", "since"),
        *(
            (f"cursor={value}", "invalid_cursor", "cursor")
            for value in ("x", "-1", "1", "9" * 100, "1:2,3:4", "%D9%A1", "..", ".", "1.deadbeef", "a" * 500, "%27--")
        ),
        ("cursor=" + "a" * 25_000, "invalid_cursor", "cursor"),
    ],
)
def test_bad_parameters_of_a_list(server: Server, query: str, code: str, field: str) -> None:
    problem(server.call("GET", f"{TASKS}?{query}"), 422, code, field)


def test_bytes_in_a_query(server: Server) -> None:
    answer = server.raw(b"GET /api/v1/tasks?type=\xff HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    assert answer.code in {"invalid_query", "invalid_request"}
    problem(answer, 422 if answer.code == "invalid_query" else 400)


@pytest.mark.parametrize("wait", ["", "-1s", "61s", "1h", "soon", "NaN", "1e9", "5 s", "9" * 400 + "s"])
def test_bad_waits(server: Server, stored: str, wait: str) -> None:
    problem(server.call("GET", f"{TASKS}/{stored}?wait={quote(wait)}"), 422, "invalid_duration", "wait")


@pytest.mark.parametrize("query", ["after=-1", "after=x", "limit=0", "limit=1001", "after=99999999999"])
def test_bad_parameters_of_edges(server: Server, stored: str, query: str) -> None:
    problem(server.call("GET", f"{TASKS}/{stored}/edges?{query}"), 422, "invalid_value", query.partition("=")[0])


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/startupz", "/metrics", f"{TASKS}/{ID}/attempts"])
def test_parameters_where_there_are_none(server: Server, path: str) -> None:
    problem(server.call("GET", f"{path}?pretty=true"), 422, "unknown_field", "pretty")


def cursors(server: Server) -> None:
    """Pages follow each other; a cursor is good for what it was given for, and nothing else."""
    made = [server.post(GOOD).data["id"] for _ in range(5)]
    page = server.call("GET", f"{TASKS}?limit=2&queue=default").data
    assert [task["id"] for task in page["tasks"]] == made[:2:-1]
    cursor = quote(page["cursor"])
    following = server.call("GET", f"{TASKS}?limit=2&queue=default&cursor={cursor}").data
    assert [task["id"] for task in following["tasks"]] == made[2:0:-1]
    for other in (
        "",
        "&queue=other",
        "&queue=default&state=dead",
        "&queue=default&tag=a=b",
        "&queue=default&since=2020-01-01T00:00:00Z",
        "&queue=default&tenant=x",
    ):
        problem(server.call("GET", f"{TASKS}?cursor={cursor}{other}"), 422, "invalid_cursor", "cursor")
    mark = page["cursor"].rpartition(".")[2]
    for place in ("x", "9" * 30, "-1", "1e5", "٣", "9223372036854775808", "1:2:3", ",", "(1", "+inf", "1 2"):
        problem(server.call("GET", f"{TASKS}?queue=default&cursor={quote(place)}.{mark}"), 422, "invalid_cursor", "cursor")


def test_cursors(server: Server) -> None:
    cursors(server)


@pytest.mark.parametrize("engine", ["postgres", "redis"])
def test_cursors_on_other_engines(engine: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    with serving(upgraded(request.getfixturevalue(f"{engine}_url")), tmp_path) as server:
        cursors(server)


def test_a_page_of_large_payloads_ends_early_and_goes_on(tmp_path: Path) -> None:
    with serving(upgraded(f"sqlite:///{tmp_path}/store.db"), tmp_path) as server:
        large = {**GOOD, "payload": "x" * 250_000}
        for _ in range(2):
            assert server.post({"tasks": [large] * 100}, f"{TASKS}:batch").data["accepted"] == 100
        found: list[str] = []
        cursor: str | None = ""
        while cursor is not None:
            page = server.call("GET", f"{TASKS}?limit=1000{cursor and f'&cursor={cursor}'}").data
            assert 0 < len(page["tasks"]) <= PAGE_SIZE // 250_000 + 1
            found += [each["id"] for each in page["tasks"]]
            cursor = page["cursor"]
        assert len(found) == len(set(found)) == 200


# Changes


def test_changes_that_a_task_is_not_in_the_state_for(server: Server) -> None:
    id = server.post(GOOD).data["id"]
    for verb in ("requeue", "delete"):
        assert problem(server.post(b"", f"{TASKS}/{id}:{verb}"), 409, "not_terminal", "id")["state"] == "pending"
    for _ in range(2):  # the same wish again, in case its answer was lost
        assert server.post(b"", f"{TASKS}/{id}:cancel").data["state"] == "cancelled"
    assert server.post(b"", f"{TASKS}/{id}:delete").status == 200
    assert problem(server.call("GET", f"{TASKS}/{id}"), 410, "expired", "id")["state"] == "cancelled"


@pytest.mark.parametrize(("ending", "state"), [(End.COMPLETED, "completed"), (End.DEAD, "dead")])
def test_a_task_that_has_ended_is_not_cancelled(cli: Cli, tmp_path: Path, ending: End, state: str) -> None:
    cli.submit("mail", "post")
    [id] = cli.end(ending, "mail")
    with serving(cli.url, tmp_path) as server:
        data = problem(server.post(b"", f"{TASKS}/{id}:cancel"), 409, "terminal", "id")
        assert (data["state"], data["task_id"]) == (state, id)
        assert server.post({"ids": [id]}, f"{TASKS}:cancel").data["refused"] == {"terminal": 1}


@pytest.mark.parametrize(
    ("body", "status", "code", "field"),
    [
        (b"{", 400, "invalid_json", "body"),
        (b"[]", 422, "invalid_value", "body"),
        (b'{"version":"1"}', 422, "invalid_value", "version"),
        (b'{"version":99}', 409, "stale_version", "version"),
        (b'{"version":-1}', 422, "invalid_value", "version"),
        (b'{"version":18446744073709551615}', 422, "invalid_value", "version"),
        (b'{"from_start":1}', 422, "invalid_value", "from_start"),
        (b'{"force":true}', 422, "unknown_field", "force"),
    ],
)
@pytest.mark.parametrize("verb", ["cancel"])
def test_bad_bodies_of_a_change(server: Server, stored: str, verb: str, body: bytes, status: int, code: str, field: str) -> None:
    problem(server.post(body, f"{TASKS}/{stored}:{verb}"), status, code, field)
    assert server.call("GET", f"{TASKS}/{stored}").data["state"] == "pending"


@pytest.mark.parametrize(
    ("body", "code", "field"),
    [
        ({}, "which_required", "ids"),
        ({"ids": [], "dry_run": True}, "batch_empty", "ids"),
        ({"ids": [ID] * 10_001}, "batch_too_large", "ids"),
        ({"ids": ["x"]}, "invalid_id", "ids"),
        ({"ids": [1]}, "invalid_value", "ids[0]"),
        ({"ids": [ID], "filter": {}}, "contradiction", "ids"),
        ({"filter": {}}, "confirm_required", "confirm"),
        ({"filter": {"state": ["pending"]}}, "confirm_required", "confirm"),
        ({"filter": {"state": ["gone"]}, "confirm": True}, "invalid_value", "state"),
        ({"filter": {"order_by": "x"}, "confirm": True}, "unknown_field", "filter.order_by"),
        ({"filter": {}, "confirm": "yes"}, "invalid_value", "confirm"),
        ({"filter": None, "confirm": True}, "invalid_value", "filter"),
        ({"everything": True}, "unknown_field", "everything"),
    ],
    ids=lambda value: json.dumps(value)[:40] if isinstance(value, dict) else None,
)
@pytest.mark.parametrize("verb", ["cancel", "requeue", "delete"])
def test_bad_changes_of_many(server: Server, stored: str, verb: str, body: object, code: str, field: str) -> None:
    problem(server.post(body, f"{TASKS}:{verb}"), 422, code, field)
    assert server.call("GET", f"{TASKS}/{stored}").data["state"] == "pending"


@pytest.mark.parametrize(
    ("body", "code", "field"),
    [
        ({}, "required", "name"),
        ({"name": "A b"}, "invalid_name", "name"),
        ({"name": 1}, "invalid_value", "name"),
        ({"name": "go", "id": ""}, "invalid_key", "id"),
        ({"name": "go", "data": "x" * (256 << 10)}, "payload_too_large", "data"),
        ({"name": "go", "to": "x"}, "unknown_field", "to"),
    ],
)
def test_bad_signals(server: Server, stored: str, body: object, code: str, field: str | None) -> None:
    answer = server.post(body, f"{TASKS}/{stored}:signal")
    problem(answer, 413 if code == "payload_too_large" else 422, code, field)


def test_a_signal_for_nobody(server: Server) -> None:
    problem(server.post({"name": "go"}, f"{TASKS}/{ID}:signal"), 404, "not_found", "id")


# Other sites


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8080", "127.0.0.1.evil.example", "localhost.evil.example", "127.0.0.1@evil.example", "10.0.0.1", "[::2]", "x"]
)
def test_a_name_of_somebody_else_that_leads_here(server: Server, host: str) -> None:
    """A page that has its name point to this machine speaks with a server without keys as if it were its own."""
    before = server.ids()
    problem(server.post(task(), headers={"Host": host}), 403, "invalid_host")
    problem(server.call("GET", TASKS, headers={"Host": host}), 403, "invalid_host")
    assert server.ids() == before


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:80", "127.0.0.1:8080", "[::1]", "[::1]:8080"])
def test_this_machine_s_own_names(server: Server, host: str) -> None:
    assert server.call("GET", TASKS, headers={"Host": host}).status == 200


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "", "http://127.0.0.1.evil.example", "file://", "http://localhost@evil.example", "localhost"]
)
def test_a_page_of_another_site(server: Server, stored: str, origin: str) -> None:
    """A browser sends a POST without a body for any page, and asks nobody before."""
    problem(server.call("POST", f"{TASKS}/{stored}:cancel", b"", {"Origin": origin}), 403, "foreign_origin")
    assert server.call("GET", f"{TASKS}/{stored}").data["state"] == "pending"


def test_a_page_of_this_machine(server: Server) -> None:
    for origin in (f"http://localhost:{server.port}", f"http://127.0.0.1:{server.port}", f"http://[::1]:{server.port}"):
        assert server.call("GET", TASKS, headers={"Host": f"127.0.0.1:{server.port}", "Origin": origin}).status == 200


def test_a_get_with_a_body_is_answered_and_its_body_is_no_request(server: Server) -> None:
    body = request("POST", TASKS, task())
    before = server.ids()
    found = server.all(request("GET", "/healthz", headers={"Content-Length": str(len(body))}) + body)
    assert found.count(b"HTTP/1.1 ") == 1
    assert server.ids() == before


def test_the_id_of_a_stored_task_in_other_forms(server: Server) -> None:
    server.post(task(id=SOME_ID))
    assert server.call("GET", f"{TASKS}/{SOME_ID}").status == 200
    problem(server.call("GET", f"{TASKS}/{SOME_ID.upper()}"), 404, "not_found")
