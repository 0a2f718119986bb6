"""Lanes and limits: what is open, what is shut, and when it opens again.

A lane knows its next task (`top` its priority, `head_at` its age) and, when one of its limits was full at the last look, which one it stands at (`shut`).
A share knows the best `top` of its open lanes. Whoever changes a lane's tasks calls `refresh`; whoever gives room back calls `give_back`. The rules that
make this live and exact:

1. `shut` is only a belief; the limit's numbers decide at claim. So a lane opened in vain is harmless and nothing is ever over-admitted.
2. While a limit has room for f more, the best f lanes that stand at it are open. It is kept by `wake`: when slots return, when a window has passed, when
   numbers change, when a lane that was opened for this room then met another full limit, and when it lost the task it was opened for.
3. A lane stands at one limit only, as closing and opening then cost the same whatever the number of limits.
4. An empty lane stands nowhere.
5. A task with `on_limit="reject"` was counted by its rates when it was submitted. It waits in a lane that is under the caps alone (`CAP` before the limit's
   name), and stands at the cap by the negative number of the counter: a full rate does not keep it there.
"""

from __future__ import annotations

from collections.abc import Iterable

from taskmill.engines.rows import FAR, PENDING, WAITING, facts
from taskmill.engines.sqlite.sql import load
from taskmill.engines.sqlite.step import Step
from taskmill.events import Kind

__all__ = ["Limit", "Under", "give_back", "limits_of_lane", "open_due", "refresh", "wake"]

queries = load("lanes.sql")

CAP = "cap "
"""Before the name of a limit of which a lane obeys the cap alone. No name of a limit has a space."""


def limits_of_lane(step: Step, limits: tuple[str, ...], *, reject: bool) -> tuple[str, ...]:
    """What a task waits for in its lane: all its limits, or their caps where its rates count at submit."""
    return tuple(CAP + name for name in limits if step.settings.limit(name).cap is not None) if reject else limits


class Limit:
    """A limit as one step sees it. The numbers are read once, counted in memory, and written once by `save`."""

    def __init__(self, step: Step, name: str) -> None:
        self.step = step
        self.id = step.counter(name)
        self.definition = step.settings.limit(name)
        self.running: int = step.db.execute(queries.running, (self.id,)).fetchone()[0]
        self.grain = max(1_000, self.definition.window // 1_000)
        self.used = self._window() if self.definition.rate is not None else 0
        self.started = 0
        self.saved = self.running

    def _window(self) -> int:
        self._follow_clock()
        since = self.step.now - self.definition.window
        return self.step.db.execute(queries.used, (self.id, since)).fetchone()[0] or 0

    def _follow_clock(self) -> None:
        """The wall clock was set back: the log goes with it, as if no time had passed. So the window is never exceeded, and never stands still either."""
        last = self.step.db.execute(queries.newest_start, (self.id,)).fetchone()[0]
        ahead = 0 if last is None else last - self._rounded_up(self.step.now)
        if ahead > 0:
            self.step.db.execute(queries.shift_starts, (ahead, self.id))

    def _rounded_up(self, at: int) -> int:
        return -(-at // self.grain) * self.grain

    @property
    def room(self) -> int:
        """How many more may start now."""
        room = self.cap_room
        return room if self.definition.rate is None else max(min(room, self.definition.rate - self.used), 0)

    @property
    def cap_room(self) -> int:
        """The same for tasks that the rate has counted already."""
        cap = self.definition.cap
        return 1 << 30 if cap is None else max(cap - self.running, 0)

    def start(self, n: int) -> None:
        self.running += n
        self.count(n)

    def count(self, n: int) -> None:
        """Starts in the window, which nothing takes back."""
        if self.definition.rate is not None:
            self.used += n
            self.started += n

    def full_rate(self) -> bool:
        return self.definition.rate is not None and self.used >= self.definition.rate

    def next_room_at(self) -> int | None:
        """When so many starts have left the window that one more has room."""
        self.save()
        over = self.used - (self.definition.rate or 0)
        for at, tasks in self.step.db.execute(queries.starts, (self.id, self.step.now - self.definition.window)):
            over -= tasks
            if over < 0:
                return int(at) + self.definition.window
        return None

    def save(self) -> None:
        if self.running != self.saved or self.started:
            idle_at = self.step.now + self.definition.window + self.grain if self.started else self.step.now
            self.step.db.execute(queries.set_running, (self.running, idle_at, self.id))
            self.saved = self.running
        if self.started:
            self._log()

    def _log(self) -> None:
        """Times are rounded up to a thousandth of the window: never over, at most 0.1 % late, at most 1,000 rows."""
        step, window = self.step, self.definition.window
        step.db.execute(queries.log_start, (self.id, self._rounded_up(step.now), self.started))
        step.db.execute(queries.forget_starts, (self.id, step.now - window))
        self.started = 0


class Under:
    """A limit as a lane is under it: the whole of it, or its cap alone."""

    def __init__(self, limit: Limit, *, cap_only: bool) -> None:
        self.limit = limit
        self.cap_only = cap_only
        self.stand = -limit.id if cap_only else limit.id

    @property
    def room(self) -> int:
        return self.limit.cap_room if self.cap_only else self.limit.room

    def start(self, n: int) -> None:
        self.limit.running += n
        if not self.cap_only:
            self.limit.count(n)


def refresh(step: Step, lanes: Iterable[int], *, left: bool = False) -> None:
    """Look again what is next in these lanes, after tasks came to them or, `left`, were taken out otherwise than by a claim."""
    shares: set[int] = set()
    names: set[tuple[str, int]] = set()  # of a limit as the lane has it, and the share
    for number in lanes:
        lane = step.lane(number)
        if _refresh_lane(step, number, lane.order_key):
            shares.add(lane.share)
            names.update((name, lane.share) for name in lane.limits)
    for share in shares:
        refresh_share(step, share)
    if left and not nothing_shut(step):  # a lane that was opened for its best task may have lost it: the room goes to whoever is best now
        for name, share in names:
            limit = Limit(step, name.removeprefix(CAP))
            _stand(step, -limit.id if name.startswith(CAP) else limit.id, share)
            wake(step, limit)


def advance(step: Step, heads: Iterable[tuple[int, int, int]]) -> None:
    """The next task of the same priority is known: (age, seq, lane)."""
    step.db.executemany(queries.advance_head, heads)


def _refresh_lane(step: Step, number: int, order_key: str) -> bool:
    head = _ordered_head(step, number) if order_key else step.db.execute(queries.head, (number,)).fetchone()
    if head is None:
        changed = step.db.execute(queries.empty_lane, (number,)).fetchone()
    elif order_key:
        changed = step.db.execute(queries.set_ordered_head, (*head, number)).fetchone()
    else:
        changed = step.db.execute(queries.set_head, (*head, number)).fetchone()
    return changed is not None


def _ordered_head(step: Step, number: int) -> tuple[int, int, int, str] | None:
    """The first task that has not ended, if it is the one to run now: while it runs, retries, sleeps or waits, nothing overtakes it."""
    row = step.db.execute(queries.ordered_head, (number,)).fetchone()
    if row is None or row[0] != PENDING:
        return None
    return row[1], row[2], row[3], row[4]


def refresh_share(step: Step, share: int) -> None:
    """The best priority among its open lanes, by which a claim finds it."""
    top = step.db.execute(queries.share_top, (share,)).fetchone()[0]
    step.db.execute(queries.set_share_top, (top, share))


def nothing_shut(step: Step) -> bool:
    """No lane stands at any limit: looked up once, for most steps it spares all the rest."""
    if step.nothing_shut is None:
        step.nothing_shut = step.db.execute(queries.any_stand).fetchone() is None
    return step.nothing_shut


def shut(step: Step, lane: int, share: int, under: Under) -> None:
    """The lane stands at this limit until it has room."""
    step.db.execute(queries.shut, (under.stand, lane))
    step.nothing_shut = False
    _stand(step, under.stand, share)
    refresh_share(step, share)
    if not under.cap_only:
        arm(step, under.limit)


def _stand(step: Step, stand: int, share: int) -> None:
    """How a share stands at a limit: with the best of its lanes that are shut there, or not at all."""
    top = step.db.execute(queries.standing_top, (stand, share)).fetchone()[0]
    if top is None:
        step.db.execute(queries.stand_no_more, (stand, share))
    else:
        step.db.execute(queries.stand, (stand, share, top))


def arm(step: Step, limit: Limit) -> None:
    """If only the passing of time brings room, note when."""
    if limit.full_rate():
        step.db.execute(queries.wake_at, (limit.next_room_at(), limit.id))


def wake(step: Step, limit: Limit) -> int:
    """Open as many of the lanes that stand at a limit as it has room for: in every queue the best, and between shares in turn."""
    if nothing_shut(step):
        return 0
    opened = 0
    for stand, queue in step.db.execute(queries.standing_queues, (limit.id, -limit.id)).fetchall():
        room = min(limit.room if stand > 0 else limit.cap_room, 1_000)
        if room > 0:
            opened += _open_best(step, stand, queue, room)
        elif stand > 0:
            arm(step, limit)
    if opened:
        step.woke = True
    return opened


def _open_best(step: Step, stand: int, queue: int, room: int) -> int:
    shares = step.db.execute(queries.best_shares, (stand, queue, room)).fetchall()
    each = -(-room // len(shares))
    opened = 0
    for (share,) in shares:
        opened += len(step.db.execute(queries.open_best, (stand, share, each)).fetchall())
        _stand(step, stand, share)
        refresh_share(step, share)
    return opened


def give_back(step: Step, ended: dict[int, int]) -> None:
    """Slots of these lanes ({lane: tasks}) return to their limits, which may open others."""
    counts: dict[str, int] = {}
    for number, tasks in ended.items():
        for lane_limit in step.lane(number).limits:
            name = lane_limit.removeprefix(CAP)
            counts[name] = counts.get(name, 0) + tasks
    for name, tasks in counts.items():
        step.woke = True
        limit = Limit(step, name)
        limit.running -= tasks
        limit.save()
        wake(step, limit)


def open_due(step: Step) -> bool:
    """What time alone has changed: delayed tasks in lanes that are due, deadlines of waits, windows that have room. Bounded; True if there is more."""
    slice_ = 500
    due = _make_due(step, slice_, plain=False)
    passed = step.db.execute(queries.passed_windows, (step.now, slice_)).fetchall()
    for number, name in passed:
        step.db.execute(queries.wake_at, (None, number))
        wake(step, Limit(step, name))
    return due == slice_ or len(passed) == slice_


def settle_plain(step: Step, n: int) -> None:
    """Delayed tasks of plain lines that came due are pending by their row, too. A claim does not need it; counts then need not look for them."""
    _make_due(step, n, plain=True)


def _make_due(step: Step, n: int, *, plain: bool) -> int:
    due = step.db.execute(queries.due, (plain, step.now, n)).fetchall()
    if not due:
        return 0
    step.db.executemany(queries.make_due, [(step.now, row[6]) for row in due])
    counting = step.counting
    for _, task, type_name, queue, tenant, version, seq, priority, state, ready_at in due:
        kind = counting.kind(queue, type_name, priority)
        counting.left(kind, state, seq)
        counting.came(kind, PENDING, seq, step.now if state == WAITING else ready_at)
        if state == WAITING:
            step.event(Kind.READY, task, version, facts(type_name, queue, tenant))
    refresh(step, {row[0] for row in due if row[0] > 0})
    return len(due)


def next_due(step: Step) -> int | None:
    """When time alone will next change something in the lanes."""
    times = [row[0] for row in step.db.execute(queries.next_due) if row[0] is not None and row[0] < FAR]
    return min(times, default=None)
