"""Payloads, results and secrets are told to nobody: canaries go through success, failure, retry, death, timeout, crash, cancel and refusal, and are
looked for in every log, trace, error, event and metric."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import secrets
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import pytest

from taskmill.engine import Engine, Target
from taskmill.errors import Conflict, TaskmillError
from taskmill.events import Event
from taskmill.retry import Retry
from taskmill.task import NewTask, Task
from tests.surfaces.tracing import WORKER, provided
from tests.surfaces.workers import Client, Program, client, program, until

APP = (
    WORKER
    + """
import asyncio
import logging
import os
from typing import Literal

from taskmill import App, Context, Retry

app = App()
log = logging.getLogger("shop")
once = Retry.fixed("20ms", max_retries=1)


class Receipt:
    def __init__(self, text):
        self.text = text

    def __repr__(self):
        return self.text


@app.task
async def pays(ctx: Context, card: str) -> dict:
    log.info("paying")
    ctx.log.debug("still paying")
    await ctx.checkpoint("charged", {"card": card})
    await ctx.progress(0.5, "half")
    await ctx.submit(follows, card)
    return {"receipt": "result-" + card}


@app.task
def follows(card: str) -> str:
    return "result-" + card


@app.task(isolated=True)
def apart(card: str) -> str:
    return "result-" + card


@app.task(retry=once)
def fails(card: str) -> None:
    secret = card
    raise ConnectionError("the bank is away")


@app.task(retry=once, timeout="200ms")
async def slow(card: str) -> None:
    await asyncio.sleep(60)


@app.task(isolated=True, max_crashes=0)
def falls(card: str) -> None:
    os._exit(3)


@app.task
def strict(card: Literal["visa"]) -> None:
    pass


@app.task
def unwritable(card: str) -> object:
    return Receipt("result-" + card)


@app.task
async def held(card: str) -> None:
    await asyncio.sleep(60)
"""
)

TYPES = ("pays", "follows", "apart", "fails", "slow", "falls", "strict", "unwritable")


class Canaries:
    """Words that stand where secrets stand."""

    def __init__(self) -> None:
        self.payload, self.header, self.signal, self.other, self.password = (f"canary-{name}-{secrets.token_hex(8)}" for name in "phsow")

    @property
    def words(self) -> tuple[str, ...]:
        return self.payload, self.header, self.signal, self.other, self.password


@pytest.fixture
def canaries() -> Canaries:
    return Canaries()


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path, canaries: Canaries) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'store.db'}"
    found: str = request.getfixturevalue(f"{request.param}_url")
    canaries.password = urlsplit(found).password or canaries.password
    return found


def new(type: str, canaries: Canaries, **fields: object) -> NewTask:
    payload = msgspec.json.encode({"card": canaries.payload})
    return NewTask(type=type, payload=payload, headers={"authorization": canaries.header}, **fields)  # type: ignore[arg-type]


@asynccontextmanager
async def heard(engine: Engine) -> AsyncIterator[list[Event]]:
    """What happens meanwhile."""
    found: list[Event] = []
    stream = await engine.events()

    async def listen() -> None:
        async for event in stream:
            found.append(event)  # noqa: PERF401 - read while more comes

    listening = asyncio.create_task(listen())
    try:
        yield found
    finally:
        listening.cancel()
        with suppress(asyncio.CancelledError):
            await listening
        await stream.aclose()


async def refusals(own: Client, canaries: Canaries) -> list[str]:
    """What callers are told who do it wrong."""
    key = new("follows", canaries, idempotency_key="order-7")
    other = msgspec.structs.replace(key, payload=msgspec.json.encode({"card": canaries.other}), id=key.id[:-4] + "0000")
    await own.operations.submit(key)
    with pytest.raises(Conflict) as conflict:
        await own.operations.submit(other)
    with pytest.raises(TaskmillError) as large:
        await own.operations.submit(msgspec.structs.replace(new("follows", canaries), payload=json.dumps(canaries.other * 100_000).encode()))
    with pytest.raises(TaskmillError) as broken:
        await own.operations.submit(new("follows", canaries, retry=Retry(max_retries=1), run_at=1, delay=1))
    return [repr(error.value) + str(error.value) for error in (conflict, large, broken)]


async def everything(own: Client, canaries: Canaries) -> list[Task]:
    """Tasks of all kinds, to their ends."""
    ids = [(await own.operations.submit(new(type, canaries))).id for type in TYPES]
    ids += [answer.id for answer in await own.operations.submit_many([new("follows", canaries) for _ in range(3)])]
    held = (await own.operations.submit(new("held", canaries))).id
    await own.operations.signal(held, "approved", msgspec.json.encode(canaries.signal))
    deadline = asyncio.get_running_loop().time() + 60
    while (await own.operations.get(held)).state != "running":
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.02)
    await own.operations.cancel([Target(held)])
    return [await own.ended(id) for id in (*ids, held)]


def scraped(worker: Program) -> str:
    found = re.search(r"http://127\.0\.0\.1:(\d+)/livez", worker.said)
    assert found
    with urllib.request.urlopen(f"http://127.0.0.1:{found[1]}/metrics", timeout=30) as answer:
        return str(answer.read().decode())


def errors_of(tasks: list[Task]) -> str:
    return "\n".join(f"{task.error.code} {task.error.message} {task.error.traceback}" for task in tasks if task.error is not None)


@pytest.mark.parametrize("form", ["text", "json"])
async def test_nobody_is_told(url: str, canaries: Canaries, form: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    (tmp_path / "shop.py").write_text(APP)
    options = ("--log-level", "debug", "--log-format", form, "--port", "0")
    with provided() as spans, program("worker", "shop.py", *options, folder=tmp_path, url=url) as worker:
        async with client(url) as own, heard(own.engine) as events:
            await own.joined()
            tasks = await everything(own, canaries)
            refused = await refusals(own, canaries)
            attempts = [attempt for task in tasks for attempt in await own.attempts(task.id)]
            await until(lambda: len(events) > len(tasks), "events")
            metrics = scraped(worker)
        assert worker.end() == 0
    check_that_it_happened(tasks, canaries)
    told = {
        "the log of the worker": worker.said,
        "the log of the caller": caplog.text,
        "the spans of the worker": (tmp_path / "spans.jsonl").read_text(),
        "the spans of the caller": spans.text,
        "events": "\n".join(map(str, events)),
        "metrics": metrics,
        "errors of tasks": errors_of(tasks),
        "errors of attempts": "\n".join(map(str, attempts)),
        "refusals": "\n".join(refused),
    }
    assert [place for place, text in told.items() if not text] in ([], ["the log of the caller"])
    assert [(place, word) for place, text in told.items() for word in canaries.words if word in text] == []


def check_that_it_happened(tasks: list[Task], canaries: Canaries) -> None:
    """Otherwise nothing could have been told."""
    ends = {task.type: (str(task.state), task.error.code if task.error else None) for task in tasks}
    assert ends == {
        "pays": ("completed", None), "follows": ("completed", None), "apart": ("completed", None), "fails": ("dead", "ConnectionError"),
        "slow": ("dead", "timeout"), "falls": ("dead", "poison"), "strict": ("dead", "invalid_arguments"), "unwritable": ("dead", "result_encoding"),
        "held": ("cancelled", None),
    }  # fmt: skip
    assert all(canaries.payload.encode() in task.payload and task.headers["authorization"] == canaries.header for task in tasks)
    assert all(task.result is not None and canaries.payload.encode() in task.result for task in tasks if task.state == "completed")


@pytest.mark.parametrize("scheme", ["postgresql://shop:{password}@127.0.0.1:1/shop", "redis://shop:{password}@127.0.0.1:1/0"])
async def test_a_password_is_not_told_by_who_cannot_connect(scheme: str, canaries: Canaries, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(APP)
    url = scheme.format(password=canaries.password)
    for arguments in (("worker", "shop.py", "--log-level", "debug"), ("check", "--url", url), ("task", "list", "--url", url)):
        with program(*arguments, folder=tmp_path, url=url, settings={"busy_timeout": "1s"}) as ended:
            assert ended.process.wait(60) != 0
        assert ended.said
        assert canaries.password not in ended.said
