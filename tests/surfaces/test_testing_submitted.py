"""What `assert_submitted` accepts, and what it says when there is no such task."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import AsyncIterator
from unittest.mock import ANY

import pytest

from taskmill import App, Context, State
from taskmill.clock import MINUTE
from taskmill.errors import Conflict, InvalidInput
from taskmill.testing import UnderTest, under_test

app = App("sqlite://:memory:")


@dataclasses.dataclass
class Address:
    city: str


@app.task(queue="mail")
def send(user_id: int, language: str = "en", *, at: dt.date | None = None) -> None: ...


@app.task
async def ship(ctx: Context, to: Address) -> None:
    await ctx.submit(send, 7)


@app.task
def anything(**more: object) -> None: ...


@app.schedule("0 9 * * *", arguments={"user_id": 1}, name="daily")
@app.task
def daily(user_id: int) -> None: ...


@pytest.fixture
async def test() -> AsyncIterator[UnderTest]:
    async with under_test(app, elsewhere=("resize",)) as found:
        yield found


async def test_a_type_alone_or_with_some_of_its_arguments(test: UnderTest) -> None:
    handle = await send.submit(42, at=dt.date(2030, 1, 31))
    assert test.assert_submitted(send).id == handle.id
    test.assert_submitted(send, 42)
    test.assert_submitted(send, 42, "en")
    test.assert_submitted(send, user_id=42, at=dt.date(2030, 1, 31))
    test.assert_submitted(send, user_id=ANY)
    test.assert_submitted("send", user_id=42)
    test.assert_submitted(send.call(42, at=dt.date(2030, 1, 31)))
    test.assert_not_submitted(send.call(42))
    test.assert_not_submitted(send, user_id=41)
    test.assert_not_submitted(ship)


async def test_arguments_are_those_that_the_handler_gets(test: UnderTest) -> None:
    await ship.submit(Address("Lyon"))
    [found] = test.submitted(ship, to=Address("Lyon"))
    assert found.arguments == {"to": Address("Lyon")}
    assert found.payload == {"to": {"city": "Lyon"}}
    assert str(found) == "ship(to=Address(city='Lyon'))"


async def test_options_are_compared_too(test: UnderTest) -> None:
    first = await send.submit(1)
    await send.options(delay="10m", priority="high", tags={"a": "b"}, expires="1h", after=[first]).submit(2)
    test.assert_submitted(send.options(delay="10m"), 2)
    test.assert_submitted(send.options(priority="high", tags={"a": "b"}))
    test.assert_submitted(send.options(expires="1h", after=[first]))
    test.assert_not_submitted(send.options(delay="11m"))
    test.assert_not_submitted(send.options(delay="10m"), 1)
    test.assert_not_submitted(send.options(expires="2h"))
    with pytest.raises(AssertionError, match=r"nearest is send\(user_id=2, .*: delay is 600000000, not 660000000"):
        test.assert_submitted(send.options(delay="11m"), 2)


async def test_a_failure_tells_the_nearest_and_everything_else(test: UnderTest) -> None:
    await send.submit(41, "fr")
    await send.submit(42, "en")
    await ship.submit(Address("Lyon"))
    with pytest.raises(AssertionError) as told:
        test.assert_submitted(send, user_id=42, language="de")
    lines = str(told.value).splitlines()
    assert lines[0] == "nothing was submitted as send(user_id=42, language='de')"
    assert lines[1] == "the nearest is send(user_id=42, language='en', at=None): language is 'en', not 'de'"
    assert lines[2] == "submitted were 3:"
    assert [line.split(" ", 3)[-1] for line in lines[3:]] == [
        "send(user_id=41, language='fr', at=None)",
        "send(user_id=42, language='en', at=None)",
        "ship(to=Address(city='Lyon'))",
    ]


async def test_a_failure_where_nothing_or_much_was_submitted(test: UnderTest) -> None:
    with pytest.raises(AssertionError, match="nothing was submitted at all"):
        test.assert_submitted(send)
    await app.submit_many(send.call(number) for number in range(30))
    with pytest.raises(AssertionError, match="and 10 before these") as told:
        test.assert_submitted("sends")
    assert "did you mean send?" in str(told.value)
    with pytest.raises(AssertionError, match="30 submitted as send"):
        test.assert_not_submitted(send)


@pytest.mark.parametrize(
    ("args", "arguments", "said"),
    [
        ((), {"usr_id": 1}, "did you mean 'user_id'"),
        ((1,), {"user_id": 1}, "given twice"),
        ((1, 2, 3, 4), {}, "4 positional"),
        ((), {"x": 1}, "it takes user_id"),
    ],
    ids=["typo", "twice", "too_many", "unknown"],
)
async def test_an_expectation_that_could_never_be_met_is_refused(test: UnderTest, args: tuple[int, ...], arguments: dict[str, int], said: str) -> None:
    for verb in (test.assert_submitted, test.assert_not_submitted, test.submitted):
        with pytest.raises(InvalidInput, match=said):
            verb(send, *args, **arguments)


async def test_what_is_no_expectation_is_refused(test: UnderTest) -> None:
    with pytest.raises(InvalidInput, match="no task"):
        test.submitted(len)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="arguments already"):
        test.submitted(send.call(1), 2)
    with pytest.raises(InvalidInput, match="2 payloads"):
        test.submitted("resize", 1, 2)


async def test_children_schedules_and_free_arguments_are_seen(test: UnderTest) -> None:
    await anything.submit(a=1, b=2)
    test.assert_submitted(anything, b=2)
    await ship.submit(Address("Lyon"))
    test.assert_not_submitted(send)
    await test.drain()
    test.assert_submitted(send, 7)
    test.assert_not_submitted(daily)
    await test.advance("1d")
    assert test.assert_submitted(daily, user_id=1).at == test.clock.now() - 15 * 60 * MINUTE


async def test_types_of_other_programs_are_compared_by_payload(test: UnderTest) -> None:
    await app.submit("resize", {"width": 3, "height": 4})
    await app.submit("resize", [1])
    test.assert_submitted("resize", width=3)
    test.assert_submitted("resize", {"width": 3, "height": 4})
    test.assert_submitted("resize", [1])
    test.assert_not_submitted("resize", width=4)
    assert [str(each) for each in test.submitted("resize")] == ["resize(width=3, height=4)", "resize([1])"]


async def test_a_second_submit_that_made_no_task_is_not_counted(test: UnderTest) -> None:
    await send.options(idempotency_key="a").submit(1)
    await send.options(idempotency_key="a").submit(1)
    with pytest.raises(Conflict):
        await send.options(idempotency_key="a").submit(2)
    assert [each.arguments["user_id"] for each in test.submitted(send)] == [1]


async def test_what_is_rolled_back_was_not_submitted(test: UnderTest) -> None:
    async def breaks() -> None:
        async with app.transaction() as tx:
            await send.options(tx=tx).submit(1)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await breaks()
    test.assert_not_submitted(send)
    async with app.transaction() as tx:
        await send.options(tx=tx).submit(2)
        test.assert_not_submitted(send)
    test.assert_submitted(send, 2)
    assert [one.arguments["user_id"] for one in await test.drain()] == [2]


async def test_a_payload_that_the_handler_would_refuse_is_shown_as_it_is(test: UnderTest) -> None:
    handle = await app.submit("send", {"user": 1})
    assert str(test.assert_submitted("send")) == "send(user=1)"
    await test.drain()
    assert await handle.status() is State.DEAD
