"""Work that a small request causes: each input is doubled, and its cost grows no faster than the input does.

Counted is processor time of this thread, the least of several tries. The ratio of four doublings tells a line (16) from a square (256),
however busy the machine is.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable

import msgspec
import pytest

from taskmill.clock import duration
from taskmill.errors import InvalidInput
from taskmill.server.incoming import FREE, MOST_GROWTH, MOST_HELD, SMALL, Held, Share, Unpacking
from taskmill.server.problem import LONGEST_NAME, Refused, invalid
from taskmill.server.rest.tasks import TaskBody, read_task
from taskmill.server.routes import Nothing, read_query

DOUBLINGS = 4
MOST_RATIO = 80
"""Of the cost of sixteen times as much: a line costs 16, a square 256."""


def cost(act: Callable[[], object]) -> float:
    """Seconds of processor time, the least of five."""
    found = []
    for _ in range(5):
        began = time.thread_time()
        act()
        found.append(time.thread_time() - began)
    return min(found)


def refused(act: Callable[[], object]) -> Exception:
    with pytest.raises((InvalidInput, Refused)) as caught:
        act()
    return caught.value


def unknown_field(name: str) -> InvalidInput:
    try:
        read_task(msgspec.json.encode({"type": "a", "payload": 1, name: 1}))
    except msgspec.ValidationError as error:
        return invalid(error, TaskBody.__struct_fields__)
    raise AssertionError("it was taken")


HOSTILE: dict[str, tuple[Callable[[int], object], int]] = {
    "a name that looks like paths": (lambda n: unknown_field(" - at `$" * n + "\nx"), 8_000),
    "a long name": (lambda n: unknown_field("payloa" * n), 8_000),
    "a parameter that looks like paths": (lambda n: refused(lambda: read_query("+-+at+`$" * n + "%0Ax=1", Nothing)), 1_000),
    "a duration of many parts": (lambda n: refused(lambda: duration("1s" * n)), 50_000),
    "a duration of many digits": (lambda n: refused(lambda: duration("1" * n + "s")), 50_000),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_cost_grows_as_the_input_does(name: str) -> None:
    act, size = HOSTILE[name]
    few, many = cost(lambda: act(size)), cost(lambda: act(size << DOUBLINGS))
    assert many < MOST_RATIO * max(few, 0.000_2)


def test_unknown_field_is_named_in_part() -> None:
    error = unknown_field("y" * 1_000_000)
    assert error.code == "unknown_field"
    assert error.field == "y" * LONGEST_NAME


@pytest.mark.parametrize("name", ["priorty", " - at `$.x`", "`", "a`b"])
def test_unknown_field(name: str) -> None:
    error = unknown_field(name)
    assert error.code == "unknown_field"
    assert error.hint == ("did you mean priority?" if name == "priorty" else "leave it out, or see /openapi.json for what there is")


@pytest.mark.parametrize("text", ["1s" * 40, "1s1s", "1h2h", "5m ", " 5m", "5m\n", "1" * 100 + "s"])
def test_durations_that_are_refused(text: str) -> None:
    assert refused(lambda: duration(text)).args


def test_durations_of_several_units() -> None:
    assert duration("1d2h3m4s5ms6us") == 93_784_005_006


# Packed bodies


def pack(data: bytes) -> bytes:
    packing = zlib.compressobj(wbits=31)
    return packing.compress(data) + packing.flush()


def unpack(data: bytes, limit: int) -> bytes:
    unpacking = Unpacking(data, limit)
    while not unpacking.ended:
        unpacking.step()
    return unpacking.whole()


@pytest.mark.parametrize("data", [b"", b"{}", b" " * FREE, bytes(FREE + 1)])
def test_packed_and_unpacked(data: bytes) -> None:
    if len(data) > FREE:
        data = b"".join(zlib.crc32(b"%d" % n).to_bytes(4, "big") for n in range(400_000))
    assert unpack(pack(data), 1 << 25) == data


def test_packed_body_that_grows_too_much() -> None:
    error = refused(lambda: unpack(pack(b" " * (FREE + 1)), 1 << 25))
    assert (error.code, error.status) == ("body_too_packed", 413)  # type: ignore[attr-defined]
    error = refused(lambda: unpack(pack(b" " * (FREE + 1)), FREE))
    assert (error.code, error.status) == ("body_too_large", 413)  # type: ignore[attr-defined]


def test_packed_body_costs_no_more_than_it_may_grow() -> None:
    """However much it would unpack to, what is made of it stays in proportion to what was sent."""
    for size in (1 << 24, 1 << 27):
        unpacking = Unpacking(pack(b" " * size), 1 << 25)
        made: list[int] = []
        with pytest.raises(Refused):
            made.extend(iter(unpacking.step, None))
        assert sum(made) <= max(FREE, MOST_GROWTH * len(pack(b" " * size)))


@pytest.mark.parametrize("data", [b"\x1f\x8b", pack(b"{}")[:-1], pack(b"{}") + b"x", b"nothing"])
def test_packed_body_that_is_none(data: bytes) -> None:
    assert getattr(refused(lambda: unpack(data, 1_000)), "code", "") == "invalid_encoding"


def test_bodies_are_counted_until_they_are_answered() -> None:
    held = Held()
    with Share(held) as first:
        first.grow(SMALL)
        assert held.size == 0
        first.grow(MOST_HELD)
        assert held.size == MOST_HELD
        with Share(held) as small:
            small.grow(SMALL)
        with pytest.raises(Exception, match="as many large bodies as it can"), Share(held) as large:
            large.grow(SMALL + 1)
        assert held.size == MOST_HELD
    assert held.size == 0
