"""The seam: every verb is told once, with its size, its duration and its error."""

from __future__ import annotations

import pytest

from taskmill import engine as engine_module
from taskmill.engine import VERBS, Call, Joining, Room, observed
from taskmill.engines import create
from taskmill.errors import Conflict
from taskmill.task import NewTask, TypeSettings


async def test_every_verb_tells_how_it_went() -> None:
    told: list[Call] = []
    engine = observed(create("sqlite://:memory:"), told.append)
    await engine.open()
    await engine.join(Joining(worker="w", queues=("default",), types={"noop": TypeSettings()}))
    await engine.submit([NewTask(type="noop"), NewTask(type="noop")])
    with pytest.raises(Conflict):
        await engine.claim("nobody", 1, ["default"], Room(1))
    await engine.close()
    assert [(call.verb, call.size, call.code) for call in told] == [
        ("open", 1, None),
        ("join", 1, None),
        ("submit", 2, None),
        ("claim", 1, "unknown_worker"),
        ("close", 1, None),
    ]
    assert all(call.engine == "sqlite" and call.duration >= 0 for call in told)


def test_what_is_no_verb_passes_through() -> None:
    engine = create("sqlite://:memory:")
    watched = observed(engine, lambda _: None)
    assert watched.features is engine.features
    assert len(watched.new_id("default")) == 36


def test_there_are_as_many_verbs_as_the_contract_says() -> None:
    assert f"{len(VERBS)} verbs" in (engine_module.__doc__ or "")
