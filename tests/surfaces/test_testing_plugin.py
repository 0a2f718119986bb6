"""The pytest plugin, in runs of their own: plain tests and async ones, failures and their reports, and what it costs those who do not use it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
APP = """
import asyncio
import pytest
from taskmill import App

app = App("sqlite:///own.db")
seen = []

@app.task
async def on_loop(number: int = 0) -> None:
    seen.append(asyncio.get_running_loop())

@app.task
def wrong() -> None:
    raise ZeroDivisionError("of the handler")

@app.on_stop
async def stop() -> None:
    seen.append(asyncio.get_running_loop())
"""


def run(folder: Path, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_it.py").write_text(APP + code, encoding="utf-8")
    return run_pytest(folder, str(folder), *arguments)


def run_pytest(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("TASKMILL_", "PYTEST_"))}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", "-rA", *arguments]
    return subprocess.run(command, cwd=folder, env={**environment, "PYTHONDONTWRITEBYTECODE": "1"}, capture_output=True, text=True, check=False)


def ended(done: subprocess.CompletedProcess[str], **counts: int) -> None:
    said = {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|error|skipped)", done.stdout.splitlines()[-1])}
    assert said == counts, done.stdout + done.stderr


def test_plain_tests(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
def test_one(taskmill_test):
    test = taskmill_test(app)
    on_loop.sync.submit()
    assert len(test.sync.drain()) == 1

def test_two(taskmill_test):
    test = taskmill_test(app, raise_errors=True)
    assert test.submitted() == []
    wrong.sync.submit()
    with pytest.raises(ZeroDivisionError):
        test.sync.drain()

def test_after_them():
    assert app.home is None
    assert seen[0] is seen[1]
""",
        "-W",
        "error",
        "-p",
        "no:asyncio",
    )
    ended(done, passed=3)
    assert not (tmp_path / "own.db").exists()


ASYNC_TESTS = """
pytestmark = pytest.mark.MARK

async def test_one(taskmill_test):
    test = taskmill_test(app)
    await on_loop.submit()
    assert len(await test.drain()) == 1
    assert seen == [asyncio.get_running_loop()]

@pytest.fixture
def begun(taskmill_test):
    return taskmill_test(app)

async def test_by_a_plain_fixture(begun):
    assert len(seen) == 2 and seen[0] is seen[1], "the hooks did not run on the loop of the test"
    await on_loop.submit()
    await begun.drain()
    assert seen[2] is asyncio.get_running_loop()

async def test_that_does_not_use_what_it_has(begun):
    pass

async def test_that_fails(begun):
    await wrong.submit()
    await begun.drain()
    begun.assert_submitted(on_loop, number=7)

def test_after_them():
    assert app.home is None
"""


def test_async_tests_with_pytest_asyncio(tmp_path: Path) -> None:
    done = run(tmp_path, ASYNC_TESTS.replace("MARK", "asyncio").replace("\ndef test_after", "\n@pytest.mark.filterwarnings('ignore')\ndef test_after"))
    ended(done, passed=4, failed=1)
    assert "Error" not in done.stderr
    assert not (tmp_path / "own.db").exists()


def test_async_tests_with_anyio(tmp_path: Path) -> None:
    code = "@pytest.fixture\ndef anyio_backend():\n    return 'asyncio'\n" + ASYNC_TESTS.replace("MARK", "anyio")
    ended(run(tmp_path, code, "-p", "no:asyncio", "-p", "anyio"), passed=4, failed=1)


def test_a_failed_test_shows_the_attempts_that_failed(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
def test_it(taskmill_test):
    test = taskmill_test(app)
    wrong.sync.submit()
    test.sync.drain()
    test.assert_submitted(on_loop, number=7)

def test_that_passes(taskmill_test):
    test = taskmill_test(app)
    wrong.sync.submit()
    test.sync.drain()
""",
        "-p",
        "no:asyncio",
    )
    ended(done, passed=1, failed=1)
    assert done.stdout.count("Taskmill: attempts that failed") == 1
    assert "ZeroDivisionError: of the handler" in done.stdout
    assert "nothing was submitted as on_loop(number=7)" in done.stdout
    assert "in assert_submitted" not in done.stdout, "the failure is shown in the helper instead of in the test"


def test_nothing_heavy_is_loaded_for_those_who_do_not_use_it(tmp_path: Path) -> None:
    code = """
import json, sys
def test_it():
    with open("loaded.json", "w") as file:
        json.dump([name for name in sys.modules if name.partition(".")[0] in ("taskmill", "apsw", "msgspec", "cronsim")], file)
"""
    (tmp_path / "test_it.py").write_text(code, encoding="utf-8")
    ended(run_pytest(tmp_path, "-p", "no:asyncio"), passed=1)
    loaded = json.loads((tmp_path / "loaded.json").read_text(encoding="utf-8"))
    assert sorted(loaded) == ["taskmill", "taskmill.testing", "taskmill.testing.plugin", "taskmill.version"]


def test_the_names_are_not_taken_for_tests(tmp_path: Path) -> None:
    done = run(tmp_path, "from taskmill.testing import Ran, Submission, SyncUnderTest, UnderTest, under_test\ndef test_it():\n    pass\n", "-p", "no:asyncio")
    ended(done, passed=1)


def test_the_example(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, str(ROOT / "examples" / "testing"), "-W", "error", "-p", "no:asyncio")
    ended(done, passed=5)
    assert list(tmp_path.iterdir()) == []


def test_the_guide(tmp_path: Path) -> None:
    """Its code is run as it stands there."""
    guide = (ROOT / "docs" / "guides" / "testing.md").read_text(encoding="utf-8")
    code = "\n".join(re.findall(r"^```python\n(.*?)^```$", guide, re.MULTILINE | re.DOTALL))
    (tmp_path / "test_guide.py").write_text(code, encoding="utf-8")
    done = run_pytest(tmp_path, "-o", "asyncio_mode=auto", "-o", "asyncio_default_fixture_loop_scope=function", "-W", "error")
    ended(done, passed=code.count("def test_"))
    said = re.search(r"^```text\nAssertionError: (.*?)^```$", guide, re.MULTILINE | re.DOTALL)
    assert said is not None
    code += """
def test_wrong(taskmill_test):
    test = taskmill_test(app)
    send_welcome.sync.submit(42)
    test.assert_submitted(send_welcome, user_id=43)
"""
    (tmp_path / "test_guide.py").write_text(code, encoding="utf-8")
    done = run_pytest(tmp_path, "-o", "asyncio_mode=auto", "-o", "asyncio_default_fixture_loop_scope=function", "-k", "test_wrong")
    assert [line for line in said[1].splitlines() if line not in done.stdout] == []
