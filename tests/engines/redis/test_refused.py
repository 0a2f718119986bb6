"""Servers and URLs that the engine refuses: one clear line with the remedy, and nothing written."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable

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


async def test_a_user_that_is_not_known(private_redis: RedisServer) -> None:
    assert (await refusal(private_redis.url().replace("://:", "://nobody:"))).code == "wrong_password"
    assert is_empty(private_redis)


@pytest.mark.parametrize("rights", ["~* +get +info +type +hgetall +select", "~other:* +@all"])
async def test_a_user_without_rights(private_redis: RedisServer, rights: str) -> None:
    with private_redis.client() as client:
        client.execute_command("ACL", "SETUSER", "weak", "on", ">secret", *rights.split())
    error = await refusal(f"redis://weak:secret@127.0.0.1:{private_redis.port}/0")
    assert error.code == "no_rights"
    assert is_empty(private_redis)


async def test_a_database_that_is_not_there(private_redis: RedisServer) -> None:
    error = await refusal(private_redis.url().replace("/0?", "/99?"))
    assert (error.code, "99" in error.message) == ("no_database", True)


@pytest.mark.parametrize("place", ["127.0.0.1:1", "no-such-host.invalid:6379"])
async def test_nobody_listens(place: str) -> None:
    error = await refusal(f"redis://{place}/0?busy_timeout=1s")
    assert (error.code, place in error.message) == ("store_unavailable", True)


async def test_encrypted_to_a_plain_port(private_redis: RedisServer) -> None:
    error = await refusal(private_redis.url().replace("redis://", "rediss://") + "&busy_timeout=1s")
    assert (error.code, "rediss://" in str(error.hint)) == ("store_unavailable", True)
    assert is_empty(private_redis)


Answering = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def of_mail(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"220 mail.example ESMTP\r\n")
    await reader.read()


async def of_pages(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readline()
    writer.write(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


async def hanging_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readline()


async def old(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Speaks the protocol and says that it is older than any that could be installed here; whoever asks for anything but that has written to it."""
    while line := await reader.readline():
        words = []
        for _ in range(int(line[1:])):
            size = int((await reader.readline())[1:])
            words.append((await reader.readexactly(size + 2))[:size].upper())
        assert words[0] in {b"INFO", b"CLIENT", b"SELECT", b"AUTH", b"HELLO"}, words
        text = b"redis_version:6.0.16\r\nrole:master\r\nmaxmemory_policy:noeviction\r\n"
        writer.write(b"$%d\r\n%s\r\n" % (len(text), text) if words[0] == b"INFO" else b"+OK\r\n")


@contextlib.asynccontextmanager
async def listening(answer: Answering) -> AsyncIterator[int]:
    """A port on which something answers that is no server for us."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            await answer(reader, writer)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (of_mail, "wrong_protocol"),
        (of_pages, "wrong_protocol"),
        (silent, "store_unavailable"),
        (hanging_up, "store_unavailable"),
        (old, "old_server"),
    ],
)
async def test_something_else_on_the_port(answer: Answering, code: str) -> None:
    async with listening(answer) as port:
        error = await refusal(f"redis://127.0.0.1:{port}/0?busy_timeout=1s")
    assert (error.code, str(port) in error.message) == (code, True)


async def test_a_server_that_evicts(private_redis: RedisServer) -> None:
    with private_redis.client() as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
    error = await refusal(private_redis.url())
    assert (error.code, "allkeys-lru" in error.message) == ("evicting_server", True)
    assert is_empty(private_redis)


async def test_a_replica(private_redis: RedisServer) -> None:
    with servers.started(replica_of=private_redis) as replica:
        assert (await refusal(replica.url())).code == "read_only"


def kept(server: RedisServer) -> dict[bytes, bytes | None]:
    with server.client() as client:
        return {key: client.dump(key) for key in client.scan_iter()}


@pytest.mark.parametrize(
    "theirs",
    [
        ("SET", "shop:{0}:store", "theirs"),
        ("HSET", "shop:{0}:store", "name", "theirs"),
        ("HSET", "shop:{0}:store", "schema", "one", "shards", "1"),
        ("SET", "shop:{0}:ids", "theirs"),
        ("RPUSH", "shop:{0}:queues", "theirs"),
    ],
)
async def test_keys_of_another_program(private_redis: RedisServer, theirs: tuple[str, ...]) -> None:
    with private_redis.client() as client:
        client.execute_command(*theirs)
    before = kept(private_redis)
    assert (await refusal(private_redis.url("shop"))).code == "foreign_keys"
    assert kept(private_redis) == before


@pytest.mark.parametrize(("field", "value", "code"), [("shards", 1024, "other_shards"), ("schema", 3, "newer_schema")])
async def test_a_store_that_was_made_otherwise(private_redis: RedisServer, field: str, value: int, code: str) -> None:
    with private_redis.client() as client:
        client.hset("tm:{0}:store", mapping={"schema": 1, "shards": 1, field: value})
    before = kept(private_redis)
    error = await refusal(private_redis.url())
    assert (error.code, str(value) in error.message) == (code, True)
    assert kept(private_redis) == before


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda url: url.partition("@")[0].rpartition(":")[0] + ":hunter2@" + url.partition("@")[2], "password"),
        (lambda url: url.rpartition(":")[0] + ":1/0", "cannot be reached"),
        (lambda url: url.replace("/0?", "/99?"), "no database 99"),
        (lambda url: url + "&cluster=yes", "cluster="),
    ],
)
def test_the_command_line_says_it_in_one_line(private_redis: RedisServer, change: Callable[[str], str], what: str) -> None:
    url = change(private_redis.url())
    said = subprocess.run([sys.executable, "-m", "taskmill", "check"], env={**os.environ, "TASKMILL_URL": url}, capture_output=True, text=True, check=False)
    assert said.returncode in (1, 2)
    assert what in said.stderr
    assert len(said.stderr.strip().splitlines()) == 1, said.stderr
    assert "Traceback" not in said.stderr
    assert "hunter2" not in said.stderr
    assert is_empty(private_redis)


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
