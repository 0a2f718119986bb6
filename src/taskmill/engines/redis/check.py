"""What the server's own settings promise and what they cannot; and whether this program may use the store at all."""

from __future__ import annotations

import logging
from typing import Any

from taskmill.engine import Finding
from taskmill.engines.redis.store import Store
from taskmill.errors import AnswerLost, InvalidSettings, StoreError, WrongStore

__all__ = ["check", "guard", "watch"]

log = logging.getLogger("taskmill")

OLDEST = (6, 2)
SCHEMA = 1
SHARDS = 1
OURS = {"ids": "zset", "queues": "set", "counts": "hash", "workers": "hash", "seq": "string", "token": "string"}
"""Some keys of every store, and what they are."""
PATCHED = {(6, 2): 20, (7, 2): 11, (7, 4): 6, (8, 0): 4, (8, 2): 2}
"""The first release of each line without the use-after-free of its Lua (CVE-2025-49844)."""


async def guard(store: Store) -> None:
    """Refuse a server that cannot keep the promises, and a place that is not ours; then say that it is. Nothing is written before."""
    try:
        about = await _info(store)
    except AnswerLost as lost:
        hint = "is the server up? look at host and port of the URL, and whether it wants redis:// or rediss://"
        raise StoreError(f"{store.target} cannot be reached: {str(lost.__cause__) or 'no answer'}", hint=hint) from lost
    version = _version(about)
    if version < OLDEST:
        raise WrongStore(f"{store.target} is Redis {about['redis_version']}", code="old_server", hint="Taskmill needs Redis 6.2 or newer")
    if about.get("role") == "slave":
        raise StoreError(f"{store.target} is a replica and takes no writes", code="read_only", hint="name the primary in the URL")
    policy = about.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        raise InvalidSettings(
            f"{store.target} throws keys away when its memory is full (maxmemory-policy {policy})",
            code="evicting_server",
            field="url",
            hint="set maxmemory-policy noeviction: a task that was accepted is never thrown away",
        )
    await _own(store)


async def _own(store: Store) -> None:
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
    if found.get("shards", SHARDS) != SHARDS:
        raise WrongStore(
            f"{store.target} was made with {found['shards']} shards", code="other_shards", hint="open it as it was made, or move its tasks to a new store"
        )
    if not found:
        await store.ask("HSET", key, "schema", SCHEMA, "shards", SHARDS)


async def _kind(store: Store, name: str) -> str:
    return str((await store.ask("TYPE", store.key(name))).decode())


def _numbers(pairs: list[tuple[bytes, bytes]]) -> dict[str, int] | None:
    """What `store` says, if it is ours; a newer program may say more."""
    said = {name.decode(): value for name, value in pairs if name in (b"schema", b"shards") and value.isdigit()}
    return {name: int(value) for name, value in said.items()} if len(said) == 2 or not pairs else None


def _pairs(found: Any) -> list[tuple[bytes, bytes]]:
    return list(found.items()) if isinstance(found, dict) else list(zip(found[::2], found[1::2], strict=True))


async def watch(store: Store) -> None:
    """A store that was emptied under those who use it is never taken for an idle one."""
    if not await store.ask("EXISTS", store.key("store")):
        log.critical("%s was emptied: every task that was in it is gone (FLUSHALL, a wrong server, or a restart without its data?)", store.target)
        await _own(store)


async def _info(store: Store) -> dict[str, str]:
    text = await store.ask("INFO")
    if isinstance(text, dict):
        return {name: str(value) for name, value in text.items()}
    lines = text.decode().splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line and not line.startswith("#"))


def _version(about: dict[str, str]) -> tuple[int, int]:
    major, minor, *_ = about["redis_version"].split(".")
    return int(major), int(minor)


async def check(store: Store) -> tuple[Finding, ...]:
    about = await _info(store)
    findings = [*_persistence(about), *_replicas(about)]
    line = _version(about)
    release = int(about["redis_version"].split(".")[2])
    if line < min(PATCHED) or release < PATCHED.get(line, 0 if line > max(PATCHED) else 1_000):
        hint = "upgrade, or see that your distribution has patched it; give nobody else the right to run scripts"
        findings.append(Finding("warning", "old_lua", f"Redis {about['redis_version']} is older than the releases patched for CVE-2025-49844", hint))
    return tuple(findings)


def _persistence(about: dict[str, str]) -> list[Finding]:
    if about.get("aof_enabled") == "1":
        message = "a crash of the server loses up to the last second of writes, unless appendfsync is always"
        return [Finding("info", "append_only", message, "appendfsync always, where a second is too much")]
    message = "the server keeps no append-only file: a crash loses all writes since the last snapshot, or everything"
    return [Finding("warning", "not_durable", message, "appendonly yes")]


def _replicas(about: dict[str, str]) -> list[Finding]:
    if about.get("connected_slaves", "0") == "0":
        return [Finding("info", "no_replica", "there is no replica: the loss of this machine is the loss of the store", "")]
    return [Finding("info", "asynchronous_replica", "replicas follow a moment later: a failover can lose the last writes", "")]
