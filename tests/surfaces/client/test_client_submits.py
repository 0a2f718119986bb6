"""What is a client's alone in submitting: concurrent submits go together, one that is refused hurts no other, declared types without their app."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Any

import pytest

from taskmill import App, Client, Retry, State, Tasks
from taskmill.clock import SECOND
from taskmill.config import Secret
from taskmill.engine import Engine, Filter
from taskmill.errors import AppError, InvalidInput, InvalidSettings, NotFound
from taskmill.task import Task, new_id
from tests.surfaces.serving import Server
from tests.surfaces.tracing import provided

BATCH = "POST /api/v1/tasks:batch"


async def test_a_thousand_concurrent_submits_are_a_few_requests(client: Client, server: Server, engine: Engine) -> None:
    handles = await asyncio.gather(*(client.submit("note", {"n": n}, queue="q") for n in range(1_000)))
    assert len({handle.id for handle in handles}) == 1_000
    assert server.requests[BATCH] <= 6
    tasks = await engine.get([handle.id for handle in handles])
    assert [task.payload for task in tasks if isinstance(task, Task)] == [b'{"n":%d}' % n for n in range(1_000)]


async def test_a_lone_submit_waits_for_nobody(client: Client, server: Server) -> None:
    for n in range(3):
        await client.submit("note", n, queue="q")
    assert server.requests[BATCH] == 3


async def test_threads_share_requests_too(client: Client, server: Server) -> None:
    def some() -> list[str]:
        return [client.sync.submit("note", n, queue="q").id for n in range(5)]

    found = await asyncio.gather(*(asyncio.to_thread(some) for _ in range(4)))
    assert len({id for ids in found for id in ids}) == 20


async def test_large_payloads_are_several_requests(client: Client, server: Server) -> None:
    text = "x" * 250_000
    await asyncio.gather(*(client.submit("note", text, queue="q") for _ in range(70)))
    assert 3 <= server.requests[BATCH] <= 12
    assert server.requests["202"] == server.requests[BATCH]


async def test_one_that_is_refused_keeps_no_other_out(client: Client, engine: Engine) -> None:
    wrong: dict[int, dict[str, Any]] = {3: {"after": [new_id()]}, 7: {"idempotency_key": "\n"}, 8: {"queue": None}}
    submits = [client.submit("note", n, **{"queue": "q", **wrong.get(n, {})}) for n in range(10)]
    answers = await asyncio.gather(*submits, return_exceptions=True)
    assert isinstance(answers[3], NotFound)
    assert [(type(answers[n]), getattr(answers[n], "code", None)) for n in (7, 8)] == [(InvalidInput, "invalid_key"), (InvalidInput, "unknown_type")]
    assert len((await engine.list(Filter(), n=100)).tasks) == 7


async def test_whoever_stops_waiting_does_not_take_its_task_back(client: Client, engine: Engine) -> None:
    submit = asyncio.ensure_future(client.submit("note", 1, queue="q", id=(id := new_id())))
    await asyncio.sleep(0)
    submit.cancel()
    await client.close()
    [task] = await engine.get([id])
    assert isinstance(task, Task)


async def test_a_transaction_and_a_tenant_are_refused_here(client: Client) -> None:
    with pytest.raises(InvalidInput) as transaction:
        await client.submit("note", 1, queue="q", tx=object())
    assert (transaction.value.code, transaction.value.field) == ("no_transaction", "tx")
    with pytest.raises(InvalidInput) as tenant:
        await client.submit("note", 1, queue="q", tenant="acme")
    assert (tenant.value.code, tenant.value.field) == ("tenant_of_key", "tenant")


# Declared types


def declared() -> Tasks:
    tasks = Tasks()

    @tasks.task(queue="mail", timeout="30s", retry=Retry.fixed("2s"))
    async def send_welcome(user_id: int) -> str:
        return f"sent to {user_id}"

    @tasks.task(queue="plain")
    def add(a: int) -> int:
        return a

    return tasks


async def test_tasks_are_submitted_through_the_client_that_includes_them(client: Client, store: str) -> None:
    tasks, beside = declared(), Tasks()
    beside.include(tasks)
    client.include(beside)
    handle = await tasks.types["add"].submit(3)
    assert ((await handle.task()).queue, (await handle.task()).payload) == ("plain", b'{"a":3}')
    later = await tasks.types["add"].options(delay="1h").submit(4)
    assert await later.status() is State.SCHEDULED
    blocking = await asyncio.to_thread(lambda: tasks.types["add"].sync.submit(5))
    assert await client.handle(blocking.id).status() is State.PENDING
    assert (await (await client.submit("add", {"a": 6})).task()).queue == "plain"
    for include in (client.include, App(store).include, Client("http://127.0.0.1:1").include):
        with pytest.raises(AppError, match="included already"):
            include(tasks)


async def test_tasks_of_nobody_name_both_ways() -> None:
    with pytest.raises(AppError, match=r"client\.include"):
        await declared().types["add"].submit(1)


async def test_before_any_worker_a_task_carries_what_its_type_says(client: Client) -> None:
    tasks = declared()
    single = await client.submit(tasks.types["send_welcome"].call(1))
    many = await client.submit_many([tasks.types["send_welcome"].call(2), tasks.types["add"].call(3), tasks.types["send_welcome"].call(4)])
    for handle in (single, many[0], many[2]):
        task = await handle.task()
        assert (task.queue, task.timeout, task.retry) == ("mail", 30 * SECOND, Retry.fixed("2s"))
    assert (await many[1].task()).queue == "plain"


async def test_what_an_operator_has_put_over_a_type_stands(client: Client, engine: Engine) -> None:
    await engine.put("type", "send_welcome", b'{"queue":"slow","timeout":7000000}')
    tasks = declared()
    task = await (await client.submit(tasks.types["send_welcome"].call(1))).task()
    assert (task.queue, task.timeout) == ("slow", 7 * SECOND)
    named = await (await client.submit(tasks.types["send_welcome"].options(queue="mine").call(1))).task()
    assert named.queue == "mine"


async def test_a_limit_that_nobody_has_put_is_refused(client: Client) -> None:
    app = App("sqlite://:memory:")

    @app.task(rate_limit="1/m")
    def rare() -> None: ...

    with pytest.raises(InvalidInput) as caught:
        await client.submit(rare.call())
    assert caught.value.code == "unknown_limit"


async def test_a_trace_goes_with_the_task(client: Client) -> None:
    with provided() as spans:
        single = await client.submit("note", 1, queue="q", headers={"mine": "1"})
        many = await client.submit_many([App("sqlite://:memory:").call_of("note", n).with_fields({"queue": "q"}) for n in range(3)])
    span = spans.one("send q")
    headers = (await single.task()).headers
    assert headers["mine"] == "1"
    assert headers["traceparent"].split("-")[1] == format(span.context.trace_id, "032x")
    assert dict(span.attributes or {})["messaging.message.id"] == single.id
    [carried] = {(await handle.task()).headers["traceparent"].split("-")[2] for handle in many}
    assert carried in {format(span.context.span_id, "016x") for span in spans.named("send")}  # the server, which is of this process, has one of its own


# Reading and changing


async def test_reads(client: Client, engine: Engine) -> None:
    made = [await client.submit("note", n, queue="q", tags={"even": str(n % 2 == 0)}) for n in range(5)]
    await client.submit("other", 1, queue="elsewhere")
    assert [task.id async for task in client.list(queue="q")] == [handle.id for handle in reversed(made)]
    assert [task.id async for task in client.list(type=["note"], tags={"even": "True"}, state="pending")] == [made[n].id for n in (4, 2, 0)]
    assert await client.count(queue=["q", "elsewhere"]) == 6
    assert await client.count(since=(await client.get(made[3].id)).created_at) == 3
    assert await client.attempts(made[0].id) == ()
    with pytest.raises(NotFound):
        await client.get(new_id())
    with pytest.raises(NotFound):
        await client.attempts(new_id())
    words: dict[str, Any] = {"colour": "red"}
    with pytest.raises(InvalidInput, match="no such condition"):
        await client.count(**words)


async def test_pages_are_followed_to_the_end(client: Client) -> None:
    await client.submit_many(App("sqlite://:memory:").call_of("note", n).with_fields({"queue": "q"}) for n in range(450))
    assert len([task async for task in client.list(queue="q")]) == 450

    def blocking() -> int:
        return sum(1 for _ in client.sync.list(queue="q"))

    assert await asyncio.to_thread(blocking) == 450


async def test_changes(client: Client) -> None:
    one, two, three = [await client.submit("note", n, queue="q") for n in range(3)]
    assert (await client.cancel(queue="q", dry_run=True)).matched == 3
    assert (await client.cancel([one.id, two.id, new_id()])).refused == {"not_found": 1}
    assert await two.status() is State.CANCELLED
    assert (await client.requeue(one.id)).done == 1
    assert await one.status() is State.PENDING
    with pytest.raises(InvalidInput, match="all that match") as unconfirmed:
        await client.cancel(state="pending")
    assert (unconfirmed.value.code, unconfirmed.value.field) == ("confirm_required", "confirm")
    assert (await client.cancel(state="pending", confirm=True)).done == 2
    assert (await client.delete(queue="q", confirm=True)).done == 3
    assert await three.status() is State.CANCELLED
    with pytest.raises(InvalidInput, match="nothing says which"):
        await client.cancel()
    with pytest.raises(InvalidInput, match="both"):
        await client.cancel(one.id, queue="q")


async def test_a_signal_is_one_signal(client: Client) -> None:
    handle = await client.submit("note", 1, queue="q")
    assert await client.signal(handle.id, "go", {"by": "hand"}, signal_id=(once := new_id())) == 1
    assert await client.signal(handle.id, "go", {"by": "hand"}, signal_id=once) == 1
    assert await client.signal(handle.id, "go") == 2


# Where the server is


def test_making_a_client_reads_and_opens_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "taskmill.toml").write_text("this is not TOML")
    monkeypatch.chdir(tmp_path)
    assert repr(Client("nonsense")) == "<Client>"


def test_server_and_key_come_from_settings(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "taskmill.toml").write_text('server = "http://127.0.0.1:1"\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TASKMILL_SERVER", server.url)
    monkeypatch.setenv("TASKMILL_API_KEY", server.key())
    client = Client()
    assert client.sync.submit("note", 1, queue="q").status() is State.PENDING
    assert client.settings.server == server.url
    client.sync.close()


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("nonsense", "not the URL of a server"),
        ("redis://127.0.0.1", "not the URL of a server"),
        ("http://", "not the URL of a server"),
        ("http://host:99999", "not a URL"),
        ("http://user:secret@host", "no user and no password"),
        ("http://host/?key=1", "ends with its path"),
    ],
)
async def test_a_url_that_names_no_server(url: str, says: str) -> None:
    with pytest.raises(InvalidSettings, match=says) as caught:
        await Client(url).open()
    assert caught.value.field == "server"
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("key", ["", " tm_1", "tm_\n", "tm_ü"])
async def test_a_key_that_is_none(key: str) -> None:
    with pytest.raises(InvalidSettings, match="not an API key") as caught:
        await Client("http://127.0.0.1:1", key).open()
    assert "tm_" not in caught.value.message


@pytest.mark.parametrize("words", [{"timeout": 0}, {"timeout": "soon"}, {"retries": -1}])
def test_limits_that_are_none(words: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        Client("http://127.0.0.1:1", **words)


async def test_a_path_before_the_api_is_kept(server: Server) -> None:
    async with Client(f"{server.url}/behind/a/proxy/", Secret("tm_x"), tls=ssl.create_default_context()) as client:
        with pytest.raises(NotFound) as caught:
            await client.get(new_id())
    assert caught.value.code == "no_route"
