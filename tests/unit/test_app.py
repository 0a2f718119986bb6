"""The App: where its store is, how it opens and closes, what it submits, and what it tells the store of its types."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from taskmill import App, Call, Context, Handle, Retry, State, TaskType
from taskmill.clock import MINUTE, SECOND, ManualClock
from taskmill.declared import settings_of
from taskmill.engine import Joining
from taskmill.engines import create
from taskmill.errors import AppError, InvalidInput, InvalidSettings, StoreError, WrongStore
from taskmill.task import TypeSettings, new_id


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[App]:
    app = App(f"sqlite:///{tmp_path / 'store.db'}")
    declare(app)
    yield app
    await app.close()


def declare(app: App) -> None:
    @app.task(queue="mail", retry=Retry.fixed("2s"), timeout="30s", rate_limit="100/m")
    async def send_welcome(ctx: Context, user_id: int) -> str:
        return f"sent to {user_id}"

    @app.task
    def add(a: int, b: int = 1) -> int:
        return a + b


def of(app: App, name: str) -> TaskType[..., Any, Any]:
    return app.types[name]


# Where the store is


def run_python(folder: Path, code: str, **environment: str) -> str:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("TASKMILL_")}
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=folder,
        env={**clean, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == ""
    return ran.stdout


SHOW = "import app; print(app.app.loaded.settings.url.reveal(), app.app.loaded.folder(app.app.folder))"


def test_settings_come_from_argument_then_environment_then_file_then_default(tmp_path: Path) -> None:
    inner, other = tmp_path / "inner", tmp_path / "other"
    inner.mkdir()
    other.mkdir()
    app = inner / "app.py"
    path = {"PYTHONPATH": str(inner)}
    app.write_text("from taskmill import App\napp = App()\n")
    assert run_python(other, SHOW, **path) == f"sqlite:///taskmill.db {inner}\n"
    (tmp_path / "taskmill.toml").write_text('url = "sqlite:///from-file.db"\n')
    assert run_python(other, SHOW, **path) == f"sqlite:///from-file.db {tmp_path}\n"
    assert run_python(other, SHOW, **path, TASKMILL_URL="sqlite:///from-env.db") == f"sqlite:///from-env.db {tmp_path}\n"
    app.write_text('from taskmill import App\napp = App("sqlite:///from-code.db")\n')
    assert run_python(other, SHOW, **path, TASKMILL_URL="sqlite:///from-env.db") == f"sqlite:///from-code.db {tmp_path}\n"


def test_making_an_app_reads_and_opens_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "taskmill.toml").write_text("this is not TOML")
    monkeypatch.chdir(tmp_path)
    App("nonsense://")
    assert [each.name for each in tmp_path.iterdir()] == ["taskmill.toml"]


async def test_what_is_wrong_with_the_settings_is_said_at_first_use() -> None:
    with pytest.raises(InvalidSettings, match="no engine 'nonsense'"):
        await App("nonsense://").open()
    with pytest.raises(InvalidSettings, match="did you mean concurrency"):
        await App("sqlite://:memory:", concurency=3).open()


async def test_an_app_that_could_not_open_opens_later(tmp_path: Path) -> None:
    missing = tmp_path / "folder"
    app = App(f"sqlite:///{missing / 'store.db'}")
    declare(app)
    first = await asyncio.gather(*(of(app, "add").submit(1) for _ in range(3)), return_exceptions=True)
    assert all(isinstance(each, (StoreError, WrongStore)) for each in first)
    missing.mkdir()
    assert await (await of(app, "add").submit(1)).status() is State.PENDING
    await app.close()


# Opening and closing


async def test_an_app_opens_itself_and_opens_again(app: App) -> None:
    with pytest.raises(AppError, match="not open"):
        _ = app.engine
    handle = await of(app, "add").submit(1)
    first = app.engine
    await app.close()
    with pytest.raises(AppError, match="not open"):
        _ = app.operations
    assert await handle.status() is State.PENDING
    assert app.engine is not first
    await app.close()
    await app.close()


async def test_as_a_context_manager(app: App) -> None:
    async with app as opened:
        assert opened is app
        assert await app.engine.items("type") == ()
    with pytest.raises(AppError, match="not open"):
        _ = app.engine


async def test_many_first_uses_open_once(app: App) -> None:
    handles = await asyncio.gather(*(of(app, "add").submit(i) for i in range(50)))
    assert len({handle.id for handle in handles}) == 50


async def test_an_engine_that_is_handed_in_is_not_closed(tmp_path: Path) -> None:
    clock = ManualClock()
    engine = create(f"sqlite:///{tmp_path / 'store.db'}", clock=clock)
    await engine.open()
    app = App("sqlite:///never-opened.db")
    declare(app)
    app.use(engine)
    assert app.engine is engine
    assert app.clock is clock
    handle = await of(app, "add").submit(1)
    await app.close()
    [task] = await engine.get([handle.id])
    assert task is not None
    await engine.close()


def test_a_second_loop_opens_the_store_anew(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path / 'store.db'}")
    declare(app)

    async def submit() -> Handle[Any]:
        return await of(app, "add").submit(1)

    async def look(handle: Handle[Any]) -> State:
        try:
            return await handle.status()
        finally:
            await app.close()

    handle = asyncio.run(submit())
    assert asyncio.run(look(handle)) is State.PENDING


def test_a_loop_that_stands_still_is_not_waited_for(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path / 'store.db'}")
    declare(app)

    async def submit() -> Handle[Any]:
        return await of(app, "add").submit(1)

    async def look(handle: Handle[Any]) -> State:
        return await handle.status()

    with contextlib.closing(asyncio.new_event_loop()) as loop:
        handle = loop.run_until_complete(submit())
        assert handle.sync.status() is State.PENDING
        assert loop.run_until_complete(look(handle)) is State.PENDING
    app.sync.close()


async def test_another_loop_is_taken_home(app: App) -> None:
    await app.open()

    async def elsewhere() -> tuple[str, State]:
        assert asyncio.get_running_loop() is not app.home
        handle = await of(app, "add").submit(5)
        return handle.id, await handle.status()

    id, status = await asyncio.to_thread(asyncio.run, elsewhere())
    assert status is State.PENDING
    assert (await app.handle(id).task()).payload == b'{"a":5}'


def test_a_forked_process_opens_its_own(tmp_path: Path) -> None:
    code = f"""
import os
from taskmill import App
app = App("sqlite:///{tmp_path / "store.db"}")
@app.task
def add(a: int) -> None: ...
mine = add.sync.submit(1)
child = os.fork()
if child == 0:
    assert add.sync.submit(2).status() == "pending"
    assert mine.status() == "pending"
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert add.sync.submit(3).status() == "pending"
app.sync.close()
print("done")
"""
    assert run_python(tmp_path, code) == "done\n"


@pytest.mark.parametrize("way", ["add.sync.submit(1)", "import asyncio; asyncio.run(main())"])
def test_a_program_that_does_not_close_ends(tmp_path: Path, way: str) -> None:
    code = f"""
from taskmill import App
app = App("sqlite:///{tmp_path / "store.db"}")
@app.task
def add(a: int) -> None: ...
async def main(): await add.submit(1)
{way}
print("done")
"""
    assert run_python(tmp_path, code) == "done\n"


def test_importing_loads_no_driver_and_no_server(tmp_path: Path) -> None:
    code = """
import sys
import taskmill
cheap = set(sys.modules)
taskmill.App
heavy = {"apsw", "click", "rich", "starlette", "uvicorn", "aiohttp", "uvloop", "prometheus_client", "pydantic", "asyncpg", "redis", "grpc", "sqlite3"}
print(sorted(heavy & set(sys.modules)), sorted({"asyncio", "msgspec", "logging"} & cheap))
"""
    assert run_python(tmp_path, code) == "[] []\n"


def test_the_public_names_are_there() -> None:
    import taskmill

    assert all(getattr(taskmill, name) is not None for name in taskmill.__all__)
    assert set(taskmill.__all__) <= set(dir(taskmill))
    with pytest.raises(AttributeError, match="no attribute 'Job'"):
        _ = taskmill.Job


# Submitting


async def test_options_reach_the_task(app: App) -> None:
    options = of(app, "send_welcome").options(delay="10m", priority="high", tenant="acme", tags={"a": "b"}, expires="1h")
    task = await (await options.submit(42)).task()
    assert (task.state, task.priority, task.tenant, task.tags) == (State.SCHEDULED, 2, "acme", {"a": "b"})
    assert task.run_at - task.created_at == 10 * MINUTE
    assert task.expires_at is not None


def test_without_a_loop_a_submit_names_the_door(app: App) -> None:
    add = of(app, "add")
    verbs: dict[str, Any] = {
        "add.sync.submit()": lambda: add.submit(1),
        "add.options(…).sync.submit()": lambda: add.options(delay=1).submit(1),
        "app.sync.submit()": lambda: app.submit("add", {"a": 1}),
        "app.sync.submit_many()": lambda: app.submit_many([add.call(1)]),
        "handle.sync.result()": lambda: app.handle(new_id()).result(),
        "handle.sync.status()": lambda: app.handle(new_id()).status(),
    }
    for blocking, verb in verbs.items():
        with pytest.raises(InvalidInput) as caught:
            verb()
        assert caught.value.code == "no_loop"
        assert caught.value.hint == f"from plain functions call {blocking}"


async def test_concurrent_submits_share_commits(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    await app.open()
    batches: list[int] = []
    plain = app.engine.submit

    async def counted(tasks: Any, **kwargs: Any) -> Any:
        batches.append(len(tasks))
        return await plain(tasks, **kwargs)

    monkeypatch.setattr(app.engine, "submit", counted)
    await asyncio.gather(*(of(app, "add").submit(i) for i in range(100)))
    assert sum(batches) == 100
    assert len(batches) <= 3


# In the user's transaction


async def test_a_task_of_a_transaction_exists_when_it_commits(app: App) -> None:
    gone = new_id()

    async def fails() -> None:
        async with app.transaction() as tx:
            await of(app, "send_welcome").options(tx=tx, id=gone).submit(1)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fails()
    async with app.transaction() as tx:
        there = await of(app, "send_welcome").options(tx=tx).submit(2)
        many = await app.submit_many(of(app, "add").options(tx=tx).call(i) for i in range(3))
    found = await app.engine.get([gone, there.id, *(handle.id for handle in many)])
    assert [task is not None for task in found] == [False, True, True, True, True]


async def test_a_transaction_before_any_worker_keeps_the_types_settings(app: App) -> None:
    @app.task(priority="high", ordered="{a}", unique="one-{a}", timeout="5s")
    def settled(a: int) -> None: ...

    await app.open()
    async with app.engine.transaction() as tx:
        task_id = (await settled.options(tx=tx).submit(7)).id
        with pytest.raises(InvalidInput, match=r"begin it with app\.transaction"):
            await of(app, "send_welcome").options(tx=tx).submit(1)
        with pytest.raises(InvalidInput, match=r"begin it with app\.transaction"):
            await app.submit_many([of(app, "send_welcome").options(tx=tx).call(1)])
    task = await app.handle(task_id).task()
    assert (task.priority, task.order_key, task.timeout) == (2, "7", 5 * SECOND)
    assert task.unique is not None
    assert task.unique.key == "one-7"


async def test_calls_of_two_transactions_do_not_go_together(app: App) -> None:
    await app.open()
    add = of(app, "add")
    async with app.transaction() as tx:
        with pytest.raises(InvalidInput, match="do not go together"):
            await app.submit_many([add.options(tx=tx).call(1), add.call(2)])


# What the store is told


async def test_opening_writes_nothing_and_the_first_submit_tells_what_is_declared(app: App) -> None:
    await app.open()
    assert await app.engine.items("type") == ()
    await of(app, "add").submit(1)
    assert await app.engine.items("type") == ()
    await asyncio.gather(*(of(app, "send_welcome").submit(i) for i in range(5)))
    [stored] = await app.engine.items("type")
    assert (stored.name, stored.operator) == ("send_welcome", False)
    assert msgspec.json.decode(stored.value, type=TypeSettings) == settings_of(of(app, "send_welcome"), app.settings)
    [limit] = await app.engine.items("limit")
    assert (limit.name, limit.value) == ("send_welcome", b'{"rate":100,"window":60000000}')


async def test_what_an_operator_has_put_stands(app: App) -> None:
    await app.open()
    await app.engine.put("type", "send_welcome", b'{"queue":"slow","priority":3}')
    task = await (await of(app, "send_welcome").submit(1)).task()
    assert (task.priority, task.limits, task.queue) == (3, (), "mail")


def test_joining(app: App) -> None:
    @app.schedule("@daily")
    def report() -> None: ...

    app.limit("gateway", cap=3)
    joining = app.joining("w1", info={"host": "a"})
    assert isinstance(joining, Joining)
    assert (joining.worker, joining.queues, joining.app, joining.version, joining.lease) == ("w1", ("default", "mail"), "app", 0, 4 * SECOND)
    assert set(joining.types) == {"send_welcome", "add", "report"}
    assert set(joining.limits) == {"send_welcome", "gateway"}
    assert set(joining.schedules) == {"report"}


def test_joining_for_some_queues_declares_every_schedule(app: App) -> None:
    app.schedule("@daily", name="report")(plain)
    joining = app.joining("w1", ["mail"], lease=9)
    assert (set(joining.types), joining.queues, joining.lease) == ({"send_welcome"}, ("mail",), 9)
    assert set(joining.schedules) == {"report"}


def plain() -> None: ...


def test_settings_of_the_app_hold_where_a_type_is_silent() -> None:
    app = App("sqlite://:memory:", max_retries=7, timeout="5m", max_crashes=1, name="shop", version=4)
    declare(app)
    joining = app.joining("w")
    assert (joining.app, joining.version) == ("shop", 4)
    assert joining.types["add"] == TypeSettings(retry=Retry(max_retries=7), timeout=5 * MINUTE, max_crashes=1)
    assert joining.types["send_welcome"].retry == Retry.fixed("2s")
    assert joining.types["send_welcome"].timeout == 30 * SECOND


# A submit that nobody takes


async def told(app: App, caplog: pytest.LogCaptureFixture) -> list[str]:
    """What is in the log after the look for workers, which the timer would begin in ten seconds."""
    app._look_for_workers("add")
    assert app._looking is not None
    await app._looking
    return [record.getMessage() for record in caplog.records if record.name == "taskmill"]


async def test_ten_seconds_after_a_submit_workers_are_looked_for_once(app: App) -> None:
    began = asyncio.get_running_loop().time()
    await of(app, "add").submit(1)
    timer = app._notice
    assert timer is not None
    assert 10 <= timer.when() - began < 70
    await of(app, "add").submit(2)
    assert app._notice is timer
    await app.close()
    assert timer.cancelled()


async def test_a_submit_without_a_worker_is_told(app: App, caplog: pytest.LogCaptureFixture) -> None:
    await of(app, "add").submit(1)
    assert await told(app, caplog) == ["a task of type add was submitted 10 s ago and there is no live worker on this store; start one: taskmill worker"]
    assert caplog.records[0].levelno == logging.WARNING
    before = app._notice
    await of(app, "add").submit(2)
    assert app._notice is before


async def test_a_submit_that_no_worker_knows_is_told(app: App, caplog: pytest.LogCaptureFixture) -> None:
    await app.open()
    await app.engine.join(app.joining("w", ["mail"]))
    assert "no live worker on this store knows it" in (await told(app, caplog))[0]


async def test_with_a_worker_nothing_is_told_and_a_later_submit_looks_again(app: App, caplog: pytest.LogCaptureFixture) -> None:
    await app.open()
    await app.engine.join(app.joining("w"))
    await of(app, "add").submit(1)
    first = app._notice
    assert await told(app, caplog) == []
    await of(app, "add").submit(2)
    assert app._notice is not None
    assert app._notice is not first


# Lifespan


async def test_hooks_run_in_order_and_stop_in_reverse(app: App) -> None:
    ran: list[str] = []

    @app.on_start
    async def pool(given: App) -> None:
        given.state.pool = "pool"
        ran.append("pool")

    @app.on_start
    def cache() -> None:
        ran.append(f"cache after {app.state.pool}")

    app.on_stop(lambda: ran.append("first declared"))
    app.on_stop(lambda: ran.append("second declared"))
    await app.start()
    await app.stop()
    assert ran == ["pool", "cache after pool", "second declared", "first declared"]


async def test_a_stop_hook_that_fails_stops_no_other(app: App, caplog: pytest.LogCaptureFixture) -> None:
    ran: list[str] = []
    app.on_stop(lambda: ran.append("ran"))

    @app.on_stop
    def broken() -> None:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        await app.stop()
    assert ran == ["ran"]
    assert "the on_stop hook broken failed" in caplog.text


async def test_a_start_hook_that_fails_is_raised(app: App) -> None:
    @app.on_start
    def broken() -> None:
        raise ValueError("no database")

    with pytest.raises(ValueError, match="no database"):
        await app.start()


async def test_threads_submit_through_the_door_while_the_loop_runs(app: App) -> None:
    await app.open()
    ids: list[str] = []

    def submit() -> None:
        ids.append(of(app, "add").sync.submit(1).id)

    threads = [threading.Thread(target=submit) for _ in range(8)]
    for thread in threads:
        thread.start()
    await asyncio.gather(*(asyncio.to_thread(thread.join) for thread in threads))
    assert len(set(ids)) == 8


def test_a_call_shows_itself(app: App) -> None:
    call: Call[Any] = of(app, "add").call(1)
    assert repr(call) == "<Call add b'{\"a\":1}'>"
    assert repr(of(app, "add")) == "<TaskType add in queue default>"
    assert repr(app) == "<App of 2 types>"
