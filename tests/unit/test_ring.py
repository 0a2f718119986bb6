"""The last events of a stream: their places, and what followed one of them."""

from __future__ import annotations

import pytest

from taskmill.events import Event, Kind
from taskmill.server.news import Form, how_many, news_of, resync
from taskmill.server.ring import Ring

DATA = [{}, {"attempt": 1}, {"attempt": 1, "error": "ValueError"}, {"error": "expired"}]


def submitted(id: str) -> Event:
    return Event(kind=Kind.SUBMITTED, subject=id, version=1, data={"type": "mail", "queue": "default"})


def failed(id: str) -> Event:
    return Event(kind=Kind.RETRYING, subject=id, version=3, data={"type": "mail", "queue": "default", "attempt": 1})


def told(ring: Ring, place: str) -> list[tuple[str, str | None]] | None:
    found = ring.after(place)
    return None if found is None else [(news.type, news.task) for news in found]


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("kind", [kind for kind in Kind if kind is not Kind.RESYNC])
@pytest.mark.parametrize("subject", ["id", "key/a", "limit/a"])
def test_events_are_counted_without_being_put_into_words(kind: Kind, subject: str, data: dict[str, str | int]) -> None:
    event = Event(kind=kind, subject=subject, data=data)
    assert how_many(event) == len(list(news_of(event)))


def test_what_followed_a_place() -> None:
    ring = Ring()
    ring.begin()
    before = ring.place()
    for event in (submitted("a"), failed("a"), submitted("b")):
        ring.add(event, how_many(event))
    every = [("task.submitted", "a"), ("task.failed", "a"), ("task.retrying", "a"), ("task.submitted", "b")]
    assert told(ring, before) == every
    for number in range(1, 5):
        assert told(ring, ring.place(number)) == every[number:]
    assert told(ring, ring.place(5)) is None


def test_a_place_is_written_as_it_was_told() -> None:
    ring = Ring()
    ring.begin()
    before = ring.place()
    first = ring.add(failed("a"), 2)
    found = ring.after(before)
    assert found is not None
    lines = [news.written(Form.LINES, payload=True).split(b"\n")[0].decode() for news in found]
    assert lines == [f"id: {ring.place(first)}", f"id: {ring.place(first + 1)}"]


def test_it_holds_so_many_and_says_when_something_is_gone() -> None:
    ring = Ring(2)
    ring.begin()
    places = [ring.place()]
    for number in range(5):
        ring.add(submitted(str(number)))
        places.append(ring.place())
    assert [told(ring, place) is None for place in places] == [True, True, True, False, False, False]
    assert told(ring, places[3]) == [("task.submitted", "3"), ("task.submitted", "4")]
    assert told(ring, places[5]) == []


def test_what_concerns_nobody_takes_no_place() -> None:
    ring = Ring(1)
    ring.begin()
    ring.add(submitted("a"))
    place = ring.place()
    secret = Event(kind=Kind.SETTING_CHANGED, subject="key/a")
    ring.add(secret, how_many(secret))
    assert (ring.place(), told(ring, place)) == (place, [])


def test_a_gap_is_among_what_followed() -> None:
    ring = Ring()
    ring.begin()
    before = ring.place()
    ring.add(resync("gap", 1))
    assert told(ring, before) == [("resync", None)]


def test_places_of_another_beginning_say_nothing() -> None:
    ring = Ring()
    ring.begin()
    ring.add(submitted("a"))
    place = ring.place()
    ring.begin()
    assert told(ring, place) is None
    ring.add(submitted("b"))
    assert told(ring, place) is None
    assert told(ring, ring.place(0)) == [("task.submitted", "b")]
