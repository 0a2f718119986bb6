"""How SQLite answers every named statement: by an index, unless a reason stands here; and no statement that nobody asks for.

The planner has no statistics and looks at no bound value (QPSG), so the plan seen here on an empty store is the plan of every store.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import apsw
import apsw.ext
import pytest

from taskmill.clock import SECOND, ManualClock
from taskmill.engine import EVERYTHING, Durability, Filter
from taskmill.engines.sqlite import listing, migrate
from taskmill.engines.sqlite import sql as sql_module
from taskmill.engines.sqlite.connection import connect
from taskmill.engines.sqlite.sql import load
from taskmill.task import State

PACKAGE = Path(sql_module.__file__).parent
FILES = sorted(path.name for path in PACKAGE.glob("*.sql"))
STATEMENTS: dict[str, str] = {f"{file.removesuffix('.sql')}.{name}": text for file in FILES for name, text in vars(load(file)).items()}
HOT = ("pick", "claim", "finish", "edges", "lanes", "submit", "transitions", "step")
"""What claims, finishes and submits are made of."""

SCANS = {
    "edges.any_coming": "ends with the first row",
    "inspect.counts": "as many rows as there are kinds of tasks; how many of each is kept",
    "listing.kinds": "as many rows as there are kinds of tasks",
    "inspect.worker_types": "as many rows as there are workers",
    "inspect.workers": "as many rows as there are workers",
    "inspect.registered": "as many rows as there are workers; what each holds and is told, by an index",
    "inspect.listen_until": "a table of one row",
    "lanes.any_stand": "ends with the first row",
    "live.beats": "as many rows as there are workers",
    "live.last_mark": "a table of one row",
    "live.wall": "a table of one row",
    "recover.first_moving": "ends with the first row",
    "recover.forget_lanes": "only lanes in which nothing is ready, by an index of just those, and at most as many as asked for",
    "recover.forget_shares": "as many rows as there are shares, once in a round of retention",
    "recover.newest": "ends with the first row, from the end",
    "recover.queues": "as many rows as there are queues, when the clock was set back",
    "recover.idle_counters": "as many rows as there are limits in use, once in a round of retention",
    "recover.forget_taken": "answers of the last minutes, once in a round of retention",
    "scoping.any_tenant": "ends with the first row",
    "scoping.bodies": "tasks of tenants, once: when a store of an earlier version is opened",
    "scoping.lanes": "tasks of tenants, once: when a store of an earlier version is opened",
    "inspect.running_counts": "as many as run now",
    "listing.running_blocks": "as many as run now, from their index alone",
    "step.store": "a table of one row",
    "step.set_store": "a table of one row",
    "step.raise_generation": "a table of one row",
    "submit.any_known": "ends with the first row",
    "transitions.first_falling": "ends with the first row",
}
SORTS = {
    "claim.held": "asked for again after its answer was lost: as many rows as one claim gave",
    "pick.foreign_lanes": "DISTINCT over at most 100 rows",
    "scoping.lanes": "once, see above",
    "inspect.due_counts": "what came due since maintenance last settled it",
    "inspect.running_counts": "as many as run now",
    "listing.running_blocks": "as many as run now",
}

BY_NUMBER = "INTEGER PRIMARY KEY (rowid=?)"
BY_ID = "INDEX sqlite_autoindex_taskmill_task_1 (id=?)"
EXACT = {
    "pick.plain": ["INDEX taskmill_task_plain (lane=? AND priority=? AND ready_at>? AND ready_at<?)", BY_NUMBER],
    "pick.lane": ["INDEX taskmill_task_lane (lane=? AND priority=? AND ready_at>?)", BY_NUMBER],
    "pick.ordered": ["PRIMARY KEY (lane=?)", BY_NUMBER, BY_NUMBER],
    "pick.start": [BY_NUMBER],
    "pick.shares": ["INDEX taskmill_share_open (queue=? AND top=?)"],
    "pick.open_shares": ["INDEX taskmill_share_open (queue=? AND top>?)"],
    "pick.oldest_lanes": ["INDEX taskmill_lane_open (share=? AND top=?)"],
    "pick.foreign_lanes": ["INDEX taskmill_lane_needs (queue=?)"],
    "pick.any_lane": ["INDEX taskmill_lane_open (share=? AND top=?)"],
    "claim.worker_types": ["PRIMARY KEY (id=?)"],
    "claim.held": ["INDEX taskmill_task_held (worker=? AND request=?)", BY_NUMBER],
    "claim.next_plain": ["INDEX taskmill_task_plain (lane=? AND priority=? AND ready_at>?)"],
    "claim.results": ["INDEX taskmill_edge_order (parent=?)", f"{BY_NUMBER} LEFT-JOIN"],
    "finish.complete_plain": [BY_ID],
    "finish.complete_known": [BY_NUMBER],
    "lanes.head": ["COVERING INDEX taskmill_task_lane (lane=?)"],
    "lanes.ordered_head": ["PRIMARY KEY (lane=?)", BY_NUMBER],
    "lanes.share_top": ["INDEX taskmill_lane_open (share=? AND top>?)"],
    "lanes.standing_queues": ["COVERING INDEX taskmill_stand_best (counter=?)"],
    "lanes.best_shares": ["COVERING INDEX taskmill_stand_best (counter=? AND queue=?)"],
    "lanes.standing_top": ["COVERING INDEX taskmill_lane_shut (shut=? AND share=? AND top>?)"],
    "lanes.open_best": [BY_NUMBER, "COVERING INDEX taskmill_lane_shut (shut=? AND share=? AND top>?)"],
    "lanes.due": ["INDEX taskmill_task_due (<expr>=? AND ready_at<?)"],
    "lanes.passed_windows": ["INDEX taskmill_counter_wake (wake_at>? AND wake_at<?)"],
    "lanes.used": ["PRIMARY KEY (counter=? AND at>?)"],
    "submit.dedupe": ["PRIMARY KEY (tenant=? AND type=? AND key=?)", f"{BY_ID} LEFT-JOIN"],
    "submit.holder": ["PRIMARY KEY (tenant=? AND type=? AND key=?)", BY_NUMBER],
    "transitions.row": [BY_ID],
    "transitions.set_ended": [BY_NUMBER],
    "transitions.open_edges": ["INDEX taskmill_edge_child (child=? AND id>?)"],
    "transitions.lower_edges": [BY_NUMBER],
    "recover.held_by": ["INDEX taskmill_task_held (worker=?)"],
    "recover.held_up_to": ["INDEX taskmill_task_held (worker=? AND request<?)"],
    "recover.pending_ahead": ["INDEX taskmill_task_plain (lane=? AND priority=? AND ready_at>? AND ready_at<?)"],
    "recover.due_expiries": ["PRIMARY KEY (at<?)"],
}


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, apsw.Connection]]:
    """A store and its live file, on connections as the engine has them."""
    folder = tmp_path_factory.mktemp("plans")
    main = cast("apsw.Connection", connect(folder / "store.db", durability=Durability.FSYNC, busy_timeout=SECOND))
    live = cast("apsw.Connection", connect(folder / "store.db-live", durability=Durability.LOCAL, busy_timeout=SECOND))
    migrate.migrate(main, ManualClock())
    tables = load("live.sql")
    for table in (tables.beat_table, tables.mark_table, tables.term_table, tables.clock_table):
        live.execute(table)
    assert main.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, -1) == 1
    yield {"main": main, "live": live}
    main.close()
    live.close()


def plan(stores: dict[str, apsw.Connection], name: str) -> list[str]:
    return plan_of(stores["live" if name.startswith("live.") else "main"], STATEMENTS[name])


def plan_of(connection: apsw.Connection, statement: str) -> list[str]:
    info = apsw.ext.query_info(connection, statement, explain_query_plan=True)
    assert info.query_remaining is None, "two statements under one name"
    assert info.query_plan is not None
    return list(details(info.query_plan))


def details(node: apsw.ext.QueryPlan) -> Iterator[str]:
    for each in node.sub or ():
        yield each.detail
        yield from details(each)


def scanned(lines: list[str]) -> list[str]:
    """Tables that are read from end to end; not what lies in memory: a constant, a JSON array, an inner result."""
    return [
        line
        for line in lines
        if line.startswith("SCAN ") and not line.startswith(("SCAN CONSTANT ROW", "SCAN json_each", "SCAN (subquery", "SCAN sqlite_sequence"))
    ]


@pytest.mark.parametrize("name", STATEMENTS)
def test_nothing_is_read_from_end_to_end_without_a_reason(stores: dict[str, apsw.Connection], name: str) -> None:
    assert bool(scanned(plan(stores, name))) == (name in SCANS), plan(stores, name)


@pytest.mark.parametrize("name", STATEMENTS)
def test_nothing_is_sorted_without_a_reason(stores: dict[str, apsw.Connection], name: str) -> None:
    lines = plan(stores, name)
    assert any("USE TEMP B-TREE" in line for line in lines) == (name in SORTS), lines
    assert not any("AUTOMATIC" in line for line in lines), lines


def test_reasons_are_for_statements_that_exist() -> None:
    assert {*SCANS, *SORTS, *EXACT} <= STATEMENTS.keys()


@pytest.mark.parametrize("name", EXACT)
def test_the_hot_path_goes_by_these_indexes(stores: dict[str, apsw.Connection], name: str) -> None:
    used = [line.partition(" USING ")[2] for line in plan(stores, name) if line.startswith("SEARCH ")]
    assert used == EXACT[name]


@pytest.mark.parametrize("name", [name for name, text in STATEMENTS.items() if "INDEXED BY" in text])
def test_an_index_that_is_named_is_used(stores: dict[str, apsw.Connection], name: str) -> None:
    lines = plan(stores, name)
    for index in re.findall(r"INDEXED BY (\w+)", STATEMENTS[name]):
        assert any(re.search(rf"USING (COVERING )?INDEX {index}\b", line) for line in lines), lines


def test_every_statement_of_the_hot_path_that_reads_tasks_by_a_partial_index_names_it() -> None:
    """The planner takes a partial index only where the statement itself says the index's condition; naming it turns a slip into an error."""
    partial = [
        name for name in STATEMENTS if name.split(".")[0] in HOT and re.search(r"SELECT[^;]*FROM taskmill_task\b[^;]*\bWHERE (t\.)?lane\b", STATEMENTS[name])
    ]
    assert partial
    assert all("INDEXED BY" in STATEMENTS[name] for name in partial)


# Filters


BY_BLOCK = "SEARCH task USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)"
FILTERS: dict[str, tuple[Filter, str]] = {
    "everything": (EVERYTHING, "SEARCH task USING INTEGER PRIMARY KEY (rowid<?)"),  # newest first, until the page is full
    "dead": (Filter(states=frozenset({State.DEAD})), "SEARCH task USING INDEX taskmill_task_failed (state=? AND seq<?)"),
    "cancelled": (Filter(states=frozenset({State.CANCELLED})), "SEARCH task USING INDEX taskmill_task_failed (state=? AND seq<?)"),
    "tag": (Filter(tags={"customer": "acme"}), "SEARCH taskmill_tag USING PRIMARY KEY (name=? AND value=? AND seq<?)"),
    "type": (Filter(types=frozenset({"mail"})), "SEARCH task USING INDEX taskmill_task_type (type=? AND seq<?)"),
    "tenant": (Filter(tenant="acme"), "SEARCH task USING INDEX taskmill_task_tenant (tenant=? AND seq<?)"),
    **{state.value: (Filter(states=frozenset({state})), BY_BLOCK) for state in State if state not in {State.DEAD, State.CANCELLED}},
    "failed": (Filter(states=frozenset({State.DEAD, State.CANCELLED})), BY_BLOCK),
    "queue": (Filter(queues=frozenset({"letters"})), BY_BLOCK),
    "types": (Filter(types=frozenset({"mail", "other"})), BY_BLOCK),
    "type and state": (Filter(types=frozenset({"mail"}), states=frozenset({State.RUNNING})), BY_BLOCK),
    "since": (Filter(created_from=1), BY_BLOCK),
    "until": (Filter(created_to=1), BY_BLOCK),
    "without a tenant": (Filter(tenant=""), BY_BLOCK),
}


@pytest.fixture
def counted(stores: dict[str, apsw.Connection]) -> Iterator[apsw.Connection]:
    """The store says that there are tasks of every state in its first block."""
    db = stores["main"]
    db.execute("SAVEPOINT counted")
    db.execute("INSERT INTO taskmill_kind (id, queue, type, priority) VALUES (1, 'letters', 'mail', 1)")
    for state in range(8):
        db.execute("INSERT INTO taskmill_count (kind, state, block, tasks, oldest) VALUES (1, ?1, -1, 1, 0), (1, ?1, 0, 1, 0)", (state,))
    db.execute("DELETE FROM taskmill_count WHERE state = 3")
    db.execute("""INSERT INTO taskmill_task (seq, id, type, queue, tenant, lane, state, priority, ready_at, created_at, updated_at, worker, request)
        VALUES (1, 'running', 'mail', 'letters', '', -1, 3, 1, 0, 0, 0, 'worker', 1)""")
    db.execute("INSERT INTO taskmill_span (block, first, last) VALUES (0, 0, 9)")
    yield db
    db.execute("ROLLBACK TO counted")
    db.execute("RELEASE counted")


def asked(db: apsw.Connection, which: Filter) -> list[str]:
    """The statements that read tasks for a list."""
    statements: list[str] = []

    def note(cursor: Any, statement: str, bindings: Any) -> bool:
        statements.append(statement)
        return True

    db.exec_trace = note
    try:
        listing.matching(db, which, None, 10, 0)
    finally:
        db.exec_trace = None
    return [statement for statement in statements if statement.startswith("SELECT task.")]


@pytest.mark.parametrize("name", FILTERS)
def test_a_filter_goes_by_its_index(counted: apsw.Connection, name: str) -> None:
    which, expected = FILTERS[name]
    [statement] = asked(counted, which)
    first, *others = plan_of(counted, statement)
    assert first == expected
    assert not scanned(others)
    assert not any("TEMP B-TREE" in line for line in others)


NOTHING = [
    Filter(queues=frozenset({"unknown"})),
    Filter(types=frozenset({"unknown", "another"})),
    Filter(queues=frozenset({"letters"}), types=frozenset({"unknown"})),
    Filter(created_from=10),
    Filter(created_to=0),
]


@pytest.mark.parametrize("which", NOTHING)
def test_a_filter_that_nothing_matches_reads_no_task(counted: apsw.Connection, which: Filter) -> None:
    assert asked(counted, which) == []


@pytest.mark.parametrize("state", [State.RUNNING, State.RETRYING, State.COMPLETED])
def test_a_state_that_no_task_is_in_reads_no_task(counted: apsw.Connection, state: State) -> None:
    counted.execute("UPDATE taskmill_count SET tasks = 0 WHERE state IN (2, 5)")
    counted.execute("DELETE FROM taskmill_task WHERE state = 3")
    assert asked(counted, Filter(states=frozenset({state}))) == []


@pytest.mark.parametrize("index", re.findall(r"CREATE INDEX (\w+)", (PACKAGE / "migrations" / "0001_first.sql").read_text(encoding="utf-8")))
def test_every_index_is_used_by_something(stores: dict[str, apsw.Connection], index: str) -> None:
    """An index that nothing reads is paid for with every write."""
    lines = [line for name in STATEMENTS for line in plan(stores, name)]
    lines += [expected for _, expected in FILTERS.values()]
    assert any(re.search(rf"INDEX {index}\b", line) for line in lines)


# Names


def uses() -> Counter[str]:
    """Every `queries.NAME` of the package's code, with the file that it was loaded from."""
    found: Counter[str] = Counter()
    for path in sorted(PACKAGE.glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        loaded = {
            target.id: node.value.args[0].value
            for node in tree.body
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Name) and node.value.func.id == "load"
            for target in node.targets
            if isinstance(target, ast.Name) and isinstance(node.value.args[0], ast.Constant)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in loaded:
                found[f"{str(loaded[node.value.id]).removesuffix('.sql')}.{node.attr}"] += 1
    return found


def test_every_statement_that_the_code_names_exists() -> None:
    assert uses().keys() - STATEMENTS.keys() == set()


def test_every_statement_is_named_by_the_code() -> None:
    assert STATEMENTS.keys() - uses().keys() == set()


def test_a_name_is_given_once_in_its_file() -> None:
    for file in FILES:
        names = re.findall(r"^-- name: (\w+)", (PACKAGE / file).read_text(encoding="utf-8"), re.MULTILINE)
        assert len(names) == len(set(names)), file
        assert len(names) == len(vars(load(file)))


def test_a_name_that_is_not_there_is_an_error_at_once() -> None:
    with pytest.raises(AttributeError, match="no query is named 'nothing'"):
        _ = load("step.sql").nothing
