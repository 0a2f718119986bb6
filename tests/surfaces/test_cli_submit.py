"""`taskmill submit`: payloads from everywhere, options, waiting, and what is refused."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
import time

import pytest

from taskmill.clock import HOUR, MINUTE, SECOND, SystemClock, instant
from taskmill.codec import PAYLOAD_LIMIT
from taskmill.engine import Ending, Engine
from taskmill.task import ErrorInfo, Priority, Task, new_id
from tests.surfaces.cli_tools import COMMAND, Cli


def stored(cli: Cli) -> list[Task]:
    async def look(engine: Engine) -> list[Task]:
        return list((await engine.list(n=1_000)).tasks)

    return cli.do(look)


def test_by_name_with_every_option(cli: Cli) -> None:
    options = ["--priority", "high", "--idempotency-key", "k", "--tag", "a=1", "--tag", "b=2", "--tenant", "acme", "--delay", "10m"]
    said = cli.ok("submit", "send_welcome", '{"user_id": 42}', "--queue", "mail", *options)
    [task] = stored(cli)
    assert said.out == f"{task.id}\n"
    assert (task.type, task.queue, task.payload) == ("send_welcome", "mail", b'{"user_id":42}')
    assert (task.priority, task.idempotency_key, task.tags, task.tenant) == (Priority.HIGH, "k", {"a": "1", "b": "2"}, "acme")
    assert 590 * SECOND < task.run_at - SystemClock().now() <= 600 * SECOND


def test_of_a_type_that_a_worker_has(cli: Cli) -> None:
    cli.join("anna", "mail", queue="out")
    assert cli.ok("submit", "mail", "--run-at", "2999-01-01T00:00:00+01:00", "--json").objects[0]["status"] == "created"
    [task] = stored(cli)
    assert (task.queue, task.payload, task.run_at) == ("out", b"null", instant("2998-12-31T23:00:00Z"))


def test_a_type_that_nobody_has_names_the_nearest_and_the_way_out(cli: Cli) -> None:
    cli.join("anna", "send_welcome")
    said = cli.refused(2, "submit", "send_welcom", "{}")
    assert "did you mean send_welcome?" in said
    assert "--queue" in said


def test_the_same_key_gives_the_same_task(cli: Cli) -> None:
    first = cli.ok("submit", "mail", "1", "--queue", "out", "--idempotency-key", "k").out
    again = cli.ok("submit", "mail", "1", "--queue", "out", "--idempotency-key", "k")
    assert again.out == first
    assert "duplicate" in again.err
    other = cli.refused(1, "submit", "mail", "2", "--queue", "out", "--idempotency-key", "k")
    assert first.strip() in other


def test_many(cli: Cli) -> None:
    said = cli.ok("submit", "mail", '{"n": 1}', "--queue", "out", "--count", "1200")
    assert sorted(said.lines) == sorted(cli.ids())
    assert len(set(said.lines)) == 1_200


@pytest.mark.parametrize("text", ['{"n": 1}', ' \n{"n":\t1}\n'])
def test_from_a_file_and_from_stdin(cli: Cli, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (cli.folder / "payload.json").write_text(text, encoding="utf-8")
    cli.ok("submit", "mail", "@payload.json", "--queue", "out")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    cli.ok("submit", "mail", "-", "--queue", "out")
    assert [task.payload for task in stored(cli)] == [b'{"n":1}', b'{"n":1}']


def test_a_file_that_cannot_be_read_is_named(cli: Cli) -> None:
    (cli.folder / "folder").mkdir()
    assert cli.refused(1, "submit", "mail", "@missing.json", "--queue", "out") == "taskmill: missing.json: No such file or directory"
    assert cli.refused(1, "submit", "mail", "@folder", "--queue", "out") == "taskmill: folder: Is a directory"
    assert cli.refused(1, "submit", "mail", "@", "--queue", "out").startswith("taskmill: ")


def test_stdin_that_is_closed_is_named(cli: Cli) -> None:
    script = "import os, sys; os.close(0); os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    arguments = [sys.executable, "-c", script, *COMMAND[1:], "submit", "mail", "-", "--queue", "out", "--url", cli.url]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("taskmill: -: stdin ")
    assert done.stderr.count("\n") == 1
    assert cli.ids() == []


@pytest.mark.parametrize(
    ("payload", "said"),
    [
        ("{", "column 2"),
        ('{"a": 1,}', "column 9"),
        ("", "it is empty"),
        ("nope", "column 1"),
        ('{"a": 1, "a": 2}', "occurs twice"),
        ("NaN", "finite"),
        ("1e999", "finite"),
        ("9" * 5_000, "outside of"),
        ('"\\u0000"', "U+0000"),
        ('"\\ud800"', "surrogate"),
        ("[" * 100_000, "nested deeper"),
        (json.dumps("x" * PAYLOAD_LIMIT), "the limit is"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_json_that_is_wrong(cli: Cli, payload: str, said: str) -> None:
    (cli.folder / "payload.json").write_text(payload, encoding="utf-8")
    assert said in cli.refused(2, "submit", "mail", "@payload.json", "--queue", "out")
    if len(payload) < 100_000:
        assert said in cli.refused(2, "submit", "mail", payload, "--queue", "out")


def test_a_file_in_another_encoding(cli: Cli) -> None:
    (cli.folder / "payload.json").write_bytes('{"a": "é"}'.encode("utf-16"))
    assert "is not UTF-8" in cli.refused(2, "submit", "mail", "@payload.json", "--queue", "out")


def test_a_file_without_an_end_is_read_no_further_than_needed(cli: Cli) -> None:
    assert "payload" in cli.refused(2, "submit", "mail", "@/dev/zero", "--queue", "out")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["../../etc"], "is not a name"),
        (["é"], "is not a name"),
        (["a\nb"], "is not a name"),
        ([""], "is not a name"),
        (["x" * 300], "is not a name"),
        (["mail", "{}", "--priority", "higg"], "did you mean high?"),
        (["mail", "{}", "--priority", "high "], "did you mean high?"),
        (["mail", "{}", "--priority", "-1"], "is not one of"),
        (["mail", "{}", "--delay", "soon"], "--delay: 'soon' is not a duration"),
        (["mail", "{}", "--delay", "999999d"], "too long"),
        (["mail", "{}", "--run-at", "2026-02-30T00:00:00Z"], "is not a time"),
        (["mail", "{}", "--run-at", "10000-01-01T00:00:00Z"], "is not a time"),
        (["mail", "{}", "--run-at", "2026-01-01T00:00:00"], "has no time zone"),
        (["mail", "{}", "--delay", "1s", "--run-at", "2026-01-01T00:00:00Z"], "keep one"),
        (["mail", "{}", "--idempotency-key", ""], "is not a key"),
        (["mail", "{}", "--idempotency-key", "k" * 257], "is not a key"),
        (["mail", "{}", "--idempotency-key", "a\x1bb"], "is not a key"),
        (["mail", "{}", "--tag", "__proto__=1"], "is not a name"),
        (["mail", "{}", "--tag", "a=" + "x" * 10_000], "is not a key"),
        (["mail", "{}", "--count", "0"], "--count"),
        (["mail", "{}", "--count", "2", "--idempotency-key", "k"], "one key gives one task"),
        (["mail", "{}", "--timeout", "3s"], "add --wait"),
        (["mail", "{}", "--queue", "A"], "--queue: 'A' is not a name"),
        (["mail", "{}", "more"], "unexpected extra argument"),
        (["mail", "{}", "--prioritty", "high"], "--priority"),
        ([], "Missing argument 'TYPE'"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "",
)
def test_options_that_are_wrong(cli: Cli, arguments: list[str], said: str) -> None:
    assert said in cli.refused(2, "submit", *arguments, *([] if "--queue" in arguments else ["--queue", "out"]))


def test_waiting_for_the_end(cli: Cli) -> None:
    process = cli.start("submit", "mail", "{}", "--queue", "default", "--wait")
    try:
        assert process.stdout is not None
        id = process.stdout.readline().strip()
        assert cli.end(Ending.COMPLETED, "mail", result=b'"sent"') == [id]
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
    assert (process.returncode, out, err) == (0, f'{id}\tcompleted\t"sent"\n', "")


def test_waiting_no_longer_than_said(cli: Cli) -> None:
    said = cli("submit", "mail", "--queue", "out", "--wait", "--timeout", "1ms")
    assert said.code == 1
    assert "1 of 1 not ended after 1ms" in said.err
    assert cli.ids() == said.lines


def test_waiting_as_json_gives_the_whole_task(cli: Cli) -> None:
    """Of a key whose task has ended already, so there is nothing to wait for."""
    arguments = ("submit", "mail", "{}", "--queue", "default", "--idempotency-key", "k")
    cli.ok(*arguments)
    [id] = cli.end(Ending.DEAD, "mail", error=ErrorInfo("ValueError", "no"))
    said = cli(*arguments, "--wait", "--json")
    [task] = said.objects
    assert (said.code, task["id"], task["state"]) == (1, id, "dead")


# By an app


APP = """
from taskmill import App, Retry

app = App("sqlite:///store.db")


@app.task(queue="mail", priority="high", retry=Retry.fixed("1s", max_retries=7), timeout="30s")
async def send_welcome(user_id: int, copies: int = 1) -> str:
    return f"sent to {user_id}"
"""


@pytest.fixture
def by_app(cli: Cli) -> list[str]:
    (cli.folder / "tasks_of_shop.py").write_text(APP, encoding="utf-8")
    return ["submit", "--app", "tasks_of_shop.py", "send_welcome"]


def test_by_an_app_it_gets_what_the_app_declares(cli: Cli, by_app: list[str]) -> None:
    said = cli.bare(*by_app, '{"user_id": 42}')
    assert (said.code, said.err) == (0, "")
    [task] = stored(cli)
    assert said.lines == [task.id]
    assert (task.queue, task.priority, task.retry.max_retries, task.timeout) == ("mail", Priority.HIGH, 7, 30 * SECOND)


def test_by_an_app_options_go_before_what_it_declares(cli: Cli, by_app: list[str]) -> None:
    said = cli.bare(*by_app, '{"user_id": 42}', "--priority", "low", "--queue", "slow", "--tag", "a=1", "--count", "3", "--json")
    assert [answer["status"] for answer in said.objects] == ["created"] * 3
    assert [(task.queue, task.priority, task.tags) for task in stored(cli)] == [("slow", Priority.LOW, {"a": "1"})] * 3


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["send_welcome", '{"user_id": "x"}'], "user_id"),
        (["send_welcome", "{}"], "user_id"),
        (["send_welcome", '{"user_id": 1, "usr": 2}'], "usr"),
        (["send_welcom", "{}"], "did you mean send_welcome?"),
        (["nothing_like_it", "{}"], "it has send_welcome"),
    ],
)
def test_by_an_app_wrong_arguments_are_named(cli: Cli, by_app: list[str], more: list[str], said: str) -> None:
    assert said in cli.refused(2, *by_app[:-1], *more)


def test_an_app_that_is_not_there(cli: Cli, by_app: list[str]) -> None:
    assert "tasks_of_shopp.py" in cli.refused(2, "submit", "--app", "tasks_of_shopp.py", "send_welcome", "{}")


def test_an_id_tasks_to_wait_for_a_unique_key_and_a_deadline(cli: Cli) -> None:
    [first] = cli.submit("mail", queue="out")
    id = new_id()
    arguments = ["submit", "mail", "{}", "--queue", "out", "--id", id, "--after", first, "--unique", "mail-eu", "--expires", "2h"]
    assert cli.ok(*arguments).out == f"{id}\n"
    [task] = cli.ok("task", "get", id, "--json").objects
    assert (task["state"], task["open_edges"], task["unique"]) == ("waiting", 1, {"key": "mail-eu", "until": "ended", "on_conflict": "keep"})
    assert instant(str(task["expires_at"])) - instant(str(task["created_at"])) == pytest.approx(2 * HOUR, abs=MINUTE)
    again = cli.ok("submit", "mail", "{}", "--queue", "out", "--unique", "mail-eu")
    assert again.out == f"{id}\n"
    assert "was there before" in again.err
    assert len(cli.ids()) == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--id", "mine"], "--id"),
        (["--after", "other"], "--after"),
        (["--unique", ""], "is not a key"),
        (["--expires", "soon"], "--expires"),
        (["--count", "2", "--unique", "k"], "one key gives one task"),
        (["--count", "2", "--id", "00000000-0000-7000-8000-000000000000"], "one key gives one task"),
    ],
)
def test_such_options_that_are_wrong(cli: Cli, arguments: list[str], said: str) -> None:
    assert said in cli.refused(2, "submit", "mail", "{}", "--queue", "out", *arguments)


def test_ctrl_c_in_the_middle_of_many_says_how_many_were_stored(cli: Cli) -> None:
    """What it prints is what the store has, and where to go on."""
    process = cli.start("submit", "mail", "{}", "--queue", "out", "--count", "500000")
    until = time.monotonic() + 60
    while not cli.ids() and time.monotonic() < until:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    ids = cli.ids()
    assert process.returncode == 130
    assert sorted(out.split()) == sorted(ids)
    assert f"{len(ids):,} of 500,000 tasks were stored, their ids stand above; go on with --count {500_000 - len(ids)}" in err
    assert "interrupted" in err
