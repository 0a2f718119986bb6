"""The board: what the child writes is what the supervisor reads, over two mappings of one file."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from taskmill.worker.board import Board
from tests.unit.worker.parts import claimed


@pytest.fixture
def boards() -> Iterator[tuple[Board, Board]]:
    """The supervisor's and the child's."""
    ours = Board(rows=4)
    theirs = Board(os.dup(ours.fd), rows=4)
    yield ours, theirs
    theirs.close()
    ours.close()


def test_a_lease_from_its_claim_to_its_end(boards: tuple[Board, Board]) -> None:
    ours, theirs = boards
    task = claimed(token=7)
    assert (ours.answered, ours.leases(), theirs.free) == (0, [], 4)
    theirs.hold([task], answered=3)
    assert (ours.answered, theirs.free) == (3, 3)
    [lease] = ours.leases()
    assert lease == (7, 0, 0, False, task.id, False)
    assert theirs.start(7, 100, 200)
    assert ours.leases() == [(7, 100, 200, False, task.id, False)]
    theirs.hurry(7, 150)
    assert ours.leases()[0].deadline == 150
    theirs.clear([7])
    assert (ours.leases(), theirs.free) == ([], 4)


def test_one_in_a_process_of_its_own_says_so_and_leaves_nothing_to_the_next(boards: tuple[Board, Board]) -> None:
    ours, theirs = boards
    for token, alone in ((1, True), (2, False)):
        theirs.hold([claimed(token=token)], answered=token)
        assert theirs.start(token, 1, 2, alone=alone)
        assert [lease.alone for lease in ours.leases()] == [alone]
        theirs.clear([token])


def test_what_was_withdrawn_does_not_begin(boards: tuple[Board, Board]) -> None:
    ours, theirs = boards
    theirs.hold([claimed(token=1), claimed(token=2)], answered=1)
    ours.withdraw([2, 99])
    assert theirs.start(1, 10, 20)
    assert not theirs.start(2, 10, 20)
    assert {lease.token: (lease.withdrawn, lease.started) for lease in ours.leases()} == {1: (False, 10), 2: (True, 0)}


def test_a_row_that_was_withdrawn_serves_the_next(boards: tuple[Board, Board]) -> None:
    ours, theirs = boards
    theirs.hold([claimed(token=1)], answered=1)
    ours.withdraw([1])
    theirs.clear([1])
    theirs.hold([claimed(token=number) for number in (2, 3, 4, 5)], answered=2)
    assert all(theirs.start(token, 1, 2) for token in (2, 3, 4, 5))


def test_what_is_not_there_is_no_matter(boards: tuple[Board, Board]) -> None:
    ours, theirs = boards
    theirs.clear([1, 2])
    theirs.hurry(1, 5)
    assert (ours.leases(), theirs.free) == ([], 4)


def test_an_answer_without_tasks_is_an_answer(boards: tuple[Board, Board]) -> None:
    ours, theirs = boards
    theirs.hold([], answered=9)
    theirs.tick(123)
    assert (ours.answered, ours.ticked, ours.leases()) == (9, 123, [])


def test_the_largest_numbers_fit(boards: tuple[Board, Board]) -> None:
    ours, theirs = boards
    largest = 2**63 - 1
    theirs.hold([claimed(token=largest)], answered=largest)
    assert theirs.start(largest, largest, largest)
    assert ours.leases()[0][:3] == (largest, largest, largest)
