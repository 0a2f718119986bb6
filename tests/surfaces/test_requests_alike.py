"""The same requests through REST, gRPC, the client and the command line: the same tasks, the same refusals, the same effect."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from taskmill.engine import Ending, Engine
from taskmill.task import ErrorInfo, NewTask, State, new_id
from tests.surfaces.four import Asked, Cannot, Four, Refused, four

SURFACES = ("rest", "grpc", "client", "cli")
SEED = {
    "plain": NewTask(type="mail", queue="post"),
    "sms": NewTask(type="sms", queue="post", tags={"lang": "en"}),
    "later": NewTask(type="mail", queue="slow", delay=3_600_000_000, tags={"lang": "en", "by": "shop"}),
    "acme": NewTask(type="mail", queue="post", tenant="acme"),
    "beta": NewTask(type="sms", queue="slow", tenant="beta", tags={"lang": "fr"}),
    "ended": NewTask(type="bill", queue="bills"),
    "broken": NewTask(type="fail", queue="bills"),
}
NAMES = {task.id: name for name, task in SEED.items()}
ALL = set(SEED)
NOT_ENDED = ALL - {"ended", "broken"}
PAST, FUTURE = "2001-02-03T04:05:06Z", "2999-01-01T00:00:00Z"


@pytest.fixture(scope="module")
def surfaces(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Four]:
    with four(Path(tmp_path_factory.mktemp("four"))) as found:
        found.cli_tool.do(lambda engine: engine.submit(list(SEED.values())))
        found.cli_tool.end(Ending.COMPLETED, "bill", queue="bills", result=b"1")
        found.cli_tool.end(Ending.DEAD, "fail", queue="bills", error=ErrorInfo("no"))
        yield found


FOUND: list[tuple[dict[str, Any], set[str]]] = [
    ({}, ALL),
    ({"state": ["pending"]}, {"plain", "sms", "acme", "beta"}),
    ({"state": ["scheduled"]}, {"later"}),
    ({"state": ["completed"]}, {"ended"}),
    ({"state": ["pending", "completed"]}, ALL - {"later", "broken"}),
    ({"state": ["pending", "pending"]}, {"plain", "sms", "acme", "beta"}),
    ({"state": ["dead"]}, {"broken"}),
    ({"type": ["mail"]}, {"plain", "later", "acme"}),
    ({"type": ["mail", "sms"]}, NOT_ENDED),
    ({"queue": ["post"]}, {"plain", "sms", "acme"}),
    ({"queue": ["slow", "bills"]}, {"later", "beta", "ended", "broken"}),
    ({"type": ["sms"], "queue": ["post"]}, {"sms"}),
    ({"tenant": "acme"}, {"acme"}),
    ({"tenant": ""}, {"plain", "sms", "later", "ended", "broken"}),
    ({"tenant": "nobody"}, set()),
    ({"tenant": "x" * 128}, set()),
    ({"tag": ["lang=en"]}, {"sms", "later"}),
    ({"tag": ["lang=en", "by=shop"]}, {"later"}),
    ({"tag": ["lang=de"]}, set()),
    ({"tag": ["lang=a=b"]}, set()),
    ({"since": PAST}, ALL),
    ({"since": FUTURE}, set()),
    ({"until": PAST}, set()),
    ({"until": FUTURE}, ALL),
    ({"since": PAST, "until": FUTURE, "queue": ["post"], "state": ["pending"], "tag": ["lang=en"]}, {"sms"}),
    ({"since": "2001-02-03T05:05:06+01:00"}, ALL),
]

REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"state": ["deed"]}, "invalid_value", "state"),
    ({"state": ["DEAD"]}, "invalid_value", "state"),
    ({"state": [""]}, "invalid_value", "state"),
    ({"state": ["dead", "gone"]}, "invalid_value", "state"),
    ({"type": ["Mail"]}, "invalid_name", "type"),
    ({"type": ["a b"]}, "invalid_name", "type"),
    ({"type": [""]}, "invalid_name", "type"),
    ({"type": ["t" * 129]}, "invalid_name", "type"),
    ({"type": [f"t{number}" for number in range(101)]}, "too_many", "type"),
    ({"queue": ["Post!"]}, "invalid_name", "queue"),
    ({"queue": ["q" * 129]}, "invalid_name", "queue"),
    ({"queue": ["-q"]}, "invalid_name", "queue"),
    ({"queue": [f"q{number}" for number in range(101)]}, "too_many", "queue"),
    ({"tenant": "x" * 129}, "invalid_key", "tenant"),
    ({"tenant": "x" * 200}, "invalid_key", "tenant"),
    ({"tenant": "a\tb"}, "invalid_key", "tenant"),
    ({"tag": ["lang"]}, "invalid_tag", "tag"),
    ({"tag": ["A B=1"]}, "invalid_name", "tag"),
    ({"tag": ["=1"]}, "invalid_name", "tag"),
    ({"tag": ["lang="]}, "invalid_key", "tag"),
    ({"tag": ["lang=" + "x" * 257]}, "invalid_key", "tag"),
    ({"tag": ["lang=en", "lang=fr"]}, "contradiction", "tag"),
    ({"tag": [f"t{number}=1" for number in range(101)]}, "too_many", "tag"),
    ({"since": "yesterday"}, "invalid_time", "since"),
    ({"since": "2026-01-01T00:00:00"}, "timezone_required", "since"),
    ({"until": "1969-01-01T00:00:00Z"}, "invalid_time", "until"),
    ({"since": FUTURE, "until": PAST}, "contradiction", "since"),
    ({"since": PAST, "until": PAST}, "contradiction", "since"),
]


def named(which: dict[str, Any]) -> str:
    return str(which)[:60]


def answers(surfaces: Four, asked: Asked, *, left_out: tuple[str, ...] = ()) -> dict[str, Any]:
    """By surface; those that cannot write it are left out, and at least two remain."""
    found: dict[str, Any] = {}
    for surface in SURFACES:
        try:
            found[surface] = surfaces.ask(surface, asked)
        except Cannot:
            assert surface not in left_out
    assert len(found) >= 2
    return found


def common(message: str) -> str:
    """The message with the words that all surfaces have."""
    for own, word in (("filter.", ""), ("created_from", "since"), ("created_to", "until"), ("--", "")):
        message = message.replace(own, word)
    return message


def check_refused(found: dict[str, Any], code: str, field: str) -> None:
    """The codes are the same; the command line says the same words."""
    messages = {
        each.message.replace("filter.", "").replace("created_from", "since").replace("created_to", "until").replace("--", "") for each in found.values()
    }
    for surface, answer in found.items():
        assert isinstance(answer, Refused), (surface, answer)
        assert answer.field == field, (surface, answer)
        if surface != "cli" and not (surface == "grpc" and answer.code == "unknown_enum"):
            assert answer.code == code, (surface, answer)
    if code != "invalid_value":  # a number that is no state is told otherwise than a word
        assert len(messages) == 1, messages


# Lists


@pytest.mark.parametrize(("which", "expected"), FOUND, ids=lambda value: named(value) if isinstance(value, dict) else "")
def test_the_same_tasks_are_found(surfaces: Four, which: dict[str, Any], expected: set[str]) -> None:
    found = answers(surfaces, Asked(which))
    assert {surface: {NAMES[id] for id in ids if id in NAMES} for surface, ids in found.items()} == dict.fromkeys(SURFACES, expected)


@pytest.mark.parametrize(("which", "code", "field"), REFUSED, ids=lambda value: named(value) if isinstance(value, dict) else "")
def test_a_list_is_refused_alike(surfaces: Four, which: dict[str, Any], code: str, field: str) -> None:
    check_refused(answers(surfaces, Asked(which)), code, field)


@pytest.mark.parametrize(("which", "code", "field"), REFUSED, ids=lambda value: named(value) if isinstance(value, dict) else "")
def test_a_change_is_refused_alike_and_changes_nothing(surfaces: Four, which: dict[str, Any], code: str, field: str) -> None:
    check_refused(answers(surfaces, Asked(which, verb="cancel", confirm=True)), code, field)
    assert left(surfaces) == dict.fromkeys(("plain", "sms", "acme", "beta"), State.PENDING) | {
        "later": State.SCHEDULED,
        "ended": State.COMPLETED,
        "broken": State.DEAD,
    }


def left(surfaces: Four) -> dict[str, State]:
    async def look(engine: Engine) -> dict[str, State]:
        return {NAMES[task.id]: task.state for task in (await engine.list(n=1_000)).tasks if task.id in NAMES}

    return surfaces.cli_tool.do(look)


@pytest.mark.parametrize("limit", [-1, 0, 1_001])
def test_bounds_of_a_page(surfaces: Four, limit: int) -> None:
    found = answers(surfaces, Asked({}, limit=limit))
    for surface in {"rest", "grpc"} & set(found):
        assert found[surface][:2] == ("out_of_range", "limit")
    assert isinstance(found["cli"], Refused) == (limit < 1), "the command line follows pages by itself"


def test_a_page_of_one(surfaces: Four) -> None:
    assert {len(ids) for ids in answers(surfaces, Asked({"queue": ["post"]}, limit=1)).values()} == {1}


# Waits


@pytest.mark.parametrize("wait", ["61s", "3600s", "60.001s"])
def test_a_wait_over_a_minute(surfaces: Four, wait: str) -> None:
    found = answers(surfaces, Asked(ids=[SEED["ended"].id], wait=wait))
    assert {surface: (answer.code, answer.field) for surface, answer in found.items()} == dict.fromkeys(("rest", "grpc"), ("invalid_duration", "wait"))


def test_a_wait_of_a_minute_for_what_has_ended(surfaces: Four) -> None:
    assert answers(surfaces, Asked(ids=[SEED["ended"].id], wait="60s")) == {"rest": {SEED["ended"].id}, "grpc": {SEED["ended"].id}}


# Changes


CHANGES: list[tuple[Asked, str, str]] = [
    (Asked(verb="cancel", confirm=True), "which_required", "ids"),
    (Asked({"queue": ["post"]}, ids=[new_id()], verb="cancel", confirm=True), "contradiction", "ids"),
    (Asked(ids=["nobody"], verb="cancel"), "invalid_id", "ids"),
    (Asked(ids=[new_id().upper()], verb="delete"), "invalid_id", "ids"),
    (Asked(ids=[], verb="cancel"), "batch_empty", "ids"),
    (Asked({"queue": ["post"]}, verb="cancel"), "confirm_required", "confirm"),
    (Asked({}, verb="cancel"), "confirm_required", "confirm"),
    (Asked({}, verb="requeue"), "confirm_required", "confirm"),
    (Asked({}, verb="delete"), "confirm_required", "confirm"),
]


@pytest.mark.parametrize(("asked", "code", "field"), CHANGES)
def test_a_change_that_is_not_meant(surfaces: Four, asked: Asked, code: str, field: str) -> None:
    found = answers(surfaces, asked)
    for surface, answer in found.items():
        assert isinstance(answer, Refused), (surface, answer)
        if surface != "cli":
            assert answer[:2] == (code, field), (surface, answer)
    assert set(left(surfaces)) == ALL
    assert left(surfaces)["plain"] is State.PENDING


def seeded(surfaces: Four, surface: str, number: int = 3) -> tuple[str, list[str]]:
    """A queue of a surface's own with tasks in it."""
    queue = f"of-{surface}-{new_id()[-6:]}"
    return queue, surfaces.cli_tool.submit(*["note"] * number, queue=queue)


@pytest.mark.parametrize("surface", SURFACES)
def test_changes_by_a_filter_have_the_same_effect(surfaces: Four, surface: str) -> None:
    queue, ids = seeded(surfaces, surface)
    which = {"queue": [queue]}
    assert surfaces.ask(surface, Asked(which, verb="cancel", dry_run=True)) == {"matched": 3, "done": 0, "refused": {}}
    assert surfaces.ask(surface, Asked(which, verb="cancel", confirm=True)) == {"matched": 3, "done": 3, "refused": {}}
    assert surfaces.ask(surface, Asked({**which, "state": ["cancelled"]})) == set(ids)
    assert surfaces.ask(surface, Asked({**which, "state": ["cancelled"]}, verb="requeue", confirm=True)) == {"matched": 3, "done": 3, "refused": {}}
    assert surfaces.ask(surface, Asked({**which, "state": ["pending"]})) == set(ids)


@pytest.mark.parametrize("surface", SURFACES)
def test_changes_by_ids_have_the_same_effect(surfaces: Four, surface: str) -> None:
    _, ids = seeded(surfaces, surface)
    unknown = new_id()
    found = surfaces.ask(surface, Asked(ids=[*ids, ids[0], unknown], verb="cancel"))
    assert found == {"matched": 4, "done": 3, "refused": {"not_found": 1}}, "each is named once, however often it stands there"
    assert surfaces.ask(surface, Asked(ids=ids, verb="delete")) == {"matched": 3, "done": 3, "refused": {}}


def test_it_is_a_table_of_enough() -> None:
    assert len(FOUND) + len(REFUSED) + len(CHANGES) + 8 >= 60
