"""`taskmill task cancel|requeue|delete`, `dead requeue|purge`, `queue purge`: on ids and on what matches, never by a slip."""

from __future__ import annotations

import pytest

from taskmill.engine import Ending, Engine, Joining, Room
from taskmill.task import ErrorInfo, State, TypeSettings
from tests.surfaces.cli_tools import Cli

UNKNOWN = "018f3c9e-5d7a-7b64-9d2c-0f6a1b2c3d4e"
VERBS: dict[tuple[str, ...], str] = {
    ("task", "cancel"): "cancelled",
    ("task", "requeue"): "requeued",
    ("task", "delete"): "deleted",
    ("dead", "requeue"): "requeued",
    ("dead", "purge"): "deleted",
}
EACH = pytest.mark.parametrize("verb", VERBS, ids=" ".join)


def states(cli: Cli) -> dict[str, State]:
    async def look(engine: Engine) -> dict[str, State]:
        return {task.id: task.state for task in (await engine.list(n=1_000)).tasks}

    return cli.do(look)


def prepared(cli: Cli, verb: tuple[str, ...], number: int = 3) -> list[str]:
    """Tasks of type `mail` that this verb can act on, and one of another type."""
    cli.submit(*["mail"] * number)
    ids = cli.ids()
    if verb != ("task", "cancel"):
        cli.end(Ending.DEAD, "mail", error=ErrorInfo("ValueError", "no"))
    cli.submit("other")
    if verb != ("task", "cancel"):
        cli.end(Ending.DEAD, "other", error=ErrorInfo("ValueError", "no"))
    return ids


AFTER = {"cancelled": State.CANCELLED, "requeued": State.PENDING, "deleted": None}


@EACH
def test_on_ids(cli: Cli, verb: tuple[str, ...]) -> None:
    ids = prepared(cli, verb)
    before = states(cli)
    said = cli.ok(*verb, ids[0], ids[1], ids[1], "--yes")
    assert said.out == f"2 tasks {VERBS[verb]}\n"
    after = states(cli)
    assert [after.get(id) for id in ids[:2]] == [AFTER[VERBS[verb]]] * 2
    assert {id: state for id, state in after.items() if id not in ids[:2]} == {id: state for id, state in before.items() if id not in ids[:2]}


@EACH
def test_on_what_matches(cli: Cli, verb: tuple[str, ...]) -> None:
    ids = prepared(cli, verb)
    before = states(cli)
    said = cli.ok(*verb, "--type", "mail", "--yes", "--json")
    assert said.objects == [{"matched": 3, "done": 3, "requested": 0, "refused": {}, "dry_run": False}]
    after = states(cli)
    assert [after.get(id) for id in ids] == [AFTER[VERBS[verb]]] * 3
    [other] = before.keys() - set(ids)
    assert after[other] == before[other]


@EACH
def test_a_dry_run_counts_and_changes_nothing(cli: Cli, verb: tuple[str, ...]) -> None:
    ids = prepared(cli, verb)
    before = states(cli)
    assert cli.ok(*verb, "--type", "mail", "--dry-run").out == f"3 tasks would be {VERBS[verb]}\n"
    assert cli.ok(*verb, "--type", "mail", "--dry-run", "--yes", "--json").objects == [{"matched": 3, "dry_run": True}]
    assert cli.ok(*verb, ids[0], "--dry-run").out == f"1 task would be {VERBS[verb]}\n"
    said = cli(*verb, ids[0], UNKNOWN, "--dry-run")
    assert (said.code == 1) if verb[0] == "task" else (UNKNOWN in said.err)
    assert states(cli) == before


@EACH
def test_without_yes_and_nobody_to_ask_it_is_refused(cli: Cli, verb: tuple[str, ...]) -> None:
    ids = prepared(cli, verb)
    before = states(cli)
    assert "3 tasks? Nobody can be asked here (add --yes" in cli.refused(2, *verb, "--type", "mail")
    assert "1 task? Nobody can be asked here (add --yes" in cli.refused(2, *verb, ids[0])
    assert states(cli) == before


@EACH
def test_neither_ids_nor_a_filter_is_no_wish(cli: Cli, verb: tuple[str, ...]) -> None:
    prepared(cli, verb)
    before = states(cli)
    assert "nothing says which tasks" in cli.refused(2, *verb, "--yes")
    assert "both ids and a filter are given" in cli.refused(2, *verb, UNKNOWN, "--type", "mail", "--yes")
    assert "both ids and a filter are given" in cli.refused(2, *verb, UNKNOWN, "--all", "--yes")
    assert "both given" in cli.refused(2, *verb, "--all", "--type", "mail", "--yes")
    assert states(cli) == before
    assert cli.ok(*verb, "--all", "--yes").out == f"4 tasks {VERBS[verb]}\n"


@EACH
def test_an_unknown_task_is_named(cli: Cli, verb: tuple[str, ...]) -> None:
    said = cli(*verb, UNKNOWN, "--yes")
    assert said.code == 1
    assert "1 task not known to this store" in said.err or UNKNOWN in said.err
    assert "is not an id" in cli.refused(2, *verb, "nonsense", "--yes")


@EACH
def test_a_filter_that_matches_nothing_is_said(cli: Cli, verb: tuple[str, ...]) -> None:
    cli.submit("mail")
    assert cli.ok(*verb, "--tag", "customer=acme").out == f"0 tasks {VERBS[verb]}\n"
    assert "did you mean 'mail'?" in cli.refused(1, *verb, "--type", "mial", "--yes")


def test_a_task_in_another_state_is_refused_with_the_reason(cli: Cli) -> None:
    [live] = cli.submit("mail")
    for verb, past in {"requeue": "requeued", "delete": "deleted"}.items():
        answer = cli("task", verb, live, "--yes")
        assert (answer.code, answer.out, answer.err) == (1, f"0 tasks {past}\n", "taskmill: 1 task not ended yet: cancel first\n")
    cli.end(Ending.COMPLETED, "mail")
    answer = cli("task", "cancel", live, "--yes", "--json")
    assert (answer.code, answer.objects[0]["refused"]) == (1, {"terminal": 1})
    assert "cannot be cancelled" in cli.refused(2, "task", "cancel", "--state", "dead", "--yes")
    assert "cannot be deleted" in cli.refused(2, "task", "delete", "--state", "running", "--yes")
    assert f"{live} is completed, not dead" in cli.refused(1, "dead", "requeue", live, "--yes")


def test_a_running_task_is_told(cli: Cli) -> None:
    [id] = cli.submit("mail")

    async def start(engine: Engine) -> None:
        await engine.join(Joining(worker="anna", queues=("default",), types={"mail": TypeSettings()}))
        assert (await engine.claim("anna", 1, ["default"], Room(1))).tasks

    cli.do(start)
    assert cli.ok("task", "cancel", id, "--yes").out == "0 tasks cancelled, 1 task told to stop (running now)\n"
    [task] = cli.ok("task", "list", "--json").objects
    assert (task["state"], task["cancel_requested"]) == ("running", True)
    assert cli.ok("task", "list").lines[0].endswith("cancel requested")


def test_requeue_from_the_start_forgets_checkpoints(cli: Cli) -> None:
    cli.submit("mail")
    [id] = cli.end(Ending.DEAD, "mail", error=ErrorInfo("ValueError", "no"))
    assert cli.ok("task", "requeue", id, "--from-start", "--yes").out == "1 task requeued\n"
    assert states(cli) == {id: State.PENDING}


def test_more_than_a_batch(cli: Cli) -> None:
    cli.submit(*["mail"] * 1_200)
    assert cli.ok("task", "cancel", "--queue", "default", "--yes").out == "1,200 tasks cancelled\n"
    assert cli.ok("task", "delete", "--state", "cancelled", "--yes").out == "1,200 tasks deleted\n"
    assert cli.ids() == []


def test_purging_a_queue_keeps_what_ended(cli: Cli) -> None:
    cli.submit("mail", queue="out")
    [dead] = cli.end(Ending.DEAD, "mail", error=ErrorInfo("ValueError", "no"), queue="out")
    cli.submit("mail", "mail", queue="out")
    [other] = cli.submit("mail")
    assert cli.ok("queue", "purge", "out", "--dry-run").out == "2 tasks would be thrown away\n"
    assert "add --yes" in cli.refused(2, "queue", "purge", "out")
    assert cli.ok("queue", "purge", "out", "--yes").out == "2 tasks thrown away\n"
    assert states(cli).keys() == {dead, other}
    assert "did you mean 'out'?" in cli.refused(1, "queue", "purge", "outt", "--yes")
