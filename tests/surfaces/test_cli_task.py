"""`taskmill task list|get|attempts|wait|tail` and `taskmill dead list`: what is shown of tasks, to people and to programs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from functools import partial
from typing import cast

import pytest

from taskmill.cli.tail import Wanted
from taskmill.cli.tail import follow as follow_events
from taskmill.clock import HOUR, SystemClock, rfc3339
from taskmill.engine import Checkpoint, Ending, Engine, Joining, Room, Stream, Target
from taskmill.events import Event, Kind
from taskmill.operations import Operations
from taskmill.task import ErrorInfo, TypeSettings
from tests.surfaces.cli_tools import COMMAND, Cli

UNKNOWN = "018f3c9e-5d7a-7b64-9d2c-0f6a1b2c3d4e"
HOSTILE = "\x1b[2J[red]fake[/red]\r\n\u202eline"


# Lists


def test_a_list_is_newest_first_a_line_each(cli: Cli) -> None:
    ids = cli.submit("first", "second", queue="mail")
    said = cli.ok("task", "list")
    assert [line.split("\t")[:5] for line in said.lines] == [[ids[1], "second", "mail", "pending", "0"], [ids[0], "first", "mail", "pending", "0"]]
    assert said.err == ""


def test_a_list_as_json_has_times_and_values_as_people_read_them(cli: Cli) -> None:
    cli.submit("mail", payload=b'{"to": ["a", 1.5, null]}', tags={"customer": "acme"})
    [task] = cli.ok("task", "list", "--json").objects
    assert task["payload"] == {"to": ["a", 1.5, None]}
    assert (task["priority"], task["timeout"], task["tags"]) == ("normal", "1h", {"customer": "acme"})
    assert str(task["created_at"]).endswith("Z")


def test_each_filter_narrows(cli: Cli) -> None:
    [mail] = cli.submit("mail", queue="out", tags={"customer": "acme", "kind": "x"})
    [later] = cli.submit("report", delay=HOUR)
    for filtering, expected in {
        ("--type", "mail"): [mail],
        ("--type", "mail", "--type", "report"): [later, mail],
        ("--queue", "out"): [mail],
        ("--state", "scheduled"): [later],
        ("--tag", "customer=acme", "--tag", "kind=x"): [mail],
        ("--tag", "customer=acme", "--tag", "kind=y"): [],
        ("--tenant", "nobody"): [],
        ("--since", "10m"): [later, mail],
        ("--until", "10m"): [],
        ("--since", rfc3339(SystemClock().now() + HOUR)): [],
    }.items():
        assert [line.split("\t")[0] for line in cli.ok("task", "list", *filtering).lines] == expected, filtering


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--state", "ded"], 2, "did you mean dead?"),
        (["--state", "high "], 2, "is no state"),
        (["--type", "A b"], 2, "--type: 'A b' is not a name"),
        (["--type", "mial"], 1, "did you mean 'mail'?"),
        (["--queue", "defualt"], 1, "did you mean 'default'?"),
        (["--tag", "customer"], 2, "--tag: 'customer' is not a tag (write it as name=value)"),
        (["--tag", "a=1", "--tag", "a=2"], 2, "given two values"),
        (["--since", "yesterday"], 2, "--since: 'yesterday' is not a time (RFC 3339"),
        (["--since", "2026-02-30T00:00:00Z"], 2, "is not a time"),
        (["--since", "2026-01-01T00:00:00"], 2, "has no time zone"),
        (["--since", "1m", "--until", "2m"], 2, "no time lies between"),
        (["--limit", "0"], 2, "--limit"),
        (["--watch"], 2, "--watch draws on a terminal"),
        (["--watch", "--json"], 2, "--watch draws on a terminal"),
        (["extra"], 2, "unexpected extra argument"),
        (["--stat", "dead"], 2, "--state"),
    ],
    ids=str,
)
def test_a_filter_that_is_wrong(cli: Cli, arguments: list[str], code: int, said: str) -> None:
    cli.submit("mail")
    assert said in cli.refused(code, "task", "list", *arguments)


def test_thousands_come_page_after_page_and_each_once(cli: Cli) -> None:
    ids = cli.submit(*["bulk"] * 1_203)
    assert [str(task["id"]) for task in cli.ok("task", "list", "--json").objects] == ids[::-1]
    assert [line.split("\t")[0] for line in cli.ok("task", "list", "--limit", "601").lines] == ids[:-602:-1]


def test_a_reader_that_goes_away_in_the_middle_is_met_with_silence(cli: Cli) -> None:
    cli.submit(*["bulk"] * 1_000)
    process = cli.start("task", "list", "--json")
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == ""
    assert process.wait() in {1, -signal.SIGPIPE}
    for pipe in (process.stdin, process.stderr):
        assert pipe is not None
        pipe.close()


def test_dead_letters_say_what_they_died_of(cli: Cli) -> None:
    cli.submit("charge", "mail")
    [charge] = cli.end(Ending.DEAD, "charge", error=ErrorInfo("ValueError", "no such card"))
    [line] = cli.ok("dead", "list").lines
    assert line.split("\t")[0] == charge
    assert line.endswith("ValueError: no such card")
    assert [task["id"] for task in cli.ok("dead", "list", "--type", "charge", "--json").objects] == [charge]
    assert cli.ok("dead", "list", "--type", "mail").lines == []


# One task


def test_everything_about_a_task(cli: Cli) -> None:
    cli.submit("charge", payload=b'{"card": 7}')
    [id] = cli.end(Ending.DEAD, "charge", error=ErrorInfo("ValueError", "no such card", "Traceback:\n  line 1\nValueError: no such card"))
    said = cli.ok("task", "get", id)
    assert f"id:                 {id}" in said.lines
    assert 'payload:            {"card":7}' in said.lines
    assert said.lines[-4:] == ["traceback:", "  Traceback:", "    line 1", "  ValueError: no such card"]
    [task] = cli.ok("task", "get", id, "--json").objects
    assert task["error"] == {"code": "ValueError", "message": "no such card", "traceback": "Traceback:\n  line 1\nValueError: no such card"}


def test_attempts(cli: Cli) -> None:
    [id] = cli.submit("charge")
    assert cli.ok("task", "attempts", id).out == ""
    cli.end(Ending.RELEASED, "charge")
    cli.end(Ending.DEAD, "charge", error=ErrorInfo("ValueError", "no"))
    assert [line.split("\t")[:2] for line in cli.ok("task", "attempts", id).lines] == [["1", "released"], ["2", "failed"]]
    assert [attempt["number"] for attempt in cli.ok("task", "attempts", id, "--json").objects] == [1, 2]


@pytest.mark.parametrize("verb", ["get", "attempts", "wait"])
@pytest.mark.parametrize(
    ("id", "code", "said"), [(UNKNOWN, 1, UNKNOWN), ("nonsense", 2, "is not an id"), ("", 2, "is not an id"), ("\x1b[2J", 2, "is not an id")]
)
def test_a_task_that_is_not_there(cli: Cli, verb: str, id: str, code: int, said: str) -> None:
    assert said in cli.refused(code, "task", verb, id)


def test_a_record_that_is_gone_is_told_from_one_that_never_was(cli: Cli) -> None:
    cli.submit("mail")
    [id] = cli.end(Ending.COMPLETED, "mail")
    cli.ok("task", "delete", id, "--yes")
    assert "is gone; it was completed" in cli.refused(1, "task", "get", id)


def test_hostile_text_draws_nothing(cli: Cli) -> None:
    cli.submit("mail", payload=json.dumps({"text": HOSTILE}).encode())
    [id] = cli.end(Ending.DEAD, "mail", error=ErrorInfo("ValueError", HOSTILE, f"Traceback\n{HOSTILE}"))
    for arguments in (["task", "list"], ["task", "get", id], ["task", "attempts", id], ["task", "wait", id], ["dead", "list"], ["task", "get", id, "--json"]):
        out = cli(*arguments).out
        assert "[red]fake[/red]" in out
        assert not {"\x1b", "\r", "\u202e"} & set(out), arguments
    assert json.loads(cli.ok("task", "get", id, "--json").out)["payload"] == {"text": HOSTILE}


# Waiting


def test_waiting_for_what_completed(cli: Cli) -> None:
    cli.submit("mail", "mail")
    ids = cli.end(Ending.COMPLETED, "mail", result=b'"sent"')
    assert cli.ok("task", "wait", *ids).lines == [f'{id}\tcompleted\t"sent"' for id in ids]
    assert [task["result"] for task in cli.ok("task", "wait", *ids, "--json").objects] == ["sent", "sent"]


def test_waiting_for_what_failed(cli: Cli) -> None:
    cli.submit("mail")
    [id] = cli.end(Ending.DEAD, "mail", error=ErrorInfo("ValueError", "no"))
    said = cli("task", "wait", id)
    assert (said.code, said.lines) == (1, [f"{id}\tdead\tValueError: no"])


@pytest.mark.parametrize("timeout", ["0", "0s", "1ms"])
def test_waiting_ends_with_the_time(cli: Cli, timeout: str) -> None:
    [id] = cli.submit("mail")
    said = cli("task", "wait", id, "--timeout", timeout)
    assert (said.code, said.out) == (1, "")
    assert "1 of 1 not ended after" in said.err


@pytest.mark.parametrize("timeout", ["soon", "-1s", "nan", "1e9"])
def test_a_timeout_that_is_none(cli: Cli, timeout: str) -> None:
    assert "--timeout" in cli.refused(2, "task", "wait", UNKNOWN, f"--timeout={timeout}")


def test_waiting_ends_when_another_program_ends_the_task(cli: Cli) -> None:
    [id] = cli.submit("mail")
    process = cli.start("task", "wait", id, "--json")
    try:
        cli.end(Ending.COMPLETED, "mail", result=b"7")
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
    assert (process.returncode, err) == (0, "")
    assert json.loads(out)["result"] == 7


def test_ctrl_c_while_waiting_ends_with_130(cli: Cli) -> None:
    [id] = cli.submit("mail")
    with following(cli, id) as process:
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err.strip()) == (130, "", "taskmill: interrupted")


# Following


@contextmanager
def following(cli: Cli, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A tail that is listening; it is gone afterwards."""
    with cli.start("task", "tail", *arguments) as process:
        try:
            assert process.stderr is not None
            assert process.stderr.readline() == "taskmill: following; Ctrl-C ends it\n"
            yield process
        finally:
            process.kill()


def test_a_tail_of_ids_shows_their_life_and_ends_with_them(cli: Cli) -> None:
    [id] = cli.submit("mail")
    with following(cli, id, "--json") as process:
        cli.submit("other")
        cli.end(Ending.COMPLETED, "mail", "other")
        out, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (0, "")
    events = [json.loads(line) for line in out.splitlines()]
    assert {event["subject"] for event in events} == {id}
    assert [event["kind"] for event in events] == ["task.started", "task.completed"]


def test_a_tail_of_a_queue_in_lines(cli: Cli) -> None:
    cli.submit("mail", queue="mail")
    with following(cli, "--queue", "mail") as process:
        cli.submit("other", queue="default")
        [id] = cli.submit("mail", queue="mail")
        assert process.stdout is not None
        line = process.stdout.readline().rstrip("\n").split("\t")
        assert line[1:3] == ["task.submitted", id]
        assert "queue=mail" in line[3]
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)


def test_a_tail_of_tasks_that_have_ended_ends(cli: Cli) -> None:
    cli.submit("mail")
    [id] = cli.end(Ending.COMPLETED, "mail")
    said = cli.ok("task", "tail", id)
    assert (said.out, said.err) == ("", "taskmill: all of these tasks have ended\n")


def test_a_tail_of_an_unknown_task(cli: Cli) -> None:
    assert UNKNOWN in cli.refused(1, "task", "tail", UNKNOWN)


@pytest.mark.parametrize("as_json", [True, False])
def test_a_gap_is_shown_and_what_ended_in_it_is_seen(cli: Cli, as_json: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """The task ends while events are lost: the tail shows `resync`, looks again, and ends."""
    [id] = cli.submit("mail")

    async def events(engine: Engine) -> AsyncIterator[Event]:
        await engine.cancel([Target(id)])
        yield Event(kind=Kind.RESYNC, subject="")

    async def work(engine: Engine) -> None:
        stream = cast("Stream[Event]", events(engine))
        await follow_events(Operations(engine), stream, Wanted(ids=(id,)), as_json=as_json)

    cli.do(work)
    said = capsys.readouterr()
    assert said.out.count("\n") == 1
    assert (json.loads(said.out)["kind"] == "resync") if as_json else ("some events were missed" in said.out)


def test_a_stream_of_another_encoding_gets_escapes(cli: Cli) -> None:
    cli.submit("mail", payload='{"name": "Zoë 🚀"}'.encode())
    environment = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    command = [*COMMAND, "task", "get", cli.ids()[0], "--url", cli.url]
    done = subprocess.run([*command, "--json"], env=environment, capture_output=True, encoding="latin-1", check=False)
    assert (done.returncode, json.loads(done.stdout)["payload"]) == (0, {"name": "Zoë 🚀"})
    done = subprocess.run(command, env=environment, capture_output=True, encoding="latin-1", check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert '{"name":"Zoë \\U0001f680"}' in done.stdout


def test_a_claimed_task_is_told_from_one_that_runs(cli: Cli) -> None:
    [id] = cli.submit("work")

    async def claimed(engine: Engine, *, begun: bool) -> None:
        await engine.join(Joining(worker="w", queues=("default",), types={"work": TypeSettings()}))
        [task] = (await engine.claim("w", 1, ["default"], Room(1))).tasks
        if begun:
            assert await engine.checkpoint([Checkpoint(task=task.id, worker="w", token=task.token, started_after=0)]) == ()

    for begun, note in ((False, "claimed, not begun"), (True, "")):
        cli.do(partial(claimed, begun=begun))
        assert cli.ok("task", "list").lines[0].split("\t")[-1] == note
        assert (cli.ok("task", "get", id, "--json").objects[0]["started_at"] is not None) is begun
