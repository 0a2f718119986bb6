"""The context of a handler: what it shows, what it writes under its lease, and the children it makes."""

from __future__ import annotations

import asyncio
import logging
import pickle
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from taskmill import App, Context, Fail, RetryAfter, State
from taskmill.clock import MINUTE, SECOND, ManualClock
from taskmill.context import Run, Snooze, derived_id
from taskmill.engine import Checkpoint, Ending, Outcome, Room
from taskmill.errors import InvalidInput, InvalidPayload, StaleLease
from taskmill.task import Progress, Task


class Worker:
    """One worker by hand: it claims, and the test plays the handler."""

    def __init__(self, app: App, clock: ManualClock) -> None:
        self.app = app
        self.clock = clock
        self.requests = 0

    async def next(self, run: Run | None = None) -> Context:
        self.requests += 1
        claim = await self.app.engine.claim("w", self.requests, ["default"], Room(1))
        [claimed] = claim.tasks
        run = run or Run(received=self.clock.monotonic(), loop=asyncio.get_running_loop())
        run.started = self.clock.monotonic()
        run.deadline = run.started + claimed.timeout
        return Context(self.app, claimed, run)

    async def end(self, ctx: Context, ending: Ending, result: bytes | None = None) -> None:
        outcome = Outcome(task=ctx.id, worker="w", token=ctx.token, ending=ending, result=result)
        assert (await self.app.engine.finish([outcome])).refused == ()


@pytest.fixture
async def app() -> AsyncIterator[App]:
    app = App("sqlite://:memory:", clock=ManualClock())

    @app.task(timeout="1m")
    def work(n: int = 0) -> int:
        return n

    await app.open()
    await app.engine.join(app.joining("w"))
    yield app
    await app.close()


@pytest.fixture
def clock(app: App) -> ManualClock:
    assert isinstance(app.clock, ManualClock)
    return app.clock


@pytest.fixture
def worker(app: App, clock: ManualClock) -> Worker:
    return Worker(app, clock)


async def submitted(app: App, n: int = 0, **options: Any) -> str:
    return (await app.types["work"].options(**options).submit(n)).id


async def record(app: App, id: str) -> Task:
    return await app.operations.get(id)


# What it shows


async def test_the_task_and_its_attempt(app: App, worker: Worker, clock: ManualClock) -> None:
    id = await submitted(app, tenant="acme", headers={"traceparent": "00-1"}, priority="high")
    ctx = await worker.next()
    assert (ctx.id, ctx.type, ctx.queue, ctx.attempt, ctx.tenant, ctx.priority, ctx.must_end) == (id, "work", "default", 1, "acme", 2, None)
    assert ctx.headers == {"traceparent": "00-1"}
    assert ctx.token == ctx.claimed.token > 0
    assert ctx.remaining == MINUTE
    assert ctx.deadline == clock.now() + MINUTE
    clock.advance("40s")
    assert ctx.remaining == 20 * SECOND
    clock.advance("40s")
    assert ctx.remaining == 0
    assert repr(ctx) == f"<Context work {id} attempt 1>"


async def test_it_shows_what_the_executor_says(app: App, worker: Worker) -> None:
    await submitted(app)
    ctx = await worker.next()
    assert (ctx.cancelled, ctx.cancel_reason, ctx.lease_lost) == (False, None, False)
    ctx.run.cancelled = True
    ctx.run.reason = "timeout"
    assert (ctx.cancelled, ctx.cancel_reason) == (True, "timeout")
    ctx.run.reason, ctx.run.cancelled, ctx.run.lease_lost = None, False, True
    assert (ctx.cancelled, ctx.cancel_reason, ctx.lease_lost) == (True, "lease_lost", True)


async def test_the_results_of_what_it_waited_for(app: App, worker: Worker) -> None:
    first, second = await submitted(app, 1), await submitted(app, 2)
    await submitted(app, 3, after=[second, first], on_failure="ignore")
    await worker.end(await worker.next(), Ending.COMPLETED, b'{"n":1}')
    await worker.end(await worker.next(), Ending.DEAD)
    ctx = await worker.next()
    assert ctx.results == [None, {"n": 1}]
    assert ctx.outcomes == [State.DEAD, State.COMPLETED]


async def test_the_signals_sent_to_it(app: App, worker: Worker) -> None:
    id = await submitted(app)
    await app.operations.signal(id, "approved", b'{"by":"ada"}')
    ctx = await worker.next()
    [signal] = ctx.signals
    assert (signal.number, signal.name, signal.data) == (1, "approved", {"by": "ada"})


async def test_log_records_have_the_fields_of_the_task(app: App, worker: Worker, caplog: pytest.LogCaptureFixture) -> None:
    id = await submitted(app)
    ctx = await worker.next()
    with caplog.at_level(logging.INFO):
        ctx.log.info("sending %d", 3)
    [line] = caplog.records
    assert (line.getMessage(), line.name) == ("sending 3", "taskmill.task")
    assert {name: vars(line)[name] for name in ("task_id", "task_type", "queue", "attempt")} == {
        "task_id": id,
        "task_type": "work",
        "queue": "default",
        "attempt": 1,
    }


# What a handler raises


async def test_snooze_passes_through_except_exception(app: App, worker: Worker) -> None:
    await submitted(app)
    ctx = await worker.next()

    def handler() -> None:
        try:
            ctx.snooze("5m")
        except Exception:
            pytest.fail("taken for an error")

    with pytest.raises(Snooze) as caught:
        handler()
    assert caught.value.after == 5 * MINUTE
    with pytest.raises(InvalidInput):
        ctx.snooze("soon")


def test_what_a_handler_raises_says_what_it_means() -> None:
    assert RetryAfter("10s", "busy").after == 10 * SECOND
    assert str(RetryAfter("10s", "busy")) == "busy"
    assert (Fail("no such user").message, Fail("no", code="gone").code, Fail().code) == ("no such user", "gone", "failed")
    with pytest.raises(InvalidInput, match="RetryAfter"):
        RetryAfter("later")


# What it writes


async def test_checkpoints_are_there_for_this_attempt_and_the_next(app: App, worker: Worker) -> None:
    await submitted(app)
    ctx = await worker.next()
    assert ctx.checkpoints == {}
    await ctx.checkpoint("charged", {"amount": 5})
    await ctx.checkpoint("mailed")
    assert ctx.checkpoints == {"charged": {"amount": 5}, "mailed": None}
    await worker.end(ctx, Ending.RELEASED)
    assert (await worker.next()).checkpoints == {"charged": {"amount": 5}, "mailed": None}


async def test_a_checkpoint_that_cannot_be(app: App, worker: Worker) -> None:
    await submitted(app)
    ctx = await worker.next()
    with pytest.raises(InvalidPayload) as caught:
        await ctx.checkpoint("charged", {"by": object()})
    assert caught.value.field == "charged.by"
    with pytest.raises(InvalidInput, match="is not a name"):
        await ctx.checkpoint("Charged!", 1)
    assert ctx.checkpoints == {}


async def test_a_write_after_the_lease_is_refused_and_told(app: App, worker: Worker) -> None:
    id = await submitted(app)
    ctx = await worker.next()
    await worker.end(ctx, Ending.RELEASED)
    with pytest.raises(StaleLease) as caught:
        await ctx.progress(0.5)
    assert caught.value.task_id == id
    assert ctx.lease_lost
    assert ctx.cancelled
    with pytest.raises(StaleLease):
        await ctx.checkpoint("late", 1)
    assert (await worker.next()).checkpoints == {}


async def test_progress_is_written_at_once_and_then_four_times_a_second(app: App, worker: Worker, clock: ManualClock) -> None:
    id = await submitted(app)
    ctx = await worker.next()
    written = count_checkpoints(app)
    await ctx.progress(0.1, "reading")
    assert (await record(app, id)).progress == Progress(0.1, "reading")
    for step in range(100):
        await ctx.progress(step / 100)
    assert len(written) == 1
    clock.advance("250ms")
    await ctx.progress(0.99)
    assert [entry.progress for entry in written] == [Progress(0.1, "reading"), Progress(0.99)]


async def test_the_last_progress_is_written_by_itself(app: App, worker: Worker, clock: ManualClock) -> None:
    id = await submitted(app)
    ctx = await worker.next()
    await ctx.progress(0.1)
    await ctx.progress(0.2)
    await ctx.progress(0.3, "the last")
    ctx._write_soon()
    await late()
    assert (await record(app, id)).progress == Progress(0.3, "the last")


async def test_a_progress_after_the_end_disturbs_nobody(app: App, worker: Worker) -> None:
    await submitted(app)
    ctx = await worker.next()
    await ctx.progress(0.1)
    await ctx.progress(0.2)
    await worker.end(ctx, Ending.COMPLETED)
    ctx._write_soon()
    await late()
    assert ctx.lease_lost


async def late() -> None:
    """Until the progress that was put off is written."""
    from taskmill import context

    await asyncio.gather(*context._late)


def count_checkpoints(app: App) -> list[Checkpoint]:
    entries: list[Checkpoint] = []
    plain = app.checkpoint

    async def counted(entry: Checkpoint) -> Any:
        entries.append(entry)
        return await plain(entry)

    vars(app)["checkpoint"] = counted
    return entries


@pytest.mark.parametrize(("value", "kept"), [(0, 0.0), (1, 1.0), (1.0000000001, 1.0), (-1e-9, 0.0)])
async def test_progress_is_between_0_and_1(app: App, worker: Worker, value: float, kept: float) -> None:
    id = await submitted(app)
    await (await worker.next()).progress(value)
    assert (await record(app, id)).progress == Progress(kept)


@pytest.mark.parametrize("value", [50, -1, float("nan"), "half", True, None])
async def test_what_is_no_progress(app: App, worker: Worker, value: Any) -> None:
    await submitted(app)
    ctx = await worker.next()
    with pytest.raises(InvalidInput, match="is no progress"):
        await ctx.progress(value)


async def test_checkpoints_of_concurrent_handlers_share_a_step(app: App, worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    contexts = []
    for n in range(20):
        await submitted(app, n)
        contexts.append(await worker.next())
    sizes: list[int] = []
    plain = app.engine.checkpoint

    async def counted(entries: Any) -> Any:
        sizes.append(len(entries))
        return await plain(entries)

    monkeypatch.setattr(app.engine, "checkpoint", counted)
    await worker.end(contexts[7], Ending.RELEASED)
    answers = await asyncio.gather(*(ctx.checkpoint("done", 1) for ctx in contexts), return_exceptions=True)
    assert [type(each) for each in answers] == [StaleLease if n == 7 else type(None) for n in range(20)]
    assert len(sizes) <= 2


# Children


async def test_a_second_attempt_makes_no_second_child(app: App, worker: Worker) -> None:
    work = app.types["work"]
    await submitted(app, priority="high", tenant="acme", headers={"traceparent": "00-1", "own": "x"})

    async def handler(ctx: Context) -> list[str]:
        first = await ctx.submit(work, 1)
        again = await ctx.submit(work, 1)
        named = await ctx.submit("work", {"n": 2})
        called = await ctx.submit(work.options(priority="low", delay="1h").call(3))
        many = await ctx.submit_many([work.call(1), work.call(4)])
        return [first.id, again.id, named.id, called.id, *(handle.id for handle in many)]

    ctx = await worker.next()
    ids = await handler(ctx)
    assert len(set(ids)) == 6
    await worker.end(ctx, Ending.RELEASED)
    assert await handler(await worker.next()) == ids
    tasks = [await record(app, id) for id in ids]
    assert [task.priority for task in tasks] == [2, 2, 2, 0, 2, 2]
    assert {task.tenant for task in tasks} == {"acme"}
    assert {tuple(task.headers.items()) for task in tasks} == {(("traceparent", "00-1"),)}


async def test_an_id_of_the_childs_own_stays(app: App, worker: Worker) -> None:
    await submitted(app)
    ctx = await worker.next()
    wanted = derived_id("a", "b", b"c", 0)
    assert (await ctx.submit(app.types["work"].options(id=wanted, tenant="other").call(1))).id == wanted
    assert (await record(app, wanted)).tenant == "other"


def test_derived_ids_are_uuids_that_differ_with_everything() -> None:
    parts: list[tuple[str, str, bytes, int]] = [("a", "b", b"c", 0), ("x", "b", b"c", 0), ("a", "x", b"c", 0), ("a", "b", b"x", 0), ("a", "b", b"c", 1)]
    ids = [derived_id(*each) for each in parts]
    assert len(set(ids)) == 5
    assert all(str(UUID(id)) == id and UUID(id).version == 8 for id in ids)
    assert ids[0] == derived_id("a", "b", b"c", 0)


async def test_what_is_no_child(app: App, worker: Worker) -> None:
    await submitted(app)
    submit: Any = (await worker.next()).submit
    for wrong in ((print,), ("work", 1, 2), (app.types["work"].call(1), 2)):
        with pytest.raises(InvalidInput):
            await submit(*wrong)


# In a thread


async def test_a_handler_in_a_thread_does_the_same(app: App, worker: Worker) -> None:
    id = await submitted(app)
    ctx = await worker.next()
    seen = SimpleNamespace()

    def handler() -> None:
        seen.thread = threading.current_thread()
        ctx.sync.progress(0.5, "half")
        ctx.sync.checkpoint("step", 1)
        seen.child = ctx.sync.submit(app.types["work"], 5)
        seen.state = seen.child.status()

    await asyncio.to_thread(handler)
    assert seen.thread is not threading.main_thread()
    assert seen.state is State.PENDING
    assert (await record(app, id)).progress == Progress(0.5, "half")
    assert ctx.checkpoints == {"step": 1}
    assert (await ctx.submit(app.types["work"], 6)).id != seen.child.id


def test_a_handler_in_a_process_of_its_own_opens_the_store_for_itself(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    parent, child = App(url), App(url)
    for app in (parent, child):
        app.task(name="work")(lambda: None)
    handle = parent.types["work"].sync.submit()
    parent.block("join", lambda: parent.engine.join(parent.joining("w")))
    [claimed] = parent.block("claim", lambda: parent.engine.claim("w", 1, ["default"], Room(1))).tasks
    ctx = Context(child, claimed, Run())
    ctx.sync.progress(0.5)
    ctx.sync.checkpoint("step", 1)
    assert handle.progress() == Progress(0.5)
    child.sync.close()
    parent.sync.close()


async def test_on_the_loop_the_blocking_twin_is_refused(app: App, worker: Worker) -> None:
    await submitted(app)
    ctx = await worker.next()
    with pytest.raises(InvalidInput) as caught:
        ctx.sync.progress(0.5)
    assert caught.value.hint == "in async functions write: await ctx.progress()"


# Without a worker


async def test_an_inline_context_keeps_to_itself() -> None:
    ctx = Context.inline()
    assert (ctx.attempt, ctx.token, ctx.cancelled, ctx.results, ctx.signals) == (1, 0, False, [], [])
    assert ctx.remaining > 0
    await ctx.progress(0.5)
    await ctx.checkpoint("a", [1])
    assert ctx.checkpoints == {"a": [1]}


def test_what_handlers_raise_survives_the_way_between_processes() -> None:
    for error in (Fail("no", code="gone"), Snooze(5), RetryAfter("90s", "busy")):
        copy = pickle.loads(pickle.dumps(error))
        assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))
