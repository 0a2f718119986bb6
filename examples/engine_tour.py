"""A tour of the embedded engine: what it does with tasks, told in plain lines while it does it.

    python examples/engine_tour.py              on a file in a temporary folder, gone afterwards
    python examples/engine_tour.py shop.db      on a new file of that name, kept for you to look at

The store is real: a SQLite file, written and synced. Only its clock is moved by hand, so that nobody has to wait ten minutes
to see what happens in ten minutes; every line that begins with "…" is such a move.

It speaks to the engine directly and plays the workers itself; programs declare functions and submit calls instead, see the other examples.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from taskmill import codec
from taskmill.clock import SECOND, ManualClock, SystemClock, duration
from taskmill.engine import Beat, Claimed, Ending, Engine, Joining, Outcome, Room, Target
from taskmill.engines import create
from taskmill.retry import Retry, decide, error_names
from taskmill.task import Edge, ErrorInfo, NewTask, Priority, Task, TypeSettings

TYPES = {
    "mail": TypeSettings(),
    "sms": TypeSettings(limits=("gateway",)),
    "import": TypeSettings(limits=("database",)),
    "page": TypeSettings(),
    "report": TypeSettings(),
    "charge": TypeSettings(retry=Retry.fixed("30s", max_retries=1, jitter=0)),
    "video": TypeSettings(),
    "invoice": TypeSettings(),
}


def say(line: str) -> None:
    print(f"  {line}")


def scene(title: str) -> None:
    print(f"\n{title}")


class Tour:
    """The store, its clock, and the names by which the tour calls its tasks."""

    def __init__(self, engine: Engine, clock: ManualClock) -> None:
        self.engine = engine
        self.clock = clock
        self.names: dict[str, str] = {}

    def pass_time(self, by: str) -> None:
        self.clock.advance(by)
        print(f"  … {by} pass")

    def task(self, type_: str, name: str, **fields: Any) -> NewTask:
        """A new task that the tour calls by a name."""
        new = NewTask(type=type_, payload=codec.encode({"name": name}), **fields)
        self.names[new.id] = name
        return new

    async def submit(self, *tasks: NewTask) -> list[str]:
        return [answer.id for answer in await self.engine.submit(tasks)]

    async def state(self, id: str) -> str:
        [task] = await self.engine.get([id])
        assert isinstance(task, Task)
        return task.state.value

    def called(self, tasks: Sequence[Claimed]) -> str:
        return ", ".join(self.names[task.id] for task in tasks) or "nothing"


class Worker:
    """What a worker program does, by hand: join, claim, finish, beat."""

    def __init__(self, tour: Tour, name: str) -> None:
        self.tour = tour
        self.name = name
        self.request = 0

    async def join(self) -> Worker:
        await self.tour.engine.join(Joining(worker=self.name, queues=("default",), types=TYPES))
        return self

    async def claim(self, slots: int) -> tuple[Claimed, ...]:
        self.request += 1
        answer = await self.tour.engine.claim(self.name, self.request, ["default"], Room(slots))
        return answer.tasks

    async def beat(self, *held: Claimed) -> Beat:
        return await self.tour.engine.heartbeat(self.name, self.request, [task.token for task in held])

    async def finish(self, tasks: Sequence[Claimed], ending: Ending = Ending.COMPLETED, **fields: Any) -> tuple[str, ...]:
        """End these; why any of them was refused."""
        outcomes = [outcome(task, ending, **fields) for task in tasks]
        return tuple(refusal.code for refusal in (await self.tour.engine.finish(outcomes)).refused)


def outcome(task: Claimed, ending: Ending = Ending.COMPLETED, **fields: Any) -> Outcome:
    return Outcome(task=task.id, worker=task.worker, token=task.token, ending=ending, started_after=0, **fields)


async def submitting(tour: Tour) -> str:
    """What is acknowledged is kept; the id of the task that is to run later."""
    scene("Submitting")
    await tour.submit(tour.task("mail", "welcome mail"))
    say(f"A plain task: it is {await tour.state(next(iter(tour.names)))}, and it is on the disk.")
    [reminder] = await tour.submit(tour.task("mail", "reminder", delay=duration("10m")))
    say(f"One with a delay of 10 minutes: it is {await tour.state(reminder)}.")
    first, second = await tour.engine.submit([tour.task("mail", "thank-you note", idempotency_key="thanks-42") for _ in range(2)])
    say(f"Two with the same idempotency key: {first.status}, and {second.status} of the same task ({'one' if first.id == second.id else 'another'} id).")
    return reminder


async def claiming(tour: Tour, anna: Worker, ben: Worker) -> None:
    scene("Two workers claim by priority")
    await tour.submit(*(tour.task("mail", f"{priority.name.lower()} mail", priority=priority) for priority in Priority))
    say("Four more mails are submitted, from low to critical; the two from before are normal.")
    for worker in (anna, ben):
        tasks = await worker.claim(3)
        say(f"{worker.name} has room for three and gets: {tour.called(tasks)}.")
        await worker.finish(tasks, result=b'"sent"')
    say("No task went to both, and all are completed.")


async def limiting(tour: Tour, anna: Worker, ben: Worker) -> None:
    scene("Limits: a rate and a cap")
    await tour.submit(*(tour.task("sms", f"sms {n}") for n in range(1, 6)))
    say("Five text messages wait, and their gateway takes 3 a second.")
    tasks = await anna.claim(10)
    say(f"anna has room for ten and gets: {tour.called(tasks)}.")
    await anna.finish(tasks)
    say(f"They are done at once, and ben gets: {tour.called(await ben.claim(10))}.")
    tour.pass_time("1s")
    tasks = await ben.claim(10)
    say(f"ben gets: {tour.called(tasks)}.")
    await ben.finish(tasks)
    await tour.submit(*(tour.task("import", f"import {n}") for n in range(1, 5)))
    say("Four imports wait, and their database bears 2 at once.")
    running = list(await anna.claim(10))
    say(f"anna gets: {tour.called(running)}; ben gets: {tour.called(await ben.claim(10))}.")
    await anna.finish([running.pop(0)])
    tasks = await ben.claim(10)
    say(f"anna finishes one, and ben gets: {tour.called(tasks)}.")
    await anna.finish(running)
    await ben.finish(tasks)
    tasks = await ben.claim(10)
    await ben.finish(tasks)
    say(f"Last comes: {tour.called(tasks)}.")


async def waiting(tour: Tour, anna: Worker) -> None:
    scene("A task that waits for others")
    pages = [tour.task("page", f"page {n}") for n in (1, 2)]
    report = tour.task("report", "report", edges=tuple(Edge(page.id) for page in pages))
    await tour.submit(*pages, report)
    say(f"A report waits for two pages: it is {await tour.state(report.id)}.")
    for page in await anna.claim(10):
        await anna.finish([page], result=codec.encode(f"text of {tour.names[page.id]}"))
        say(f"{tour.names[page.id]} is completed; the report is {await tour.state(report.id)}.")
    [claimed] = await anna.claim(10)
    say(f"anna gets the report, and with it what the pages came to: {', '.join(str(codec.decode(page.result or b'null')) for page in claimed.results)}.")
    await anna.finish([claimed])


async def failing(tour: Tour, ben: Worker) -> None:
    scene("A retry, and the end of retries")
    [charge] = await tour.submit(tour.task("charge", "charge"))
    say("A charge is tried again once, 30 seconds after it failed.")
    while tasks := await ben.claim(1):
        await fail(ben, tasks[0])
        say(f"Attempt {tasks[0].attempt} fails: the charge is {await tour.state(charge)}.")
        tour.pass_time("30s")
    for attempt in await tour.engine.attempts(charge):
        assert attempt.error is not None
        say(f"On record: attempt {attempt.number} by {attempt.worker}, {attempt.outcome}, {attempt.error.message}.")
    await tour.engine.requeue([Target(charge)])
    tasks = await ben.claim(1)
    await ben.finish(tasks)
    say(f"Somebody mends the terminal and requeues it: attempt {tasks[0].attempt} succeeds, and it is {await tour.state(charge)}.")


async def fail(worker: Worker, task: Claimed) -> None:
    """The engine has no opinion on retries: a pure function decides, and the engine records."""
    error = ErrorInfo("ConnectionError", "the terminal does not answer")
    decision = decide(task.retry, task.failures + 1, error_names(ConnectionError), 0.5)
    if decision.after is None:
        await worker.finish([task], Ending.DEAD, error=error)
    else:
        await worker.finish([task], Ending.RETRY, error=error, after=decision.after)


async def cancelling(tour: Tour, anna: Worker) -> None:
    scene("Cancelling")
    running, pending = await tour.submit(tour.task("video", "first video"), tour.task("video", "second video"))
    [claimed] = await anna.claim(1)
    await tour.engine.cancel([Target(running), Target(pending)])
    say(f"Of two videos one is being made. Both are cancelled: the one that waited is {await tour.state(pending)}, the other is {await tour.state(running)}.")
    beat = await anna.beat(claimed)
    say(f"With her next beat anna hears that {len(beat.cancelled)} of her tasks is not wanted any more, and stops.")
    await anna.finish([claimed], Ending.CANCELLED)
    say(f"Now it is {await tour.state(running)}.")


async def crashing(tour: Tour, anna: Worker, ben: Worker) -> None:
    scene("A worker dies")
    carl = await Worker(tour, "carl").join()
    [video] = await tour.submit(tour.task("video", "third video"))
    [claimed] = await carl.claim(1)
    say(f"carl claims a video (attempt {claimed.attempt}) and is never heard of again; anna and ben beat every second.")
    lost = (await tour.engine.recover_lost()).lost
    for _ in range(5):
        tour.clock.advance("1s")
        await anna.beat()
        await ben.beat()
        lost = (await tour.engine.recover_lost()).lost
    print("  … 5s pass")
    say(f"{' and '.join(lost) or 'Nobody'} is found dead, and the video is {await tour.state(video)} again.")
    [again] = await anna.claim(1)
    await anna.finish([again])
    say(f"anna gets it (attempt {again.attempt}) and completes it.")
    [code] = await carl.finish([claimed])
    say(f"carl was only cut off, and reports his result late: refused, {code}. Nothing is written twice.")


async def transacting(tour: Tour, ben: Worker) -> None:
    scene("Business rows and tasks in one transaction")
    async with tour.engine.transaction() as tx:
        tx.execute("CREATE TABLE shop_order (number INTEGER PRIMARY KEY, paid INTEGER NOT NULL)")
    try:
        async with tour.engine.transaction() as tx:
            tx.execute("INSERT INTO shop_order VALUES (1, 0)")
            await tour.engine.submit([tour.task("invoice", "invoice 1")], tx=tx)
            raise ValueError("out of stock")
    except ValueError as error:
        say(f"Order 1 is rolled back ({error}): its row is gone, and ben gets: {tour.called(await ben.claim(1))}.")
    async with tour.engine.transaction() as tx:
        tx.execute("INSERT INTO shop_order VALUES (2, 0)")
        await tour.engine.submit([tour.task("invoice", "invoice 2")], tx=tx)
    tasks = await ben.claim(1)
    say(f"Order 2 is committed with its task, and ben gets: {tour.called(tasks)}.")
    async with tour.engine.transaction() as tx:
        tx.execute("UPDATE shop_order SET paid = 1 WHERE number = 2")
        await tour.engine.finish([outcome(tasks[0])], tx=tx)
        rows = tx.execute("SELECT number, paid FROM shop_order").fetchall()
    say(f"He marks it paid and completes the task in one commit. Orders now: {', '.join(f'{number} (paid: {bool(paid)})' for number, paid in rows)}.")


async def coming_due(tour: Tour, anna: Worker, reminder: str) -> None:
    scene("The reminder from the beginning")
    tour.pass_time("10m")
    tasks = await anna.claim(1)
    await anna.finish(tasks)
    say(f"anna gets: {tour.called(tasks)}; it is {await tour.state(reminder)}.")


async def adding_up(tour: Tour) -> None:
    scene("What is in the store")
    states: Counter[str] = Counter()
    for count in await tour.engine.counts():
        states[count.state.value] += count.tasks
    say(", ".join(f"{number} {state}" for state, number in sorted(states.items())) + ".")


async def tour_of(path: Path) -> None:
    clock = ManualClock(now=SystemClock().now() // SECOND * SECOND)
    engine = create(f"sqlite:///{path}", clock=clock)
    await engine.open()
    try:
        print(f"A new store: {path}")
        tour = Tour(engine, clock)
        await engine.put("limit", "gateway", b'{"rate": 3, "window": 1000000}')
        await engine.put("limit", "database", b'{"cap": 2}')
        anna, ben = await Worker(tour, "anna").join(), await Worker(tour, "ben").join()
        say(f"Two workers have joined, anna and ben, who know {len(TYPES)} types of task.")
        reminder = await submitting(tour)
        await claiming(tour, anna, ben)
        await limiting(tour, anna, ben)
        await waiting(tour, anna)
        await failing(tour, ben)
        await cancelling(tour, anna)
        await crashing(tour, anna, ben)
        await transacting(tour, ben)
        await coming_due(tour, anna, reminder)
        await adding_up(tour)
        for worker in (anna, ben):
            await engine.leave(worker.name)
    finally:
        await engine.close()


def main(arguments: Sequence[str]) -> int:
    if "--help" in arguments:
        print(__doc__)
        return 0
    if len(arguments) > 1 or any(argument.startswith("-") for argument in arguments):
        print(__doc__, file=sys.stderr)
        return 2
    if not arguments:
        with tempfile.TemporaryDirectory(prefix="taskmill-tour-") as folder:
            asyncio.run(tour_of(Path(folder) / "tour.db"))
        print("\nThat was the tour. The store was in a temporary folder and is gone.")
        return 0
    path = Path(arguments[0]).absolute()
    if path.exists():
        print(f"{path} exists already: the tour begins with an empty store, name a new file", file=sys.stderr)
        return 2
    asyncio.run(tour_of(path))
    print(f"\nThat was the tour. Look at its store with: taskmill db verify --url sqlite:///{path}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
