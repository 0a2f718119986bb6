"""Live events in the matrix of access: every scope, with and without a tenant, on both streams; who is let in hears its own tenant's tasks and no other's."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from websockets.exceptions import InvalidStatus

from taskmill.errors import InvalidInput
from taskmill.server.access import Scope
from taskmill.server.rest.streams import EVENTS, STREAMS, WEBSOCKET
from tests.conformance.tools import submit_one
from tests.surfaces.live import Live, served

MAY_READ = {Scope.READ, Scope.ADMIN}
CELLS = [(scope, tenant) for scope in Scope for tenant in (None, "acme") if (scope, tenant) != (Scope.WORKER, "acme")]


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Live]:
    async with served(f"sqlite:///{tmp_path / 'store.db'}", tmp_path) as found:
        yield found


async def happened(server: Live) -> dict[str, str]:
    """A task of each tenant, the caller's own last, so that it is heard after the others."""
    return {tenant: await submit_one(server.engine, tenant=tenant) for tenant in ("", "globex", "acme")}


@pytest.mark.parametrize(("scope", "tenant"), CELLS)
async def test_server_sent_events(server: Live, scope: Scope, tenant: str | None) -> None:
    key = await server.key(scope, tenant=tenant)
    async with server.stream(key=key) as stream:
        assert stream.response.status == (200 if scope in MAY_READ else 403)
        if scope in MAY_READ:
            ids = await happened(server)
            await stream.until(lambda event: event["data"].get("task_id") == ids["acme"])
            heard = {event["data"]["task_id"] for event in stream.heard if "task_id" in event["data"]}
            assert heard == ({ids["acme"]} if tenant else set(ids.values()))


@pytest.mark.parametrize(("scope", "tenant"), CELLS)
async def test_websocket(server: Live, scope: Scope, tenant: str | None) -> None:
    key = await server.key(scope, tenant=tenant)
    if scope not in MAY_READ:
        with pytest.raises(InvalidStatus) as refused:
            async with server.client(key=key):
                pass
        assert refused.value.response.status_code == 403
        return
    async with server.client(key=key) as client:
        ids = await happened(server)
        await client.until(lambda event: event["data"].get("task_id") == ids["acme"])
        heard = {event["data"]["task_id"] for event in client.heard if "task_id" in event["data"]}
        assert heard == ({ids["acme"]} if tenant else set(ids.values()))
        if tenant:
            assert (await client.say(action="subscribe", filter={"tenant": "globex"}))["type"] == "error"
            assert (await client.say(action="subscribe", filter={"task": ids["globex"]}))["type"] == "error"


def test_there_are_no_other_streams() -> None:
    assert {stream.path: (stream.scope, stream.whole) for stream in STREAMS} == {EVENTS: (Scope.READ, False), WEBSOCKET: (Scope.READ, False)}


async def test_a_worker_with_a_tenant_cannot_be(server: Live) -> None:
    with pytest.raises(InvalidInput):
        await server.key(Scope.WORKER, tenant="acme")
