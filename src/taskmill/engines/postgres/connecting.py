"""The connections of a process: a pool that holds few, asks nothing of them that is not needed, and says for sure whether a step may have been applied.

Behind a pooler like PgBouncer there are no sessions: two statements in turn may meet two servers. It is recognised by the number of the
server's process, which it makes up. Then nothing is prepared, every step is a transaction that sets for itself what it needs, and nobody can listen.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import asyncpg
from asyncpg import exceptions as pg
from asyncpg.transaction import Transaction

from taskmill.clock import MILLISECOND, SECOND
from taskmill.engine import Durability
from taskmill.engines.postgres.connection import COMMITS, Connection, connect, hang_up
from taskmill.engines.postgres.errors import FAILURES, OLDEST_SERVER, breaks, passes, refuse_server, translate
from taskmill.engines.postgres.listening import Listener
from taskmill.engines.postgres.target import Target
from taskmill.errors import AnswerLost, Conflict, StoreError, WrongStore

__all__ = ["Connection", "Pool", "Record"]

Record = asyncpg.Record
Answer = TypeVar("Answer")

REPEATS = 20
LONGEST_PAUSE = 50 * MILLISECOND
FROZEN = 10 * SECOND
"""The engine's own transactions have nothing to wait for: a program that says nothing in one for so long is stopped, and must not keep others from leading."""
REPLICATES = "current_setting('synchronous_standby_names') <> ''"


class Pool:
    """The connections of one process."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.pooled = False
        self.in_recovery = False
        self.replicates = False
        self.server_version: tuple[int, int] = (0, 0)
        self._idle: list[Connection] = []
        self._busy: set[Connection] = set()
        self._size = 0
        self._waiting: deque[asyncio.Future[Connection | None]] = deque()
        self._opened = False
        self._emptied = asyncio.Event()
        self._listener = Listener(target)

    # Opening and closing

    async def open(self) -> None:
        """Connect, and learn what is there: a server that is too old or cannot promise what is asked for is refused. One that is just starting, or has no
        connection left, is asked again for as long as the settings say; one that is not there is not waited for."""
        connection = await self._looked(_moment() + self.target.patience / SECOND)
        self._opened, self._size = True, 1 + len(self._busy)
        self._listener = Listener(self.target)
        self._idle.append(connection)

    async def _looked(self, deadline: float) -> Connection:
        repeat = 0
        while True:
            try:
                return await self._look()
            except FAILURES as error:
                if not isinstance(error, (pg.CannotConnectNowError, pg.TooManyConnectionsError)) or _moment() > deadline:
                    raise translate(error, self.target) from None
            repeat += 1
            await _pause(repeat)

    async def _look(self) -> Connection:
        self.pooled = False
        try:
            connection = await self.connect()
        except pg.ProtocolViolationError as error:
            if "startup parameter" not in str(error):
                raise
            self.pooled = True
            connection = await self.connect()
        try:
            return await self._learn(connection)
        except BaseException:
            connection.terminate()
            raise

    async def _learn(self, connection: Connection) -> Connection:
        version, encoding = connection.get_server_version(), connection.get_settings().server_encoding
        self.server_version = (version.major, version.micro)
        if version.major < OLDEST_SERVER:
            raise refuse_server(f"{version.major}.{version.micro}", self.target)
        if encoding != "UTF8":
            hint = "make a database that holds all texts: createdb --encoding UTF8 --template template0"
            raise WrongStore(f"the database {self.target} has the encoding {encoding}", code="not_utf8", field="url", hint=hint)
        row = await connection.fetchrow(f"SELECT pg_backend_pid(), pg_is_in_recovery(), {REPLICATES}")
        assert row is not None
        pid, self.in_recovery, self.replicates = row
        if self.target.durability is Durability.REPLICATED and not self.replicates:
            hint = "set synchronous_standby_names there, or ask for durability fsync"
            raise WrongStore(f"{self.target} has no synchronous standby", code="not_replicated", field="durability", hint=hint)
        if pid != connection.get_server_pid() and not self.pooled:
            self.pooled = True
            await connection.close()
            return await self.connect()
        return connection

    async def close(self, grace: int = 5 * SECOND) -> None:
        """Steps under way may end within `grace`; then their connections are cut."""
        self._opened = False
        await self._listener.close()
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)
        if self._busy:
            self._emptied.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._emptied.wait(), grace / SECOND)
        for connection in self._busy:
            connection.terminate()
        idle, self._idle = self._idle, []
        self._size -= len(idle)
        await asyncio.gather(*(hang_up(connection) for connection in idle))

    async def connect(self, *, plain: bool = False) -> Connection:
        """A connection beside the pool; whoever asked for it closes it. `plain`: as any other program of this user gets it."""
        return await connect(self.target, pooled=self.pooled, plain=plain)

    async def listen(self, channel: str, heard: Callable[[str], None], lost: Callable[[], None]) -> Callable[[], Awaitable[None]] | None:
        """`heard` is given what is said on the channel, from the moment this answers, and `lost` is told after a gap; what it answers ends the
        listening. None: a pooler stands between, and nobody can listen."""
        return None if self.pooled else await self._listener.listen(channel, heard, lost)

    # Steps

    async def fetch(self, statement: str, *args: object, timeout: int | None = None) -> list[Record]:
        """One statement, which is a step of its own; microseconds to wait for its answer."""
        seconds = (timeout or self.target.patience) / SECOND
        return await self._step(lambda connection: connection.fetch(statement, *args, timeout=seconds))

    async def fetch_durably(self, durability: Durability | None, statement: str, *args: object, timeout: int | None = None) -> list[Record]:
        """The same with a commit that goes this far; None: as far as all others."""
        if durability is None:
            return await self.fetch(statement, *args, timeout=timeout)
        async with self.transaction(durability=durability) as connection:
            rows: list[Record] = await connection.fetch(statement, *args, timeout=(timeout or self.target.patience) / SECOND)
        return rows

    async def fetchrow(self, statement: str, *args: object, timeout: int | None = None) -> Record | None:
        """The first row of such a statement."""
        seconds = (timeout or self.target.patience) / SECOND
        return await self._step(lambda connection: connection.fetchrow(statement, *args, timeout=seconds))

    async def fetchval(self, statement: str, *args: object, timeout: int | None = None) -> Any:
        """The first value of that row."""
        seconds = (timeout or self.target.patience) / SECOND
        return await self._step(lambda connection: connection.fetchval(statement, *args, timeout=seconds))

    async def _step(self, ask: Callable[[Connection], Awaitable[Answer]]) -> Answer:
        """Whoever rolled back because of others goes again."""
        if self.pooled:
            return await self._repeated(lambda: self._transacted(ask))
        return await self._repeated(lambda: self._asked(ask))

    async def _repeated(self, ask: Callable[[], Awaitable[Answer]]) -> Answer:
        for repeat in range(REPEATS):
            try:
                return await ask()
            except FAILURES as error:
                if not passes(error) or repeat == REPEATS - 1:
                    raise translate(error, self.target, sent=True) from None
            await _pause(repeat)
        raise AssertionError("the last repeat raises")

    async def _asked(self, ask: Callable[[Connection], Awaitable[Answer]]) -> Answer:
        connection = await self._acquire()
        try:
            return await ask(connection)
        except BaseException as error:
            _cut_if_broken(connection, error)
            raise
        finally:
            self._release(connection)

    async def _transacted(self, ask: Callable[[Connection], Awaitable[Answer]]) -> Answer:
        async with self._begun(None) as (connection, transaction):
            try:
                answer = await ask(connection)
            except FAILURES as error:
                if passes(error):
                    raise
                raise translate(error, self.target) from None
            await self._commit(connection, transaction)
        return answer

    @contextlib.asynccontextmanager
    async def transaction(self, *, durability: Durability | None = None, own: bool = True) -> AsyncIterator[Connection]:
        """BEGIN … COMMIT, or ROLLBACK when the block raises. `own`: its statements are the engine's, so their errors are told in the words of this product;
        those of a user's statements are the user's."""
        async with self._begun(durability) as (connection, transaction):
            try:
                if own:
                    await connection.execute(f"SET LOCAL idle_in_transaction_session_timeout TO {FROZEN // MILLISECOND}")
                yield connection
            except FAILURES as error:
                if own or breaks(error):
                    raise translate(error, self.target) from error
                raise
            try:
                await self._commit(connection, transaction)
            except FAILURES as error:
                raise (translate(error, self.target) if own else error) from None

    @contextlib.asynccontextmanager
    async def _begun(self, durability: Durability | None) -> AsyncIterator[tuple[Connection, Transaction]]:
        """A transaction that has begun; it is rolled back unless it was committed inside."""
        connection, transaction = await self._begin(durability)
        try:
            yield connection, transaction
        except BaseException as error:
            await _roll_back(connection, transaction, error)
            raise
        finally:
            self._release(connection)

    async def _begin(self, durability: Durability | None) -> tuple[Connection, Transaction]:
        """Nothing has been done yet, so a connection that breaks here is replaced by the next."""
        deadline = _moment() + self.target.patience / SECOND
        while True:
            connection = await self._acquire()
            transaction = connection.transaction(isolation="read_committed" if self.pooled else None)
            try:
                await transaction.start()
                if self.pooled or durability not in (None, self.target.durability):
                    await connection.execute(f"SET LOCAL synchronous_commit TO {COMMITS[durability or self.target.durability]}")
            except BaseException as error:
                connection.terminate()
                self._release(connection)
                if not isinstance(error, FAILURES):
                    raise
                if not breaks(error) or _moment() > deadline:
                    raise translate(error, self.target) from None
            else:
                return connection, transaction

    async def _commit(self, connection: Connection, transaction: Transaction) -> None:
        """PostgreSQL answers the COMMIT of a transaction in which a statement has failed with ROLLBACK, and no error."""
        try:
            await transaction.commit()
        except FAILURES as error:
            if breaks(error):
                raise translate(error, self.target, sent=True) from None
            raise
        if connection.answer == "ROLLBACK":
            hint = "let the error of a statement end the transaction, or put the statement into a nested one"
            raise Conflict("the transaction was rolled back, because a statement in it had failed", code="rolled_back", hint=hint)

    @contextlib.asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """A connection of the pool, for statements one after the other; errors come as asyncpg raises them."""
        connection = await self._acquire()
        try:
            yield connection
        except BaseException as error:
            _cut_if_broken(connection, error)
            raise
        finally:
            if connection.is_in_transaction():
                connection.terminate()
            self._release(connection)

    # Taking and giving back

    async def _acquire(self) -> Connection:
        """An idle connection, a new one while there may be more, or the next that is given back: first come, first served."""
        deadline = _moment() + self.target.patience / SECOND
        while True:
            if not self._opened:
                raise StoreError(f"{self.target} is not open", code="closed")
            if (idle := self._take_idle()) is not None:
                return idle
            given = await self._new(deadline) if self._size < self.target.pool else await self._given(deadline)
            if given is not None:
                return given

    def _take_idle(self) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_closed():
                self._busy.add(connection)
                return connection
            self._size -= 1
        return None

    async def _new(self, deadline: float) -> Connection:
        self._size += 1
        try:
            connection = await self._connected(deadline)
        except BaseException:
            self._size -= 1
            self._let_next_connect()
            raise
        if connection in self._busy:  # no new one: it was counted when it was made
            self._size -= 1
            self._let_next_connect()
        self._busy.add(connection)
        return connection

    async def _connected(self, deadline: float) -> Connection:
        """A server that is restarting, or has no slot left, is asked again until the time is over; meanwhile one that another gives back will do."""
        repeat = 0
        while True:
            try:
                return await self._looked_behind(await self.connect())
            except FAILURES as error:
                found = translate(error, self.target)
                if not self._opened or not isinstance(found, StoreError) or _moment() > deadline:
                    raise found from None
            repeat += 1
            if (given := self._take_idle() or await self._offered_within(_length(repeat))) is not None:
                return given

    async def _offered_within(self, seconds: float) -> Connection | None:
        try:
            given = await self._offered(_moment() + seconds)
        except TimeoutError:
            return None
        if given is None:
            self._let_next_connect()  # it was meant for one who waits for room
        return given

    async def _looked_behind(self, connection: Connection) -> Connection:
        """Another server than before may have answered, that has no standby: what is written there is not replicated."""
        if self.target.durability is Durability.REPLICATED:
            try:
                self.replicates = await connection.fetchval(f"SELECT {REPLICATES}")
            except BaseException:
                connection.terminate()
                raise
        return connection

    async def _given(self, deadline: float) -> Connection | None:
        """What somebody gives back; None: look again."""
        try:
            return await self._offered(deadline)
        except TimeoutError:
            hint = "raise ?pool= in the URL; nothing was written, ask again"
            raise StoreError(f"all {self.target.pool} connections of this process are in use all this time", code="pool_busy", hint=hint) from None

    async def _offered(self, deadline: float) -> Connection | None:
        waiting: asyncio.Future[Connection | None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        try:
            async with asyncio.timeout_at(deadline):
                return await waiting
        except BaseException:
            if waiting.done() and not waiting.cancelled() and (given := waiting.result()) is not None:
                self._release(given)
            elif waiting in self._waiting:
                self._waiting.remove(waiting)
            raise

    def _release(self, connection: Connection) -> None:
        self._busy.discard(connection)
        if not self._busy:
            self._emptied.set()
        if connection.is_closed() or not self._opened:
            self._size -= 1
            connection.terminate()
            self._let_next_connect()
            return
        while self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.done():
                self._busy.add(connection)
                waiting.set_result(connection)
                return
        self._idle.append(connection)

    def _let_next_connect(self) -> None:
        while self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_result(None)
                return


def _moment() -> float:
    return asyncio.get_running_loop().time()


async def _pause(repeat: int) -> None:
    await asyncio.sleep(_length(repeat))


def _length(repeat: int) -> float:
    """A little longer each time, and never the same as others'."""
    return random.uniform(0.2, 1) * min(MILLISECOND << min(repeat, 16), LONGEST_PAUSE) / SECOND


def _cut_if_broken(connection: Connection, error: BaseException) -> None:
    """A standby that was a primary takes no writes any more: the next connection may find who does. One whose statement took too long is kept: asyncpg
    is just telling the server to stop it."""
    if isinstance(error, FAILURES) and not isinstance(error, TimeoutError) and (breaks(error) or isinstance(error, pg.ReadOnlySQLTransactionError)):
        connection.terminate()


async def _roll_back(connection: Connection, transaction: Transaction, error: BaseException) -> None:
    """Whatever happens here, nothing is left open: a connection that does not answer is cut, and the server rolls back."""
    if isinstance(error, AnswerLost) or connection.is_closed() or breaks(error):
        connection.terminate()
    if connection.is_closed() or not connection.is_in_transaction():
        return
    try:
        await transaction.rollback()
    except BaseException as broken:
        connection.terminate()
        if not isinstance(broken, FAILURES):
            raise
