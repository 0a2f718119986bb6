"""The rules that every message must obey, whatever a check is about: judged on what went over the wire."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

from taskmill.testing.workers.proxy import Exchange

__all__ = ["RULES", "Rule"]

AT_ONCE = 1.0
"""Seconds in which a message may still go out that was on its way already."""

Rule = Callable[[Sequence[Exchange], float, bool], Iterator[str]]
"""What is wrong with the exchanges of one scene; the lease in seconds; whether the check kept the worker from beating."""


def numbers(exchanges: Sequence[Exchange], lease: float, disturbed: bool) -> Iterator[str]:
    """Claims come one after the other; each has a number above those before it, and only one that was not answered is repeated."""
    for worker in _workers(exchanges):
        before: Exchange | None = None
        heard: Counter[int] = Counter()  # an answer may cross with a worker that gave up waiting for it: once it may ask again for what went out to it
        for claim in _of(exchanges, worker, "claim"):
            number = _number(claim)
            if number is None or number < 1:
                yield f"a claim has the number {number}: numbers begin with 1"
            elif before is not None and (last := _number(before)) is not None:
                if before.ended is None or before.ended > claim.began:
                    yield f"claim {number} was sent before claim {last} was answered: one at a time"
                elif number < last:
                    yield f"claim {number} came after claim {last}: numbers grow"
                elif heard[number] > 1:
                    yield f"claim {number} was answered twice and is sent again: take the next number"
                elif number > last and not before.good:
                    yield f"claim {last} was not answered, and claim {number} follows: repeat it under the same number"
            before = claim
            heard[number or 0] += claim.good


def beats(exchanges: Sequence[Exchange], lease: float, disturbed: bool) -> Iterator[str]:
    """A beat names the last claim whose answer is there, and the token of everything that is held of the claims up to it, as it was given."""
    for worker in _workers(exchanges):
        given = [(_number(claim) or 0, task["token"], claim.ended or 0.0) for claim in _of(exchanges, worker, "claim") if claim.good for task in claim.tasks]
        answered = [(_number(claim) or 0, claim.ended or 0.0) for claim in _of(exchanges, worker, "claim") if claim.good]
        over = _over(exchanges, worker)
        for beat in _of(exchanges, worker, "beat"):
            if beat.status != 200:
                continue
            request, leases = beat.body["request"], set(beat.body["leases"])
            known = [number for number, at in answered if at <= beat.began]
            if request > max(known, default=0):
                yield f"a beat says that claim {request} was answered, and it was not"
            held = {token for number, token, at in given if number <= request and at <= beat.began}
            if strange := leases - {token for _, token, _ in given}:
                yield f"a beat names the token {min(strange)}, which was never given to this worker"
            if missing := {token for token in held - leases if over.get(token, beat.began + 1) > beat.began}:
                yield f"a beat does not name the token {min(missing)}, which the worker holds: the task is given to others"


def punctual(exchanges: Sequence[Exchange], lease: float, disturbed: bool) -> Iterator[str]:
    """From join to leave, beats come often enough: never a whole lease apart."""
    if disturbed:
        return
    for worker in _workers(exchanges):
        began = [one.ended or one.began for one in exchanges if one.verb == "join" and one.worker == worker]
        last = [one.ended for one in exchanges if one.worker == worker and one.heard and one.ended is not None]
        times = sorted([*began, *(beat.began for beat in _of(exchanges, worker, "beat")), *last[-1:]])
        for first, second in pairwise(times):
            if second - first > lease:
                yield f"it did not beat for {second - first:.1f} s, and the lease is {lease:.1f} s: beat every {lease / 3:.1f} s"


def finishes(exchanges: Sequence[Exchange], lease: float, disturbed: bool) -> Iterator[str]:
    """Each lease is ended once, by whoever was given it; an end is told again only as it was, and only until it is answered."""
    for worker in _workers(exchanges):
        given = {task["token"] for claim in _of(exchanges, worker, "claim") for task in claim.tasks}
        told: dict[str, tuple[dict[str, Any], Exchange]] = {}
        for finish in _of(exchanges, worker, "finish"):
            for outcome in finish.items("outcomes"):
                token = str(outcome.get("token"))
                if token not in given:
                    yield f"an end was told for the token {token}, which was never given to this worker"
                if token in told:
                    before, at = told[token]
                    if at.heard and at.status is not None and at.status < 500 and (at.ended or 0.0) < finish.began:
                        yield f"the end of the lease {token} was answered {at.status} and is told again"
                    elif before != outcome:
                        yield f"the end of the lease {token} was told as {before.get('ending')}, then as {outcome.get('ending')}, or with something else in it"
                told[token] = (outcome, finish)


def sessions(exchanges: Sequence[Exchange], lease: float, disturbed: bool) -> Iterator[str]:
    """It speaks under the id that join gave it, says nothing more once it has left, and claims nothing once it is unknown."""
    joined: dict[str, float] = {}
    left: dict[str, float] = {}
    gone: dict[str, float] = {}
    for one in exchanges:
        worker = one.worker or ""
        if one.verb == "join":
            if one.good:
                joined[worker] = one.ended or 0.0
            continue
        if worker not in joined:
            yield f"{one.verb} names the worker {worker[:60]!r}, whose join was not answered"
        if left.get(worker, one.began) + AT_ONCE < one.began:
            yield f"{one.verb} comes after the worker has left"
        if one.verb == "claim" and gone.get(worker, one.began) + AT_ONCE < one.began:
            yield "it claims after it was told that it is unknown: join anew"
        if one.verb == "leave" and one.good:
            left[worker] = one.ended or 0.0
        if one.heard and (one.status == 404 or (one.verb == "beat" and one.status == 200 and not one.answer["known"])):
            gone.setdefault(worker, one.ended or 0.0)


def understood(exchanges: Sequence[Exchange], lease: float, disturbed: bool) -> Iterator[str]:
    """No message is refused because nobody understands it."""
    for one in exchanges:
        if one.status in {400, 405, 413, 415, 422} or (one.status == 404 and (one.answer or {}).get("code") == "no_route"):
            problem = one.answer if isinstance(one.answer, dict) else {}
            yield f"{one.verb} is answered {one.status}: {problem.get('field', '')} {problem.get('title', '')} ({problem.get('hint', '')})"


def _workers(exchanges: Sequence[Exchange]) -> list[str]:
    return list(dict.fromkeys(one.worker for one in exchanges if one.verb == "join" and one.good and one.worker))


def _of(exchanges: Sequence[Exchange], worker: str, verb: str) -> list[Exchange]:
    return [one for one in exchanges if one.verb == verb and one.worker == worker]


def _number(claim: Exchange) -> int | None:
    found = claim.body.get("request")
    return found if isinstance(found, int) else None


def _over(exchanges: Sequence[Exchange], worker: str) -> dict[str, float]:
    """By token, when the worker knew that it does not hold it any more: its end was answered, or a beat said that it is lost."""
    over: dict[str, float] = {}
    for finish in _of(exchanges, worker, "finish"):
        if finish.heard and finish.status is not None and finish.status < 500:
            for outcome in finish.items("outcomes"):
                over.setdefault(str(outcome.get("token")), finish.ended or 0.0)
    for beat in _of(exchanges, worker, "beat"):
        if beat.good:
            for token in beat.answer["lost"]:
                over.setdefault(token, beat.ended or 0.0)
    return over


RULES: dict[str, Rule] = {rule.__name__: rule for rule in (numbers, beats, punctual, finishes, sessions, understood)}
"""Every rule by its name; its docstring is what it demands."""
