"""Every setting acts: for each one a case changes it and sees that something goes otherwise. One that is added without a case fails here."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import socket
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, cast

import aiohttp
import grpc
import pytest
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from taskmill import App
from taskmill.clock import HOUR, MILLISECOND, SECOND, ManualClock
from taskmill.config import Settings
from taskmill.engine import Call, Ending, Engine, Moved, Outcome, Room, observed
from taskmill.engines import create
from taskmill.errors import InvalidInput, ResultExpired, StoreError
from taskmill.maintenance import Maintenance
from taskmill.maintenance.pruning import Pruning, retention_of
from taskmill.operations import ROLES
from taskmill.task import State, Task
from tests.servers.programs import free_port
from tests.surfaces.api import served
from tests.surfaces.workers import GENEROUS, client, program

Case = Callable[[Path], Awaitable[None]]
ROOT = Path(__file__).parents[2]
CASES: dict[str, Case] = {}
ELSEWHERE = {
    "wait_for_store": "tests/surfaces/test_worker_waiting.py::test_it_is_told_to_end_while_it_waits",
    "start_timeout": "tests/surfaces/test_worker_starting.py::test_a_process_that_does_not_start_in_time_is_no_failure_of_the_task",
    "cors_origins": "tests/surfaces/test_access_hosts.py::test_pages_that_may_call",
    "allowed_hosts": "tests/surfaces/test_access_hosts.py::test_allowed_hosts",
    "connections_per_address": "tests/surfaces/test_bad_peers.py::test_connections_of_one_address",
    "server": "tests/surfaces/client/test_client_submits.py::test_server_and_key_come_from_settings",
    "api_key": "tests/surfaces/client/test_client_submits.py::test_server_and_key_come_from_settings",
    "tls_cert": "tests/surfaces/grpc/test_tls.py::test_settings_name_the_files",
    "tls_key": "tests/surfaces/grpc/test_tls.py::test_settings_name_the_files",
    "tls_client_ca": "tests/surfaces/grpc/test_tls.py::test_settings_name_the_files",
    "log_level": "tests/surfaces/test_worker_logs.py::test_a_scheduler_writes_json",
    "log_format": "tests/surfaces/test_worker_logs.py::test_a_setting_says_the_form_too",
}
"""Settings that a test of their own changes."""


def case(*names: str) -> Callable[[Case], Case]:
    def add(function: Case) -> Case:
        CASES.update(dict.fromkeys(names, function))
        return function

    return add


def test_every_setting_has_a_case() -> None:
    assert set(CASES) | set(ELSEWHERE) == set(Settings.__struct_fields__)
    assert not set(CASES) & set(ELSEWHERE)


@pytest.mark.parametrize("name", ELSEWHERE)
def test_the_test_that_is_named_changes_the_setting(name: str) -> None:
    path, _, function = ELSEWHERE[name].partition("::")
    text = (ROOT / path).read_text(encoding="utf-8")
    found = [node for node in ast.parse(text).body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == function]
    assert found, f"there is no {ELSEWHERE[name]}"
    assert name in (ast.get_source_segment(text, found[0]) or "").lower()


@pytest.mark.parametrize("name", CASES)
async def test_a_setting_acts(name: str, tmp_path: Path) -> None:
    await CASES[name](tmp_path)


# Tools


REQUESTS = count(1)


def declared(folder: Path, *, queue: str | None = None, clock: ManualClock | None = None, **settings: Any) -> App:
    """An app on the one store of the test, with one type."""
    app = App(f"sqlite:///{folder}/store.db", clock=clock, **settings)

    @app.task(queue=queue)
    def work(text: str = "") -> str:
        return text

    return app


async def submitted(app: App, **options: Any) -> Task:
    return await (await app.types["work"].options(**options).submit()).task()


async def ended(app: App, ending: Ending = Ending.COMPLETED) -> str:
    """A task of the app that a worker has ended."""
    handle = await app.types["work"].submit()
    await app.engine.join(app.joining("w"))
    [held] = (await app.engine.claim("w", next(REQUESTS), ["default"], Room(1))).tasks
    outcome = Outcome(task=held.id, worker="w", token=held.token, ending=ending, result=b"1" if ending is Ending.COMPLETED else None, started_after=0)
    assert not (await app.engine.finish([outcome])).refused
    return handle.id


async def until(look: Callable[[], Awaitable[bool]]) -> None:
    deadline = asyncio.get_running_loop().time() + GENEROUS
    while not await look():
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.02)


# The store


@case("url")
async def each_url_is_a_store(folder: Path) -> None:
    for name in ("a.db", "b.db"):
        async with App(f"sqlite:///{folder}/{name}") as app:
            await app.submit("work", queue="q")
            assert len((await app.engine.list()).tasks) == 1


@case("durability")
async def a_submit_says_how_far_it_has_come(folder: Path) -> None:
    found = []
    for level in ("fsync", "local"):
        async with declared(folder, durability=level) as app:
            answer = (await app.types["work"].submit()).submitted
            found.append(answer and answer.durability)
    assert found == ["fsync", "local"]


@case("busy_timeout")
async def who_waits_for_the_store_gives_up(folder: Path) -> None:
    async with declared(folder) as one, declared(folder, busy_timeout="50ms") as hurried, declared(folder) as patient:
        begun, end = asyncio.Event(), asyncio.Event()

        async def hold() -> None:
            async with one.transaction():
                begun.set()
                await end.wait()

        await hurried.types["work"].submit()
        await patient.types["work"].submit()
        holding = asyncio.create_task(hold())
        await begun.wait()
        waiting = asyncio.create_task(patient.submit("work"))
        with pytest.raises(StoreError) as busy:
            await hurried.submit("work")
        assert busy.value.code == "store_busy"
        assert not waiting.done()
        end.set()
        await holding
        assert await (await waiting).status() is State.PENDING


@case("name")
async def an_app_pauses_its_own_schedules_alone_when_it_has_them_no_more(folder: Path) -> None:
    async def joined(name: str, *, scheduled: bool) -> dict[str, bool]:
        async with declared(folder, name=name) as app:
            if scheduled:
                app.schedule("@daily", name="nightly")(app.types["work"])
            await app.engine.join(app.joining(f"w-{name}"))
            return {info.name: info.paused for info in await app.operations.schedules()}

    assert await joined("shop", scheduled=True) == {"nightly": False}
    assert await joined("other", scheduled=False) == {"nightly": False}
    assert await joined("shop", scheduled=False) == {"nightly": True}


@case("version")
async def a_lower_version_overwrites_nothing(folder: Path) -> None:
    found = []
    for version, queue in ((2, "second"), (1, "first"), (3, "third")):
        async with declared(folder, queue=queue, version=version) as app:
            await app.engine.join(app.joining(f"w{version}"))
            found += [info.settings.queue for info in await app.operations.types()]
    assert found == ["second", "second", "third"]


# Leases, terms, maintenance


@contextlib.asynccontextmanager
async def maintained(folder: Path, name: str, settings: Settings) -> AsyncIterator[Counter[str]]:
    """What maintenance asks of its store."""
    asked: Counter[str] = Counter()

    def tell(call: Call) -> None:
        asked[call.verb] += 1

    engine = observed(create(f"sqlite:///{folder}/{name}.db"), tell)
    await engine.open()
    running = asyncio.create_task(Maintenance(engine, settings, "me", {}).run())
    try:
        yield asked
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        await engine.close()


@case("beat")
async def a_leader_renews_its_term_with_each_beat(folder: Path) -> None:
    often, seldom = Settings(beat=20 * MILLISECOND), Settings(beat=HOUR, lease=4 * HOUR, term=4 * HOUR)
    async with maintained(folder, "often", often) as one, maintained(folder, "seldom", seldom) as other:
        await until(lambda: _seen(one, "lead", 30))
        assert other["lead"] <= 2 * len(ROLES)


@case("recovery_interval")
async def lost_tasks_are_looked_for_so_often(folder: Path) -> None:
    often, seldom = Settings(recovery_interval=20 * MILLISECOND), Settings(recovery_interval=HOUR, lease=4 * HOUR)
    async with maintained(folder, "often", often) as one, maintained(folder, "seldom", seldom) as other:
        await until(lambda: _seen(one, "recover_lost", 20))
        assert other["recover_lost"] <= 2


async def _seen(asked: Counter[str], verb: str, times: int) -> bool:
    return asked[verb] >= times


@case("lease")
async def a_silent_worker_is_lost_after_its_lease(folder: Path) -> None:
    found = []
    for lease in ("4s", "60s"):
        clock = ManualClock()
        (folder / lease).mkdir()
        async with declared(folder / lease, clock=clock, lease=lease) as app:
            await app.engine.join(app.joining("w"))
            await app.types["work"].submit()
            await app.engine.claim("w", 1, ["default"], Room(1))
            lost: list[str] = []
            for _ in range(6):
                clock.advance("2s")
                moved: Moved = await app.engine.recover_lost()
                lost += moved.lost
            found.append(lost)
    assert found == [["w"], []]


@case("remote_lease")
async def a_remote_worker_gets_the_lease_of_the_server(folder: Path) -> None:
    async with served(folder, remote_lease=90 * SECOND) as api:
        said = await api.ok("POST", "/api/v1/worker/join", {"queues": ["default"], "types": {"work": {}}})
        assert (said["lease"], said["beat_every"]) == (90, 30)


@case("term")
async def a_leader_that_is_silent_leads_until_its_term_is_over(folder: Path) -> None:
    found = []
    for term in ("4s", "60s"):
        clock = ManualClock()
        (folder / term).mkdir()
        async with declared(folder / term, clock=clock, term=term) as app:
            await app.engine.lead("pruning", "first")
            clock.advance("10s")
            found.append(await app.engine.lead("pruning", "second") is not None)
    assert found == [True, False]


# Tasks


@case("max_retries", "max_crashes", "timeout")
async def a_type_that_says_nothing_has_what_the_settings_say(folder: Path) -> None:
    async with declared(folder, max_retries=0, max_crashes=1_000, timeout="7d") as app:
        task = await submitted(app)
        assert (task.retry.max_retries, task.max_crashes, task.timeout) == (0, 1_000, 7 * 24 * HOUR)


@case("payload_limit")
async def a_payload_is_as_large_as_the_setting_allows(folder: Path) -> None:
    async with declared(folder, payload_limit="2KiB") as app:
        with pytest.raises(InvalidInput) as refused:
            await app.types["work"].submit("x" * 3_000)
        assert refused.value.code == "payload_too_large"
    async with declared(folder, payload_limit="1MiB") as app:
        task = await (await app.types["work"].submit("x" * 1_000_000)).task()
        assert len(task.payload) > 1_000_000
    (folder / "app.py").write_text(LARGE)
    async with client(f"sqlite:///{folder}/store.db") as caller:
        for limit, state in (("2KiB", State.DEAD), ("1MiB", State.COMPLETED)):
            with program("worker", "app.py", folder=folder, url=caller_url(folder), settings={"payload_limit": limit}) as worker:
                await caller.joined(1)
                assert (await caller.run("large")).state is state, worker.said


LARGE = """
from taskmill import App, Retry

app = App()


@app.task(retry=Retry(max_retries=0))
def large() -> str:
    return "x" * 500_000
"""


def caller_url(folder: Path) -> str:
    return f"sqlite:///{folder}/store.db"


@case("dedupe_window")
async def a_key_gives_one_task_for_so_long(folder: Path) -> None:
    found = []
    for window in ("1h", "3d"):
        clock = ManualClock()
        (folder / window).mkdir()
        async with declared(folder / window, clock=clock, dedupe_window=window) as app:
            first = await submitted(app, idempotency_key="k")
            await app.engine.cancel([_target(first.id)])
            clock.advance("2h")
            found.append((await submitted(app, idempotency_key="k")).id == first.id)
    assert found == [False, True]


def _target(id: str) -> Any:
    from taskmill.engine import Target

    return Target(id)


@case("history_retention", "dead_retention")
async def what_has_ended_is_kept_for_so_long(folder: Path) -> None:
    clock = ManualClock()
    async with declared(folder, clock=clock, history_retention="1h", dead_retention="3h") as app:
        ids = [await ended(app), await ended(app, Ending.DEAD)]
        kept = []
        for _ in range(2):
            clock.advance("2h")
            await Pruning(app.engine, "me", retention_of(app.settings)).once()
            kept.append([isinstance(task, Task) for task in await app.engine.get(ids)])
    assert kept == [[False, True], [False, False]]


@case("result_retention")
async def a_result_is_kept_for_so_long(folder: Path) -> None:
    clock = ManualClock()
    async with declared(folder, clock=clock, result_retention="1h") as app:
        handle = app.handle(await ended(app))
        assert await handle.result() == 1
        clock.advance("2h")
        await Pruning(app.engine, "me", retention_of(app.settings)).once()
        assert await handle.status() is State.COMPLETED
        with pytest.raises(ResultExpired, match="result_retention"):
            await handle.result()


@case("inbox_retention")
async def messages_are_known_for_so_long(folder: Path) -> None:
    """What an engine does with it: tests/engines/postgres/test_drivers_inbox.py."""
    kept: list[int] = []

    class Asked:
        """An engine that is asked to prune."""

        def __init__(self, engine: Engine) -> None:
            self._engine = engine

        def __getattr__(self, name: str) -> Any:
            return getattr(self._engine, name)

        async def prune(self, n: int, term: Any, retention: Any) -> Moved:
            kept.append(retention.inbox)
            return await self._engine.prune(n, term, retention)

    async with declared(folder, inbox_retention="2h") as app:
        await Pruning(cast("Engine", Asked(app.engine)), "me", retention_of(app.settings)).once()
    assert kept == [2 * HOUR]


# Workers


WORKER = """
import asyncio
import os
import threading
import time
from pathlib import Path

from taskmill import App, Retry

app = App()
active = peak = 0


@app.task
async def pid() -> int:
    return os.getpid()


@app.task
async def together() -> int:
    global active, peak
    active += 1
    peak = max(peak, active)
    await asyncio.sleep(0.05)
    active -= 1
    return peak


@app.task
async def gated() -> None:
    Path("begun").touch()
    while not Path("gate").exists():
        await asyncio.sleep(0.02)


@app.task(timeout="100ms", retry=Retry(max_retries=0))
def deaf() -> None:
    while True:
        time.sleep(0.1)
"""


@contextlib.asynccontextmanager
async def working(folder: Path, name: str = "one", **settings: str) -> AsyncIterator[tuple[Any, Any]]:
    """A worker in a folder of its own, and a client of its store."""
    place = folder / name
    place.mkdir()
    (place / "app.py").write_text(WORKER)
    async with client(caller_url(place)) as caller:
        with program("worker", "app.py", folder=place, url=caller_url(place), settings=settings) as worker:
            await caller.joined(int(settings.get("processes", "1")))
            yield caller, worker


@case("concurrency")
async def so_many_run_at_once(folder: Path) -> None:
    peaks = []
    for many in ("1", "5"):
        async with working(folder, many, concurrency=many) as (caller, _):
            ids = [await caller.submit("together") for _ in range(30)]
            peaks.append(max([int((await caller.ended(id)).result or b"0") for id in ids]))
    assert peaks[0] == 1
    assert 1 < peaks[1] <= 5


@case("processes")
async def so_many_processes_join(folder: Path) -> None:
    async with working(folder, processes="2") as (caller, _):
        assert len(await caller.joined(2)) == 2


@case("max_tasks", "max_memory")
async def a_worker_process_is_replaced(folder: Path) -> None:
    for setting in ({"max_tasks": "1"}, {"max_memory": "1"}, {}):
        async with working(folder, f"with-{'-'.join(setting)}", **setting) as (caller, _):
            pids = {await caller.value("pid") for _ in range(3)}
            if setting:

                async def replaced(caller: Any = caller, pids: set[object] = pids) -> bool:
                    pids.add(await caller.value("pid"))
                    return len(pids) > 1

                await until(replaced)
            else:
                assert len(pids) == 1


@case("maintenance")
async def a_worker_leads_only_where_it_maintains(folder: Path) -> None:
    async with working(folder, "with") as (one, _), working(folder, "without", maintenance="false") as (other, _):

        async def leads() -> bool:
            return len(await one.engine.leaders(ROLES)) > 0

        await until(leads)
        await other.value("pid")
        assert await other.engine.leaders(ROLES) == ()


@case("grace_period")
async def running_tasks_may_go_on_for_so_long(folder: Path) -> None:
    states = []
    for grace in ("0s", "1h"):
        async with working(folder, grace, grace_period=grace) as (caller, worker):
            id = await caller.submit("gated")
            await until(partial(_exists, folder / grace / "begun"))
            worker.process.terminate()
            if grace == "1h":
                (folder / grace / "gate").touch()
            assert await asyncio.to_thread(worker.process.wait, GENEROUS) == 0
            states.append((await caller.operations.get(id)).state)
    assert states == [State.PENDING, State.COMPLETED]


async def _exists(path: Path) -> bool:
    return await asyncio.to_thread(path.exists)


@case("kill_after")
async def a_handler_that_does_not_listen_is_killed_after_so_long(folder: Path) -> None:
    async with working(folder, "soon", kill_after="1s") as (one, _), working(folder, "late", kill_after="1h") as (other, _):
        late = await other.submit("deaf")
        assert (await one.run("deaf")).state is State.DEAD
        assert (await other.operations.get(late)).state is not State.DEAD


# The server


async def open_at(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=1):
            return True
    except OSError:
        return False


@case("host", "port", "grpc_port", "audit_log")
async def a_server_listens_where_it_is_told_and_writes_down_changes(folder: Path) -> None:
    port, grpc_port = free_port(), free_port()
    settings = {"host": "127.0.0.2", "port": str(port), "grpc_port": str(grpc_port), "audit_log": "mine.jsonl"}
    async with client(caller_url(folder)):
        with program("api", folder=folder, url=caller_url(folder), settings=settings):
            for number in (port, grpc_port):
                await until(partial(open_at, "127.0.0.2", number))
                assert not await open_at("127.0.0.1", number)
            async with (
                aiohttp.ClientSession() as session,
                session.put(f"http://127.0.0.2:{port}/api/v1/limits/gate", json={"cap": 1}, headers={"Host": f"localhost:{port}"}) as answer,
            ):
                assert answer.status == 201, await answer.text()
    assert '"limit.put"' in (folder / "mine.jsonl").read_text()


@case("allowed_origins")
async def pages_of_other_sites_may_listen(folder: Path) -> None:
    for allowed in ("", "https://pages.example"):
        (folder / f"o{len(allowed)}").mkdir()
        async with served(folder / f"o{len(allowed)}", keys=True, allowed_origins=allowed) as api:
            headers = {"Origin": "https://pages.example", "Authorization": f"Bearer {await api.key('read')}"}
            try:
                async with api._session.ws_connect(f"{api.url}/ws", headers=headers):
                    assert allowed
            except aiohttp.WSServerHandshakeError as error:
                assert (error.status, allowed) == (403, "")


@case("grpc_reflection")
async def services_are_listed_where_the_server_tells_them(folder: Path) -> None:
    found = []
    for told in ("true", "false"):
        port, grpc_port = free_port(), free_port()
        settings = {"port": str(port), "grpc_port": str(grpc_port), "grpc_reflection": told}
        async with client(caller_url(folder)):
            with program("api", folder=folder, url=caller_url(folder), settings=settings):
                await until(partial(open_at, "127.0.0.1", grpc_port))
                found.append(await _lists_services(grpc_port))
    assert found == [True, False]


async def _lists_services(port: int) -> bool:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = cast("Any", reflection_pb2_grpc.ServerReflectionStub)(channel)
        call = stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")]))
        try:
            answers = [answer async for answer in call]
        except grpc.aio.AioRpcError as error:
            assert error.code() is grpc.StatusCode.UNIMPLEMENTED
            return False
    return any("taskmill" in each.name for each in answers[0].list_services_response.service)
