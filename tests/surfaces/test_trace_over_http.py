"""A request's trace goes on in its task."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import aiohttp

from taskmill.task import Task
from tests.surfaces.live import served

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def submitted(port: int, path: str, body: Mapping[str, object], parent: str) -> list[str]:
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"http://127.0.0.1:{port}{path}", json=body, headers={"traceparent": parent}) as answer,
    ):
        assert answer.status == 202, await answer.text()
        found = await answer.json()
    return [found["id"]] if "id" in found else [one["id"] for one in found["answers"]]


async def test_a_task_belongs_to_the_trace_of_its_request(tmp_path: Path) -> None:
    task: dict[str, object] = {"type": "a", "queue": "q", "payload": None}
    own = {**task, "headers": {"traceparent": PARENT.replace("0af7", "1af7")}}
    async with served(f"sqlite:///{tmp_path / 'store.db'}", tmp_path) as server:
        ids = await submitted(server.port, "/api/v1/tasks", task, PARENT)
        ids += await submitted(server.port, "/api/v1/tasks:batch", {"tasks": [task, own]}, PARENT)
        ids += await submitted(server.port, "/api/v1/tasks", task, "nonsense")
        found = await server.engine.get(ids)
    kept = [one.headers.get("traceparent") if isinstance(one, Task) else "gone" for one in found]
    assert kept == [PARENT, PARENT, PARENT.replace("0af7", "1af7"), None]
