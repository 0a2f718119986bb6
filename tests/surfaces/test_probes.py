"""Probes and metrics over HTTP: what a supervisor tells of itself, and what callers may do to it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from taskmill.clock import SECOND, ManualClock
from taskmill.engine import Engine
from taskmill.engines import create
from taskmill.errors import InvalidInput, TaskmillError
from taskmill.task import NewTask
from taskmill.worker import probes as module
from taskmill.worker.probes import MOST_HEAD, Probes
from taskmill.worker.supervisor import Supervisor

HANGS = 60.0

APP = """
from taskmill import App

app = App("sqlite:///store.db", grace_period="30s")


@app.task
def hold(fifo: str) -> str:
    with open(fifo) as file:
        return file.read()


@app.task
async def fail() -> None:
    raise ValueError("no")
"""


class Heard(msgspec.Struct):
    """An answer as it came over the socket."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def data(self) -> dict[str, object]:
        found = json.loads(self.body)
        assert isinstance(found, dict)
        return found


async def said(probes: Probes, request: bytes) -> bytes:
    """All that comes back, up to the end of the connection."""
    async with asyncio.timeout(HANGS):
        reader, writer = await asyncio.open_connection("127.0.0.1", probes.port)
        try:
            writer.write(request)
            return await reader.read()
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


async def asked(probes: Probes, request: bytes) -> Heard:
    head, _, body = (await said(probes, request)).partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    return Heard(int(first.split()[1]), {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}, body)


async def got(probes: Probes, path: str, method: str = "GET") -> Heard:
    return await asked(probes, f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())


async def until(probes: Probes, path: str, line: bytes) -> Heard:
    """The first answer that has this in it; a supervisor gives no signal to its callers."""
    async with asyncio.timeout(HANGS):
        while True:
            answer = await got(probes, path)
            if line in answer.body:
                return answer
            await asyncio.sleep(0.02)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def engine(clock: ManualClock) -> AsyncIterator[Engine]:
    engine = create("sqlite://:memory:", clock=clock)
    await engine.open()
    try:
        yield engine
    finally:
        await engine.close()


@pytest.fixture
async def probes(clock: ManualClock) -> AsyncIterator[Probes]:
    """Of a supervisor that has not begun."""
    probes = Probes(Supervisor("app.py"), "127.0.0.1", 0, clock=clock)
    await probes.open()
    try:
        yield probes
    finally:
        await probes.close()


# A supervisor at work


class Running(msgspec.Struct):
    """A supervisor with its children, and what it serves."""

    supervisor: Supervisor
    probes: Probes
    ending: asyncio.Task[int]


@pytest.fixture
async def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Running]:
    for name in [name for name in os.environ if name.startswith("TASKMILL_")]:
        monkeypatch.delenv(name)
    (tmp_path / "app.py").write_text(APP)

    async def ready(_: Supervisor) -> None:
        await served.run()

    supervisor = Supervisor(str(tmp_path / "app.py"), ready=ready)
    served = Probes(supervisor)
    await served.open()
    ending = asyncio.create_task(supervisor.run())
    try:
        await until(served, "/readyz", b'"ready":true')
        yield Running(supervisor, served, ending)
    finally:
        supervisor.stop()
        supervisor.stop()
        async with asyncio.timeout(HANGS):
            await asyncio.gather(ending, return_exceptions=True)


async def test_from_ready_to_stopping(running: Running, tmp_path: Path) -> None:
    supervisor, probes = running.supervisor, running.probes
    assert (await got(probes, "/livez")).data == {"live": True}
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    assert supervisor.engine is not None
    await supervisor.engine.submit([NewTask(type="hold", payload=msgspec.json.encode({"fifo": str(fifo)}))])
    end = await asyncio.to_thread(fifo.open, "w")  # the handler has opened its side: it runs
    with end:
        scrape = (await got(probes, "/metrics")).body.decode().splitlines()
        assert "taskqueue_worker_running 1.0" in scrape
        assert "taskqueue_worker_leases 1.0" in scrape
        assert "taskqueue_worker_concurrency 10.0" in scrape
        assert 'taskqueue_tasks_submitted_total{priority="normal",type="hold"} 1.0' in scrape
        await until(probes, "/metrics", b'taskqueue_leader{role="pruning"} 1.0')
        await until(probes, "/metrics", b'taskqueue_engine_call_duration_seconds_count{engine="sqlite",verb="heartbeat"}')
        supervisor.stop()
        await until(probes, "/metrics", b'taskqueue_worker_processes{state="draining"} 1.0')
        answer = await got(probes, "/readyz")
        assert answer.status == 503
        assert "it is stopping" in str(answer.data["reasons"])
        assert (await got(probes, "/livez")).status == 200
        end.write("done")
    async with asyncio.timeout(HANGS):
        assert await running.ending == 0
    assert 'taskqueue_tasks_completed_total{status="completed",type="hold"} 1.0' in (await probes.metrics.scrape()).decode()
    with pytest.raises(ConnectionError):
        await got(probes, "/livez")


async def test_a_child_that_dies_is_counted_and_missed_until_another_is_there(running: Running) -> None:
    supervisor, probes = running.supervisor, running.probes
    (child,) = supervisor.children
    child.process.kill()
    async with asyncio.timeout(HANGS):
        await child.vacated.wait()
    answer = await got(probes, "/readyz")
    assert answer.status == 503
    assert answer.data["reasons"] == ["0 of 1 workers are there"]
    await until(probes, "/metrics", b"taskqueue_worker_crashes_total 1.0")
    await until(probes, "/readyz", b'"ready":true')


async def test_what_children_count_is_told(running: Running) -> None:
    assert running.supervisor.engine is not None
    await running.supervisor.engine.submit([NewTask(type="fail", payload=b"{}")])
    await until(running.probes, "/metrics", b'taskqueue_task_retries_total{type="fail"}')
    await until(running.probes, "/metrics", b'taskqueue_time_in_queue_seconds_count{type="fail"}')


async def test_calls_of_children_to_the_store_are_told(running: Running) -> None:
    assert running.supervisor.engine is not None
    await running.supervisor.engine.submit([NewTask(type="fail", payload=b"{}")])
    await until(running.probes, "/metrics", b'taskqueue_engine_call_duration_seconds_count{engine="sqlite",verb="finish"}')
    await until(running.probes, "/metrics", b'taskqueue_engine_call_duration_seconds_count{engine="sqlite",verb="claim"}')


# Alive, ready


async def test_before_the_store_is_open_it_lives_but_is_not_ready(probes: Probes) -> None:
    assert (await got(probes, "/livez")).status == 200
    answer = await got(probes, "/readyz")
    assert answer.status == 503
    assert answer.data == {"ready": False, "reasons": ["0 of 1 workers are there", "the store is not open yet"]}


@pytest.fixture
def supervisor(engine: Engine, clock: ManualClock) -> Supervisor:
    """One whose store is open and whose last round of beats ended just now."""
    supervisor = Supervisor("app.py")
    supervisor.engine = engine
    supervisor.turned_at = clock.monotonic()
    return supervisor


@contextlib.asynccontextmanager
async def serving(supervisor: Supervisor, clock: ManualClock) -> AsyncIterator[Probes]:
    async with Probes(supervisor, clock=clock) as probes:
        yield probes


async def test_it_lives_while_beats_are_made(supervisor: Supervisor, clock: ManualClock) -> None:
    async with serving(supervisor, clock) as probes:
        clock.advance((supervisor.settings.lease - 1) / SECOND)
        assert (await got(probes, "/livez")).status == 200


async def test_late_beats_to_a_store_that_answers_call_for_a_restart(supervisor: Supervisor, clock: ManualClock) -> None:
    async with serving(supervisor, clock) as probes:
        clock.advance(supervisor.settings.lease / SECOND)
        answer = await got(probes, "/livez")
        assert answer.status == 503
        assert answer.data == {"live": False, "reasons": ["the store answers, but no beat was made for 4 s"]}


async def test_a_store_that_is_away_calls_for_none(supervisor: Supervisor, engine: Engine, clock: ManualClock) -> None:
    async with serving(supervisor, clock) as probes:
        await engine.close()
        clock.advance("1h")
        assert (await got(probes, "/livez")).status == 200
        answer = await got(probes, "/readyz")
        assert answer.status == 503
        assert "the store does not answer" in str(answer.data["reasons"])
        assert b"taskqueue_store_up 0.0" in (await got(probes, "/metrics")).body


# HTTP


async def test_an_answer_says_what_it_is(probes: Probes) -> None:
    answer = await got(probes, "/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert answer.headers["content-length"] == str(len(answer.body))
    assert answer.headers["connection"] == "close"
    assert answer.headers["cache-control"] == "no-store"


async def test_head_is_get_without_the_body(probes: Probes) -> None:
    whole, head = await got(probes, "/livez"), await got(probes, "/livez", "HEAD")
    assert (head.status, head.headers, head.body) == (whole.status, whole.headers, b"")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "get"])
async def test_nothing_else_is_allowed(probes: Probes, method: str) -> None:
    answer = await got(probes, "/livez", method)
    assert answer.status == 405
    assert answer.headers["allow"] == "GET, HEAD"


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        (b"GET /livez?verbose=1 HTTP/1.1", 200),
        (b"GET http://localhost/livez HTTP/1.0", 200),
        (b"GET / HTTP/1.1", 404),
        (b"POST /nowhere HTTP/1.1", 404),
        (b"GET /livez/ HTTP/1.1", 404),
        (b"GET /../livez HTTP/1.1", 404),
        (b"GET /livez", 400),
        (b"GET  /livez HTTP/1.1", 400),
        (b"\x16\x03\x01\x02\x00\x01\xff\xfe", 400),
        (b"", 400),
        (b"GET http://[ HTTP/1.1", 400),
        (b"PRI * HTTP/2.0", 505),
    ],
    ids=["query", "absolute", "root", "post", "slash", "dots", "no_version", "two_spaces", "binary", "empty", "no_url", "http2"],
)
async def test_requests_of_every_kind_have_an_answer(probes: Probes, request_line: bytes, status: int) -> None:
    assert (await asked(probes, request_line + b"\r\n\r\n")).status == status


async def test_a_head_that_does_not_end_is_refused(probes: Probes) -> None:
    answer = await asked(probes, b"GET /livez HTTP/1.1\r\nX: " + b"x" * 2 * MOST_HEAD)
    assert answer.status == 431


async def test_a_body_that_nobody_reads_does_not_cost_the_answer(probes: Probes) -> None:
    answer = await asked(probes, b"POST /livez HTTP/1.1\r\nContent-Length: 300000\r\n\r\n" + b"x" * 300_000)
    assert answer.status == 405


async def test_a_caller_that_says_nothing_is_let_go(probes: Probes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HEAD_PATIENCE", 0.01)
    assert (await asked(probes, b"GET /livez HTT")).status == 408


async def test_the_oldest_of_the_silent_goes_before_a_new_caller(probes: Probes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_CALLERS", 2)
    (oldest, one), (younger, other) = [await asyncio.open_connection("127.0.0.1", probes.port) for _ in range(2)]
    try:
        assert (await got(probes, "/livez")).status == 200
        async with asyncio.timeout(HANGS):
            with contextlib.suppress(ConnectionError):
                assert await oldest.read() == b""
            other.write(b"GET /livez HTTP/1.1\r\n\r\n")
            assert b"200 OK" in await younger.read()
    finally:
        for writer in (one, other):
            writer.close()


async def test_one_whose_answer_is_being_made_does_not_go(probes: Probes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_CALLERS", 1)
    begun, let = asyncio.Event(), asyncio.Event()

    async def scrape() -> bytes:
        begun.set()
        await let.wait()
        return b"done"

    monkeypatch.setattr(probes.metrics, "scrape", scrape)
    first = asyncio.create_task(got(probes, "/metrics"))
    await begun.wait()
    with contextlib.suppress(ConnectionError):
        assert await said(probes, b"GET /livez HTTP/1.1\r\n\r\n") == b""
    let.set()
    assert (await first).body == b"done"


async def test_probes_under_idle_sockets(probes: Probes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seventy of them, always renewed; a minute of nobody saying a word, as far as their time goes, does not free them either."""
    monkeypatch.setattr(module, "HEAD_PATIENCE", HANGS)
    monkeypatch.setattr(module, "MOMENT", 0.0)
    idle: list[asyncio.StreamWriter] = []
    try:
        for _ in range(5):
            for writer in idle:
                writer.close()
            idle = [(await asyncio.open_connection("127.0.0.1", probes.port))[1] for _ in range(70)]
            for _ in range(4):
                assert (await got(probes, "/livez")).status == 200
            assert len(probes._callers) <= module.MOST_SILENT + 1
    finally:
        for writer in idle:
            writer.close()


async def test_a_mistake_of_ours_is_not_explained_to_callers(probes: Probes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    async def scrape() -> bytes:
        raise RuntimeError("the password is tulip")

    monkeypatch.setattr(probes.metrics, "scrape", scrape)
    answer = await got(probes, "/metrics")
    assert answer.status == 500
    assert answer.data == {"error": "Internal Server Error"}
    assert "tulip" in caplog.text
    assert (await got(probes, "/livez")).status == 200


# Ports


async def test_a_port_in_use_is_one_clear_error(probes: Probes) -> None:
    with pytest.raises(TaskmillError) as refused:
        await Probes(Supervisor("app.py"), "127.0.0.1", probes.port).run()
    assert refused.value.code == "port_in_use"
    assert refused.value.hint
    assert str(probes.port) in str(refused.value)


async def test_a_worker_whose_port_is_in_use_says_so_and_starts_nothing(probes: Probes, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "taskmill", "worker", "app.py", "--port", str(probes.port)]
    process = await asyncio.create_subprocess_exec(*command, cwd=tmp_path, stderr=asyncio.subprocess.PIPE)
    _, errors = await process.communicate()
    assert process.returncode == 1
    assert errors.decode().splitlines() == [f"taskmill: port {probes.port} of 127.0.0.1 is in use (name another one, or 0 for any that is free)"]


async def test_a_free_port_is_told(probes: Probes, caplog: pytest.LogCaptureFixture) -> None:
    assert probes.port > 0
    with caplog.at_level("INFO", "taskmill"):
        other = Probes(Supervisor("app.py"))
        await other.open()
    await other.close()
    assert f"http://127.0.0.1:{other.port}/livez" in caplog.text


async def test_an_address_of_another_machine(probes: Probes) -> None:
    with pytest.raises(InvalidInput) as refused:
        await Probes(Supervisor("app.py"), "203.0.113.1", 0).open()
    assert refused.value.code == "invalid_host"


@pytest.mark.parametrize("port", [-1, 65_536])
async def test_a_number_that_is_no_port(port: int) -> None:
    with pytest.raises(InvalidInput, match="not a port"):
        Probes(Supervisor("app.py"), port=port)


async def test_it_ends_with_its_callers_and_its_port(clock: ManualClock) -> None:
    probes = Probes(Supervisor("app.py"), clock=clock)
    await probes.open()
    task = asyncio.create_task(probes.run())
    assert (await got(probes, "/livez")).status == 200
    reader, writer = await asyncio.open_connection("127.0.0.1", probes.port)
    writer.write(b"GET /li")
    await got(probes, "/livez")  # the one before is accepted by now
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with contextlib.suppress(ConnectionError):
        assert await reader.read() == b""
    writer.close()
    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind(("127.0.0.1", probes.port))
