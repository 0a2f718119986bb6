"""What passes through the server is told to nobody who did not ask for it: payloads, results and keys go through REST, gRPC, live events, refusals and the
audit log of a real `taskmill up`, and are looked for in every line, event, error and metric."""

from __future__ import annotations

import asyncio
import json
import re
import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import grpc
import pytest
from websockets.asyncio.client import connect

from taskmill.server.access import create_key
from taskmill.server.grpc.v1 import taskmill_pb2 as pb
from taskmill.server.grpc.v1 import taskmill_pb2_grpc
from tests.surfaces import workers
from tests.surfaces.workers import GENEROUS, Client, Program, program, until

APP = """
from taskmill import App, Retry

app = App()


@app.task
def pays(card: str) -> str:
    return "result-" + card


@app.task(retry=Retry.fixed("20ms", max_retries=1))
def fails(card: str) -> None:
    raise ConnectionError("the bank is away")
"""


class House(NamedTuple):
    up: Program
    client: Client
    http: str
    grpc: str
    token: str
    folder: Path


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    (tmp_path / "app.py").write_text(APP)
    async with workers.client(f"sqlite:///{tmp_path}/taskmill.db") as client:
        token, _ = await create_key(client.engine, name="canary", scopes=["admin"])
        options = ("--port", "0", "--grpc-port", "0", "--log-level", "debug", "--log-format", "json")
        with program("up", "app.py", *options, folder=tmp_path) as up:
            await until(lambda: "gRPC is at" in up.said, "the API")
            await client.joined()
            found = re.search(r"the API is at (\S+),.* gRPC is at (\S+)", up.said)
            assert found is not None
            yield House(up, client, found[1], found[2], token, tmp_path)
            assert up.end() == 0


async def test_nothing_that_passes_through_is_told(house: House) -> None:
    card = f"canary-{secrets.token_hex(8)}"
    heard: list[str] = []
    head = {"Authorization": f"Bearer {house.token}"}
    async with (
        aiohttp.ClientSession(house.http, headers=head) as session,
        connect(f"{house.http.replace('http', 'ws')}/ws", additional_headers=head) as socket,
    ):
        listening = asyncio.create_task(_listen(socket, heard))
        ids = [await _submitted(session, type, card) for type in ("pays", "fails")]
        ids.append(await _over_grpc(house, card))
        await house.client.operations.wait(ids, int(GENEROUS * 1_000_000), every=True)
        refusals = [await _refused(session, card, body) for body in _wrong(card)]
        refusals.append(await _stranger(house, card))
        async with session.post(f"/api/v1/tasks/{ids[1]}:requeue", json={}) as answer:
            assert answer.status == 200
        async with session.get("/metrics") as answer:
            metrics = await answer.text()
        await until(lambda: any("task.dead" in event for event in heard), "a death that is heard of")
        listening.cancel()
        async with session.get(f"/api/v1/tasks/{ids[0]}") as answer:
            assert card in await answer.text()  # to whoever may read it, it is there
    secret = house.token.split("_", 2)[2]
    audit = (house.folder / "taskmill-audit.jsonl").read_text()
    assert "task.requeue" in audit
    for place, text in {"log": house.up.said, "events": "".join(heard), "metrics": metrics, "audit": audit, "refusals": "".join(refusals)}.items():
        assert text, place
        assert secret not in text, place
        if place != "refusals":
            assert card not in text, place


def _wrong(card: str) -> list[dict[str, Any]]:
    """Refused for something beside the payload, which has the canary in it."""
    task = {"type": "pays", "payload": {"card": card}}
    return [{**task, "priority": "urgent"}, {**task, "timeout": "soon"}, {**task, "type": "Pays"}, {**task, "no": 1}, {**task, "after": ["x"]}]


async def _listen(socket: Any, heard: list[str]) -> None:
    async for message in socket:
        heard.append(message)  # noqa: PERF401 - each as it comes


async def _submitted(session: aiohttp.ClientSession, type: str, card: str) -> str:
    async with session.post("/api/v1/tasks", json={"type": type, "payload": {"card": card}}) as answer:
        assert answer.status == 202, await answer.text()
        return str((await answer.json())["id"])


async def _over_grpc(house: House, card: str) -> str:
    async with grpc.aio.insecure_channel(house.grpc) as channel:
        stub: Any = taskmill_pb2_grpc.TasksStub(channel)
        new = pb.NewTask(type="pays", payload=json.dumps({"card": card}).encode())
        key = (("authorization", f"Bearer {house.token}"),)
        answer = await stub.Submit(pb.SubmitRequest(task=new), metadata=key, timeout=GENEROUS)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.Submit(pb.SubmitRequest(task=pb.NewTask(type="Pays", payload=new.payload)), metadata=key, timeout=GENEROUS)
        assert card not in str(refused.value)
    return str(answer.submitted.id)


async def _refused(session: aiohttp.ClientSession, card: str, body: dict[str, Any]) -> str:
    async with session.post("/api/v1/tasks", json=body) as answer:
        text = await answer.text()
        assert answer.status == 422, text
        assert card not in text
        return text


async def _stranger(house: House, card: str) -> str:
    """A key that is wrong in its last letter, in the header and, as one must not, in the URL."""
    wrong = house.token[:-1] + ("a" if house.token[-1] != "a" else "b")
    async with (
        aiohttp.ClientSession(house.http) as session,
        session.get(f"/api/v1/tasks?key={house.token}", headers={"Authorization": f"Bearer {wrong}"}) as answer,
    ):
        assert answer.status == 401
        return await answer.text()
