"""How the shop is tested; run it with `pytest examples/testing`.

The fixture `taskmill_test` comes with Taskmill. It puts the app on a store in memory, by a clock that moves when the test says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
import shop

from taskmill.testing import UnderTest, under_test

Begin = Callable[..., UnderTest]


@pytest.fixture(autouse=True)
def _no_mail_of_others() -> None:
    shop.sent.clear()


def test_an_order_is_answered_at_once_and_packed_later(taskmill_test: Begin) -> None:
    test = taskmill_test(shop.app)
    asyncio.run(shop.order(7, "ada@example.org"))
    test.assert_submitted(shop.send_mail, to="ada@example.org")
    test.assert_submitted(shop.pack.options(delay="2h"), order=7)
    test.sync.drain()
    assert shop.sent == ["ada@example.org: thank you for order 7"]
    test.sync.advance("2h")
    assert shop.sent[1:] == ["ada@example.org: order 7 is on its way"]


def test_mail_is_tried_again_while_the_server_is_away(taskmill_test: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    test = taskmill_test(shop.app)
    tries: list[str] = []

    def away(to: str, text: str) -> None:
        tries.append(to)
        if len(tries) < 3:
            raise ConnectionError("no mail server")

    monkeypatch.setattr(shop, "deliver", away)
    mail = shop.send_mail.sync.submit("ada@example.org", "hello")
    assert [str(one.ending) for one in test.sync.advance("3m")] == ["retry", "retry", "completed"]
    assert test.sync.task(mail).failures == 2
    assert [str(one.error) for one in test.failures] == ["no mail server"] * 2


def test_a_wrong_address_is_not_tried_again(taskmill_test: Begin) -> None:
    test = taskmill_test(shop.app)
    mail = shop.send_mail.sync.submit("ada", "hello")
    test.sync.advance("1d")
    assert test.sync.task(mail).state == "dead"
    assert test.sync.task(mail).failures == 1


def test_a_month_of_reports(taskmill_test: Begin) -> None:
    test = taskmill_test(shop.app, now="2030-03-01T00:00:00Z")
    test.sync.run_until("2030-04-01T00:00:00Z")
    assert len(test.submitted(shop.morning_report)) == 21
    assert len(shop.sent) == 21


def test_the_same_in_an_async_function() -> None:
    """With pytest-asyncio or anyio the test itself is async, and takes the fixture; without them, a block does."""

    async def scenario() -> None:
        async with under_test(shop.app, raise_errors=True) as test:
            await shop.order(8, "bob@example.org")
            [parcel] = test.submitted(shop.pack)
            await test.advance("2h")
            assert (await test.task(parcel)).result == b'"parcel 8"'

    asyncio.run(scenario())
