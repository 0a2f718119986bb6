"""Counts that every step keeps: how many tasks of a kind (queue, type, priority) are in which state, in all and in every block of 1,024 numbers.
A running task is counted as pending: those that run have an index of their own and are few, so questions look them up, and a claim has nothing to write.

A step notes what it moved, in memory. What came of it is written once, right before the commit, in as many rows as there are kinds, states and blocks in it:
few, because a step's tasks are neighbours. A part of a step that is taken back takes its notes back with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from taskmill.clock import MINUTE
from taskmill.engines.rows import FAR, PENDING, RUNNING
from taskmill.engines.sqlite.sql import Database, load

__all__ = ["ALL", "BLOCK", "Counting"]

queries = load("counting.sql")

BLOCK = 10
"""A task's number, shifted by this, is its block."""
ALL = -1
"""The block that stands for all."""

Moved = tuple[int, int, int]
"""Kind, state, block."""


def _kept(state: int) -> int:
    return PENDING if state == RUNNING else state


class Counting:
    """What the tasks of one transaction moved."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self.forget()
        self.begin()

    def forget(self) -> None:
        self._kinds: dict[tuple[str, str, int], int] = {}

    def begin(self) -> None:
        self._notes: list[tuple[Moved, int]] = []
        self._ages: list[tuple[int, int]] = []
        self._born: list[tuple[int, int]] = []

    def mark(self) -> tuple[int, int, int]:
        return len(self._notes), len(self._ages), len(self._born)

    def back_to(self, mark: tuple[int, int, int]) -> None:
        for notes, length in zip((self._notes, self._ages, self._born), mark, strict=True):
            del notes[length:]  # type: ignore[attr-defined]
        self.forget()

    def kind(self, queue: str, type: str, priority: int) -> int:
        number = self._kinds.get((queue, type, priority))
        if number is None:
            self._db.execute(queries.add_kind, (queue, type, priority))
            number = int(self._db.execute(queries.kind, (queue, type, priority)).fetchone()[0])
            self._kinds[queue, type, priority] = number
        return number

    # What a step notes

    def came(self, kind: int, state: int, seq: int, ready_at: int, n: int = 1) -> None:
        """A task (or n of a block, the oldest of them ready at that time) is in this state now."""
        self._notes.append(((kind, _kept(state), seq >> BLOCK), n))
        if state == PENDING:
            self._ages.append((kind, ready_at))

    def left(self, kind: int, state: int, seq: int) -> None:
        self._notes.append(((kind, _kept(state), seq >> BLOCK), -1))

    def moved(self, before: Mapping[Moved, int], state: int) -> None:
        """Many at once, by the kind, state and block that they had; not to pending, for which ages count."""
        for (kind, was, block), n in before.items():
            self._notes.append(((kind, _kept(was), block), -n))
            self._notes.append(((kind, _kept(state), block), n))

    def moved_columns(self, kinds: Sequence[int], states: Sequence[int], seqs: Sequence[int], state: int) -> None:
        """The same from columns. Nearly always they are of one kind, state and block, and that is seen without looking at each."""
        if len(set(kinds)) == len(set(states)) == 1 and min(seqs) >> BLOCK == max(seqs) >> BLOCK:
            self.moved({(kinds[0], states[0], seqs[0] >> BLOCK): len(seqs)}, state)
        else:
            self.moved(Counter(zip(kinds, states, [seq >> BLOCK for seq in seqs], strict=True)), state)

    def born(self, seq: int, created_at: int) -> None:
        self._born.append((seq >> BLOCK, created_at))

    def set_back(self) -> None:
        self._db.execute(queries.any_age)

    # What comes of it

    def end(self) -> None:
        if self._notes:
            self._write(self._notes)
        if self._born:
            self._write_spans(self._born)

    def _write(self, notes: Iterable[tuple[Moved, int]]) -> None:
        sums: dict[Moved, int] = {}
        for key, n in notes:
            whole = (key[0], key[1], ALL)
            sums[whole] = sums.get(whole, 0) + n
            sums[key] = sums.get(key, 0) + n
        ages: dict[Moved, int] = {}
        for kind, ready_at in self._ages:
            ages[kind, PENDING, ALL] = min(ready_at, ages.get((kind, PENDING, ALL), FAR))
        self._db.executemany(queries.count, [(*key, n, ages.get(key, FAR)) for key, n in sums.items() if n > 0 or (key[2] == ALL and (n or key in ages))])
        if left := [(-n, *key) for key, n in sums.items() if n < 0 and key[2] != ALL]:
            empty = [row[1:] for row in self._db.executemany(queries.count_left, left).fetchall() if row[0] == 0]
            if empty:
                self._db.executemany(queries.forget_block, empty)

    def _write_spans(self, born: Iterable[tuple[int, int]]) -> None:
        """With a minute in hand, so that a block is written once a minute and not with every submit."""
        times: dict[int, tuple[int, int]] = {}
        for block, at in born:
            first, last = times.get(block, (at, at))
            times[block] = (min(first, at), max(last, at))
        self._db.executemany(queries.span, [(block, first, last + MINUTE, MINUTE) for block, (first, last) in times.items()])
