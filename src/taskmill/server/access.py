"""Who calls: API keys, what each may do, and for whom.

A key is `tm_` + its id + `_` + 256 bits of chance. It is shown once, when it is made; the store has its SHA-256, its scopes and its tenant, as a setting
of the kind `key`. A caller with a tenant sees and touches the tasks of that tenant and nothing else; what belongs to the whole store (queues, workers,
schedules, limits, keys) is for keys without a tenant.

    request ── token ──▶ Keys.identify ──▶ Caller ── need(scope) ──▶ desk

Keys are read from the store at most every two seconds, and a reading older than five is no reading: a key that was revoked anywhere is refused
everywhere within that time, and while the store is away nobody is let in on old news. A store without keys is open to callers on this
machine, until it has had a key; from then on a caller needs one, also when the last was revoked and the server starts again.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import re
import secrets
from collections import OrderedDict
from collections.abc import Iterable
from enum import StrEnum
from hashlib import sha256

import msgspec

from taskmill.clock import SECOND, Clock, rfc3339
from taskmill.engine import Engine, Item
from taskmill.errors import Forbidden, InvalidInput, NotFound, RateLimited, StoreError, Unauthenticated
from taskmill.task import SHARE_LENGTH, check_key, check_range

__all__ = [
    "ANYBODY",
    "Caller",
    "Forbidden",
    "Key",
    "Keys",
    "Scope",
    "Unauthenticated",
    "create_key",
    "key_data",
    "key_details",
    "list_keys",
    "network",
    "new_key_id",
    "revoke_key",
]

FRESH = 2 * SECOND
"""How long a reading of the keys is used without asking again."""
STALE = 5 * SECOND
"""How long it is used while the store does not answer."""
WINDOW = 60 * SECOND
MOST_FAILURES = 20
"""Refused keys of one address in a window, before the answer is 429."""
MOST_ADDRESSES = 10_000
CLOSED = "access"
"""The kind of setting that remembers, in the store, that a key was revoked."""
TOKEN = re.compile(r"tm_([0-9a-f]{12})_[A-Za-z0-9_-]{43}")


class Scope(StrEnum):
    """What a key may do; `admin` may do all of it."""

    SUBMIT = "submit"
    READ = "read"
    READ_PAYLOAD = "read-payload"
    CANCEL = "cancel"
    WORKER = "worker"
    ADMIN = "admin"


class Key(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A key as the store has it."""

    id: str
    hash: str
    name: str = ""
    scopes: tuple[Scope, ...] = ()
    tenant: str | None = None
    """Whose tasks it is for; None: the whole store."""
    rate: int | None = None
    """Requests in a second; None: any number."""
    depth: int | None = None
    """It may submit to a queue that holds fewer live tasks than this; None: to any."""
    created_at: int = 0


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """Who a request comes from."""

    key: str
    """The id of the key; "" without keys."""
    scopes: frozenset[Scope]
    tenant: str | None = None
    rate: int | None = None
    depth: int | None = None

    def may(self, scope: Scope) -> bool:
        return scope in self.scopes or Scope.ADMIN in self.scopes

    def need(self, scope: Scope, *, whole: bool = False) -> None:
        """Refuse what this caller may not do. `whole`: it is about the store, not about one tenant's tasks."""
        if not self.may(scope):
            raise Forbidden(f"this key may not {_DOES[scope]}", hint=f"it needs the scope {scope}; `taskmill key list` shows what each key has")
        if whole and self.tenant is not None:
            raise Forbidden(
                "this is for keys of the whole store, and this key has a tenant", code="tenant_key", hint="use a key that was made without --tenant"
            )


_DOES = {
    Scope.SUBMIT: "submit tasks",
    Scope.READ: "read",
    Scope.READ_PAYLOAD: "read payloads and results",
    Scope.CANCEL: "change tasks",
    Scope.WORKER: "work",
    Scope.ADMIN: "administer",
}

ANYBODY = Caller(key="", scopes=frozenset({Scope.ADMIN}))
"""Whoever calls a server that has no keys and listens on this machine alone."""


class Keys:
    """The keys of a store as a server knows them. `open`: without any, everybody is let in (only for a server that nobody else can reach)."""

    def __init__(self, engine: Engine, *, clock: Clock, open: bool = False) -> None:
        self._engine = engine
        self._clock = clock
        self._open = open
        self._callers: dict[str, tuple[bytes, Caller]] = {}
        self._read_at: int | None = None
        self._reading: asyncio.Task[None] | None = None
        self._failures: OrderedDict[str, tuple[int, int]] = OrderedDict()

    async def identify(self, token: str | None, address: str = "") -> Caller:
        """The caller with this token; `address` is where it calls from, whose failures are counted."""
        if not self._is_fresh():
            await self.refresh()
        if not self._callers and self._open:
            return ANYBODY
        if token is None:
            raise Unauthenticated("no API key is given", hint="send it as `Authorization: Bearer tm_…`; `taskmill key create` makes one")
        caller = self.known(token)
        if caller is None:
            self._failed(address)
            raise Unauthenticated("this API key is not known", hint="it may have been revoked; `taskmill key list` shows those that are valid")
        return caller

    def known(self, token: str) -> Caller | None:
        """The caller of a token, by the last reading."""
        found = TOKEN.fullmatch(token) if token.isascii() else None
        if found is None:
            return None
        hash, caller = self._callers.get(found[1], (b"", None))
        return caller if hmac.compare_digest(sha256(token.encode()).hexdigest().encode(), hash) else None

    async def still(self, caller: Caller) -> bool:
        """Whether a caller that was let in may stay: for streams, which ask every few seconds."""
        await self.refresh()
        if caller.key == "":
            return self._open and not self._callers
        return self._callers.get(caller.key, (b"", None))[1] == caller

    def changed(self) -> None:
        """This process made or revoked one: whoever calls next is judged by a new reading."""
        self._read_at = None

    async def refresh(self) -> None:
        """A reading not older than two seconds; five while the store is away."""
        if self._is_fresh():
            return
        if self._reading is None:
            self._reading = asyncio.create_task(self._read())
            self._reading.add_done_callback(self._was_read)
        try:
            await asyncio.shield(self._reading)
        except StoreError:
            if self._read_at is None or self._clock.monotonic() - self._read_at > STALE:
                raise

    def _is_fresh(self) -> bool:
        return self._read_at is not None and self._clock.monotonic() - self._read_at < FRESH

    def _was_read(self, reading: asyncio.Task[None]) -> None:
        self._reading = None
        if not reading.cancelled():
            reading.exception()  # whoever waits for it has it

    async def _read(self) -> None:
        began = self._clock.monotonic()
        keys = [decoded(item) for item in await self._engine.items("key")]
        self._callers = {key.id: (key.hash.encode(), _caller(key)) for key in keys}
        # Whoever took the last key away did not mean to let everybody in.
        self._open = self._open and not keys and not await self._engine.items(CLOSED)
        self._read_at = began

    def _failed(self, address: str) -> None:
        """Who guesses is slowed down; who has a key is never counted, whatever others behind the same address do."""
        now = self._clock.monotonic()
        address = network(address)
        began, times = self._failures.pop(address, (now, 0))
        if now - began > WINDOW:
            began, times = now, 0
        self._failures[address] = (began, times + 1)
        if len(self._failures) > MOST_ADDRESSES:
            self._failures.popitem(last=False)
        if times >= MOST_FAILURES:
            error = RateLimited("too many unknown keys from this address", code="too_many_failures", hint="use a key that is valid; wait a minute to guess on")
            error.retry_after = began + WINDOW - now
            raise error


def network(address: str) -> str:
    """Who counts as one: an address, or of IPv6 the 64 bits that whoever has any of it has all of."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is None:
        return str(int(found) >> 64)
    return str(getattr(found, "ipv4_mapped", None) or found)


def _caller(key: Key) -> Caller:
    return Caller(key=key.id, scopes=frozenset(key.scopes), tenant=key.tenant, rate=key.rate, depth=key.depth)


def key_data(key: Key) -> dict[str, object]:
    """A key as people and programs see it; never what it is made of."""
    return {
        "id": key.id,
        "name": key.name,
        "scopes": [scope.value for scope in key.scopes],
        "tenant": key.tenant,
        "rate": key.rate,
        "depth": key.depth,
        "created_at": rfc3339(key.created_at),
    }


def decoded(item: Item) -> Key:
    return msgspec.json.decode(item.value, type=Key)


# Making and ending keys


async def create_key(
    engine: Engine,
    *,
    name: str,
    scopes: Iterable[str],
    tenant: str | None = None,
    rate: int | None = None,
    depth: int | None = None,
    id: str | None = None,
) -> tuple[str, Key]:
    """A new key and its token, which nobody can read again. `id`: one of `new_key_id`, where it has to be known before."""
    wanted = tuple(dict.fromkeys(_scope(scope) for scope in scopes))
    if not wanted:
        raise InvalidInput("a key without scopes may do nothing", field="scopes", hint=f"some of {', '.join(Scope)}")
    if tenant is not None:
        check_key(tenant, "tenant", length=SHARE_LENGTH)
        if Scope.WORKER in wanted:
            raise InvalidInput("a worker claims tasks of every tenant", code="contradiction", field="scopes", hint="make the key of a worker without --tenant")
    if name:
        check_key(name, "name", length=128)
    for field, number in (("rate", rate), ("depth", depth)):
        if number is not None:
            check_range(number, field, 1, 1 << 30)
    id = id or new_key_id()
    token = f"tm_{id}_{secrets.token_urlsafe(32)}"
    key = Key(id=id, hash=sha256(token.encode()).hexdigest(), name=name, scopes=wanted, tenant=tenant, rate=rate, depth=depth, created_at=engine.clock.now())
    await engine.put("key", id, msgspec.json.encode(key), version=0)
    return token, key


def new_key_id() -> str:
    return secrets.token_hex(6)


def key_details(id: str, scopes: Iterable[str], tenant: str | None, rate: int | None, depth: int | None) -> dict[str, str | int | bool | None]:
    """What the audit log has of a new key: by its id a later revocation, and whatever the key did, can be tied to who made it."""
    details = {"id": id, "scopes": " ".join(scopes), "tenant": tenant, "rate": rate, "depth": depth}
    return {name: value for name, value in details.items() if value is not None}


def _scope(text: str) -> Scope:
    if text not in set(Scope):
        raise InvalidInput(f"{text!r:.40} is no scope", code="unknown_scope", field="scopes", hint=f"some of {', '.join(Scope)}")
    return Scope(text)


async def list_keys(engine: Engine) -> list[Key]:
    """Every key, the oldest first."""
    return sorted((decoded(item) for item in await engine.items("key")), key=lambda key: (key.created_at, key.id))


async def revoke_key(engine: Engine, id: str) -> None:
    """Refused everywhere within five seconds, streams that are open included. From then on the store remembers that it wants keys."""
    known = any(item.name == id for item in await engine.items("key"))
    if known:  # before the key goes, so that no server finds the store without a key and open
        await engine.put(CLOSED, "keys", b"true")
    if not known or not await engine.drop("key", id):
        raise NotFound(f"there is no key {id[:40]!r}", field="id", hint="`taskmill key list` shows them")
