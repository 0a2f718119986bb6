"""The JSON of payloads and results: one set of rules, whatever store holds it.

What is accepted is what every engine gives back unchanged: null, booleans, strings without U+0000 and lone surrogates, finite
doubles, integers of 64 bits (signed or unsigned: -2^63 to 2^64-1; larger ones belong into strings), arrays, and objects whose keys are
strings and occur once; at most 64 levels deep, at most `MOST_PAYLOAD` bytes as stored: compact UTF-8, keys in the caller's order.

    text from outside ──parse──▶ value ──encode──▶ bytes in the store ──decode──▶ value
                                                        └──payload_hash──▶ equal for equal JSON

`encode` is on the way of every submit, so its fast path looks at nothing in Python. It encodes, decodes again and compares: a NaN came
back as null, a number used as key came back as text, a tuple or a dataclass came back as something else, and each of them differs from
what was given. UTF-8 has no lone surrogates, so the encoder refuses them; MessagePack has no integers over 64 bits, so encoding to it,
which costs a tenth of a scan for digits, refuses those. Only what stumbles is walked item by item, to convert it or to name the culprit.

Canonical JSON is RFC 8785 but for two points: keys are sorted by code point (UTF-8 order, not UTF-16), and integers are written exactly
instead of as doubles. So two values have the same canonical form if and only if they are equal: 1, 1.0 and 1e0 are one number.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Mapping
from enum import Enum
from hashlib import blake2b
from itertools import accumulate, chain
from typing import NoReturn

import msgspec

from taskmill.errors import InvalidPayload

__all__ = [
    "INTEGER_MAX",
    "INTEGER_MIN",
    "MAX_DEPTH",
    "MOST_PAYLOAD",
    "PAYLOAD_LIMIT",
    "canonical",
    "check_depth",
    "decode",
    "encode",
    "has_more_values",
    "parse",
    "payload_hash",
    "read",
    "sized",
    "stored",
    "write",
]

PAYLOAD_LIMIT = 256 * 1024
MOST_PAYLOAD = 1024 * 1024
"""What the setting payload_limit can be at most. Here it is the bound of what a program writes; its store refuses by the setting."""
MAX_DEPTH = 64
INTEGER_MIN = -(2**63)
INTEGER_MAX = 2**64 - 1

# Blanks and \u escapes make text longer than what is stored; beyond this factor nobody needs to read it to know.
_TEXT_FACTOR = 8
_LONG = 1 << 20
_HASH_BYTES = 16
_SHOWN_KEY = 40

# Closing quote optional, possessive: it matches from every quote, so hostile text costs one pass.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_NOT_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")
_STEP = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,39}", re.ASCII)
_SURROGATE = re.compile("[\ud800-\udfff]")

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode
_sorted = msgspec.json.Encoder(order="sorted").encode
_bounded = msgspec.msgpack.Encoder().encode


def parse(data: bytes | str, *, field: str = "payload", limit: int = MOST_PAYLOAD) -> object:
    """A value from text that a stranger wrote, or `InvalidPayload` saying what is wrong and where."""
    if isinstance(data, bytes) and _LONG < len(data) <= limit * _TEXT_FACTOR:
        data = data.strip(b" \t\r\n")  # the parser takes far longer for it
    raw, text = _both(data, field)
    if not text.strip(" \t\r\n"):
        _refuse("body_required", "it is empty", field, "send JSON; null is a value too")
    if len(raw) > limit * _TEXT_FACTOR:
        _too_large(len(raw), limit, field)
    if raw.count(b"[") + raw.count(b"{") > MAX_DEPTH and _text_too_deep(raw):
        _too_deep(field)
    try:
        value: object = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        _refuse("invalid_json", f"{error.msg} at line {error.lineno}, column {error.colno} (character {error.pos})", field, "send one JSON value in UTF-8")
    except _Refused as refused:
        _refuse(refused.code, refused.message, field, refused.hint)
    encode(value, field=field, limit=limit)
    return value


def read(data: bytes, *, field: str = "payload", limit: int = MOST_PAYLOAD) -> object:
    """The same as `parse`, at a tenth of its cost for text that is written as `encode` would write it: then nothing in it can be wrong."""
    value = _as_written(data, limit)
    return parse(data, field=field, limit=limit) if value is _OTHERWISE else value


def stored(data: bytes, *, field: str = "payload", limit: int = MOST_PAYLOAD, whole: bool = True) -> bytes:
    """The bytes to store for text that a stranger wrote: its own, where it is written as `encode` would write it. `whole=False`: of a text so written the
    depth is left to `check_depth`, part by part, which a text of many parts pays less for."""
    if _as_written(data, limit, whole=whole) is not _OTHERWISE:
        return data
    return encode(parse(data, field=field, limit=limit), field=field, limit=limit)


def check_depth(data: bytes, levels: int = 0, *, field: str = "payload") -> None:
    """Refuse a part of a `stored` text, so many levels inside of it, that goes too deep."""
    if data.count(b"[") + data.count(b"{") > MAX_DEPTH - levels and _text_too_deep(data, MAX_DEPTH - levels):
        _too_deep(field)


_OTHERWISE = object()


def _as_written(data: bytes, limit: int, *, whole: bool = True) -> object:
    """The value of text that comes back from the encoder unchanged, so that it has no duplicate key, no blank, no number that would be another one."""
    if 0 < len(data) <= limit and b"\\u0000" not in data:
        try:
            value: object = _decode(data)
            if _encode(value) == data:
                _bounded(value)
                if not whole or data.count(b"[") + data.count(b"{") <= MAX_DEPTH or not _value_too_deep(value):
                    return value
        except (ValueError, OverflowError, RecursionError, msgspec.MsgspecError):
            pass  # `parse` says what is wrong
    return _OTHERWISE


def encode(value: object, *, field: str = "payload", limit: int = MOST_PAYLOAD) -> bytes:
    """The bytes to store for a value of this program, or `InvalidPayload` naming the item that cannot be stored."""
    try:
        data = _encode(value)
        back = _decode(data)
        _bounded(value)
        same = bool(back == value)
    except (TypeError, ValueError, OverflowError, RecursionError, AttributeError, msgspec.MsgspecError):
        return _encode_checked(value, field, limit)
    if not same or b"\\u0000" in data:
        return _encode_checked(value, field, limit)
    if data.count(b"[") + data.count(b"{") > MAX_DEPTH and _value_too_deep(back):
        _too_deep(field)
    if len(data) > limit:
        _too_large(len(data), limit, field)
    return data


def write(value: object, *, field: str = "payload", limit: int = MOST_PAYLOAD) -> bytes:
    """The bytes to store for a value that `read` gave, or a part of it: nothing but its size can be wrong."""
    return sized(_encode(value), field=field, limit=limit)


def sized(data: bytes, *, field: str = "payload", limit: int = MOST_PAYLOAD) -> bytes:
    """A part of a `stored` text, if it is not too large."""
    if len(data) > limit:
        _too_large(len(data), limit, field)
    return data


def decode(data: bytes) -> object:
    """A value from bytes that `encode` made."""
    return _decode(data)


def canonical(value: object) -> bytes:
    """The one way to write this value: sorted keys, no blanks, one spelling for each number."""
    return _sorted(_decode_canonical(encode(value)))


def payload_hash(payload: bytes) -> bytes:
    """16 bytes that are equal for equal JSON, whatever its key order or spelling; `payload` is what `encode` gave."""
    return blake2b(_sorted(_decode_canonical(payload)), digest_size=_HASH_BYTES).digest()


def _canonical_number(text: str) -> int | float:
    number = float(text)
    return int(number) if number.is_integer() and INTEGER_MIN <= number <= INTEGER_MAX else number


# The hook sees only numbers written with a point or an exponent, so payloads without them pay nothing.
_decode_canonical = msgspec.json.Decoder(float_hook=_canonical_number).decode


# Text


def _both(data: bytes | str, field: str) -> tuple[bytes, str]:
    if isinstance(data, str):
        return data.encode("utf-8", "surrogatepass"), data
    try:
        return data, data.decode("utf-8")
    except UnicodeDecodeError as error:
        _refuse("invalid_utf8", f"byte {error.start} is not UTF-8", field, "send JSON in UTF-8")


def _text_too_deep(raw: bytes, most: int = MAX_DEPTH) -> bool:
    """Whether the brackets outside strings go too deep, counted without recursion, before a parser sees them."""
    brackets = _STRING.sub(b"", raw).translate(None, _NOT_BRACKETS)
    return any(depth > most for depth in accumulate(map(_STEP.__getitem__, brackets)))


def has_more_values(raw: bytes, most: int) -> bool:
    """Whether text may hold more values than that, told without a parser: one that is made of nothing but `{},` costs thirty times its size."""
    if _separators(raw) < most:
        return False
    plain = raw.replace(b"\\\\", b"").replace(b'\\"', b"")
    if plain.count(b'"') > 4 * most:  # each value can have a key, each text has two quotes
        return True
    return _separators(b"".join(plain.split(b'"')[::2])) >= most


def _separators(raw: bytes) -> int:
    return raw.count(b",") + raw.count(b"[") + raw.count(b"{")


def _value_too_deep(value: object) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH):
        children = chain.from_iterable([item.values() if isinstance(item, dict) else item for item in level if isinstance(item, (dict, list))])
        level = [child for child in children if type(child) is dict or type(child) is list]
        if not level:
            return False
    return True


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        [(twice, _)] = Counter(key for key, _ in pairs).most_common(1)
        raise _Refused("duplicate_key", f"the key {_shown(twice)} occurs twice in one object", "parsers disagree on which one counts")
    return found


def _text_integer(text: str) -> int:
    if len(text) <= 20:
        number = int(text)
        if INTEGER_MIN <= number <= INTEGER_MAX:
            return number
    raise _integer_too_large(text)


def _text_float(text: str) -> float:
    number = float(text)
    if math.isfinite(number):
        return number
    raise _not_finite(text)


def _constant(text: str) -> NoReturn:
    raise _not_finite(text)


_DECODER = json.JSONDecoder(object_pairs_hook=_once, parse_int=_text_integer, parse_float=_text_float, parse_constant=_constant)


# The walk


class _Refused(Exception):
    """An item that cannot be stored; the containers it passes on its way up add their step."""

    def __init__(self, code: str, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint
        self.steps: list[str] = []
        self.containers: list[int] = []

    def passed(self, step: str, container: object) -> None:
        self.steps.append(step)
        self.containers.append(id(container))


def _encode_checked(value: object, field: str, limit: int) -> bytes:
    try:
        data = _encode(_plain(value, 0))
    except _Refused as refused:
        if refused.code != "too_deep":
            _refuse(refused.code, refused.message, field + "".join(reversed(refused.steps)), refused.hint)
        if len(set(refused.containers)) < len(refused.containers):
            _refuse("not_encodable", "it contains itself", field, "JSON has no references")
        _too_deep(field)
    if len(data) > limit:
        _too_large(len(data), limit, field)
    return data


def _plain(value: object, depth: int) -> object:
    """The same value in dict, list, str, int, float, bool and None, every item checked; recursion ends at MAX_DEPTH."""
    if value is None or value is True or value is False:
        return value
    if isinstance(value, Enum):
        return _plain(value.value, depth)
    if isinstance(value, str):
        return _plain_text(value)
    if isinstance(value, int):
        return _plain_integer(value)
    if isinstance(value, float):
        return _plain_float(value)
    if depth >= MAX_DEPTH and isinstance(value, (Mapping, list, tuple, set, frozenset)):
        raise _Refused("too_deep", "")
    if isinstance(value, Mapping):
        return _plain_object(value, depth + 1)
    if isinstance(value, (list, tuple, set, frozenset)):
        return _plain_array(value, depth + 1)
    return _plain(_builtins(value), depth)


def _plain_text(value: str) -> str:
    if "\0" in value:
        raise _Refused("nul_character", "it holds the character U+0000", "not every store can hold it; leave it out, or encode the bytes as base64")
    if _SURROGATE.search(value):
        raise _Refused("lone_surrogate", "it holds half of a surrogate pair, which is no character", "decode the bytes with the encoding they have")
    return str.__str__(value)


def _plain_integer(value: int) -> int:
    if INTEGER_MIN <= value <= INTEGER_MAX:
        return int.__int__(value)
    raise _integer_too_large(f"an integer of {value.bit_length()} bits")


def _plain_float(value: float) -> float:
    if math.isfinite(value):
        return float.__float__(value)
    raise _not_finite(float.__repr__(value))


def _plain_object(value: Mapping[object, object], depth: int) -> dict[str, object]:
    found: dict[str, object] = {}
    for given, item in value.items():
        key = given.value if isinstance(given, Enum) else given
        if not isinstance(key, str):
            raise _Refused("not_encodable", f"a key is of type {type(key).__qualname__}, not a string", "JSON has only string keys")
        try:
            found[_plain_text(key)] = _plain(item, depth)
        except _Refused as refused:
            refused.passed(f".{key}" if _PLAIN_KEY.fullmatch(key) else f"[{_shown(key)}]", value)
            raise
    return found


def _plain_array(value: list[object] | tuple[object, ...] | set[object] | frozenset[object], depth: int) -> list[object]:
    found: list[object] = []
    try:
        found.extend(_plain(item, depth) for item in value)
    except _Refused as refused:
        refused.passed(f"[{len(found)}]", value)
        raise
    return found


def _builtins(value: object) -> object:
    """Dataclasses, msgspec Structs, pydantic models, times, UUIDs, Decimals and bytes as what JSON has."""
    try:
        found: object = msgspec.to_builtins(value, enc_hook=_model)
    # The object's own code runs here (properties, model_dump) and may raise anything.
    except Exception as error:
        raise _Refused(
            "not_encodable",
            f"an object of type {type(value).__qualname__} cannot be written as JSON",
            "convert it to dict, list, str, int, float, bool or None",
        ) from error
    if type(found) is type(value):
        raise _Refused("not_encodable", f"an object of type {type(value).__qualname__} cannot be written as JSON")
    return found


def _model(value: object) -> object:
    dump = getattr(value, "model_dump", None)
    if dump is None:
        raise NotImplementedError
    found: object = dump(mode="json")
    return found


# Refusals


def _integer_too_large(what: str) -> _Refused:
    shown = what if len(what) <= _SHOWN_KEY else f"an integer of {len(what)} digits"
    return _Refused("integer_too_large", f"{shown} is outside of -2^63 to 2^64-1", "write it as a string")


def _not_finite(what: str) -> _Refused:
    shown = what if len(what) <= _SHOWN_KEY else what[:_SHOWN_KEY] + "…"
    return _Refused("not_finite", f"{shown} is not a finite number", "JSON has none but finite numbers; use null or a string")


def _too_deep(field: str) -> NoReturn:
    _refuse("too_deep", f"it is nested deeper than {MAX_DEPTH} levels", field, "flatten it")


def _too_large(size: int, limit: int, field: str) -> NoReturn:
    _refuse("payload_too_large", f"it has {size} bytes, the limit is {limit}", field, "store it elsewhere and pass where it is")


def _shown(key: str) -> str:
    return json.dumps(key if len(key) <= _SHOWN_KEY else key[:_SHOWN_KEY] + "…")


def _refuse(code: str, message: str, field: str, hint: str | None) -> NoReturn:
    raise InvalidPayload(message, code=code, field=field, hint=hint) from None
