"""Handlers that misbehave, in a real worker: each attempt ends with its reason, the worker lives on, and the next task completes."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from taskmill.engine import Target
from taskmill.task import NewTask, Task
from tests.surfaces import workers
from tests.surfaces.workers import Client, Program, program, until

APP = Path(__file__).with_name("bad_handlers.py")
MODES = ("sync", "async", "isolated")


class Place(NamedTuple):
    """A worker of the bad handlers, and its store."""

    url: str
    worker: Program


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("handlers")
    url = f"sqlite:///{folder}/store.db"
    with program("worker", str(APP), folder=folder, url=url, settings={"kill_after": "1s"}) as worker:
        yield Place(url, worker)
        assert worker.end() == 0


@pytest.fixture
async def client(place: Place) -> AsyncIterator[Client]:
    async with workers.client(place.url) as client:
        await client.joined()
        yield client


async def unharmed(client: Client, *modes: str) -> None:
    """The next tasks complete, at their first attempt."""
    for mode in modes:
        task = await client.run(f"fine.{mode}")
        assert (task.state, task.result, task.executions) == ("completed", b'"fine"', 1)


async def refused(client: Client, task: Task, code: str) -> str:
    """It is dead after one attempt, whose record says why; what it says."""
    [attempt] = await client.attempts(task.id)
    assert task.state == "dead"
    assert task.error is not None
    assert task.error.code == code
    assert attempt.outcome == "failed"
    assert attempt.error is not None
    assert (attempt.error.code, attempt.error.message) == (code, task.error.message)
    return task.error.message


# Raising and returning


RAISED = {
    "system_exit": ("SystemExit", "bye"),
    "keyboard_interrupt": ("KeyboardInterrupt", ""),
    "generator_exit": ("GeneratorExit", ""),
    "base_exception": ("Odd", "odd"),
    "stop_async_iteration": ("StopAsyncIteration", ""),
    "cancelled_error": ("CancelledError", ""),
    "unwritable": ("Unwritable", "(its text cannot be written)"),
    "leaving": ("Leaving", "(its text cannot be written)"),
    "odd_text": ("ValueError", "a\\0b\\ud800c"),
    "long_text": ("ValueError", "x" * 2_000),
    "deep": ("ValueError", "at the bottom"),
    "many_causes": ("ValueError", "error 1999"),
    "group": ("BaseExceptionGroup", "both (2 sub-exceptions)"),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", RAISED)
async def test_what_it_raises_is_recorded(client: Client, name: str, mode: str) -> None:
    code, message = RAISED[name]
    task = await client.run(f"{name}.{mode}")
    assert await refused(client, task, code) == message
    assert task.error is not None
    assert len(task.error.traceback) <= 16_001
    await unharmed(client, mode)


@pytest.mark.parametrize(("mode", "code"), [("sync", "StopIteration"), ("async", "RuntimeError"), ("isolated", "StopIteration")])
async def test_stop_iteration(client: Client, mode: str, code: str) -> None:
    await refused(client, await client.run(f"stop_iteration.{mode}"), code)
    await unharmed(client, mode)


@pytest.mark.parametrize("mode", MODES)
async def test_recursion_for_ever(client: Client, mode: str) -> None:
    task = await client.run(f"recursion.{mode}")
    assert "maximum recursion depth exceeded" in await refused(client, task, "RecursionError")
    await unharmed(client, mode)


async def test_a_traceback_ends_where_it_happened(client: Client) -> None:
    task = await client.run("deep.sync")
    assert task.error is not None
    assert task.error.traceback.endswith("ValueError: at the bottom\n")
    assert "bad_handlers.py" in task.error.traceback
    assert "attempt.py" not in task.error.traceback


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("name", "why"), [("unencodable", "type object"), ("cyclic", "contains itself"), ("surrogate", "surrogate")], ids=["unencodable", "cyclic", "surrogate"]
)
async def test_a_result_that_cannot_be_written(client: Client, name: str, mode: str, why: str) -> None:
    assert why in await refused(client, await client.run(f"{name}.{mode}"), "result_encoding")
    await unharmed(client, mode)


async def test_a_result_of_100_megabytes(client: Client) -> None:
    ids = [await client.submit(f"huge.{mode}") for mode in MODES]
    for id in ids:
        assert "100000002 bytes" in await refused(client, await client.ended(id), "result_encoding")
    await unharmed(client, *MODES)


# Arguments of a foreign client


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("payload", "field"),
    [(b"{}", "number"), (b'{"number":"x"}', "number"), (b'{"number":1,"nmae":"x"}', "nmae"), (b"null", ""), (b"[1,2]", ""), (b'"number"', "")],
    ids=["missing", "wrong", "unknown", "null", "list", "text"],
)
async def test_arguments_that_do_not_fit_are_not_tried_again(client: Client, mode: str, payload: bytes, field: str) -> None:
    [id] = await client.submit_many([NewTask(type=f"wants.{mode}", payload=payload)])
    assert field in await refused(client, await client.ended(id), "invalid_arguments")
    assert await client.value(f"wants.{mode}", number=7) == 7


# What it does to the process


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["close_standard", "close_streams", "print_much", "leave_thread"])
async def test_files_and_threads(client: Client, name: str, mode: str) -> None:
    task = await client.run(f"{name}.{mode}")
    assert (task.state, task.executions) == ("completed", 1)
    await unharmed(client, mode, "isolated")
    assert (await client.run(f"print_much.{mode}")).state == "completed"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["fork_returning", "fork_raising"])
async def test_a_copy_does_not_come_back(client: Client, name: str, mode: str) -> None:
    task = await client.run(f"{name}.{mode}")
    assert (task.state, task.result, task.executions) == ("completed", b'"parent"', 1)
    await unharmed(client, mode)


async def test_a_copy_of_the_loop_does_not_go_on(client: Client) -> None:
    assert await client.value("fork_awaiting") == "the copy ended with 0"
    await unharmed(client, "async")


@pytest.mark.parametrize("mode", MODES)
async def test_a_copy_that_lives_on(client: Client, mode: str) -> None:
    copy = await client.value(f"fork_living.{mode}")
    assert isinstance(copy, int)
    try:
        await unharmed(client, mode)
    finally:
        with suppress(ProcessLookupError):
            os.kill(copy, signal.SIGKILL)
            assert mode != "isolated", "it lived longer than its attempt"


@pytest.mark.parametrize("mode", MODES)
async def test_context_variables_are_not_seen_by_others(client: Client, mode: str) -> None:
    ids = await client.submit_many([NewTask(type=f"{name}.{mode}", payload=b"{}") for name in ["set_variable"] * 20 + ["look_variable"] * 20])
    assert {(await client.ended(id)).result for id in ids[20:]} == {b'""'}


@pytest.mark.parametrize("what", ["cwd", "umask", "locale", "environ", "recursion", "fds"])
async def test_what_an_isolated_handler_changes_is_gone_with_it(client: Client, what: str) -> None:
    before = await client.value("look.isolated")
    changed = await client.value("change.isolated", what=what)
    after = await client.value("look.isolated")
    assert isinstance(before, dict)
    assert isinstance(changed, dict)
    assert isinstance(after, dict)
    assert {**changed, "pid": 0} != {**before, "pid": 0}
    assert {**after, "pid": 0} == {**before, "pid": 0}
    assert after["pid"] != changed["pid"]


async def test_signal_handlers_likewise(client: Client) -> None:
    before, changed, after = [await client.value(name) for name in ("look.isolated", "change_signal.isolated", "look.isolated")]
    assert isinstance(before, dict)
    assert isinstance(changed, dict)
    assert isinstance(after, dict)
    assert changed["usr1"] != before["usr1"] == after["usr1"]


async def test_a_runner_is_used_again_when_nothing_changed(client: Client) -> None:
    first, second = [await client.value("look.isolated") for _ in range(2)]
    assert first == second


@pytest.mark.parametrize("name", ["cancel_itself", "leave_task", "leave_failing_task"])
async def test_on_the_loop(client: Client, name: str) -> None:
    task = await client.run(name)
    assert (task.state, task.executions) == ("completed", 1)
    await unharmed(client, "async", "async")


async def test_a_handler_that_cancels_itself_and_waits(client: Client) -> None:
    await refused(client, await client.run("cancel_itself_and_wait"), "CancelledError")
    await unharmed(client, "async")


@pytest.mark.parametrize("mode", MODES)
async def test_a_log_line_cannot_fake_another(client: Client, place: Place, mode: str) -> None:
    before = len(place.worker.said)
    assert (await client.run(f"fake_lines.{mode}")).state == "completed"
    said = place.worker.said[before:]
    assert "fake line" in said
    assert "\x1b" not in said
    assert "\r" not in said
    assert not any(line.startswith(("2026-01-01", " fake", "fake")) for line in said.splitlines())


async def test_a_blocked_loop_is_told_and_keeps_its_lease(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    with program("worker", str(APP), folder=tmp_path, url=url) as worker:
        async with workers.client(url) as client:
            await client.joined()
            for mode in MODES:
                assert (await client.run(f"fake_lines.{mode}")).state == "completed"
            said = re.sub(r"task_id=\S+", "task_id=…", worker.said)
            assert said.count("one\\r [task_id=… task_type=two\\n2026-01-01 fake field attempt=1]\n  \\x1b[2J fake line\n") == 3
            id = await client.submit("block_loop", release=str(tmp_path / "release"))
            await until(lambda: "the loop of this worker is blocked" in worker.said, "a warning")
            await until(lambda: "block_loop" in worker.said and "in wait_for" in worker.said, "the stack")
            (tmp_path / "release").touch()
            assert (await client.ended(id)).state == "completed"
            assert [attempt.outcome for attempt in await client.attempts(id)] == ["completed"]
            await unharmed(client, "async")
        assert worker.end() == 0


# Time


@pytest.mark.parametrize("mode", MODES)
async def test_a_handler_that_ends_when_its_time_is_over(client: Client, mode: str) -> None:
    message = await refused(client, await client.run(f"slow.{mode}"), "timeout")
    assert message == "it took longer than its 300ms"
    await unharmed(client, mode)


@pytest.mark.parametrize("mode", MODES)
async def test_a_handler_that_ends_when_it_is_cancelled(client: Client, tmp_path: Path, mode: str) -> None:
    id = await client.submit(f"held.{mode}", started=str(tmp_path / "started"))
    await until((tmp_path / "started").exists, "its start")
    await client.operations.cancel([Target(id)])
    assert (await client.ended(id)).state == "cancelled"
    assert [attempt.outcome for attempt in await client.attempts(id)] == ["cancelled"]
    await unharmed(client, mode)


async def test_handlers_that_do_not_end_are_killed_and_nobody_else_is_blamed(client: Client, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    innocent = await client.submit("read_pipe", fifo=str(tmp_path / "fifo"))
    end = await asyncio.to_thread((tmp_path / "fifo").open, "w")  # it runs
    kinds = ("sync", "async", "isolated", "async_isolated")
    ids = {kind: await client.submit(f"swallow.{kind}") for kind in kinds}
    for kind, id in ids.items():
        task = await client.ended(id)
        assert (task.state, task.executions) == ("dead", 1), kind
        assert task.error is not None
        assert task.error.code == "timeout"
    end.close()
    again = await asyncio.to_thread((tmp_path / "fifo").open, "w")
    again.close()
    task = await client.ended(innocent)
    assert (task.state, task.failures, task.crashes) == ("completed", 0, 0)
    assert [attempt.outcome for attempt in await client.attempts(innocent)] == ["released", "completed"]
    await unharmed(client, *MODES)


async def test_a_loop_that_spins_past_its_deadline_is_killed(client: Client) -> None:
    message = await refused(client, await client.run("swallow.spin"), "timeout")
    assert "its process was killed" in message
    await unharmed(client, "async")


async def test_handlers_that_are_deaf_to_a_cancel_are_killed(client: Client, tmp_path: Path) -> None:
    ids = {mode: await client.submit(f"deaf.{mode}", started=str(tmp_path / mode)) for mode in MODES}
    for mode in MODES:
        await until((tmp_path / mode).exists, "its start")
    await client.operations.cancel([Target(id) for id in ids.values()])
    for mode, id in ids.items():
        assert (await client.ended(id)).state == "cancelled", mode
    await unharmed(client, *MODES)


# Death


@pytest.mark.parametrize("name", ["os_exit", "segfault", "close_all"])
async def test_death_in_a_process_of_its_own(client: Client, name: str) -> None:
    task = await client.run(f"{name}.isolated")
    assert task.state == "dead"
    assert task.error is not None
    assert task.error.code == "poison"
    assert [attempt.outcome for attempt in await client.attempts(task.id)] == ["crashed"]
    await unharmed(client, *MODES)


async def test_death_of_the_worker_process(tmp_path: Path) -> None:
    """Each of these takes down what runs beside it, once; then it is alone, and dies of its own. Who was alone already is not blamed."""
    fatal = {"os_exit.sync": "exit code 7", "segfault.async": "SIGSEGV", "close_all.async": "exit code 1"}
    url = f"sqlite:///{tmp_path}/store.db"
    with program("worker", str(APP), folder=tmp_path, url=url, settings={"kill_after": "1s"}) as worker:
        async with workers.client(url) as client:
            await client.joined()
            ids = await client.submit_many([NewTask(type=type, payload=b"{}", max_crashes=1) for type in fatal])
            others = await client.submit_many([NewTask(type=f"fine.{mode}", payload=b"{}", max_crashes=10) for mode in MODES * 3])
            for how, id in zip(fatal.values(), ids, strict=True):
                task = await client.ended(id)
                attempts = [attempt for attempt in await client.attempts(id) if attempt.outcome != "released"]
                assert (task.state, task.crashes, [attempt.outcome for attempt in attempts]) == ("dead", 2, ["crashed", "crashed"])
                assert attempts[-1].error is not None
                assert how in attempts[-1].error.message
            assert {(await client.ended(id)).state for id in others} == {"completed"}
            await unharmed(client, *MODES)
        assert worker.end() == 0
