"""The program on a real terminal: tables, questions, live views, and texts that would draw."""

from __future__ import annotations

import json
import re
import signal

import pytest

from taskmill.engine import Ending
from taskmill.task import ErrorInfo
from tests.surfaces.cli_tools import Cli, terminal


def plain(screen: str) -> str:
    """Without colours."""
    return re.sub(r"\x1b\[[0-9;]*m", "", screen)


def test_a_table_with_a_head(cli: Cli) -> None:
    [id] = cli.submit("mail", queue="out")
    with terminal(cli, "task", "list") as shown:
        assert shown.end() == 0
        lines = plain(shown.screen).splitlines()
        assert any(line.split()[:4] == ["id", "type", "queue", "state"] for line in lines)
        assert any(line.split()[:4] == [id, "mail", "out", "pending"] for line in lines)


def test_a_table_shows_the_newest_and_says_so(cli: Cli) -> None:
    ids = cli.submit(*["mail"] * 60)
    with terminal(cli, "task", "list") as shown:
        assert shown.end() == 0
        assert sum(id in shown.screen for id in ids) == 50
        assert "more match than the 50 newest" in shown.screen
    with terminal(cli, "task", "list", "--limit", "60") as shown:
        assert shown.end() == 0
        assert all(id in shown.screen for id in ids)


@pytest.mark.parametrize("columns", ["60", "80", "100"])
def test_on_a_narrow_terminal_the_id_stays_whole(cli: Cli, columns: str) -> None:
    cli.submit("a_type_with_a_long_name_to_give_way", queue="a_long_queue")
    [id] = cli.end(Ending.DEAD, "a_type_with_a_long_name_to_give_way", error=ErrorInfo("ValueError", "x" * 100), queue="a_long_queue")
    with terminal(cli, "task", "list", columns=columns) as shown:
        assert shown.end() == 0
        lines = plain(shown.screen).splitlines()
        assert [line.split()[0] for line in lines] == ["id", id]
        assert all(len(line.rstrip()) <= int(columns) for line in lines)


def test_a_tail_of_an_unknown_queue_says_so(cli: Cli) -> None:
    cli.submit("mail", queue="out")
    with terminal(cli, "task", "tail", "--queue", "uot") as shown:
        shown.until("following")
        assert "there is no queue 'uot' (did you mean 'out'?)" in plain(shown.screen)


def test_markup_and_control_characters_are_text(cli: Cli) -> None:
    cli.submit("mail")
    cli.end(Ending.DEAD, "mail", error=ErrorInfo("ValueError", "[bold]x[/nope]\x1b[2J\x07"))
    for command in (["dead", "list"], ["dead", "list", "--json"], ["task", "list"]):
        with terminal(cli, *command) as shown:
            assert shown.end() == 0, shown.screen
            assert "[bold]x[/nope]" in shown.screen
            assert "\x1b[2J" not in shown.screen
            assert "\x07" not in shown.screen


def test_it_asks_and_takes_yes(cli: Cli) -> None:
    cli.submit("mail", "mail")
    with terminal(cli, "task", "cancel", "--type", "mail", answer="y\n") as shown:
        assert shown.end() == 0
        assert "Cancel 2 tasks? [y/N]" in shown.screen
        assert "2 tasks cancelled" in shown.screen


def test_it_asks_and_takes_no(cli: Cli) -> None:
    [id] = cli.submit("mail")
    for answer in ("n\n", "\n"):
        with terminal(cli, "task", "cancel", id, answer=answer) as shown:
            assert shown.end() == 1
            assert "nothing was changed" in shown.screen
    assert [task["state"] for task in cli.ok("task", "list", "--json").objects] == ["pending"]


def test_the_end_of_input_at_the_question_changes_nothing(cli: Cli) -> None:
    [id] = cli.submit("mail")
    with terminal(cli, "task", "cancel", id, answer="\x04") as shown:
        assert shown.end() == 130
        assert "taskmill: interrupted" in shown.screen
    assert [task["state"] for task in cli.ok("task", "list", "--json").objects] == ["pending"]


def test_a_live_table_of_tasks_follows_what_happens(cli: Cli) -> None:
    [first] = cli.submit("mail")
    with terminal(cli, "task", "list", "--watch") as shown:
        shown.until(first)
        [second] = cli.submit("report")
        shown.until(second)
        shown.process.send_signal(signal.SIGINT)
        assert shown.end() == 130
        assert "Traceback" not in shown.screen


def test_a_live_table_of_queues(cli: Cli) -> None:
    cli.submit("mail", queue="out")
    with terminal(cli, "queue", "list", "--watch") as shown:
        shown.until("out")
        shown.process.send_signal(signal.SIGINT)
        assert shown.end() == 130


def test_a_live_view_of_events(cli: Cli) -> None:
    [id] = cli.submit("mail")
    with terminal(cli, "task", "tail", id) as shown:
        shown.until("following")
        cli.end(Ending.COMPLETED, "mail")
        assert shown.end() == 0
        assert re.search(rf"task\.completed +{id}", plain(shown.screen))


def test_a_bar_for_long_work(cli: Cli) -> None:
    with terminal(cli, "submit", "mail", "--queue", "out", "--count", "3000") as shown:
        assert shown.end() == 0
        assert "3000/3000" in plain(shown.screen)


def test_other_tables_are_drawn_too(cli: Cli) -> None:
    cli.join("anna", "mail", queue="out")
    cli.ok("schedule", "put", "morning", "@daily", "--type", "mail")
    for command, seen in {"queue list": "out", "workers list": "anna", "schedule list": "morning", "type list": "mail", "config show": "busy_timeout"}.items():
        with terminal(cli, *command.split()) as shown:
            assert shown.end() == 0
            assert seen in shown.screen


def test_json_on_a_terminal_is_json(cli: Cli) -> None:
    cli.submit("mail")
    with terminal(cli, "task", "list", "--json") as shown:
        assert shown.end() == 0
        assert json.loads(shown.screen)["type"] == "mail"
