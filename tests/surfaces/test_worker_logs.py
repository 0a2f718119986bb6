"""The log of real programs, as JSON: every line an object, and those of a handler with its task."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from taskmill.task import NewTask
from tests.surfaces.workers import Program, client, program, until

APP = """
import logging

from taskmill import App, Context

app = App("sqlite:///store.db")
log = logging.getLogger("shop")


@app.task
async def on_loop(ctx: Context) -> None:
    log.info("plain")
    ctx.log.warning("through the context")


@app.task
def in_thread() -> None:
    log.info("plain")


@app.task(isolated=True)
def apart() -> None:
    log.info("plain")


@app.task
async def quiet() -> None:
    pass
"""

TRACE = "0af7651916cd43dd8448eb211c80319c"


def lines(program: Program) -> list[dict[str, Any]]:
    return [json.loads(line) for line in program.said.splitlines()]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(APP)
    return tmp_path


@pytest.mark.parametrize("type", ["on_loop", "in_thread", "apart"])
async def test_lines_of_a_handler_say_their_task(folder: Path, type: str) -> None:
    new = NewTask(
        type=type, payload=b"{}", tenant="acme", idempotency_key="order-7", headers={"traceparent": f"00-{TRACE}-b7ad6b7169203331-01", "secret": "canary"}
    )
    with program("worker", "shop.py", "--log-format", "json", folder=folder) as worker:
        async with client(f"sqlite:///{folder / 'store.db'}") as own:
            [name] = await own.joined()
            answer = await own.operations.submit(new)
            assert (await own.ended(answer.id)).state == "completed"
            await own.run("quiet")
        assert worker.end() == 0
    found = lines(worker)
    mine = [line for line in found if line["logger"] in {"shop", "taskmill.task"}]
    assert {line["message"] for line in mine} == {"plain", "through the context"} if type == "on_loop" else {"plain"}
    for line in mine:
        expected = {
            "task_id": answer.id, "task_type": type, "attempt": 1, "queue": "default", "tenant": "acme", "idempotency_key": "order-7", "worker": name,
            "trace_id": TRACE,
        }  # fmt: skip
        assert {field: line[field] for field in expected} == expected
    others = [line for line in found if line not in mine]
    assert others
    assert not any("task_id" in line for line in others), "what a handler leaves behind is not the next line's"
    assert "canary" not in worker.said


async def test_a_setting_says_the_form_too(folder: Path) -> None:
    with program("worker", "shop.py", folder=folder, settings={"log_format": "json"}) as worker:
        async with client(f"sqlite:///{folder / 'store.db'}") as own:
            await own.joined()
        assert worker.end() == 0
    assert lines(worker)


async def test_an_app_s_own_setting_reaches_its_supervisor(folder: Path) -> None:
    (folder / "shop.py").write_text(APP.replace('"sqlite:///store.db"', '"sqlite:///store.db", log_format="json"'))
    with program("worker", "shop.py", folder=folder) as worker:
        async with client(f"sqlite:///{folder / 'store.db'}") as own:
            await own.joined()
        assert worker.end() == 0
    assert "draining" in lines(worker)[-1]["message"]


async def test_a_scheduler_writes_json(folder: Path) -> None:
    url = f"sqlite:///{folder / 'store.db'}"
    async with client(url):
        with program("scheduler", "--url", url, "--log-format", "json", folder=folder, settings={"log_level": "debug"}) as scheduler:
            await until(lambda: scheduler.said.endswith("\n"), "a first line")
    assert lines(scheduler)


def test_a_form_that_does_not_exist(folder: Path) -> None:
    with program("worker", "shop.py", "--log-format", "xml", folder=folder) as worker:
        assert worker.process.wait(60) == 2
    assert "'xml' is not one of text, json" in worker.said
