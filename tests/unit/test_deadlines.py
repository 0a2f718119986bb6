"""How long attempts of remote workers may go on, as one server counts it."""

from __future__ import annotations

from taskmill.clock import SECOND, ManualClock
from taskmill.server.deadlines import Deadlines


def tokens(deadlines: Deadlines, worker: str, *named: int) -> list[int]:
    return [attempt.token for attempt in deadlines.over(worker, named)]


def test_a_timeout_and_a_lease_and_not_a_moment_less() -> None:
    clock = ManualClock()
    deadlines = Deadlines(clock)
    deadlines.begin("w", 6 * SECOND, 1, "a", 2 * SECOND, request=1)
    clock.advance(8)
    assert tokens(deadlines, "w", 1) == []
    clock.advance(0.001)
    assert tokens(deadlines, "w", 1) == [1]
    assert tokens(deadlines, "w") == []
    assert tokens(deadlines, "other", 1) == []


def test_what_is_heard_of_again_does_not_begin_anew() -> None:
    clock = ManualClock()
    deadlines = Deadlines(clock)
    for _ in range(3):
        deadlines.begin("w", SECOND, 1, "a", SECOND)
        clock.advance(1)
    assert tokens(deadlines, "w", 1) == [1]


def test_a_beat_says_what_is_held_and_asks_for_what_is_not_known() -> None:
    clock = ManualClock()
    deadlines = Deadlines(clock)
    for token, request in ((1, 1), (2, 1), (3, 2)):
        deadlines.begin("w", 0, token, "a", SECOND, request)
    assert deadlines.named("w", 1, {2, 9}) == [9]
    clock.advance(2)
    assert tokens(deadlines, "w", 1, 2, 3, 9) == [2, 3]
    deadlines.leave("w")
    assert tokens(deadlines, "w", 1, 2, 3) == []


def test_it_knows_so_many_and_forgets_the_first() -> None:
    clock = ManualClock()
    deadlines = Deadlines(clock, most=2)
    for number, worker in enumerate(("a", "b", "c")):
        deadlines.begin(worker, 0, number, "t", SECOND)
    clock.advance(2)
    assert [tokens(deadlines, worker, number) for number, worker in enumerate(("a", "b", "c"))] == [[], [1], [2]]
    assert deadlines.named("a", 0, {0}) == [0]
