"""Every way to fail, in the words of this product: what to do about it, and whether the step may have been applied. Most are made by real servers."""

from __future__ import annotations

import asyncio
import secrets
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress

import pytest
from asyncpg import exceptions as pg

from taskmill.clock import SECOND
from taskmill.config import Secret
from taskmill.engines.postgres.connecting import Pool
from taskmill.engines.postgres.errors import translate
from taskmill.engines.postgres.target import Target, parse
from taskmill.errors import AnswerLost, InvalidSettings, StoreError, TaskmillError, WrongStore
from tests.engines.postgres.tools import opened, target_of
from tests.servers.postgres import Postgres

TARGET = parse("postgresql://me:s3cr3t@h/d")


@pytest.fixture
async def pool(empty_url: str) -> AsyncIterator[Pool]:
    async with opened(empty_url, busy_timeout=2 * SECOND) as made:
        yield made


@pytest.fixture
async def role(pool: Pool) -> AsyncIterator[str]:
    """A user with no rights at all but to connect."""
    name = f"app_{secrets.token_hex(4)}"
    await pool.fetch(f"CREATE ROLE {name} LOGIN PASSWORD 'pw'")
    yield name
    await pool.fetch(f"DROP OWNED BY {name}")
    await pool.fetch(f"DROP ROLE {name}")


def as_role(url: str, role: str) -> Target:
    return target_of(url, user=role, password=Secret("pw"), busy_timeout=SECOND)


async def failure(target: Target, statement: str = "SELECT 1") -> TaskmillError:
    """What a step of that program ends in; opening is part of it."""
    pool = Pool(target)
    try:
        with pytest.raises(TaskmillError) as caught:
            await _step(pool, statement)
    finally:
        await pool.close()
    told(caught.value, target)
    return caught.value


async def _step(pool: Pool, statement: str) -> None:
    await pool.open()
    await pool.fetch(statement)


def told(error: TaskmillError, target: Target) -> None:
    """One line, a remedy, and no password."""
    text = str(error)
    assert "\n" not in text
    assert error.hint
    assert target.password is None or target.password.reveal() not in text


# Real ones


async def test_no_such_database(empty_url: str) -> None:
    error = await failure(target_of(empty_url, database="nowhere_at_all"))
    assert (type(error), error.code, error.hint) == (WrongStore, "no_database", "createdb nowhere_at_all")


async def test_a_wrong_password(private_postgres: Postgres) -> None:
    error = await failure(target_of(private_postgres.url(), password=Secret("wr0ng-one")))
    assert (type(error), error.code) == (WrongStore, "not_let_in")
    assert "percent-encoded" in (error.hint or "")


async def test_no_line_in_pg_hba(private_postgres: Postgres) -> None:
    private_postgres.query("CREATE ROLE bob LOGIN PASSWORD 'pw'")
    private_postgres.authenticate("host all bob 127.0.0.1/32 reject")
    private_postgres.restart()
    error = await failure(as_role(private_postgres.url(), "bob"))
    assert (type(error), error.code) == (WrongStore, "not_let_in")


async def test_tls_that_the_server_does_not_have(empty_url: str) -> None:
    error = await failure(target_of(empty_url, ssl=(("sslmode", "require"),)))
    assert isinstance(error, (StoreError, InvalidSettings))
    assert "SSL" in str(error)


async def test_a_certificate_that_is_not_there(empty_url: str) -> None:
    error = await failure(target_of(empty_url, ssl=(("sslmode", "verify-full"), ("sslrootcert", "/nowhere/ca.pem"))))
    assert "cert" in str(error)


async def test_a_name_that_does_not_resolve(empty_url: str) -> None:
    error = await failure(target_of(empty_url, hosts=(("no-such-host.invalid", 5432),)))
    assert (type(error), error.code) == (StoreError, "store_unavailable")


async def test_a_socket_that_is_not_there(empty_url: str) -> None:
    error = await failure(target_of(empty_url, hosts=(("/nowhere", 5432),)))
    assert (type(error), error.code) == (StoreError, "store_unavailable")


async def test_no_such_schema(empty_url: str) -> None:
    for statement in ("SELECT * FROM taskmill.task", "SELECT taskmill.claim()", "INSERT INTO taskmill.task VALUES (1)"):
        error = await failure(target_of(empty_url), statement)
        assert (type(error), error.code) == (WrongStore, "no_store")
        assert "taskmill db upgrade" in (error.hint or "")


async def test_a_user_without_rights(empty_url: str, pool: Pool, role: str) -> None:
    await pool.fetch("CREATE SCHEMA taskmill")
    await pool.fetch("CREATE TABLE taskmill.task ()")
    error = await failure(as_role(empty_url, role), "SELECT * FROM taskmill.task")
    assert (type(error), error.code) == (WrongStore, "no_rights")
    assert f"GRANT USAGE ON SCHEMA taskmill TO {role}" in (error.hint or "")


async def test_what_the_hint_grants_is_enough(empty_url: str, pool: Pool, role: str) -> None:
    await pool.fetch("CREATE SCHEMA taskmill")
    await pool.fetch("CREATE TABLE taskmill.task (id bigint GENERATED ALWAYS AS IDENTITY)")
    error = await failure(as_role(empty_url, role), "INSERT INTO taskmill.task DEFAULT VALUES")
    for statement in (error.hint or "").partition(": ")[2].split("; "):
        await pool.fetch(statement)
    async with opened(empty_url, user=role, password=Secret("pw")) as other:
        await other.fetch("INSERT INTO taskmill.task DEFAULT VALUES")
        assert await other.fetchval("DELETE FROM taskmill.task RETURNING id") == 1


async def test_no_connection_left(empty_url: str, pool: Pool, role: str) -> None:
    await pool.fetch(f"ALTER ROLE {role} CONNECTION LIMIT 1")
    async with opened(empty_url, user=role, password=Secret("pw")):
        error = await failure(as_role(empty_url, role))
    assert (type(error), error.code) == (StoreError, "too_many_connections")
    assert "?pool=" in (error.hint or "")


async def test_a_connection_that_becomes_free_is_waited_for(empty_url: str, pool: Pool, role: str) -> None:
    await pool.fetch(f"ALTER ROLE {role} CONNECTION LIMIT 1")
    async with opened(empty_url, user=role, password=Secret("pw")):
        second = Pool(target_of(empty_url, user=role, password=Secret("pw")))
        opening = asyncio.create_task(second.open())
        done, _ = await asyncio.wait({opening}, timeout=0.2)
        assert not done
    await opening
    await second.close()


async def test_a_user_that_may_only_read(empty_url: str, pool: Pool, role: str) -> None:
    await pool.fetch(f"ALTER ROLE {role} SET default_transaction_read_only = on")
    error = await failure(as_role(empty_url, role), "CREATE TABLE public.note ()")
    assert (type(error), error.code) == (StoreError, "read_only")
    assert "target_session_attrs=read-write" in (error.hint or "")


async def test_somebody_s_lock(pool: Pool) -> None:
    await pool.fetch("CREATE TABLE public.note ()")
    async with pool.transaction() as connection:
        await connection.execute("LOCK TABLE public.note")
        with pytest.raises(StoreError) as caught:
            await _locked(pool)
    assert caught.value.code == "store_busy"
    assert not isinstance(caught.value, AnswerLost)


async def _locked(pool: Pool) -> None:
    async with pool.transaction() as connection:
        await connection.execute("SET LOCAL lock_timeout TO 1")
        await connection.fetch("SELECT * FROM public.note")


async def test_a_statement_timeout_of_the_user(empty_url: str, pool: Pool, role: str) -> None:
    await pool.fetch(f"ALTER ROLE {role} SET statement_timeout = 1")
    error = await failure(as_role(empty_url, role), "SELECT pg_sleep(600)")
    assert (type(error), error.code) == (StoreError, "store_busy")


async def test_a_database_in_another_encoding(private_postgres: Postgres) -> None:
    private_postgres.query("CREATE DATABASE latin ENCODING LATIN1 TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'")
    error = await failure(parse(private_postgres.url("latin")))
    assert (type(error), error.code) == (WrongStore, "not_utf8")


async def test_a_server_that_is_too_old() -> None:
    async with greeting("13.14") as port:
        error = await failure(parse(f"postgresql://u@127.0.0.1:{port}/d?sslmode=disable"))
    assert (type(error), error.code) == (WrongStore, "old_server")
    assert "PostgreSQL 13.14" in error.message
    assert "14 or newer" in (error.hint or "")


Greet = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def somebody(greet: Greet) -> AsyncIterator[int]:
    """Whoever listens at this port; nothing of it is left."""
    ended: list[asyncio.Event] = []

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        end = asyncio.Event()
        ended.append(end)
        await greet(reader, writer)
        await reader.read()
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
        end.set()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for end in ended:
            await end.wait()


def greeting(version: str) -> AbstractAsyncContextManager[int]:
    """Somebody who lets everybody in as a server of this version does, and then says no more."""

    def message(kind: bytes, body: bytes) -> bytes:
        return kind + struct.pack("!i", len(body) + 4) + body

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        size = struct.unpack("!i", await reader.readexactly(4))[0]
        await reader.readexactly(size - 4)
        settings = {"server_version": version, "server_encoding": "UTF8", "client_encoding": "UTF8"}
        said = [message(b"S", b"%s\x00%s\x00" % (name.encode(), value.encode())) for name, value in settings.items()]
        writer.write(b"".join([message(b"R", struct.pack("!i", 0)), *said, message(b"K", struct.pack("!ii", 1, 2)), message(b"Z", b"I")]))

    return somebody(greet)


async def test_somebody_else_s_port() -> None:
    async def nonsense(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async with somebody(nonsense) as port:
        error = await failure(parse(f"postgresql://u:s3cr3t@127.0.0.1:{port}/d"))
    assert isinstance(error, StoreError)


async def test_a_server_that_is_killed_and_started_again(private_postgres: Postgres) -> None:
    """Whoever was in the middle does not know; whoever comes after goes on by itself."""
    async with opened(private_postgres.url()) as pool:
        await pool.fetch("CREATE TABLE public.note ()")
        asking = asyncio.create_task(pool.fetch("SELECT pg_sleep(600)"))
        while not await pool.fetchval("SELECT count(*) FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(600)' AND state = 'active'"):
            pass
        await asyncio.to_thread(private_postgres.stop, "kill")
        with pytest.raises(AnswerLost):
            await asking
        later = asyncio.create_task(_count(pool))
        await asyncio.to_thread(private_postgres.start)
        assert await later == 0


async def _count(pool: Pool) -> int:
    async with pool.transaction() as connection:
        return int(await connection.fetchval("SELECT count(*) FROM public.note"))


async def test_a_standby_takes_no_writes_until_it_is_promoted(private_postgres: Postgres) -> None:
    private_postgres.query("CREATE TABLE public.note (id int)")
    with private_postgres.standby(synchronous=False) as standby:
        async with opened(standby.url()) as pool:
            assert pool.in_recovery
            with pytest.raises(StoreError) as caught:
                await pool.fetch("INSERT INTO public.note VALUES (1)")
            assert caught.value.code == "read_only"
            await asyncio.to_thread(standby.promote)
            await pool.fetch("INSERT INTO public.note VALUES (1)")
            assert await pool.fetchval("SELECT count(*) FROM public.note") == 1


# The rest


def every_error() -> Iterator[tuple[BaseException, type[TaskmillError], str, bool]]:
    """(error, class, code, whether that stays so when the statement had been sent)."""
    yield pg.SerializationError("could not serialize"), StoreError, "store_busy", True
    yield pg.DeadlockDetectedError("deadlock detected"), StoreError, "store_busy", True
    yield pg.DiskFullError("could not extend file"), StoreError, "disk_full", True
    yield pg.OutOfMemoryError("out of memory"), StoreError, "store_unavailable", True
    yield pg.IdleInTransactionSessionTimeoutError("terminating connection"), StoreError, "transaction_idle", True
    yield pg.CannotConnectNowError("the database system is starting up"), StoreError, "store_unavailable", False
    yield pg.AdminShutdownError("terminating connection due to administrator command"), StoreError, "store_unavailable", False
    yield pg.CrashShutdownError("terminating connection because of crash"), StoreError, "store_unavailable", False
    yield pg.ConnectionDoesNotExistError("connection was closed in the middle of operation"), StoreError, "store_unavailable", False
    yield ConnectionResetError(104, "Connection reset by peer"), StoreError, "store_unavailable", False
    yield TimeoutError(), StoreError, "store_unavailable", False
    yield pg.ProtocolViolationError("unsupported startup parameter: jit"), WrongStore, "pooler", True
    yield pg.CheckViolationError("row is wrong\nDETAIL: (1, secret row)"), StoreError, "store_error", True


@pytest.mark.parametrize(
    ("error", "kind", "code", "stays"), list(every_error()), ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else ""
)
def test_each_in_our_words(error: BaseException, kind: type[TaskmillError], code: str, stays: bool) -> None:
    found = translate(error, TARGET)
    assert (type(found), found.code) == (kind, code)
    assert "secret" not in str(found)
    assert "s3cr3t" not in str(found)
    sent = translate(error, TARGET, sent=True)
    assert (type(sent), sent.code) == ((kind, code) if stays else (AnswerLost, "answer_lost"))


def test_our_own_errors_pass() -> None:
    error = WrongStore("so it is")
    assert translate(error, TARGET) is error
