"""`taskmill queue|type|schedule|workers|check|config|init|version`: each verb on a real store, and what it refuses."""

from __future__ import annotations

import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from taskmill.clock import SystemClock, instant
from taskmill.engine import Ending
from taskmill.task import ErrorInfo
from tests.surfaces.cli_tools import COMMAND, Cli

# Queues and types


def test_queues_with_their_numbers(cli: Cli) -> None:
    cli.submit("charge", queue="mail")
    cli.end(Ending.DEAD, "charge", error=ErrorInfo("ValueError", "no"), queue="mail")
    cli.submit("charge", "charge", queue="mail")
    cli.join("anna", "report")
    rows = {line.split("\t")[0]: line.split("\t") for line in cli.ok("queue", "list").lines}
    assert rows["mail"][1:3] == ["open", "2"]
    assert rows["mail"][7] == "1"
    assert rows["mail"][-1] == "2 without a worker"
    assert rows["default"][-2:] == ["1", ""]
    found = {str(queue["name"]): queue for queue in cli.ok("queue", "list", "--json").objects}
    counts = found["mail"]["counts"]
    assert isinstance(counts, dict)
    assert (counts["pending"], counts["dead"], counts["running"]) == (2, 1, 0)


def test_pausing_and_resuming_a_queue(cli: Cli) -> None:
    cli.submit("charge", queue="mail")
    assert cli.ok("queue", "pause", "mail", "--reason", "provider \x1b[2J is down").out == "mail is paused\n"
    assert cli.ok("queue", "pause", "mail").out == "mail was paused already\n"
    [queue] = cli.ok("queue", "list", "--json").objects
    assert queue["paused"] is True
    assert "\x1b" not in cli.ok("queue", "list").out
    assert cli.ok("queue", "resume", "mail").out == "mail is open again\n"
    again = cli.ok("queue", "resume", "mail")
    assert (again.out, again.err) == ("", "taskmill: mail was not paused\n")


def test_pausing_and_resuming_a_type(cli: Cli) -> None:
    cli.join("anna", "charge", queue="mail")
    assert cli.ok("type", "pause", "charge").out == "charge is paused\n"
    assert cli.ok("type", "list").lines[0].split("\t")[:5] == ["charge", "paused", "mail", "normal", "3"]
    assert cli.ok("type", "resume", "charge").out == "charge is open again\n"
    [found] = cli.ok("type", "list", "--json").objects
    assert (found["name"], found["paused"], found["workers"]) == ("charge", False, 1)


@pytest.mark.parametrize("noun", ["queue", "type"])
@pytest.mark.parametrize("verb", ["pause", "resume"])
def test_a_name_that_nobody_knows(cli: Cli, noun: str, verb: str) -> None:
    cli.join("anna", "mail", queue="mail")
    assert "did you mean 'mail'?" in cli.refused(1, noun, verb, "mial")
    assert "is not a name" in cli.refused(2, noun, verb, "A b")
    assert "Missing argument" in cli.refused(2, noun, verb)


# Schedules


def test_the_life_of_a_schedule(cli: Cli) -> None:
    put = ["schedule", "put", "morning", "0 9 * * MON-FRI", "--type", "report", "--timezone", "Europe/Paris", "--overlap", "skip", "--queue", "slow"]
    said = cli.ok(*put, "--payload", '{"region": 7}', "--tag", "a=1", "--priority", "low", "--expires", "1h")
    assert said.out.startswith("morning fires next at ")
    [info] = cli.ok("schedule", "list", "--json").objects
    assert (info["name"], info["operator"], info["paused"]) == ("morning", True, False)
    schedule = info["schedule"]
    assert isinstance(schedule, dict)
    assert schedule["payload"] == {"region": 7}
    assert schedule["cron"] == {"expression": "0 9 * * MON-FRI", "timezone": "Europe/Paris"}
    assert cli.ok("schedule", "list").lines[0].split("\t")[:5] == ["morning", "open", "report", "0 9 * * MON-FRI", "Europe/Paris"]

    assert cli.ok("schedule", "pause", "morning", "--reason", "holidays").out == "morning is paused\n"
    assert cli.ok("schedule", "pause", "morning").out == "morning was paused already\n"
    assert cli.ok("schedule", "list").lines[0].split("\t")[1] == "paused"
    assert cli.ok("schedule", "resume", "morning").out == "morning fires again\n"
    assert cli.ok("schedule", "resume", "morning").err == "taskmill: morning was not paused\n"

    id = cli.ok("schedule", "trigger", "morning").out.strip()
    assert cli.ok("schedule", "trigger", "morning", "--json").objects[0]["status"] == "created"
    [task] = cli.ok("task", "get", id, "--json").objects
    assert (task["type"], task["queue"], task["payload"], task["priority"]) == ("report", "slow", {"region": 7}, "low")

    assert "add --yes" in cli.refused(2, "schedule", "delete", "morning")
    assert cli.ok("schedule", "delete", "morning", "--dry-run").out == "morning would be deleted\n"
    assert len(cli.ok("schedule", "list").lines) == 1
    assert cli.ok("schedule", "delete", "morning", "--yes").out == "morning is deleted\n"
    assert cli.ok("schedule", "list").lines == []


def test_the_next_times(cli: Cli) -> None:
    cli.ok("schedule", "put", "leap", "0 0 29 2 *", "--type", "report")
    times = cli.ok("schedule", "next", "leap", "-n", "3").lines
    assert len(times) == 3
    assert all("-02-29T00:00:00Z" in time for time in times)
    assert [row["at"] for row in cli.ok("schedule", "next", "leap", "-n", "3", "--json").objects] == times
    assert instant(times[0]) > SystemClock().now()


def test_put_again_changes_unless_it_must_be_new(cli: Cli) -> None:
    cli.ok("schedule", "put", "morning", "@daily", "--type", "report")
    assert "taskmill: " in cli.refused(1, "schedule", "put", "morning", "@hourly", "--type", "report", "--new")
    cli.ok("schedule", "put", "morning", "@hourly", "--type", "report", "--json")
    assert cli.ok("schedule", "list").lines[0].split("\t")[3] == "@hourly"


@pytest.mark.parametrize(
    ("cron", "more", "said"),
    [
        ("* * * *", [], "has 4 fields"),
        ("60 * * * *", [], 'field 1 (minute) "60"'),
        ("*/0 * * * *", [], 'field 1 (minute) "*/0"'),
        ("5-1 * * * *", [], 'field 1 (minute) "5-1"'),
        ("a b c d e", [], 'field 1 (minute) "a"'),
        ("@yearlyy", [], "@yearly"),
        ("", [], "five fields"),
        ("0 0 30 2 *", [], "never"),
        ("@every 0s", [], "cron"),
        ("@daily", ["--timezone", "Mars/Phobos"], "'Mars/Phobos' is no known time zone"),
        ("@daily", ["--timezone", "Europe/Pariss"], 'did you mean "Europe/Paris"?'),
        ("@daily", ["--overlap", "skipp"], "did you mean skip?"),
        ("@daily", ["--misfire", "never"], "is not one of skip, once, all"),
        ("@daily", ["--payload", "{"], "column 2"),
        ("@daily", ["--queue", "A"], "--queue: 'A' is not a name"),
        ("@daily", ["--start", "tomorrow"], "--start: 'tomorrow' is not a time"),
        ("@daily", ["--expires", "0s"], "out of range"),
        ("@daily", ["--tenant", "a\x1bb"], "is not a key"),
    ],
)
def test_a_schedule_that_is_wrong(cli: Cli, cron: str, more: list[str], said: str) -> None:
    assert said in cli.refused(2, "schedule", "put", "morning", cron, "--type", "report", *more)
    assert cli.ok("schedule", "list").lines == []


@pytest.mark.parametrize("verb", ["pause", "resume", "trigger", "next", "delete"])
def test_a_schedule_that_is_not_there(cli: Cli, verb: str) -> None:
    cli.ok("schedule", "put", "morning", "@daily", "--type", "report")
    assert "did you mean 'morning'?" in cli.refused(1, "schedule", verb, "mornin", *(["--yes"] if verb == "delete" else []))


@pytest.mark.parametrize("more", [["--yes"], ["--dry-run"]], ids=str)
def test_a_schedule_of_the_code_is_not_deleted_by_hand(cli: Cli, more: list[str]) -> None:
    cli.do(lambda engine: engine.put("schedule", "morning", b'{"type": "report", "cron": "@daily"}', operator=False))
    assert "morning is declared by code" in cli.refused(1, "schedule", "delete", "morning", *more)
    assert len(cli.ok("schedule", "list").lines) == 1


def test_triggering_a_type_that_nobody_has(cli: Cli) -> None:
    cli.ok("schedule", "put", "morning", "@daily", "--type", "report")
    assert "no worker has registered the type 'report'" in cli.refused(2, "schedule", "trigger", "morning")


# Workers


def commands(cli: Cli) -> dict[object, object]:
    return {worker["id"]: worker["command"] for worker in cli.ok("workers", "list", "--json").objects}


def test_workers_and_what_they_are_told(cli: Cli) -> None:
    cli.join("anna", "mail")
    cli.join("ben", "mail", "report")
    rows = [line.split("\t") for line in cli.ok("workers", "list").lines]
    assert [row[:5] for row in rows] == [["anna", "alive", "0", "default", "1"], ["ben", "alive", "0", "default", "2"]]
    assert rows[0][-1] == "host=here"
    assert cli.ok("workers", "pause", "--all").lines == ["anna is told to pause", "ben is told to pause"]
    assert commands(cli) == {"anna": "pause", "ben": "pause"}
    cli.ok("workers", "quiet", "ben")
    assert commands(cli) == {"anna": "pause", "ben": "quiet"}
    assert [line.split("\t")[1] for line in cli.ok("workers", "list").lines] == ["pause", "quiet"]
    cli.ok("workers", "resume", "--all")
    assert commands(cli) == {"anna": None, "ben": None}


def test_stopping_workers_is_asked_for(cli: Cli) -> None:
    assert cli.ok("workers", "stop", "--all", "--yes").out == "no worker is alive\n"
    cli.join("anna", "mail")
    assert "stop anna, with 0 tasks running? Nobody can be asked here" in cli.refused(2, "workers", "stop", "anna")
    assert cli.ok("workers", "stop", "--all", "--dry-run").out == "anna would be stopped, with 0 tasks running\n"
    assert commands(cli) == {"anna": None}
    assert cli.ok("workers", "stop", "anna", "--yes").out == "anna is told to stop\n"
    assert commands(cli) == {"anna": "stop"}


@pytest.mark.parametrize("verb", ["pause", "quiet", "resume", "stop"])
def test_workers_that_are_not_there(cli: Cli, verb: str) -> None:
    cli.join("anna", "mail")
    assert "did you mean anna?" in cli.refused(1, "workers", verb, "ana")
    assert "name workers, or --all" in cli.refused(2, "workers", verb)
    assert "keep one" in cli.refused(2, "workers", verb, "anna", "--all")
    assert commands(cli) == {"anna": None}


# Check, settings, version


def test_check_says_what_is_found(cli: Cli) -> None:
    cli.submit("mail", queue="out")
    cli.ok("queue", "pause", "out")
    said = cli.ok("check")
    assert any(line.startswith("warning paused_queue: the queue out is paused") for line in said.lines)
    assert said.lines[-1].startswith(f"{cli.path}: ")
    [found] = cli.ok("check", "--json").objects
    assert (found["store"], found["ok"]) == (str(cli.path), True)
    findings = found["findings"]
    assert isinstance(findings, list)
    assert "paused_queue" in {finding["code"] for finding in findings}


def test_check_of_something_wrong_is_a_failure(cli: Cli) -> None:
    cli.do(lambda engine: engine.put("schedule", "broken", b'{"type": "x"}'))
    said = cli("check")
    assert said.code == 1
    assert said.lines[0].startswith("error invalid_schedule: ")
    assert cli("check", "--json").objects[0]["ok"] is False


def test_settings_and_where_they_come_from(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASKMILL_CONCURRENCY", "3")
    (cli.folder / "taskmill.toml").write_text('beat = "2s"\nlease = "8s"\nterm = "8s"\n', encoding="utf-8")
    rows = {line.split("\t")[0]: line.split("\t")[1:] for line in cli.ok("config", "show", "--origin").lines}
    assert rows["url"] == [cli.url, "argument url"]
    assert rows["concurrency"] == ["3", "TASKMILL_CONCURRENCY"]
    assert rows["beat"] == ["2s", f"{cli.folder / 'taskmill.toml'} line 1"]
    assert rows["port"] == ["8080", "default"]
    assert cli.ok("config", "show").lines[0].split("\t") == ["url", cli.url]
    [plain] = cli.ok("config", "show", "--json").objects
    assert plain["concurrency"] == "3"
    [told] = cli.ok("config", "show", "--origin", "--json").objects
    assert told["concurrency"] == {"value": "3", "origin": "TASKMILL_CONCURRENCY"}


def test_secrets_are_not_shown(cli: Cli) -> None:
    said = cli.bare("config", "show", "--url", "postgresql://anna:hush@db/tasks")
    assert said.code == 0
    assert "hush" not in said.out
    assert "postgresql://anna:***@db/tasks" in said.out


@pytest.mark.parametrize(
    ("setting", "said"),
    [("conccurency = 3\n", "did you mean concurrency?"), ("port = 70000\n", "out of range"), ("beat = 1\nbeat = 2\n", "occurs twice"), ("\tx\n", "not TOML")],
)
def test_settings_that_are_wrong(cli: Cli, setting: str, said: str) -> None:
    (cli.folder / "taskmill.toml").write_text(setting, encoding="utf-8")
    answer = cli.bare("config", "show")
    assert (answer.code, answer.out) == (2, "")
    assert said in answer.err
    assert answer.err.count("\n") == 1


@pytest.mark.parametrize(("given", "code"), [("5m", 0), ("5", 0), ("abc", 2)])
def test_a_variable_is_named_when_it_is_wrong(cli: Cli, given: str, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASKMILL_TIMEOUT", given)
    said = cli.bare("task", "list", "--url", cli.url)
    assert said.code == code
    assert ("TASKMILL_TIMEOUT" in said.err) is (code == 2)


def test_version_as_json(cli: Cli) -> None:
    assert cli.bare("version", "--json").objects == [{"taskmill": metadata.version("taskmill"), "python": platform.python_version()}]


# Init


def test_init_writes_an_app_and_settings_that_say_what_to_do(cli: Cli) -> None:
    said = cli.bare("init", "my shop")
    assert (said.code, said.err) == (0, "")
    assert said.lines[:2] == [f"wrote {Path('my shop') / name}" for name in ("app.py", "taskmill.toml")]
    assert "  cd 'my shop'" in said.lines
    assert any("taskmill dev app.py" in line for line in said.lines)
    folder = cli.folder / "my shop"
    script = "from taskmill.loading import load; app = load('app.py'); print(sorted(app.types), sorted(app.schedules), app.settings.url)"
    loaded = subprocess.run([sys.executable, "-W", "error", "-c", script], cwd=folder, capture_output=True, text=True, check=True)
    assert loaded.stdout == "['greet', 'heartbeat'] ['heartbeat'] sqlite:///taskmill.db\n"
    done = subprocess.run([*COMMAND, "config", "show", "--origin"], cwd=folder, capture_output=True, text=True, check=True)
    assert f"url\tsqlite:///taskmill.db\t{folder / 'taskmill.toml'} line 2" in done.stdout.splitlines()


def test_init_here_needs_no_way(cli: Cli) -> None:
    assert not any(line.startswith("  cd") for line in cli.bare("init").lines)


@pytest.mark.parametrize("name", ["app.py", "taskmill.toml"])
def test_init_never_writes_over_anything_unasked(cli: Cli, name: str) -> None:
    (cli.folder / name).write_text("mine", encoding="utf-8")
    before = sorted(cli.folder.iterdir())
    said = cli.bare("init")
    assert (said.code, said.out) == (1, "")
    assert f"{name} in {cli.folder} would be written over" in said.err
    assert "--force" in said.err
    assert sorted(cli.folder.iterdir()) == before
    assert (cli.folder / name).read_text(encoding="utf-8") == "mine"
    assert cli.bare("init", "--force").code == 0
    assert "taskmill" in (cli.folder / name).read_text(encoding="utf-8")


def test_init_into_a_file(cli: Cli) -> None:
    (cli.folder / "file").write_text("", encoding="utf-8")
    said = cli.bare("init", "file")
    assert (said.code, said.err.count("\n")) == (1, 1)
