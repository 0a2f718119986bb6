"""Submit: every task of a batch stored once, or told why not.

A plain batch of new tasks is two `executemany`. That all ids are new is assumed, not looked up: where the insert says otherwise, the step is taken back
and done again with every id looked up first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache

import apsw
import msgspec
from msgspec.structs import replace

from taskmill import codec
from taskmill.engine import Durability, Status, Submitted
from taskmill.engines.circles import circles, on_circles
from taskmill.engines.refusals import cycle, over_limit
from taskmill.engines.rows import (
    CANCELLED,
    COMPLETED,
    DEAD,
    EDGES,
    FAR,
    ORDERED,
    PENDING,
    REJECTED,
    RUNNING,
    SCHEDULED,
    SEALED,
    UNIQUE_ENDED,
    UNIQUE_STARTED,
    WAITED,
    WAITING,
    encode_error,
    encode_meta,
    encode_retry,
    facts,
    json_text,
)
from taskmill.engines.sqlite import edges, lanes
from taskmill.engines.sqlite.counting import BLOCK
from taskmill.engines.sqlite.sql import insert, load
from taskmill.engines.sqlite.step import Step
from taskmill.engines.sqlite.transitions import Moves, Row
from taskmill.errors import Conflict, InvalidInput, NotFound, RateLimited, TaskmillError
from taskmill.events import Kind
from taskmill.task import Edge, ErrorInfo, NewTask, OnLimit, Resolved, definition_of

__all__ = ["submit", "unknown_edge"]

queries = load("submit.sql")


class Draft(msgspec.Struct):
    """A task on its way into the store."""

    place: int
    resolved: Resolved
    seq: int = 0
    lane: int = 0
    state: int = PENDING
    ready_at: int = 0
    run_at: int = 0
    flags: int = 0
    error: RateLimited | None = None
    """It was over a limit: it is kept as dead."""


def submit(
    step: Step, tasks: Sequence[NewTask], *, unseal: Sequence[str] = (), reserved: bool = False, durability: Durability = Durability.FSYNC
) -> list[Submitted]:
    if reserved:
        return [_reserve(step, new, durability) for new in tasks]
    batch = _Batch(step, tasks, durability)
    state, counted = (step.seq, step.woke), step.counting.mark()
    step.db.execute("SAVEPOINT batch")
    try:
        batch.store(look_first=_must_look(step, tasks))
    except apsw.ConstraintError:
        step.db.execute("ROLLBACK TO batch")
        step.forget_names()
        step.counting.back_to(counted)
        step.seq, step.woke = state
        batch = _Batch(step, tasks, durability)
        batch.store(look_first=True)
    step.db.execute("RELEASE batch")
    break_seals(step, unseal)
    return batch.answers()


def _must_look(step: Step, tasks: Sequence[NewTask]) -> bool:
    """Ids that may be known without standing in the table of tasks, that stand twice in the batch, or that must be known before edges and keys are judged."""
    if any(new.edges or new.parent or new.unique for new in tasks) or any(settings.unique for settings in step.settings.types.values()):
        return True
    return step.db.execute(queries.any_known).fetchone() is not None or len({new.id for new in tasks}) < len(tasks)


class _Batch:
    def __init__(self, step: Step, tasks: Sequence[NewTask], durability: Durability) -> None:
        self.step = step
        self.tasks = tasks
        self.durability = durability
        self.answered: dict[int, Submitted] = {}
        self.drafts: list[Draft] = []
        self.first_ids: dict[str, str] = {}
        self.uniques: dict[tuple[str, str, str], Draft] = {}
        self.stirred: set[int] = set()
        self.replaced = False
        self.moves = Moves(step)

    def answers(self) -> list[Submitted]:
        return [self.answered[place] for place in range(len(self.tasks))]

    def store(self, *, look_first: bool) -> None:
        self._resolve()
        firsts: dict[str, Draft] = {}
        if look_first:
            for draft in self.drafts:
                firsts.setdefault(draft.resolved.new.id, draft)
        self.drafts = [draft for draft in self.drafts if (not firsts and _holds_nothing(draft.resolved)) or self._is_new(draft, firsts)]
        linked = any(draft.resolved.new.edges or draft.resolved.new.parent for draft in self.drafts)
        if linked:
            self._refuse_unknown_edges()
        awaited = edges.coming(self.step, [draft.resolved.new.id for draft in self.drafts])
        self._place(awaited)
        self._insert()
        for draft in self.drafts if awaited else ():
            if draft.flags & WAITED:
                edges.arrive(self.moves, draft.resolved.new.id, draft.seq, draft.state)
        if linked:
            self._link()
        lanes.refresh(self.step, self.stirred, left=self.replaced)
        self.moves.settle()

    def _answer(self, place: int, status: Status, task: str, error: TaskmillError | None = None, *, reserved: bool = False) -> None:
        self.answered[place] = Submitted(status, task, self.durability, reserved, error)

    def _resolve(self) -> None:
        settings = self.step.settings
        for place, new in enumerate(self.tasks):
            try:
                resolved = settings.resolve(new)
                if resolved.limits:
                    self._check_limits(resolved)
            except TaskmillError as error:
                self._answer(place, Status.REFUSED, new.id, error)
            else:
                self.drafts.append(Draft(place, resolved))

    def _check_limits(self, resolved: Resolved) -> None:
        for name in resolved.limits:
            definition = definition_of(name)
            if definition not in self.step.settings.limits:
                raise InvalidInput(
                    f"there is no limit {definition!r}", code="unknown_limit", field="limits", hint="put it first, or start a worker whose app declares it"
                )

    # Is it there already?

    def _is_new(self, draft: Draft, firsts: Mapping[str, Draft]) -> bool:
        """One by one: each is judged by what those before it in the batch have taken. One that is rejected takes no key."""
        if firsts and self._is_known(draft, firsts[draft.resolved.new.id]):
            return False
        resolved = draft.resolved
        if self._is_held(draft):
            return False
        if resolved.limits and resolved.on_limit is OnLimit.REJECT:
            self._count_or_reject(draft)
        if draft.error is None:
            self._hold(draft)
        else:
            self._forget_key(resolved.new)
        return True

    def _is_known(self, draft: Draft, earlier: Draft) -> bool:
        """By id: an earlier one of this batch, a task, or what is remembered of one."""
        new = draft.resolved.new
        if earlier is not draft:
            return self._compare(draft, new.id, codec.payload_hash(earlier.resolved.new.payload), rejected=earlier.error is not None)
        found = self.step.db.execute(queries.payload, (new.id,)).fetchone()
        if found is not None:
            payload, state, flags = found
            rejected = state == DEAD and bool(flags & REJECTED)
            return self._compare(draft, new.id, None if payload == new.payload else codec.payload_hash(payload), rejected=rejected)
        remembered = self.step.db.execute(queries.known, (new.id, self.step.now)).fetchone()
        if remembered is None:
            return False
        if remembered[0] is None and remembered[1] == codec.payload_hash(new.payload):  # reserved: this is the task that was announced
            self.step.db.execute(queries.forget_known, (new.id,))
            return False
        return self._compare(draft, new.id, remembered[1])

    def _compare(self, draft: Draft, first: str, payload_hash: bytes | None, *, reserved: bool = False, rejected: bool = False) -> bool:
        new = draft.resolved.new
        same = payload_hash is None or payload_hash == codec.payload_hash(new.payload)
        if same and rejected:
            self._answer(draft.place, Status.REJECTED, first, over_limit(self.step.now, self._room_again(draft)))
        elif same:
            self._answer(draft.place, Status.DUPLICATE, first, reserved=reserved)
            self.first_ids[new.id] = first
        else:
            conflict = Conflict(f"task {first} has the same id or key and another payload", field="payload", hint="use another key, or submit the same payload")
            self._answer(draft.place, Status.CONFLICT, first, conflict)
        return True

    def _is_held(self, draft: Draft) -> bool:
        """By idempotency key, then by unique key."""
        new = draft.resolved.new
        if new.idempotency_key is not None and self._has_key(draft, new.idempotency_key):
            return True
        return draft.resolved.unique is not None and self._has_unique(draft)

    def _has_key(self, draft: Draft, key: str) -> bool:
        new, step = draft.resolved.new, self.step
        found = step.db.execute(queries.dedupe, (new.tenant, new.type, key)).fetchone()
        if found is not None:
            first, payload_hash, until, state = found
            if first != new.id and (until > step.now or (state is not None and state < COMPLETED)):
                reserved = state is None and step.db.execute(queries.is_reserved, (first,)).fetchone() is not None
                return self._compare(draft, first, payload_hash, reserved=reserved)
        return False

    def _hold(self, draft: Draft) -> None:
        """Its keys are its own from here on, also for those behind it in the batch."""
        new, step, unique = draft.resolved.new, self.step, draft.resolved.unique
        if new.idempotency_key is not None:
            until = step.now + draft.resolved.idempotency_window
            step.db.execute(queries.add_dedupe, (new.tenant, new.type, new.idempotency_key, new.id, codec.payload_hash(new.payload), until))
        if unique is not None:
            self.uniques[new.tenant, new.type, unique.key] = draft

    def _has_unique(self, draft: Draft) -> bool:
        new, unique = draft.resolved.new, draft.resolved.unique
        assert unique is not None
        name = (new.tenant, new.type, unique.key)
        if name in self.uniques:
            return self._joins(draft, self.uniques[name])
        holder = self.step.db.execute(queries.holder, name).fetchone()
        if holder is None:
            draft.flags |= UNIQUE_STARTED if unique.until == "started" else UNIQUE_ENDED
            return False
        task, state = holder[1:3]
        if unique.on_conflict == "keep":
            self._answer(draft.place, Status.DUPLICATE, task)
            self.first_ids[new.id] = task
        elif state == RUNNING:
            self._answer(
                draft.place, Status.CONFLICT, task, Conflict(f"task {task} holds the unique key and runs", field="unique", hint="wait until it has ended")
            )
        else:
            self._replace(draft, *holder)
            self._answer(draft.place, Status.REPLACED, task)
            self.first_ids[new.id] = task
        return True

    def _joins(self, draft: Draft, earlier: Draft) -> bool:
        """Its unique key is held by an earlier one of this batch."""
        first, unique = earlier.resolved.new.id, draft.resolved.unique
        replaces = unique is not None and unique.on_conflict == "replace"
        if replaces:
            earlier.resolved = replace(draft.resolved, new=replace(draft.resolved.new, id=first))
        self._answer(draft.place, Status.REPLACED if replaces else Status.DUPLICATE, first)
        self.first_ids[draft.resolved.new.id] = first
        return True

    def _replace(self, draft: Draft, seq: int, _: str, held: int, lane: int, queue: str, priority: int) -> None:
        """The holder takes the new one's payload, priority and time; it keeps its id, its line and its edges."""
        resolved, step = draft.resolved, self.step
        state, ready_at, run_at = self._time(resolved.new)
        counting, type_name = step.counting, resolved.new.type
        counting.left(counting.kind(queue, type_name, priority), held, seq)
        counting.came(counting.kind(queue, type_name, resolved.priority), WAITING if held == WAITING else state, seq, ready_at)
        step.db.execute(queries.replace_task, (state, ready_at, resolved.priority, step.now, seq))
        step.db.execute(queries.replace_body, (resolved.new.payload, run_at, seq))
        step.woke = self.replaced = True
        if lane > 0:
            self.stirred.add(lane)
        task, version, *place = step.db.execute(queries.version, (seq,)).fetchone()
        step.event(Kind.REPLACED, task, version, facts(*place))

    # Edges

    def _refuse_unknown_edges(self) -> None:
        """A task that waits for one that does not exist, or for one that waits for it, is refused, and so is what waits for it."""
        drafts = [draft.resolved.new for draft in self.drafts]
        named = {edge.task for new in drafts for edge in new.edges} | {new.parent.task for new in drafts if new.parent is not None}
        children = edges.awaited(self.step, {self._first(task) for task in named})
        refused = True
        while refused:
            present = {draft.resolved.new.id for draft in self.drafts}
            bad = {draft.place: (draft, error) for draft in self.drafts if (error := self._edge_error(draft, present, children)) is not None}
            for draft, error in bad.values():
                self._refuse(draft, error)
            self.drafts = [draft for draft in self.drafts if draft.place not in bad]
            refused = bool(bad)
        self._refuse_cycles(children)

    def _refuse(self, draft: Draft, error: TaskmillError) -> None:
        """It holds no key, and what it counted at its submit is taken back."""
        self._answer(draft.place, Status.REFUSED, draft.resolved.new.id, error)
        self._forget_key(draft.resolved.new)
        if draft.resolved.on_limit is OnLimit.REJECT and draft.error is None:
            self._count(draft, -1)

    def _forget_key(self, new: NewTask) -> None:
        """The key may have been its own since it was reserved, or since it was judged."""
        if new.idempotency_key is not None:
            self.step.db.execute(queries.forget_dedupe, (new.tenant, new.type, new.idempotency_key, new.id))

    def _edge_error(self, draft: Draft, present: set[str], children: Mapping[str, edges.Child]) -> TaskmillError | None:
        new = draft.resolved.new
        for edge in new.edges:
            if edge.task not in present and self._first(edge.task) not in children:
                return unknown_edge(edge.task)
        if new.parent is not None and new.parent.task not in present:
            parent = children.get(self._first(new.parent.task))
            if parent is None or parent.seq <= 0:
                return unknown_edge(new.parent.task)
            if parent.state != WAITING or not parent.flags & SEALED:
                return Conflict(
                    f"task {new.parent.task} has no seal: it cannot wait for more",
                    code="no_seal",
                    field="parent",
                    hint="submit it sealed, and unseal it with the last of its children",
                )
        return None

    def _first(self, task: str) -> str:
        """The id under which a task of this batch exists."""
        return self.first_ids.get(task, task)

    def _refuse_cycles(self, children: Mapping[str, edges.Child]) -> None:
        """What waits in a circle, those of stored tasks included, is refused, and so is what waits for it in this batch."""
        waits = {draft.resolved.new.id: {self._first(edge.task) for edge in draft.resolved.new.edges} for draft in self.drafts}
        inside: dict[str, set[str]] = {task: set(targets) for task, targets in waits.items()}
        starts = [task for task, child in children.items() if child.flags & EDGES and child.state is not None and child.state < COMPLETED]
        for task, targets in edges.open_waits(self.step, starts).items():
            waits.setdefault(task, set()).update(targets)
        for draft in self.drafts:
            parent = draft.resolved.new.parent
            if parent is not None:
                waits.setdefault(self._first(parent.task), set()).add(draft.resolved.new.id)
        for task in on_circles(waits) & inside.keys():
            inside[task].add(task)
        stuck = circles(inside)
        for draft in self.drafts:
            if draft.resolved.new.id in stuck:
                self._refuse(draft, cycle())
        self.drafts = [draft for draft in self.drafts if draft.resolved.new.id not in stuck]

    # Into the store

    def _time(self, new: NewTask) -> tuple[int, int, int]:
        """(state, ready_at, run_at): only the store adds a delay to its clock."""
        now = self.step.now
        run_at = now + new.delay if new.delay is not None else now if new.run_at is None else new.run_at
        return (SCHEDULED, run_at, run_at) if run_at > now else (PENDING, now, run_at)

    def _place(self, awaited: set[str]) -> None:
        """Its number, its time, its lane."""
        step = self.step
        for draft in self.drafts:
            resolved = draft.resolved
            step.seq += 1
            draft.seq = step.seq
            draft.state, draft.ready_at, draft.run_at = self._time(resolved.new)
            if draft.error is not None:
                draft.state = DEAD
                draft.flags |= REJECTED
            limits = lanes.limits_of_lane(step, resolved.limits, reject=resolved.on_limit is OnLimit.REJECT) if resolved.limits else ()
            queue = step.queue(resolved.queue)
            if resolved.share or limits or resolved.order_key:
                draft.lane = step.lane_id(queue, resolved.share, limits, resolved.order_key or "")
                if resolved.order_key:
                    draft.flags |= ORDERED
                self.stirred.add(draft.lane)
            else:
                draft.lane = -queue
            if resolved.new.sealed and draft.error is None:
                draft.flags |= SEALED
                draft.state, draft.ready_at = WAITING, FAR
            if awaited and resolved.new.id in awaited:
                draft.flags |= WAITED
            step.woke = True

    def _count_or_reject(self, draft: Draft) -> None:
        limits = [lanes.Limit(self.step, name) for name in draft.resolved.limits]
        if any(limit.room == 0 for limit in limits):
            draft.error = over_limit(self.step.now, self._room_again(draft))
            return
        self._count(draft, 1)

    def _count(self, draft: Draft, n: int) -> None:
        for name in draft.resolved.limits:
            limit = lanes.Limit(self.step, name)
            limit.count(n)
            limit.save()

    def _room_again(self, draft: Draft) -> int | None:
        """When every rate of a task that is full now has room again; None where none is."""
        limits = [lanes.Limit(self.step, name) for name in draft.resolved.limits]
        times = [limit.next_room_at() for limit in limits if limit.full_rate()]
        return max((time for time in times if time is not None), default=None)

    def _insert(self) -> None:
        step, now = self.step, self.step.now
        tasks, bodies, kinds = [], [], []
        for draft in self.drafts:
            resolved = draft.resolved
            new = resolved.new
            finished = now if draft.state == DEAD else None
            kinds.append((resolved.queue, new.type, resolved.priority, draft.state, draft.seq >> BLOCK))
            tasks.append(
                (
                    draft.seq,
                    new.id,
                    new.type,
                    resolved.queue,
                    new.tenant,
                    draft.lane,
                    draft.state,
                    resolved.priority,
                    draft.ready_at,
                    draft.flags,
                    now,
                    now,
                    new.expires_at,
                    finished,
                )
            )
            bodies.append((draft.seq, new.payload, encode_retry(resolved.retry), resolved.timeout, resolved.max_crashes, draft.run_at, encode_meta(resolved)))
        insert(step.db, queries.add_task, tasks)
        insert(step.db, queries.add_body, bodies)
        self._count_kinds(kinds)
        for draft in self.drafts:
            new = draft.resolved.new
            if draft.error is None:
                self._answer(draft.place, Status.CREATED, new.id)
            if draft.error is not None or draft.flags or new.tags or new.expires_at is not None:
                self._add_parts(draft)
            if step.listening:
                code = None if draft.error is None else draft.error.code
                step.event_saying(Kind.DEAD if code else Kind.SUBMITTED, new.id, 1, _said(new.type, draft.resolved.queue, new.tenant, code))

    def _count_kinds(self, kinds: list[tuple[str, str, int, int, int]]) -> None:
        counting, now = self.step.counting, self.step.now
        for (queue, type_name, priority, state, block), n in Counter(kinds).items():
            counting.came(counting.kind(queue, type_name, priority), state, block << BLOCK, now, n)
            counting.born(block << BLOCK, now)

    def _add_parts(self, draft: Draft) -> None:
        """What few tasks have beside their two rows."""
        new, db = draft.resolved.new, self.step.db
        if draft.error is not None:
            self._answer(draft.place, Status.REJECTED, new.id, draft.error)
            db.execute(queries.add_ending, (draft.seq, encode_error(ErrorInfo(draft.error.code, draft.error.message))))
            ended = {"id": new.id, "type": new.type, "queue": draft.resolved.queue, "state": "dead", "version": 1}
            self.step.owe("ended", new.id, ended)
            self.step.owe("dead", new.id, ended)
        elif draft.flags & ORDERED:
            db.execute(queries.add_ordered, (draft.lane, draft.seq))
        if new.expires_at is not None and draft.error is None:
            db.execute(queries.add_expiry, (new.expires_at, draft.seq))
        if new.tags:
            db.executemany(queries.add_tag, [(name, value, draft.seq) for name, value in new.tags.items()])
        if draft.flags & (UNIQUE_STARTED | UNIQUE_ENDED) and draft.resolved.unique is not None and draft.error is None:
            db.execute(queries.hold, (new.tenant, new.type, draft.resolved.unique.key, draft.seq))

    def _link(self) -> None:
        """Edges, once all rows are there: those of ended tasks fall at once."""
        made: dict[str, list[Edge]] = {}
        for draft in self.drafts:
            new = draft.resolved.new
            if new.edges:
                made.setdefault(new.id, []).extend(Edge(self._first(edge.task), edge.on_failure) for edge in new.edges)
        for draft in self.drafts:
            new = draft.resolved.new
            if new.parent is not None:
                made.setdefault(self._first(new.parent.task), []).append(Edge(new.id, new.parent.on_failure))
        children = edges.awaited(self.step, {*made, *(edge.task for those in made.values() for edge in those)})
        dead = {draft.seq for draft in self.drafts if draft.state == DEAD}
        for waiter, those in made.items():
            seq = children[waiter].seq
            edges.link(self.step, seq, those, children)
            if seq not in dead:
                settle_waiter(self.step, self.moves, seq)


def _holds_nothing(resolved: Resolved) -> bool:
    """Neither keys nor limits: most tasks."""
    return resolved.new.idempotency_key is None and resolved.unique is None and not resolved.limits


@lru_cache(maxsize=256)
def _said(type: str, queue: str, tenant: str, code: str | None) -> str:
    return json_text(facts(type, queue, tenant) | ({} if code is None else {"error": code}))


def settle_waiter(step: Step, moves: Moves, seq: int) -> None:
    """A task whose edges were just made: it waits while one is open, is cancelled when one has failed, and is ready otherwise."""
    row = Row(*step.db.execute(queries.row, (seq,)).fetchone())
    if step.db.execute(queries.failed_edge, (seq, CANCELLED, DEAD)).fetchone():
        step.db.execute(queries.set_state, (WAITING, FAR, seq))
        moves.count(row, WAITING)
        row.state = WAITING
        moves.cancel(row, ErrorInfo("edge_failed", "a task it waits for did not complete"), reason="edge_failed")
    elif row.open_edges or row.flags & SEALED:
        step.db.execute(queries.set_state, (WAITING, FAR, seq))
        moves.count(row, WAITING)
        if row.lane > 0:
            moves.stirred.add(row.lane)


def break_seals(step: Step, unseal: Sequence[str]) -> None:
    """The seal falls with the last batch; broken again, it stays broken."""
    if not unseal:
        return
    moves = Moves(step)
    for task in unseal:
        found = step.db.execute(queries.unseal, (SEALED, task)).fetchone()
        if found is None:
            if step.db.execute(queries.task, (task,)).fetchone() is None:
                raise NotFound(f"there is no task {task}", field="unseal")
            continue
        row = Row(*found)
        if row.state == WAITING and row.open_edges == 0:
            moves.wake_up(row)
    moves.settle()


def _reserve(step: Step, new: NewTask, durability: Durability) -> Submitted:
    """Remember id and key, for a log that will bring the task."""
    payload_hash = codec.payload_hash(new.payload)
    until = step.now + (new.idempotency_window or step.settings.rules.dedupe_window)
    if new.idempotency_key is not None:
        found = step.db.execute(queries.dedupe, (new.tenant, new.type, new.idempotency_key)).fetchone()
        if found is not None and found[0] != new.id and (found[2] > step.now or (found[3] is not None and found[3] < COMPLETED)):
            return _reserved_answer(step, found[0], found[1] == payload_hash, durability)
        step.db.execute(queries.add_dedupe, (new.tenant, new.type, new.idempotency_key, new.id, payload_hash, until))
    stored = step.db.execute(queries.payload, (new.id,)).fetchone()
    remembered = (None, codec.payload_hash(stored[0])) if stored is not None else step.db.execute(queries.known, (new.id, step.now)).fetchone()
    if remembered is not None:
        return _reserved_answer(step, new.id, remembered[1] == payload_hash, durability)
    step.db.execute(queries.add_known, (new.id, None, payload_hash, until))
    return Submitted(Status.CREATED, new.id, durability, True)


def _reserved_answer(step: Step, first: str, same: bool, durability: Durability) -> Submitted:
    reserved = step.db.execute(queries.is_reserved, (first,)).fetchone() is not None
    if same:
        return Submitted(Status.DUPLICATE, first, durability, reserved)
    return Submitted(Status.CONFLICT, first, durability, reserved, Conflict(f"task {first} has the same key and another payload", field="payload"))


def unknown_edge(task: str) -> NotFound:
    return NotFound(f"there is no task {task} to wait for", code="unknown_edge", field="edges", hint="submit it first, or in the same batch")
