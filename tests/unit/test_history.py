"""The checker is checked: each rule reports a history that breaks it and nothing else, and stays silent where a lost answer leaves a way out."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Literal, TypeVar

import msgspec
import pytest

from tests.history import RULES, Bounds, check
from tests.history.events import (
    Attempt,
    Beat,
    Call,
    Claim,
    Died,
    Event,
    Finish,
    Fire,
    Given,
    Join,
    Lead,
    Leave,
    Led,
    Limit,
    Operate,
    Read,
    Recover,
    Submit,
)

C = TypeVar("C", bound=Call)
Answer = Literal["applied", "stale", "error", "lost"]
Outcome = Literal["completed", "retry", "dead", "snoozed", "waiting", "cancelled", "released", "crashed", "checkpoint"]


def at(began: int, call: C, ended: int | None = None) -> C:
    return msgspec.structs.replace(call, began=began, ended=began + 5 if ended is None else ended)


def in_turn(*calls: Event) -> list[Event]:
    """The calls one after the other, at 10, 20, 30 …; a call that has its moments keeps them."""
    return [call if call.ended is not None else at(moment, call) for moment, call in zip(itertools.count(10, 10), calls, strict=False)]


def submit(task: str = "a", answer: str = "created", **more: object) -> Submit:
    return msgspec.structs.replace(Submit(task=task, type="t"), answer=answer, **more)


def claim(
    token: int, task: str = "a", worker: str = "w", attempt: int = 1, claimed_at: int = 0, limits: tuple[str, ...] = (), request: int | None = None
) -> Claim:
    given = Given(task=task, token=token, attempt=attempt, claimed_at=claimed_at, limits=limits)
    return Claim(worker=worker, request=token if request is None else request, given=(given,), answer="given")


def finish(token: int, outcome: Outcome = "completed", task: str = "a", worker: str = "w", answer: Answer = "applied", delay: int = 0) -> Finish:
    return Finish(worker=worker, task=task, token=token, outcome=outcome, answer=answer, delay=delay)


def read(state: str = "completed", task: str = "a", **more: object) -> Read:
    return msgspec.structs.replace(Read(task=task, state="missing"), state=state, **more)


def lead(holder: str, term: int, since: int, until: int, answer: str = "applied") -> Lead:
    return msgspec.structs.replace(Lead(role="r", holder=holder, term=term, since=since, until=until), answer=answer)


def fire(term: int, task: str = "f", answer: str = "applied") -> Fire:
    return msgspec.structs.replace(Fire(role="r", term=term, schedule="s", time=7, task=task), answer=answer)


def joined(worker: str = "w", types: tuple[str, ...] = ("t",)) -> Join:
    return Join(worker=worker, types=types, answer="applied")


def limited(cap: int | None = None, rate: int | None = None, window: int = 0) -> Limit:
    return Limit(name="l", cap=cap, rate=rate, window=window, answer="applied")


def recovered(*tokens: int) -> Recover:
    return Recover(moved=tokens, answer="applied")


def rules(history: Iterable[Event], bounds: Bounds | None = None) -> set[str]:
    return {violation.rule for violation in check(history, bounds)}


LOST_WORKER: list[Event] = [submit(), claim(1), Died(worker="w"), recovered(1)]
TWO_TASKS = [submit("a", created_at=1), submit("b", created_at=2)]
AGAIN = claim(2, worker="v", attempt=2)

BROKEN: dict[str, list[tuple[list[Event], Bounds]]] = {
    "submit_lost": [
        (in_turn(submit(), read("missing")), Bounds()),
        (in_turn(submit(), submit("b"), read("pending", "b", final=True)), Bounds()),
        (in_turn(submit("b", "duplicate", id="a"), read("missing")), Bounds()),
    ],
    "completed_twice": [([*in_turn(submit(), claim(1)), at(30, finish(1), 60), at(35, AGAIN, 65), at(70, finish(2, worker="v"))], Bounds(lease=0))],
    "stale_write": [
        (in_turn(*LOST_WORKER, AGAIN, finish(1, "retry")), Bounds()),
        (in_turn(submit(), claim(1), recovered(1), finish(1)), Bounds()),
        (in_turn(submit(), claim(1), recovered(1), finish(1, "checkpoint")), Bounds()),
    ],
    "two_leases": [
        (in_turn(submit(), claim(1), AGAIN), Bounds()),
        (in_turn(submit(), claim(1), AGAIN), Bounds(lease=100)),
        (in_turn(submit(), claim(1), AGAIN, Beat(worker="w", request=1, leases=(1,), kept=(1,), answer="applied")), Bounds(lease=0)),
    ],
    "token_order": [
        (in_turn(*TWO_TASKS, claim(5), claim(4, "b")), Bounds()),
        (in_turn(*TWO_TASKS, claim(5), claim(5, "b", worker="v")), Bounds()),
        (in_turn(submit(), claim(5), finish(5, "released"), claim(4)), Bounds(token_per_task=True)),
    ],
    "live_vanished": [
        (in_turn(submit(), claim(1), finish(1, "retry"), read("missing")), Bounds()),
        (in_turn(submit(), read("pending"), read("missing")), Bounds()),
    ],
    "early_start": [
        (in_turn(submit(run_at=100), claim(1, claimed_at=99)), Bounds()),
        (in_turn(submit(), claim(1, claimed_at=50), finish(1, "retry", delay=10), claim(2, attempt=2, claimed_at=59)), Bounds()),
    ],
    "key_two_tasks": [
        (in_turn(submit(key="k"), submit("b", key="k")), Bounds()),
        (in_turn(submit(key="k", created_at=0, window=50), submit("b", key="k", created_at=49)), Bounds()),
        (in_turn(submit(key="k"), submit("b", "duplicate", key="other", id="a")), Bounds()),
    ],
    "key_answer": [
        (in_turn(submit(key="k", hash="1"), submit("b", "duplicate", key="k", hash="2", id="a")), Bounds()),
        (in_turn(submit(key="k", hash="1"), submit("b", "conflict", key="k", hash="1", id="a")), Bounds()),
    ],
    "not_rerun": [
        ([*in_turn(submit(), claim(1), Died(worker="w")), at(140, AGAIN)], Bounds(lease=40, rerun=50)),
        ([*in_turn(submit(), claim(1), Died(worker="w")), at(140, read("pending"))], Bounds(lease=40, rerun=50)),
    ],
    "lease_lost": [
        (in_turn(submit(), claim(1), Beat(worker="w", request=1, leases=(1,), answer="applied"), finish(1, answer="stale")), Bounds(lease=20)),
        (in_turn(submit(), claim(1), finish(1, answer="stale")), Bounds()),
        (in_turn(submit(), claim(1), recovered(1)), Bounds(lease=20)),
        (in_turn(submit(), claim(1), Beat(worker="w", request=1, leases=(1,), gone=(1,), answer="applied")), Bounds(lease=20)),
    ],
    "fired_twice": [(in_turn(lead("x", 1, 0, 9), fire(1), fire(1, "g")), Bounds())],
    "deposed_write": [
        (in_turn(lead("x", 1, 0, 9), lead("y", 2, 9, 20), fire(1)), Bounds()),
        (in_turn(lead("x", 1, 0, 9), lead("y", 2, 9, 20), Led(role="r", term=1, verb="prune", answer="applied")), Bounds()),
    ],
    "two_leaders": [
        (in_turn(lead("x", 1, 0, 9), lead("y", 1, 9, 20)), Bounds()),
        (in_turn(lead("x", 1, 0, 9), lead("y", 2, 8, 20)), Bounds()),
        (in_turn(lead("x", 2, 10, 20), lead("y", 1, 5, 9)), Bounds()),
    ],
    "foreign_type": [(in_turn(joined(types=("u",)), submit(), claim(1)), Bounds())],
    "claim_order": [
        (in_turn(*TWO_TASKS, claim(1, "b", claimed_at=9)), Bounds()),
        (in_turn(submit("a", created_at=1), submit("b", created_at=2, priority=3), claim(1, "a", claimed_at=9)), Bounds()),
        (in_turn(submit("b", created_at=1), submit("a", created_at=1, run_at=5, priority=2), submit("c", created_at=6), claim(1, "b", claimed_at=9)), Bounds()),
    ],
    "repeat_differs": [
        (in_turn(submit(), claim(1), finish(1), finish(1, answer="stale")), Bounds()),
        (in_turn(*TWO_TASKS, claim(1, request=1), claim(2, "b", request=1)), Bounds()),
        (in_turn(submit(), claim(1, request=1), Claim(worker="w", request=1, answer="given")), Bounds()),
        (in_turn(submit(hash="1"), submit(hash="1", answer="conflict", id="a")), Bounds()),
        (in_turn(submit(), *(Operate(verb="cancel", task="a", version=1, answer=answer) for answer in ("applied", "refused"))), Bounds()),
    ],
    "concurrency_exceeded": [
        (in_turn(limited(cap=1), *TWO_TASKS, claim(1, limits=("l",)), claim(2, "b", limits=("l",))), Bounds()),
        (in_turn(limited(cap=2), limited(cap=1), *TWO_TASKS, claim(1, limits=("l",)), claim(2, "b", limits=("l",))), Bounds(lease=100)),
    ],
    "rate_exceeded": [
        (in_turn(limited(rate=1, window=50), *TWO_TASKS, claim(1, limits=("l",)), finish(1, "released"), claim(2, "b", claimed_at=49, limits=("l",))), Bounds())
    ],
    "attempts_wrong": [
        (in_turn(submit(), claim(1), finish(1, "retry"), claim(2)), Bounds()),
        (in_turn(submit(), claim(1), finish(1), read(executions=0)), Bounds()),
        (in_turn(read("retrying", executions=2, attempts=(Attempt(1), Attempt(3)))), Bounds()),
        (in_turn(read("retrying", executions=2, attempts=(Attempt(1),))), Bounds()),
    ],
    "terminal_left": [
        (in_turn(submit(), claim(1), finish(1), claim(2, attempt=2)), Bounds()),
        (in_turn(submit(), claim(1), finish(1), read("dead", executions=1)), Bounds()),
        (in_turn(submit(), read("cancelled"), read("pending")), Bounds()),
        (in_turn(submit(), read("dead"), Operate(verb="requeue", task="a", answer="applied"), read("cancelled"), read("pending")), Bounds()),
    ],
    "version_back": [(in_turn(submit(), read("pending", version=3), read("pending", version=2)), Bounds())],
}


@pytest.mark.parametrize(("rule", "number"), [(rule, number) for rule, cases in BROKEN.items() for number in range(len(cases))])
def test_a_broken_promise_is_reported_by_its_rule_alone(rule: str, number: int) -> None:
    history, bounds = BROKEN[rule][number]
    assert rules(history, bounds) == {rule}


def test_every_rule_has_a_history_that_breaks_it() -> None:
    assert BROKEN.keys() == RULES.keys()


HEALTHY: list[tuple[str, list[Event], Bounds]] = [
    ("nothing", [], Bounds()),
    ("a life", in_turn(joined(), submit(), claim(1), finish(1), finish(1), read(executions=1, attempts=(Attempt(1),), final=True)), Bounds(lease=100)),
    (
        "a requeue",
        in_turn(submit(), claim(1), finish(1, "dead"), Operate(verb="requeue", task="a", answer="applied"), claim(2, attempt=2), finish(2)),
        Bounds(),
    ),
    ("a lost requeue", in_turn(submit(), claim(1), finish(1), Operate(verb="requeue", task="a"), claim(2, attempt=2), finish(2)), Bounds()),
    ("a dead worker", [*in_turn(submit(), claim(1), Died(worker="w")), at(75, AGAIN), at(85, finish(2, worker="v"))], Bounds(lease=40, rerun=50)),
    ("poison", [*in_turn(submit(), claim(1), Died(worker="w")), at(200, read("dead", executions=1))], Bounds(lease=40, rerun=50)),
    ("killed in a finish", [*in_turn(submit(), claim(1), finish(1, answer="lost"), Died(worker="w")), at(200, read(executions=1))], Bounds(lease=40, rerun=50)),
    ("a late worker", [*in_turn(submit(), claim(1)), at(90, AGAIN), at(100, finish(1, answer="stale")), at(110, finish(2, worker="v"))], Bounds(lease=50)),
    ("a recovery", in_turn(*LOST_WORKER, AGAIN, finish(2, worker="v")), Bounds()),
    ("a recovery nobody listed", in_turn(submit(), claim(1), Recover(answer="applied"), AGAIN, finish(1, answer="stale")), Bounds()),
    ("a recovery whose answer was lost", in_turn(submit(), Recover(), claim(1), AGAIN), Bounds()),
    ("a claim asked for again", in_turn(submit(), Claim(worker="w", request=1), claim(1, request=1), claim(1, request=1)), Bounds()),
    ("an old request's token", in_turn(*TWO_TASKS, Claim(worker="w", request=1), claim(2, "b", worker="v"), claim(1, request=1)), Bounds()),
    ("a finish asked for again", in_turn(submit(), claim(1), finish(1, "retry", answer="lost"), AGAIN, finish(1, "retry")), Bounds()),
    ("a finish that never came", in_turn(submit(), claim(1), finish(1, answer="error"), finish(1)), Bounds()),
    ("given back by a beat", in_turn(submit(), claim(1), Beat(worker="w", request=1, leases=(), answer="applied"), claim(2, worker="v")), Bounds()),
    ("given back by leaving", in_turn(submit(), claim(1), Leave(worker="w", answer="applied"), claim(2, worker="v")), Bounds()),
    ("a submit never acknowledged", in_turn(submit(answer="lost"), read("missing")), Bounds()),
    ("a refused conflict", in_turn(submit("b", "conflict", key="k"), read("missing", "b")), Bounds()),
    ("pruned", in_turn(submit(), claim(1), finish(1), read("missing"), read("expired")), Bounds()),
    ("maybe deleted", in_turn(submit(), Operate(verb="delete", task="a"), read("missing")), Bounds()),
    ("a key after its window", in_turn(submit(key="k", created_at=0, window=50), submit("b", key="k", created_at=50)), Bounds()),
    ("a key per type", in_turn(submit(key="k"), submit("b", key="k", type="u")), Bounds()),
    ("a key whose first answer was lost", in_turn(submit(key="k", answer="lost"), submit("b", key="k")), Bounds()),
    ("on time", in_turn(submit(run_at=9), claim(1, claimed_at=9), finish(1, "snoozed", delay=5), claim(2, attempt=2, claimed_at=14)), Bounds()),
    ("a fire repeated", in_turn(lead("x", 1, 0, 9), fire(1, answer="lost"), lead("y", 2, 9, 20), fire(1), fire(2, answer="refused")), Bounds()),
    ("resigned", in_turn(lead("x", 1, 0, 9), lead("x", 1, 0, 0, "resigned"), lead("y", 2, 5, 20)), Bounds()),
    ("renewed", in_turn(lead("x", 1, 0, 9), lead("x", 1, 0, 18), lead("y", 2, 18, 20)), Bounds()),
    ("in order", in_turn(*TWO_TASKS, claim(1, claimed_at=9), claim(2, "b", claimed_at=9)), Bounds()),
    (
        "not surely due",
        in_turn(submit("a", created_at=1, run_at=8), submit("b", created_at=9, priority=0), claim(1, "b", claimed_at=9)),
        Bounds(unordered=frozenset({"default"})),
    ),
    ("two claimers", in_turn(*TWO_TASKS, claim(1, "b"), claim(2, "a", worker="v")), Bounds()),
    ("submitted meanwhile", [at(10, submit("b", created_at=2)), at(12, submit("a", created_at=1), 40), at(30, claim(1, "b", claimed_at=9))], Bounds()),
    ("slots in turn", in_turn(limited(cap=1), *TWO_TASKS, claim(1, limits=("l",)), finish(1), claim(2, "b", limits=("l",))), Bounds()),
    ("maybe finished", in_turn(limited(cap=1), *TWO_TASKS, claim(1, limits=("l",)), finish(1, answer="lost"), claim(2, "b", limits=("l",))), Bounds()),
    ("a cap lowered under them", in_turn(limited(cap=2), *TWO_TASKS, claim(1, limits=("l",)), claim(2, "b", limits=("l",)), limited(cap=1)), Bounds()),
    ("a cap maybe raised", in_turn(limited(cap=1), Limit(name="l", cap=2), *TWO_TASKS, claim(1, limits=("l",)), claim(2, "b", limits=("l",))), Bounds()),
    ("a rate kept", in_turn(limited(rate=1, window=50), *TWO_TASKS, claim(1, limits=("l",)), claim(2, "b", claimed_at=50, limits=("l",))), Bounds()),
    ("released without an attempt", in_turn(submit(), claim(1), finish(1, "released"), claim(2)), Bounds()),
    ("an attempt nobody saw", in_turn(submit(), claim(1), Recover(answer="applied"), claim(5, attempt=3)), Bounds()),
    ("running", in_turn(submit(), claim(1), read("running", executions=1, attempts=())), Bounds()),
]


@pytest.mark.parametrize(("history", "bounds"), [pytest.param(history, bounds, id=name) for name, history, bounds in HEALTHY])
def test_a_healthy_history_is_clean(history: list[Event], bounds: Bounds) -> None:
    assert check(history, bounds) == []


def test_overlapping_calls_are_not_ordered() -> None:
    """The same calls that break a promise one after the other break none when they ran at once."""
    together: list[Event] = [at(10, submit()), at(20, claim(1)), at(30, finish(1), 80), at(35, claim(2, attempt=2), 75)]
    assert check(together, Bounds(lease=0)) == []
    apart = in_turn(submit(), claim(1), finish(1), claim(2, attempt=2))
    assert rules(apart) == {"terminal_left"}


def test_beats_keep_a_lease_alive_by_induction() -> None:
    """Each beat reached the store while the lease stood, so it stands a lease longer; after a gap nothing is sure."""
    beats: list[Event] = [at(moment, Beat(worker="w", request=1, leases=(1,), answer="applied")) for moment in (40, 60, 80)]
    start = in_turn(submit(), claim(1))
    assert rules([*start, *beats, at(90, AGAIN)], Bounds(lease=30)) == {"two_leases"}
    assert rules([*start, *beats[1:], at(90, AGAIN)], Bounds(lease=30)) == set()


def test_a_violation_says_what_and_where() -> None:
    (violation,) = check(BROKEN["terminal_left"][0][0])
    assert (violation.subject, violation.text) == ("a", "completed, then claimed")
