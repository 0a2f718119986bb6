"""Chance against the server: whatever is sent, the answer is a documented success or a refusal in problem+json; and what is stored is what was sent."""

from __future__ import annotations

import contextlib
import json
import re
from typing import Any
from urllib.parse import quote

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from taskmill.server.openapi import refusals
from taskmill.server.rest import ROUTES, STREAMS
from taskmill.server.rest.tasks import TaskBody
from taskmill.server.routes import Stream
from taskmill.task import State
from tests.surfaces.bad_bodies import EVERY, GOOD, SOME_ID, task
from tests.surfaces.bad_http import TASKS, Answer, Server, problem, read_answer, received, request

bounded = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))

texts = st.text(st.characters() | st.sampled_from("\0\ud800\udfff\u202e\n\r'\"{}[]:;/*%$\\é日"), max_size=30)
numbers = st.integers() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(texts, inner, max_size=5),
    max_leaves=30,
)
hints = st.sampled_from(
    [
        "default",
        "high",
        "5m",
        "-1s",
        "2030-01-01T00:00:00Z",
        "0001-01-01T00:00:00+23:59",
        SOME_ID,
        SOME_ID.upper(),
        "a" * 300,
        0,
        -1,
        2**31,
        1e308,
        [],
        {},
        [SOME_ID],
    ]
)
fields = st.dictionaries(st.sampled_from(TaskBody.__struct_fields__) | texts, values | hints, max_size=6)


def sound(answer: Answer, *good: int) -> bool:
    """Whether it is a success; if not, it is a refusal as it should be."""
    if answer.status in good:
        assert answer.headers["content-type"] == "application/json"
        return True
    assert 400 <= answer.status < 500, answer
    problem(answer, answer.status)
    return False


def kept(server: Server, sent: dict[str, Any], id: str) -> None:
    """The record has what was sent."""
    stored = server.call("GET", f"{TASKS}/{id}").data
    assert stored["payload"] == sent["payload"]
    for name in ("type", "queue", "id", "priority", "idempotency_key", "order_key"):
        assert sent.get(name) in (None, stored[name])
    for name in ("tags", "headers"):
        assert (sent.get(name) or {}) == stored[name]


def newest(server: Server) -> list[str]:
    return [task["id"] for task in server.call("GET", f"{TASKS}?limit=1").data["tasks"]]


@bounded
@given(values)
def test_any_json_as_a_task(server: Server, value: Any) -> None:
    if sound(server.post(value), 202):
        raise AssertionError("nothing of this is a task")


@bounded
@given(values)
@example(2**64)
@example(-(2**63))
@example({"": {"": ""}})
@example([1e308, -0.0, 5e-324])
def test_any_payload_comes_back_as_it_was(server: Server, payload: Any) -> None:
    sent = {**GOOD, "payload": payload}
    answer = server.post(sent)
    if sound(answer, 202):
        kept(server, sent, answer.data["id"])
    else:
        assert answer.code in {"nul_character", "lone_surrogate", "integer_too_large", "too_deep"}


@bounded
@given(fields)
def test_any_fields_of_a_task(server: Server, given: dict[str, Any]) -> None:
    sent = {**GOOD, **given}
    before = newest(server)
    answer = server.post(sent)
    if sound(answer, 202):
        kept(server, sent, answer.data["id"])
        if answer.data["status"] == "created":
            server.call("POST", f"{TASKS}/{answer.data['id']}:cancel", b"")
            server.call("POST", f"{TASKS}/{answer.data['id']}:delete", b"")
    else:
        assert newest(server) == before


@bounded
@given(st.binary(max_size=200) | st.sampled_from([case.body for case in EVERY if len(case.body) < 1_000]), st.integers(0, 400), st.binary(max_size=3))
def test_any_bytes_as_a_body(server: Server, start: bytes, place: int, inserted: bytes) -> None:
    sound(server.post(start[:place] + inserted + start[place + 1 :]), 202)


@bounded
@given(st.integers(0, 90), st.integers(0, 5), st.binary(max_size=3))
def test_a_task_with_a_few_bytes_changed(server: Server, place: int, dropped: int, inserted: bytes) -> None:
    body = task(priority="high", delay="5m")
    body = body[:place] + inserted + body[place + dropped :]
    answer = server.post(body)
    if sound(answer, 202):
        kept(server, json.loads(body), answer.data["id"])


@settings(bounded, max_examples=60)
@given(st.lists(values | fields.map(lambda given: {**GOOD, **given}) | st.just(GOOD), max_size=8))
def test_any_batch(server: Server, tasks: list[Any]) -> None:
    answer = server.post({"tasks": tasks}, f"{TASKS}:batch")
    if sound(answer, 202):
        found = answer.data["answers"]
        assert len(found) == len(tasks) == answer.data["accepted"] + answer.data["refused"]
        for sent, each in zip(tasks, found, strict=True):
            if "error" in each:
                assert 400 <= each["error"]["status"] < 500
            elif each["status"] == "created":
                kept(server, sent, each["id"])


names = st.sampled_from(["state", "type", "queue", "tenant", "tag", "since", "until", "limit", "cursor", "wait"]) | texts
wanted = texts | st.integers().map(str) | st.sampled_from([*State, "mail", "default", "a=b", "2030-01-01T00:00:00Z", "1.00000000", "10", "1000"])


def escaped(text: str) -> str:
    return quote(text.encode("utf-8", "surrogatepass"), safe="")


@bounded
@given(st.lists(st.tuples(names, wanted), max_size=5), st.sampled_from(["", ":count"]))
def test_any_query(server: Server, pairs: list[tuple[str, str]], verb: str) -> None:
    query = "&".join(f"{escaped(name)}={escaped(value)}" for name, value in pairs)
    sound(server.call("GET", f"{TASKS}{verb}?{query}"), 200)


@bounded
@given(st.binary(max_size=60))
def test_any_bytes_as_a_query(server: Server, data: bytes) -> None:
    sound(server.raw(b"GET /api/v1/tasks?" + data.translate(None, b" \r\n") + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"), 200)


pieces = st.sampled_from(["api", "v1", "tasks", "tasks:batch", SOME_ID, "..", "%2e", "%00", "healthz", ";x", "%ff", ":cancel", "attempts", "é"]) | texts.map(
    escaped
)
methods = st.sampled_from(["GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "TRACE", "PATCH", "PROPFIND", "get", "X"])


@bounded
@given(methods, st.lists(pieces, max_size=6), st.booleans())
def test_any_method_and_path(server: Server, method: str, path: list[str], body: bool) -> None:
    """HEAD has no body to look at."""
    answer = server.raw(request(method, "/" + "/".join(path), b"{}" if body else None), method)
    assert answer.status < 500
    if method != "HEAD":
        sound(answer, 200, 202)


with_bodies = [route for route in ROUTES if route.body is not None and not route.path.startswith("/api/v1/keys")]
"""But for keys: the first one that is made would shut us out."""


@bounded
@given(st.sampled_from(with_bodies), st.data())
def test_any_json_to_any_route(server: Server, route: Any, data: st.DataObject) -> None:
    named = st.dictionaries(st.sampled_from(route.body.__struct_fields__ or ("x",)), values | hints, max_size=5)
    target = re.sub(r"\{\w+\}", data.draw(st.sampled_from([SOME_ID, "default", "mail"])), route.path)
    answer = server.call(route.method, target, json.dumps(data.draw(named | values)).encode())
    assert answer.status in {200, 201, 202, 204} or not sound(answer)


with_queries = [route for route in ROUTES if route.method == "GET" and route.scope is not None and not route.path.startswith("/metrics")]


@bounded
@given(st.sampled_from(with_queries), st.lists(st.tuples(names, wanted), max_size=3), pieces)
def test_any_query_to_any_route(server: Server, route: Any, pairs: list[tuple[str, str]], part: str) -> None:
    query = "&".join(f"{escaped(name)}={escaped(value)}" for name, value in pairs)
    target = re.sub(r"\{\w+\}", lambda _: part or "x", route.path)
    sound(server.call("GET", f"{target}?{query}"), 200)


conditions = st.sampled_from(["queue", "type", "task", "event", "tenant", "after"])
meant = st.sampled_from(["mail", "task.*", "task.completed", "resync", SOME_ID, "acme", "0197d82cba37-1"])
UPGRADE = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ=="}


@bounded
@given(st.sampled_from(STREAMS), st.lists(st.tuples(conditions | names, meant | wanted), max_size=4))
def test_any_query_to_any_stream(server: Server, stream: Stream, pairs: list[tuple[str, str]]) -> None:
    """It begins, as the document says, or is refused with a status that stands there."""
    query = "&".join(f"{escaped(name)}={escaped(value)}" for name, value in pairs)
    with server.connect() as peer:
        peer.sendall(request("GET", f"{stream.path}?{query}", None, UPGRADE if stream.status == 101 else {}))
        answer = read_answer(peer, endless=stream.status)
    assert answer.status in {stream.status, *refusals(stream)}
    if answer.status != stream.status:
        problem(answer, answer.status)
    elif stream.status == 200:
        assert answer.headers["content-type"] == "text/event-stream"


@bounded
@given(st.binary(max_size=300), st.sampled_from([b"", b"GET / HTTP/1.1\r\n", b"POST /api/v1/tasks HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"]))
def test_any_bytes_at_all(server: Server, data: bytes, start: bytes) -> None:
    """Half closed behind them, so that the server knows that no more will come."""
    with server.connect() as peer, contextlib.suppress(OSError):
        peer.sendall(start + data)
        peer.shutdown(1)
        found = received(peer)
        assert b"HTTP/1.1 5" not in found
        assert b"Traceback" not in found
    server.alive()
