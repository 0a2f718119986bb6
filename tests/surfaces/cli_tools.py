"""The program on a store of its own: run in this process, as a process, and as a process on a terminal."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import NamedTuple, TypeVar

from taskmill.cli import main
from taskmill.engine import Claimed, Engine, Joining, Outcome, Room
from taskmill.engine import Ending as End
from taskmill.engines import create
from taskmill.task import ErrorInfo, NewTask, TypeSettings, new_id

COMMAND = [sys.executable, "-c", "import sys; from taskmill.cli import main; sys.exit(main())"]

PATIENCE = 30.0

Answer = TypeVar("Answer")


class Said(NamedTuple):
    """What a run came to."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    @property
    def objects(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.lines]


class Cli:
    """The program over one store, which exists."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "store.db"
        self.url = f"sqlite:///{self.path}"
        assert self.bare("db", "upgrade", "--url", self.url).code == 0

    def bare(self, *arguments: str) -> Said:
        """Without a store named. Not through pytest's own capture, so that it can be used by any fixture."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(arguments)
        return Said(code, out.getvalue(), err.getvalue())

    def __call__(self, *arguments: str) -> Said:
        return self.bare(*arguments, "--url", self.url)

    def ok(self, *arguments: str) -> Said:
        said = self(*arguments)
        assert said.code == 0, said
        return said

    def refused(self, code: int, *arguments: str) -> str:
        """The one line of a refusal; nothing else is said, nothing is stored."""
        before = self.ids()
        said = self(*arguments)
        assert (said.code, said.out) == (code, ""), said
        assert said.err.startswith("taskmill: ")
        assert said.err.count("\n") == 1
        assert self.ids() == before
        return said.err.strip()

    def do(self, work: Callable[[Engine], Awaitable[Answer]]) -> Answer:
        """Something done to the store without the program."""

        async def opened() -> Answer:
            engine = create(self.url)
            await engine.open()
            try:
                return await work(engine)
            finally:
                await engine.close()

        return asyncio.run(opened())

    def ids(self) -> list[str]:
        async def every(engine: Engine) -> list[str]:
            found, cursor = [], None
            while True:
                page = await engine.list(after=cursor, n=1_000)
                found += [task.id for task in page.tasks]
                cursor = page.cursor
                if cursor is None:
                    return found

        return self.do(every)

    def submit(self, *types: str, queue: str = "default", payload: bytes = b"{}", tags: dict[str, str] | None = None, delay: int | None = None) -> list[str]:
        """A task of each of these types, stored already."""
        new = [NewTask(type=name, queue=queue, payload=payload, tags=tags or {}, delay=delay) for name in types]
        answers = self.do(lambda engine: engine.submit(new))
        assert all(answer.error is None for answer in answers)
        return [answer.id for answer in answers]

    def join(self, worker: str, *types: str, queue: str = "default") -> None:
        joining = Joining(worker=worker, queues=(queue,), types={name: TypeSettings(queue=queue) for name in types}, info={"host": "here"})
        self.do(lambda engine: engine.join(joining))

    def end(self, ending: End, *types: str, error: ErrorInfo | None = None, result: bytes | None = None, queue: str = "default") -> list[str]:
        """Claim all tasks of these types and end them alike; their ids."""

        async def act(engine: Engine) -> list[str]:
            worker = new_id()
            await engine.join(Joining(worker=worker, queues=(queue,), types={name: TypeSettings(queue=queue) for name in types}))
            claimed: tuple[Claimed, ...] = (await engine.claim(worker, 1, [queue], Room(1_000))).tasks
            outcomes = [Outcome(task=one.id, worker=worker, token=one.token, ending=ending, error=error, result=result, started_after=0) for one in claimed]
            assert not (await engine.finish(outcomes)).refused
            await engine.leave(worker)
            return [one.id for one in claimed]

        return self.do(act)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """As a process of its own, with pipes."""
        command = [*COMMAND, *arguments, "--url", self.url]
        return subprocess.Popen(command, text=True, cwd=self.folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


class Terminal:
    """The program on a terminal of its own, whose keys and screen are ours."""

    def __init__(self, cli: Cli, *arguments: str, answer: str = "", columns: str = "200") -> None:
        self._ours, theirs = pty.openpty()
        environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": columns, "LINES": "50"}
        command = [*COMMAND, *arguments, "--url", cli.url]
        self.process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, cwd=cli.folder)
        os.close(theirs)
        self.screen = ""
        if answer:
            os.write(self._ours, answer.encode())

    def until(self, text: str) -> str:
        """What the screen has got, up to where it shows this."""
        while text not in self.screen:
            piece = self._read()
            assert piece, f"it ended without saying {text!r}: {self.screen}"
            self.screen += piece
        return self.screen

    def end(self) -> int:
        """Read to the end, and the exit code. A live table says something for ever."""
        deadline = time.monotonic() + PATIENCE
        while piece := self._read():
            assert time.monotonic() < deadline, f"it does not end: {self.screen[-4_000:]}"
            self.screen += piece
        return self.process.wait()

    def _read(self) -> str:
        assert select.select([self._ours], [], [], PATIENCE)[0], f"nothing is said any more: {self.screen}"
        try:
            return os.read(self._ours, 65_536).decode("utf-8", "replace")
        except OSError:  # its last user has closed the terminal
            return ""

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)


@contextlib.contextmanager
def terminal(cli: Cli, *arguments: str, answer: str = "", columns: str = "200") -> Iterator[Terminal]:
    opened = Terminal(cli, *arguments, answer=answer, columns=columns)
    try:
        yield opened
    finally:
        opened.close()
