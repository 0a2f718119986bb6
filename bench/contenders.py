"""The systems of the comparison, each ready to be asked: its environment made, its versions and its durability known."""

from __future__ import annotations

import json
import mmap
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from bench.group import Group
from bench.peers import counter
from bench.peers.environments import Unavailable, program_of, python_of
from bench.peers.side import STORE, VARIANT
from bench.report import Plan
from bench.temporary import folder
from bench.watch import Watch

__all__ = [
    "HUEY",
    "LOCAL",
    "PEERS",
    "TASKMILL",
    "TASKMILL_ASYNC",
    "Contender",
    "Drained",
    "Place",
    "Waits",
    "ask",
    "available",
    "drained",
    "late",
    "place",
    "submitted",
    "until",
    "working",
]

ROOT = Path(__file__).resolve().parent.parent
SHARED = Path("/dev/shm")
PATIENCE = 120.0
"""Seconds for a worker to take its first task, and without any progress after that."""


@dataclass(frozen=True)
class Contender:
    """A system with one choice of settings. `drain` is how many tasks keep its worker busy for some seconds.

    One without a module is a program in another language, which answers for itself.
    """

    name: str
    module: str
    variant: str = ""
    peer: str = ""
    drain: int = 5_000
    unfinished: str = ""
    """In SQL, or as a script of Redis: whether its store holds a task that has not ended. Without it the system itself is asked, when its worker is gone."""


TASKMILL = Contender("Taskmill", "taskmill_side", "def", drain=50_000)
TASKMILL_ASYNC = Contender("Taskmill, async def", "taskmill_side", "async def", drain=50_000)
LOCAL = Contender("Taskmill, durability=local", "taskmill_side", "local", drain=50_000)
HUEY = (
    Contender("Huey", "huey_sqlite", "default", peer="huey", drain=6_000),
    Contender("Huey, fsync=False", "huey_sqlite", "fsync=False", peer="huey", drain=6_000),
)
PEERS = (
    *HUEY,
    Contender("Taskito, tuned", "taskito_sqlite", "tuned", peer="taskito", drain=4_000),
    Contender("Honker", "honker_sqlite", peer="honker", drain=3_000),
)


class Place(NamedTuple):
    """Where one measurement happens: the URL of a store with nothing in it, a counter at nought, and where workers write what they have to say."""

    store: str
    counter: Path
    log: Path


class Drained(NamedTuple):
    """Tasks a second, and CPU of one task in microseconds: over all processes of the worker, and of the server where there is one."""

    rate: float
    cpu: float
    server: float = 0.0


class Waits(NamedTuple):
    """In milliseconds: from before each submit to its start, and how long the submit itself took."""

    starts: list[float]
    submits: list[float]


@contextmanager
def place(plan: Plan) -> Iterator[Place]:
    """The counter lies in memory where the system has such a place: it must not wait for the disk that is measured."""
    with plan.stores.fresh() as url, folder(SHARED if SHARED.is_dir() else plan.directory) as shared:
        counter.make(shared / "counter")
        yield Place(url, shared / "counter", shared / "worker.log")


def available(contenders: Sequence[Contender], plan: Plan) -> dict[Contender, tuple[str, list[str]]]:
    """Those that run here: the releases and durability of each in words, and its ways to submit."""
    found: dict[Contender, tuple[str, list[str]]] = {}
    for contender in contenders:
        if plan.systems and not any(word.lower() in contender.name.lower() for word in plan.systems):
            continue
        try:
            with place(plan) as at:
                answer = ask(contender, at, "describe", say=plan.say)
        except Unavailable as error:
            plan.say(f"{contender.name} is left out, it cannot be installed: {error}")
            continue
        releases = " ".join(f"{name} {version}" for name, version in answer["versions"].items())
        found[contender] = (f"{releases}; {answer['durability']}", answer["kinds"])
    return found


def submitted(contender: Contender, kind: str, n: int, plan: Plan) -> float:
    """Submits a second."""
    with place(plan) as at:
        return n / float(ask(contender, at, "submit", kind, str(n))["seconds"])


def drained(contender: Contender, processes: int, n: int, plan: Plan) -> Drained:
    """All tasks are in the store before its worker starts; each must run once, and none may be left. It ends with the last commit, not with the last no-op."""
    with place(plan) as at:
        ask(contender, at, "fill", str(n))
        plan.stores.settle(at.store)
        with closing(counter.attach(at.counter)) as memory, Watch(at.store, contender.unfinished) as watch, working(contender, processes, at) as group:
            ask(contender, at, "release", str(processes))
            until(memory, 1, group)
            some, cpu, server = counter.read(memory).hits, group.usage().cpu, plan.stores.cpu()
            until(memory, n, group)
            ended = watch.emptied(PATIENCE)
            used, served = group.usage().cpu - cpu, plan.stores.cpu() - server
            group.stop()
            reading = counter.read(memory)
        if ended is None:
            after = ask(contender, at, "left")
            assert after["left"] == 0, f"{contender.name}: {after['left']} tasks are left"
            ended = after["ended"] or 0
    assert reading.hits == n, f"{contender.name}: {reading.hits} of {n} tasks ran"
    ran = max(1, n - some)
    return Drained((n - 1) * 1e9 / (max(reading.last, ended) - reading.first), used * 1e6 / ran, served * 1e6 / ran)


def late(contender: Contender, n: int, seconds: float, plan: Plan) -> Waits:
    """From a submit in a process of its own to the start on a worker that has nothing else to do."""
    with place(plan) as at, working(contender, 1, at) as group:
        answer = ask(contender, at, "late", str(n), str(seconds))
        assert answer["milliseconds"], f"{contender.name}: no task was started: {group.words()}"
        return Waits(answer["milliseconds"], answer["submits"])


def working(contender: Contender, processes: int, at: Place) -> Group:
    """Its worker, started; it ends with the block."""
    commands = ask(contender, at, "describe")["workers"][str(processes)]
    return Group(commands, _environ(contender, at), ROOT, at.log)


def until(memory: mmap.mmap, n: int, group: Group) -> None:
    """So many no-ops have run; a worker that ended or stands still is an error with its own words."""
    hits, moved = 0, time.monotonic()
    while hits < n:
        time.sleep(0.02)
        now = counter.read(memory).hits
        hits, moved = (now, time.monotonic()) if now > hits else (hits, moved)
        if time.monotonic() - moved > PATIENCE or not group.running:
            raise RuntimeError(f"the worker came to {hits} of {n} tasks and {'stands still' if group.running else 'has ended'}: {group.words()}")


def _environ(contender: Contender, at: Place) -> dict[str, str]:
    return {STORE: at.store, VARIANT: contender.variant, counter.COUNTER: str(at.counter), "PYTHONPATH": str(ROOT)}


def ask(contender: Contender, at: Place, *command: str, say: Callable[[str], None] = print) -> dict[str, Any]:
    """One command of `drive.py` in the contender's environment."""
    program = _program(contender, say)
    done = subprocess.run([*program, *command], env={**os.environ, **_environ(contender, at)}, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{contender.name}: {' '.join(command)} failed: {done.stderr.strip()[-1500:]}")
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def _program(contender: Contender, say: Callable[[str], None]) -> list[str]:
    if not contender.module:
        return program_of(contender.peer, say)
    python = python_of(contender.peer, say) if contender.peer else Path(sys.executable)
    return [str(python), "-m", "bench.peers.drive", contender.module]
