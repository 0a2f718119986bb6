"""A store on Redis: its shards, each with its keys and its scripts, and the settings that submits go by. One server has one shard."""

from __future__ import annotations

import asyncio
import builtins
import functools
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import msgspec
from redis.crc import key_slot
from redis.exceptions import (
    AskError,
    AuthenticationError,
    ClusterDownError,
    ConnectionError,
    InvalidResponse,
    MovedError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TimeoutError,
    TryAgainError,
)

from taskmill.clock import Clock, SystemClock
from taskmill.engine import Durability
from taskmill.engines.redis.nodes import Client, Nodes
from taskmill.engines.redis.records import Held
from taskmill.engines.redis.scripts import script
from taskmill.engines.redis.target import Target
from taskmill.engines.settings import Settings
from taskmill.errors import AnswerLost, InvalidSettings, StoreError
from taskmill.task import RULES, Rules

__all__ = ["Misplaced", "Shards", "Store", "translate"]

T = TypeVar("T")

SCHEMA = 2
HOT = ("type", "limit", "queue", "pause", "outbox")
KEPT = frozenset(
    {
        *("submit", "enter", "reserve", "claim", "swift", "finish", "complete", "checkpoint", "signal", "admin", "put", "join", "lead", "fire", "take"),
        *("restore", "yield"),
    }
)
"""Steps whose answer says that what they wrote has come as far as it was asked to."""
CARRIED = frozenset({"watch", "fell", "attach"})
"""What one shard owes to another: it is crossed off there when it has come as far here."""
CONFIRMED = 2_000
"""Milliseconds to wait for the disk or a replica."""
MOVING = 0.05
"""Seconds between two looks at a shard that is on its way to another server."""
ROUNDS = 20
POSTED = b"\xc1"
"""In front of an answer, where it is no MessagePack: the step left something for another shard."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


class Misplaced(Exception):
    """By settings that were read just now a type or a queue is not what it was, so a task may belong to another shard; nothing was written."""


class Shards:
    """All shards of a store. `clock` None: the servers' own."""

    def __init__(self, target: Target, clock: Clock | None, rules: Rules = RULES) -> None:
        self.target = target
        self.nodes = Nodes(target)
        self.given = clock
        self.clock: Clock = clock or SystemClock()
        self.settings = Settings((), rules)
        self.generation = -1
        self.items: list[tuple[str, bytes, bytes]] = []
        """The settings as they are stored: kind, field, value."""
        self.confirms: set[str] = {"never"}
        """How the servers say that the disk has something: when `asked`, with every answer (`always`), or `never`."""
        self.stale = False
        """Whether there are newer settings than those we have read."""
        self.listed: set[int] = {0}
        """Shards that are known to be in use."""
        self.posting: set[Store] = set()
        """Those in which a step of ours has left something for another shard."""
        self._stores: dict[int, Store] = {}

    def __getitem__(self, number: int) -> Store:
        store = self._stores.get(number)
        if store is None:
            store = self._stores[number] = Store(self, number)
        return store

    def heard(self, generation: int) -> None:
        """What a claim says of the settings: these are read anew when somebody has time."""
        self.stale = self.stale or generation > self.generation

    async def read_settings(self) -> None:
        """The settings in force, and their generation, which is read first: a change in between is noticed by the next step."""
        first = self[0]
        generation = int(await first.ask("GET", first.key("generation")) or 0)
        rows: list[tuple[str, str, bytes]] = []
        items: list[tuple[str, bytes, bytes]] = []
        for kind in HOT:
            found = await first.ask("HGETALL", first.key(f"items:{kind}"))
            items += [(kind, field, value) for field, value in found.items()]
            rows += sorted((kind, name, value) for name, value in in_force(found).items())
        self.settings, self.items, self.generation, self.stale = self.settings.again(rows), items, generation, False

    async def use(self, number: int) -> None:
        """Something is about to lie in this shard: everybody knows of it, and it knows what to obey."""
        first = self[0]
        await first.keep("SADD", first.key("shards"), number)
        await self[number].renew()
        self.listed.add(number)

    async def in_use(self) -> list[Store]:
        """All shards that have been used."""
        if self.target.shards == 1:
            return [self[0]]
        first = self[0]
        found = {int(number) for number in await first.ask("SMEMBERS", first.key("shards"))} | {0}
        return [self[number] for number in sorted(found)]

    def check_places(self, before: Settings) -> None:
        """Who has chosen shards by the settings of before must choose again, if these say more or otherwise by now."""
        now = self.settings
        if self.target.shards > 1 and (before.types, before.queues) != (now.types, now.queues):
            raise Misplaced

    async def placed(self, step: Callable[[], Awaitable[T]]) -> T:
        """A step that chooses its shards itself, with settings that hold."""
        for _ in range(ROUNDS):
            try:
                return await step()
            except Misplaced:
                continue
        raise StoreError("the settings change all the time", code="store_busy", hint="nothing was written, ask again")

    def check_durability(self, level: Durability) -> None:
        """Refuse what these servers could never say."""
        if level is Durability.FSYNC and "never" in self.confirms:
            raise InvalidSettings(
                f"{self.target} cannot say what its disk has",
                code="contradiction",
                field="durability",
                hint="appendonly yes, with appendfsync always or Redis 7.2 and newer; or durability=local",
            )

    async def ask(self, key: str, *command: Any) -> Any:
        """A command about a key that lies in no shard."""
        return await self.asked(key_slot(key.encode()), command)

    async def asked(self, slot: int, command: tuple[Any, ...], *behind: tuple[Any, ...]) -> Any:
        """Its answer, and if there are others `behind` it on the same connection, a list of all. Where nothing was done (somebody else has the slot, or it
        is on its way) it is asked again."""
        nodes = self.nodes
        try:
            async with asyncio.timeout(self.target.patience) as limit:
                while True:
                    wire = await nodes.wire(slot)
                    if nodes.moves:
                        nodes.waits(limit, slot)
                    try:
                        return await (_together(await nodes.find(slot), command, *behind) if behind else wire.ask(*command))
                    except MovedError as error:
                        nodes.moved(slot, (error.host or _host(await nodes.find(slot)), error.port))
                    except (AskError, TryAgainError, ClusterDownError):
                        await asyncio.sleep(MOVING)
                    finally:
                        if nodes.moves:
                            nodes.waited(limit)
        except builtins.TimeoutError as error:
            nodes.silent(slot)
            raise translate(error, self.target) from error
        except (ConnectionError, TimeoutError, ReadOnlyError, OSError) as error:
            nodes.lost()
            raise translate(error, self.target) from error
        except RedisError as error:
            raise translate(error, self.target) from error

    def waits(self, level: Durability) -> bool:
        """Whether a server must be asked how far something has come, beside doing it."""
        return level is Durability.REPLICATED or (level is Durability.FSYNC and "asked" in self.confirms)

    async def keep(self, key: str, level: Durability, *command: Any) -> Any:
        """A command about a key that lies in no shard, which always writes, and has come so far when this returns."""
        return await (self.confirmed(key_slot(key.encode()), level, command) if self.waits(level) else self.ask(key, *command))

    async def confirmed(self, slot: int, level: Durability, *commands: tuple[Any, ...]) -> Any:
        """The answer to the first of these; behind them, on the same connection, goes the wait for the disk or a replica."""
        wait = ("WAIT", 1, CONFIRMED) if level is Durability.REPLICATED else ("WAITAOF", 1, 0, CONFIRMED)
        answer, *rest = await self.asked(slot, *commands, wait)
        reached = rest[-1][0] if isinstance(rest[-1], list) else rest[-1]
        if any(isinstance(each, Exception) for each in rest) or reached < 1:
            where = "a replica has it" if level is Durability.REPLICATED else "the disk has it"
            raise AnswerLost(
                f"{self.target} did not say in time that {where}",
                code="durability_unconfirmed",
                hint="it is done on the server and may be lost with it: ask again, with the same ids",
            )
        return answer

    async def close(self) -> None:
        await self.nodes.close()


class Store:
    """One shard: where scripts run."""

    def __init__(self, shards: Shards, number: int) -> None:
        self.shards = shards
        self.number = number
        self.target = shards.target
        self.prefix = shards.target.shard(number)
        self.slot = key_slot(self.prefix.encode())
        self.held: dict[int, Held] = {}
        """By token, what was claimed here and can be completed without the record being read again; the oldest go when there are too many."""
        self.results_dropped: tuple[str | bool, int] = (False, 0)
        """Up to which completed task (its id, when it ended) results have been dropped."""
        self.crowded: dict[tuple[str, ...], int] = {}
        """By queues, how many more claims of them go past the swift script."""

    @property
    def settings(self) -> Settings:
        return self.shards.settings

    @property
    def generation(self) -> int:
        return self.shards.generation

    @property
    def given(self) -> Clock | None:
        return self.shards.given

    async def client(self) -> Client:
        """Of its server, for those who listen."""
        return await self.shards.nodes.find(self.slot)

    async def connection(self) -> Client:
        """One for a reader that blocks; never of the pool."""
        return self.shards.nodes.connection(await self.client())

    def key(self, name: str) -> str:
        return self.prefix + name

    def now(self) -> str:
        """What a script is told of the time; empty: it asks the server."""
        given = self.shards.given
        return "" if given is None else str(given.now())

    def mono(self) -> int:
        given = self.shards.given
        return 0 if given is None else given.monotonic()

    async def run(self, name: str, arguments: Any, raws: Sequence[bytes] = (), *, durability: Durability | None = None) -> Any:
        """A script's answer."""
        return (await self.run_raw(name, arguments, raws, durability=durability))[0]

    async def run_raw(self, name: str, arguments: Any, raws: Sequence[bytes] = (), *, durability: Durability | None = None) -> tuple[Any, list[bytes]]:
        """A script's answer, and the strings in it that are no text; they are named by their number, from 1. It names two keys, of which there is none: so
        a server that has given some of this shard away already refuses it, before it has begun."""
        wanted = script(name)
        given = (2, self.prefix, self.prefix + "-", _encode(arguments), self.now(), *raws)
        ask = functools.partial(self.keep, durability=durability) if name in KEPT or name in CARRIED else self.ask
        try:
            answer = await ask("EVALSHA", wanted.sha, *given)
        except StoreError as error:
            if not isinstance(error.__cause__, NoScriptError):
                raise
            answer = await ask("EVAL", wanted.text, *given)
        first, rest = (answer, []) if isinstance(answer, bytes) else (answer[0], answer[1:])
        if first[:1] == POSTED:
            self.shards.posting.add(self)
            first = first[1:]
        return _decode(first), rest

    async def ask(self, *command: Any) -> Any:
        answer = await self.shards.asked(self.slot, command)
        return dict(zip(answer[::2], answer[1::2], strict=True)) if command[0] == "HGETALL" else answer

    async def keep(self, *command: Any, durability: Durability | None = None) -> Any:
        """The same, for what must have come as far as this. A write of our own goes behind it: a step that was repeated writes nothing, and what it found must
        have come as far."""
        level = durability or self.target.durability
        if not self.shards.waits(level):
            return await self.ask(*command)
        return await self.shards.confirmed(self.slot, level, command, ("INCR", self.key("waited_for")))

    async def read_settings(self) -> None:
        """For a step that was refused because it went by others: unless it may belong elsewhere now, it is repeated here."""
        before = self.settings
        await self.renew()
        self.shards.check_places(before)

    async def renew(self) -> None:
        """Those in force, also for the steps of this shard."""
        await self.shards.read_settings()
        if self.number:
            await self.adopt()

    async def adopt(self) -> None:
        """This shard obeys the settings as we have read them, unless it knows newer ones."""
        shards = self.shards
        sent = [[kind, field.decode(), number] for number, (kind, field, _) in enumerate(shards.items, 1)]
        heard = int(await shards[0].ask("GET", shards[0].key("listen")) or 0)
        await self.run("adopt", [shards.generation, sent, shards.target.shards, heard, SCHEMA], [value for _, _, value in shards.items])


async def _together(client: Client, *commands: tuple[Any, ...]) -> list[Any]:
    """On a connection that is nobody else's meanwhile: others need not wait for this disk, or replica, too."""
    pipe = client.pipeline(transaction=False)
    for each in commands:
        pipe.execute_command(*each)
    found: list[Any] = await pipe.execute(raise_on_error=False)
    if isinstance(found[0], Exception):
        raise found[0]
    return found


def _host(client: Client) -> str:
    return str(client.connection_pool.connection_kwargs["host"])


class StoredItem(msgspec.Struct, array_like=True, frozen=True):
    value: str
    version: int
    app: str
    app_version: int


_item = msgspec.msgpack.Decoder(StoredItem).decode


def items_of(found: dict[bytes, bytes]) -> list[tuple[str, bool, StoredItem]]:
    """(name, operator, item), what code declares before what an operator put."""
    rows = [(field[:-2].decode(), field.endswith(b"1"), _item(value)) for field, value in found.items()]
    return sorted(rows, key=lambda row: row[:2])


def in_force(found: dict[bytes, bytes]) -> dict[str, bytes]:
    return {name: item.value.encode() for name, _, item in items_of(found)}


def translate(error: BaseException, target: Target) -> StoreError:
    """In the words of this product. What had left this program may have been applied."""
    if isinstance(error, AuthenticationError):
        return StoreError(f"{target} refuses the password", code="wrong_password", hint="put user and password into the URL")
    if isinstance(error, NoPermissionError):
        return StoreError(f"{target} does not let this user do that: {error}", code="no_rights", hint="ACL SETUSER … +@all ~<prefix>:* &<prefix>:*")
    if isinstance(error, ReadOnlyError):
        return StoreError(f"{target} is a replica and takes no writes", code="read_only", hint="name the primary in the URL")
    if isinstance(error, InvalidResponse):
        return StoreError(f"{target} is no Redis server", code="wrong_protocol", hint="look at host and port in the URL")
    if isinstance(error, (ConnectionError, TimeoutError, OSError)):
        return AnswerLost(f"the connection to {target} broke", hint="it may have been applied: ask again")
    if isinstance(error, OutOfMemoryError) or (isinstance(error, ResponseError) and "-OOM " in str(error)):
        return StoreError(f"{target} is out of memory", code="store_full", hint="nothing was written: raise maxmemory, or prune what has ended")
    if "DB index is out of range" in str(error):
        return StoreError(f"{target} has no database {target.database}", code="no_database", hint="the first is redis://host:6379/0")
    return StoreError(f"{target} answered: {error}", code="store_error")
