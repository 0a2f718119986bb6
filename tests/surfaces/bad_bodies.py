"""Bodies of a submit that are refused, each with its answer: the status, the code and the field that is named."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

GOOD = {"type": "mail", "payload": {"n": 1}, "queue": "default"}
SOME_ID = "0189abcd-0000-7000-8000-00000000000a"
OTHER_ID = "01890000-0000-7000-8000-000000000002"


class Case(NamedTuple):
    """What is sent as it is, and what is answered."""

    name: str
    body: bytes
    status: int
    code: str
    field: str | None = None


def task(**changes: Any) -> bytes:
    """A good task but for what is changed; None leaves a field out."""
    return json.dumps({name: value for name, value in {**GOOD, **changes}.items() if value is not None}).encode()


def _text(payload: bytes) -> bytes:
    """A task whose payload is written as it is."""
    return b'{"type":"mail","queue":"default","payload":' + payload + b"}"


UNREADABLE = [
    Case("empty", b"", 400, "body_required", "body"),
    Case("blanks", b" \r\n\t ", 400, "body_required", "body"),
    Case("cut off", b"{", 400, "invalid_json", "body"),
    Case("no json", b"hello", 400, "invalid_json", "body"),
    Case("two values", task() + b"{}", 400, "invalid_json", "body"),
    Case("trailing comma", b'{"type":"mail",}', 400, "invalid_json", "body"),
    Case("comment", b'{"type":"mail"/* it */}', 400, "invalid_json", "body"),
    Case("single quotes", b"{'type':'mail'}", 400, "invalid_json", "body"),
    Case("byte order mark", b"\xef\xbb\xbf" + task(), 400, "invalid_json", "body"),
    Case("not utf-8", _text(b'"\xff\xfe"'), 400, "invalid_utf8", "body"),
    Case("overlong utf-8", _text(b'"\xc0\xaf"'), 400, "invalid_utf8", "body"),
    Case("surrogate in utf-8", _text(b'"\xed\xa0\x80"'), 400, "invalid_utf8", "body"),
    Case("utf-16", json.dumps(GOOD).encode("utf-16"), 400, "invalid_utf8", "body"),
    Case("utf-16 without a mark", json.dumps(GOOD).encode("utf-16-le"), 400, "invalid_json", "body"),
    Case("utf-32", json.dumps(GOOD).encode("utf-32"), 400, "invalid_utf8", "body"),
    Case("control character", _text(b'"a\nb"'), 400, "invalid_json", "body"),
    Case("100,000 arrays", _text(b"[" * 100_000 + b"]" * 100_000), 400, "too_deep", "body"),
    Case("100,000 arrays left open", b"[" * 100_000, 400, "too_deep", "body"),
    Case("100,000 objects", _text(b'{"a":' * 100_000 + b"1" + b"}" * 100_000), 400, "too_deep", "body"),
    Case("65 levels", _text(b"[" * 64 + b"]" * 64), 400, "too_deep", "body"),
    Case("a key twice", b'{"type":"mail","type":"mail","queue":"default","payload":1}', 400, "duplicate_key", "body"),
    Case("a key twice inside", _text(b'{"a":1,"a":2}'), 400, "duplicate_key", "body"),
    Case("a key twice, escaped", _text(b'{"a":1,"\\u0061":2}'), 400, "duplicate_key", "body"),
    Case("NaN", _text(b"NaN"), 400, "not_finite", "body"),
    Case("Infinity", _text(b"[-Infinity]"), 400, "not_finite", "body"),
    Case("1e999", _text(b"1e999"), 400, "not_finite", "body"),
    Case("-1e400", _text(b'{"a":-1e400}'), 400, "not_finite", "body"),
    Case("5,000 digits", _text(b"9" * 5_000), 400, "integer_too_large", "body"),
    Case("2^64", _text(b"18446744073709551616"), 400, "integer_too_large", "body"),
    Case("leading zero", _text(b"01"), 400, "invalid_json", "body"),
    Case("plus", _text(b"+1"), 400, "invalid_json", "body"),
    Case("hexadecimal", _text(b"0x10"), 400, "invalid_json", "body"),
    Case("half an escape", _text(b'"\\u00"'), 400, "invalid_json", "body"),
]
TEXTS = [
    Case("lone surrogate", _text(b'"\\ud800"'), 422, "lone_surrogate", "body.payload"),
    Case("lone surrogate as key", _text(b'{"\\udc00":1}'), 422, "lone_surrogate", 'body.payload["\\udc00"]'),
    Case("nul", _text(b'"a\\u0000b"'), 422, "nul_character", "body.payload"),
    Case("nul in a type", b'{"type":"mail\\u0000","payload":1}', 422, "nul_character", "body.type"),
    Case("nul in a key", _text(b'{"a\\u0000":1}'), 422, "nul_character", None),
]
FORMS = [
    Case("array", b"[]", 422, "invalid_value", "body"),
    Case("null", b"null", 422, "invalid_value", "body"),
    Case("text", b'"task"', 422, "invalid_value", "body"),
    Case("nothing in it", b"{}", 422, "required", "type"),
    Case("no payload", b'{"type":"mail"}', 422, "required", "payload"),
    Case("no type", b'{"payload":1}', 422, "required", "type"),
    Case("unknown field", task(prioritty="high"), 422, "unknown_field", "prioritty"),
    Case("tenant of the caller's choice", task(tenant="acme"), 422, "unknown_field", "tenant"),
    Case("proto", task(__proto__={"admin": True}), 422, "unknown_field", "__proto__"),
    Case("unknown type", task(queue=None, type="nobody.has.it"), 422, "unknown_type", "type"),
    Case("type null", b'{"type":null,"payload":1}', 422, "invalid_value", "type"),
    Case("type number", task(type=7), 422, "invalid_value", "type"),
    Case("type array", task(type=["mail"]), 422, "invalid_value", "type"),
]
NAMES = [
    Case(f"type {name[:24]!r}", task(type=name), 422, "invalid_name", "type")
    for name in (
        "", "a" * 129, "a" * 300, "../../etc", "a:b", "a{b}c", "a\nb", "a*", "'; DROP TABLE tasks;--", "tasks.__x\r\n", "é", "A", " a", "a ", "_a", "-a", ".a",
        "$(id)", "%00", "ａ",
    )
]  # fmt: skip
QUEUES = [Case(f"queue {name!r}", task(queue=name), 422, "invalid_name", "queue") for name in ("", "a b", "Q", "../q", "q\t", "*")]
KINDS = [
    Case("queue number", task(queue=1), 422, "invalid_value", "queue"),
    *(Case(f"priority {value!r}", task(priority=value), 422, "invalid_value", "priority") for value in (-1, 10**9, "high ", 1.5, "HIGH", True, "", 2)),
    *(Case(f"max_retries {value!r}", task(max_retries=value), 422, "out_of_range", "max_retries") for value in (-1, 2**31, 1_001)),
    Case("max_retries text", task(max_retries="3"), 422, "invalid_value", "max_retries"),
    Case("max_retries 1.5", task(max_retries=1.5), 422, "invalid_value", "max_retries"),
    *(Case(f"max_crashes {value!r}", task(max_crashes=value), 422, "out_of_range", "max_crashes") for value in (-1, 1_001)),
    Case("retry of another kind", task(retry={"kind": "random"}), 422, "invalid_retry", None),
    Case("retry with a factor of 0", task(retry={"factor": 0.0}), 422, "invalid_retry", None),
    Case("retry with an unknown field", task(retry={"tries": 3}), 422, "invalid_retry", None),
    Case("retry text", task(retry="forever"), 422, "invalid_value", "retry"),
    Case("durability", task(durability="eventually"), 422, "invalid_value", "durability"),
    Case("on_failure", task(after=SOME_ID, on_failure="panic"), 422, "invalid_value", "on_failure"),
]
TIMES = [
    *(Case(f"run_at {value}", task(run_at=value), 422, "invalid_time", "run_at") for value in (
        "10000-01-01T00:00:00Z", "2026-02-30T00:00:00Z", "2026-13-01T00:00:00Z", "tomorrow", "", "1969-12-31T23:59:59Z", "2026-01-01", "2026-01-01T25:00:00Z",
        "2026-01-01T00:00:00+99:00", "1735689600", "２０２６-01-01T00:00:00Z", "2026-06-30T23:59:60Z",
    )),
    Case("run_at without a zone", task(run_at="2026-01-01T00:00:00"), 422, "timezone_required", "run_at"),
    Case("run_at number", task(run_at=1735689600), 422, "invalid_value", "run_at"),
    *(Case(f"delay {value!r}", task(delay=value), 422, "invalid_duration", "delay") for value in (
        -1, "-5s", "5 m", "∞", "", "5", "1e9s", "soon", "101y", 1e308, "٥s", "9" * 400 + "d", 10**12, "5m!", "NaN",
    )),
    *(Case(f"delay {value!r}", task(delay=value), 422, "invalid_value", "delay") for value in (True, [1], {"s": 1})),
    Case("delay and run_at", task(delay="1s", run_at="2030-01-01T00:00:00Z"), 422, "invalid_input", "delay"),
    Case("expires and expires_at", task(expires="1s", expires_at="2030-01-01T00:00:00Z"), 422, "invalid_input", "expires"),
    Case("expires 0", task(expires=0), 422, "invalid_duration", "expires"),
    Case("expires_at never", task(expires_at="9999-12-31T23:59:60Z"), 422, "invalid_time", "expires_at"),
    *(Case(f"timeout {value!r}", task(timeout=value), 422, "out_of_range", "timeout") for value in (0, "0s", "8d", "1us")),
    Case("timeout negative", task(timeout=-1), 422, "invalid_duration", "timeout"),
    Case("window 0", task(idempotency_key="k", idempotency_window=0), 422, "out_of_range", "idempotency_window"),
    Case("window of 400 days", task(idempotency_key="k", idempotency_window="400d"), 422, "out_of_range", "idempotency_window"),
]  # fmt: skip
KEYS = [
    *(Case(f"{name} {value[:12]!r}", task(**{name: value}), 422, "invalid_key", name)
      for name in ("idempotency_key", "order_key") for value in ("", "k" * 257, "a\nb", "a\x7fb", "a\u202eb", "\x1b[2J")),
    Case("fair_key of 129", task(fair_key="k" * 129), 422, "invalid_key", "fair_key"),
    Case("unique empty", task(unique=""), 422, "invalid_key", "unique.key"),
    Case("unique of an unknown kind", task(unique={"key": "a", "until": "never"}), 422, "invalid_value", None),
    Case("limits of a wrong name", task(limits="A b"), 422, "invalid_name", "limits"),
    Case("nine limits", task(limits=[f"l{n}" for n in range(9)]), 422, "invalid_input", "limits"),
    *(Case(f"id {value[:40]!r}", task(id=value), 422, "invalid_id", "id") for value in ("", "7", SOME_ID.upper(), SOME_ID[:-1], "{" + SOME_ID + "}", "../x")),
]  # fmt: skip
TAGS = [
    Case("tag __proto__", task(tags={"__proto__": "x"}), 422, "invalid_name", "tags"),
    Case("tag of 10 KB", task(tags={"a": "x" * 10_240}), 422, "invalid_key", "tags.a"),
    Case("1,001 tags", task(tags={f"t{n}": "x" for n in range(1_001)}), 422, "invalid_input", "tags"),
    Case("tag number", task(tags={"a": 1}), 422, "invalid_value", None),
    Case("tags array", task(tags=["a"]), 422, "invalid_value", "tags"),
    Case("header with a line more", task(headers={"X": "a\r\nY: b"}), 422, "invalid_header", "headers.X"),
    Case("header name with a line more", task(headers={"X\r\nY": "b"}), 422, "invalid_key", "headers"),
    Case("header of 5,000", task(headers={"X": "a" * 5_000}), 422, "invalid_header", "headers.X"),
    Case("101 headers", task(headers={f"h{n}": "x" for n in range(101)}), 422, "invalid_input", "headers"),
]
EDGES = [
    Case("waits for itself", task(id=SOME_ID, after=SOME_ID), 422, "cycle", "edges"),
    Case("waits for nobody", task(after=OTHER_ID), 422, "unknown_edge", "edges"),
    Case("waits for no id", task(after="it"), 422, "invalid_id", "after"),
    Case("waits for a number", task(after=1), 422, "invalid_value", "after"),
    Case("10,001 edges", task(after=[f"01890000-0000-7000-8000-{n:012d}" for n in range(10_001)]), 422, "invalid_input", "edges"),
]
SIZES = [
    Case("256 KiB + 1", _text(b'"' + b"x" * (256 * 1024 - 1) + b'"'), 413, "payload_too_large", "payload"),
    Case("4 MiB + 1", b'"' + b"x" * (4 << 20) + b'"', 413, "body_too_large", "body"),
    Case("a million values", b"[" + b"{}," * 700_000 + b"{}]", 413, "too_many_values", "body"),
]
EVERY = [*UNREADABLE, *TEXTS, *FORMS, *NAMES, *QUEUES, *KINDS, *TIMES, *KEYS, *TAGS, *EDGES, *SIZES]

ACCEPTED = {
    "256 KiB": _text(b'"' + b"x" * (256 * 1024 - 2) + b'"'),
    "a blank more": b" " + task() + b"\n",
    "-0": _text(b"-0"),
    "2^64-1": _text(b"18446744073709551615"),
    "-2^63": _text(b"-9223372036854775808"),
    "1e308": _text(b"1e308"),
    "a pair of surrogates": _text(b'"\\ud83d\\ude00"'),
    "a key __proto__": _text(b'{"__proto__":{"admin":true},"constructor":1}'),
    "63 levels": _text(b"[" * 63 + b"]" * 63),
    "run_at in the past": task(run_at="2001-01-01T00:00:00Z"),
    "everything null": json.dumps({**GOOD, "id": None, "delay": None, "tags": None, "after": None, "unique": None, "retry": None}).encode(),
    "payload null": _text(b"null"),
    "delay of seconds": task(delay=1.5),
    "timeout of 7 days": task(timeout="7d"),
    "a tag": task(tags={"customer": "ümlaut 日本"}),
}
