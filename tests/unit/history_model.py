"""A tiny store in a loop, to make histories as real clients would: calls that overlap, answers that get lost and are asked for again, workers that die.

It keeps the promises, so nothing may be reported; each fault in FAULTS breaks one, and must be.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import msgspec

from tests.history.events import TERMINAL, Attempt, Beat, Claim, Died, Event, Finish, Given, Join, Limit, Read, Submit

__all__ = ["FAULTS", "LEASE", "Model"]

LEASE = 4_000
CAP = 3
RATE, WINDOW = 4, 1_500
FAULTS = {
    "accepts_stale": "stale_write",
    "ignores_cap": "concurrency_exceeded",
    "ignores_rate": "rate_exceeded",
    "loses_submits": "submit_lost",
    "recovers_early": "two_leases",
    "starts_early": "early_start",
    "forgets_keys": "key_two_tasks",
    "forgets_requests": "repeat_differs",
    "reopens": "terminal_left",
    "repeats_tokens": "token_order",
}


@dataclass
class _Task:
    submit: Submit
    state: str = "pending"
    run_at: int = 0
    token: int = 0
    worker: str = ""
    expires: int = 0
    executions: int = 0
    attempts: list[int] = field(default_factory=list)


class Model:
    def __init__(self, seed: int, fault: str = "") -> None:
        self.chance = Random(seed)
        self.fault = fault
        self.now = 1_000
        self.tasks: dict[str, _Task] = {}
        self.keys: dict[str, str] = {}
        self.answers: dict[tuple[str, int], tuple[Given, ...]] = {}
        self.starts: list[int] = []
        self.tokens = 0
        self.free: dict[str, int] = {}
        """When each client has its last answer."""
        self.held: dict[str, list[tuple[str, int]]] = {"w0": [], "w1": [], "w2": []}
        self.requests = dict.fromkeys(self.held, 0)
        self.unanswered: dict[str, list[Claim]] = {worker: [] for worker in self.held}
        self.history: list[Event] = [
            Limit(name="l", cap=CAP, rate=RATE, window=WINDOW, answer="applied", began=1, ended=2),
            *(Join(worker=worker, types=("t",), answer="applied", began=3, ended=4) for worker in self.held),
        ]

    def run(self, calls: int) -> list[Event]:
        while len(self.history) < calls:
            self.now += self.chance.randint(1, 60)
            self._recover()
            worker = self.chance.choice(list(self.held))
            step = self.chance.choices((self._submit, self._claim, self._finish, self._beat, self._die), (30, 25, 40, 25, 0.3))[0]
            if step == self._submit:
                self._submit("client")
            elif self.free.get(worker, 0) < self.now:
                step(worker)
        self._read_all()
        return self.history

    def _record(self, client: str, call: Submit | Claim | Finish | Beat, answer: str, **what: object) -> bool:
        """The call around `now`, its answer lost now and then; says whether the client got it."""
        began = max(self.free.get(client, 0) + 1, self.now - self.chance.randint(0, 40)) if client != "client" else self.now - self.chance.randint(0, 40)
        ended = self.now + self.chance.randint(0, 40)
        self.free[client] = ended
        lost = self.chance.random() < 0.05
        done = call if lost else msgspec.structs.replace(call, answer=answer, **what)
        event = msgspec.structs.replace(done, began=min(began, self.now), ended=ended)
        self.history.append(event)
        return not lost

    def _submit(self, client: str) -> None:
        chance = self.chance
        task = f"t{len(self.history)}"
        key = f"k{chance.randint(0, 500)}" if chance.random() < 0.2 else None
        run_at = self.now + 3_000 if chance.random() < 0.2 else 0
        submit = Submit(task=task, type="t", key=key, run_at=run_at, limits=("l",) if chance.random() < 0.3 else (), priority=chance.randint(0, 3))
        first = self.keys.get(key) if key else None
        if first and self.fault != "forgets_keys":
            self._record(client, submit, "duplicate", id=first)
            return
        if key:
            self.keys[key] = task
        if self.fault != "loses_submits" or chance.random() > 0.05:
            self.tasks[task] = _Task(submit, run_at=run_at)
        self._record(client, submit, "created", created_at=self.now)

    def _claim(self, worker: str) -> None:
        again = self.unanswered[worker]
        if again:
            request = again.pop(0).request
        else:
            self.requests[worker] += 1
            request = self.requests[worker]
        if (worker, request) not in self.answers or self.fault == "forgets_requests":
            self.answers[worker, request] = self._take(worker)
        given = self.answers[worker, request]
        call = Claim(worker=worker, request=request)
        if self._record(worker, call, "given", given=given):
            self.held[worker].extend((each.task, each.token) for each in given)
            if self.chance.random() < 0.1:
                self.unanswered[worker].append(call)
        else:
            self.unanswered[worker].append(call)

    def _take(self, worker: str) -> tuple[Given, ...]:
        early = 500 if self.fault == "starts_early" else 0
        ready = [t for t in self.tasks.values() if t.state == "pending" and t.run_at - early <= self.now]
        if self.fault == "reopens" and self.chance.random() < 0.05:
            ready = [t for t in self.tasks.values() if t.state == "completed"][:1] or ready
        given = []
        for task in sorted(ready, key=lambda t: -t.submit.priority)[: self.chance.randint(1, 4)]:
            if task.submit.limits and not self._admitted():
                continue
            self.tokens += 1 if self.fault != "repeats_tokens" or self.chance.random() > 0.02 else 0
            task.state, task.token, task.worker, task.expires = "running", self.tokens, worker, self.now + LEASE
            task.executions += 1
            given.append(Given(task=task.submit.task, token=self.tokens, attempt=task.executions, claimed_at=self.now, limits=task.submit.limits))
        return tuple(given)

    def _admitted(self) -> bool:
        running = sum(1 for t in self.tasks.values() if t.state == "running" and t.submit.limits)
        recent = sum(1 for start in self.starts[-20:] if self.now - start < WINDOW)
        if (running >= CAP and self.fault != "ignores_cap") or (recent >= RATE and self.fault != "ignores_rate"):
            return False
        self.starts.append(self.now)
        return True

    def _finish(self, worker: str) -> None:
        if not self.held[worker]:
            return
        name, token = self.held[worker].pop(self.chance.randrange(len(self.held[worker])))
        outcome = self.chance.choice(("completed", "completed", "retry", "dead", "checkpoint"))
        answer = self._apply(self.tasks[name], token, worker, outcome)
        call = msgspec.structs.replace(Finish(worker=worker, task=name, token=token, outcome="retry"), outcome=outcome)
        got = self._record(worker, call, answer)
        if (not got and answer == "applied") or outcome == "checkpoint":
            self.held[worker].append((name, token))

    def _apply(self, task: _Task, token: int, worker: str, outcome: str) -> str:
        """The first ending of a lease stands; a repeat answers as it did."""
        done = (f"{task.submit.task} {worker}", token)
        if done in self.answers and outcome != "checkpoint":
            return "applied"
        current = (task.state, task.token, task.worker) == ("running", token, worker)
        if not current and self.fault != "accepts_stale":
            return "stale"
        if outcome != "checkpoint":
            task.state = "pending" if outcome == "retry" else outcome
            self.answers[done] = ()
        return "applied"

    def _beat(self, worker: str) -> None:
        named = tuple(token for _, token in self.held[worker])
        mine = {task.token: task for task in self.tasks.values() if task.state == "running" and task.worker == worker}
        pending = {given.token for call in self.unanswered[worker] for given in self.answers[worker, call.request]}
        request = min((call.request for call in self.unanswered[worker]), default=self.requests[worker] + 1) - 1
        for token, task in mine.items():
            if token in named:
                task.expires = self.now + LEASE
            elif token not in pending:
                task.state = "pending"
        gone = tuple(token for token in named if token not in mine)
        self._record(worker, Beat(worker=worker, request=request, leases=named), "applied", gone=gone)

    def _die(self, worker: str) -> None:
        self.history.append(Died(worker=worker, began=self.now, ended=self.now))
        fresh = f"w.{len(self.history)}"
        del self.held[worker], self.requests[worker], self.unanswered[worker]
        self.held[fresh], self.requests[fresh], self.unanswered[fresh] = [], 0, []
        self.history.append(Join(worker=fresh, types=("t",), answer="applied", began=self.now, ended=self.now))

    def _recover(self) -> None:
        lease = 3_000 if self.fault == "recovers_early" else 0
        for task in self.tasks.values():
            if task.state == "running" and task.expires - lease <= self.now:
                task.state = "pending"

    def _read_all(self) -> None:
        self.now += 1_000
        for name, task in self.tasks.items():
            attempts = tuple(Attempt(number) for number in range(1, task.executions + 1))
            state = task.state if task.state in TERMINAL or task.state == "running" else "pending"
            read = Read(task=name, state="pending", executions=task.executions, attempts=attempts, final=True, began=self.now, ended=self.now)
            self.history.append(msgspec.structs.replace(read, state=state))
