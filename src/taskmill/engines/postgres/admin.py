"""Cancel, requeue, delete: on tasks by id and the version the caller saw, or on everything that a filter matches, in batches.

Each task is judged under the lock on its own row, by the functions of 0008_admin.sql. Of a filter only the states can have changed since it matched: a task
that has left them is left out.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from uuid import UUID

from msgspec.structs import replace

from taskmill import codec
from taskmill.engine import Changed, Changes, Filter, Target
from taskmill.engines.postgres.connecting import Record
from taskmill.engines.postgres.listing import matching
from taskmill.engines.postgres.store import Store
from taskmill.engines.rows import NUMBERS, STATES, Meta, decode_meta, encode_names
from taskmill.task import SCOPE, scoped, scoped_limit

__all__ = ["cancel", "delete", "requeue"]

Ask = Callable[[list[str], list[int | None], list[int] | None], Awaitable[list[Record]]]
"""Ids, the version seen of each, and the states that they must be in, if any."""


async def cancel(store: Store, which: Sequence[Target] | Filter, after: str | None, n: int) -> Changes:
    async def ask(ids: list[str], versions: list[int | None], states: list[int] | None) -> list[Record]:
        return await store.pool.fetch(store.load("admin.sql").cancel, ids, versions, states, store.now())

    return await _each(store, which, after, n, ask)


async def requeue(store: Store, which: Sequence[Target] | Filter, after: str | None, n: int, *, from_start: bool) -> Changes:
    async def ask(ids: list[str], versions: list[int | None], states: list[int] | None) -> list[Record]:
        queries = store.load("admin.sql")
        found = {task: in_scope(tenant, decode_meta(text)) for task, tenant, text in await store.pool.fetch(queries.metas, ids)}
        metas = [found.get(task) for task in ids]
        shares = [None if meta is None else meta.share for meta in metas]
        limits = [None if meta is None else encode_names(meta.limits) for meta in metas]
        orders = [None if meta is None else meta.order or "" for meta in metas]
        uniques = [None if meta is None or meta.unique is None else meta.unique.key for meta in metas]
        return await store.pool.fetch(queries.requeue, ids, versions, states, from_start, shares, limits, orders, uniques, store.now())

    return await _each(store, which, after, n, ask)


def in_scope(tenant: str, meta: Meta) -> Meta:
    """Keys of a tenant are its own, also of a task that ended before they were (0018_tenants.sql moves the live ones)."""
    if not tenant or any(SCOPE in key for key in (meta.share, meta.order or "", *meta.limits)):
        return meta
    share = meta.share if meta.share in {"", tenant} else scoped(tenant, meta.share)
    limits = tuple(scoped_limit(tenant, limit) for limit in meta.limits)
    return replace(meta, share=share, limits=limits, order=meta.order and scoped(tenant, meta.order))


async def delete(store: Store, which: Sequence[Target] | Filter, after: str | None, n: int) -> Changes:
    async def ask(ids: list[str], versions: list[int | None], states: list[int] | None) -> list[Record]:
        queries = store.load("admin.sql")
        hashes = {task: codec.payload_hash(payload.encode()) for task, payload in await store.pool.fetch(queries.bodies, ids)}
        return await store.pool.fetch(queries.delete, ids, versions, states, [hashes.get(task) for task in ids], store.now())

    return await _each(store, which, after, n, ask)


async def _each(store: Store, which: Sequence[Target] | Filter, after: str | None, n: int, ask: Ask) -> Changes:
    cursor, states = None, None
    if isinstance(which, Filter):
        tasks, cursor = await matching(store, which, after, n)
        states = [NUMBERS[state] for state in which.states] or None
        which = [Target(task) for task in tasks]
    places = [place for place, target in enumerate(which) if _is_id(target.task)]
    answers: dict[int, Changed] = {place: Changed(target.task, False, None, code="not_found") for place, target in enumerate(which)}
    if places:
        rows = await ask([which[place].task for place in places], [which[place].version for place in places], states)
        answers = {place: answer for place, answer in answers.items() if place not in set(places)}
        answers |= {places[row["place"] - 1]: _changed(which[places[row["place"] - 1]].task, row) for row in rows}
        await store.settle()
    return Changes(tuple(answers[place] for place in sorted(answers)), cursor)


def _is_id(task: str) -> bool:
    """What is no id of this store names nothing in it."""
    try:
        return str(UUID(task)) == task
    except ValueError:
        return False


def _changed(task: str, row: Record) -> Changed:
    state = None if row["state"] is None else STATES[row["state"]]
    return Changed(task, row["done"], state, row["version"], requested=row["requested"], code=row["code"])
