"""Which tasks a claim takes: priority, then turn between shares, then age (promise 12), and only what every limit admits.

Most queues have nothing but their plain line, which is one ordered read. Where lanes are open, each visit takes at most a quantum from the
oldest open lane of the share whose turn it is. The oldest lanes are read a few at once and visited in memory, and the next task of a lane is read along. What
was taken is written in one go; a lane whose next task is not known without looking is looked at only after that, so every visit sees the truth.

A task in the way that this claim may not take (a type the worker does not know or has no room for) is moved into a lane of its own type, once; one that has
expired is ended. Both are bounded, and `more` says when a bound was reached.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Any

import msgspec

from taskmill.engine import Room
from taskmill.engines.rows import CHECKPOINTS, PENDING, RUNNING, SIGNALS, decode_names, encode_names, facts
from taskmill.engines.sqlite import lanes
from taskmill.engines.sqlite.sql import load
from taskmill.engines.sqlite.step import Step
from taskmill.engines.sqlite.transitions import Moves, read_rows
from taskmill.events import Kind
from taskmill.task import ErrorInfo

__all__ = ["FLAGS", "LANE", "QUANTUM", "SEQ", "Batch", "Found", "Picker"]

queries = load("pick.sql")

QUANTUM = 8
"""Tasks of one lane before the next is looked at."""
MOST_PASSED_OVER = 1_000
"""Tasks that one claim moves out of its way or ends because they have expired."""
TURN = 1_000_000
"""Virtual time of one task of a share with weight 1."""

_SEQ_LAST = itemgetter(4)

Found = tuple[Any, ...]
# seq, id, type, queue, priority, ready_at, version, executions, failures, crashes, flags, created_at, expires_at, tenant, must_end, phase, lane,
# payload, retry, timeout, max_crashes, meta, state
SEQ, ID, TYPE, QUEUE, PRIORITY, READY_AT, VERSION, EXECUTIONS, FLAGS = 0, 1, 2, 3, 4, 5, 6, 7, 10
EXPIRES_AT, TENANT, MUST_END, LANE, PAYLOAD, META, STATE = 12, 13, 14, 16, 17, 21, 22


_type, _flags, _expires_at, _payload, _meta = map(itemgetter, (TYPE, FLAGS, EXPIRES_AT, PAYLOAD, META))
_kind, _state, _seq = itemgetter(QUEUE, TYPE, PRIORITY), itemgetter(STATE), itemgetter(SEQ)


class Batch(msgspec.Struct):
    """Rows as they were read, with the tokens they were given, and by how much their start raised version and attempt since."""

    rows: Sequence[Found]
    tokens: Sequence[int]
    claimed_at: int
    raised: int


class Picker:
    """What one claim has taken so far, and what room is left."""

    def __init__(self, step: Step, worker: str, request: int, types: Sequence[str], room: Room) -> None:
        self.step = step
        self.worker = worker
        self.request = request
        self.room = room
        self.slots = room.slots
        self.prefetch = room.prefetch
        self.bytes = room.max_bytes
        self.stuffed = False
        self.rooms = {name: room.types.get(name, 1 << 30) for name in types if name not in step.settings.paused_types}
        self.limits: dict[str, lanes.Limit] = {}
        self.unders: dict[str, lanes.Under] = {}
        self.chosen: list[Found] = []
        self.taken: list[Batch] = []
        self.passed_over = 0
        self.more = False
        self.flagged = False
        """Whether any task taken has more than its row."""

    def pick(self, queues: Sequence[str]) -> None:
        """Every queue gets an equal part first, then what others leave; the one that goes first changes with the request."""
        start = self.request % len(queues) if queues else 0
        turns = [_QueuePicker(self, queue) for queue in (*queues[start:], *queues[:start])]
        part = -(-self.slots // len(turns)) if turns else 0
        for turn in turns:
            turn.pick(min(part, self.slots))
        for turn in turns:
            turn.pick(self.slots)
        for turn in turns:
            turn.pick_ahead()

    def limit(self, name: str) -> lanes.Limit:
        if name not in self.limits:
            self.limits[name] = lanes.Limit(self.step, name)
        return self.limits[name]

    def under(self, name: str) -> lanes.Under:
        """A limit of a lane. Lanes under the whole limit and lanes under its cap count by the same numbers."""
        if name not in self.unders:
            self.unders[name] = lanes.Under(self.limit(name.removeprefix(lanes.CAP)), cap_only=name.startswith(lanes.CAP))
        return self.unders[name]

    def types(self) -> str:
        """The types that may still be taken, as statements want them."""
        return encode_names(tuple(name for name, room in self.rooms.items() if room > 0))

    def full(self) -> bool:
        return self.slots <= 0 or self.stuffed

    def fits(self, row: Found) -> bool:
        """An answer has at most so many bytes, but at least one task."""
        self.stuffed = self._size((row,)) > self.bytes and self.bytes < self.room.max_bytes
        self.more |= self.stuffed
        return not self.stuffed

    def take(self, row: Found) -> None:
        self.slots -= 1
        self.bytes -= self._size((row,))
        self.rooms[row[TYPE]] -= 1

    def _size(self, rows: Sequence[Found]) -> int:
        """Bytes of an answer: payloads, headers, and what few tasks bring along."""
        size = sum(map(len, map(_payload, rows))) + sum(map(len, filter(None, map(_meta, rows))))
        if any(map(_flags, rows)):
            extras = [(row[SEQ],) for row in rows if row[FLAGS] & (CHECKPOINTS | SIGNALS)]
            size += sum(found for (found,) in self.step.db.executemany(queries.extra_size, extras))
        return size

    def sort(self, rows: Sequence[Found], most: int) -> list[Found]:
        """Take what may be taken, and get the rest out of the way."""
        whole = self._take_whole(rows, most)
        if whole:
            return whole
        took: list[Found] = []
        expired: list[str] = []
        foreign: list[Found] = []
        for row in rows:
            if row[EXPIRES_AT] is not None and row[EXPIRES_AT] <= self.step.now and row[MUST_END] is None:
                expired.append(row[ID])
            elif self.rooms.get(row[TYPE], 0) <= 0:
                foreign.append(row)
            elif len(took) < most and not self.full() and self.fits(row):
                self.take(row)
                took.append(row)
        if expired or foreign:
            self.flush()  # both look at lanes, which must not show what is taken already
            self._expire(expired)
            self._move(foreign)
        return took

    def _take_whole(self, rows: Sequence[Found], most: int) -> list[Found]:
        """Nearly always nothing is in the way, and that is seen without looking at each row by itself."""
        counts = Counter(map(_type, rows))
        size = self._size(rows)
        if len(rows) > min(most, self.slots) or size > self.bytes or self.stuffed:
            return []
        if any(self.rooms.get(name, 0) < n for name, n in counts.items()) or any(map(_expires_at, rows)):
            return []
        for name, n in counts.items():
            self.rooms[name] -= n
        self.slots -= len(rows)
        self.bytes -= size
        return list(rows)

    def _expire(self, tasks: list[str]) -> None:
        self.passed_over += len(tasks)
        moves = Moves(self.step)
        for row in read_rows(self.step, tasks).values():
            moves.cancel(row, ErrorInfo("expired", "its deadline (expires) has passed"), reason="expired")
        self.more |= moves.settle()

    def _move(self, rows: list[Found]) -> None:
        """Into the lane of their type: whoever may take them finds them there at their age, and nobody meets them again in vain."""
        step = self.step
        self.passed_over += len(rows)
        stirred, moved = set(), []
        for row in rows:
            if row[LANE] < 0:
                target = step.lane_id(-row[LANE], "", (), "", row[TYPE])
            else:
                lane = step.lane(row[LANE])
                target = step.lane_id(lane.queue, step.share_name(lane.share), lane.limits, "", row[TYPE])
                stirred.add(row[LANE])
            moved.append((target, step.now, row[SEQ]))
            if row[STATE] != PENDING:
                kind = step.counting.kind(*_kind(row))
                step.counting.left(kind, row[STATE], row[SEQ])
                step.counting.came(kind, PENDING, row[SEQ], row[READY_AT])
            stirred.add(target)
        step.db.executemany(queries.move, moved)
        lanes.refresh(step, stirred)

    def flush(self) -> None:
        """What was chosen is running, under new tokens."""
        rows, self.chosen = self.chosen, []
        if not rows:
            return
        step, now = self.step, self.step.now
        tokens = range(first := step.tokens(len(rows)), first + len(rows))
        worker, request = self.worker, self.request
        started = [(token, worker, request, now, row[SEQ]) for token, row in zip(tokens, rows, strict=True)]
        started.sort(key=_SEQ_LAST)  # in the order of the table, so that neighbours are written together
        step.db.executemany(queries.start, started)
        numbers = {key: step.counting.kind(*key) for key in set(map(_kind, rows))}
        kinds = [*numbers.values()] * len(rows) if len(numbers) == 1 else [numbers[_kind(row)] for row in rows]
        if any(map(_state, rows)):  # some came due; of pending ones a claim changes no count
            step.counting.moved_columns(kinds, list(map(_state, rows)), list(map(_seq, rows)), RUNNING)
        leases = [(row[SEQ], row[ID], row[FLAGS], row[LANE], kind) for row, kind in zip(rows, kinds, strict=True)]
        step.leases.update(zip(tokens, leases, strict=True))
        self.taken.append(Batch(rows, tokens, now, 1))
        if any(map(_flags, rows)):
            self.flagged = True
        if step.listening:
            self._tell(rows)

    def _tell(self, rows: Sequence[Found]) -> None:
        for row in rows:
            data = facts(row[TYPE], row[QUEUE], row[TENANT]) | {"worker": self.worker, "attempt": row[EXECUTIONS] + 1}
            self.step.event(Kind.STARTED, row[ID], row[VERSION] + 1, data)

    def write(self) -> Sequence[Batch]:
        self.flush()
        for limit in self.limits.values():
            limit.save()
        for limit in self.limits.values():
            lanes.wake(self.step, limit)
        return self.taken

    def pass_on(self, limits: Iterable[lanes.Limit]) -> bool:
        """Room of these limits that lanes which could not use it leave to others; True if a lane was opened."""
        if lanes.nothing_shut(self.step):
            return False
        for limit in limits:
            limit.save()
        return sum(lanes.wake(self.step, limit) for limit in limits if limit.room > 0 or (limit.definition.cap is not None and limit.cap_room > 0)) > 0


class _PlainLine:
    """The plain line of a queue at one priority, read ahead in pieces."""

    def __init__(self, picker: Picker, queue: int, priority: int) -> None:
        self.picker = picker
        self.key = (-queue, priority)
        self.rows: list[Found] = []
        self.after = (-1, -1)
        self.dry = False

    def head(self, want: int) -> tuple[int, int] | None:
        """The age of its next task: when it became ready, then the order of submission."""
        if not self.rows and not self.dry:
            step = self.picker.step
            self.rows = step.db.execute(queries.plain, (*self.key, step.now, *self.after, max(want, QUANTUM))).fetchall()
            self.dry = len(self.rows) < max(want, QUANTUM)
            if self.rows:
                self.after = (self.rows[-1][READY_AT], self.rows[-1][SEQ])
        return (self.rows[0][READY_AT], self.rows[0][SEQ]) if self.rows else None

    def take(self, most: int) -> int:
        """Up to `most` of those read; they are written at the end, together."""
        rows, self.rows = self.rows[:most], self.rows[most:]
        took = self.picker.sort(rows, most)
        self.picker.chosen += took
        return len(took)


class _LaneLine:
    """A lane at one priority, read ahead in growing pieces, because a claim often comes back to it."""

    def __init__(self, step: Step, lane: int, priority: int) -> None:
        self.step = step
        self.key = (lane, priority)
        self.rows: list[Found] = []
        self.after = (-1, -1)
        self.piece = QUANTUM + 1
        self.dry = False

    def read(self, n: int) -> list[Found]:
        """The first n, fewer where there are no more."""
        while len(self.rows) < n and not self.dry:
            found = self.step.db.execute(queries.lane, (*self.key, *self.after, self.piece)).fetchall()
            self.dry = len(found) < self.piece
            self.piece *= 2
            self.rows += found
            if found:
                self.after = (found[-1][READY_AT], found[-1][SEQ])
        return self.rows[:n]


class _Ages:
    """The oldest open lanes of a share at one priority, in memory: most visits change nothing but the age of the lane they served."""

    def __init__(self, step: Step, share: int, priority: int, types: str, n: int) -> None:
        rows = step.db.execute(queries.oldest_lanes, (share, priority, types, n)).fetchall()
        self._heap = [(head_at, head_seq, lane) for lane, head_at, head_seq in rows]
        self._last = self._heap[-1] if len(rows) == n else None
        self._heads: dict[int, tuple[int, int]] = {}

    def holds(self) -> bool:
        """Whether the oldest here is still the oldest of all; behind the last that was read there may be older ones."""
        return self._last is None or (bool(self._heap) and self._heap[0] <= self._last)

    def oldest(self) -> tuple[int, int, int] | None:
        return self._heap[0] if self._heap else None

    def advance(self, head_at: int, head_seq: int) -> None:
        """The oldest lane was served; this is its next task."""
        lane = self._heap[0][2]
        self._heads[lane] = (head_at, head_seq)
        heapq.heapreplace(self._heap, (head_at, head_seq, lane))

    def moved(self) -> list[tuple[int, int, int]]:
        return [(*head, lane) for lane, head in self._heads.items()]


class _QueuePicker:
    """One queue in a claim."""

    def __init__(self, picker: Picker, name: str) -> None:
        self.picker = picker
        self.step = picker.step
        self.name = name
        self.id = picker.step.queue(name)
        self.settings = picker.step.settings.queues.get(name)
        self.lines = [_PlainLine(picker, self.id, priority) for priority in range(4)]
        self.dry: set[tuple[int, int]] = set()
        self.passed: dict[int, str] = {}
        self.quantum = QUANTUM if self.settings is not None and self.settings.priorities is not None else 1 << 30
        self.lane_lines: dict[tuple[int, int], _LaneLine] = {}
        self.ages: dict[tuple[int, int], _Ages] = {}
        self.want = 0
        self._look_at_shares()

    def _look_at_shares(self) -> None:
        """Where there is only the share without a name, nobody takes turns."""
        shares = self.step.db.execute(queries.open_shares, (self.id,)).fetchall()
        self.alone = all(name == "" for _, name in shares)
        self.unnamed: int | None = shares[0][0] if self.alone and shares else None

    def pick(self, want: int) -> None:
        self.want = want
        if want <= 0:
            return
        self._pass_over_foreign()
        if self.settings is not None and self.settings.priorities is not None:
            self._pick_weighted(self.settings.priorities)
        else:
            self._pick_strict()
        self.forget_ages()

    def pick_ahead(self) -> None:
        """A few more of the plain line, so that the worker has the next at hand."""
        picker = self.picker
        while picker.prefetch > 0 and not picker.stuffed and picker.passed_over < MOST_PASSED_OVER:
            line = next((line for line in reversed(self.lines) if line.head(picker.prefetch) is not None), None)
            if line is None:
                return
            most = picker.prefetch
            picker.slots += most
            took = line.take(most)
            picker.slots -= most - took
            picker.prefetch -= took

    def _pick_strict(self) -> None:
        priority = 3
        while priority >= 0 and self._can_go_on():
            if not self._serve(priority):
                priority = 3 if self._pass_on() else priority - 1

    def _pick_weighted(self, weights: Sequence[int]) -> None:
        """Priorities take turns by weight (critical first in the list); one that had nothing for a while has earned nothing."""
        turns: list[int] = msgspec.json.decode(self.step.db.execute(queries.levels, (self.id,)).fetchone()[0])
        left = {0, 1, 2, 3}
        while left and self._can_go_on():
            priority = min(left, key=lambda level: (turns[level], -level))
            took = self._serve(priority)
            if took:
                floor = turns[priority]
                turns[priority] += took * TURN // max(1, weights[3 - priority])
                for level in left:
                    turns[level] = max(turns[level], floor)
            elif self._pass_on():
                left = {0, 1, 2, 3}
            else:
                left.discard(priority)
        self.step.db.execute(queries.set_levels, (msgspec.json.encode(turns).decode(), self.id))

    def _pass_over_foreign(self) -> None:
        """Open lanes that are not for this worker must not keep the room of their limits from those that are: as many more are opened."""
        if self.alone and self.unnamed is None:  # no lane is open
            return
        opened = True
        while opened:
            self._look_at_shares()
            foreign = self.step.db.execute(queries.foreign_lanes, (self.id, self.picker.types())).fetchall()
            for (names,) in foreign:
                for limit in decode_names(names):
                    self.picker.under(limit)
            opened = bool(foreign) and self.picker.pass_on(self.picker.limits.values())

    def _pass_on(self, limits: Iterable[lanes.Limit] | None = None) -> bool:
        """If room that was left opened a lane, what was dry may have something again."""
        self.forget_ages()
        opened = self.picker.pass_on(self.picker.limits.values() if limits is None else limits)
        if opened:
            self._look_at_shares()
            self._pass_over_foreign()
            self.dry.clear()
        return opened

    def _can_go_on(self) -> bool:
        if self.picker.passed_over >= MOST_PASSED_OVER:
            self.picker.more = True
            return False
        return self.want > 0 and not self.picker.full()

    def _serve(self, priority: int) -> int:
        """Tasks of this priority from the share whose turn it is; 0 when nothing is left for this claim."""
        while self._can_go_on():
            share = self._next_share(priority)
            if share is None:
                return 0
            took = self._serve_share(*share, priority)
            self.want -= took
            if took:
                return took
        return 0

    def _next_share(self, priority: int) -> tuple[int, int, str, bool] | None:
        """(id, turn, name, alone) of the share whose turn it is. Turns below the queue's own count as the queue's: idling earns no credit."""
        if self.alone:
            return self._the_only_share(priority)
        shares = self._shares(priority)
        if self.lines[priority].head(self.want) is not None and not any(name == "" for _, _, name in shares):
            if not shares:
                return 0, 0, "", True
            plain = self.step.share(self.id, "")
            shares.append((plain, self.step.db.execute(queries.turn, (plain,)).fetchone()[0], ""))
        if not shares:
            return None
        floor = self.step.db.execute(queries.queue_turn, (self.id,)).fetchone()[0]
        share, turn, name = min(shares, key=lambda row: (max(row[1], floor), row[0]))
        return share, max(turn, floor), name, False

    def _the_only_share(self, priority: int) -> tuple[int, int, str, bool] | None:
        if self.unnamed is not None:
            return None if (self.unnamed, priority) in self.dry else (self.unnamed, 0, "", False)
        return None if self.lines[priority].head(self.want) is None else (0, 0, "", True)

    def _shares(self, priority: int) -> list[tuple[int, int, str]]:
        """The first in turn, and those that stand under a higher priority because of tasks which are foreign to this worker."""
        found: list[tuple[int, int, str]] = []
        for row in self.step.db.execute(queries.shares, (self.id, priority)):
            if (row[0], priority) not in self.dry:
                found.append(row)
                break
        for share, name in self.passed.items():
            if (share, priority) not in self.dry and self.step.db.execute(queries.any_lane, (share, priority)).fetchone():
                found.append((share, self.step.db.execute(queries.turn, (share,)).fetchone()[0], name))
        return found

    def _serve_share(self, share: int, turn: int, name: str, alone: bool, priority: int) -> int:
        if alone:
            return self._serve_plain(priority, min(self.quantum, self.want))
        took = self._serve_oldest(share, name, priority)
        if took and not self.alone:
            weight = self.settings.weight(name) if self.settings is not None else 1
            self.step.db.execute(queries.set_turn, (turn + took * TURN // weight, share))
            self.step.db.execute(queries.set_queue_turn, (turn, self.id))
            if not lanes.nothing_shut(self.step):
                self.step.db.execute(queries.set_stand_turn, (turn + took * TURN // weight, share))
        elif not took:
            self.dry.add((share, priority))
            self.passed[share] = name
        return took

    def _serve_plain(self, priority: int, most: int) -> int:
        """From the plain line, past what is not for this worker; if all of a piece was not, the next piece."""
        line = self.lines[priority]
        while line.head(most) is not None and self._can_go_on():
            took = line.take(min(most, self.want))
            if took:
                return took
        return 0

    def _serve_oldest(self, share: int, name: str, priority: int) -> int:
        """The oldest ready task of a share, and what follows it in the same lane, up to a quantum."""
        while self._can_go_on():
            lane = self._oldest_lane(share, priority)
            plain = self.lines[priority].head(self.want) if name == "" else None
            if lane is None and plain is None:
                return 0
            if lane is None or (plain is not None and plain < lane[:2]):
                took = self.lines[priority].take(min(QUANTUM, self.want))
            else:
                took = self._serve_lane(lane[2], share, priority)
            if took:
                return took
        return 0

    def _oldest_lane(self, share: int, priority: int) -> tuple[int, int, int] | None:
        """(age, seq, lane), from the few that were read together."""
        ages = self.ages.get((share, priority))
        if ages is None or not ages.holds():
            self.forget_ages()
            ages = self.ages[share, priority] = _Ages(self.step, share, priority, self.picker.types(), -(-self.want // QUANTUM) + 1)
        return ages.oldest()

    def forget_ages(self) -> None:
        """Lanes are about to be looked at in the store, or may have changed there."""
        heads = [head for ages in self.ages.values() for head in ages.moved()]
        self.ages.clear()
        if heads:
            lanes.advance(self.step, heads)

    def _serve_lane(self, number: int, share: int, priority: int) -> int:
        picker, step = self.picker, self.step
        lane = step.lane(number)
        unders = [picker.under(name) for name in lane.limits]
        for under in unders:
            if under.room == 0:
                self.forget_ages()
                lanes.shut(step, number, share, under)
                self._pass_on([under.limit for under in unders])
                return 0
        rows, following = self._next_rows(number, priority, [under.room for under in unders]) if not lane.order_key else self._next_in_order(number)
        took = picker.sort(rows, len(rows))
        if took:
            picker.chosen += took
            for under in unders:
                under.start(len(took))
        if following and len(took) == len(rows):  # the next one was read along: the lane stays as open as it was
            self.ages[share, priority].advance(following[0][READY_AT], following[0][SEQ])
        else:
            self.forget_ages()
            picker.flush()
            lanes.refresh(step, (number,))
            self.lane_lines.pop((number, priority), None)
            self._pass_on([under.limit for under in unders])
        return len(took)

    def _next_rows(self, number: int, priority: int, rooms: list[int]) -> tuple[list[Found], list[Found]]:
        """A quantum of a lane, and the one behind it."""
        most = min([QUANTUM, self.want, *rooms])
        line = self.lane_lines.setdefault((number, priority), _LaneLine(self.step, number, priority))
        rows = line.read(most + 1)
        del line.rows[: len(rows[:most])]
        return rows[:most], rows[most:]

    def _next_in_order(self, number: int) -> tuple[list[Found], list[Found]]:
        return self.step.db.execute(queries.ordered, (number,)).fetchall(), []
