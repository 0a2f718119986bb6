"""The model of a race: what the store itself said that happened, in its order, replayed event by event.

Events are written by the scripts, each in the step that it tells of, so their order is the order of the steps and nothing is guessed: a cap, a window, an
order or an edge that was broken for one step is seen. Versions of a task follow each other without gaps, so nothing that happened to it went untold.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping

from msgspec import Struct

from taskmill.events import ENDED, Event, Kind

__all__ = ["Limit", "Planned", "Replay"]

LEAVES = ENDED | {Kind.READY, Kind.SNOOZED, Kind.RETRYING, Kind.WAITING, Kind.DELETED}
SAYS_NOTHING = {Kind.PROGRESS, Kind.SIGNALLED, Kind.CANCELLING, Kind.REPLACED}


class Limit(Struct, frozen=True):
    """The numbers of a limit; those of one with keys count for each."""

    cap: int | None = None
    rate: int | None = None
    window: int = 0


class Planned(Struct):
    """What a task was submitted with, and what attempts of it have begun to wait for."""

    limits: tuple[str, ...] = ()
    children: tuple[tuple[int, str], ...] = ()
    """Each with the attempt behind which it is waited for; 0 from the beginning."""
    order_key: str | None = None


class Replay:
    """Feed it events in their order; `wrong` is what cannot have happened in a store that keeps its promises."""

    def __init__(self, planned: Mapping[str, Planned], puts: Mapping[str, Iterable[Limit]], requeued: Iterable[str] = ()) -> None:
        self._planned = planned
        self._requeued = frozenset(requeued)
        self._coming = {name: deque(limits) for name, limits in puts.items()}
        self.limits: dict[str, Limit] = {}
        self.running: dict[str, str] = {}
        self.ended: dict[str, Kind] = {}
        self.starts = 0
        self.completed: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.wrong: list[str] = []
        self._counts: Counter[str] = Counter()
        self._windows: dict[str, deque[int]] = defaultdict(deque)
        self._versions: dict[str, int] = {}
        self._attempts: dict[str, int] = {}
        self._workers: set[str] = set()
        self._fallen: set[str] = set()
        self._lines: dict[str, list[str]] = defaultdict(list)

    def feed(self, event: Event) -> None:
        kind, subject = event.kind, event.subject
        if kind is Kind.SETTING_CHANGED:
            name = subject.removeprefix("limit/")
            if name in self._coming:
                self.limits[name] = self._coming[name].popleft()
        elif kind is Kind.WORKER_JOINED:
            self._workers.add(subject)
        elif kind in (Kind.WORKER_LOST, Kind.WORKER_LEFT):
            self._workers.discard(subject)
            if subject in self.running.values():
                self._say(event, "is gone and holds leases")
        elif kind.startswith("task."):
            self._follow(event)

    def _follow(self, event: Event) -> None:
        """One task's next event."""
        before = self._versions.get(event.subject)
        if before is not None and event.version != before + 1:
            self._say(event, f"version {event.version} after {before}")
        self._versions[event.subject] = event.version
        if event.kind is Kind.SUBMITTED:
            self._submitted(event)
        elif event.kind is Kind.STARTED:
            self._started(event)
        elif event.kind in LEAVES:
            self._left(event)
        elif event.kind not in SAYS_NOTHING:
            self._say(event, "is an event that the model does not know")

    def _submitted(self, event: Event) -> None:
        key = self._plan(event.subject).order_key
        if key is not None:
            self._lines[key].append(event.subject)

    def _started(self, event: Event) -> None:
        task, plan = event.subject, self._plan(event.subject)
        if task in self.running:
            self._say(event, f"starts while {self.running[task]} holds it")
        if task in self.ended:
            self._say(event, f"starts after it ended as {self.ended[task]}")
        worker, attempt = str(event.data["worker"]), event.data["attempt"]
        if worker not in self._workers:
            self._say(event, f"is given to {worker}, which is not registered")
        assert isinstance(attempt, int)
        if not self._attempts.get(task, 0) <= attempt <= self._attempts.get(task, 0) + 1:
            self._say(event, f"attempt {attempt} after {self._attempts.get(task)}")
        self._attempts[task] = attempt
        still = [child for since, child in plan.children if since < attempt and child not in self._fallen]
        if still:
            self._say(event, f"starts before {still} have ended")
        if plan.order_key is not None:
            earlier = self._lines[plan.order_key]
            ahead = [other for other in earlier[: earlier.index(task)] if other not in self.ended]
            if ahead:
                self._say(event, f"overtakes {ahead}")
        self.running[task] = worker
        self.starts += 1
        for name in plan.limits:
            self._charge(event, name)

    def _charge(self, event: Event, name: str) -> None:
        self._counts[name] += 1
        self.most[name] = max(self.most[name], self._counts[name])
        limit = self.limits.get(name.partition(":")[0], Limit())
        if limit.cap is not None and self._counts[name] > limit.cap:
            self._say(event, f"{self._counts[name]} at once under {name}, cap {limit.cap}")
        if limit.rate is not None:
            window = self._windows[name]
            window.append(event.at)
            while window[0] <= event.at - limit.window:
                window.popleft()
            if len(window) > limit.rate:
                self._say(event, f"{len(window)} starts in a window of {name}, rate {limit.rate}")

    def _left(self, event: Event) -> None:
        task = event.subject
        if self.running.pop(task, None) is not None:
            for name in self._plan(task).limits:
                self._counts[name] -= 1
        if event.kind in ENDED:
            if task in self.ended:
                self._say(event, f"ends again, after {self.ended[task]}")
            self.ended[task] = event.kind
            self._fallen.add(task)
            self.completed[task] += event.kind is Kind.COMPLETED
        elif task in self.ended and event.kind is not Kind.DELETED:
            if task not in self._requeued:
                self._say(event, f"lives again after {self.ended[task]}, and nobody requeued it")
            del self.ended[task]

    def _plan(self, task: str) -> Planned:
        return self._planned.get(task) or Planned()

    def _say(self, event: Event, text: str) -> None:
        self.wrong.append(f"{event.kind} {event.subject} at {event.at}: {text}")
