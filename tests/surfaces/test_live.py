"""Live events of a server: what happens in the store is heard by every client, in order, without a gap that is not told, and by nobody else."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus
from websockets.typing import Subprotocol

from taskmill.engine import Ending, Engine, Target
from taskmill.operations import Operations
from taskmill.server.news import TYPES
from taskmill.task import Progress, State, new_id
from tests.conformance.tools import new, record, step, submit_many, submit_one, worker
from tests.surfaces.live import STORES, Client, Event, Live, eventually, live, served, store_url


@pytest.fixture(params=STORES)
async def server(request: pytest.FixtureRequest, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> AsyncIterator[Live]:
    async with live(store_url(request, tmp_path, request.param), tmp_path, caplog) as served:
        yield served


@pytest.fixture
async def quick(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> AsyncIterator[Live]:
    """Where the store makes no difference."""
    async with live(f"sqlite:///{tmp_path / 'store.db'}", tmp_path, caplog) as served:
        yield served


def of_task(event: Event) -> bool:
    return bool(event["type"].startswith("task."))


def check(event: Event) -> None:
    """It is in the vocabulary, and says nothing that is not in it."""
    assert set(event) == {"type", "timestamp", "id", "data"}
    assert event["timestamp"].endswith("Z")
    assert set(event["data"]) <= set(TYPES[event["type"]].fields), event


# What is told


async def test_the_life_of_a_task(server: Live) -> None:
    engine = server.engine
    async with server.client("?event=task.*") as client, server.stream("?event=task.*") as stream:
        id = await submit_one(engine, {"secret": "canary"}, tenant="shop")
        hand = await worker(engine)
        claimed = await hand.claim_one()
        await engine.checkpoint([step(claimed, progress=Progress(0.5, "half of it"))])
        await hand.done(claimed, ending=Ending.RETRY)
        await hand.done(await hand.claim_one())
        await client.until(lambda event: event["type"] == "task.completed")
        await stream.until(lambda event: event["type"] == "task.completed")
    assert client.of(id) == [
        ("task.submitted", 1),
        ("task.started", 2),
        ("task.progress", 3),
        ("task.failed", 4),
        ("task.retrying", 4),
        ("task.started", 5),
        ("task.completed", 6),
    ]
    assert stream.heard == client.heard
    for event in client.heard:
        check(event)
        assert {"task_id": id, "type": "work", "queue": "default", "tenant": "shop"}.items() <= event["data"].items()
    by_type = {event["type"]: event["data"] for event in client.heard}
    assert by_type["task.failed"]["error"] == "oops"
    assert by_type["task.failed"]["attempt"] == 1
    assert by_type["task.completed"]["attempt"] == 2
    assert by_type["task.completed"]["duration_ms"] >= 0
    assert by_type["task.progress"]["message"] == "half of it"
    assert by_type["task.started"]["worker"] == hand.id
    said = json.dumps(client.heard)
    assert "canary" not in said
    assert "it did not work" not in said


async def test_everything_else_that_is_told(server: Live) -> None:
    engine = server.engine
    server.hub._every["measure"] = 0.2
    async with server.client() as client:
        hand = await worker(engine)
        operations = Operations(engine)
        await operations.command_worker(hand.id, "pause")
        await client.until(lambda event: event["type"] == "worker.paused")
        await operations.command_worker(hand.id, None)
        await client.until(lambda event: event["type"] == "worker.resumed")
        await operations.pause_queue("default")
        term = await engine.lead("scheduler", "anna")
        assert term is not None
        await hand.engine.leave(hand.id)
        await submit_one(engine)
        await client.until(lambda event: event["type"] == "system.metrics" and event["data"]["tasks"]["pending"] == 1)
        heard = {event["type"]: event["data"] for event in client.heard}
    for event in client.heard:
        check(event)
    assert heard["worker.joined"] == heard["worker.left"] == {"worker_id": hand.id}
    assert heard["worker.paused"] == {"worker_id": hand.id, "command": "pause"}
    assert {"kind": "pause", "name": "queue:default"} in [event["data"] for event in client.heard if event["type"] == "setting.changed"]
    assert heard["leader.changed"] == {"role": "scheduler", "holder": "anna", "term": term.number}
    assert heard["queue.depth"]["depth"] == 1
    assert heard["system.metrics"]["workers"] == 0
    assert heard["system.metrics"]["rss_bytes"] > 1_000_000


async def test_every_way_a_task_can_go_is_told_with_its_tenant(server: Live) -> None:
    """An event whose task is nobody's would be kept from its owner, or worse."""
    engine = server.engine
    async with server.client("?tenant=shop") as client:
        hand = await worker(engine)
        ended = await submit_one(engine, tenant="shop")
        claimed = await hand.claim_one()
        await hand.done(claimed, ending=Ending.SNOOZED)
        await hand.done(await hand.claim_one(), ending=Ending.WAITING, signals=("go",))
        await engine.signal(ended, "go", b"1", new_id())
        await hand.done(await hand.claim_one(), ending=Ending.CRASHED)
        await hand.done(await hand.claim_one(), ending=Ending.DEAD)
        await engine.requeue([Target(ended)])
        await hand.claim_one()
        await engine.cancel([Target(ended)])
        await hand.finish(*hand.held.values(), ending=Ending.CANCELLED)
        await engine.delete([Target(ended)])
        await client.until(lambda event: event["type"] == "task.deleted")
        told = client.of(ended)
    assert {event["data"]["tenant"] for event in client.heard} == {"shop"}
    kinds = [kind for kind, _ in told]
    assert {"task.snoozed", "task.waiting", "task.signalled", "task.ready", "task.failed", "task.dead", "task.cancelling", "task.cancelled"} <= set(kinds)
    sequences = [sequence for kind, sequence in told if kind != "task.failed"]
    assert sequences == list(range(1, len(sequences) + 1))


async def test_sequences_under_load_have_no_gap(server: Live) -> None:
    engine, tasks = server.engine, 400
    async with server.client("?event=task.*") as first, server.client("?event=task.*") as second, server.stream("?event=task.*") as stream:
        ids = await submit_many(engine, tasks)
        await asyncio.gather(*(drained(engine, ids) for _ in range(4)))
        final = {id: (await record(engine, id)).version for id in ids}
        for heard in (first, second, stream):
            open_ids = set(ids)
            while open_ids:
                event = await heard.next()
                if event["type"] == "task.completed":
                    open_ids.discard(event["data"]["task_id"])
    assert first.heard == second.heard == stream.heard
    for id in ids:
        told = [sequence for kind, sequence in first.of(id) if kind != "task.failed"]
        assert told == list(range(1, final[id] + 1))


async def drained(engine: Engine, ids: list[str]) -> None:
    """One of several workers: every seventh attempt fails at first."""
    hand = await worker(engine)
    while True:
        claimed = await hand.claim(10)
        if not claimed and all(state is State.COMPLETED for state in await states_of(engine, ids)):
            return
        for task in claimed:
            fails = task.attempt == 1 and ids.index(task.id) % 7 == 0
            await hand.done(task, ending=Ending.RETRY if fails else Ending.COMPLETED)


async def states_of(engine: Engine, ids: list[str]) -> list[State]:
    return [(await record(engine, id)).state for id in ids]


# What was missed

FLOOD = """
import asyncio, sys
from taskmill.engines import create
from taskmill.task import NewTask
async def main():
    engine = create(sys.argv[1])
    await engine.open()
    for _ in range(13):
        await engine.submit([NewTask(type="work", queue="default", payload=b"0") for _ in range(1000)])
    await engine.close()
asyncio.run(main())
"""


async def test_a_gap_is_told(server: Live, request: pytest.FixtureRequest) -> None:
    """More happens than the store's ring holds while this process does nothing at all."""
    url = flooded_url(request, server)
    async with server.client("?event=task.*") as client, server.stream("?event=task.submitted") as stream:
        subprocess.run([sys.executable, "-c", FLOOD, url], check=True)  # noqa: ASYNC221 -- the loop stands still meanwhile
        for heard in (client, stream):
            await heard.until(lambda event: event["type"] == "resync")
        last = await submit_one(server.engine)
        for heard in (client, stream):
            await heard.until(lambda event: event["data"].get("task_id") == last)
    check(next(event for event in client.heard if event["type"] == "resync"))


def flooded_url(request: pytest.FixtureRequest, server: Live) -> str:
    name = request.node.callspec.params["server"]
    return f"sqlite:///{request.getfixturevalue('tmp_path') / 'store.db'}" if name == "sqlite" else str(request.getfixturevalue(f"{name}_url"))


# Who comes back


async def test_who_comes_back_hears_what_followed(server: Live) -> None:
    """Also what nobody listened to meanwhile; and the stream waits for the only one who listened."""
    async with server.stream("?event=task.*&queue=default") as stream:
        await submit_one(server.engine)
        await stream.next()
        assert stream.id is not None
    missed = await submit_many(server.engine, 3)
    await submit_one(server.engine, queue="other")
    await eventually(lambda: server.hub._ring.number >= 5)
    async with server.stream("?event=task.*&queue=default", after=stream.id) as again:
        assert [(await again.next())["data"]["task_id"] for _ in missed] == missed
        last = await submit_one(server.engine)
        assert (await again.next())["data"]["task_id"] == last
    assert [event["type"] for event in again.heard] == ["task.submitted"] * 4
    async with server.stream("?event=task.*&queue=default", after=again.id) as nothing:
        last = await submit_one(server.engine)
        assert (await nothing.next())["data"]["task_id"] == last


async def test_who_comes_back_over_a_websocket_hears_what_followed(quick: Live) -> None:
    async with quick.client("?event=task.*") as client:
        await submit_one(quick.engine)
        place = (await client.next())["id"]
        assert (await client.say(action="ping"))["id"] == place
    missed = await submit_many(quick.engine, 2)
    async with quick.client(f"?event=task.*&after={place}") as again:
        assert [(await again.next())["data"]["task_id"] for _ in missed] == missed
        await again.say(action="ping")
        assert again.heard[-1]["id"] == again.heard[-2]["id"]


async def test_a_browser_comes_back_with_the_url_that_it_had_from_the_start(quick: Live) -> None:
    """What it heard last stands in its header, which goes before the URL."""
    async with quick.stream("?event=task.*") as stream:
        await submit_one(quick.engine)
        await stream.next()
        first = stream.id
        await submit_one(quick.engine)
        await stream.next()
    async with quick.stream(f"?event=task.*&after={first}") as early, quick.stream(f"?event=task.*&after={first}", after=stream.id) as late:
        assert await early.next() == stream.heard[1]
        last = await submit_one(quick.engine)
        assert (await late.next())["data"]["task_id"] == last


async def test_who_comes_back_hears_of_its_own_tenant_alone(quick: Live) -> None:
    whole, own = await quick.key("read"), await quick.key("read", tenant="acme")
    async with quick.stream("?event=task.*", key=whole) as stream:
        await submit_one(quick.engine)
        await stream.next()
    await submit_one(quick.engine, tenant="other")
    mine = await submit_one(quick.engine, tenant="acme")
    await eventually(lambda: quick.hub._ring.number >= 3)
    async with quick.stream(key=own, after=stream.id) as again:
        assert (await again.next())["data"]["task_id"] == mine


async def test_what_is_not_there_any_more_is_told_at_once(quick: Live, tmp_path: Path) -> None:
    """The place of another process, of a stream that ended, and what is none."""
    (tmp_path / "other").mkdir()
    async with served(f"sqlite:///{tmp_path / 'other' / 'store.db'}", tmp_path / "other") as other, other.stream("?event=task.*") as elsewhere:
        await submit_one(other.engine)
        await elsewhere.next()
    async with quick.client(), quick.stream("?event=task.*") as stream:
        await submit_one(quick.engine)
        await stream.next()
        assert stream.id is not None
        ahead = stream.id.rpartition("-")[0] + "-99"
        for place in (elsewhere.id, ahead, "", "-", "nonsense \xff", f"{stream.id}x", stream.id.replace("-", "-²")):
            async with quick.stream("?event=task.*", after=place) as strange:
                assert await strange.next() == {**strange.heard[0], "type": "resync", "data": {"reason": "reconnected"}}
                assert strange.id == stream.id


# Who does not read


async def test_who_does_not_read_is_dropped_and_slows_nobody(quick: Live) -> None:
    async with quick.client("?event=task.submitted") as reader, quick.client("?event=task.submitted", max_queue=1) as idle:
        narrow = await deaf(quick)
        assert quick.hub.listeners == 3
        idle.socket.transport.pause_reading()
        told = 0
        while quick.hub.listeners > 1:
            ids = await submit_many(quick.engine, 1_000)
            await reader.until(lambda event, last=ids[-1]: event["data"].get("task_id") == last)  # type: ignore[misc]
            told += 1_000
            assert told < 100_000
        assert [event["type"] for event in reader.heard] == ["task.submitted"] * told
        idle.socket.transport.resume_reading()
        assert (await idle.closed())[0] in {1006, 1013}
        narrow.close()


async def deaf(server: Live) -> socket.socket:
    """A client that asks for everything and never reads."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    sock.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(sock, ("127.0.0.1", server.port))
    await loop.sock_sendall(sock, f"GET /api/v1/events HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n\r\n".encode())
    await eventually(lambda: server.hub.listeners == 3)
    return sock


# Who may hear


async def test_a_tenant_hears_of_its_own_tasks_and_of_nothing_else(server: Live) -> None:
    engine = server.engine
    whole, shop, bank = await server.key("read"), await server.key("read", tenant="shop"), await server.key("read", tenant="bank")
    async with server.client(key=shop) as client, server.stream(key=shop) as stream, server.client(key=bank) as other, server.client(key=whole) as all_of_it:
        foreign = await submit_one(engine, tenant="bank")
        nobodys = await submit_one(engine)
        hand = await worker(engine)
        await hand.done(*await hand.claim_all())
        await engine.delete([Target(foreign), Target(nobodys)])
        own = await submit_one(engine, tenant="shop")
        await engine.cancel([Target(own)])
        for heard in (client, stream):
            await heard.until(lambda event: event["type"] == "task.cancelled")
        await all_of_it.until(lambda event: event["data"].get("task_id") == own and event["type"] == "task.cancelled")
        assert {event["data"]["task_id"] for event in client.heard + stream.heard} == {own}
        assert {event["data"]["task_id"] for event in await other.settled()} == {foreign}
        assert {foreign, nobodys, own} <= {event["data"].get("task_id") for event in all_of_it.heard}


async def test_another_tenants_things_cannot_be_asked_for(server: Live) -> None:
    shop = await server.key("read", tenant="shop")
    own, foreign = await submit_one(server.engine, tenant="shop"), await submit_one(server.engine, tenant="bank")
    async with server.client(f"?task={own}", key=shop) as client:
        assert refusal(await client.say(action="subscribe", filter={"tenant": "bank"})) == "tenant_key"
        assert refusal(await client.say(action="subscribe", filter={"task": foreign})) == "not_found"
        assert refusal(await client.say(action="subscribe", filter={"task": [own, new_id()]})) == "not_found"
        assert (await client.say(action="subscribe", filter={"queue": "default", "tenant": "shop"}))["type"] == "subscribed"
        await server.engine.cancel([Target(foreign)])
        await server.engine.cancel([Target(own)])
        await client.until(lambda event: event["type"] == "task.cancelled")
        assert {event["data"]["task_id"] for event in client.heard if of_task(event)} == {own}
    for query in ("?tenant=bank", f"?task={foreign}"):
        async with server.stream(query, key=shop) as stream:
            assert stream.response.status in {403, 404}


async def test_what_a_handler_says_is_for_those_who_may_read_payloads(quick: Live) -> None:
    some, more = await quick.key("read"), await quick.key("read", "read-payload")
    async with quick.client("?event=task.progress", key=some) as blind, quick.client("?event=task.progress", key=more) as seeing:
        await submit_one(quick.engine)
        hand = await worker(quick.engine)
        await quick.engine.checkpoint([step(await hand.claim_one(), progress=Progress(0.5, "for few"))])
        assert "message" not in (await blind.next())["data"]
        assert (await seeing.next())["data"]["message"] == "for few"


def refusal(answer: Event) -> Any:
    assert answer["type"] == "error"
    assert answer["data"]["hint"]
    return answer["data"]["code"]


async def test_a_page_in_a_browser_brings_its_key_as_a_subprotocol(quick: Live) -> None:
    key = await quick.key("read")
    protocols = [Subprotocol("taskmill"), Subprotocol(f"taskmill.key.{key}")]
    async with quick.client(subprotocols=protocols) as client:
        assert client.socket.subprotocol == "taskmill"
        await submit_one(quick.engine, type="a")
        assert (await client.until(lambda event: event["type"] == "task.submitted"))["data"]["type"] == "a"
    with pytest.raises(InvalidStatus) as refused:
        async with quick.client(subprotocols=[Subprotocol("taskmill"), Subprotocol("taskmill.key.tm_no")]):
            pass
    assert refused.value.response.status_code == 401


async def test_a_revoked_key_hears_no_more(quick: Live) -> None:
    key, other = await quick.key("read"), await quick.key("read")
    async with quick.client(key=key) as client, quick.stream(key=key) as stream, quick.client(key=other) as stays:
        await quick.engine.drop("key", key.split("_")[1])
        assert await client.closed() == (1008, "the key was revoked")
        assert (await stream.until(lambda event: event["type"] == "closed"))["data"]["code"] == "revoked"
        with pytest.raises(EOFError):
            await stream.next()
        assert (await stays.say(action="ping"))["type"] == "pong"


@pytest.mark.parametrize("scopes", [("submit",), ("worker",)])
async def test_a_key_that_may_not_read_hears_nothing(quick: Live, scopes: tuple[str, ...]) -> None:
    key = await quick.key(*scopes)
    async with quick.stream(key=key) as stream:
        assert stream.response.status == 403
    async with quick.stream() as stream:
        assert stream.response.status == 401


# What is wanted


async def test_filters(server: Live) -> None:
    engine = server.engine
    mail, other = new(queue="mail", type="letter"), new(queue="mail", type="parcel")
    elsewhere, mine = new(queue="else", type="letter"), new(tenant="shop")
    wanted = {
        "?queue=mail": [mail.id, other.id],
        "?type=letter": [mail.id, elsewhere.id],
        "?queue=mail&type=letter": [mail.id],
        "?queue=mail&queue=else": [mail.id, other.id, elsewhere.id],
        f"?task={elsewhere.id}": [elsewhere.id],
        "?tenant=shop": [mine.id],
        "?event=task.cancelled": [],
        "?event=worker.*": [],
        "?event=task.submitted": [mail.id, other.id, elsewhere.id, mine.id],
    }
    clients: list[tuple[Client, list[str]]] = []
    async with server.client() as everything:
        open_clients = [server.client(query) for query in wanted]
        for opened, ids in zip(open_clients, wanted.values(), strict=True):
            clients.append((await opened.__aenter__(), ids))
        await engine.submit([mail, other, elsewhere, mine])
        await everything.until(lambda event: event["data"].get("task_id") == mine.id)
        for client, ids in clients:
            assert [event["data"]["task_id"] for event in await client.settled() if of_task(event)] == ids
        for opened in open_clients:
            await opened.__aexit__(None, None, None)


async def test_subscriptions_are_added_and_taken_back(quick: Live) -> None:
    async with quick.client() as client:
        await submit_one(quick.engine, queue="a")
        await client.until(of_task)
        answer = await client.say(action="subscribe", filter={"queue": "b"})
        assert answer["data"] == {"filter": {"queue": ["b"]}, "subscriptions": 1}
        await client.say(action="subscribe", filter={"queue": ["c"], "event": "task.submitted"})
        before = len(client.heard)
        for queue in ("a", "b", "c"):
            await submit_one(quick.engine, queue=queue)
        await client.until(lambda event: event["data"].get("queue") == "c")
        assert (await client.say(action="unsubscribe", filter={"queue": "b"}))["data"]["subscriptions"] == 1
        for queue in ("b", "c"):
            await submit_one(quick.engine, queue=queue)
        await client.until(lambda event: event["data"].get("queue") == "c")
        assert [event["data"]["queue"] for event in client.heard[before:] if of_task(event)] == ["b", "c", "c"]


async def test_a_task_that_two_filters_want_is_told_once(quick: Live) -> None:
    async with quick.client("?queue=default") as client:
        await client.say(action="subscribe", filter={"type": "work"})
        id = await submit_one(quick.engine)
        await client.until(of_task)
        await client.settled()
        assert client.of(id) == [("task.submitted", 1)]


# Beginning and end


async def test_the_stream_is_there_only_while_somebody_listens(quick: Live) -> None:
    quick.hub._linger = 0.0
    assert not quick.hub._tasks
    async with quick.client(), quick.stream():
        assert quick.hub.listeners == 2
        assert quick.hub._tasks
    await eventually(lambda: not quick.hub._tasks)
    async with quick.client() as client:
        await submit_one(quick.engine)
        assert (await client.next())["type"] == "task.submitted"


async def test_a_server_that_stops_says_so(quick: Live) -> None:
    async with quick.client() as client, quick.stream() as stream:
        quick.stop.set()
        assert (await client.closed())[0] == 1012
        assert (await stream.until(lambda event: event["type"] == "closed"))["data"]["code"] == "draining"


async def test_a_silent_stream_says_that_it_is_there(quick: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taskmill.server.live.HEARTBEAT", 0.05)
    async with quick.client(), quick.stream("?event=worker.lost") as stream:
        await submit_one(quick.engine)
        await eventually(lambda: quick.hub.place.endswith("-1"))
        lines = []
        async with asyncio.timeout(20):
            while f"id: {quick.hub.place}\n".encode() not in lines:
                lines.append(await stream.response.content.readline())
            assert await stream.response.content.readline() == b": still here\n"
