"""A tour of Taskmill at work: a worker, its schedules and the API on a new SQLite file, sample tasks of every kind, and a live view of them.

It stays up until Ctrl-C; look around in another terminal meanwhile, with the commands that it shows.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shlex
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from rich.console import Console

from taskmill.cli.serving import hold_standard_streams
from taskmill.clock import SECOND, duration
from taskmill.config import Settings
from taskmill.errors import TaskmillError
from taskmill.server.listening import bound
from taskmill.worker import logs
from taskmill.worker.companion import Companion
from taskmill.worker.probes import Probes
from taskmill.worker.supervisor import Supervisor
from tour import samples
from tour.app import app
from tour.screen import Screen

APP = Path(__file__).parent / "app.py"
ONE_SIGNAL = 1.0
"""Seconds in which a second signal is the first one again: `make` passes on what its terminal has sent to everybody."""
COMMANDS = (
    "task list",
    """submit welcome '{"name": "you"}' --wait""",
    "dead list",
    "dead requeue --all --yes",
    "queue list",
    "schedule list",
    "workers list",
    "task tail",
    "check",
)
REQUESTS = (
    """curl -s {at}/api/v1/tasks -H 'Content-Type: application/json' -d '{{"type": "welcome", "payload": {{"name": "you"}}}}'""",
    "curl -s '{at}/api/v1/tasks?state=dead'",
    "curl -s {at}/readyz",
    "curl -sN {at}/api/v1/events",
)


def main(arguments: Sequence[str]) -> int:
    """The exit code: 0, or 1 when a sample ended otherwise than meant."""
    options = _parse(arguments)
    hold_standard_streams()
    with ExitStack() as stack:
        if sys.stdout is None:  # closed before we began
            sys.stdout = stack.enter_context(open(os.devnull, "w"))
        file = options.store or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="taskmill-", ignore_cleanup_errors=True))) / "tour.db"
        stack.enter_context(_own_terminal())
        try:
            return asyncio.run(Tour(f"sqlite:///{file.absolute()}", options).run())
        except TaskmillError as error:
            print(f"tour: {error}", file=sys.stderr)
            return 1


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make run ARGS=…", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--for", dest="time", metavar="DURATION", type=_duration, help="end after this long, for example 10s")
    parser.add_argument("--once", action="store_true", help="end when every sample has ended")
    parser.add_argument(
        "--store", metavar="FILE", type=Path, help="keep the store in this file; otherwise it lies in a temporary folder and is gone afterwards"
    )
    return parser.parse_args(arguments)


def _duration(text: str) -> float:
    try:
        return duration(text, field="--for") / SECOND
    except TaskmillError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


@contextmanager
def _own_terminal() -> Iterator[None]:
    """Ctrl-C means this program and nobody around it, so that it ends well for `make` too."""
    try:
        before = os.tcgetpgrp(0)
        if before != os.getpgrp() or before == os.getpid():
            raise OSError
    except OSError:  # no terminal, or it is somebody else's, or ours alone already
        yield
        return
    for number in (signal.SIGTTOU, signal.SIGTSTP):  # in a group of its own nobody could wake it after Ctrl-Z
        signal.signal(number, signal.SIG_IGN)
    os.setpgid(0, 0)
    os.tcsetpgrp(0, os.getpid())
    try:
        yield
    finally:
        os.tcsetpgrp(0, before)


class Lines(Console):
    """A console that leaves it to its caller what a lost reader means."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


class Tour:
    """One round, from the first line to the last."""

    def __init__(self, url: str, options: argparse.Namespace) -> None:
        self._url = url
        self._options = options
        self._console = Lines()
        self._supervisor: Supervisor | None = None
        self._screen: Screen | None = None
        self._asked: float | None = None
        self._at = asyncio.Event()
        self._server = ""
        self._wrong: list[str] = []

    async def run(self) -> int:
        os.environ.update(TASKMILL_URL=self._url, TASKMILL_GRACE_PERIOD="2s")
        logs.configure("warning")
        try:
            self._say(f"Starting a worker for {_near(APP)} on {self._url}")
            api = Companion("taskmill.server.process", _listen, options={"grpc_port": 0}, log_level="warning", began=self._reachable)
            self._supervisor = Supervisor(str(APP), log_level="warning", ready=self._show, companion=api)
            api.questions = Probes(self._supervisor).questions
            code = await self._supervisor.run()
            await self._end()
        except OSError:
            code = self._nobody_reads()
        finally:
            await app.close()
        return code or bool(self._wrong)

    def _reachable(self, places: Sequence[str]) -> None:
        self._server = places[0]
        self._at.set()

    async def _show(self, supervisor: Supervisor) -> None:
        """What happens while the worker works."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._stop)
        try:
            await self._show_all()
        except* OSError:
            self._nobody_reads()
            supervisor.stop()

    async def _show_all(self) -> None:
        await app.open()
        await self._at.wait()
        self._screen = Screen(app.operations, self._console)
        self._hint()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._screen.run())
            await self._screen.listening.wait()
            submitted = await samples.submit()
            tasks.create_task(samples.cancel_soon(submitted))
            if self._options.once:
                tasks.create_task(self._until_ended(submitted))
            if self._options.time is not None:
                tasks.create_task(self._until(self._options.time))

    async def _until_ended(self, submitted: list[samples.Sample]) -> None:
        self._wrong = await samples.all_ended(submitted)
        await asyncio.sleep(0.5)  # the last events are still on their way to the screen
        self._stop()

    async def _until(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self._stop()

    def _stop(self) -> None:
        now = asyncio.get_running_loop().time()
        if self._supervisor is not None and (self._asked is None or now - self._asked > ONE_SIGNAL):
            self._asked = now
            self._supervisor.stop()

    # What is said

    def _say(self, *lines: str) -> None:
        for line in lines:
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _hint(self) -> None:
        program = Path(sys.executable).parent / "taskmill"
        name = shlex.quote(_near(program)) if program.is_file() else f"{shlex.quote(_near(Path(sys.executable)))} -m taskmill"
        self._say("", f"The API is at {self._server}, described at {self._server}/docs")
        self._say(
            "",
            "Try in another terminal:",
            *(f"  {line.format(at=self._server)}" for line in REQUESTS),
            *(f"  {name} {command} --url {shlex.quote(self._url)}" for command in COMMANDS),
            "",
        )
        self._say("" if self._options.once or self._options.time else "Ctrl-C ends the tour.", "")

    async def _end(self) -> None:
        if self._screen is None:
            return  # there was no worker, and the reason was said
        self._console.print(await self._screen.summary(), soft_wrap=True)
        self._say(*self._wrong)
        kept = self._options.store
        self._say(f"The tour is over. The store is kept: {_near(kept)}" if kept else "The tour is over; its store is removed.")

    def _nobody_reads(self) -> int:
        """The reader of our lines is gone (`| head`): end quietly."""
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _listen(settings: Settings) -> socket.socket:
    """The usual port, or any if somebody has it."""
    try:
        return bound(settings.host, settings.port)
    except TaskmillError:
        return bound(settings.host, 0)


def _near(path: Path) -> str:
    full = path.absolute()
    return str(full.relative_to(Path.cwd())) if full.is_relative_to(Path.cwd()) else str(full)
