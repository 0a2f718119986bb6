"""What fault tests need of PostgreSQL beside a server: a store in it, sessions of others, a standby that stays behind, a whole server that is paused."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

import asyncpg

from taskmill.engines.postgres.schema import PostgresSchema
from taskmill.engines.postgres.target import parse
from tests.faults.processes import GENEROUS
from tests.servers.postgres import Postgres

__all__ = ["Session", "blocked_by", "blocks", "caught_up", "cut_off", "moment", "paused", "plain_session", "take_over", "url_of_both", "with_store"]

if TYPE_CHECKING:
    Session = asyncpg.Connection[asyncpg.Record]
else:
    Session = asyncpg.Connection


def with_store(server: Postgres) -> Postgres:
    PostgresSchema(parse(server.url())).upgrade()
    return server


@contextlib.asynccontextmanager
async def plain_session(url: str) -> AsyncIterator[Session]:
    """Somebody else's."""
    session = await asyncpg.connect(**parse(url).arguments())
    try:
        yield session
    finally:
        session.terminate()


async def moment(session: Session) -> int:
    """The store's clock."""
    return int(await session.fetchval("SELECT taskmill.moment(NULL)"))


async def blocks(session: Session) -> int:
    """How many others wait for what this session's transaction holds."""
    return int(await session.fetchval("SELECT count(*) FROM pg_stat_activity WHERE pg_backend_pid() = ANY (pg_blocking_pids(pid))"))


async def blocked_by(session: Session, n: int = 1) -> None:
    """Wait until it blocks so many."""
    async with asyncio.timeout(GENEROUS):
        while await blocks(session) < n:  # noqa: ASYNC110 - it happens in the server
            await asyncio.sleep(0.01)


# A standby


def url_of_both(primary: Postgres, standby: Postgres, **parameters: object) -> str:
    """Whichever of the two takes writes."""
    more = "".join(f"&{name}={value}" for name, value in parameters.items())
    places = f"127.0.0.1:{primary.port},127.0.0.1:{standby.port}"
    return f"postgresql://postgres:{primary.password}@{places}/postgres?target_session_attrs=read-write{more}"


def caught_up(primary: Postgres, standby: Postgres) -> None:
    """Everything that was committed until now can be seen there."""
    ((place,),) = primary.query("SELECT pg_current_wal_flush_lsn()")
    standby.until(f"SELECT 1 WHERE pg_last_wal_replay_lsn() >= '{place}'")


def cut_off(primary: Postgres) -> None:
    """Nothing that is committed from now on leaves this server: who would send it is stopped, and dies with it."""
    for (pid,) in primary.query("SELECT pid FROM pg_stat_replication"):
        os.kill(pid, signal.SIGSTOP)


def take_over(primary: Postgres, standby: Postgres) -> None:
    primary.stop("kill")
    standby.promote()


# A pause


@contextlib.contextmanager
def paused(server: Postgres) -> Iterator[None]:
    """All of its processes; the first of them first, so that it starts no others."""
    stopped: list[int] = []
    try:
        while more := [pid for pid in server.processes() if pid not in stopped]:
            for pid in more:
                stopped.append(pid)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)
        yield
    finally:
        for pid in reversed(stopped):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
