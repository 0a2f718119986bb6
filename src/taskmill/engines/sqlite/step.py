"""One write transaction in progress: its connection, its moment, and what it has learnt of the store.

A step is what every verb runs in. Its caches (queues, lanes, counters, settings) hold only what is committed: they are thrown away when a
transaction is rolled back, and when the store's generation says that another process changed or removed something.
"""

from __future__ import annotations

from typing import Any

import msgspec

from taskmill.engines.rows import decode_names, json_text
from taskmill.engines.settings import Settings
from taskmill.engines.sqlite.counting import Counting
from taskmill.engines.sqlite.sql import Database, insert, load
from taskmill.events import Kind
from taskmill.task import Rules

__all__ = ["Lane", "Step"]

queries = load("step.sql")

EPOCH = 1_577_836_800_000_000
"""2020, so that tokens stay below 2^53 and every language's JSON can hold them."""

MOST_LEASES = 100_000
"""Leases given by this process whose rows are remembered (seq, id, flags, lane, kind by token), so that a finish need not look them up."""

RING = 10_000
"""Events kept for listeners; one that falls further behind is told to read anew."""


class Lane(msgspec.Struct, frozen=True):
    """What never changes about a lane."""

    id: int
    queue: int
    share: int
    limits: tuple[str, ...]
    order_key: str
    type: str


class Step:
    """A connection in its transaction."""

    def __init__(self, connection: Database, rules: Rules) -> None:
        self.db = connection
        self.settings = Settings((), rules)
        self.generation = -1
        self.counting = Counting(connection)
        self.forget()

    def forget(self) -> None:
        """Nothing of what was learnt is sure any more."""
        self.queues: dict[str, int] = {}
        self.queue_names: dict[int, str] = {}
        self.shares: dict[tuple[int, str], int] = {}
        self.share_names: dict[int, str] = {}
        self.lanes: dict[int, Lane] = {}
        self.lane_ids: dict[tuple[int, int, tuple[str, ...], str, str], int] = {}
        self.counters: dict[str, int] = {}
        self.leases: dict[int, tuple[int, str, int, int, int]] = {}
        self.counting.forget()
        self.generation = -1

    def forget_names(self) -> None:
        """A part of the transaction was taken back: names given in it may be gone, the settings are not."""
        generation = self.generation
        self.forget()
        self.generation = generation

    def begin(self, now: int) -> None:
        """Called right after the write lock is held: nothing that this reads can change before the commit."""
        self.now = now
        self.woke = False
        self.ended = False
        self.settings_changed = False
        self.nothing_shut: bool | None = None
        if len(self.leases) > MOST_LEASES:
            self.leases.clear()
        self._events: list[tuple[str, str, int, int, str | None]] = []
        self.counting.begin()
        row = self.db.execute(queries.store).fetchone()
        self.token: int = row[0]
        self.seq: int = row[1]
        generation, listen_until = row[2:]
        self._stored = (self.token, self.seq)
        self.listening = listen_until > now
        if generation != self.generation:
            self.forget()
            self.generation = generation
            self.settings = self.settings.again(self.db.execute(queries.settings))

    def end(self) -> None:
        """The last thing before the commit."""
        self.counting.end()
        if (self.token, self.seq) != self._stored:
            self.db.execute(queries.set_store, (self.token, self.seq))
        if self.settings_changed:
            self.db.execute(queries.raise_generation)
        if self._events:
            insert(self.db, queries.add_event, self._events)
            self.db.execute(queries.cut_events, (RING,))

    def mark(self) -> tuple[int, tuple[int, int, int]]:
        """Where a part of this transaction began that may be taken back."""
        return len(self._events), self.counting.mark()

    def back_to(self, mark: tuple[int, tuple[int, int, int]]) -> None:
        del self._events[mark[0] :]
        self.counting.back_to(mark[1])
        self.forget_names()
        self.settings = self.settings.again(self.db.execute(queries.settings))

    # What the step tells others

    def event(self, kind: Kind, subject: str, version: int, data: dict[str, Any] | None = None) -> None:
        if self.listening:
            self.event_saying(kind, subject, version, None if data is None else json_text(data))

    def event_saying(self, kind: Kind, subject: str, version: int, text: str | None) -> None:
        """The same with what it says as text, for those of whom many say the same; they ask `listening` first."""
        self._events.append((kind.value, subject, version, self.now, text))

    @property
    def events(self) -> int:
        """How many this step has told."""
        return len(self._events)

    def owe(self, kind: str, subject: str, data: dict[str, Any]) -> None:
        """An outbox entry, if somebody subscribed to its kind."""
        if kind in self.settings.outbox:
            self.db.execute(queries.add_outbox, (kind, subject, msgspec.json.encode(data), self.now))

    # Names and their numbers

    def queue(self, name: str) -> int:
        number = self.queues.get(name)
        if number is None:
            self.db.execute(queries.add_queue, (name,))
            number = self.db.execute(queries.queue_id, (name,)).fetchone()[0]
            self.queues[name] = number
            self.queue_names[number] = name
        return number

    def queue_name(self, number: int) -> str:
        if number not in self.queue_names:
            self.queue_names[number] = self.db.execute(queries.queue_name, (number,)).fetchone()[0]
        return self.queue_names[number]

    def share(self, queue: int, name: str) -> int:
        number = self.shares.get((queue, name))
        if number is None:
            self.db.execute(queries.add_share, (queue, name))
            number = self.db.execute(queries.share_id, (queue, name)).fetchone()[0]
            self.shares[queue, name] = number
            self.share_names[number] = name
        return number

    def share_name(self, number: int) -> str:
        if number not in self.share_names:
            self.share_names[number] = self.db.execute(queries.share_name, (number,)).fetchone()[0]
        return self.share_names[number]

    def lane_id(self, queue: int, share: str, limits: tuple[str, ...] = (), order_key: str = "", type_name: str = "") -> int:
        """The lane of such tasks: the plain line of the queue where nothing sets them apart."""
        if not (share or limits or order_key or type_name):
            return -queue
        key = (queue, self.share(queue, share), limits, order_key, type_name)
        number = self.lane_ids.get(key)
        if number is None:
            stored = (key[0], key[1], msgspec.json.encode(limits).decode(), order_key, type_name)
            self.db.execute(queries.add_lane, stored)
            number = self.db.execute(queries.lane_id, stored).fetchone()[0]
            self.lane_ids[key] = number
            self.lanes[number] = Lane(number, key[0], key[1], limits, order_key, type_name)
        return number

    def lane(self, number: int) -> Lane:
        lane = self.lanes.get(number)
        if lane is None:
            queue, share, limits, order_key, type_name = self.db.execute(queries.lane, (number,)).fetchone()
            lane = Lane(number, queue, share, decode_names(limits), order_key, type_name)
            self.lanes[number] = lane
        return lane

    def counter(self, name: str) -> int:
        number = self.counters.get(name)
        if number is None:
            self.db.execute(queries.add_counter, (name,))
            number = int(self.db.execute(queries.counter_id, (name,)).fetchone()[0])
            self.counters[name] = number
        return number

    def check_term(self, role: str, holder: str, number: int) -> bool:
        row = self.db.execute(queries.term, (role,)).fetchone()
        return row is not None and row == (number, holder)

    def tokens(self, n: int) -> int:
        """The first of n new tokens. The clock is their epoch: a store that was restored or made anew never repeats one."""
        first = max(self.token + 1, self.now - EPOCH)
        self.token = first + n - 1
        return first
