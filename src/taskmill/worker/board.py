"""What a child holds, where its supervisor can see it: a table in memory that both have mapped.

The supervisor beats for its child and names its leases, kills it when a handler is past its hard deadline, and reports what it held when
it dies. For all three it must know what the child holds without asking: the child may be blocked, stopped or gone. So the child writes
each lease into a row before it says that it has the answer of the claim, and clears the row when the store has answered its finish:

    header   answered   tick                                 the last claim whose tasks are all in rows; when the child's loop last turned
    row      token      started   deadline   withdrawn   id   alone   token 0: free; times on the monotonic clock, 0: not yet

One side writes each field (`withdrawn` is the supervisor's, all others the child's), fields are single aligned words, and the order of
writing makes every mixture that a reader may see a true one: it reads `answered` first, then the tokens, so a lease of an answered claim
is never missing. A lease that was cleared meanwhile is named once more, which the store does not mind.
"""

from __future__ import annotations

import mmap
import os
import struct
import tempfile
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from taskmill.engine import Claimed

__all__ = ["ROWS", "Board", "Lease"]

ROWS = 8_192
"""More than a child ever holds: what it runs, what waits in it, and what waits for the store to answer its finish."""

_HEADER = 64
_ROW = struct.Struct("@QQQQ36sI")  # native, so each word is one store; 72 bytes, so each is aligned
_WORD = 8
_ANSWERED, _TICK = 0, 1
_STARTED, _WITHDRAWN = 1, 3
_ALONE = 68


class Lease(NamedTuple):
    """A lease as the supervisor sees it."""

    token: int
    started: int
    deadline: int
    withdrawn: bool
    id: str
    alone: bool
    """It runs in a process of its own."""


class Board:
    """The table; the child and the supervisor each map the same file descriptor."""

    def __init__(self, fd: int | None = None, rows: int = ROWS) -> None:
        size = _HEADER + rows * _ROW.size
        self.fd = _anonymous(size) if fd is None else fd
        self._map = mmap.mmap(self.fd, size)
        self._words = memoryview(self._map).cast("Q")
        self._free = list(range(rows - 1, -1, -1))
        self._row_of: dict[int, int] = {}

    def close(self) -> None:
        self._words.release()
        self._map.close()
        os.close(self.fd)

    # The child's side

    @property
    def free(self) -> int:
        """How many more leases fit."""
        return len(self._free)

    def hold(self, tasks: Iterable[Claimed], answered: int) -> None:
        """These are mine; with them, everything up to this request is here."""
        for task in tasks:
            row = self._free.pop()
            self._row_of[task.token] = row
            _ROW.pack_into(self._map, _HEADER + row * _ROW.size, task.token, 0, 0, 0, task.id.encode(), 0)
        self._words[_ANSWERED] = answered

    def start(self, token: int, started: int, deadline: int, *, alone: bool = False) -> bool:
        """The handler begins, and must have ended at its deadline; False: the lease was taken away, it must not begin."""
        offset = _HEADER + self._row_of[token] * _ROW.size
        word = offset // _WORD
        if self._words[word + _WITHDRAWN]:
            return False
        if alone:
            self._map[offset + _ALONE] = 1
        self._words[word + 2] = deadline
        self._words[word + _STARTED] = started
        return True

    def hurry(self, token: int, deadline: int) -> None:
        """It must end earlier than it was allowed to; 0: it has ended, and has no deadline any more."""
        row = self._row_of.get(token)
        if row is not None:
            self._words[(_HEADER + row * _ROW.size) // _WORD + 2] = deadline

    def clear(self, tokens: Iterable[int]) -> None:
        """The store has answered: these are no longer mine."""
        for token in tokens:
            row = self._row_of.pop(token, None)
            if row is not None:
                self._words[(_HEADER + row * _ROW.size) // _WORD] = 0
                self._free.append(row)

    def tick(self, now: int) -> None:
        self._words[_TICK] = now

    # The supervisor's side

    @property
    def answered(self) -> int:
        return self._words[_ANSWERED]

    @property
    def ticked(self) -> int:
        """When the child's loop last turned; 0: not yet."""
        return self._words[_TICK]

    def leases(self) -> list[Lease]:
        """What the child holds; read `answered` before."""
        found = []
        for row, held in enumerate(self._tokens()):
            if held:
                token, started, deadline, withdrawn, id, alone = _ROW.unpack_from(self._map, _HEADER + row * _ROW.size)
                if token:
                    found.append(Lease(token, started, deadline, bool(withdrawn), id.decode("ascii", "replace"), bool(alone)))
        return found

    def _tokens(self) -> list[int]:
        return self._words[_HEADER // _WORD :: _ROW.size // _WORD].tolist()

    def withdraw(self, tokens: Sequence[int]) -> None:
        """These must not begin any more: the child does not turn, and others can have them."""
        wanted = frozenset(tokens)
        for row, token in enumerate(self._tokens()):
            if token in wanted:
                self._words[(_HEADER + row * _ROW.size) // _WORD + _WITHDRAWN] = 1


def _anonymous(size: int) -> int:
    """A file without a name; gone with the last process that has it open."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("taskmill-board")
    else:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    os.truncate(fd, size)
    return fd
