"""What remote workers said and were told, as a history: read off the wire, between them and their server."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from taskmill.clock import SECOND, instant
from taskmill.testing.workers.proxy import Exchange
from tests.history import events

__all__ = ["history_of"]

OUTCOMES: dict[str, Any] = {"failed": "retry"}


def history_of(exchanges: Iterable[Exchange], queue: str) -> list[events.Event]:
    """The proxy heard every answer that the server gave, also those that never arrived; one that it did not hear is lost."""
    return [event for number, exchange in enumerate(exchanges, 1) for event in _events(exchange, number, queue)]


def _events(exchange: Exchange, number: int, queue: str) -> Iterator[events.Event]:
    worker, status, answer = exchange.worker, exchange.status, exchange.answer
    if worker is None:
        return
    ended = exchange.ended if status is not None else None
    moments: dict[str, Any] = {"began": _micros(exchange.began), "ended": None if ended is None else _micros(ended), "process": 1, "number": number}
    plain: Any = "lost" if status is None or status >= 500 else "applied" if status == 200 else "error"
    match exchange.verb:
        case "join":
            yield events.Join(worker=worker, types=tuple(exchange.body["types"]), answer=plain, **moments)
        case "leave":
            yield events.Leave(worker=worker, answer=plain, **moments)
        case "claim":
            given = tuple(events.Given(task["id"], int(task["token"]), task["attempt"], instant(task["claimed_at"]), task["type"]) for task in exchange.tasks)
            yield events.Claim(
                worker=worker, request=exchange.body["request"], queues=(queue,), given=given, answer="given" if status == 200 else plain, **moments
            )
        case "beat":
            yield _beat(exchange, worker, plain, moments)
        case "finish":
            yield from _finishes(exchange.items("outcomes"), worker, status, answer, plain, moments)


def _beat(exchange: Exchange, worker: str, plain: Any, moments: dict[str, Any]) -> events.Beat:
    named = tuple(int(token) for token in exchange.body["leases"])
    if plain != "applied":
        return events.Beat(worker=worker, request=exchange.body["request"], leases=named, answer=plain, **moments)
    lost = {int(token) for token in exchange.answer["lost"]}
    kept = tuple(token for token in named if token not in lost) if exchange.answer["known"] else ()
    gone = tuple(token for token in named if token not in kept)
    return events.Beat(worker=worker, request=exchange.body["request"], leases=named, kept=kept, gone=gone, answer="applied", **moments)


def _finishes(outcomes: Sequence[dict[str, Any]], worker: str, status: int | None, answer: Any, plain: Any, moments: dict[str, Any]) -> Iterator[events.Finish]:
    for place, outcome in enumerate(outcomes):
        told: Any = "stale" if status == 409 else plain
        if status == 200 and not answer["answers"][place]["applied"]:
            told = "stale"
        ending = OUTCOMES.get(outcome["ending"], outcome["ending"])
        number = moments["number"] * 1_000 + place
        yield events.Finish(
            worker=worker, task=outcome["task"], token=int(outcome["token"]), outcome=ending, answer=told, **{**moments, "number": 1_000_000 + number}
        )


def _micros(seconds: float) -> int:
    return int(seconds * SECOND)
