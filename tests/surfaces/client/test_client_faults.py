"""Answers that get lost, servers that stop, die, are away or say no for now: nothing is lost, nothing is there twice, and an error comes in time."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from taskmill import Client, State
from taskmill.client import http
from taskmill.engine import Engine, Filter
from taskmill.errors import AnswerLost, RateLimited, StoreError
from taskmill.task import Task, new_id
from tests.surfaces.serving import Server, serving, wire
from tests.surfaces.workers import program


async def everything(engine: Engine) -> list[Task]:
    found: list[Task] = []
    cursor = None
    while True:
        page = await engine.list(Filter(), after=cursor, n=1_000)
        found += page.tasks
        cursor = page.cursor
        if cursor is None:
            return found


# Lost answers


async def test_a_lost_answer_is_one_task(server: Server, engine: Engine) -> None:
    async with wire(server) as (cutting, url), Client(url) as client:
        cutting.cut = 2
        handle = await client.submit("note", 1, queue="q")
        assert (cutting.lost, cutting.cut) == (2, 0)
        assert handle.submitted is not None
        assert handle.submitted.status == "created"
        assert [task.id for task in await everything(engine)] == [handle.id]
        assert await handle.status() is State.PENDING


async def test_lost_answers_of_many_are_as_many_tasks(server: Server, engine: Engine) -> None:
    async with wire(server) as (cutting, url), Client(url) as client:
        await client.submit("note", -1, queue="q")
        cutting.cut = 5
        handles = await asyncio.gather(*(client.submit("note", n, queue="q") for n in range(700)))
        assert cutting.lost == 5
        found = Counter(task.payload for task in await everything(engine))
        assert found == Counter(b"%d" % n for n in range(-1, 700))
        assert all(handle.submitted is not None and handle.submitted.status == "created" for handle in handles)


async def test_a_key_keeps_its_meaning_when_an_answer_is_lost(server: Server, engine: Engine) -> None:
    async with wire(server) as (cutting, url), Client(url) as client:
        first = await client.submit("note", 1, queue="q", idempotency_key="one")
        cutting.cut = 1
        second = await client.submit("note", 1, queue="q", idempotency_key="one")
        assert cutting.lost == 1
        assert second.id == first.id
        assert second.submitted is not None
        assert second.submitted.status == "duplicate"
        assert len(await everything(engine)) == 1


async def test_every_verb_survives_a_lost_answer(server: Server) -> None:
    async with wire(server) as (cutting, url), Client(url) as client:
        handle = await client.submit("note", 1, queue="q")
        for verb in (handle.status, handle.task, lambda: client.count(queue="q"), lambda: client.signal(handle.id, "go"), lambda: handle.wait(0)):
            cutting.cut = 1
            await verb()
            assert cutting.cut == 0
        cutting.cut = 1
        assert await handle.cancel()
        assert await handle.status() is State.CANCELLED
    assert server.at_server(lambda service: service.engine.get([handle.id]))[0].state is State.CANCELLED  # type: ignore[union-attr]


async def test_answers_that_are_always_lost_say_so_with_the_id(server: Server, engine: Engine) -> None:
    async with wire(server) as (cutting, url), Client(url, retries=2) as client:
        cutting.cut = 1_000
        answers = await asyncio.gather(client.submit("note", 1, queue="q"), client.submit("note", 2, queue="q"), return_exceptions=True)
        assert all(isinstance(answer, AnswerLost) for answer in answers)
        ids = [answer.task_id for answer in answers if isinstance(answer, AnswerLost)]
        cutting.cut = 0
        again = [await client.submit("note", n, queue="q", id=id) for n, id in enumerate(ids, 1)]
        assert sorted(task.id for task in await everything(engine)) == sorted(handle.id for handle in again)


# A server that restarts


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port: int = sock.getsockname()[1]
        return port


async def test_a_server_that_is_killed_in_the_middle_of_submits(store: str, tmp_path: Path, engine: Engine) -> None:
    port = free_port()
    numbers = iter(range(3_000))
    done: list[int] = []
    marks = {1_000: asyncio.Event(), 2_000: asyncio.Event(), 3_000: asyncio.Event()}

    async def submits(client: Client) -> None:
        for number in numbers:
            await client.submit("note", number, queue="q")
            done.append(number)
            if len(done) in marks:
                marks[len(done)].set()

    async with Client(f"http://127.0.0.1:{port}", timeout="60s", retries=1_000) as client, asyncio.TaskGroup() as group:
        for _ in range(50):
            group.create_task(submits(client))
        for mark in marks.values():  # it is killed as it stands when so many are done
            with program("api", "--port", str(port), folder=tmp_path, url=store):
                await mark.wait()
    found = Counter(int(task.payload) for task in await everything(engine))
    assert found == Counter(range(3_000))
    assert sorted(done) == list(range(3_000))


async def test_a_wait_goes_on_over_a_restart(server: Server, store: str, tmp_path: Path) -> None:
    async with Client(server.url, retries=1_000) as client:
        handle = await client.submit("note", 1, queue="q")
        waiting = asyncio.ensure_future(handle.wait())
        await client.count()
        await asyncio.to_thread(server.stop)
        with serving(store, tmp_path, server.port):
            assert not waiting.done()
            await handle.cancel()
            assert await waiting is State.CANCELLED


# A server that is away


async def test_a_server_that_is_away_is_one_error_in_time() -> None:
    async with Client(f"http://127.0.0.1:{free_port()}", timeout="300ms") as client:
        for verb in (lambda: client.submit("note", 1, queue="q"), lambda: client.get(new_id()), lambda: client.handle(new_id()).result(timeout="200ms")):
            with pytest.raises(StoreError) as caught:
                await verb()
            assert caught.value.code == "server_unreachable"
            assert not isinstance(caught.value, AnswerLost)
            assert "127.0.0.1" in caught.value.message


async def test_a_deadline_that_passes_before_there_is_a_connection_lost_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, socket.create_connection(full.getsockname()):
        # One waits to be accepted, so no second is let in.
        async with Client(f"http://127.0.0.1:{full.getsockname()[1]}", timeout="200ms") as client:
            with pytest.raises(StoreError) as caught:
                await client.submit("note", 1, queue="q")
    assert caught.value.code == "server_unreachable"
    assert not isinstance(caught.value, AnswerLost)


async def test_so_many_repeats_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    tries = 0
    plain = http.Http._once

    async def counted(self: http.Http, *args: object) -> object:
        nonlocal tries
        tries += 1
        return await plain(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(http.Http, "_once", counted)
    async with Client(f"http://127.0.0.1:{free_port()}", retries=3) as client:
        with pytest.raises(StoreError):
            await client.get(new_id())
    assert tries == 4


@asynccontextmanager
async def saying(answer: bytes | None) -> AsyncIterator[tuple[str, list[bytes]]]:
    """Something at a port that says the same to whatever it is asked, or nothing at all."""
    heard: list[bytes] = []
    over = asyncio.Event()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.read(65_536))
        if answer is None:
            await over.wait()
        else:
            writer.write(answer)
        writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1")
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", heard
    finally:
        over.set()
        server.close()


async def test_a_server_that_says_nothing() -> None:
    async with saying(None) as (url, heard), Client(url, timeout="200ms") as client:
        with pytest.raises(AnswerLost) as caught:
            await client.submit("note", 1, queue="q")
    assert caught.value.task_id is not None
    assert len(heard) == 1


async def test_something_else_at_the_port() -> None:
    async with saying(b"SSH-2.0-OpenSSH_9\r\n") as (url, _), Client(url, retries=1) as client:
        with pytest.raises(StoreError):
            await client.get(new_id())


@pytest.mark.parametrize("status", [302, 418, 500])
async def test_an_answer_that_is_not_ours_is_not_asked_for_again(status: int) -> None:
    answer = b"HTTP/1.1 %d Whatever\r\ncontent-length: 2\r\nlocation: http://elsewhere\r\nconnection: close\r\n\r\nhi" % status
    async with saying(answer) as (url, heard), Client(url) as client:
        with pytest.raises(Exception, match=f"answered {status}") as caught:
            await client.get(new_id())
    assert getattr(caught.value, "code", None) == "unexpected_answer"
    assert len(heard) == 1


@pytest.mark.parametrize("status", [502, 503, 504])
async def test_a_gateway_without_its_server_is_asked_again(status: int) -> None:
    answer = b"HTTP/1.1 %d Bad\r\ncontent-length: 0\r\nconnection: close\r\n\r\n" % status
    async with saying(answer) as (url, heard), Client(url, retries=2) as client:
        with pytest.raises(StoreError):
            await client.submit("note", 1, queue="q")
    assert len(heard) == 3


# Quotas


async def test_a_quota_is_waited_for(server: Server) -> None:
    key = server.key("submit", "read", rate=1)
    async with Client(server.url, key) as client:
        for n in range(2):
            await client.submit("note", n, queue="q")
    assert server.requests["429"] >= 1
    assert server.requests["202"] == 2


async def test_a_quota_that_asks_for_too_long_is_an_error_at_once(server: Server) -> None:
    key = server.key("submit", "read", rate=1)
    async with Client(server.url, key, timeout="500ms") as client:
        await client.submit("note", 1, queue="q")
        with pytest.raises(RateLimited) as caught:
            await client.submit("note", 2, queue="q")
    assert caught.value.code == "request_quota"
    assert caught.value.retry_after == 1_000_000


# Several servers


async def test_the_next_server_is_asked_when_one_cannot_be_reached(server: Server) -> None:
    with socket.socket() as taken:  # bound and not listened on: whoever connects is refused
        taken.bind(("127.0.0.1", 0))
        dead = f"http://127.0.0.1:{taken.getsockname()[1]}"
        for urls in ([dead, server.url], f"{dead}, {server.url}"):
            async with Client(urls, retries=3) as client:
                handle = await client.submit("note", 1, queue="q")
                assert client.operations.http.base == server.url
                assert await handle.status() is State.PENDING
        async with Client([dead, dead], retries=3) as client:
            with pytest.raises(StoreError) as raised:
                await client.get(new_id())
            assert raised.value.code == "server_unreachable"


async def test_a_server_that_goes_is_left_for_another(store: str, tmp_path: Path) -> None:
    with serving(store, tmp_path / "one") as one, serving(store, tmp_path / "two") as two:
        async with Client([one.url, two.url]) as client:
            first = await client.submit("note", 1, queue="q")
            await asyncio.to_thread(one.stop)
            second = await client.submit("note", 2, queue="q")
            assert {await first.status(), await second.status()} == {State.PENDING}
            assert client.operations.http.base == two.url
