"""Apps and options that a worker cannot use: one line that says why and what to do, exit code 2, no traceback, no store made."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.surfaces import workers
from tests.surfaces.workers import program, until

GOOD = """
from taskmill import App

app = App()


@app.task(queue="mail")
def send() -> None:
    pass
"""
FILES = {
    "good.py": GOOD,
    "syntax.py": "x = (\n",
    "imports.py": "import nothing_of_this_name\n",
    "raises.py": 'print("begun")\nraise ValueError("no key\\nsecond line")\n',
    "exits.py": "import sys\n\nsys.exit(3)\n",
    "none.py": "app = 1\n",
    "idle.py": "from taskmill import App\n\napp = App()\n",
    "two.py": "from taskmill import App\n\none = App()\ntwo = App()\n",
    "setting.py": "from taskmill import App\n\napp = App(concurency=3)\n",
    "option.py": GOOD.replace('queue="mail"', 'qeue="mail"'),
    "folder/inside.py": GOOD,
}


class Case(NamedTuple):
    """What is given, and what the line must have in it."""

    arguments: str
    said: tuple[str, ...]


CASES = {
    "syntax": Case("worker syntax.py", ("syntax.py, line 1", "SyntaxError", "fix the file")),
    "import": Case("worker imports.py", ("imports.py, line 1", "nothing_of_this_name", "install")),
    "raises": Case("worker raises.py", ("raises.py, line 2", "ValueError: no key (")),
    "exit": Case("worker exits.py", ("exits.py, line 3", "SystemExit: 3", "__main__")),
    "no_app": Case("worker none.py", ("none.py has no App", "app = App()")),
    "no_tasks": Case("worker idle.py", ("idle.py declares no tasks", "@app.task")),
    "two_apps": Case("worker two.py", ("2 Apps: one, two", "two.py:one")),
    "other_type": Case("worker none.py:app", ("none.py:app is of type int",)),
    "no_such_name": Case("worker good.py:ap", ("no App 'ap'", "good.py:app")),
    "no_file": Case("worker god.py", ("there is no file god.py", "good.py?")),
    "folder": Case("worker ./folder", ("there is no file folder",)),
    "module": Case("worker goood", ("there is no module 'goood'", "goood.py")),
    "nothing": Case("worker :", ("names no app",)),
    "setting": Case("worker setting.py", ("no setting concurency", "did you mean concurrency?")),
    "task_option": Case("worker option.py", ("option.py, line 7", "qeue", "did you mean queue?")),
    "queue": Case("worker good.py --queue mial", ("'mial'", "did you mean mail?")),
    "queue_name": Case("worker good.py --queue Mail!", ("'Mail!'", "not a name", "lower-case")),
    "option": Case("worker good.py --proceses 2", ("--proceses", "'--processes'?")),
    "no_argument": Case("worker", ("Missing argument 'APP'",)),
    "memory": Case("worker good.py --max-memory much", ("TASKMILL_MAX_MEMORY", "'much'")),
    "up": Case("up none.py", ("none.py has no App", "app = App()")),
    "dev_option": Case("dev good.py --que mail", ("--que", "--queue")),
    "scheduler_option": Case("scheduler --ulr x", ("--ulr", "--url")),
    "scheduler_url": Case("scheduler --url sqlte:///x.db", ("'sqlte'", "did you mean sqlite://?")),
}


class Ran(NamedTuple):
    code: int | None
    lines: list[str]


def written(folder: Path) -> Path:
    for name, text in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    return folder


async def ran(case: Case, folder: Path, turn: asyncio.Semaphore) -> Ran:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TASKMILL_")}
    async with turn:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "taskmill", *case.arguments.split(), cwd=folder, env=environment,
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        try:
            async with asyncio.timeout(workers.GENEROUS):
                _, errors = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    return Ran(process.returncode, errors.decode().splitlines())


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ran]:
    """All of them at once: most of their time is the start of Python."""
    folder = written(tmp_path_factory.mktemp("apps"))

    async def all_of_them() -> list[Ran]:
        turn = asyncio.Semaphore(4)
        return await asyncio.gather(*(ran(case, folder, turn) for case in CASES.values()))

    found = dict(zip(CASES, asyncio.run(all_of_them()), strict=True))
    assert not list(folder.glob("*.db*"))
    return found


@pytest.mark.parametrize("name", CASES)
def test_one_line_says_what_is_wrong(answers: dict[str, Ran], name: str) -> None:
    answer = answers[name]
    assert answer.code == 2
    [line] = answer.lines
    for said in CASES[name].said:
        assert said in line


async def test_a_hook_that_fails_is_told_and_tried_again(tmp_path: Path) -> None:
    """What it needs may not be there yet."""
    hook = '\n@app.on_start\ndef begin() -> None:\n    open("needed").close()\n'
    (tmp_path / "app.py").write_text(GOOD + hook)
    with program("worker", "app.py", folder=tmp_path) as worker:
        await until(lambda: "a worker did not start" in worker.said, "a word about the hook")
        (tmp_path / "needed").touch()
        async with workers.client(f"sqlite:///{tmp_path}/taskmill.db") as client:
            await client.joined()
            assert (await client.run("send")).state == "completed"
        said = worker.said
        assert worker.end() == 0
    assert "app.py, line 13: FileNotFoundError: [Errno 2] No such file or directory: 'needed'" in said
    assert "Traceback" not in said
