"""Every example runs, ends, and says what its reader was promised."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers.redis import RedisServer

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = {
    "engine_tour.py": [
        "Two with the same idempotency key: created, and duplicate of the same task (one id).",
        "anna has room for three and gets: critical mail, high mail, welcome mail.",
        "anna has room for ten and gets: sms 1, sms 2, sms 3.",
        "They are done at once, and ben gets: nothing.",
        "anna gets: import 1, import 2; ben gets: nothing.",
        "page 1 is completed; the report is waiting.",
        "page 2 is completed; the report is pending.",
        "Attempt 2 fails: the charge is dead.",
        "Now it is cancelled.",
        "carl is found dead, and the video is pending again.",
        "carl was only cut off, and reports his result late: refused, stale_lease. Nothing is written twice.",
        "He marks it paid and completes the task in one commit. Orders now: 2 (paid: True).",
        "anna gets: reminder; it is completed.",
        "2 cancelled, 22 completed.",
    ],
    "quickstart.py": ["result: sent to 42", "at first: scheduled", "many: [0, 2, 4, 6, 8]", "by name: 3"],
    "retries.py": [
        "flaky: worked in attempt 3",
        "hopeless: the task is dead: ValueError: wrong again",
        "no_such_user: the task is dead: failed: there is no user 7",
        "refused: the task is dead: PermissionError: not yours",
        "polite: let in",
        "attempt 1: snoozed",
        "run again by hand: 1 task; it ends as dead",
    ],
    "schedules.py": ["morning_report: 0 9 * * MON-FRI (Europe/Paris)", "paused: ['tick']"],
    "limits.py": [
        "7 messages at 3/s took more than 2 s: True",
        "6 conversions, at most at once: 2",
        "mailboxes of ada, at most at once: 1",
        "a second newsletter: rate_limited",
    ],
    "idempotency.py": [
        "the same key twice gives one task: True",
        "the same key with another payload: conflict",
        "one live report for each region: True True",
        "or the newest wins: report of north",
    ],
    "edges.py": [
        "all three: 600 words on 3 pages (completed, completed, completed)",
        "one is dead, by default its report is: cancelled",
        "who ignores that gets: 100 words on 2 pages (completed, dead)",
        "a tree: 1000 words on 4 pages (completed, completed, completed, completed)",
    ],
    "transactions.py": ["order 2 is rolled back: an order has a price", "orders: [1]", "tasks: 1; invoice of order 1 is sent"],
    "progress.py": ["pack was done in attempt 1", "drive was done in attempt 1", "unpack is done in attempt 2", "progress: 100%, unpack is done"],
    "live_events.py": ["1 task.submitted", "4 task.failed 1 RuntimeError", "4 task.retrying 1 RuntimeError", "7 task.completed 2", "a carrot cake"],
    "remote_client.py": [
        "result: sent to 42",
        "together: 200 tasks, the last sent to 199",
        "one key, one task: True",
        "the task is dead: failed: there is no user -1",
        "a task that never was: not_found",
        "this key may not read",
        "in all: 204",
    ],
    "sync_callers.py": ["result: cat.png.small", "many: ['0.png.small', '1.png.small', '2.png.small']", "with options: dog.png.small"],
    "isolated.py": [
        "3245 primes, counted in a process of its own: True",
        "endless: the task is dead: timeout: it took longer than its 500ms",
        "falls: the task is dead: poison: its worker died 1 times: its process ended with exit code 3",
        "the worker is the same: True",
    ],
    "arguments.py": [
        "result: Receipt(total=Decimal('100.00'), city='Lyon', day=datetime.date(2030, 1, 31))",
        "refused at once: items[0]",
        "a wrong payload from elsewhere: invalid_arguments, dead after 1 attempt",
    ],
    "tracing.py": [
        "order 7 is confirmed",
        "the handler ran in the same trace: True",
        "so did the task that it submitted: True",
        "spans of this process: send mail, POST /orders",
        "the task carries: traceparent",
    ],
    "lifespan.py": ["lamp: 1990", "used: [1, 2, 3]", "this process has made nothing: {}", "closed"],
}
ON_POSTGRES = {
    "business_transaction.py": [
        "order 2 is rolled back: an order has a price",
        "charged: ['order 1: 1000 cents', 'order 3: 250 cents']",
        "messages: ['new', 'known', 'new']",
        "orders: [(1, 1, True), (3, 1, False)]",
    ],
}
"""Those that need a server, whose URL they are given."""
ON_REDIS = {
    "archive.py": [
        "result: invoice of order 7",
        "deleted from Redis; its result is still: invoice of order 7",
        "attempts: ['completed']",
        "findings: ['archive']",
        "in PostgreSQL: ('invoice', 'completed', '{\"order\":7}', '\"invoice of order 7\"')",
    ],
}
"""Those that need a server of each, whose URLs they are given."""
HELPERS = {"running.py"}


def run(name: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """In a folder of its own, which is also where it gets temporary files."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("TASKMILL_")} | {"TMPDIR": str(folder)}
    command = [sys.executable, "-W", "error", str(ROOT / "examples" / name), *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_every_example_is_tried() -> None:
    assert {path.name for path in (ROOT / "examples").glob("*.py")} == set(EXAMPLES) | set(ON_POSTGRES) | set(ON_REDIS) | HELPERS


def test_every_example_is_in_the_table_of_its_folder() -> None:
    page = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
    assert [name for name in (*EXAMPLES, *ON_POSTGRES, *ON_REDIS) if f"[{name}]({name})" not in page] == []


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs_and_leaves_nothing(name: str, tmp_path: Path) -> None:
    done = run(name, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    said = [line.strip() for line in done.stdout.splitlines()]
    assert [line for line in EXAMPLES[name] if line not in said] == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ON_POSTGRES)
def test_an_example_runs_on_postgres(name: str, tmp_path: Path, postgres_url: str) -> None:
    for _ in range(2):
        done = run(name, tmp_path, postgres_url)
        assert (done.returncode, done.stderr) == (0, "")
        assert [line for line in ON_POSTGRES[name] if line not in done.stdout.splitlines()] == []
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ON_REDIS)
def test_an_example_runs_on_redis_and_postgres(name: str, tmp_path: Path, redis_server: RedisServer, postgres_url: str) -> None:
    for _ in range(2):
        done = run(name, tmp_path, redis_server.url().partition("?")[0], postgres_url)
        assert (done.returncode, done.stderr) == (0, "")
        assert [line for line in ON_REDIS[name] if line not in done.stdout.splitlines()] == []
        assert list(tmp_path.iterdir()) == []
        with redis_server.client() as client:
            assert client.keys("archive-example:*") == []


@pytest.mark.parametrize("name", ON_REDIS)
@pytest.mark.parametrize("arguments", [[], ["redis://h/0"], ["postgresql://a", "redis://b"]])
def test_an_example_that_needs_two_servers_says_so(name: str, arguments: list[str], tmp_path: Path) -> None:
    done = run(name, tmp_path, *arguments)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"python examples/{name} redis://" in done.stderr


@pytest.mark.parametrize("name", ON_POSTGRES)
@pytest.mark.parametrize("arguments", [[], ["sqlite:///shop.db"], ["postgresql://a", "postgresql://b"]])
def test_an_example_that_needs_a_server_says_so(name: str, arguments: list[str], tmp_path: Path) -> None:
    done = run(name, tmp_path, *arguments)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"python examples/{name} postgresql://" in done.stderr


def test_the_tour_on_a_named_file_keeps_it(tmp_path: Path) -> None:
    done = run("engine_tour.py", tmp_path, "shop.db")
    assert (done.returncode, done.stderr) == (0, "")
    command = done.stdout.splitlines()[-1].partition("with: ")[2].split()
    assert command[:3] == ["taskmill", "db", "verify"]
    verified = subprocess.run([sys.executable, "-c", "from taskmill.cli import main; raise SystemExit(main())", *command[1:]], check=False)
    assert verified.returncode == 0
    before = (tmp_path / "shop.db").read_bytes()
    again = run("engine_tour.py", tmp_path, "shop.db")
    assert (again.returncode, again.stdout) == (2, "")
    assert "name a new file" in again.stderr
    assert (tmp_path / "shop.db").read_bytes() == before


@pytest.mark.parametrize("arguments", [["--file"], ["one", "two"]])
def test_the_tour_with_other_arguments_says_how_it_is_run(arguments: list[str], tmp_path: Path) -> None:
    done = run("engine_tour.py", tmp_path, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert "python examples/engine_tour.py" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_tour_has_help(tmp_path: Path) -> None:
    done = run("engine_tour.py", tmp_path, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "python examples/engine_tour.py" in done.stdout
