"""What the servers' own settings promise and what they cannot; and whether this program may use the store at all."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import msgspec
from redis.exceptions import RedisError, ResponseError

from taskmill.clock import MINUTE, SECOND, format_duration
from taskmill.engine import Durability, Finding
from taskmill.engines.redis.nodes import Client
from taskmill.engines.redis.store import SCHEMA, Shards, Store, translate
from taskmill.engines.redis.target import Target
from taskmill.errors import AnswerLost, InvalidSettings, StoreError, WrongStore

__all__ = ["check", "emptied", "guard"]

log = logging.getLogger("taskmill")

OLDEST = (6, 2)
WAITAOF = (7, 2)
UPGRADED = 500
"""Tasks of one slice of an upgrade."""
STUCK = 1_000
"""Waiting tasks of one look."""
LOOKS = 10
OURS = {"ids": "zset", "queues": "set", "counts": "hash", "workers": "hash", "seq": "string", "token": "string"}
"""Some keys of every store, and what they are."""
PATCHED = {(6, 2): 20, (7, 2): 11, (7, 4): 6, (8, 0): 4, (8, 2): 2}
"""The first release of each line without the use-after-free of its Lua (CVE-2025-49844)."""


async def guard(shards: Shards, *, make: bool = True) -> None:
    """Refuse servers that cannot keep the promises, and a place that is not ours; then say that it is. Nothing is written before, or at all without `make`."""
    abouts = await _abouts(shards)
    for about in abouts:
        _refuse(about, shards.target)
    shards.confirms = {about["confirms"] for about in abouts}
    shards.check_durability(shards.target.durability)
    await own(shards[0], make=make)


def _refuse(about: dict[str, str], target: Target) -> None:
    if _version(about) < OLDEST:
        raise WrongStore(f"{target} is Redis {about['redis_version']}", code="old_server", hint="Taskmill needs Redis 6.2 or newer")
    if about.get("role") == "slave":
        raise StoreError(f"{target} is a replica and takes no writes", code="read_only", hint="name the primary in the URL")
    if about.get("cluster_enabled") == "1" and not target.cluster:
        raise InvalidSettings(f"{target} is a server of a Cluster", code="is_a_cluster", field="url", hint="say so: ?cluster=true")
    policy = about.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        raise InvalidSettings(
            f"{target} throws keys away when its memory is full (maxmemory-policy {policy})",
            code="evicting_server",
            field="url",
            hint="set maxmemory-policy noeviction: a task that was accepted is never thrown away",
        )


async def own(store: Store, *, make: bool = True) -> None:
    """The marker of a store; made where there is none."""
    shards = store.target.shards
    key = store.key("store")
    found: dict[str, int] | None = None
    if await _kind(store, "store") in ("none", "hash") and all([await _kind(store, name) in ("none", kind) for name, kind in OURS.items()]):
        found = _numbers(_pairs(await store.ask("HGETALL", key)))
    if found is None:
        raise WrongStore(
            f"the prefix {store.target.prefix!r} of {store.target} belongs to another program", code="foreign_keys", hint="give the URL another prefix="
        )
    if found.get("schema", SCHEMA) > SCHEMA:
        raise WrongStore(f"{store.target} has schema {found['schema']}, this program knows {SCHEMA}", code="newer_schema", hint="upgrade Taskmill here too")
    if found.get("shards", shards) != shards:
        hint = "open it as it was made, or move its tasks to a new store"
        raise WrongStore(f"{store.target} was made with {found['shards']} shards, not {shards}", code="other_shards", hint=hint)
    if make and not found:
        await store.ask("HSET", key, "schema", SCHEMA, "shards", shards)
    elif make:
        await _upgrade(store.shards)


async def _upgrade(shards: Shards) -> None:
    """What programs before this one stored is brought to this schema, in slices; a program that ends in the midst leaves the rest to the next. Shard 0 is
    the last: while it says the old schema, the others are looked at."""
    first = shards[0]
    if int(await first.ask("HGET", first.key("store"), "schema")) == SCHEMA:
        return
    log.warning("%s is brought to schema %s; stop programs of the version before", shards.target, SCHEMA)
    for store in reversed(await shards.in_use()):
        while await store.run("upgrade", [UPGRADED]):
            pass


async def _kind(store: Store, name: str) -> str:
    return str((await store.ask("TYPE", store.key(name))).decode())


def _numbers(pairs: list[tuple[bytes, bytes]]) -> dict[str, int] | None:
    """What `store` says, if it is ours; a newer program may say more."""
    said = {name.decode(): value for name, value in pairs if name in (b"schema", b"shards") and value.isdigit()}
    return {name: int(value) for name, value in said.items()} if len(said) == 2 or not pairs else None


def _pairs(found: Any) -> list[tuple[bytes, bytes]]:
    return list(found.items()) if isinstance(found, dict) else list(zip(found[::2], found[1::2], strict=True))


async def emptied(store: Store) -> None:
    """A store that was emptied under those who use it is never taken for an idle one."""
    log.critical("%s was emptied: every task that was in it is gone (FLUSHALL, a wrong server, or a restart without its data?)", store.target)
    if store.number:
        await store.renew()
    else:
        await own(store)


async def _abouts(shards: Shards) -> list[dict[str, str]]:
    """INFO of every server, and how it confirms that the disk has something: `asked`, `always` or `never`."""
    try:
        async with asyncio.timeout(shards.target.patience):
            return [await _about(client) for client in await shards.nodes.all()]
    except (RedisError, OSError, TimeoutError) as error:
        found = translate(error, shards.target)
        if not isinstance(found, AnswerLost):
            raise found from error
        hint = "is the server up? look at host and port of the URL, and whether it wants redis:// or rediss://"
        raise StoreError(f"{shards.target} cannot be reached: {str(error) or 'no answer'}", hint=hint) from error


async def _about(client: Client) -> dict[str, str]:
    found: Any = await client.execute_command("INFO")
    about = {name: str(value) for name, value in found.items()}
    on = about.get("aof_enabled") == "1"
    about["confirms"] = "asked" if on and _version(about) >= WAITAOF else "always" if on and await _fsync(client) == "always" else "never"
    return about


async def _fsync(client: Client) -> str:
    try:
        found: Any = await client.execute_command("CONFIG", "GET", "appendfsync")
    except ResponseError:  # who may not ask does not know
        return ""
    return str(found[1].decode()) if found else ""


def _version(about: dict[str, str]) -> tuple[int, int]:
    major, minor, *_ = about["redis_version"].split(".")
    return int(major), int(minor)


async def check(shards: Shards) -> tuple[Finding, ...]:
    """What is true of one of the servers is said once."""
    found = {finding: None for about in await _abouts(shards) for finding in (*_persistence(about), *_replicas(about, shards.target), *_lua(about))}
    return (*found, *await _outbox(shards), *await _stuck(shards))


async def _stuck(shards: Shards) -> list[Finding]:
    """Waiting tasks that nothing will wake, among the oldest."""
    ids: list[str] = []
    for store in await shards.in_use():
        after: Any = 0
        for _ in range(LOOKS):
            found, after = await store.run("stuck", [after, STUCK, False])
            ids += found or ()
            if after is False:
                break
    if not ids:
        return []
    message = f"{len(ids)} tasks wait for nothing any more: {', '.join(ids[:3])}{' …' if len(ids) > 3 else ''}"
    return [Finding("error", "stuck_waiting", message, "a worker, or taskmill scheduler, makes them ready within minutes: is one running?")]


async def _outbox(shards: Shards) -> list[Finding]:
    """What is owed to other places and waits, by kind."""
    findings = []
    first = shards[0]
    for kind in sorted(name.decode() for name in await first.ask("SMEMBERS", first.key("owed"))):
        if kind == "archive" and shards.target.archive is None:
            hint = "add archive= to the URL of every program, with the archive's own URL, or with none to give it up; until then nothing that ends is pruned"
            findings.append(Finding("warning", "archive_unnamed", "what ends is owed to an archive, and the URL of this store names none", hint))
        entries, oldest = 0, []
        for store in await shards.in_use():
            entries += await store.ask("ZCARD", store.key(f"outbox:{kind}"))
            oldest += [msgspec.msgpack.decode(raw)[3] for raw in await store.ask("ZRANGE", store.key(f"outbox:{kind}"), 0, 0)]
        if oldest:
            age = max(0, shards.clock.now() - min(oldest))
            message = f"{entries} entries of the outbox ({kind}) are not delivered yet, the oldest for {format_duration(max(SECOND, age // SECOND * SECOND))}"
            hint = "a worker, or taskmill scheduler, delivers them: look into its log; their tasks stay in the store until then"
            findings.append(Finding("warning" if age > MINUTE else "info", "outbox_lag", message, hint))
    return findings


def _persistence(about: dict[str, str]) -> list[Finding]:
    if about["confirms"] == "always":
        return [Finding("info", "append_only", "every answer waits for the disk (appendfsync always): a crash of the server loses nothing", "")]
    if about.get("aof_enabled") == "1":
        message = "a crash of the server loses up to the last second of writes, unless appendfsync is always"
        return [Finding("info", "append_only", message, "appendfsync always, where a second is too much")]
    message = "the server keeps no append-only file: a crash loses all writes since the last snapshot, or everything"
    return [Finding("warning", "not_durable", message, "appendonly yes")]


def _replicas(about: dict[str, str], target: Target) -> list[Finding]:
    if about.get("connected_slaves", "0") == "0":
        level = "warning" if target.durability is Durability.REPLICATED else "info"
        return [Finding(level, "no_replica", "there is no replica: the loss of this machine is the loss of the store", "")]
    if target.durability is Durability.REPLICATED:
        return [Finding("info", "confirmed_replica", "every step waits for a replica: a failover to it loses nothing that was acknowledged", "")]
    message = "replicas follow a moment later: a failover can lose the last writes"
    return [Finding("info", "asynchronous_replica", message, "durability=replicated waits for one")]


def _lua(about: dict[str, str]) -> list[Finding]:
    line, release = _version(about), int(about["redis_version"].split(".")[2])
    if line < min(PATCHED) or release < PATCHED.get(line, 0 if line > max(PATCHED) else 1_000):
        hint = "upgrade, or see that your distribution has patched it; give nobody else the right to run scripts"
        return [Finding("warning", "old_lua", f"Redis {about['redis_version']} is older than the releases patched for CVE-2025-49844", hint)]
    return []
