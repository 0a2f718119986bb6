"""One writer thread per process: steps that wait while it commits share the next commit.

A group of steps is one transaction. A step that refuses (a TaskmillError) is taken back alone; anything unforeseen takes the whole group back, and each of its
steps is then tried alone, so that nobody pays for another's fault.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import apsw

from taskmill.clock import Clock
from taskmill.engine import Durability, Submitted
from taskmill.engines.sqlite.connection import WriteLock, translate
from taskmill.engines.sqlite.sql import Database
from taskmill.engines.sqlite.step import Step
from taskmill.engines.sqlite.submit import submit
from taskmill.errors import AnswerLost, StoreError, TaskmillError
from taskmill.task import NewTask, Rules

__all__ = ["Session", "Writer"]

Answer = TypeVar("Answer")
Found = TypeVar("Found")

MOST_STEPS = 1_000
MOST_TASKS = 5_000
"""Steps in one commit, and tasks that its submits bring: a group is for many small ones, not for holding the lock long."""


class Session:
    """A connection that writes: lock, begin, steps, commit. Used by the writer thread, and by a user's transaction for itself."""

    def __init__(self, connection: Database, lock: WriteLock, clock: Clock, committed: Callable[[Step], None], rules: Rules) -> None:
        self.db = connection
        self.step = Step(connection, rules)
        self._lock = lock
        self._clock = clock
        self._committed = committed

    def begin(self, *, synced: bool = False) -> None:
        """The clock is read when the lock is held, so no step is judged by a moment before it. `synced`: the commit waits for the disk, whatever others do."""
        self._lock.acquire()
        try:
            if synced:
                self.db.execute("PRAGMA synchronous = FULL").fetchall()
            self.db.execute("BEGIN IMMEDIATE")
            self.step.begin(self._clock.now())
        except BaseException as error:
            self.rollback()
            if isinstance(error, apsw.Error):
                raise translate(error) from None
            raise

    def commit(self) -> None:
        try:
            self.step.end()
            self.db.execute("COMMIT")
        except apsw.Error as error:
            # What is still open was not written, nor what found no space for its last frame: SQLite has rolled it back by itself.
            undone = self.db.in_transaction or isinstance(error, apsw.FullError)
            self.rollback()
            raise translate(error) if undone else AnswerLost(f"the commit did not answer: {error}", hint="ask again") from None
        self._lock.release()
        self._committed(self.step)

    def rollback(self) -> None:
        try:
            if self.db.in_transaction:
                self.db.execute("ROLLBACK")
        finally:
            self.step.forget()
            self._lock.release()

    def sync(self) -> None:
        """What was committed before is on the disk: a commit that leaves out a number and waits for it. (One that changes nothing writes nothing.)"""
        self.begin(synced=True)
        self.step.seq += 1
        self.commit()

    def relax(self) -> None:
        """Commits wait for the disk no longer."""
        self.db.execute("PRAGMA synchronous = NORMAL").fetchall()

    def close(self) -> None:
        self.db.close()
        self._lock.close()


class Job(Generic[Answer]):
    """A step and who waits for its answer."""

    def __init__(self, run: Callable[[Step], Any], after: Callable[[Any], Answer] | None = None, *, synced: bool = False) -> None:
        self.run = run
        self.after = after
        self.synced = synced
        """The store does not wait for the disk, this step does."""
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Answer] = self.loop.create_future()
        self.answer: Any = None
        self.error: BaseException | None = None

    def deliver(self) -> None:
        if self.future.done():
            return
        if isinstance(self.error, StopIteration):  # which a future refuses to carry
            self.future.set_exception(RuntimeError(f"a step stopped: {self.error!r}"))
        elif self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.answer)


class SubmitJob(Job[Sequence[Submitted]]):
    """Submits that share a commit also share their statements."""

    def __init__(self, tasks: Sequence[NewTask], durability: Durability, *, synced: bool) -> None:
        super().__init__(lambda step: submit(step, tasks, durability=durability), synced=synced)
        self.tasks = tasks
        self.durability = durability


class Writer:
    """The thread and its queue."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._jobs: queue.SimpleQueue[Job[Any] | None] = queue.SimpleQueue()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="taskmill-writer", daemon=True)
        self._thread.start()

    async def run(self, step: Callable[[Step], Answer], *, synced: bool = False) -> Answer:
        return await self._ask(Job(step, synced=synced))

    async def run_then(self, step: Callable[[Step], Found], after: Callable[[Found], Answer]) -> Answer:
        """`after` makes the answer of what the step found, when the lock is free again."""
        return await self._ask(Job(step, after))

    async def submit(self, tasks: Sequence[NewTask], durability: Durability, *, synced: bool) -> Sequence[Submitted]:
        return await self._ask(SubmitJob(tasks, durability, synced=synced))

    def _ask(self, job: Job[Answer]) -> asyncio.Future[Answer]:
        if self._closed:
            raise StoreError("the engine is closed", code="closed", hint="open it first")
        self._jobs.put(job)
        return job.future

    async def close(self) -> None:
        """What was asked for is still done."""
        self._closed = True
        self._jobs.put(None)
        await asyncio.to_thread(self._thread.join)

    def _work(self) -> None:
        open_ = True
        while open_:
            jobs, open_ = self._gather()
            if jobs:
                self._run(jobs)
                _conclude(jobs)
                _deliver(jobs)
        self._session.close()

    def _gather(self) -> tuple[list[Job[Any]], bool]:
        """All that wait now; False with the last of them."""
        job = self._jobs.get()
        jobs: list[Job[Any]] = []
        tasks = 0
        while job is not None:
            jobs.append(job)
            tasks += len(job.tasks) if isinstance(job, SubmitJob) else 0
            if len(jobs) >= MOST_STEPS or tasks >= MOST_TASKS:
                return jobs, True
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                return jobs, True
        return jobs, False

    def _run(self, jobs: list[Job[Any]]) -> None:
        try:
            self._transaction(jobs)
        except BaseException as error:  # the edge of the thread: whatever it is, somebody waits for the answer
            if len(jobs) > 1 and not isinstance(error, (StoreError, MemoryError)):
                for job in jobs:
                    self._run([job])
                return
            failure = translate(error) if isinstance(error, (apsw.Error, OSError)) else error
            for job in jobs:
                job.error = failure

    def _transaction(self, jobs: list[Job[Any]]) -> None:
        session = self._session
        synced = jobs[0].synced if len(jobs) == 1 else any(job.synced for job in jobs)
        session.begin(synced=synced)
        try:
            if len(jobs) == 1:
                jobs[0].answer = jobs[0].run(session.step)
            else:
                _run_group(session.step, jobs)
        except BaseException:
            session.rollback()
            raise
        session.commit()
        if synced:
            session.relax()


def _run_group(step: Step, jobs: list[Job[Any]]) -> None:
    submits = [job for job in jobs if isinstance(job, SubmitJob)]
    if submits:
        tasks = [task for job in submits for task in job.tasks]
        # The commit of all reaches what the most careful of them asked for.
        durability = Durability.FSYNC if any(job.durability is Durability.FSYNC for job in submits) else Durability.LOCAL
        answers = submit(step, tasks, durability=durability)
        place = 0
        for mine in submits:
            mine.answer = answers[place : place + len(mine.tasks)]
            place += len(mine.tasks)
    for job in jobs:
        if not isinstance(job, SubmitJob):
            _run_apart(step, job)


def _run_apart(step: Step, job: Job[Any]) -> None:
    """A step that others share the transaction with: its refusal is its own."""
    job.error = None
    mark = step.mark()
    step.db.execute("SAVEPOINT step")
    try:
        job.answer = job.run(step)
    except TaskmillError as error:
        step.db.execute("ROLLBACK TO step")
        step.back_to(mark)
        job.error = error
    step.db.execute("RELEASE step")


def _conclude(jobs: list[Job[Any]]) -> None:
    for job in jobs:
        if job.after is not None and job.error is None:
            try:
                job.answer = job.after(job.answer)
            except Exception as error:  # the edge of the thread: it is the answer of this one alone
                job.error = error


def _deliver(jobs: list[Job[Any]]) -> None:
    """One call into each event loop for all its answers."""
    loops: dict[asyncio.AbstractEventLoop, list[Job[Any]]] = {}
    for job in jobs:
        loops.setdefault(job.loop, []).append(job)
    for loop, mine in loops.items():
        try:
            loop.call_soon_threadsafe(_deliver_here, mine)
        except RuntimeError:  # the loop was closed while its callers waited: nobody is left to hear
            continue


def _deliver_here(jobs: list[Job[Any]]) -> None:
    for job in jobs:
        job.deliver()
