"""The user's transaction: business rows and tasks are written together, on a connection of the pool or on the user's own.

On the user's own connection every step is one statement with one text, whichever the driver (0011_inbox.sql), and its answer is another. Nothing of a
step commits, rolls back or sets anything there; one that fails is answered like any other, so the transaction stays as it was.

Names that are missing (of queues, lanes) are made beside it where that is possible at once, because whoever wants the same name waits for their commit.
Behind a pooler all of whose connections stand in users' transactions it is not possible, and they are made inside.
"""

from __future__ import annotations

import asyncio
import copy
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakSet

import asyncpg
import msgspec

from taskmill.clock import MILLISECOND
from taskmill.engines.postgres.connecting import Connection, Record
from taskmill.engines.postgres.drivers import Driver
from taskmill.engines.postgres.errors import translate
from taskmill.engines.postgres.store import Store
from taskmill.engines.postgres.submit import as_document
from taskmill.errors import Conflict, InvalidInput, StoreError, TaskmillError, WrongStore

if TYPE_CHECKING:
    from taskmill.engines.postgres.engine import PostgresEngine

__all__ = ["Foreign", "Home", "Inside", "Tx"]

BESIDE = 0.5
"""Seconds to wait for a connection beside the user's."""
REPEAT = "roll the transaction back and run it again"
ROWS = {
    "submit": ("place", "status", "id", "reserved", "code", "message"),
    "finish": ("task", "token", "code", "message", "state"),
    "settings": ("generation", "kind", "name", "value"),
    "items": ("name", "value", "version", "operator"),
    "inbox": ("first",),
    "walk": ("parent", "child"),
}


class Tx:
    """What `async with engine.transaction() as tx` hands out; `tx.connection` is asyncpg's, with all that it can do."""

    def __init__(self, engine: PostgresEngine, connection: Connection) -> None:
        self.engine = engine
        self.connection = connection
        self.open = True
        self.abandoned = False
        self.queues: set[str] = set()
        """Where tasks were submitted."""
        self.owes = False
        """Whether its commit lets edges fall, or gives slots back."""

    async def execute(self, statement: str, bindings: Sequence[Any] | None = None) -> list[Record]:
        """A statement of the user's own, with `$1`, `$2`, … for its bindings; its rows."""
        self.check()
        rows = await self.connection.fetch(statement, *(bindings or ()))
        self.check_inside()
        return rows

    async def executemany(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        """The same statement for each of these rows of bindings."""
        self.check()
        await self.connection.executemany(statement, rows)
        self.check_inside()

    def check(self) -> None:
        if not self.open:
            raise Conflict("the transaction has ended", code="transaction_ended", field="tx", hint="use it inside its `async with` block")

    def check_inside(self) -> None:
        """A statement that ended the transaction took the ground from under what follows."""
        if not self.connection.is_in_transaction():
            raise Conflict(
                "a statement of its own has ended the transaction", code="transaction_ended", hint="leave BEGIN, COMMIT and ROLLBACK to the `async with` block"
            )

    def abandon(self) -> None:
        """The engine is closed under it: nothing of it stays."""
        self.open = False
        self.abandoned = True
        self.connection.terminate()


class Home(NamedTuple):
    """Where an engine's store is, as it was found when the engine was opened."""

    loop: asyncio.AbstractEventLoop
    thread: int
    database: str
    made_at: int
    """By which a store of the same name in another place is told apart."""
    checked: WeakSet[Any]
    """Connections of users that lead here."""

    def check_here(self) -> None:
        """The engine's own connections live on its loop."""
        if _running() is not self.loop:
            hint = "use it where the app was opened, or pass a connection of your own; plain functions have `.sync.transaction()`"
            raise InvalidInput("the transaction is on another event loop than this", code="other_loop", field="tx", hint=hint)


class Row:
    """A row that was answered as text; read by place or by name, as asyncpg's are."""

    def __init__(self, names: Sequence[str], values: Sequence[Any]) -> None:
        self._names = names
        self._values = values

    def __iter__(self) -> Iterator[Any]:
        return iter(self._values)

    def __getitem__(self, name: str) -> Any:
        return self._values[self._names.index(name)]


class Inside:
    """Steps on the engine's own connection in a user's transaction."""

    def __init__(self, store: Store, home: Home, connection: Connection) -> None:
        self.store = store
        self._home = home
        self._connection = connection
        self._beside = 0

    async def fetch(self, statement: str, *arguments: Any) -> Sequence[Any]:
        return await self._connection.fetch(statement, *arguments)

    async def say(self, verb: str, call: dict[str, Any]) -> list[Row]:
        """One of the steps that `through` knows."""
        text = msgspec.json.encode({"store": self._home.made_at, **call}).decode()
        answer = msgspec.json.decode(await self._ask(self.store.load("transaction.sql").through, verb, text))
        if "other" in answer:
            raise _elsewhere("there is another store in this database than when the engine was opened")
        if "error" in answer:
            raise self._refused(answer["state"], answer["error"])
        return [Row(ROWS[verb], values) for values in answer["rows"]]

    async def _ask(self, statement: str, *arguments: str) -> str:
        answer: str = await self._connection.fetchval(statement, *arguments)
        return answer

    def _refused(self, state: str, message: str) -> TaskmillError:
        if state[:2] == "40":
            return StoreError(f"others were in the way: {message}", code="store_busy", hint=REPEAT)
        return translate(asyncpg.PostgresError.new({"C": state, "M": message}), self.store.pool.target)

    async def make_names(self, lines: str) -> None:
        """Beside the transaction if that is possible at once, else in it. A transaction that does not see them then has looked before."""
        self._beside += 1
        if self._beside == 1 and await self._made_beside(lines):
            return
        if self._beside > 2:
            raise StoreError("a queue or a lane was made while the transaction ran, which does not see it", code="store_busy", hint=REPEAT)
        await self.say("names", {"lines": msgspec.Raw(lines.encode()), "patience": self.patience})

    @property
    def patience(self) -> int:
        return self.store.pool.target.busy_timeout // MILLISECOND

    async def _made_beside(self, lines: str) -> bool:
        try:
            await asyncio.wait_for(self.store.pool.fetch(self.store.load("submit.sql").make_names, lines), BESIDE)
        except (TimeoutError, StoreError):
            return False
        return True

    async def items(self, kind: str) -> list[Any]:
        return [(row["name"], row["value"].encode(), row["version"], row["operator"]) for row in await self.say("items", {"kind": kind})]

    async def is_first(self, source: str, message: str) -> bool:
        call = {"source": source, "id": message, "patience": self.patience, "now": self.store.now()}
        [row] = await self.say("inbox", call)
        if row["first"] is None:
            message = f"another transaction deals with message {message!r:.80} of {source!r:.80} all this time"
            raise Conflict(message, code="key_in_flight", field="message_id", hint="ask again when that has ended")
        return bool(row["first"])


class Foreign(Inside):
    """Steps on a connection of the user's own, over its driver. The settings it has read are its own: it may be of another thread than the engine."""

    def __init__(self, store: Store, home: Home, driver: Driver) -> None:
        self.store = copy.copy(store)
        self.driver = driver
        self._home = home
        self._beside = 0

    async def check(self) -> None:
        """In a transaction, and of this store?"""
        if not self.driver.blocks and _running() is None:
            hint = "await the verb in the loop of that connection, or pass a blocking one"
            raise InvalidInput("the connection is one that is awaited, and there is no event loop here", code="no_loop", field="tx", hint=hint)
        own = await self.driver.begin()
        if own in self._home.checked:
            return
        database, there = msgspec.json.decode(await self.driver.ask(self.store.load("transaction.sql").where))
        if database != self._home.database or not there:
            raise _elsewhere(f"this connection is of the database {database}, the tasks are in {self._home.database}, schema {self.store.schema}")
        self._home.checked.add(own)

    async def fetch(self, statement: str, *arguments: Any) -> Sequence[Any]:
        """A statement of submit, of finish or of the settings, in its form for every driver."""
        if statement is self.store.load("submit.sql").submit:
            *tasks, generation, patience, _, now = arguments
            return await self.say("submit", {"batch": as_document(tasks), "generation": generation, "patience": patience, "now": now})
        if statement is self.store.load("finish.sql").finish:
            names = ("worker", "ids", "tokens", "started", "results", "rest", "generation", "patience", "own", "now")
            call = dict(zip(names, arguments, strict=True))
            return await self.say("finish", call | {"rest": None if call["rest"] is None else msgspec.Raw(call["rest"].encode())})
        if statement is self.store.load("submit.sql").walk:
            return await self.say("walk", {"ids": arguments[0]})
        assert statement is self.store.load("store.sql").settings
        rows = await self.say("settings", {})
        return [Row(ROWS["settings"], (*list(row)[:3], None if row["value"] is None else row["value"].encode())) for row in rows]

    async def _ask(self, statement: str, *arguments: str) -> str:
        return await self.driver.ask(statement, *arguments)

    async def _made_beside(self, lines: str) -> bool:
        """On the engine's loop. Whoever blocks that very loop cannot wait for it."""
        loop = self._home.loop
        if not loop.is_running() or (self.driver.blocks and self._home.thread == threading.get_ident()):
            return False
        making = asyncio.run_coroutine_threadsafe(super()._made_beside(lines), loop)
        if not self.driver.blocks:
            return await asyncio.wrap_future(making)
        try:
            return making.result(2 * BESIDE)
        except TimeoutError:  # whatever keeps that loop from turning
            return False


def _running() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _elsewhere(message: str) -> WrongStore:
    hint = "pass a connection to the database of the tasks, or give the app that database's URL"
    return WrongStore(message, code="foreign_connection", field="tx", hint=hint)
