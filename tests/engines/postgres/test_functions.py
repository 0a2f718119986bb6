"""submit, cancel and requeue in SQL: for people with psql and for triggers, as the owner of the database, who is no superuser."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import asyncpg
import pytest

from taskmill.engine import Ending, Engine
from taskmill.engines.postgres.engine import PostgresEngine
from taskmill.engines.postgres.target import parse
from taskmill.task import State, Task, TypeSettings
from tests.conformance.tools import encode, record, state, worker

TRIGGER = """
CREATE TABLE shop_order (number int PRIMARY KEY);
CREATE FUNCTION order_came() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM taskmill.submit('work', jsonb_build_object('number', NEW.number), idempotency_key => 'order-' || NEW.number);
  RETURN NEW;
END $$;
CREATE TRIGGER order_came AFTER INSERT ON shop_order FOR EACH ROW EXECUTE FUNCTION order_came();
"""


@pytest.fixture
async def owner_url(empty_url: str) -> AsyncIterator[str]:
    """A database whose owner is no superuser."""
    role, word, database = f"owner_{secrets.token_hex(4)}", secrets.token_hex(8), urlsplit(empty_url).path.removeprefix("/")
    db = await asyncpg.connect(**parse(empty_url).arguments())
    await db.execute(
        f"CREATE ROLE {role} LOGIN NOSUPERUSER PASSWORD '{word}'; ALTER DATABASE {database} OWNER TO {role}; GRANT CREATE ON SCHEMA public TO {role}"
    )
    parts = urlsplit(empty_url)
    yield parts._replace(netloc=f"{role}:{word}@{parts.netloc.rpartition('@')[2]}").geturl()
    await db.execute(f"DROP OWNED BY {role} CASCADE; ALTER DATABASE {database} OWNER TO CURRENT_USER; DROP ROLE {role}")
    await db.close()


@pytest.fixture
async def engine(owner_url: str) -> AsyncIterator[Engine]:
    engine = PostgresEngine(parse(owner_url))
    await engine.migrate()
    await engine.open()
    yield engine
    await engine.close()


@pytest.fixture
async def db(owner_url: str, engine: Engine) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(**parse(owner_url).arguments())
    yield connection
    await connection.close()


async def test_a_trigger_submits(engine: Engine, db: asyncpg.Connection) -> None:
    hand = await worker(engine)
    await db.execute(TRIGGER)
    async with db.transaction():
        await db.execute("INSERT INTO shop_order VALUES (7)")
        assert (await hand.claim(5)) == [], "not before the commit"
    [task] = await hand.claim(5)
    assert (task.type, task.payload, task.idempotency_key) == ("work", b'{"number": 7}', "order-7")
    await hand.done(task)
    assert await state(engine, task.id) is State.COMPLETED


async def test_a_rolled_back_submit_is_none(engine: Engine, db: asyncpg.Connection) -> None:
    await worker(engine)
    transaction = db.transaction()
    await transaction.start()
    task = str(await db.fetchval("SELECT taskmill.submit('work')"))
    await transaction.rollback()
    assert await engine.get([task]) == (None,)


async def test_what_a_submit_can_say(engine: Engine, db: asyncpg.Connection) -> None:
    call = """SELECT taskmill.submit('odd', '{"a": 1}', queue => 'mine', priority => 3, delay => '1 hour', expires_at => now() + '2 hours',
        tenant => 'acme', tags => '{"t": "x"}')"""
    task = await record(engine, str(await db.fetchval(call)))
    assert (task.queue, task.priority, task.tenant, dict(task.tags), task.state) == ("mine", 3, "acme", {"t": "x"}, State.SCHEDULED)
    assert task.expires_at is not None
    assert abs(task.run_at - task.created_at - 3_600_000_000) < 1_000


async def test_settings_of_the_type_hold(engine: Engine, db: asyncpg.Connection) -> None:
    await engine.put("limit", "per-user", encode({"cap": 1}))
    settings = TypeSettings(queue="default", limits=("per-user:{user}",), ordered="{user}", fair="tenant", priority=2)
    hand = await worker(engine)
    await engine.put("type", "work", encode(settings))
    for user in (1, 1, 2):
        await db.execute("SELECT taskmill.submit('work', jsonb_build_object('user', $1::int), tenant => 'acme')", user)
    assert len(await hand.claim(10)) == 2, "one of each user"
    [shown] = {(task.limits, task.order_key, task.fair_key, task.priority) for task in (await engine.list()).tasks if task.payload == b'{"user": 2}'}
    assert shown == (("per-user:2",), "2", "acme", 2)
    with pytest.raises(asyncpg.InvalidParameterValueError, match="user"):
        await db.execute("SELECT taskmill.submit('work')")


async def test_a_key_is_used_once(engine: Engine, db: asyncpg.Connection) -> None:
    await worker(engine)
    call = "SELECT taskmill.submit('work', $1::text::jsonb, idempotency_key => 'k')"
    first = await db.fetchval(call, "1")
    assert await db.fetchval(call, "1") == first
    with pytest.raises(asyncpg.UniqueViolationError, match=str(first)):
        await db.fetchval(call, "2")


@pytest.mark.parametrize(
    "call",
    [
        "'Not A Name'",
        "'unknown'",
        "'work', priority => 4",
        "'work', delay => '1s', run_at => now()",
        "'work', tenant => E'a\\x1fb'",
        """'work', tags => '{"a": 1}'""",
        """'work', tags => '{"": "x"}'""",
        """'work', tags => '{"a": "\\u001f"}'""",
        "'work', tags => '[]'",
        "'work', tags => 'null'",
    ],
)
async def test_what_no_task_can_have_is_refused(engine: Engine, db: asyncpg.Connection, call: str) -> None:
    await worker(engine)
    with pytest.raises(asyncpg.InvalidParameterValueError):
        await db.execute(f"SELECT taskmill.submit({call})")


@pytest.mark.parametrize("user", ['"b\\u001f7"', "1.5", "true", '""', f'"{"x" * 257}"'])
async def test_a_key_from_the_payload_is_a_key(engine: Engine, db: asyncpg.Connection, user: str) -> None:
    await worker(engine)
    await engine.put("type", "work", encode(TypeSettings(queue="default", ordered="{user}")))
    with pytest.raises(asyncpg.InvalidParameterValueError):
        await db.execute("SELECT taskmill.submit('work', $1::text::jsonb, tenant => 'a')", f'{{"user": {user}}}')


async def test_what_a_field_says_is_not_a_field(engine: Engine, db: asyncpg.Connection) -> None:
    await worker(engine)
    await engine.put("type", "work", encode(TypeSettings(queue="default", ordered="{a}-{b}-{a}")))
    task = await record(engine, str(await db.fetchval("""SELECT taskmill.submit('work', '{"a": "{b}", "b": -2}')""")))
    assert task.order_key == "{b}--2-{b}"


async def test_cancel_and_requeue(engine: Engine, db: asyncpg.Connection) -> None:
    hand = await worker(engine)
    task = await db.fetchval("SELECT taskmill.submit('work')")
    assert await db.fetchval("SELECT taskmill.cancel($1)", task) == "cancelled"
    assert await db.fetchval("SELECT taskmill.requeue($1)", task) == "pending"
    claimed = await hand.claim_one()
    assert await db.fetchval("SELECT taskmill.cancel($1)", task) == "running"
    await hand.done(claimed, ending=Ending.CANCELLED)
    with pytest.raises(asyncpg.ObjectNotInPrerequisiteStateError):
        await db.fetchval("SELECT taskmill.requeue(taskmill.submit('work'))")
    with pytest.raises(asyncpg.NoDataFoundError):
        await db.fetchval("SELECT taskmill.cancel(gen_random_uuid())")
    [shown] = await engine.get([str(task)])
    assert isinstance(shown, Task)
    assert shown.state is State.CANCELLED
