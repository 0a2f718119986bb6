"""Keys as a server knows them, by a clock that is moved by hand: how old a reading may be, and how guessing is slowed down."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest

from taskmill.clock import SECOND, ManualClock
from taskmill.engine import Engine
from taskmill.engines import create
from taskmill.errors import RateLimited, StoreError
from taskmill.server.access import ANYBODY, MOST_ADDRESSES, MOST_FAILURES, Caller, Keys, Scope, Unauthenticated, create_key, revoke_key
from taskmill.server.quotas import Quotas


class Away:
    """A store that can be away; all else is the store's own."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.away = False
        self.asked = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def items(self, kind: str) -> Any:
        self.asked += 1
        if self.away:
            raise StoreError("it is away", hint="wait")
        return await self._engine.items(kind)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Away]:
    engine = create(f"sqlite:///{tmp_path}/store.db")
    await engine.open()
    yield Away(engine)
    await engine.close()


def keys_of(store: Away, clock: ManualClock, *, open: bool = False) -> Keys:
    return Keys(cast("Engine", store), clock=clock, open=open)


async def made(store: Away, *scopes: str, tenant: str | None = None) -> str:
    token, _ = await create_key(cast("Engine", store), name="", scopes=scopes, tenant=tenant)
    return token


async def test_keys_are_read_at_most_every_two_seconds(store: Away) -> None:
    clock = ManualClock()
    keys, token = keys_of(store, clock), await made(store, "read")
    for _ in range(10):
        assert (await keys.identify(token)).scopes == {Scope.READ}
    assert store.asked == 1
    clock.advance("2s")
    await keys.identify(token)
    assert store.asked == 2


async def test_a_revoked_key_is_refused_with_the_next_reading(store: Away) -> None:
    clock = ManualClock()
    keys, token = keys_of(store, clock), await made(store, "read")
    other = await made(store, "admin")
    caller = await keys.identify(token)
    await revoke_key(cast("Engine", store), caller.key)
    clock.advance("2s")
    with pytest.raises(Unauthenticated):
        await keys.identify(token)
    assert not await keys.still(caller)
    assert await keys.still(await keys.identify(other))


async def test_old_news_let_nobody_in_while_the_store_is_away(store: Away) -> None:
    clock = ManualClock()
    keys, token = keys_of(store, clock), await made(store, "read")
    await keys.identify(token)
    store.away = True
    clock.advance("4900ms")
    await keys.identify(token)
    clock.advance("200ms")
    with pytest.raises(StoreError):
        await keys.identify(token)
    store.away = False
    await keys.identify(token)


async def test_a_store_without_keys_is_open_only_where_it_is_said(store: Away) -> None:
    clock = ManualClock()
    closed, opened = keys_of(store, clock), keys_of(store, clock, open=True)
    with pytest.raises(Unauthenticated):
        await closed.identify(None)
    assert await opened.identify(None) is ANYBODY
    assert await opened.still(ANYBODY)
    await made(store, "read")
    clock.advance("2s")
    with pytest.raises(Unauthenticated):
        await opened.identify(None)
    assert not await opened.still(ANYBODY)


async def test_failures_are_counted_by_address_and_forgotten_after_a_minute(store: Away) -> None:
    clock = ManualClock()
    keys, token = keys_of(store, clock), await made(store, "read")
    wrong = token[:-1] + ("a" if token[-1] != "a" else "b")
    for _ in range(MOST_FAILURES):
        with pytest.raises(Unauthenticated):
            await keys.identify(wrong, "1.1.1.1")
    with pytest.raises(RateLimited) as refused:
        await keys.identify(wrong, "1.1.1.1")
    assert refused.value.retry_after == 60 * SECOND
    with pytest.raises(Unauthenticated):
        await keys.identify(wrong, "2.2.2.2")
    assert (await keys.identify(token, "1.1.1.1")).key
    clock.advance("61s")
    with pytest.raises(Unauthenticated):
        await keys.identify(wrong, "1.1.1.1")


async def test_addresses_that_are_remembered_are_bounded(store: Away) -> None:
    clock = ManualClock()
    keys = keys_of(store, clock)
    await made(store, "read")
    for number in range(MOST_ADDRESSES + 100):
        with pytest.raises(Unauthenticated):
            await keys.identify("tm_x", str(number))
    assert len(keys._failures) == MOST_ADDRESSES


@pytest.mark.parametrize("token", ["", "tm_", "tm_0123456789ab_", "é", "tm_0123456789AB_" + "x" * 43, "x" * 100_000])
async def test_what_is_no_token_is_nobody(store: Away, token: str) -> None:
    keys = keys_of(store, ManualClock())
    await made(store, "read")
    with pytest.raises(Unauthenticated):
        await keys.identify(token)


async def test_a_rate_is_a_bucket_that_fills_by_the_clock(store: Away) -> None:
    clock = ManualClock()
    quotas = Quotas(cast("Engine", store), clock)
    caller = Caller(key="k", scopes=frozenset(), rate=4)
    for _ in range(4):
        quotas.request(caller)
    with pytest.raises(RateLimited) as refused:
        quotas.request(caller)
    assert refused.value.retry_after == SECOND // 4
    clock.advance("250ms")
    quotas.request(caller)
    with pytest.raises(RateLimited):
        quotas.request(caller)
    clock.advance("1h")
    for _ in range(4):
        quotas.request(caller)
    with pytest.raises(RateLimited):
        quotas.request(caller)


async def test_who_takes_the_last_key_away_lets_nobody_in(store: Away) -> None:
    clock = ManualClock()
    keys = keys_of(store, clock, open=True)
    assert await keys.identify(None) == ANYBODY
    token = await made(store, "admin")
    clock.advance("3s")
    caller = await keys.identify(token)
    await revoke_key(cast("Engine", store), caller.key)
    clock.advance("3s")
    for given in (None, token):
        with pytest.raises(Unauthenticated):
            await keys.identify(given)
