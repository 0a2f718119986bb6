"""Bytes that are no request, or two: each is answered in problem+json and closed, and no request is ever made of what belongs to another one."""

from __future__ import annotations

import pytest

from taskmill.server.connection import MOST_PIPELINED
from tests.surfaces.bad_bodies import task
from tests.surfaces.bad_http import TASKS, Answer, Server, problem, read_answer, received, request

HOST = b"Host: 127.0.0.1\r\n"
GET = b"GET /healthz HTTP/1.1\r\n" + HOST
POST = b"POST /api/v1/tasks HTTP/1.1\r\n" + HOST + b"Content-Type: application/json\r\n"
BODY = task()
LENGTH = b"Content-Length: %d\r\n" % len(BODY)
CHUNKED = b"Transfer-Encoding: chunked\r\n"
WHOLE = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
AGAIN = request("POST", TASKS, BODY)

NO_REQUEST = {
    "garbage": b"\x00\x01\xff\xfe\r\n\r\n",
    "one byte": b"\x80\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00",
    "HTTP/0.9": b"GET /healthz\r\n\r\n",
    "HTTP/2.0 in words": b"GET /healthz HTTP/2.0\r\n" + HOST + b"\r\n",
    "HTTP/9.9": b"GET /healthz HTTP/9.9\r\n" + HOST + b"\r\n",
    "HTTP/1.1 in small letters": b"GET /healthz http/1.1\r\n" + HOST + b"\r\n",
    "a method in small letters": b"get /healthz HTTP/1.1\r\n" + HOST + b"\r\n",
    "no method": b"TAKE /healthz HTTP/1.1\r\n" + HOST + b"\r\n",
    "SMTP": b"HELO taskmill\r\n",
    "CONNECT": b"CONNECT 127.0.0.1:22 HTTP/1.1\r\n" + HOST + b"\r\n",
    "a path without a slash": b"GET healthz HTTP/1.1\r\n" + HOST + b"\r\n",
    "a query alone": b"GET ?x=1 HTTP/1.1\r\n" + HOST + b"\r\n",
    "a host alone": b"GET http://127.0.0.1 HTTP/1.1\r\n" + HOST + b"\r\n",
    "a blank in the path": b"GET /health z HTTP/1.1\r\n" + HOST + b"\r\n",
    "bytes in the path": b"GET /\xff\xfe HTTP/1.1\r\n" + HOST + b"\r\n",
    "UTF-8 in the path": "GET /é HTTP/1.1\r\n".encode() + HOST + b"\r\n",
    "NUL in the path": b"GET /\x00 HTTP/1.1\r\n" + HOST + b"\r\n",
    "bare LF": b"GET /healthz HTTP/1.1\nHost: 127.0.0.1\n\n",
    "bare CR in a header": GET + b"X: a\rb\r\n\r\n",
    "NUL in a header": GET + b"X: a\x00b\r\n\r\n",
    "a header without a colon": GET + b"nonsense\r\n\r\n",
    "a header without a name": GET + b": x\r\n\r\n",
    "a blank before the colon": GET + b"X : a\r\n\r\n",
    "a header in two lines": GET + b"X: a\r\n b\r\n\r\n",
    "a name with a bracket": GET + b"X(: a\r\n\r\n",
    "length negative": POST + b"Content-Length: -1\r\n\r\n" + BODY,
    "length with a sign": POST + b"Content-Length: +%d\r\n\r\n" % len(BODY) + BODY,
    "length hexadecimal": POST + b"Content-Length: 0x10\r\n\r\n" + BODY,
    "length empty": POST + b"Content-Length:\r\n\r\n" + BODY,
    "length of 26 digits": POST + b"Content-Length: 99999999999999999999999999\r\n\r\n" + BODY,
    "length twice": POST + LENGTH + LENGTH + b"\r\n" + BODY,
    "two lengths": POST + LENGTH + b"Content-Length: 2\r\n\r\n" + BODY,
    "two lengths in one": POST + b"Content-Length: 2, 2\r\n\r\n{}",
    "length and chunks": POST + LENGTH + CHUNKED + b"\r\n" + WHOLE,
    "chunks and length": POST + CHUNKED + b"Content-Length: 4\r\n\r\n" + WHOLE,
    "unknown transfer": POST + b"Transfer-Encoding: xchunked\r\n\r\n" + WHOLE,
    "identity": POST + b"Transfer-Encoding: identity\r\n\r\n" + BODY,
    "chunked is not last": POST + b"Transfer-Encoding: chunked, identity\r\n\r\n" + WHOLE,
    "chunk without a size": POST + CHUNKED + b"\r\nzz\r\n{}\r\n0\r\n\r\n",
    "chunk with a sign": POST + CHUNKED + b"\r\n-2\r\n{}\r\n0\r\n\r\n",
    "chunk that overflows": POST + CHUNKED + b"\r\nffffffffffffffffff\r\n{}\r\n0\r\n\r\n",
    "chunk longer than it says": POST + CHUNKED + b"\r\n2\r\n{}{}\r\n0\r\n\r\n",
    "chunk with bare LF": POST + CHUNKED + b"\r\n2\n{}\n0\n\n",
}  # fmt: skip


def last(server: Server, data: bytes) -> Answer:
    """The only answer; then the server closes."""
    with server.connect() as connection:
        connection.sendall(data)
        answer = read_answer(connection)
        assert received(connection) == b""
    assert answer.headers["connection"] == "close"
    return answer


@pytest.mark.parametrize("data", NO_REQUEST.values(), ids=NO_REQUEST)
def test_no_request(server: Server, data: bytes) -> None:
    before = server.ids()
    problem(last(server, data), 400, "invalid_request")
    assert server.ids() == before


@pytest.mark.parametrize("data", [data for name, data in NO_REQUEST.items() if "length" in name or "chunk" in name or "transfer" in name])
def test_nothing_behind_a_broken_request_is_one(server: Server, data: bytes) -> None:
    """What a proxy took for a body may be a request to us: it is not looked at."""
    before = server.ids()
    problem(last(server, data + AGAIN), 400, "invalid_request")
    assert server.ids() == before


@pytest.mark.parametrize("size", [1, 2, 7, 50])
def test_a_request_in_small_pieces_is_one(server: Server, size: int) -> None:
    data = POST + CHUNKED + b"\r\n" + b"".join(b"1;note=x\r\n%c\r\n" % byte for byte in BODY) + b"0\r\n\r\n"
    with server.connect() as connection:
        for start in range(0, len(data), size):
            connection.send(data[start : start + size])
        assert read_answer(connection).status == 202


def test_the_rest_of_a_body_is_no_request(server: Server) -> None:
    """Content-Length is shorter than what is sent: the rest is garbage, and the task was whole."""
    found = server.all(POST + LENGTH + b"\r\n" + BODY + b"xxxx\r\n\r\n")
    assert found.startswith(b"HTTP/1.1 202 ")
    assert found.count(b"HTTP/1.1 ") == 1


def test_a_body_that_never_ends_stores_nothing(server: Server) -> None:
    """Content-Length is longer than what is sent, and the caller goes."""
    before = server.ids()
    with server.connect() as connection:
        connection.sendall(POST + b"Content-Length: 1000\r\n\r\n" + BODY)
    with server.connect() as connection:
        connection.sendall(POST + CHUNKED + b"\r\n" + WHOLE[:-5])
    server.alive()
    assert server.ids() == before


def test_what_follows_the_last_chunk_is_no_header(server: Server) -> None:
    head = b"POST /api/v1/tasks HTTP/1.1\r\n" + HOST + CHUNKED
    answer = server.raw(head + b"\r\n" + WHOLE[:-2] + b"Content-Type: application/json\r\n\r\n")
    problem(answer, 415, "unsupported_media_type")


# Many requests


def test_requests_in_one_piece_are_answered_in_order(server: Server) -> None:
    data = b"".join(request("GET", path) for path in ("/healthz", "/nowhere", "/readyz"))
    with server.connect() as connection:
        connection.sendall(data + request("GET", "/startupz", headers={"Connection": "close"}))
        found = received(connection)
    assert [found.count(b"HTTP/1.1 %d " % status) for status in (200, 404)] == [3, 1]
    assert found.index(b'"live"') < found.index(b'"no_route"') < found.index(b'"ready"') < found.index(b'"started"')


def test_garbage_behind_a_request_does_not_take_its_answer(server: Server) -> None:
    before = server.ids()
    found = server.all(AGAIN + b"\x00\x00garbage\r\n\r\n")
    assert found.startswith(b"HTTP/1.1 202 ")
    assert b"connection: close" in found
    assert len(server.ids() - before) == 1


def test_thousands_of_requests_without_reading(server: Server) -> None:
    """They would all be held in memory until the first is answered."""
    assert server.all(request("GET", "/healthz") * 1_000).count(b"HTTP/1.1 200 ") <= MOST_PIPELINED + 1
    server.alive()


def test_a_broken_body_behind_an_unanswered_request(server: Server) -> None:
    server.all(request("GET", "/healthz") + POST + CHUNKED + b"\r\nzz\r\n")
    server.alive()


# What is like a request


@pytest.mark.parametrize("upgrade", ["h2c", "TLS/1.0", "mystery"])
def test_another_protocol_is_not_taken_up(server: Server, upgrade: str) -> None:
    head = request("GET", "/healthz", headers={"Connection": "Upgrade, HTTP2-Settings", "Upgrade": upgrade, "HTTP2-Settings": "AAMAAABkAAQAAP__"})
    found = server.all(head + AGAIN)
    assert found.startswith(b"HTTP/1.1 200 ")
    assert found.count(b"HTTP/1.1 ") == 1


def test_forms_of_a_target_that_are_right(server: Server) -> None:
    assert server.call("GET", "http://127.0.0.1/healthz").status == 200
    assert server.call("GET", "/healthz#part").status == 200
    assert server.raw(b"\r\n\r\n" + GET + b"\r\n").status == 200
    assert server.raw(b"GET /healthz HTTP/1.0\r\n\r\n").status == 200
    problem(server.call("OPTIONS", "*"), 404, "no_route")


def test_expect_continue(server: Server) -> None:
    with server.connect() as connection:
        connection.sendall(POST + b"Expect: 100-continue\r\n" + LENGTH + b"\r\n")
        assert connection.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(BODY)
        assert read_answer(connection).status == 202


def test_expect_continue_is_not_asked_for_what_is_refused(server: Server) -> None:
    with server.connect() as connection:
        connection.sendall(POST + b"Expect: 100-continue\r\nContent-Length: 10737418240\r\n\r\n")
        answer = read_answer(connection)
    problem(answer, 413, "body_too_large")
    assert answer.headers["connection"] == "close"


def test_ranges_are_not_known(server: Server) -> None:
    assert server.call("GET", "/healthz", headers={"Range": "bytes=0-1", "If-None-Match": "*"}).body == b'{"live":true}'


@pytest.mark.parametrize("path", ["/healthz", TASKS, "/nowhere", f"{TASKS}?limit=0"])
def test_head_is_get_without_its_body(server: Server, path: str) -> None:
    get, head = server.call("GET", path), server.call("HEAD", path)
    assert (head.status, head.body, head.headers["content-type"]) == (get.status, b"", get.headers["content-type"])


# Heads


@pytest.mark.parametrize("head", [b"", b"Host:\r\n"], ids=["none", "empty"])
def test_no_host(server: Server, head: bytes) -> None:
    problem(server.raw(b"GET /healthz HTTP/1.1\r\n" + head + b"\r\n"), 400, "host_required", "Host")


@pytest.mark.parametrize("name", ["Host", "Content-Type", "Content-Encoding", "Idempotency-Key"])
def test_a_header_twice(server: Server, name: str) -> None:
    before = server.ids()
    value = {"Host": "127.0.0.1", "Content-Type": "application/json", "Content-Encoding": "identity", "Idempotency-Key": "k"}[name]
    twice = f"{name}: {value}\r\n".encode()
    head = b"POST /api/v1/tasks HTTP/1.1\r\n" + (b"" if name == "Host" else HOST) + LENGTH
    problem(server.raw(head + twice + twice + b"\r\n" + BODY), 400, "duplicate_header", name)
    assert server.ids() == before


@pytest.mark.parametrize("path", ["/healthz", TASKS, f"{TASKS}/x"])
def test_heads_that_are_too_large(server: Server, path: str) -> None:
    many = {f"X-{number}": "a" for number in range(1_000)}
    problem(server.call("GET", path, headers=many), 431, "headers_too_large")
    problem(server.call("GET", path, headers={"X": "a" * 65_536}), 431, "headers_too_large")
    problem(server.call("GET", path, headers={"X" * 65_536: "a"}), 431, "headers_too_large")
    problem(server.call("GET", path, headers={"X": "a" * 32_768}), 431, "headers_too_large")
    assert server.call("GET", "/healthz", headers={"X": "a" * 30_000}).status == 200


def test_a_url_that_is_too_long(server: Server) -> None:
    problem(server.call("GET", "/healthz?" + "a" * 40_000), 414, "url_too_long")
    problem(server.call("GET", "/" + "a" * 40_000), 404, "no_route")
    problem(server.call("GET", "/" + "a" * 1_000_000), 431, "headers_too_large")


def test_a_request_id_is_repeated_only_where_a_log_can_take_it(server: Server) -> None:
    assert server.call("GET", "/nowhere", headers={"X-Request-Id": "order-7_a"}).data["request_id"] == "order-7_a"
    for bad in ("a b", "a" * 65, "\x1b[2J", "é", "--", ""):
        assert server.raw(request("GET", "/nowhere", headers={"X-Request-Id": bad})).data["request_id"] != bad
