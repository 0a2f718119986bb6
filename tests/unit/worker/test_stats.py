"""What a child counts."""

from __future__ import annotations

import pytest

from taskmill.engine import Ending
from taskmill.worker.stats import BUCKETS, Counted, Stats


def test_endings_and_durations_by_type() -> None:
    stats = Stats()
    stats.count("a", Ending.COMPLETED, 500)
    stats.count("a", Ending.COMPLETED, 2_000)
    stats.count("a", Ending.RETRY, 10**12)
    stats.count("b", Ending.DEAD, 0)
    taken = stats.take()
    assert taken is not None
    assert taken["a"].endings == {"completed": 2, "retry": 1}
    assert taken["a"].total == 10**12 + 2_500
    assert (taken["a"].buckets[0], taken["a"].buckets[1], taken["a"].buckets[-1]) == (1, 1, 1)
    assert taken["b"].endings == {"dead": 1}


def test_what_was_taken_is_not_counted_again() -> None:
    stats = Stats()
    assert stats.take() is None
    stats.count("a", Ending.COMPLETED, 1)
    assert stats.take() is not None
    assert stats.take() is None


@pytest.mark.parametrize("position", range(len(BUCKETS)))
def test_a_bucket_has_its_own_bound(position: int) -> None:
    stats = Stats()
    stats.count("a", Ending.COMPLETED, BUCKETS[position])
    stats.count("a", Ending.COMPLETED, BUCKETS[position] + 1)
    taken = stats.take()
    assert taken is not None
    assert taken["a"].buckets[position : position + 2] == [1, 1]


def test_two_types_do_not_share_their_numbers() -> None:
    one, other = Counted(), Counted()
    one.endings["completed"] = 1
    one.buckets[0] = 1
    assert (other.endings, sum(other.buckets)) == ({}, 0)
