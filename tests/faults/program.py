"""The programs that fault tests start, pause and kill: `python -m tests.faults.program WHAT STORE HISTORY [options]`.

They say on stdout how far they are, a line each, and obey lines on stdin; the end of stdin means "no more is to come". So a test waits for a word,
never for a time.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import time
from collections.abc import Coroutine
from functools import partial
from pathlib import Path
from random import Random

import apsw

from taskmill.clock import SECOND
from taskmill.engine import Checkpoint, Claimed, Ending, Outcome, Room
from tests.faults.leader import Leader, Pause
from tests.faults.recorded import Recorded, until_answered
from tests.faults.workload import Worker, batch, client_of
from tests.history import Recorder, events

SLOTS = 6


def store_of(text: str) -> Path | str:
    """A file of SQLite, or the URL of another store."""
    return text if "://" in text else Path(text)


def say(*words: object) -> None:
    print(*words, flush=True)


async def lines() -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    return reader


class Ended:
    """Whether stdin has come to its end."""

    def __init__(self) -> None:
        self.event = asyncio.Event()

    async def watch(self) -> None:
        await (await lines()).read()
        self.event.set()


async def work(options: argparse.Namespace) -> None:
    """Submit so many batches (-1: one whenever there is too little to do, until stdin ends) and work; go on until stdin ends (if asked to wait for it) and
    nothing lives."""
    random = Random(options.seed)
    async with client_of(options.store, options.history, lease=options.lease, lose=options.lose, seed=options.seed) as client:
        worker = Worker(client, options.lease)
        await worker.join()
        say("ready")
        ended = Ended()
        watch = asyncio.create_task(ended.watch())
        beats = asyncio.create_task(worker.beat_on())
        if not options.wait:
            ended.event.set()
        left, taken = options.batches, 0
        while left > 0 or not ended.event.is_set():
            if left > 0 or (left < 0 and taken < SLOTS):
                left -= left > 0
                await until_answered(partial(client.submit, batch(random)))
            taken = await worker.turn(SLOTS)
            if not taken and not left:
                await asyncio.sleep(0.01)
        await worker.drain()
        await worker.end_beats(beats)
        watch.cancel()
        await until_answered(lambda: client.leave(worker.name))
        say("done")


async def sit(options: argparse.Namespace) -> None:
    """Claim, and hold what was given until told to finish; beat and look after others all the time. Told to pause, stop between two steps."""
    async with client_of(options.store, options.history, lease=options.lease) as client:
        worker = Worker(client, options.lease)
        await worker.join()
        tasks = await _claim(worker, options.batches)
        say("claimed", *worker.held.values())
        over = asyncio.Event()
        loops = asyncio.gather(_beat(worker, over), _recover(worker, over))
        command = (await (await lines()).readline()).decode().strip()
        over.set()
        await loops
        if command == "pause":
            say("pausing")
            os.kill(os.getpid(), signal.SIGSTOP)
        say("answers", *await _end(client, tasks))


async def _claim(worker: Worker, number: int) -> tuple[Claimed, ...]:
    """So many tasks, as soon as they can be had."""
    tasks: tuple[Claimed, ...] = ()
    while len(tasks) < number:
        await worker.client.recover_lost()
        await worker.beat()
        worker.request += 1
        claim = await worker.client.claim(worker.name, worker.request, ("default",), Room(number - len(tasks)))
        worker.answered = worker.request
        worker.held |= {task.token: task.id for task in claim.tasks}
        tasks += claim.tasks
        await asyncio.sleep(0.02)
    return tasks


async def _beat(worker: Worker, over: asyncio.Event) -> None:
    while not over.is_set():
        await worker.beat()
        say("beat")
        await asyncio.sleep(worker.lease / 8 / SECOND)


async def _recover(worker: Worker, over: asyncio.Event) -> None:
    while not over.is_set():
        await until_answered(worker.client.recover_lost)
        await asyncio.sleep(worker.lease / 8 / SECOND)


async def _end(client: Recorded, tasks: tuple[Claimed, ...]) -> list[str]:
    """Write under the lease in both ways, as one who does not know that time has passed."""
    entries = [Checkpoint(task=task.id, worker=task.worker, token=task.token, name="late", value=b"1") for task in tasks]
    late = {refusal.token for refusal in await client.checkpoint(entries)}
    outcomes = [Outcome(task=task.id, worker=task.worker, token=task.token, ending=Ending.COMPLETED, started_after=0) for task in tasks]
    stale = {refusal.token: refusal.code for refusal in (await client.finish(outcomes)).refused}
    assert late == set(stale)
    return [stale.get(task.token, "applied") for task in tasks]


async def lead(options: argparse.Namespace) -> None:
    """Lead whenever the store lets it, and do all that leaders do, until stdin ends."""
    pause = Pause(options.pause, say)
    async with client_of(options.store, options.history, term=options.lease) as client:
        leader = Leader(client, f"leader-{os.getpid()}", options.lease, pause)
        ended = Ended()
        watch = asyncio.create_task(ended.watch())
        say("ready")
        while not ended.event.is_set():
            await leader.round()
            await asyncio.sleep(0.01)
        watch.cancel()


# Children that die


def killed_at_statements(options: argparse.Namespace) -> None:
    """For each number a child that is killed at its n-th moment: before a statement, or right behind one."""
    for number in options.points:
        child = _fork(_dying_at(options, number), options)
        _, status = os.waitpid(child, 0)
        _note_death(options, child)
        say("killed" if os.WIFSIGNALED(status) else "survived", number)
        if not (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL) and status != 0:
            sys.exit(f"the child of point {number} failed: {status}")


async def _dying_at(options: argparse.Namespace, number: int) -> None:
    """Counts what happens on every connection from the first statement on, opening and migrating included."""
    moments = iter(range(1, sys.maxsize))

    def happened(_: object) -> None:
        if next(moments) == number:
            os.kill(os.getpid(), signal.SIGKILL)

    def watch(connection: apsw.Connection) -> None:
        connection.trace_v2(apsw.SQLITE_TRACE_STMT | apsw.SQLITE_TRACE_PROFILE, happened)

    apsw.connection_hooks.append(watch)
    await _episode(options, number, turns=6)
    say("moments", next(moments) - 1)


async def _episode(options: argparse.Namespace, seed: int, turns: int) -> None:
    """A short life of a process: it submits, works, beats, looks after others, leads, and goes."""
    random = Random(seed)
    async with client_of(options.store, options.history, lease=options.lease, seed=seed) as client:
        worker = Worker(client, options.lease)
        await worker.join()
        for _ in range(turns):
            await client.submit(batch(random))
            await worker.turn(slots=random.randint(1, 12))
            await worker.beat()
            term = await client.lead("upkeep", worker.name, 4 * SECOND)
            if term is not None:
                await client.outbox("audit", "", 10, term)
        await client.leave(worker.name)


def killed_at_random(options: argparse.Namespace) -> None:
    """Children that work for ever, two at a time, each killed at a moment that nobody chose."""
    random = Random(options.seed)
    children = [_fork(_endless(options, n), options) for n in range(2)]
    for number in range(options.batches):
        time.sleep(random.uniform(0.02, 0.25))  # the fault itself: a moment that has nothing to do with what the child does
        child = children.pop(0)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        _note_death(options, child)
        say("killed", number)
        if number < options.batches - 2:
            children.append(_fork(_endless(options, number + 2), options))


async def _endless(options: argparse.Namespace, seed: int) -> None:
    await _episode(options, options.seed * 1_000 + seed, turns=sys.maxsize)


def _fork(life: Coroutine[object, object, None], options: argparse.Namespace) -> int:
    """Nothing of the store is open here, and there is no thread: a fork is as good as a new process, and a second faster."""
    child = os.fork()
    if child:
        life.close()
        return child
    code = 1
    try:
        asyncio.run(life)
        code = 0
    except BaseException as error:
        say("failed", type(error).__name__, str(error).replace("\n", " "))
        raise
    finally:
        os._exit(code)


def _note_death(options: argparse.Namespace, child: int) -> None:
    with Recorder(options.history) as recorder:
        recorder.note(events.Died(worker=f"worker-{child}-1"))


def main() -> None:
    parser = argparse.ArgumentParser()
    programs = {"work": work, "sit": sit, "lead": lead, "killed-at-statements": killed_at_statements, "killed-at-random": killed_at_random}
    parser.add_argument("what", choices=programs)
    parser.add_argument("store", type=store_of)
    parser.add_argument("history", type=Path)
    parser.add_argument("--lease", type=int, default=4 * SECOND)
    parser.add_argument("--batches", type=int, default=0)
    parser.add_argument("--lose", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pause", default="")
    parser.add_argument("--wait", action="store_true")
    parser.add_argument("--points", type=lambda text: [int(part) for part in text.split(",")], default=[])
    options = parser.parse_args()
    run = programs[options.what]
    if asyncio.iscoroutinefunction(run):
        asyncio.run(run(options))
    else:
        run(options)


if __name__ == "__main__":
    main()
