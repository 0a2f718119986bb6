"""Every block of Python in the guides and in the README is run, and every command of a shell block is understood by the real program.

A page is a program: its blocks without `await` at their top are its app, in order; a worker runs it, and the blocks with `await` are run beside it.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import click
import pytest

from taskmill.app import App
from taskmill.cli import program
from taskmill.loading import load

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "examples" / "README.md", *(ROOT / "docs").rglob("*.md")])
TESTED_ELSEWHERE = {"docs/api/grpc.md", "docs/guides/client.md", "docs/engines/sqlite.md", "docs/guides/testing.md"}
ON_POSTGRES = {"docs/guides/transactions.md"}
PATIENCE = 60


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def awaits(code: str) -> bool:
    """Whether it awaits at its top, outside of any function."""
    flags = compile(code, "block", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT).co_flags
    return bool(flags & inspect.CO_COROUTINE)


# Python


def programs() -> list[Path]:
    return [page for page in PAGES if blocks(page, "python") and name(page) not in TESTED_ELSEWHERE and page.name != "README.md"]


@asynccontextmanager
async def running(app: Path) -> AsyncIterator[App]:
    """The app of a file, opened here, with a worker of its own."""
    command = [sys.executable, "-m", "taskmill", "worker", str(app), "--log-level", "error"]
    worker = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.DEVNULL)
    try:
        async with load(str(app)) as found:
            yield found
    finally:
        worker.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(worker.wait(), PATIENCE) == 0


@pytest.mark.parametrize("page", programs(), ids=name)
async def test_the_python_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    url = request.getfixturevalue("postgres_url") if name(page) in ON_POSTGRES else f"sqlite:///{tmp_path}/taskmill.db"
    monkeypatch.setenv("TASKMILL_URL", url)
    code = blocks(page, "python")
    file = tmp_path / f"page_{page.stem}.py"
    file.write_text("\n\n".join(block for block in code if not awaits(block)), encoding="utf-8")
    waiting = [compile(block, f"{name(page)}", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT) for block in code if awaits(block)]
    if not waiting:
        load(str(file))
        return
    async with running(file):
        names = vars(sys.modules[file.stem])
        await joined(names["app"])
        for block in waiting:
            await asyncio.wait_for(eval(block, names), PATIENCE)


async def joined(app: App) -> None:
    """Until its worker has said what the app declares."""
    events = await app.operations.events()
    while not await app.operations.workers():
        await asyncio.wait_for(anext(events), PATIENCE)
    await events.aclose()


def test_the_first_blocks_of_the_readme_are_a_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    declared, submitted, *_ = blocks(ROOT / "README.md", "python")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "readme.py").write_text(declared, encoding="utf-8")
    app = load("readme.py")
    assert sorted(app.types) == ["morning_report", "send_welcome"]
    assert awaits(submitted)


# Shell


def commands(page: Path) -> Iterator[list[str]]:
    """Every `taskmill …` of the page's shell blocks, word by word."""
    for block in blocks(page, "sh"):
        for line in block.replace("\\\n", " ").splitlines():
            lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
            lexer.whitespace_split = True
            words: list[str] = []
            for word in [*lexer, ";"]:
                if set(word) <= set("();<>|&"):
                    if words[:1] == ["taskmill"]:
                        yield words[1:]
                    words = []
                else:
                    words.append(word)


def shell_commands() -> list[tuple[Path, list[str]]]:
    found = [(page, words) for page in PAGES for words in commands(page)]
    return [(page, words) for page, words in found if "[OPTIONS]" not in words]


def understood(words: list[str]) -> None:
    """Read by the real commands, down to the last option; nothing is run."""
    command: click.Command = program.program()
    context: click.Context | None = None
    while isinstance(command, click.Group):
        group = click.Context(command, info_name=command.name, parent=context)
        found, inner, words = command.resolve_command(group, words)
        assert inner is not None, found
        command, context = inner, group
    command.make_context(command.name, list(words), parent=context)


@pytest.mark.parametrize(("page", "words"), [pytest.param(*found, id=f"{name(found[0])}-{n}") for n, found in enumerate(shell_commands())])
def test_a_command_in_a_page_is_understood(page: Path, words: list[str]) -> None:
    understood(words)


def test_a_wrong_command_is_not_understood() -> None:
    with pytest.raises(click.UsageError):
        understood(["task", "list", "--stat", "dead"])


# The first five minutes, to the letter

IDS = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b")


def steps() -> list[tuple[str, str]]:
    """Every block of that chapter, with its language."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    found = re.search(r"^## The first five minutes\n(.*?)^## ", text, re.MULTILINE | re.DOTALL)
    assert found is not None
    return re.findall(r"^```(\w+)\n(.*?)^```$", found[1], re.MULTILINE | re.DOTALL)


def shell(script: str, folder: Path, environment: dict[str, str]) -> str:
    done = subprocess.run(["bash", "-ec", script], cwd=folder, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, (script, done.stdout, done.stderr)
    return done.stdout


def same(shown: str, said: str) -> bool:
    return [IDS.sub("ID", line).split() for line in shown.splitlines()] == [IDS.sub("ID", line).split() for line in said.splitlines()]


@pytest.mark.usefixtures("curl")
def test_the_first_five_minutes_of_the_readme(tmp_path: Path) -> None:
    """Typed as they stand there; `taskmill dev` in a terminal of its own, the Python into the files that the text names."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("TASKMILL_")}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    environment["TASKMILL_PORT"] = str(free_port())
    folder, said, python = tmp_path, "", 0
    dev: subprocess.Popen[bytes] | None = None
    err = b""
    try:
        for language, block in steps():
            if block.startswith("taskmill dev"):
                dev = subprocess.Popen(["bash", "-c", f"exec {block}"], cwd=folder, env=environment, stderr=subprocess.PIPE)
                _until_up(dev)
            elif language == "sh":
                said = shell(block.replace(":8080", f":{environment['TASKMILL_PORT']}"), folder, environment)
                folder = tmp_path / "shop" if "cd shop" in block else folder
            elif language == "text":
                assert same(block, said), (block, said)
            elif language == "python" and python == 0:
                python += 1
                with (folder / "app.py").open("a", encoding="utf-8") as file:
                    file.write(f"\n\n{block}")
                assert dev is not None
                _until_up(dev)
            else:
                (folder / "hello.py").write_text(block, encoding="utf-8")
                said = shell("python hello.py", folder, environment)
    finally:
        if dev is not None:
            dev.send_signal(signal.SIGINT)
            _, err = dev.communicate(timeout=PATIENCE)
    assert dev is not None
    assert (dev.returncode, b"Traceback" in err) == (0, False)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _until_up(dev: subprocess.Popen[bytes]) -> None:
    assert dev.stderr is not None
    missing = {b"taskmill is up", b"the API is at"}
    for line in dev.stderr:
        missing -= {words for words in missing if words in line}
        if not missing:
            return
    raise AssertionError("taskmill dev ended")
