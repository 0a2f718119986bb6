"""The suite's own instrument: an engine whose answers get lost really does everything twice."""

from __future__ import annotations

import pytest

from taskmill.engine import Engine
from taskmill.errors import Conflict
from tests.conformance.tools import ASKED_AGAIN, Store, again, new


async def test_the_second_answer_is_the_one_heard() -> None:
    answers = iter(["lost", "heard"])

    async def verb(given: list[int], *, named: str) -> str:
        assert (given, named) == ([1, 2], "x")
        return next(answers)

    assert await again(verb)(iter([1, 2]), named="x") == "heard"
    assert list(answers) == []


async def test_a_refusal_gets_lost_too() -> None:
    calls = []

    async def verb() -> None:
        calls.append(1)
        raise Conflict(f"call {len(calls)}")

    with pytest.raises(Conflict, match="call 2"):
        await again(verb)()


def test_every_asynchronous_verb_of_the_contract_is_asked_again() -> None:
    once = {"open", "close", "new_id", "transaction", "in_transaction", "wakeups", "events", "features", "clock"}
    verbs = {name for name in vars(Engine) if not name.startswith("_")}
    assert verbs - once == ASKED_AGAIN
    assert {"submit", "claim", "finish", "heartbeat", "recover_lost", "put", "wait", "outbox"} <= ASKED_AGAIN


async def test_the_fixture_gives_such_an_engine(store: Store, engine: Engine) -> None:
    task = new()
    [answer] = await engine.submit([task])
    assert answer.status == ("duplicate" if store.lost else "created")
