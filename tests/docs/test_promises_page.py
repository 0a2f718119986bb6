"""The page of promises is held to the code: every test it names exists, every number that is cited is one of its numbers, its table is that of the engines."""

from __future__ import annotations

import ast
import re
from functools import cache
from inspect import signature
from pathlib import Path

import pytest

from taskmill.cron import due
from taskmill.engine import Features
from taskmill.engines.postgres.engine import PostgresEngine
from taskmill.engines.redis.cluster import ClusterEngine
from taskmill.engines.redis.engine import RedisEngine
from taskmill.engines.sqlite.engine import SQLiteEngine
from taskmill.task import MOST_EDGES, MOST_HEADER_BYTES, MOST_SIGNAL_BYTES, MOST_SIGNALS, MOST_STEP_BYTES, MOST_STEPS
from tests.docs.test_docs import ROOT, code_words, table, text

PAGE = ROOT / "docs" / "PROMISES.md"
HEADING = re.compile(r"^### (\d+)\. ", re.MULTILINE)
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
CITED = re.compile(r"\b[Pp]romises? (\d+(?:(?:, | and |–)\d+)*)")
PLACES = ("src", "tests", "docs", "bench", "examples", "tools")
KINDS = (".py", ".sql", ".lua", ".md", ".ts")


def sections() -> dict[int, str]:
    """Each promise's number and what stands below it."""
    _, *parts = HEADING.split(text(PAGE))
    return {int(number): body for number, body in zip(parts[::2], parts[1::2], strict=True)}


@cache
def named_in(path: Path) -> frozenset[str]:
    tree = ast.parse(path.read_text())
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"))


def test_the_numbers_go_on_without_a_gap() -> None:
    assert list(sections()) == list(range(1, len(sections()) + 1))


@pytest.mark.parametrize("number", sections())
def test_each_has_its_tests_and_they_exist(number: int) -> None:
    named = TEST.findall(sections()[number])
    assert named
    missing = [f"{path}::{name}" for path, name in named if not (ROOT / path).is_file() or name not in named_in(ROOT / path)]
    assert missing == []


def cited() -> set[tuple[str, int]]:
    """Where a number is cited, in code, tests and documents."""
    found = set()
    for place in PLACES:
        for path in (ROOT / place).rglob("*"):
            if path.suffix in KINDS and "node_modules" not in path.parts:
                for numbers in CITED.findall(path.read_text(errors="ignore")):
                    found |= {(str(path.relative_to(ROOT)), int(number)) for number in re.findall(r"\d+", numbers)}
    return found


def test_every_number_that_is_cited_exists() -> None:
    assert {where for where in cited() if where[1] not in sections()} == set()
    assert len(cited()) > 10


def test_the_table_is_that_of_the_engines() -> None:
    engines = (SQLiteEngine, PostgresEngine, RedisEngine, ClusterEngine)
    rows = {code_words(row[:1])[0]: [cell == "yes" for cell in row[1:]] for row in table(PAGE, "Where engines differ")}
    features = [name for name in Features.__struct_fields__ if name not in {"name", "max_batch"}]
    assert sorted(rows) == sorted(features)
    assert rows == {name: [getattr(engine.features, name) for engine in engines] for name in rows}


def test_the_bounds_are_those_of_the_code() -> None:
    page = text(PAGE)
    assert (
        f"at most {MOST_STEPS:,} steps of {MOST_STEP_BYTES // 1_000_000} MB in all, {MOST_SIGNALS:,} signals of {MOST_SIGNAL_BYTES // 1_000_000} MB in all"
        in page
    )
    assert f"{MOST_EDGES:,} edges in one submit and {MOST_HEADER_BYTES >> 10} KiB of headers" in page


def test_how_many_missed_times_are_made() -> None:
    most = signature(due).parameters["cap"].default
    assert f"`all` one for each of the newest {most} |" in text(ROOT / "docs" / "guides" / "schedules.md")
