"""Archives that cannot be: one clear line with the remedy, no password in it, and the store goes on."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterator
from urllib.parse import quote, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskmill.config import load, mask_url, url_parameters
from taskmill.engine import Engine
from taskmill.engines import create, deliverers
from taskmill.engines.redis.target import parse
from taskmill.errors import InvalidSettings
from taskmill.maintenance.outbox import Outbox
from taskmill.task import State
from tests.conformance.tools_b import make
from tests.engines.redis.archives import with_archive
from tests.servers.existing import Server

SECRET = "hunter2"


@pytest.fixture
def empty_url(postgres: Server) -> Iterator[str]:
    """A database in which there is nothing."""
    url = postgres.databases.empty()
    try:
        yield url
    finally:
        postgres.databases.drop(urlsplit(url).path.removeprefix("/"))


@contextlib.asynccontextmanager
async def store(redis_url: str, archive_url: str) -> AsyncIterator[Engine]:
    """A store that is open and in which a task has ended."""
    engine = create(with_archive(redis_url + "&busy_timeout=1s", archive_url))
    await engine.open()
    try:
        await make(engine, State.COMPLETED)
        yield engine
    finally:
        await engine.close()


async def told(engine: Engine, caplog: pytest.LogCaptureFixture) -> str:
    """The one line that the log has of a delivery that cannot be, however often it is tried; `check` says the same."""
    outbox = Outbox(engine, "me", deliverers(engine))
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            assert await outbox.once() == 0
    [entry] = [entry for entry in caplog.records if "archive" in entry.getMessage()]
    assert entry.exc_info in (None, False, (None, None, None))
    line = entry.getMessage()
    assert ("\n" in line, SECRET in line) == (False, False)
    return line


def other(url: str, **changes: str) -> str:
    """The URL with another user, password, port or database."""
    parts = urlsplit(url)
    user, password = changes.get("user", parts.username), changes.get("password", parts.password)
    place = f"{user}:{password}@{parts.hostname}:{changes.get('port', parts.port)}"
    return f"postgresql://{place}/{changes.get('database', parts.path[1:])}"


async def test_a_wrong_password(redis_url: str, empty_url: str, caplog: pytest.LogCaptureFixture) -> None:
    async with store(redis_url, other(empty_url, password=SECRET)) as engine:
        line = await told(engine, caplog)
        [found] = [each for each in await engine.check() if each.code == "archive_unreachable"]
    assert "check user and password" in line
    assert "check user and password" in found.hint
    assert SECRET not in f"{found}"


async def test_no_such_database(redis_url: str, empty_url: str, caplog: pytest.LogCaptureFixture) -> None:
    async with store(redis_url, other(empty_url, database="nowhere")) as engine:
        assert "createdb nowhere" in await told(engine, caplog)


async def test_nobody_listens(redis_url: str, caplog: pytest.LogCaptureFixture) -> None:
    async with store(redis_url, f"postgresql://u:{SECRET}@127.0.0.1:1/d") as engine:
        assert "127.0.0.1:1" in await told(engine, caplog)


async def test_something_that_is_not_postgresql(redis_url: str, caplog: pytest.LogCaptureFixture) -> None:
    async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.example ESMTP\r\n")
        with contextlib.suppress(OSError):
            await reader.read(1_000)
            writer.close()
            await writer.wait_closed()

    server = await asyncio.start_server(babble, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        async with store(redis_url, f"postgresql://u:{SECRET}@127.0.0.1:{port}/d") as engine:
            assert f"127.0.0.1:{port}" in await told(engine, caplog)


async def test_a_schema_that_is_a_store_of_tasks(redis_url: str, postgres_url: str, caplog: pytest.LogCaptureFixture) -> None:
    async with store(redis_url, f"{postgres_url}?schema=taskmill") as engine:
        assert "?schema=taskmill_archive" in await told(engine, caplog)


async def test_beside_a_store_in_the_same_database(redis_url: str, postgres_url: str) -> None:
    async with store(redis_url, postgres_url) as engine:
        assert await Outbox(engine, "me", deliverers(engine)).once() == 1


@pytest.mark.parametrize(
    ("archive", "code"),
    [
        ("", "unknown_engine"),
        ("yes", "unknown_engine"),
        (f"redis://:{SECRET}@h/0", "unknown_engine"),
        (f"sqlite:///{SECRET}.db", "unknown_engine"),
        (f"mysql://u:{SECRET}@h/d", "unknown_engine"),
        (f"postgresql://u:{SECRET}@h", "invalid_value"),
        (f"postgresql://u:{SECRET}#@h/d", "invalid_value"),
        (f"postgresql://u:{SECRET}@h/d?schema=Not-One", "invalid_value"),
        (f"postgresql://u:{SECRET}@h/d?colour=red", "unknown_parameter"),
    ],
)
def test_a_url_that_is_none_of_an_archive(archive: str, code: str) -> None:
    with pytest.raises(InvalidSettings) as refused:
        create(f"redis://h/0?archive={quote(archive, safe='')}")
    error = refused.value
    assert (error.code, error.field, bool(error.hint)) == (code, "archive", True)
    assert SECRET not in str(error)


def test_a_url_that_is_not_encoded_is_told_how() -> None:
    with pytest.raises(InvalidSettings) as refused:
        create(f"redis://h/0?archive=postgresql://u:{SECRET}@h/d")
    assert "percent-encode the whole URL of the archive" in str(refused.value)
    assert SECRET not in str(refused.value)


# Passwords


@pytest.mark.parametrize(
    ("url", "masked"),
    [
        (f"redis://:{SECRET}@h/0?archive=postgresql%3A%2F%2Fu%3A{SECRET}%40h%2Fd", "redis://:***@h/0?archive=postgresql://u:***@h/d"),
        (f"redis://h:6379/0?prefix=a&archive=postgresql%3A%2F%2Fu%3A{SECRET}%40h%2Fd", "redis://h:6379/0?prefix=a&archive=postgresql://u:***@h/d"),
        ("redis://h/0?prefix=a&busy_timeout=1s", "redis://h/0?prefix=a&busy_timeout=1s"),
        ("redis://archive/0", "redis://archive/0"),
        (f"redis://h/0?%61rchive=postgresql%3A%2F%2Fu%3A{SECRET}%40h%2Fd", "redis://***"),
        (f"redis://u:a?{SECRET}@h/0?archive=postgresql%3A%2F%2Fu%3A{SECRET}%40h%2Fd", "redis://***"),
        (f"redis://h/0?archive=postgresql://u:{SECRET}@h/d", "redis://h/0?archive=postgresql://u:***@h/d"),
        (f"redis://h/0?archive=postgresql://u:a&{SECRET}@h/d", "redis://***"),
    ],
)
def test_passwords_of_archives_are_masked(url: str, masked: str) -> None:
    assert mask_url(url) == masked
    assert mask_url(masked) == masked


@given(st.text(min_size=0, max_size=12), st.booleans())
def test_no_password_of_an_archive_is_ever_printed(inner: str, doubly: bool) -> None:
    password = f"S3CR{inner}T5"
    archive = f"postgresql://u:{quote(password, safe='') if doubly else password}@h/d"
    url = f"redis://h/0?archive={quote(archive, safe='')}"
    shown = [mask_url(url), repr(parse(url)), str(parse(url)), repr(load({"url": url}, {}))]
    with contextlib.suppress(InvalidSettings):
        shown.append(repr(vars(create(url))))
    try:
        create(url)
    except InvalidSettings as error:
        shown.append(str(error))
    assert url_parameters(url)["archive"] == archive
    assert [text for text in shown if "S3CR" in text or "T5" in text] == []
