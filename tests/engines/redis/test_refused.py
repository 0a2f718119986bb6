"""Servers and URLs that the engine refuses: one clear line with the remedy, and nothing written."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from taskmill.engines import create
from taskmill.errors import TaskmillError
from tests.servers import redis as servers
from tests.servers.redis import RedisServer


async def refusal(url: str) -> TaskmillError:
    engine = create(url)
    with pytest.raises(TaskmillError) as refused:
        await engine.open()
    assert refused.value.message
    assert refused.value.hint
    return refused.value


def is_empty(server: RedisServer) -> bool:
    with server.client() as client:
        return bool(client.dbsize() == 0)


async def test_a_wrong_password_is_named_and_not_shown(private_redis: RedisServer) -> None:
    error = await refusal(private_redis.url().replace(private_redis.password, "hunter2"))
    assert error.code == "wrong_password"
    assert "hunter2" not in str(error)


async def test_no_password(private_redis: RedisServer) -> None:
    assert (await refusal(f"redis://127.0.0.1:{private_redis.port}/0")).code == "wrong_password"


async def test_nobody_listens() -> None:
    error = await refusal("redis://127.0.0.1:1/0?busy_timeout=1s")
    assert "127.0.0.1:1" in error.message


@contextlib.asynccontextmanager
async def babbling() -> AsyncIterator[int]:
    """A port on which something answers that is no Redis."""

    async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.example ESMTP\r\n")
        await reader.read()
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(babble, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def test_another_protocol_on_the_port() -> None:
    async with babbling() as port:
        assert (await refusal(f"redis://127.0.0.1:{port}/0?busy_timeout=1s")).code == "wrong_protocol"


async def test_a_server_that_evicts(private_redis: RedisServer) -> None:
    with private_redis.client() as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
    error = await refusal(private_redis.url())
    assert (error.code, "allkeys-lru" in error.message) == ("evicting_server", True)
    assert is_empty(private_redis)


async def test_a_replica(private_redis: RedisServer) -> None:
    with servers.started(replica_of=private_redis) as replica:
        assert (await refusal(replica.url())).code == "read_only"


async def test_keys_of_another_program(private_redis: RedisServer) -> None:
    with private_redis.client() as client:
        client.set("shop:{0}:store", "theirs")
    assert (await refusal(private_redis.url("shop"))).code == "foreign_keys"
    with private_redis.client() as client:
        assert (client.dbsize(), client.get("shop:{0}:store")) == (1, b"theirs")


@pytest.mark.parametrize(("field", "value", "code"), [("shards", 1024, "other_shards"), ("schema", 2, "newer_schema")])
async def test_a_store_that_was_made_otherwise(private_redis: RedisServer, field: str, value: int, code: str) -> None:
    with private_redis.client() as client:
        client.hset("tm:{0}:store", mapping={"schema": 1, "shards": 1, field: value})
    assert (await refusal(private_redis.url())).code == code


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("redis://h/0?cluster=yes", "invalid_value"),
        ("redis://h/0?cluster=true&sentinel=main", "contradiction"),
        ("redis://h/3?cluster=true", "contradiction"),
        ("redis://one,two/0", "contradiction"),
        ("redis://h:port/0", "invalid_url"),
        ("redis://h:70000/0", "invalid_url"),
        ("redis://h/0?durability=paper", "invalid_value"),
        ("redis://h/first", "invalid_url"),
        ("redis://h/0?prefix=a:b", "invalid_name"),
    ],
)
def test_a_url_that_asks_for_what_is_not_there(url: str, code: str) -> None:
    with pytest.raises(TaskmillError) as refused:
        create(url)
    assert refused.value.code == code
    assert refused.value.hint
