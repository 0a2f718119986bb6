"""The task model: names and keys, ids, what a new task gets from its type, and every bad input refused by its field with a remedy."""

from __future__ import annotations

import time
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from taskmill import codec
from taskmill.clock import HOUR, SECOND
from taskmill.errors import InvalidInput, TaskmillError
from taskmill.retry import Retry
from taskmill.task import (
    DEFAULT_DEDUPE_WINDOW,
    DEFAULT_MAX_CRASHES,
    DEFAULT_TIMEOUT,
    LIVE,
    LONGEST_TIMEOUT,
    MOST_BATCH,
    MOST_BATCH_EDGES,
    MOST_EDGES,
    MOST_HEADER_BYTES,
    MOST_HEADERS,
    MOST_LIMITS,
    MOST_TAGS,
    SCOPE,
    TERMINAL,
    Edge,
    NewTask,
    OnLimit,
    Priority,
    Resolved,
    State,
    TypeSettings,
    Unique,
    check_id,
    check_key,
    check_limit,
    check_name,
    check_range,
    check_settings,
    definition_of,
    new_id,
    resolve,
    scoped,
    scoped_limit,
    scoped_share,
    sequence_of,
    unscoped,
    unscoped_limit,
)

LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
NAMES = st.builds(lambda first, rest: first + rest, st.sampled_from(LETTERS), st.text(LETTERS + "_.-", max_size=127))
KEYS = st.text(st.characters(exclude_categories=["C", "Zl", "Zp", "Zs"]), min_size=1, max_size=128)
ODD_TEXTS = st.text(st.characters(), max_size=300) | st.sampled_from(
    ["", " ", "\0", "\n", "a\r\nb", "\ud800", "{", "{}", "{a}", "x:", ":x", "x:{a}", "Ä", "a" * 129, "a" * 257]
)
ODD_INTEGERS = st.integers() | st.sampled_from([-1, 0, 1, 2**63, -(2**63), 10**400, 10**5_000, -(10**5_000), 253_402_300_799_999_999, 253_402_300_800_000_000])
ODD_BYTES = st.binary(max_size=40) | st.sampled_from(
    [b"", b"{", b"NaN", b"[" * 100_000, b'"\xff"', b'{"a":1,"a":2}', b'"\\ud800"', b"1e999", b'{"a":' + b"9" * 5_000 + b"}"]
)


def refusal(new: NewTask, settings: TypeSettings | None = None) -> TaskmillError:
    """Why a task is refused; it must be said where and what to do."""
    with pytest.raises(TaskmillError) as refused:
        resolve(new, settings)
    assert refused.value.field
    assert refused.value.hint
    assert len(refused.value.message) < 300
    return refused.value


def task(payload: object = None, **fields: Any) -> NewTask:
    """Bytes are a payload as they are."""
    return NewTask(**{"type": "work", "queue": "default", "payload": payload if isinstance(payload, bytes) else codec.encode(payload), **fields})


# Ids


def stamp(id: str) -> int:
    """The time in a UUIDv7 of ours, in ticks of 1/4096 ms."""
    return int(id[:8] + id[9:13], 16) * 4096 + int(id[15:18], 16)


def ticks(nanoseconds: int) -> int:
    millis, rest = divmod(nanoseconds, 1_000_000)
    return millis * 4096 + rest * 4096 // 1_000_000


def test_an_id_is_a_uuid_of_version_7() -> None:
    for id in [new_id() for _ in range(1_000)]:
        parsed = uuid.UUID(id)
        assert (str(parsed), parsed.version, parsed.variant) == (id, 7, uuid.RFC_4122)
        assert check_id(id) == id


def test_an_id_has_the_time_it_was_made_so_ids_grow() -> None:
    for _ in range(1_000):
        before = ticks(time.time_ns())
        id = new_id()
        assert before <= stamp(id) <= ticks(time.time_ns())


@given(st.integers(0, 2**60 - 1), st.integers(0, 2**60 - 1))
def test_the_order_of_texts_is_the_order_of_times(one: int, other: int) -> None:
    def text(stamped: int) -> str:
        millis, fraction = divmod(stamped, 4096)
        head = f"{millis:012x}"
        return f"{head[:8]}-{head[8:]}-7{fraction:03x}-8000-000000000000"

    assert stamp(text(one)) == one
    assert (text(one) < text(other)) == (one < other)


def test_ids_are_unique() -> None:
    assert len({new_id() for _ in range(20_000)}) == 20_000
    assert len({NewTask(type="work").id for _ in range(100)}) == 100


@given(ODD_TEXTS)
def test_what_is_no_id(text: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        check_id(text)
    assert (refused.value.code, refused.value.field) == ("invalid_id", "id")


@pytest.mark.parametrize("spelling", [str.upper, lambda id: id.replace("-", ""), lambda id: f"{{{id}}}", lambda id: f"{id}\n", lambda id: f"urn:uuid:{id}"])
def test_one_spelling_of_an_id(spelling: Any) -> None:
    assert refusal(task(id=spelling("01890a5d-ac96-774b-bcce-b302099a8057"))).code == "invalid_id"


@given(st.uuids())
def test_a_clients_own_uuid_is_an_id(own: uuid.UUID) -> None:
    assert resolve(task(id=str(own)), None).new.id == str(own)


# States


def test_every_state_is_live_or_terminal() -> None:
    assert sorted(TERMINAL) == ["cancelled", "completed", "dead"]
    assert sorted(LIVE) == ["pending", "retrying", "running", "scheduled", "waiting"]
    assert set(State) == LIVE | TERMINAL
    assert not LIVE & TERMINAL


def test_priorities_are_stored_as_numbers() -> None:
    assert {priority.name: priority.value for priority in Priority} == {"CRITICAL": 3, "HIGH": 2, "NORMAL": 1, "LOW": 0}


# Names, keys, numbers


@given(NAMES)
def test_a_name(name: str) -> None:
    assert check_name(name, "queue") == name
    assert check_limit(name) == (name, "")


@given(ODD_TEXTS)
def test_a_name_is_exactly_what_the_rule_says(text: str) -> None:
    good = 0 < len(text) <= 128 and text[0] in LETTERS and set(text) <= {*LETTERS, "_", ".", "-"}
    try:
        assert check_name(text, "queue") == text
        assert good
    except InvalidInput as error:
        assert not good
        assert (error.code, error.field) == ("invalid_name", "queue")
        assert error.hint
        assert len(error.message) < 200


@pytest.mark.parametrize("value", [None, 1, b"work", ["work"]])
def test_a_name_is_a_text(value: object) -> None:
    for check in (check_name, check_key, check_id):
        with pytest.raises(InvalidInput):
            check(value, "type")


@given(st.text(max_size=300), st.integers(1, 256))
def test_a_key_is_printable_and_bounded(text: str, length: int) -> None:
    good = 0 < len(text) <= length and text.isprintable()
    try:
        assert check_key(text, "tenant", length=length) == text
        assert good
        text.encode()
    except InvalidInput as error:
        assert not good
        assert (error.code, error.field) == ("invalid_key", "tenant")
        assert str(length) in str(error.hint)


@given(NAMES, KEYS)
def test_a_limit_has_two_parts(name: str, key: str) -> None:
    assert check_limit(f"{name}:{key}") == (name, key)


@pytest.mark.parametrize("name", ["", ":", ":key", "name:", "Name", "na me:key", "name:a\nb", "name:" + "k" * 257, "{user}"])
def test_what_is_no_limit(name: str) -> None:
    assert refusal(task(limits=(name,))).field == "limits"


@given(ODD_INTEGERS, st.integers(-10, 10), st.integers(0, 2**70))
def test_a_number_in_its_range(value: int, low: int, span: int) -> None:
    if low <= value <= low + span:
        assert check_range(value, "timeout", low, low + span) == value
        return
    with pytest.raises(InvalidInput) as refused:
        check_range(value, "timeout", low, low + span)
    assert (refused.value.code, refused.value.field) == ("out_of_range", "timeout")
    assert str(low) in str(refused.value.hint)
    assert len(refused.value.message) < 200


@pytest.mark.parametrize("value", [None, True, False, 1.0, "1", float("nan")])
def test_a_number_is_a_whole_number(value: object) -> None:
    with pytest.raises(InvalidInput):
        check_range(value, "timeout", 0, 10)


# What the type gives


SETTINGS = TypeSettings(
    queue="mail",
    priority=Priority.HIGH,
    retry=Retry(max_retries=9),
    timeout=7 * SECOND,
    max_crashes=5,
    limits=("smtp", "per-user:{user_id}"),
    on_limit=OnLimit.REJECT,
    unique=Unique("welcome-{user_id}", "started", "replace"),
    fair="tenant",
    ordered="{user_id}",
)


def test_what_the_caller_leaves_out_is_the_types() -> None:
    new = NewTask(type="work", payload=codec.encode({"user_id": 42}), tenant="acme")
    assert resolve(new, SETTINGS) == Resolved(
        new=new,
        queue="mail",
        priority=2,
        retry=Retry(max_retries=9),
        timeout=7 * SECOND,
        max_crashes=5,
        limits=(f"per-user:acme{SCOPE}42", "smtp"),
        on_limit=OnLimit.REJECT,
        share="acme",
        order_key=f"acme{SCOPE}42",
        unique=Unique("welcome-42", "started", "replace"),
        idempotency_window=DEFAULT_DEDUPE_WINDOW,
    )


def test_what_the_caller_gives_stands() -> None:
    given_: dict[str, Any] = {"queue": "other", "priority": 0, "retry": Retry(max_retries=0), "timeout": HOUR, "max_crashes": 0, "on_limit": OnLimit.DELAY}
    new = NewTask(
        type="work", limits=(), fair_key="x", order_key="mine", unique=Unique("own"), idempotency_key="k", idempotency_window=SECOND, tenant="acme", **given_
    )
    lane: dict[str, Any] = {"limits": (), "share": f"acme{SCOPE}x", "order_key": f"acme{SCOPE}mine"}
    assert resolve(new, replace(SETTINGS, fair="{user_id}")) == Resolved(new=new, unique=Unique("own"), idempotency_window=SECOND, **lane, **given_)


@pytest.mark.parametrize("settings", [None, TypeSettings()], ids=["unknown", "plain"])
def test_what_neither_gives_is_the_default(settings: TypeSettings | None) -> None:
    new = task()
    assert resolve(new, settings) == Resolved(
        new=new,
        queue="default",
        priority=Priority.NORMAL,
        retry=Retry(),
        timeout=DEFAULT_TIMEOUT,
        max_crashes=DEFAULT_MAX_CRASHES,
        limits=(),
        on_limit=OnLimit.DELAY,
        share="",
        order_key=None,
        unique=None,
        idempotency_window=DEFAULT_DEDUPE_WINDOW,
    )
    assert (DEFAULT_TIMEOUT, DEFAULT_DEDUPE_WINDOW) == (HOUR, 72 * HOUR)


def test_an_unknown_type_needs_a_queue() -> None:
    error = refusal(NewTask(type="nobody-has-it"))
    assert (error.code, error.field) == ("unknown_type", "type")
    assert "nobody-has-it" in error.message


# Templates


@given(st.integers(codec.INTEGER_MIN, codec.INTEGER_MAX) | KEYS, KEYS)
def test_a_template_has_the_payloads_and_the_tenants_own_value(value: int | str, tenant: str) -> None:
    settings = TypeSettings(limits=("per-user:{user_id}",), fair="{tenant}", ordered="o-{user_id}", unique=Unique("{user_id}"))
    resolved = resolve(task({"user_id": value, "more": [1, 2]}, tenant=tenant), settings)
    assert resolved.limits == (f"per-user:{tenant}{SCOPE}{value}",)
    assert resolved.share == tenant
    assert resolved.order_key == f"{tenant}{SCOPE}o-{value}"
    assert resolved.unique == Unique(str(value))


@given(KEYS, KEYS)
def test_braces_in_a_value_are_no_template(value: str, other: str) -> None:
    resolved = resolve(task({"a": f"{{b}}{value}"[:100], "b": other}), TypeSettings(ordered="{a}"))
    assert resolved.order_key == f"{{b}}{value}"[:100]


def test_two_fields_in_one_template() -> None:
    assert resolve(task({"a": 1, "b": "x"}, tenant="t"), TypeSettings(ordered="{tenant}/{a}/{b}")).order_key == f"t{SCOPE}t/1/x"


def test_a_limit_named_twice_counts_once() -> None:
    assert resolve(task({"a": 1, "b": 1}, limits=("per:{a}", "smtp", "per:{b}", "smtp")), None).limits == ("per:1", "smtp")


# A tenant's keys


@given(KEYS, KEYS)
def test_a_scoped_key_is_of_one_tenant_and_shows_as_it_was_given(tenant: str, key: str) -> None:
    assert (unscoped(scoped(tenant, key)), unscoped(scoped("", key)), scoped("", key)) == (key, key, key)
    limit = f"per-user:{key}"
    assert (unscoped_limit(scoped_limit(tenant, limit)), definition_of(scoped_limit(tenant, limit))) == (limit, "per-user")
    assert unscoped(scoped_share(tenant, key)) == key


@given(KEYS, KEYS, KEYS, KEYS)
def test_two_tenants_have_no_key_in_common(one: str, other: str, key: str, second: str) -> None:
    assert (scoped(one, key) == scoped(other, second)) == ((one, key) == (other, second))
    assert scoped(one, key) != second


def test_a_limit_without_a_key_is_one_for_all_tenants() -> None:
    assert resolve(task(tenant="acme", limits=("smtp",)), None).limits == ("smtp",)


@pytest.mark.parametrize("field", ["tenant", "order_key", "fair_key"])
def test_no_caller_can_write_the_sign_between_tenant_and_key(field: str) -> None:
    given_: dict[str, Any] = {field: f"acme{SCOPE}k"}
    assert (refusal(task(**given_)).code, refusal(task(**given_)).field) == ("invalid_key", field)


@pytest.mark.parametrize("settings", [TypeSettings(ordered="{a}"), TypeSettings(fair="{a}"), TypeSettings(limits=("per-user:{a}",))])
def test_no_payload_can_write_it(settings: TypeSettings) -> None:
    refusal(task({"a": f"acme{SCOPE}k"}), settings)


def test_a_limit_of_the_caller_cannot_have_it() -> None:
    refusal(task(limits=(f"per-user:acme{SCOPE}k",)))


# Limits that are added, shares by tenant


@pytest.mark.parametrize(
    ("given_", "more", "expected"),
    [
        (None, True, ("per-user:1", "smtp")),
        ((), True, ("per-user:1", "smtp")),
        (("own",), True, ("own", "per-user:1", "smtp")),
        (("smtp",), True, ("per-user:1", "smtp")),
        ((), False, ()),
        (("own",), False, ("own",)),
    ],
)
def test_limits_are_added_or_stand_in_place_of_the_types(given_: tuple[str, ...] | None, more: bool, expected: tuple[str, ...]) -> None:
    settings = TypeSettings(limits=("smtp", "per-user:{user}"))
    assert resolve(task({"user": 1}, limits=given_, more_limits=more), settings).limits == expected


def test_added_limits_count_with_the_types() -> None:
    settings = TypeSettings(limits=tuple(f"type-{n}" for n in range(MOST_LIMITS)))
    assert refusal(task(limits=("own",), more_limits=True), settings).field == "limits"
    assert resolve(task(limits=("own",)), settings).limits == ("own",)


@pytest.mark.parametrize("key", ["x", "beta", ""])
def test_where_a_type_shares_by_tenant_no_task_chooses_its_share(key: str) -> None:
    error = refusal(task(tenant="acme", fair_key=key), TypeSettings(fair="tenant"))
    assert (error.code, error.field) == ("share_by_tenant", "fair_key")
    assert resolve(task(tenant="acme", fair_key="acme"), TypeSettings(fair="tenant")).share == "acme"


def test_a_share_of_a_tenant() -> None:
    assert resolve(task(tenant="acme", fair_key="x"), None).share == f"acme{SCOPE}x"
    assert resolve(task(tenant="acme", fair_key=""), None).share == ""
    assert resolve(task(fair_key="x"), None).share == "x"


# Batches


def test_a_batch_has_so_many_tasks_and_edges() -> None:
    few = [task(edges=tuple(Edge(new_id()) for _ in range(MOST_BATCH_EDGES // 4))) for _ in range(4)]
    assert sequence_of(few) is few
    with pytest.raises(InvalidInput) as refused:
        sequence_of([*few, task(edges=(Edge(new_id()),))])
    assert (refused.value.code, refused.value.field) == ("batch_too_large", "edges")
    assert str(MOST_BATCH_EDGES) in (refused.value.hint or "")
    assert len(sequence_of([task()] * MOST_BATCH)) == MOST_BATCH
    with pytest.raises(InvalidInput) as refused:
        sequence_of([task()] * (MOST_BATCH + 1))
    assert (refused.value.code, refused.value.field) == ("batch_too_large", "tasks")


def test_headers_have_a_sum() -> None:
    error = refusal(task(headers={f"h{n}": "x" * 4_096 for n in range(5)}))
    assert (error.code, error.field) == ("headers_too_large", "headers")


PLACES: dict[str, TypeSettings] = {
    "limits": TypeSettings(limits=("per-user:{user_id}",)),
    "fair": TypeSettings(fair="{user_id}"),
    "ordered": TypeSettings(ordered="{user_id}"),
    "unique": TypeSettings(unique=Unique("{user_id}")),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    "payload", [None, [], "user_id", {}, {"user": 1}, {"user_id": None}, {"user_id": ""}, {"user_id": True}, {"user_id": 1.5}, {"user_id": [1]}]
)
def test_a_payload_without_the_key_is_refused(place: str, payload: object) -> None:
    error = refusal(task(payload), PLACES[place])
    assert (error.code, error.field) == ("missing_key", "payload.user_id")
    assert place in error.message


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("value", ["a\nb", "k" * 257, "\x7f"])
def test_a_value_that_is_no_key_is_refused(place: str, value: str) -> None:
    error = refusal(task({"user_id": value}), PLACES[place])
    assert (error.code, error.field) == ("invalid_key", place)


@pytest.mark.parametrize("payload", [b"", b"{", b"NaN", b"[" * 100_000, b'{"user_id":"\xff"}', b'{"user_id":"\\ud800"}', b'{"user_id":1e999}'])
def test_a_payload_that_is_no_json_is_refused_where_it_is_read(payload: bytes) -> None:
    assert str(refusal(NewTask(type="work", payload=payload), PLACES["ordered"]).field).startswith("payload")


def test_a_limit_per_tenant_needs_a_tenant() -> None:
    error = refusal(task(), TypeSettings(limits=("per-tenant:{tenant}",)))
    assert (error.code, error.field) == ("invalid_key", "limits")
    assert resolve(task(), TypeSettings(fair="tenant")).share == ""


# Bad input


BAD: list[tuple[str, str, dict[str, Any]]] = [
    *(("invalid_name", "type", {"type": name}) for name in ("", "Work", "-work", ".work", "_work", "wörk", "a b", "a/b", "a" * 129, "a\n", "\ud800")),
    *(("invalid_name", "queue", {"queue": name}) for name in ("", "Default", "../etc", "a" * 129)),
    ("payload_too_large", "payload", {"payload": b'"' + b"x" * codec.PAYLOAD_LIMIT + b'"'}),
    ("invalid_id", "id", {"id": ""}),
    ("invalid_id", "id", {"id": "17"}),
    *(("out_of_range", "priority", {"priority": n}) for n in (-1, 4, True, 10**5_000)),
    *(("out_of_range", "delay", {"delay": n}) for n in (-1, 101 * 366 * 24 * HOUR, -(10**5_000))),
    *(("out_of_range", "run_at", {"run_at": n}) for n in (-1, 253_402_300_800_000_000, 10**5_000)),
    ("invalid_input", "delay", {"run_at": 1, "delay": 1}),
    ("invalid_input", "delay", {"run_at": 0, "delay": 0}),
    *(("out_of_range", "timeout", {"timeout": n}) for n in (-1, 0, 999, LONGEST_TIMEOUT + 1)),
    *(("out_of_range", "max_crashes", {"max_crashes": n}) for n in (-1, 1_001)),
    *(("out_of_range", "expires_at", {"expires_at": n}) for n in (-1, 253_402_300_800_000_000)),
    *(("invalid_key", "idempotency_key", {"idempotency_key": key}) for key in ("", "k" * 257, "a\tb", "\0", "\u2028", "\ud800", "\x9f")),
    *(("out_of_range", "idempotency_window", {"idempotency_window": n}) for n in (-1, 0, SECOND - 1, 367 * 24 * HOUR)),
    ("invalid_key", "unique.key", {"unique": Unique("")}),
    ("invalid_key", "unique.key", {"unique": Unique("a\nb")}),
    ("invalid_input", "unique.until", {"unique": Unique("k", until="never" * 1_000)}),
    ("invalid_input", "unique.on_conflict", {"unique": Unique("k", on_conflict="drop" * 1_000)}),
    *(("invalid_key", "tenant", {"tenant": key}) for key in ("a\nb", "t" * 129, "\ud800")),
    *(("invalid_key", "fair_key", {"fair_key": key}) for key in ("a\nb", "t" * 129)),
    *(("invalid_key", "order_key", {"order_key": key}) for key in ("", "a\nb", "t" * 257, "\udfff")),
    ("invalid_name", "tags", {"tags": {"No Name": "x"}}),
    ("invalid_key", "tags.name", {"tags": {"name": ""}}),
    ("invalid_key", "tags.name", {"tags": {"name": "a\nb"}}),
    ("invalid_input", "tags", {"tags": {f"t{n}": "x" for n in range(MOST_TAGS + 1)}}),
    ("invalid_key", "headers", {"headers": {"": "x"}}),
    ("invalid_key", "headers", {"headers": {"a\r\nb": "x"}}),
    *(("invalid_header", "headers.x", {"headers": {"x": value}}) for value in ("a\r\nb", "a\n", "\r", "\0", "\ud800", "x" * 4_097)),
    ("invalid_input", "headers", {"headers": {f"h{n}": "x" for n in range(MOST_HEADERS + 1)}}),
    ("invalid_name", "limits", {"limits": ("No Name",)}),
    ("invalid_key", "limits", {"limits": ("name:",)}),
    ("invalid_input", "limits", {"limits": tuple(f"l{n}" for n in range(MOST_LIMITS + 1))}),
    ("invalid_id", "edges", {"edges": (Edge("17"),)}),
    ("invalid_input", "edges", {"edges": (Edge(new_id()),) * (MOST_EDGES + 1)}),
    ("invalid_id", "parent", {"parent": Edge("17")}),
]


@pytest.mark.parametrize(("code", "field", "fields"), BAD, ids=[f"{number}-{field}" for number, (_, field, _) in enumerate(BAD)])
def test_bad_input_is_refused_by_its_field(code: str, field: str, fields: dict[str, Any]) -> None:
    error = refusal(task(**fields))
    assert (error.code, error.field) == (code, field)


def test_a_task_does_not_wait_for_itself() -> None:
    id = new_id()
    assert refusal(task(id=id, edges=(Edge(new_id()), Edge(id)))).field == "edges"
    assert refusal(task(id=id, parent=Edge(id))).field == "parent"


def test_the_bounds_themselves_are_fine() -> None:
    new = task(
        "x" * (codec.PAYLOAD_LIMIT - 2),
        type="a" * 128,
        queue="9",
        priority=3,
        run_at=253_402_300_799_999_999,
        timeout=LONGEST_TIMEOUT,
        max_crashes=1_000,
        expires_at=0,
        idempotency_key="k" * 256,
        idempotency_window=366 * 24 * HOUR,
        tenant="t" * 128,
        headers={f"h{n:02}": "x" * (MOST_HEADER_BYTES // MOST_HEADERS - 3) for n in range(MOST_HEADERS)},
        tags={f"t{n}": "x" for n in range(MOST_TAGS)},
        limits=tuple(f"l{n}" for n in range(MOST_LIMITS)),
        edges=tuple(Edge(new_id()) for _ in range(MOST_EDGES)),
    )
    assert resolve(new, None).new is new


BAD_SETTINGS: list[tuple[str, TypeSettings]] = [
    ("queue", TypeSettings(queue="No Name")),
    ("priority", TypeSettings(priority=4)),
    ("timeout", TypeSettings(timeout=0)),
    ("max_crashes", TypeSettings(max_crashes=-1)),
    ("limits", TypeSettings(limits=("No Name",))),
    ("limits", TypeSettings(limits=tuple(f"l{n}" for n in range(MOST_LIMITS + 1)))),
    ("unique.key", TypeSettings(unique=Unique(""))),
    ("unique.until", TypeSettings(unique=Unique("k", until="never"))),
    ("fair", TypeSettings(fair="")),
    ("fair", TypeSettings(fair="a\nb")),
    ("ordered", TypeSettings(ordered="")),
    ("ordered", TypeSettings(ordered="\0")),
    ("ordered", TypeSettings(ordered="{a")),
    ("fair", TypeSettings(fair="{}")),
    ("limits", TypeSettings(limits=("per-user:a}",))),
    ("unique.key", TypeSettings(unique=Unique("{{a}}"))),
]


@pytest.mark.parametrize(("field", "settings"), BAD_SETTINGS, ids=[f"{number}-{field}" for number, (field, _) in enumerate(BAD_SETTINGS)])
def test_a_type_that_no_task_could_have_is_refused(field: str, settings: TypeSettings) -> None:
    with pytest.raises(InvalidInput) as refused:
        check_settings(settings, "work")
    assert refused.value.field == field
    assert refused.value.hint
    with pytest.raises(InvalidInput):
        check_settings(TypeSettings(), "No Name")
    assert check_settings(SETTINGS, "work") is SETTINGS


def test_a_batch_is_bounded() -> None:
    whole = [task()] * 10_000
    assert sequence_of(whole) is whole
    with pytest.raises(InvalidInput) as refused:
        sequence_of([*whole, task()])
    assert (refused.value.code, refused.value.field) == ("batch_too_large", "tasks")


UNIQUES = st.builds(Unique, ODD_TEXTS, ODD_TEXTS | st.just("ended"), ODD_TEXTS | st.just("keep"))
ODD_EDGES = st.builds(Edge, ODD_TEXTS | st.builds(new_id))
ODD_TASKS = st.fixed_dictionaries(
    {},
    optional={
        "type": ODD_TEXTS,
        "payload": ODD_BYTES,
        "id": ODD_TEXTS,
        "queue": ODD_TEXTS | st.none(),
        **dict.fromkeys(("priority", "run_at", "delay", "timeout", "max_crashes", "expires_at", "idempotency_window"), ODD_INTEGERS | st.none()),
        **dict.fromkeys(("idempotency_key", "fair_key", "order_key"), ODD_TEXTS | st.none()),
        "unique": UNIQUES,
        "tenant": ODD_TEXTS,
        "headers": st.dictionaries(ODD_TEXTS, ODD_TEXTS, max_size=3),
        "tags": st.dictionaries(ODD_TEXTS, ODD_TEXTS, max_size=3),
        "limits": st.lists(ODD_TEXTS, max_size=10).map(tuple),
        "edges": st.lists(ODD_EDGES, max_size=3).map(tuple),
        "parent": ODD_EDGES,
    },
)
ODD_SETTINGS = st.builds(
    TypeSettings, limits=st.lists(ODD_TEXTS, max_size=3).map(tuple), unique=st.none() | UNIQUES, fair=st.none() | ODD_TEXTS, ordered=st.none() | ODD_TEXTS
)


@given(ODD_TASKS, st.none() | ODD_SETTINGS)
def test_whatever_comes_is_resolved_or_refused_by_name(fields: dict[str, Any], settings: TypeSettings | None) -> None:
    try:
        resolved = resolve(NewTask(**{"type": "work", "queue": "default", **fields}), settings)
    except TaskmillError as error:
        assert error.field
        assert error.hint
        assert len(str(error)) < 1_000
        return
    assert check_name(resolved.queue, "queue")
    assert all(check_limit(limit) for limit in resolved.limits)
    if resolved.order_key is not None and settings is None:
        check_key(resolved.order_key, "order_key")


@given(ODD_TEXTS, st.builds(TypeSettings, queue=ODD_TEXTS, priority=ODD_INTEGERS, timeout=ODD_INTEGERS, max_crashes=ODD_INTEGERS) | ODD_SETTINGS)
def test_whatever_a_type_is_it_is_taken_or_refused_by_name(name: str, settings: TypeSettings) -> None:
    try:
        assert check_settings(settings, name) is settings
    except TaskmillError as error:
        assert error.field
        assert error.hint
