"""Power loss under the whole engine: whatever the disk kept, the store is whole and has everything that was acknowledged.

One client does a little of everything on a disk that notes each change. Then the power is cut behind a thousand and more of these changes, in several
ways each. After each cut the file must hold exactly what it held after the last step that was answered, or after the one that was under way.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Awaitable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import apsw
import msgspec
import pytest

from taskmill import codec
from taskmill.clock import SECOND, ManualClock, SystemClock
from taskmill.engine import Checkpoint, Durability, Filter, Room
from taskmill.engines.rows import STATES
from taskmill.engines.sqlite.engine import SQLiteEngine
from taskmill.task import LIVE, Edge, NewTask, new_id
from tests.faults.invariants import broken
from tests.faults.leader import KEEP_NOTHING
from tests.faults.power import EVERYTHING, NOTHING, PowerVFS, Truncated, Written
from tests.faults.recorded import Recorded
from tests.faults.workload import Worker, batch, prepare
from tests.history import Bounds, Recorder, check, events, load
from tests.history.events import Event

LEASE = 4 * SECOND
BOUNDS = Bounds(max_crashes=1_000)


@pytest.fixture
def tmp_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The disk is ours, whatever it lies on."""
    return tmp_path_factory.mktemp("power")


@dataclass
class Run:
    """What was done, step by step: when each was answered, and what the store held then."""

    vfs: PowerVFS
    directory: Path
    durability: Durability = Durability.FSYNC
    clock: ManualClock = field(default_factory=ManualClock)
    points: list[int] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)
    contents: list[str] = field(default_factory=list)

    @property
    def store(self) -> Path:
        return self.directory / "store.db"

    @property
    def history(self) -> Path:
        return self.directory.parent / "history"

    async def step(self, done: Awaitable[object]) -> None:
        await done
        self.note()

    def note(self) -> None:
        self.points.append(self.vfs.points())
        connection = apsw.Connection(str(self.store), flags=apsw.SQLITE_OPEN_READONLY, vfs=self.vfs.name)
        self.contents.append(content(connection))
        connection.close()
        self.ended.append(SystemClock().monotonic())

    def truncate(self, mode: str) -> None:
        """The log goes into the file, as it does in time on every busy store."""
        connection = apsw.Connection(str(self.store), vfs=self.vfs.name)
        connection.execute(f"PRAGMA wal_checkpoint({mode})").fetchall()
        connection.close()
        self.note()


def content(db: apsw.Connection) -> str:
    """Everything that the store holds, as one number."""
    digest = hashlib.blake2b(digest_size=16)
    for (table,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT IN ('sqlite_stat1') ORDER BY name").fetchall():
        digest.update(repr((table, sorted(db.execute(f"SELECT * FROM {table}").fetchall(), key=repr))).encode())
    return digest.hexdigest()


async def record(run: Run, rounds: int) -> None:
    """A little of everything; each step is awaited before the next begins, so at most one is under way at any point."""
    engine = SQLiteEngine(run.store, clock=run.clock, durability=run.durability, vfs=run.vfs.name)
    await run.step(engine.open())
    with Recorder(run.history) as recorder:
        client = Recorded(engine, recorder)
        await run.step(prepare(client))
        run.truncate("PASSIVE")
        worker = Worker(client, LEASE)
        await run.step(worker.join())
        random = Random(1)
        for number in range(rounds):
            await _round(run, client, worker, random, number)
        await run.step(client.leave(worker.name))
    await engine.close()


async def _round(run: Run, client: Recorded, worker: Worker, random: Random, number: int) -> None:
    await run.step(client.submit(batch(random)))
    await run.step(client.submit(_family(number)))
    run.clock.advance("1s")
    await run.step(worker.beat())
    await run.step(client.recover_lost())
    worker.request += 1
    claim = await client.claim(worker.name, worker.request, ("default",), Room(9))
    worker.answered = worker.request
    run.note()
    for task in claim.tasks[:2]:
        entry = Checkpoint(task=task.id, worker=task.worker, token=task.token, name="half", value=b"1", unwind=False)
        await run.step(client.checkpoint([entry]))
    if claim.tasks:
        await run.step(client.engine.signal(claim.tasks[0].id, "go", b"1", new_id()))
        outcomes = [worker._outcome(task) for task in claim.tasks]
        await run.step(client.finish(outcomes[:4]))
        await run.step(client.finish(outcomes[4:]))
    if number % 3 == 1:
        term = await client.lead("upkeep", "me", LEASE)
        run.note()
        assert term is not None
        entries = await client.outbox("ended", "", 20, term)
        run.note()
        if entries:
            await run.step(client.outbox("ended", entries[-1].cursor, 20, term))
        await run.step(client.prune(5, term, KEEP_NOTHING))
    if number % 4 == 3:
        run.truncate(("PASSIVE", "RESTART", "TRUNCATE")[number // 4 % 3])


def _family(number: int) -> list[NewTask]:
    children = [NewTask(type="plain", payload=codec.encode({"do": "complete", "n": n})) for n in range(2)]
    parent = NewTask(type="capped", payload=codec.encode({"do": "complete"}), edges=tuple(Edge(child.id) for child in children))
    return [parent, *children]


class Judge:
    """Cuts the power and looks at what is left."""

    def __init__(self, run: Run, into: Path) -> None:
        self.run = run
        self.into = into
        self.recorded = load(run.history)
        self.bare: set[tuple[int, int]] = set()
        """How many changes were sure, and how many steps answered, where nothing but what was sure has been judged."""

    def cut(self, point: int, seed: int) -> Path:
        directory = self.into / f"cut-{point}-{seed}"
        self.run.vfs.cut(point, seed, directory)
        return directory

    def answered(self, point: int) -> int:
        """How many steps had been answered."""
        return sum(1 for each in self.run.points if each <= point)

    def look(self, point: int, seed: int) -> list[str]:
        done = self.answered(point)
        if seed == NOTHING:
            sure = sum(1 for change in self.run.vfs.recording.changes[:point] if not isinstance(change, Written | Truncated))
            if (sure, done) in self.bare:  # no sync since: bit for bit what an earlier cut has left
                return []
            self.bare.add((sure, done))
        directory = self.cut(point, seed)
        try:
            return [f"point {point} seed {seed}: {text}" for text in self._look(directory / "store.db", done)]
        finally:
            shutil.rmtree(directory)

    def _look(self, store: Path, done: int) -> list[str]:
        if not store.exists() or not done:
            return [] if not done else ["the file is gone"]
        connection = apsw.Connection(str(store))
        try:
            if connection.execute("PRAGMA integrity_check").fetchall() != [("ok",)]:
                return ["the file is damaged"]
            found = (
                [] if content(connection) in self.run.contents[done - 1 : done + 1] else [f"holds neither what it held after step {done} nor after the next"]
            )
            return found + broken(connection, pages=False) + [str(violation) for violation in check(self._history(connection, done), BOUNDS)]
        finally:
            connection.close()

    def _history(self, db: apsw.Connection, done: int) -> list[Event]:
        """What clients knew when the power went, and what the store shows now."""
        last = self.run.ended[done - 1]
        known = [event for event in self.recorded if event.began <= last]
        until = self.run.ended[done] if done < len(self.run.ended) else last
        under_way = [
            msgspec.structs.replace(event, answer="lost", ended=None) for event in self.recorded if last < event.began <= until and _can_be_lost(event)
        ]
        return [*known, *under_way, *self._reads(db, known, until)]

    def _reads(self, db: apsw.Connection, known: list[Event], now: int) -> list[Event]:
        rows = {row[0]: row[1:] for row in db.execute("SELECT id, state, version, executions, failures, crashes FROM taskmill_task")}
        gone = {task for (task,) in db.execute("SELECT id FROM taskmill_known")}
        reads: list[Event] = []
        for task in {event.task for event in known if isinstance(event, events.Submit)}:
            if task in rows:
                state, version, executions, failures, crashes = rows[task]
                seen = {"state": STATES[state].value, "version": version, "executions": executions, "failures": failures, "crashes": crashes}
            else:
                seen = {"state": "expired" if task in gone else "missing"}
            read = events.Read(task=task, state="missing", began=now + 1, ended=now + 2, final=True)
            reads.append(msgspec.structs.replace(read, **seen))
        return reads

    async def work_on(self, point: int, seed: int) -> list[str]:
        """A whole engine on what is left, with its live file as torn as the rest: it opens, and all work is done."""
        directory = self.cut(point, seed)
        store = directory / "store.db"
        clock = ManualClock(self.run.clock.now(), self.run.clock.monotonic())
        engine = SQLiteEngine(store, clock=clock)
        await engine.open()
        with Recorder(directory / "history") as recorder:
            client = Recorded(engine, recorder)
            await prepare(client)
            worker = Worker(client, LEASE)
            await worker.join()
            for _ in range(100):
                clock.advance("1s")
                await worker.beat()
                await client.recover_lost()
                await worker.turn(slots=50)
                if not (await engine.list(Filter(states=LIVE), n=1)).tasks:
                    break
        await engine.close()
        connection = apsw.Connection(str(store))
        alive = connection.execute("SELECT id, type, state FROM taskmill_task WHERE state < 5").fetchall()
        found = broken(connection)
        connection.close()
        shutil.rmtree(directory)
        return [f"point {point} seed {seed}: {text}" for text in (*found, *(f"{row} never ended" for row in alive))]


def _can_be_lost(event: Event) -> bool:
    return not isinstance(event, events.Read | events.Died)


async def recorded_run(tmp_path: Path, vfs: PowerVFS, rounds: int, durability: Durability = Durability.FSYNC) -> Judge:
    run = Run(vfs, tmp_path / "disk", durability)
    run.directory.mkdir()
    await record(run, rounds)
    return Judge(run, tmp_path)


async def test_the_power_is_cut_at_a_thousand_points(tmp_path: Path) -> None:
    with PowerVFS("power-engine") as vfs:
        judge = await recorded_run(tmp_path, vfs, 9)
        first = judge.run.points[1]  # before it, the settings are put one by one
        points = sorted({first, *judge.run.points, *Random(1).sample(range(first, vfs.points() + 1), 1_000)})
        assert len(points) >= 1_000
        wrong = [text for point in points for seed in (NOTHING, 2 + point % 5) for text in judge.look(point, seed)]
        assert wrong == []


async def test_the_engine_works_on_after_a_cut(tmp_path: Path) -> None:
    with PowerVFS("power-reopened") as vfs:
        judge = await recorded_run(tmp_path, vfs, 5)
        for point in range(0, vfs.points() + 1, vfs.points() // 50):
            assert await judge.work_on(point, EVERYTHING + point % 7) == []


async def test_a_weaker_durability_is_caught(tmp_path: Path) -> None:
    """Without a sync at every commit the last answers are lost, and this is how it shows: the judge is awake."""
    with PowerVFS("power-local") as vfs:
        judge = await recorded_run(tmp_path, vfs, 2, Durability.LOCAL)
        wrong = [text for point in judge.run.points[3:] for text in judge.look(point, NOTHING)]
    assert any("holds neither" in text for text in wrong)
    assert any("submit_lost" in text for text in wrong)
    assert not any("damaged" in text for text in wrong)


@pytest.mark.chaos
async def test_the_power_is_cut_at_every_point(tmp_path: Path) -> None:
    with PowerVFS("power-chaos") as vfs:
        judge = await recorded_run(tmp_path, vfs, 24)
        wrong = [text for point in range(judge.run.points[1], vfs.points() + 1) for seed in (NOTHING, EVERYTHING, 2, 3, 4) for text in judge.look(point, seed)]
        assert wrong == []
