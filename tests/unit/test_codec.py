"""codec: what goes in comes out, equal JSON has one hash, and everything else is refused by name."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import json
import math
import random
import uuid
from collections.abc import Callable
from decimal import Decimal
from functools import partial

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskmill import codec
from taskmill.errors import InvalidPayload

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
SCALARS = st.none() | st.booleans() | st.integers(codec.INTEGER_MIN, codec.INTEGER_MAX) | st.floats(allow_nan=False, allow_infinity=False) | TEXT
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=5) | st.dictionaries(TEXT, inner, max_size=5), max_leaves=20)


def refusal(call: Callable[[], object]) -> InvalidPayload:
    with pytest.raises(InvalidPayload) as caught:
        call()
    return caught.value


def nested(levels: int) -> object:
    value: object = []
    for _ in range(levels - 1):
        value = [value]
    return value


def shuffled(value: object) -> object:
    """The same JSON, its keys in another order and its whole numbers as floats where that is exact."""
    if isinstance(value, dict):
        items = [(key, shuffled(item)) for key, item in value.items()]
        random.Random(len(items)).shuffle(items)
        return dict(reversed(items))
    if isinstance(value, list):
        return [shuffled(item) for item in value]
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**53:
        return float(value)
    return value


def strict(value: object) -> object:
    """True and 1 are equal in Python but not in JSON; this tells them apart and leaves 1 and 1.0 equal."""
    if isinstance(value, bool):
        return ("bool", value)
    if isinstance(value, dict):
        return {key: strict(item) for key, item in value.items()}
    return [strict(item) for item in value] if isinstance(value, list) else value


@given(VALUES)
def test_encode_then_parse_and_decode_give_the_value_back(value: object) -> None:
    data = codec.encode(value)
    assert strict(codec.parse(data)) == strict(value)
    assert strict(codec.decode(data)) == strict(value)


@given(VALUES)
def test_any_spelling_of_the_text_parses_to_the_same_value(value: object) -> None:
    assert strict(codec.parse(json.dumps(value, indent=3))) == strict(value)
    assert strict(codec.parse(json.dumps(value, ensure_ascii=False).encode())) == strict(value)


@given(VALUES)
def test_the_hash_knows_neither_key_order_nor_spelling_of_numbers(value: object) -> None:
    assert codec.payload_hash(codec.encode(value)) == codec.payload_hash(codec.encode(shuffled(value)))
    assert codec.payload_hash(json.dumps(value, indent=1).encode()) == codec.payload_hash(codec.encode(value))


@given(VALUES, VALUES)
def test_the_canonical_form_is_equal_exactly_for_equal_values(one: object, other: object) -> None:
    assert (codec.canonical(one) == codec.canonical(other)) == (strict(one) == strict(other))


@given(VALUES)
def test_the_canonical_form_is_json_of_the_same_value(value: object) -> None:
    assert strict(codec.parse(codec.canonical(value))) == strict(value)


@given(VALUES, st.sampled_from([math.nan, math.inf, -math.inf, 2**64, -(2**63) - 1, "\0", "\ud800", object(), {1: 2}, {"a\0": 1}]))
def test_one_bad_item_anywhere_is_refused(value: object, bad: object) -> None:
    assert str(refusal(lambda: codec.encode({"first": value, "then": [value, bad]})).field).startswith("payload.then[1]")


@given(st.binary(max_size=60))
def test_any_bytes_are_a_value_or_a_refusal(data: bytes) -> None:
    try:
        value = codec.parse(data)
    except InvalidPayload as error:
        assert error.code != InvalidPayload.code
        assert str(error.field).startswith("payload")
    else:
        assert codec.parse(codec.encode(value)) == value


@pytest.mark.parametrize(
    ("one", "other"),
    [("1", "1.0"), ("1", "1e0"), ("100", "1E+2"), ("0", "-0.0"), ("10000000000000000", "1e16"), ("10000000000000000000", "1e19"), ('"a"', '"\\u0061"')],
)
def test_spellings_of_one_thing(one: str, other: str) -> None:
    assert codec.canonical(codec.parse(one)) == codec.canonical(codec.parse(other))


@pytest.mark.parametrize(
    ("one", "other"),
    [("1", '"1"'), ("1", "true"), ("0", "null"), ("9007199254740993", "9007199254740992.0"), ("[1,2]", "[2,1]"), ("{}", "[]"), ("1e20", "1e21")],
)
def test_things_that_differ(one: str, other: str) -> None:
    assert codec.canonical(codec.parse(one)) != codec.canonical(codec.parse(other))


def test_canonical_text() -> None:
    assert codec.canonical({"b": 1.0, "a": [1.5, None, True], "é": "\u2028", "z": {}}) == '{"a":[1.5,null,true],"b":1,"z":{},"é":"\u2028"}'.encode()
    assert len(codec.payload_hash(b"{}")) == 16


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (b"", "body_required"),
        (b" \r\n\t ", "body_required"),
        (b"{", "invalid_json"),
        (b'{"a":1,}', "invalid_json"),
        (b"[1] [2]", "invalid_json"),
        (b"'a'", "invalid_json"),
        (b"01", "invalid_json"),
        (b"+1", "invalid_json"),
        (b'"a\nb"', "invalid_json"),
        (b'"\0"', "invalid_json"),
        (b"\xef\xbb\xbf1", "invalid_json"),
        ('{"a":1}'.encode("utf-16-le"), "invalid_json"),
        ('{"a":1}'.encode("utf-16"), "invalid_utf8"),
        (b'"\xff"', "invalid_utf8"),
        (b'"\xed\xa0\x80"', "invalid_utf8"),
        (b"[" * 100_000, "too_deep"),
        (b'{"a":' * 100_000, "too_deep"),
        (b"[" * 65 + b"]" * 65, "too_deep"),
        (b'["]]]]",' * 65 + b"1" + b"]" * 65, "too_deep"),
        (b'["' + b'\\"' * 1000 + b'",' + b"[" * 64, "too_deep"),
        (b'{"a":1,"a":2}', "duplicate_key"),
        (b'[{"b":{"a":1,"\\u0061":1}}]', "duplicate_key"),
        (b"NaN", "not_finite"),
        (b'{"a":[Infinity]}', "not_finite"),
        (b"-Infinity", "not_finite"),
        (b"1e999", "not_finite"),
        (b"-1e999", "not_finite"),
        (b"9" * 5_000, "integer_too_large"),
        (b"-" + b"9" * 5_000, "integer_too_large"),
        (b"18446744073709551616", "integer_too_large"),
        (b"-9223372036854775809", "integer_too_large"),
        (b'"\\u0000"', "nul_character"),
        (b'{"\\u0000":1}', "nul_character"),
        (b'"\\ud800"', "lone_surrogate"),
        (b'"\\udc00\\ud800"', "lone_surrogate"),
        ('"\udcff"', "lone_surrogate"),
        (b'"' + b"a" * codec.MOST_PAYLOAD + b'"', "payload_too_large"),
        (b" " * codec.MOST_PAYLOAD * 9 + b"1", "payload_too_large"),
    ],
    ids=lambda value: repr(value)[:24],
)
def test_bad_text_is_refused_by_its_cause(text: bytes | str, code: str) -> None:
    error = refusal(lambda: codec.parse(text, field="body"))
    assert error.code == code
    assert str(error.field).startswith("body")
    assert error.hint
    assert len(str(error)) < 400


def test_refusals_name_place_and_culprit() -> None:
    assert "line 2, column 5 (character 8)" in refusal(lambda: codec.parse("[1,\n 2, x]")).message
    assert '"user"' in refusal(lambda: codec.parse('{"user":1,"user":1}')).message
    assert "byte 1 " in refusal(lambda: codec.parse(b'"\xff"')).message
    assert refusal(lambda: codec.parse('{"a":["x","\\u0000"]}')).field == "payload.a[1]"


@pytest.mark.parametrize(
    "text",
    [
        b"[" * 64 + b"]" * 64,
        b'{"a":' * 64 + b"1" + b"}" * 64,
        b'"' + b"[" * 1000 + b'"',
        b'["\\"' + b"[" * 1000 + b'"]',
        b"[" + b"[]," * 999 + b"[]]",
        b'"\\\\u0000"',
        b'"\\ud83d\\ude00"',
        b"18446744073709551615",
        b"-9223372036854775808",
        b"null",
        b"1e-999",
    ],
)
def test_odd_text_that_is_fine(text: bytes) -> None:
    value = codec.parse(text)
    assert codec.parse(codec.encode(value)) == value


def test_the_limit_is_exact_and_counts_what_is_stored() -> None:
    full = "a" * (codec.MOST_PAYLOAD - 2)
    assert len(codec.encode(full)) == codec.MOST_PAYLOAD
    assert codec.parse("  " * 1000 + json.dumps(full)) == full
    assert refusal(lambda: codec.encode(full + "a")).code == "payload_too_large"
    assert refusal(lambda: codec.encode((full,))).code == "payload_too_large"
    assert codec.encode("abc", limit=5) == b'"abc"'
    assert refusal(lambda: codec.encode("abcd", limit=5)).code == "payload_too_large"


def test_depth_is_counted_alike_on_every_path() -> None:
    assert codec.encode(nested(64)) == b"[" * 64 + b"]" * 64
    assert refusal(lambda: codec.encode(nested(65))).code == "too_deep"
    assert codec.encode((nested(63),)) == b"[" * 64 + b"]" * 64
    assert refusal(lambda: codec.encode((nested(64),))).code == "too_deep"
    assert refusal(lambda: codec.encode(nested(100_000))).code == "too_deep"


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 2


class Name(str):
    __slots__ = ()


class Struct(msgspec.Struct):
    at: dt.datetime
    tags: tuple[str, ...]


@dataclasses.dataclass
class Point:
    x: float
    more: object = None


class Model:
    """As pydantic's models behave."""

    def model_dump(self, *, mode: str) -> dict[str, object]:
        return {"mode": mode, "n": 1}


class Broken:
    def model_dump(self, *, mode: str) -> dict[str, object]:
        raise KeyError(mode)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ((1, 2), "[1,2]"),
        ({"a": {3}}, '{"a":[3]}'),
        (Colour.RED, '"red"'),
        ({Colour.RED: Level.HIGH}, '{"red":2}'),
        (Name("x"), '"x"'),
        (True, "true"),
        (uuid.UUID(int=1), '"00000000-0000-0000-0000-000000000001"'),
        (Decimal("1.50"), '"1.50"'),
        (dt.date(2026, 1, 31), '"2026-01-31"'),
        (Struct(dt.datetime(2026, 1, 31, tzinfo=dt.UTC), ("a",)), '{"at":"2026-01-31T00:00:00Z","tags":["a"]}'),
        ([Point(1.0, Model())], '[{"x":1.0,"more":{"mode":"json","n":1}}]'),
        (Model(), '{"mode":"json","n":1}'),
        ("\\u0000", '"\\\\u0000"'),
    ],
    ids=lambda given: given if isinstance(given, str) else type(given).__name__,
)
def test_what_python_has_and_json_has_not(value: object, text: str) -> None:
    assert codec.encode(value).decode() == text


def test_offending_items_are_named_by_their_path() -> None:
    assert refusal(lambda: codec.encode({"user": {"ages": [1, 2, 3, math.nan]}})).field == "payload.user.ages[3]"
    assert refusal(lambda: codec.encode({"a b": (1, object())}, field="result")).field == 'result["a b"][1]'
    assert refusal(lambda: codec.encode([Point(1.0, {"deep": math.inf})])).field == "payload[0].more.deep"
    assert refusal(lambda: codec.encode({"x" * 100_000: "\0"})).field == 'payload["' + "x" * 40 + '\\u2026"]'


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (math.nan, "not_finite"),
        ({"a": -math.inf}, "not_finite"),
        ([None, math.nan], "not_finite"),
        (2**64, "integer_too_large"),
        (10**5000, "integer_too_large"),
        ({"a": -(2**63) - 1}, "integer_too_large"),
        ({1: 2}, "not_encodable"),
        ({10**5000: 2}, "not_encodable"),
        ({None: 2}, "not_encodable"),
        ({True: 2}, "not_encodable"),
        ({(1, 2): 2}, "not_encodable"),
        ([{"a": {1.5: 2}}], "not_encodable"),
        (Point(1.0, {1: 2}), "not_encodable"),
        (object(), "not_encodable"),
        (1j, "not_encodable"),
        (print, "not_encodable"),
        ((item for item in "ab"), "not_encodable"),
        (msgspec.Raw(b"{"), "not_encodable"),
        (Broken(), "not_encodable"),
        ("\ud800", "lone_surrogate"),
        ({"\udfff": 1}, "lone_surrogate"),
        ("a\0b", "nul_character"),
        ({"\0": 1}, "nul_character"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_bad_values_are_refused_by_their_cause(value: object, code: str) -> None:
    error = refusal(lambda: codec.encode(value))
    assert error.code == code
    assert str(error.field).startswith("payload")


def test_what_contains_itself_is_refused() -> None:
    array: list[object] = []
    array.append({"again": array})
    point = Point(1.0)
    point.more = [point]
    for value in (array, {"a": array}, point):
        assert refusal(partial(codec.encode, value)).code == "not_encodable"
    assert refusal(lambda: codec.encode(array)).message == "it contains itself"


def test_the_same_object_twice_is_not_a_cycle() -> None:
    shared = (1, 2)
    assert codec.encode([shared, shared, {"a": shared}]) == b'[[1,2],[1,2],{"a":[1,2]}]'


def test_a_duplicate_among_many_keys_is_found_in_one_pass() -> None:
    text = "{" + ",".join(f'"k{number}":1' for number in range(50_000)) + ',"k49999":2}'
    assert '"k49999"' in refusal(lambda: codec.parse(text)).message


def counted(value: object) -> int:
    """How many values there are in one, itself among them."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + sum(counted(item) for item in inner)


@given(VALUES)
def test_more_values_than_allowed_are_always_seen(value: object) -> None:
    """Text may be taken for more than it has, by one for each container; never for less."""
    data, number = json.dumps(value).encode(), counted(value)
    assert number == 1 or codec.has_more_values(data, number - 1)
    assert not codec.has_more_values(data, 2 * number + 1)


@pytest.mark.parametrize("text", ['["a,b[c{d,,,"]', r'["\",,,\\",1]', r'["\\\\\",,,,,,,"]', '{"a,,,,":"{{{{"}'])
def test_what_stands_in_texts_is_no_value(text: str) -> None:
    assert not codec.has_more_values(text.encode(), 4)
