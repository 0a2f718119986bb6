"""The page of the PostgreSQL engine is held to the code and to real servers: its tables, statements, codes and numbers are theirs, and its examples run."""

from __future__ import annotations

import ast
import asyncio
import os
import re
import shutil
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import urlsplit

import asyncpg
import pytest

from taskmill import config
from taskmill.app import App
from taskmill.clock import SECOND, format_duration
from taskmill.engine import Ending, Engine, Joining, Outcome, Room
from taskmill.engines import create, schema
from taskmill.engines.postgres import check, connecting, connection, engine, errors, listing, submit, target, waiting
from taskmill.engines.postgres.connection import connect
from taskmill.engines.postgres.engine import PostgresEngine
from taskmill.engines.postgres.sql import load
from taskmill.errors import AnswerLost, StoreError
from taskmill.maintenance.pruning import Pruning
from taskmill.task import ErrorInfo, NewTask, TypeSettings
from taskmill.worker import claimer
from tests.conftest import GIVEN
from tests.docs.test_docs import ROOT, blocks, code_words, codes_of, default_of, section, squeezed, table, text
from tests.servers.absence import skip
from tests.servers.programs import FOLDERS, Absent
from tests.servers.programs import postgres as programs

PAGE = ROOT / "docs" / "engines" / "postgres.md"
ENGINE = ROOT / "src" / "taskmill" / "engines" / "postgres"
MIGRATIONS = ENGINE / "migrations"


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[asyncpg.Connection]:
    """As any other program of this user is."""
    db = await asyncpg.connect(**target.parse(url).arguments())
    try:
        yield db
    finally:
        await db.close()


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Engine]:
    engine = create(url)
    await engine.open()
    try:
        yield engine
    finally:
        await engine.close()


def shown_blocks(word: str) -> str:
    """The block without a language in which this stands."""
    [found] = [block for language, block in re.findall(r"^```(\w*)\n(.*?)^```$", text(PAGE), re.MULTILINE | re.DOTALL) if not language and word in block]
    return str(found)


# URLs


def test_the_urls_of_the_page_are_understood() -> None:
    found = [target.parse(line.split()[0]) for line in shown_blocks("postgresql://").splitlines()]
    assert [(one.hosts, one.schema, one.target_session_attrs) for one in found] == [
        ((("db.example", 5432),), "taskmill", None),
        ((("/run/postgresql", 5432),), "taskmill", None),
        ((("db1", 5432), ("db2", 5433)), "taskmill", "read-write"),
        ((("::1", 5433),), "tasks", None),
    ]


def test_every_option_of_a_url_is_described_with_its_default() -> None:
    lines = [line.split("|")[1:-1] for line in text(PAGE).partition("\n## ")[0].splitlines() if line.startswith("| `")]
    described = {name: code_words([default]) for names, default, _ in lines for name in code_words([names])}
    assert described.keys() == {*config._OWN_PARAMETERS["postgres"], *config._SHARED_PARAMETERS["postgres"]}
    plain = target.parse("postgresql:///shop")
    defaults = {name: str(getattr(plain, name)) for name in ("schema", "pool", "durability", "application_name")}
    defaults["busy_timeout"] = format_duration(plain.busy_timeout)
    assert {name: values[0] for name, values in described.items() if values} == defaults


def test_the_signs_to_encode_in_a_password_are_all_there() -> None:
    assert dict(re.findall(r"`(.)` as\s+`(%..)`", text(PAGE))) == target.MEANINGFUL


# Promises


def test_what_a_durability_sets_is_in_the_table() -> None:
    shown = {}
    for row in table(PAGE, "What is promised"):
        named = re.match(r"`durability=(\w+)`", row[0])
        if named is not None:
            shown[named[1]] = code_words(row[1:2])
    assert shown == {durability.value: [value] for durability, value in connection.COMMITS.items()}


def findings() -> set[tuple[str, str]]:
    """(code, level) of everything that `check` may say. Some codes are made: of what holds rows, and of what a schema is refused for."""
    found = set()
    for call in ast.walk(ast.parse(text(ENGINE / "check.py"))):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "Finding":
            level, code = call.args[:2]
            assert isinstance(level, ast.Constant)
            found |= {(word, str(level.value)) for word in _codes(code)}
    return found


def _codes(code: ast.expr) -> set[str]:
    if isinstance(code, ast.Constant):
        return {str(code.value)}
    if isinstance(code, ast.JoinedStr):
        return {f"held_by_{kind}" for kind in re.findall(r"SELECT '(\w+)', format", text(ENGINE / "check.sql"))}
    return codes_of("WrongStore", ENGINE / "migrate.py")


def test_every_finding_of_check_is_explained() -> None:
    shown = [(code_words(row[:1])[0], row[1]) for row in table(PAGE, "What is promised") if row[1] in {"info", "warning", "error"}]
    assert sorted(shown) == sorted(findings())
    assert len(findings()) > 20


async def test_a_session_is_set_as_the_page_says(postgres_url: str) -> None:
    named = [(code_words(row[:1]), code_words(row[1:2])) for row in table(PAGE, "The connections")]
    rows = {names[0]: values[0] for names, values in named if names and not names[0].startswith("taskmill")}
    assert rows.keys() == {*connection.SESSION, "synchronous_commit"}
    db = await connect(target.parse(postgres_url))
    try:
        assert {name: await db.fetchval("SELECT setting FROM pg_settings WHERE name = $1", name) for name in rows} == rows
    finally:
        await db.close()


# The schema


async def names_in(url: str) -> dict[str, str]:
    """Tables, indexes and views of the store, each with its kind."""
    async with connected(url) as db:
        rows = await db.fetch("SELECT relname, relkind::text FROM pg_class WHERE relnamespace = 'taskmill'::regnamespace AND relkind IN ('r', 'i', 'v')")
    return {name: {"r": "table", "i": "index", "v": "view"}[kind] for name, kind in rows}


async def test_every_table_is_described_once(postgres_url: str) -> None:
    found = await names_in(postgres_url)
    described = [word for row in table(PAGE, "The schema") for word in code_words(row[:1])]
    tables = [word for word in described if found.get(word) != "index"]
    assert sorted(tables) == sorted(name for name, kind in found.items() if kind == "table")


async def test_every_index_of_the_tasks_is_described_once(postgres_url: str) -> None:
    async with connected(postgres_url) as db:
        indexes = [row[0] for row in await db.fetch("SELECT indexname FROM pg_indexes WHERE schemaname = 'taskmill' AND tablename = 'task'")]
    described = [word for row in table(PAGE, "The schema") for word in code_words(row[:1]) if word.startswith("task_") and word != "task_attempts"]
    assert sorted(described) == sorted(indexes)


async def test_other_indexes_and_columns_that_are_named_exist(postgres_url: str) -> None:
    found = await names_in(postgres_url)
    named = set(re.findall(r"`((?:task|body|ended|lane)_[a-z]+)`", text(PAGE)))
    assert {name: found.get(name) for name in named if name not in ("task_attempts", "task_executions")} == {
        name: "index" for name in named if name not in ("task_attempts", "task_executions")
    }
    explained = {word: code_words(row[1:2]) for row in table(PAGE, "The schema") for word in code_words(row[:1]) if found.get(word) == "table"}
    async with connected(postgres_url) as db:
        columns = {tuple(row) for row in await db.fetch("SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = 'taskmill'")}
    said = {(name, word) for name, words in explained.items() for word in words if name in ("lane", "counter", "edge")}
    assert said == {("lane", "needs"), ("counter", "wake_at"), ("edge", "outcome"), ("edge", "result")}
    assert said <= columns


async def test_the_columns_of_the_views_are_all_there(postgres_url: str) -> None:
    shown = {row[0].strip("`").removeprefix("taskmill."): code_words(row[1:]) for row in table(PAGE, "Looking with psql")}
    views = sorted(name for name, kind in (await names_in(postgres_url)).items() if kind == "view")
    assert sorted(shown) == views
    async with connected(postgres_url) as db:
        for view in ("tasks_v", "attempts_v", "schedules", "scheduled_jobs"):
            columns = await db.fetch("SELECT attname FROM pg_attribute WHERE attrelid = $1::text::regclass AND attnum > 0 ORDER BY attnum", f"taskmill.{view}")
            assert shown[view][0].split() == [row[0] for row in columns]


def verbatim() -> list[tuple[str, str, str]]:
    """(file, function, statement) of every block that says where it is from."""
    marked = [(re.match(r"-- (\d{4}_\w+\.sql): (\w+)\n", block), block) for block in blocks(PAGE, "sql")]
    return [(found[1], found[2], block[found.end() :]) for found, block in marked if found is not None]


def test_the_page_shows_the_statements_of_a_claim_and_a_finish() -> None:
    assert {function for _, function, _ in verbatim()} >= {"next_plain", "claim", "serve", "pick_share", "next_visits", "complete", "announce", "gate"}


@pytest.mark.parametrize(("file", "function", "shown"), [pytest.param(*found, id=f"{found[0]}-{found[1]}") for found in verbatim()])
def test_a_statement_in_the_page_is_the_one_in_the_code(file: str, function: str, shown: str) -> None:
    made = re.compile(rf"^CREATE (?:OR REPLACE )?FUNCTION {function}\(.*?(?=^CREATE |^CALL |\Z)", re.MULTILINE | re.DOTALL)
    last = max(path.name for path in MIGRATIONS.glob("*.sql") if made.search(text(path)))
    assert file == last, f"{last} replaces it"
    body = made.search(text(MIGRATIONS / file))
    assert body is not None
    assert squeezed(shown) in squeezed(body[0]), f"copy it from {file}"


def test_the_words_said_on_the_channel_are_all_there() -> None:
    said = {word for file in MIGRATIONS.glob("*.sql") for word in re.findall(r"pg_notify\([\w()]+, '(\w+)'\)", text(file))}
    assert (
        {code_words(row[:1])[0] for row in table(PAGE, "Wake-ups")}
        == said
        == {*waiting.Hub(cast("Any", SimpleNamespace(pool=SimpleNamespace(pooled=False))))._ears}
    )


# Examples that run


async def run_all(db: asyncpg.Connection, block: str) -> list[list[asyncpg.Record]]:
    return [await db.fetch(statement) for statement in block.split(";") if statement.strip()]


def examples(title: str) -> list[str]:
    return [block for block in re.findall(r"^```sql\n(.*?)^```$", section(PAGE, title), re.MULTILINE | re.DOTALL) if not block.startswith("-- 0")]


async def test_the_rights_of_the_page_are_enough(postgres_url: str) -> None:
    """Given and taken back in one transaction, so no role stays behind."""
    [block] = examples("Rights")
    async with connected(postgres_url) as db:
        begun = db.transaction()
        await begun.start()
        await run_all(db, block)
        await db.execute("CREATE TABLE taskmill.later (id bigint GENERATED ALWAYS AS IDENTITY)")
        await db.execute("SET LOCAL ROLE shop_worker")
        lacks = await db.fetch(load("check.sql", "taskmill").rights)
        may_create = await db.fetchval("SELECT has_schema_privilege('taskmill', 'CREATE')")
        await db.fetch("SELECT taskmill.lift_tokens(NULL)")
        await begun.rollback()
    assert [tuple(row) for row in lacks] == []
    assert may_create is False


async def worked(engine: Engine) -> None:
    """One task in each of the states that the examples look for."""
    await engine.join(Joining(worker="w", queues=("default",), types={"mail": TypeSettings()}))
    await engine.submit([NewTask(type="mail", queue="default", payload=b"%d" % n) for n in range(3)])
    claimed = (await engine.claim("w", 1, ("default",), Room(2))).tasks
    outcomes = [
        Outcome(task=one.id, worker="w", token=one.token, ending=ending, error=error, started_after=1)
        for one, (ending, error) in zip(claimed, [(Ending.COMPLETED, None), (Ending.DEAD, ErrorInfo("odd", "it broke"))], strict=True)
    ]
    assert (await engine.finish(outcomes)).refused == ()


async def test_the_examples_for_psql(postgres_url: str) -> None:
    waits, died, slow, _ = examples("Looking with psql")
    async with opened(postgres_url) as engine, connected(postgres_url) as db:
        await worked(engine)
        [[row]] = await run_all(db, waits)
        assert (row["queue"], row["type"], row["tasks"]) == ("default", "mail", 1)
        [[row]] = await run_all(db, died)
        assert (row["type"], row["code"], row["message"]) == ("mail", "odd", "it broke")
        [[row]] = await run_all(db, slow)
        assert (row["type"], row["attempts"]) == ("mail", 1)


Place = Callable[..., Awaitable[None]]


async def test_a_business_transaction_as_the_page_has_it(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways; and the example that joins orders with their invoices, by the index that it makes. A second order of one number is refused by the commit, when
    its task has been submitted already."""
    [code] = blocks(PAGE, "python")
    monkeypatch.setenv("TASKMILL_URL", postgres_url)
    names: dict[str, object] = {}
    exec(code, names)
    app, place_order, place_order_on = cast("App", names["app"]), cast("Place", names["place_order"]), cast("Place", names["place_order_on"])
    async with app, connected(postgres_url) as db:
        await db.execute("CREATE TABLE shop_order (number bigint UNIQUE DEFERRABLE INITIALLY DEFERRED)")
        await place_order(7)
        await place_order_on(db, 8)
        for again in (place_order(7), place_order_on(db, 8)):
            with pytest.raises(asyncpg.UniqueViolationError):
                await again
        rows, _ = await run_all(db, examples("Looking with psql")[-1])
        assert [tuple(row) for row in rows] == [(7, "pending", 0), (8, "pending", 0)]
        assert sorted(task.payload for task in (await app.engine.list()).tasks) == [b'{"number":7}', b'{"number":8}']
        # Between two indexes that fit, so few rows decide nothing: without the other one, that of the page must be usable.
        await db.execute("SET enable_seqscan = off; DROP INDEX taskmill.body_type")
        plan = await db.fetch("EXPLAIN SELECT id FROM taskmill.tasks_v WHERE type = 'invoice' AND payload ->> 'number' = '7'")
        assert "invoice_number" in str(plan)
        assert "Index Cond: ((taskmill.as_jsonb" in str(plan)


async def token_of(engine: Engine, request: int) -> int:
    await engine.join(Joining(worker="w", queues=("default",), types={"mail": TypeSettings()}))
    await engine.submit([NewTask(type="mail", queue="default", payload=b"1")])
    [claimed] = (await engine.claim("w", request, ("default",), Room(1))).tasks
    return claimed.token


def program(pytestconfig: pytest.Config, name: str) -> str:
    """Beside the server's programs, or wherever it is."""
    try:
        found = shutil.which(name, path=str(programs(pytestconfig.stash[GIVEN].get(FOLDERS)))) or shutil.which(name)
    except Absent as absent:
        skip(absent)
    assert found is not None, f"{name} is not there"
    return found


async def test_a_backup_as_the_page_has_it(postgres_url: str, postgres: Any, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    """Dumped while the store is open and put back into another database: a store as it was, whose tokens go on above those given since."""
    restored = postgres.databases.empty()
    places = {"shop": postgres_url, "restored": restored}
    try:
        async with opened(postgres_url) as engine:
            await engine.put("limit", "mail", b'{"cap": 1}')
            before = await token_of(engine, 1)
            for line in shown_blocks("pg_dump").splitlines():
                name, *words, place = line.split()
                command = [program(pytestconfig, name), *words, f"--dbname={places[place]}"]
                await asyncio.to_thread(subprocess.run, command, cwd=tmp_path, env=dict(os.environ), check=True, capture_output=True)
            since = await token_of(engine, 2)
        assert await asyncio.to_thread(schema(restored).verify) == []
        async with opened(restored) as copy:
            assert [item.name for item in await copy.items("limit")] == ["mail"]
            assert before < since < await token_of(copy, 3)
    finally:
        postgres.databases.drop(urlsplit(restored).path.removeprefix("/"))


# Codes and numbers


def refusals() -> set[str]:
    """What a URL, a server or a schema is refused for; not: a connection handed in as `tx`, and what only SQLite refuses."""
    found: set[str] = set()
    for file in (*ENGINE.glob("*.py"), ENGINE.parent / "__init__.py"):
        found |= codes_of("WrongStore", file) | codes_of("InvalidSettings", file)
    for call in ast.walk(ast.parse(text(ENGINE / "target.py"))):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "_refuse" and isinstance(call.args[0], ast.Constant):
            found.add(str(call.args[0].value))
    return found - {"foreign_connection", "no_file"}


def test_every_refusal_is_listed() -> None:
    store = {StoreError.code, AnswerLost.code}.union(*(codes_of("StoreError", file) for file in ENGINE.glob("*.py")))
    listed = [code_words(row[:1])[0] for row in table(PAGE, "Where it ends")]
    assert sorted(listed) == sorted([*refusals(), *store])


FIRST_POLL, LAST_POLL = 0.85, 0.98
NUMBERS = {
    "The PostgreSQL engine": [f"PostgreSQL {errors.OLDEST_SERVER} or newer", f"the port is {target.PORT}"],
    "What is promised": [f"open for {check.LONG_HELD // 60} minutes", f"above {check.LONGEST_NAP} s"],
    "The connections": [f"the last {engine.SPARE} connections", f"have {connecting.FROZEN // SECOND} s", "after 25 s"],
    "Behind PgBouncer": ["up to half a second"],
    "How a claim proceeds": ["up to 8 tasks", "At most 1,000 a claim"],
    "The gate and the inboxes": ["2,000 rows of `stir`", "250 edges of one ended task", "500 due tasks"],
    "How a submit proceeds": [f"waits {submit.PATIENCE} ms", f"at most {submit.SMALL} tasks"],
    "How a finish proceeds": ["slices of 250"],
    "History and pruning": [f"at most {default_of(Pruning, 'batch')} a call"],
    "Wake-ups": [
        f"{waiting.FIRST * 1_000:.0f} ms to {waiting.LONGEST['ended']:.0f} s",
        f"a ring of {waiting.RING:,}",
        f"for {waiting.KEPT // SECOND} s at a time",
        f"after {FIRST_POLL} to {LAST_POLL} s",
    ],
    "Inspection": [f"the newest {listing.WINDOW} times", f"from memory for {engine.COUNTS_AGE // SECOND} s"],
    "Leadership": [f"{default_of(PostgresEngine, 'term') // SECOND} s after the last renewal"],
}


@pytest.mark.parametrize("title", NUMBERS)
def test_numbers_in_the_page_are_the_code_s_own(title: str) -> None:
    assert [number for number in NUMBERS[title] if number not in " ".join(section(PAGE, title).split())] == []


def test_numbers_that_only_statements_hold() -> None:
    claim, settle = text(MIGRATIONS / "0006_claim.sql"), text(MIGRATIONS / "0005_settle.sql")
    assert "p.passed < 1000" in claim
    assert "(c.n - 1) / 8" in claim
    assert "ORDER BY number LIMIT 2000" in settle
    assert "ORDER BY e.number LIMIT 250" in settle
    assert "ORDER BY ready_at LIMIT 500" in settle
    assert claimer.POLL == SECOND
    assert f"uniform({FIRST_POLL}, {LAST_POLL})" in text(ROOT / "src" / "taskmill" / "worker" / "claimer.py")
    assert waiting.LONGEST_DEAF == 0.5
    keepalive = {name: int(value) for name, value in connection.SESSION.items() if name.startswith("tcp_")}
    assert keepalive["tcp_keepalives_idle"] + keepalive["tcp_keepalives_interval"] * keepalive["tcp_keepalives_count"] == 25


# Architecture


def test_every_file_of_the_engine_is_described() -> None:
    rows = table(ROOT / "docs" / "ARCHITECTURE.md", "The PostgreSQL engine, file by file")
    described = [word for row in rows for word in code_words(row[:1])]
    files = [path.stem for path in ENGINE.glob("*.py") if path.stem != "__init__"]
    assert sorted(described) == sorted([*files, "drivers/", *(path.stem for path in MIGRATIONS.glob("*.sql"))])
