"""The pool: how many connections, for whom, with which settings; and what is known of a step whose connection broke."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator

import asyncpg
import pytest
import uvloop

from taskmill.clock import SECOND
from taskmill.engine import Durability
from taskmill.engines.postgres.connecting import Pool
from taskmill.errors import AnswerLost, Conflict, StoreError, TaskmillError, WrongStore
from tests.engines.postgres.tools import opened, target_of
from tests.engines.postgres.wire import Wire, wire
from tests.servers.pgbouncer import PgBouncer


@pytest.fixture
async def pool(empty_url: str) -> AsyncIterator[Pool]:
    async with opened(empty_url, schema="other") as made:
        await made.fetch("CREATE TABLE public.note (id int PRIMARY KEY, text text)")
        yield made


@pytest.fixture
async def single(empty_url: str, pool: Pool) -> AsyncIterator[Pool]:
    """One connection for everybody, beside `pool`."""
    async with opened(empty_url, pool=1) as made:
        yield made


async def written(pool: Pool, *statements: str, own: bool = True, then: BaseException | None = None) -> None:
    """These statements in one transaction, which then raises, if it is told to."""
    async with pool.transaction(own=own) as connection:
        for statement in statements:
            await connection.execute(statement)
        if then is not None:
            raise then


async def notes(pool: Pool) -> list[int]:
    return [row["id"] for row in await pool.fetch("SELECT id FROM public.note ORDER BY id")]


# What a connection is


async def test_what_is_known_of_the_server(pool: Pool) -> None:
    assert pool.server_version >= (14, 0)
    assert (pool.pooled, pool.in_recovery) == (False, False)


@pytest.mark.parametrize(("durability", "setting"), [(Durability.FSYNC, "on"), (Durability.LOCAL, "off")])
async def test_how_far_a_commit_goes(empty_url: str, durability: Durability, setting: str) -> None:
    async with opened(empty_url, durability=durability) as pool:
        assert await pool.fetchval("SHOW synchronous_commit") == setting
        async with pool.transaction() as connection:
            assert await connection.fetchval("SHOW synchronous_commit") == setting


async def test_a_transaction_may_go_less_far_for_itself(single: Pool) -> None:
    async with single.transaction(durability=Durability.LOCAL) as connection:
        assert await connection.fetchval("SHOW synchronous_commit") == "off"
    assert await single.fetchval("SHOW synchronous_commit") == "on"


async def test_replicated_needs_a_synchronous_standby(empty_url: str) -> None:
    with pytest.raises(WrongStore) as caught:
        await Pool(target_of(empty_url, durability=Durability.REPLICATED)).open()
    assert (caught.value.code, caught.value.field) == ("not_replicated", "durability")


async def test_steps_are_read_committed_whatever_the_database_prefers(empty_url: str, pool: Pool) -> None:
    await pool.fetch(f'ALTER DATABASE "{pool.target.database}" SET default_transaction_isolation = serializable')
    async with opened(empty_url) as later:
        assert await later.fetchval("SHOW transaction_isolation") == "read committed"
        async with later.transaction() as connection:
            assert await connection.fetchval("SHOW transaction_isolation") == "read committed"


async def test_the_engine_s_types_are_known_without_asking(single: Pool) -> None:
    """Asking would leave a prepared statement over pg_type behind."""
    id = "0190a5c4-0000-7000-8000-000000000001"
    row = await single.fetchrow(
        "SELECT $1::uuid, $2::uuid[], $3::bigint[], $4::text[], $5::bytea[], $6::jsonb, $7::jsonb[], $8::json[], $9::bool[], $10::int[], $11::smallint[], "
        "$12::json",
        id, [id, None], [1, 2**62], ["a", None, 'q"\\{,'], [b"\x00\xff"], '{"a": 1}', ["[1, 2]"], ["[1,2]"], [True, False], [-1], [3], "{ }",
    )  # fmt: skip
    assert row is not None
    assert list(row) == [
        id, [id, None], [1, 2**62], ["a", None, 'q"\\{,'], [b"\x00\xff"], '{"a": 1}', ["[1, 2]"], ["[1,2]"], [True, False], [-1], [3], "{ }",
    ]  # fmt: skip
    assert await single.fetchval("SELECT count(*) FROM pg_prepared_statements WHERE statement LIKE '%pg_typ' || 'e%'") == 0
    assert await single.fetchval("SELECT count(*) FROM pg_prepared_statements WHERE statement LIKE 'SELECT $1::uuid%'") == 1


def test_uvloop(empty_url: str) -> None:
    async def main() -> list[int]:
        async with opened(empty_url) as pool:
            return [await pool.fetchval("SELECT $1::bigint", 7)]

    assert uvloop.run(main()) == [7]


# How many, and for whom


async def test_there_are_never_more_than_asked_for(empty_url: str) -> None:
    async with opened(empty_url, pool=3) as pool:
        pids = await asyncio.gather(*(pool.fetchval("SELECT pg_backend_pid()") for _ in range(50)))
        assert 1 <= len(set(pids)) <= 3
        assert await pool.fetchval("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'taskmill'") <= 3


async def test_first_come_first_served(single: Pool) -> None:
    order: list[int] = []

    async def ask(number: int) -> None:
        order.append(await single.fetchval("SELECT $1::int", number))

    async with single.transaction():
        asking = [asyncio.create_task(ask(number)) for number in range(5)]
        await asyncio.sleep(0)
        assert order == []
    await asyncio.gather(*asking)
    assert order == [0, 1, 2, 3, 4]


async def test_whoever_stops_waiting_takes_nothing_along(single: Pool) -> None:
    async with single.transaction():
        gone, stays = asyncio.create_task(single.fetchval("SELECT 1")), asyncio.create_task(single.fetchval("SELECT 2"))
        await asyncio.sleep(0)
        gone.cancel()
    assert await stays == 2
    with pytest.raises(asyncio.CancelledError):
        await gone
    assert await single.fetchval("SELECT 3") == 3


async def test_one_that_is_given_a_connection_and_cancelled_in_the_same_moment_gives_it_back(single: Pool) -> None:
    async with single.transaction():
        waiting = asyncio.create_task(single.fetchval("SELECT 1"))
        await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await single.fetchval("SELECT 2") == 2


@pytest.mark.parametrize("seed", range(5))
async def test_however_many_give_up_at_whichever_moment_no_connection_is_lost(empty_url: str, seed: int) -> None:
    chance = random.Random(seed)

    async def ask(pool: Pool, number: int) -> int:
        if number % 3:
            return int(await pool.fetchval("SELECT $1::int", number))
        async with pool.transaction() as connection:
            return int(await connection.fetchval("SELECT $1::int", number))

    async def together(pool: Pool, size: int) -> set[int]:
        """As many processes of the server as there are transactions open at once."""
        barrier = asyncio.Barrier(size)

        async def one() -> int:
            async with pool.transaction() as connection:
                await barrier.wait()
                return int(await connection.fetchval("SELECT pg_backend_pid()"))

        return set(await asyncio.gather(*(one() for _ in range(size))))

    async with opened(empty_url, pool=3) as pool:
        asking = [asyncio.create_task(ask(pool, number)) for number in range(100)]
        while not all(task.done() for task in asking):
            chance.choice(asking).cancel()
            for _ in range(chance.randrange(4)):
                await asyncio.sleep(0)
            await asyncio.wait(asking, timeout=chance.choice((0, 0.001)))
        answers = await asyncio.gather(*asking, return_exceptions=True)
        assert [answer for number, answer in enumerate(answers) if answer != number and not isinstance(answer, asyncio.CancelledError)] == []
        assert len(await together(pool, 3)) == 3


async def test_all_in_use_all_the_time(empty_url: str) -> None:
    async with opened(empty_url, pool=1, busy_timeout=0) as pool, pool.transaction():
        with pytest.raises(StoreError) as caught:
            await pool.fetch("SELECT 1")
    assert caught.value.code == "pool_busy"
    assert "?pool=" in (caught.value.hint or "")


async def test_a_closed_pool(empty_url: str) -> None:
    async with opened(empty_url) as pool:
        pass
    with pytest.raises(StoreError) as caught:
        await pool.fetch("SELECT 1")
    assert caught.value.code == "closed"


async def test_closing_waits_for_steps_under_way(empty_url: str, pool: Pool) -> None:
    async with opened(empty_url) as other:
        begun = asyncio.Event()

        async def write() -> None:
            async with other.transaction() as connection:
                begun.set()
                await connection.execute("INSERT INTO public.note VALUES (1)")

        writing = asyncio.create_task(write())
        await begun.wait()
        await other.close()
        await writing
    assert await notes(pool) == [1]


async def test_closing_does_not_wait_for_ever(empty_url: str, pool: Pool) -> None:
    async def write(other: Pool) -> None:
        async with other.transaction() as connection:
            await connection.execute("INSERT INTO public.note VALUES (1)")
            await other.close(grace=1)
            await connection.execute("INSERT INTO public.note VALUES (2)")

    async with opened(empty_url) as other:
        with pytest.raises(StoreError):
            await write(other)
    assert await notes(pool) == []


async def test_a_pool_can_be_opened_again(empty_url: str) -> None:
    pool = Pool(target_of(empty_url))
    for number in range(2):
        await pool.open()
        assert await pool.fetchval("SELECT $1::int", number) == number
        await pool.close()


# Steps and transactions


async def test_a_block_that_raises_is_rolled_back(pool: Pool) -> None:
    with pytest.raises(ZeroDivisionError):
        await written(pool, "INSERT INTO public.note VALUES (1)", then=ZeroDivisionError())
    await written(pool, "INSERT INTO public.note VALUES (2)")
    assert await notes(pool) == [2]


async def test_a_cancelled_block_is_rolled_back_and_its_connection_goes_on(single: Pool, pool: Pool) -> None:
    begun = asyncio.Event()

    async def write() -> None:
        async with single.transaction() as connection:
            await connection.execute("INSERT INTO public.note VALUES (1)")
            begun.set()
            await asyncio.Event().wait()

    pid = await single.fetchval("SELECT pg_backend_pid()")
    writing = asyncio.create_task(write())
    await begun.wait()
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    assert await single.fetchval("SELECT pg_backend_pid()") == pid
    assert await notes(pool) == []


async def test_a_cancelled_step_leaves_a_connection_that_works(single: Pool, pool: Pool) -> None:
    asking = asyncio.create_task(single.fetch("SELECT pg_sleep(600)"))
    while not await pool.fetchval("SELECT count(*) FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(600)' AND state = 'active'"):
        pass
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert await single.fetchval("SELECT 1") == 1


async def test_a_swallowed_error_does_not_pass_for_a_commit(pool: Pool) -> None:
    """PostgreSQL answers such a COMMIT with ROLLBACK and no error."""

    async def write() -> None:
        async with pool.transaction(own=False) as connection:
            await connection.execute("INSERT INTO public.note VALUES (1)")
            with contextlib.suppress(asyncpg.UniqueViolationError):
                await connection.execute("INSERT INTO public.note VALUES (1)")

    with pytest.raises(Conflict) as caught:
        await write()
    assert caught.value.code == "rolled_back"
    assert await notes(pool) == []


async def test_a_nested_transaction_of_the_user_keeps_the_outer_one_alive(pool: Pool) -> None:
    async with pool.transaction(own=False) as connection:
        await connection.execute("INSERT INTO public.note VALUES (1)")
        with pytest.raises(asyncpg.UniqueViolationError):
            async with connection.transaction():
                await connection.execute("INSERT INTO public.note VALUES (1)")
        await connection.execute("INSERT INTO public.note VALUES (2)")
    assert await notes(pool) == [1, 2]


async def test_errors_of_the_user_s_statements_are_the_user_s_and_those_of_ours_are_ours(pool: Pool) -> None:
    with pytest.raises(asyncpg.DivisionByZeroError):
        await written(pool, "SELECT 1 / 0", own=False)
    with pytest.raises(TaskmillError) as caught:
        await written(pool, "SELECT 1 / 0")
    assert caught.value.code == "store_error"


async def test_a_deferred_refusal_at_commit_is_not_a_lost_answer(pool: Pool) -> None:
    await pool.fetch("CREATE TABLE public.late (id int REFERENCES public.note DEFERRABLE INITIALLY DEFERRED)")
    with pytest.raises(StoreError) as caught:
        await written(pool, "INSERT INTO public.late VALUES (9)")
    assert not isinstance(caught.value, AnswerLost)
    with pytest.raises(asyncpg.ForeignKeyViolationError):
        await written(pool, "INSERT INTO public.late VALUES (9)", own=False)
    assert await pool.fetchval("SELECT count(*) FROM public.late") == 0


# Others in the way


FLAKY = """
CREATE SEQUENCE public.tries;
CREATE FUNCTION public.flaky(state text, until int) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
  IF nextval('public.tries') < until THEN RAISE EXCEPTION 'others' USING ERRCODE = state; END IF;
  RETURN currval('public.tries');
END $$
"""


@pytest.mark.parametrize("state", ["40001", "40P01"])
async def test_what_others_made_fail_is_repeated(pool: Pool, state: str) -> None:
    await written(pool, FLAKY)
    assert await pool.fetchval("SELECT public.flaky($1, 4)", state) == 4


async def test_but_not_for_ever(pool: Pool) -> None:
    await written(pool, FLAKY)
    with pytest.raises(StoreError) as caught:
        await pool.fetchval("SELECT public.flaky('40001', 1000)")
    assert caught.value.code == "store_busy"
    assert not isinstance(caught.value, AnswerLost)


async def test_a_statement_that_is_not_answered_in_time_is_stopped(single: Pool, pool: Pool) -> None:
    """Otherwise it could still be applied when nobody expects it any more."""
    pid = await single.fetchval("SELECT pg_backend_pid()")
    with pytest.raises(AnswerLost):
        await single.fetch("SELECT pg_sleep(600)", timeout=SECOND // 10)
    assert await single.fetchval("SELECT pg_backend_pid()") == pid
    assert await pool.fetchval("SELECT count(*) FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(600)' AND state = 'active'") == 0


# Broken connections


async def test_a_step_whose_server_process_was_terminated_may_have_been_applied(pool: Pool) -> None:
    with pytest.raises(AnswerLost) as caught:
        await pool.fetch("SELECT pg_terminate_backend(pg_backend_pid())")
    assert caught.value.code == "answer_lost"
    assert await pool.fetchval("SELECT 1") == 1


async def test_a_transaction_whose_connection_broke_before_commit_was_not_applied(pool: Pool) -> None:
    with pytest.raises(StoreError) as caught:
        await written(pool, "INSERT INTO public.note VALUES (1)", "SELECT pg_terminate_backend(pg_backend_pid())")
    assert not isinstance(caught.value, AnswerLost)
    assert await notes(pool) == []


async def test_a_transaction_begins_on_another_connection_when_the_idle_ones_were_cut(empty_url: str, pool: Pool) -> None:
    async with opened(empty_url) as other:
        await asyncio.gather(*(other.fetchval("SELECT 1") for _ in range(10)))
        await pool.fetch("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()")
        async with other.transaction() as connection:
            await connection.execute("INSERT INTO public.note VALUES (1)")
    assert await notes(pool) == [1]


async def test_a_commit_whose_answer_does_not_come_is_a_lost_answer(empty_url: str, pool: Pool) -> None:
    async with wire(*pool.target.hosts[0]) as between, opened(empty_url, hosts=(("127.0.0.1", between.port),)) as cut:
        cutting = asyncio.create_task(_cut_when_committed(pool, between))
        with pytest.raises(AnswerLost):
            await _write_and_keep_the_answer_back(cut, between)
        await cutting
        between.answers.set()
        assert await notes(cut) == [1]


async def _write_and_keep_the_answer_back(pool: Pool, between: Wire) -> None:
    async with pool.transaction() as connection:
        await connection.execute("INSERT INTO public.note VALUES (1)")
        between.answers.clear()


async def _cut_when_committed(pool: Pool, between: Wire) -> None:
    await between.asked.wait()
    while await notes(pool) != [1]:
        pass
    between.cut()


async def test_a_server_that_is_not_there(empty_url: str) -> None:
    async with wire("127.0.0.1", 1) as nobody:
        free = nobody.port
    with pytest.raises(StoreError) as caught:
        await Pool(target_of(empty_url, hosts=(("127.0.0.1", free),))).open()
    assert caught.value.code == "store_unavailable"
    assert str(free) in str(caught.value)


async def test_a_server_that_comes_back_is_found(empty_url: str, pool: Pool) -> None:
    """Whoever asks while connections are refused gets the answer when they no longer are."""
    async with wire(*pool.target.hosts[0]) as between, opened(empty_url, hosts=(("127.0.0.1", between.port),)) as other:
        between.refuse()
        with pytest.raises(StoreError):
            await Pool(other.target).open()
        asking = asyncio.create_task(_in_a_transaction(other))
        done, _ = await asyncio.wait({asking}, timeout=0.2)
        assert not done
        await between.listen()
        assert await asking == 1


async def _in_a_transaction(pool: Pool) -> int:
    async with pool.transaction() as connection:
        return int(await connection.fetchval("SELECT 1"))


# Behind PgBouncer


async def test_behind_a_pooler(pgbouncer: PgBouncer, empty_url: str, pool: Pool) -> None:
    async with opened(pgbouncer.through(empty_url), durability=Durability.LOCAL) as pooled:
        assert pooled.pooled
        assert await pooled.listen("any", print, print) is None
        assert await pooled.fetchval("SHOW synchronous_commit") == "off"
        assert await pooled.fetchval("SHOW transaction_isolation") == "read committed"
        answers = await asyncio.gather(*(pooled.fetchval("SELECT $1::bigint", number) for number in range(200)))
        assert answers == list(range(200))
        assert await pooled.fetch("INSERT INTO public.note SELECT unnest($1::int[]) RETURNING id", [1, 2])
        with pytest.raises(StoreError):
            await pooled.fetch("INSERT INTO public.note VALUES (3), (1)")
        with pytest.raises(ZeroDivisionError):
            await written(pooled, "INSERT INTO public.note VALUES (4)", then=ZeroDivisionError())
    assert await notes(pool) == [1, 2]


async def test_a_pooler_s_connections_keep_nothing_of_ours(pgbouncer: PgBouncer, empty_url: str) -> None:
    async with opened(pgbouncer.through(empty_url), durability=Durability.LOCAL) as pooled:
        await pooled.fetch("SELECT 1")
    async with opened(pgbouncer.through(empty_url)) as pooled:
        plain = await pooled.connect(plain=True)
        try:
            assert await plain.fetchval("SHOW synchronous_commit") == "on"
            assert await plain.fetchval("SELECT count(*) FROM pg_prepared_statements") == 0
        finally:
            await plain.close()
