"""From where and by which name a server is called: without keys from this machine alone, with them by the names and from the pages that its settings say."""

from __future__ import annotations

from pathlib import Path

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus
from websockets.typing import Subprotocol

from taskmill.engines import create
from taskmill.errors import NotFound
from taskmill.server.access import CLOSED, revoke_key
from tests.surfaces.api import Api, served

TASKS = "/api/v1/tasks"


@pytest.mark.parametrize("name", ["Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "Via", "X-Real-IP"])
async def test_without_keys_nothing_comes_through_a_proxy(tmp_path: Path, name: str) -> None:
    """A proxy that writes the name of the upstream into Host would open the server to everyone who reaches the proxy."""
    async with served(tmp_path) as api:
        assert (await api.refused(403, "GET", TASKS, headers={name: "1.2.3.4"})).code == "forwarded"
        await api.ok("GET", "/healthz", headers={name: "1.2.3.4"})
        key = await api.key("admin")
        await api.ok("GET", TASKS, headers={name: "1.2.3.4"}, key=key)


async def test_without_keys_pages_of_other_ports_are_foreign(tmp_path: Path) -> None:
    async with served(tmp_path) as api:
        [id] = await api.submit("a")
        port = int(api.url.rpartition(":")[2])
        for origin in (f"http://localhost:{port + 1}", "http://localhost", "https://127.0.0.1", "null", "http://localhost:", f"https://evil.example:{port}"):
            assert (await api.refused(403, "POST", f"{TASKS}/{id}:cancel", headers={"Origin": origin})).code == "foreign_origin"
        await api.ok("POST", f"{TASKS}/{id}:cancel", headers={"Origin": f"http://localhost:{port}"})


async def test_allowed_hosts(tmp_path: Path) -> None:
    async with served(tmp_path, keys=True, allowed_hosts="api.example.com, 127.0.0.1") as api:
        key = await api.key("read")
        for host in ("api.example.com", "API.example.com:443", "127.0.0.1:80"):
            await api.ok("GET", TASKS, headers={"Host": host}, key=key)
        for path in (TASKS, "/api/v1/events"):
            said = await api.refused(403, "GET", path, headers={"Host": "evil.example"}, key=key)
            assert (said.code, said.data["field"]) == ("invalid_host", "Host")
        await api.ok("GET", "/healthz", headers={"Host": "10.0.0.7"})


async def test_pages_that_may_call(tmp_path: Path) -> None:
    origin = "https://app.example.com"
    async with served(tmp_path, keys=True, cors_origins=f"{origin}, http://localhost:5173") as api:
        key = await api.key("read")
        asks = {"Origin": origin, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
        said = await api("OPTIONS", TASKS, headers=asks)
        assert (said.status, said.headers["access-control-allow-origin"], said.headers["vary"]) == (204, origin, "Origin")
        assert {"authorization", "if-match", "if-none-match"} <= set(said.headers["access-control-allow-headers"].split(", "))
        assert "access-control-allow-credentials" not in said.headers
        for status, given in ((200, key), (401, None)):
            said = await api("GET", TASKS, headers={"Origin": origin}, key=given)
            assert (said.status, said.headers["access-control-allow-origin"]) == (status, origin)
        for other in ("https://evil.example", "https://app.example.com.evil.example", "null"):
            for method, status in (("OPTIONS", 405), ("GET", 200)):
                said = await api(method, TASKS, headers={**asks, "Origin": other}, key=key)
                assert said.status == status
                assert "access-control-allow-origin" not in said.headers


async def test_without_the_setting_no_page_may_read_an_answer(tmp_path: Path) -> None:
    async with served(tmp_path, keys=True) as api:
        said = await api("GET", TASKS, headers={"Origin": "https://app.example.com"}, key=await api.key("read"))
        assert "access-control-allow-origin" not in said.headers


async def test_one_credential(tmp_path: Path) -> None:
    async with served(tmp_path, keys=True) as api:
        keys = [await api.key("read", tenant="acme"), await api.key("admin")]
        url = api.url.replace("http", "ws") + "/ws"
        offered = [Subprotocol("taskmill"), *(Subprotocol(f"taskmill.key.{key}") for key in keys)]
        for headers, protocols in (({"Authorization": f"Bearer {keys[0]}"}, [offered[0], offered[2]]), ({}, offered)):
            with pytest.raises(InvalidStatus) as refused:
                async with connect(url, additional_headers=headers, subprotocols=protocols):
                    pass
            assert refused.value.response.status_code == 401
        async with connect(url, subprotocols=offered[:2]):
            pass


async def test_a_key_that_is_not_there_closes_nothing(tmp_path: Path) -> None:
    engine = create(f"sqlite:///{tmp_path / 'store.db'}")
    await engine.open()
    try:
        with pytest.raises(NotFound):
            await revoke_key(engine, "nobody")
        assert await engine.items(CLOSED) == ()
    finally:
        await engine.close()


async def test_a_revoked_last_key_closes_for_ever(tmp_path: Path) -> None:
    async with served(tmp_path) as api:
        await _without_keys(api)
    async with served(tmp_path) as api:
        await api.refused(401, "GET", TASKS)


async def _without_keys(api: Api) -> None:
    token = await api.key("admin")
    await revoke_key(api.engine, token[3:15])
