"""The documents are held to the code: statements, tables, verbs, words, links and examples in them are the real ones."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import cast

import apsw
import pytest

from taskmill.cli import main
from taskmill.clock import DAY, HOUR, SECOND, ManualClock
from taskmill.config import Settings
from taskmill.context import Context
from taskmill.engine import EVERYTHING, VERBS, Call, Durability, Engine, Filter
from taskmill.engines import create, schema
from taskmill.engines.sqlite import migrate, pick, sql
from taskmill.engines.sqlite.check import LITTLE_SPACE
from taskmill.engines.sqlite.connection import PATIENCE, connect
from taskmill.engines.sqlite.engine import COUNTS_AGE, SQLiteEngine
from taskmill.engines.sqlite.listing import matching
from taskmill.engines.sqlite.sql import Database
from taskmill.engines.sqlite.step import MOST_LEASES, RING
from taskmill.engines.sqlite.transitions import EDGE_SLICE
from taskmill.engines.sqlite.waiting import LISTEN
from taskmill.errors import Conflict
from taskmill.options import SubmitOptions
from taskmill.task import Priority, State, Task

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "examples" / "README.md", *(ROOT / "docs").rglob("*.md")])
SQLITE = ROOT / "docs" / "engines" / "sqlite.md"
ENGINE = ROOT / "src" / "taskmill" / "engines" / "sqlite"


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def text(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text(page), re.MULTILINE | re.DOTALL)


def section(page: Path, title: str) -> str:
    """What stands under a heading, up to the next of its height."""
    found = re.search(rf"^(#+) {re.escape(title)}\n(.*?)(?=^\1 |\Z)", text(page), re.MULTILINE | re.DOTALL)
    assert found is not None, f"{name(page)} has no section {title!r}"
    return found[2]


def table(page: Path, title: str) -> list[list[str]]:
    """The cells of the tables under a heading, without their head lines."""
    lines = [line for line in section(page, title).splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    return [
        row for row, after in zip(rows, [*rows[1:], []], strict=True) if not set("".join(row)) <= set("-: ") and not set("".join(after) or "x") <= set("-: ")
    ]


def code_words(cells: list[str]) -> list[str]:
    return [word for cell in cells for word in re.findall(r"`([^`]+)`", cell)]


def squeezed(statement: str) -> str:
    return " ".join(statement.strip().rstrip(";").split())


# Links and code


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_link_leads_somewhere(page: Path) -> None:
    prose = re.sub(r"^```.*?^```$", "", text(page), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", prose):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), f"{name(page)} links to {target}"
        if anchor:
            titles = re.findall(r"^#+ (.+)$", text(there), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}, f"{name(page)} links to {target}"


def python_blocks() -> Iterator[tuple[Path, int, str]]:
    for page in PAGES:
        for number, code in enumerate(blocks(page, "python"), 1):
            yield page, number, code


@pytest.mark.parametrize(("page", "number", "code"), [pytest.param(*found, id=f"{name(found[0])}-{found[1]}") for found in python_blocks()])
def test_python_in_the_documents_compiles(page: Path, number: int, code: str) -> None:
    compile(code, f"{name(page)} block {number}", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


async def test_a_transaction_as_the_page_of_the_engine_shows_it(tmp_path: Path) -> None:
    [code] = blocks(SQLITE, "python")
    names: dict[str, object] = {}
    exec(code, names)
    place_order = names["place_order"]
    assert callable(place_order)
    engine = create(f"sqlite:///{tmp_path / 'store.db'}")
    await engine.open()
    async with engine.transaction() as tx:
        tx.execute("CREATE TABLE shop_order (number INTEGER PRIMARY KEY)")
    await place_order(engine, 7)
    with pytest.raises(apsw.ConstraintError):
        await place_order(engine, 7)
    assert [task.payload for task in (await engine.list()).tasks] == [b"7"]
    await engine.close()


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z]+):.*## ", text(ROOT / "Makefile"), re.MULTILINE))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_the_commands_of_the_documents_exist(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = " \n ".join([*re.findall(r"^```\w*\n(.*?)^```$", text(page), re.MULTILINE | re.DOTALL), *re.findall(r"`([^`\n]+)`", text(page))])
    assert set(re.findall(r"(?:^| )make ([a-z]+)", code)) <= make_targets()
    for noun, verb in set(re.findall(r"\btaskmill (db|version)(?: ([a-z]+))?", code)):
        assert main([noun, *([verb] if verb else []), "--help"]) == 0, capsys.readouterr().err


# The page of the SQLite engine


def statements() -> list[tuple[str, str, str]]:
    found = []
    for block in blocks(SQLITE, "sql"):
        first, _, statement = block.partition("\n")
        marked = re.fullmatch(r"-- (\w+)\.sql: (\w+)", first)
        assert marked is not None, f"{first!r} does not say which statement this is"
        found.append((marked[1], marked[2], statement))
    return found


def test_the_page_shows_the_statements_of_a_claim() -> None:
    assert {f"{file}.{query}" for file, query, _ in statements()} >= {
        "pick.plain",
        "pick.shares",
        "pick.oldest_lanes",
        "pick.lane",
        "pick.ordered",
        "pick.start",
        "lanes.open_best",
        "finish.complete_known",
    }


@pytest.mark.parametrize(("file", "query", "shown"), [pytest.param(*found, id=f"{found[0]}-{found[1]}") for found in statements()])
def test_a_statement_in_the_page_is_the_one_in_the_code(file: str, query: str, shown: str) -> None:
    assert squeezed(shown) == squeezed(getattr(sql.load(f"{file}.sql"), query)), "python tools/write_docs.py writes it anew"


@pytest.fixture(scope="module")
def names_in_the_schema(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    path = tmp_path_factory.mktemp("schema") / "store.db"
    schema(f"sqlite:///{path}").upgrade()
    with closing(apsw.Connection(str(path))) as connection:
        return {str(name): str(kind) for name, kind in connection.execute("SELECT name, type FROM sqlite_schema WHERE name LIKE 'taskmill%'")}


def test_every_table_is_described_once(names_in_the_schema: dict[str, str]) -> None:
    described = [word for row in table(SQLITE, "The schema") for word in code_words(row[:1]) if names_in_the_schema.get(word) != "index"]
    assert sorted(described) == sorted(name for name, kind in names_in_the_schema.items() if kind == "table")


def test_no_table_or_index_is_named_that_does_not_exist(names_in_the_schema: dict[str, str]) -> None:
    assert set(re.findall(r"\btaskmill_[a-z_]*[a-z]\b", text(SQLITE))) <= names_in_the_schema.keys()


def test_every_index_of_the_tasks_is_described_once(names_in_the_schema: dict[str, str]) -> None:
    described = [word for row in table(SQLITE, "The schema") for word in code_words(row[:1]) if names_in_the_schema.get(word) == "index"]
    assert sorted(described) == sorted(name for name, kind in names_in_the_schema.items() if kind == "index" and name.startswith("taskmill_task_"))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[apsw.Connection]:
    """An empty store on a connection as the engine has it."""
    connection = connect(tmp_path_factory.mktemp("connection") / "store.db", durability=Durability.FSYNC, busy_timeout=SECOND)
    migrate.migrate(connection, ManualClock())
    yield cast("apsw.Connection", connection)
    connection.close()


def test_columns_that_the_page_explains_exist(store: apsw.Connection) -> None:
    explained = {"edge": ["kept", "result"], "lane": ["needs"], "counter": ["idle_at"], "moving": ["after"]}
    rows = {word: row[1] for row in table(SQLITE, "The schema") for word in code_words(row[:1])}
    for name, columns in explained.items():
        assert code_words([rows[f"taskmill_{name}"]]) == columns
        assert set(columns) <= {str(row[1]) for row in store.execute(f"PRAGMA table_info(taskmill_{name})")}


def test_a_connection_is_set_as_the_page_says(store: apsw.Connection, tmp_path: Path) -> None:
    rows = {code_words(row[:1])[0]: code_words(row[1:2]) for row in table(SQLITE, "The connection")}
    assert {name: [str(store.pragma(name))] for name in rows} == {name: values[:1] for name, values in rows.items()}
    assert store.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, -1) == 1
    with closing(cast("apsw.Connection", connect(tmp_path / "local.db", durability=Durability.LOCAL, busy_timeout=SECOND))) as local:
        assert str(local.pragma("synchronous")) == rows["synchronous"][2]


def test_no_condition_of_an_index_has_a_list(store: apsw.Connection) -> None:
    conditions = [str(text).partition(" WHERE ")[2] for (text,) in store.execute("SELECT sql FROM sqlite_schema WHERE type = 'index' AND sql IS NOT NULL")]
    assert [condition for condition in conditions if " IN " in condition] == []


FILTERS: dict[str, list[Filter]] = {
    "one of `dead`, `cancelled`": [Filter(states=frozenset({state})) for state in (State.DEAD, State.CANCELLED)],
    "one type": [Filter(types=frozenset({"mail"}))],
    "tenant": [Filter(tenant="acme")],
    "tags": [Filter(tags={"customer": "acme"})],
    "none": [EVERYTHING],
    "queue": [Filter(queues=frozenset({"default"}))],
    "no tenant": [Filter(tenant="")],
    "time of creation": [Filter(created_from=1, created_to=2)],
}


def plan(store: apsw.Connection, which: Filter) -> str:
    """How SQLite looks for a page of these tasks: its statements, and the plan of the one that reads tasks."""
    asked: list[tuple[str, object]] = []

    def note(_: object, statement: str, bindings: object) -> bool:
        asked.append((statement, bindings))
        return True

    store.exec_trace = note
    try:
        matching(cast("Database", store), which, None, 10, 0)
    finally:
        store.exec_trace = None
    plans = [
        str(row[3])
        for statement, bindings in asked
        if statement.startswith("SELECT task.")
        for row in store.execute(f"EXPLAIN QUERY PLAN {statement}", cast("tuple[str, ...]", bindings))
    ]
    return "; ".join([*(statement for statement, _ in asked), *plans])


def test_filters_go_by_what_the_page_says(store: apsw.Connection) -> None:
    rows = table(SQLITE, "Inspection")
    asked = {row[0]: FILTERS.get(row[0]) or [Filter(states=frozenset({State(word)})) for word in code_words(row[:1])] for row in rows}
    assert {state for filters in asked.values() for each in filters for state in each.states} == set(State)
    for said, goes_by, _ in rows:
        for which in asked[said]:
            found = plan(store, which)
            index = code_words([goes_by])
            assert f" {index[0] if index else 'INTEGER PRIMARY KEY'} " in found, (said, found)
            assert "TEMP B-TREE" not in found


def default_of(function: Callable[..., object], parameter: str) -> int:
    return cast("int", inspect.signature(function).parameters[parameter].default)


NUMBERS = {
    "How a claim proceeds": [f"up to {pick.QUANTUM} tasks"],
    "How a finish proceeds": [f"up to {MOST_LEASES:,}", f"slices of {EDGE_SLICE}"],
    "Inspection": [f"from memory for {COUNTS_AGE // SECOND} s"],
    "The write lock": [f"waited {PATIENCE} s", f"`busy_timeout` ({default_of(SQLiteEngine, 'busy_timeout') // SECOND} s)"],
    "Wake-ups": [f"a ring of {RING:,}", f"for {LISTEN // SECOND} s at a time"],
    "The live file": [f"not renewed for {default_of(SQLiteEngine, 'term') // SECOND} s"],
    "What is promised": [f"less than {LITTLE_SPACE >> 20} MiB"],
}


@pytest.mark.parametrize("title", NUMBERS)
def test_numbers_in_the_page_are_the_code_s_own(title: str) -> None:
    assert [number for number in NUMBERS[title] if number not in " ".join(section(SQLITE, title).split())] == []


def test_every_finding_of_check_is_explained() -> None:
    in_code = {(code, level) for level, code in re.findall(r'Finding\(\s*"(\w+)", "(\w+)"', text(ENGINE / "check.py"))}
    assert {(code_words(row[:1])[0], row[1]) for row in table(SQLITE, "What is promised") if row[1] in {"info", "warning", "error"}} == in_code


def codes_of(error: str, file: Path) -> set[str]:
    """The codes with which a file raises an error."""
    calls = [node for node in ast.walk(ast.parse(text(file))) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == error]
    codes = [keyword.value for call in calls for keyword in call.keywords if keyword.arg == "code"]
    return {str(code.value) for code in codes if isinstance(code, ast.Constant)}


def test_every_refusal_of_a_path_is_listed() -> None:
    listed = {code_words(row[:1])[0] for row in table(SQLITE, "Where it ends")}
    refusals = codes_of("WrongStore", ENGINE / "connection.py") | codes_of("WrongStore", ENGINE / "migrate.py")
    assert listed <= refusals
    assert refusals - listed <= {"cannot_open"}


@pytest.mark.parametrize("statement", ["BEGIN", "COMMIT", "ROLLBACK"])
async def test_what_a_transaction_refuses_as_the_page_says(tmp_path: Path, statement: str) -> None:
    page = section(SQLITE, "Your own transaction")
    engine = create(f"sqlite:///{tmp_path / 'store.db'}")
    await engine.open()
    async with engine.transaction() as tx:
        with pytest.raises(Conflict) as ended:
            tx.execute(statement)
        with pytest.raises(Conflict) as inside:
            await engine.put("note", "a", b"1")
        tx.execute("SAVEPOINT mine")
    assert f"`{statement}`" in page
    assert f"`{ended.value.code}`" in page
    assert f"`{inside.value.code}`" in page
    await engine.close()


async def test_a_backup_as_the_page_has_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Taken with the very command, while the store is open."""
    found = re.search(r'^python (-m apsw taskmill\.db) "(.*)"$', section(SQLITE, "Operating it"), re.MULTILINE)
    assert found is not None
    engine = create(f"sqlite:///{tmp_path / 'taskmill.db'}")
    await engine.open()
    await engine.put("limit", "mail", b'{"cap": 1}')
    await asyncio.to_thread(subprocess.run, [sys.executable, *found[1].split(), found[2]], cwd=tmp_path, check=True)
    await engine.close()
    assert await asyncio.to_thread(main, ["db", "verify", "--url", f"sqlite:///{tmp_path / 'backup.db'}"]) == 0, capsys.readouterr()
    copy = create(f"sqlite:///{tmp_path / 'backup.db'}")
    await copy.open()
    assert [item.name for item in await copy.items("limit")] == ["mail"]
    await copy.close()


# Architecture


def verbs() -> dict[str, str]:
    """The public methods of the contract, each with its guarantee."""
    return {verb: inspect.getdoc(method) or "" for verb, method in vars(Engine).items() if inspect.isfunction(method) and not verb.startswith("_")}


def test_the_table_of_verbs_is_the_contract() -> None:
    rows = table(ROOT / "docs" / "ARCHITECTURE.md", "The verbs")
    assert {code_words(row[:1])[0]: row[1] for row in rows} == verbs(), "python tools/write_docs.py writes it anew"
    assert len(rows) == len(verbs())


def test_the_number_of_verbs_is_the_contract_s() -> None:
    for page in (ROOT / "docs" / "ARCHITECTURE.md", ROOT / "CHANGELOG.md"):
        assert re.findall(r"(\d+) verbs", text(page)) == [str(len(VERBS))]


def test_what_a_call_tells_is_named() -> None:
    found = re.search(r"tells a `Call` \(([^)]*)\)", text(ROOT / "docs" / "ARCHITECTURE.md"))
    assert found is not None
    assert [re.split(r" of its ", part)[0] for part in found[1].split(", ")] == list(Call.__struct_fields__)


def test_every_file_of_the_engine_is_described() -> None:
    rows = [row for row in table(ROOT / "docs" / "ARCHITECTURE.md", "The source tree") if len(row) == 2]
    described = [word for row in rows for word in code_words(row[:1])]
    assert sorted(described) == sorted(path.stem for path in ENGINE.glob("*.py") if path.stem != "__init__")


def test_the_tree_names_every_module() -> None:
    """A module that exists is in the table of layers, and marked as here."""
    rows = table(ROOT / "docs" / "ARCHITECTURE.md", "The source tree")
    here = {word.rstrip("/") for row in rows if len(row) == 3 and row[2] for word in code_words(row[:1])}
    found = {path.stem for path in (ROOT / "src" / "taskmill").iterdir() if (path.suffix == ".py" or path.is_dir()) and not path.name.startswith("_")}
    assert found == here


def test_every_file_of_the_worker_is_described() -> None:
    described = [word for row in table(ROOT / "docs" / "ARCHITECTURE.md", "The worker") for word in code_words(row[:1])]
    assert sorted(described) == sorted(path.stem for path in (ROOT / "src" / "taskmill" / "worker").glob("*.py") if path.stem != "__init__")


# Guides

GUIDES = ROOT / "docs" / "guides"


def test_every_code_in_the_page_of_errors_is_the_code_s_own() -> None:
    source = "\n".join(text(path) for path in (ROOT / "src").rglob("*.py"))
    rows = [row for row in table(GUIDES / "errors.md", "Errors") if len(row) == 2]
    answers = [word for row in rows for word in code_words(row[1:]) if re.fullmatch(r"[a-z]+(_[a-z]+)+|timeout|poison|conflict", word)]
    assert len(answers) > 20
    assert [word for word in answers if f'"{word}"' not in source and f"{word}:" not in source] == []


def test_the_options_of_a_submit_are_those_of_the_quickstart() -> None:
    described = {word for row in table(GUIDES / "quickstart.md", "Submitting") for word in code_words(row[:1])}
    assert described == set(SubmitOptions.__annotations__)


def test_what_a_context_has_is_in_its_page() -> None:
    page = text(GUIDES / "context.md")
    public = [name for name in vars(Context) if not name.startswith("_") and name not in {"inline", "child", "claimed", "run"}]
    assert [name for name in public if f"ctx.{name}" not in page] == []


DEFAULTS = {
    "retries.md": ["kill_after", "dead_retention"],
    "deployment.md": ["grace_period", "concurrency", "history_retention", "dead_retention"],
    "idempotency.md": ["dedupe_window"],
}


@pytest.mark.parametrize("page", DEFAULTS)
def test_defaults_named_in_a_guide_are_those_of_the_settings(page: str) -> None:
    words = {
        "kill_after": "5 s",
        "grace_period": "20 s",
        "concurrency": "10",
        "dead_retention": "14 days",
        "history_retention": "14 days",
        "dedupe_window": "72 h",
    }
    values = {
        "kill_after": 5 * SECOND,
        "grace_period": 20 * SECOND,
        "concurrency": 10,
        "dead_retention": 14 * DAY,
        "history_retention": 14 * DAY,
        "dedupe_window": 72 * HOUR,
    }
    for setting in DEFAULTS[page]:
        assert getattr(Settings(), setting) == values[setting]
        assert words[setting] in text(GUIDES / page)


# Glossary

GLOSSARY = ROOT / "docs" / "GLOSSARY.md"


def test_the_states_are_the_code_s_own() -> None:
    words = [code_words(row[:1])[0] for row in table(GLOSSARY, "States")]
    assert sorted(words) == sorted(state.value for state in State)


def test_the_priorities_are_the_code_s_own() -> None:
    [row] = [row for row in table(GLOSSARY, "Work") if row[0] == "**priority**"]
    ordered = sorted(Priority, reverse=True)
    assert code_words(row[1:]) == [priority.name.lower() for priority in ordered]
    assert f"stored as {', '.join(str(priority.value) for priority in ordered)}" in row[1]


def test_a_word_is_explained_once() -> None:
    words = re.findall(r"^\| \*\*(.+?)\*\*", text(GLOSSARY), re.MULTILINE)
    assert len(words) == len(set(words))


def test_settings_named_in_the_glossary_exist() -> None:
    known = {*Task.__struct_fields__, "max_retries", "default"} | {state.value for state in State} | {priority.name.lower() for priority in Priority}
    assert set(code_words([text(GLOSSARY)])) <= known
