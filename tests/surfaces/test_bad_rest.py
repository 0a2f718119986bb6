"""Bad bodies over REST, on every engine: the stated answer, nothing stored, nothing lost, and a server that goes on."""

from __future__ import annotations

import gzip
import json
import struct
import zlib
from pathlib import Path

import pytest

from tests.surfaces.bad_bodies import ACCEPTED, EVERY, GOOD, SOME_ID, Case, task
from tests.surfaces.bad_http import TASKS, Server, problem, request, serving, upgraded

BATCH = f"{TASKS}:batch"


def refused(server: Server, case: Case) -> None:
    before = server.ids()
    problem(server.post(case.body), case.status, case.code, case.field)
    assert server.ids() == before


def accepted(server: Server, body: bytes) -> None:
    """Stored once, and given back as it was sent."""
    answer = server.post(body)
    assert answer.status == 202, answer
    stored = server.call("GET", answer.headers["location"]).data
    assert stored["id"] == answer.data["id"]
    assert stored["payload"] == json.loads(body)["payload"]


@pytest.mark.parametrize("case", EVERY, ids=lambda case: case.name)
def test_a_bad_body_is_refused(server: Server, case: Case) -> None:
    refused(server, case)


@pytest.mark.parametrize("body", ACCEPTED.values(), ids=ACCEPTED)
def test_what_only_looks_bad_is_taken(server: Server, body: bytes) -> None:
    accepted(server, body)


@pytest.mark.parametrize("engine", ["postgres", "redis"])
def test_other_engines_answer_the_same(engine: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    with serving(upgraded(request.getfixturevalue(f"{engine}_url")), tmp_path) as server:
        for case in EVERY:
            problem(server.post(case.body), case.status, case.code, case.field)
        assert server.ids() == set()
        for body in ACCEPTED.values():
            accepted(server, body)
        assert len(server.ids()) == len(ACCEPTED)


# Positions and hints


def test_the_place_in_the_text_is_told(server: Server) -> None:
    data = problem(server.post(b'{"type": "mail",\n "payload": tru}'), 400, "invalid_json")
    assert "line 2, column 13" in data["title"]


def test_a_misspelt_field_is_told_the_right_one(server: Server) -> None:
    assert "priority" in problem(server.post(task(prioritty="high")), 422, "unknown_field")["hint"]


def test_bounds_are_told(server: Server) -> None:
    assert "0 to 1000" in problem(server.post(task(max_retries=-1)), 422, "out_of_range")["hint"]


# Keys


def test_the_same_key_with_another_payload_names_the_first_task(server: Server) -> None:
    first = server.post({**GOOD, "idempotency_key": "order-7"}).data["id"]
    again = server.post({**GOOD, "idempotency_key": "order-7"})
    assert (again.status, again.data["id"], again.data["status"]) == (202, first, "duplicate")
    data = problem(server.post({**GOOD, "payload": {"n": 2}, "idempotency_key": "order-7"}), 409)
    assert data["task_id"] == first


@pytest.mark.parametrize("value", ["", "k" * 257, "a\x7fb", "\udcff\udcfe"], ids=["empty", "long", "control", "not utf-8"])
def test_a_bad_key_in_the_header(server: Server, value: str) -> None:
    before = server.ids()
    answer = server.post(GOOD, headers={"Idempotency-Key": value})
    assert answer.code in {"invalid_key", "invalid_request"}
    problem(answer, 422 if answer.code == "invalid_key" else 400)
    assert server.ids() == before


def test_two_different_keys(server: Server) -> None:
    problem(server.post({**GOOD, "idempotency_key": "a"}, headers={"Idempotency-Key": "b"}), 422, "invalid_input", "idempotency_key")


def test_the_same_id_twice_is_one_task(server: Server) -> None:
    assert [server.post(task(id=SOME_ID)).data["status"] for _ in range(2)] == ["created", "duplicate"]


# Batches


def batch(server: Server, tasks: object, status: int, code: str, field: str | None = "tasks") -> None:
    before = server.ids()
    problem(server.post({"tasks": tasks}, BATCH), status, code, field)
    assert server.ids() == before


def test_a_batch_of_none_or_too_many(server: Server) -> None:
    batch(server, [], 422, "invalid_value")
    batch(server, [GOOD] * 10_001, 422, "invalid_value")


@pytest.mark.parametrize("tasks", [None, {}, "tasks", 7], ids=repr)
def test_a_batch_that_is_none(server: Server, tasks: object) -> None:
    batch(server, tasks, 422, "invalid_value")


def test_a_batch_of_more_than_32_mib(server: Server) -> None:
    body = b'{"tasks":["' + b"x" * ((32 << 20) - 13) + b'"]}'
    assert len(body) == (32 << 20) + 1
    problem(server.post(body, BATCH), 413, "body_too_large", "body")
    server.alive()


def test_a_batch_of_32_mib_is_read(server: Server) -> None:
    body = b'{"tasks":["' + b"x" * ((32 << 20) - 14) + b'"]}'
    assert len(body) == 32 << 20
    answer = server.post(body, BATCH)
    assert (answer.status, answer.data["refused"]) == (202, 1)


def test_every_item_is_answered_by_itself(server: Server) -> None:
    """All that a single submit refuses for what it means is refused in a batch, beside tasks that are stored."""
    cases = [
        case for case in EVERY if case.status == 422 and case.code not in {"nul_character", "lone_surrogate"} and case.name not in {"array", "null", "text"}
    ]
    items = [item for case in cases for item in (json.loads(case.body), GOOD)]
    before = server.ids()
    answer = server.post({"tasks": items}, BATCH)
    assert answer.status == 202
    assert (answer.data["accepted"], answer.data["refused"]) == (len(cases), len(cases))
    bad, good = answer.data["answers"][::2], answer.data["answers"][1::2]
    assert [each["error"]["code"] for each in bad] == [case.code for case in cases]
    assert {each["id"] for each in good} == server.ids() - before


@pytest.mark.parametrize("item", [1, None, "task", [], True, {"tasks": []}], ids=repr)
def test_an_item_that_is_no_task(server: Server, item: object) -> None:
    [answer] = server.post({"tasks": [item]}, BATCH).data["answers"]
    assert answer["error"]["status"] == 422
    assert answer["error"]["hint"]


# Encodings and content types


@pytest.mark.parametrize(
    "given",
    [None, "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "application/jsonp", "application/json; charset=utf-16",
     "application/json;charset=latin-1", "text/json", "*/*", "", ";", "application/vnd.api+json"],
)  # fmt: skip
def test_another_content_type(server: Server, given: str | None) -> None:
    """A page in a browser can send these without being asked."""
    before = server.ids()
    body = task()
    head = {"Content-Length": str(len(body)), **({} if given is None else {"Content-Type": given})}
    answer = server.raw(request("POST", TASKS, headers=head) + body)
    problem(answer, 415, "unsupported_media_type", "Content-Type")
    assert server.ids() == before


@pytest.mark.parametrize("given", ["application/json", "Application/JSON", "application/json; charset=UTF-8", 'application/json;charset="utf-8"'])
def test_the_right_content_type(server: Server, given: str) -> None:
    assert server.post(GOOD, headers={"Content-Type": given}).status == 202


@pytest.mark.parametrize("encoding", ["deflate", "br", "zstd", "gzip, gzip", "x", "gzip,identity"])
def test_another_encoding(server: Server, encoding: str) -> None:
    problem(server.post(task(), headers={"Content-Encoding": encoding}), 415, "unsupported_encoding", "Content-Encoding")


def packed(server: Server, data: bytes, status: int, code: str) -> None:
    before = server.ids()
    problem(server.post(data, headers={"Content-Encoding": "gzip"}), status, code, "body")
    assert server.ids() == before


def test_gzip(server: Server) -> None:
    whole = gzip.compress(task())
    assert server.post(whole, headers={"Content-Encoding": "GZIP"}).status == 202
    packed(server, whole[:-1], 400, "invalid_encoding")
    packed(server, whole[:9], 400, "invalid_encoding")
    packed(server, whole + whole, 400, "invalid_encoding")
    packed(server, whole + b"x", 400, "invalid_encoding")
    packed(server, task(), 400, "invalid_encoding")
    packed(server, zlib.compress(task()), 400, "invalid_encoding")
    packed(server, whole[:-8] + bytes(8), 400, "invalid_encoding")


def bomb(mebibytes: int) -> bytes:
    """An empty list with so many blanks in it. A piece that ends in a full flush stands for itself, so it can be repeated as it is."""
    blanks = b" " * (1 << 20)
    packing = zlib.compressobj(9, wbits=31)
    start = packing.compress(b"[") + packing.flush(zlib.Z_FULL_FLUSH)
    piece = packing.compress(blanks) + packing.flush(zlib.Z_FULL_FLUSH)
    end = packing.compress(b"]") + packing.flush()
    check = zlib.crc32(b"[")
    for _ in range(mebibytes):
        check = zlib.crc32(blanks, check)
    return start + piece * mebibytes + end[:-8] + struct.pack("<II", zlib.crc32(b"]", check), mebibytes * len(blanks) + 2)


def test_a_gzip_bomb_is_judged_by_what_it_becomes(server: Server) -> None:
    assert gzip.decompress(bomb(2)) == b"[" + b" " * (2 << 20) + b"]"
    before = server.memory()
    packed(server, bomb(1_024), 413, "body_too_large")
    assert server.memory() - before < 64 * 1024
