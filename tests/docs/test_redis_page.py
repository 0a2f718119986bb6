"""The page of the Redis engine is held to the code: every key, script, option, finding and code, and no other."""

from __future__ import annotations

import re

import msgspec
import pytest

from taskmill import config
from taskmill.clock import format_duration
from taskmill.engine import Durability
from taskmill.engines.redis import claim, listing, nodes, placement, scripts, store, submit, target
from taskmill.engines.redis.records import Header
from taskmill.engines.settings import QueueSettings, check_item
from taskmill.errors import InvalidInput
from tests.docs.test_docs import ROOT, code_words, section, table, text

PAGE = ROOT / "docs" / "engines" / "redis.md"
ENGINE = ROOT / "src" / "taskmill" / "engines" / "redis"
IN_LUA = re.compile(r"P \.\. '([a-z_A-Z]+:?)")
IN_PYTHON = re.compile(r"\.key\(f?\"([a-z_]+:?)")


# Keys


def built() -> set[str]:
    found = {name for file in (ENGINE / "lua").glob("*.lua") for name in IN_LUA.findall(text(file))}
    return found | {name for file in ENGINE.glob("*.py") for name in IN_PYTHON.findall(text(file))}


def told() -> set[str]:
    return {re.sub(r"<.*", "", name) for row in table(PAGE, "Keys") for name in code_words(row[:1])}


def test_every_key_is_told() -> None:
    assert built() - told() == set()


def test_every_key_that_is_told_is_built() -> None:
    assert told() - built() == set()


# Scripts


def test_every_script_is_told_once() -> None:
    assert sorted(word for row in table(PAGE, "The scripts") for word in code_words(row[:1])) == sorted(scripts.USES)


def test_every_file_that_scripts_share_is_told_once() -> None:
    shared = [word for row in table(PAGE, "What scripts share") for word in code_words(row[:1])]
    assert sorted(shared) == sorted({*scripts.STEP, *(part for parts in scripts.USES.values() for part in parts)})
    assert {*shared, *scripts.USES} == {file.stem for file in (ENGINE / "lua").glob("*.lua")}


# URLs


def test_the_urls_of_the_page_are_understood() -> None:
    marked = re.findall(r"^```(\w*)\n(.*?)^```$", text(PAGE).partition("\n## ")[0], re.MULTILINE | re.DOTALL)
    [shown] = [block for language, block in marked if not language]
    found = [target.parse(line.split()[0]) for line in shown.splitlines()]
    assert [(len(one.hosts), one.tls, one.prefix, one.sentinel, one.cluster, one.durability.value, one.archive is not None) for one in found] == [
        (1, False, "tm", None, False, "local", False),
        (1, True, "shop", None, False, "local", False),
        (3, False, "tm", "main", False, "local", False),
        (3, False, "tm", None, True, "local", False),
        (1, False, "tm", None, False, "replicated", False),
        (1, False, "tm", None, False, "local", True),
    ]


def test_every_option_of_a_url_is_described_with_its_default() -> None:
    lines = [line.split("|")[1:-1] for line in text(PAGE).partition("\n## ")[0].splitlines() if line.startswith("| `")]
    described = {name: code_words([default]) for names, default, _ in lines for name in code_words([names])}
    assert described.keys() == {*config._OWN_PARAMETERS["redis"], *config._SHARED_PARAMETERS["redis"]}
    plain = target.parse("redis://")
    defaults = {"prefix": plain.prefix, "cluster": "false", "durability": str(plain.durability), "busy_timeout": format_duration(plain.busy_timeout)}
    assert {name: values[0] for name, values in described.items() if values} == defaults
    assert plain.cluster is False


# Promises


def test_every_promise_is_judged() -> None:
    numbers = [row[0] for row in table(PAGE, "What is promised") if row[0].isdecimal()]
    assert numbers == [str(number) for number in range(1, 14)]


def test_every_durability_is_in_the_table() -> None:
    assert re.findall(r"^\| `durability=(\w+)`", section(PAGE, "Durability"), re.MULTILINE) == [level.value for level in Durability]


def test_every_finding_of_check_is_explained() -> None:
    source = text(ENGINE / "check.py") + text(ENGINE.parent / "archive" / "engine.py")
    found = re.findall(r'Finding\((?:"\w+"(?: if .*? else "\w+")?|level), "(\w+)"', source)
    explained = [word for row in table(PAGE, "Durability") if len(row) == 3 and re.match("info|warning|error", row[1]) for word in code_words(row[:1])]
    assert sorted(explained) == sorted(set(found))
    assert len(found) == source.count("Finding(")


ABOUT_WHAT_WAS_ASKED = {
    *("cycle", "invalid_cursor", "out_of_range", "stale_lease", "terminal", "unknown_edge", "unknown_limit", "unknown_worker", "no_transactions"),
}


def test_every_code_of_the_engine_is_listed() -> None:
    source = "".join(text(file) for file in ENGINE.glob("*.py"))
    raised = set(re.findall(r'code="(\w+)"', source)) | set(re.findall(r'_refuse\("(\w+)"', source))
    listed = {word for row in table(PAGE, "Where it ends") for word in code_words(row[:1])}
    assert raised - ABOUT_WHAT_WAS_ASKED <= listed
    everything = "".join(text(file) for file in (ROOT / "src").rglob("*.py"))
    assert [word for word in listed if f'"{word}"' not in everything] == []


# Numbers

NUMBERS = {
    "What is promised": [f"at most {listing.LOOKED_AT:,} for a page"],
    "Durability": [f"It lasts {store.CONFIRMED // 1_000} s at most"],
    "How it works": [
        f"at most {submit.PIECE} tasks a call",
        f"({len(Header.__struct_fields__)} fields",
        f"up to {claim.MOST_HELD:,} of them",
        f"up to {nodes.POOL} to each server",
    ],
    "Cluster": [f"There are {target.SHARDS:,} shards", f"every {round(store.MOVING * 1_000)} ms"],
}


@pytest.mark.parametrize("title", NUMBERS)
def test_numbers_in_the_page_are_the_code_s_own(title: str) -> None:
    assert [number for number in NUMBERS[title] if number not in " ".join(section(PAGE, title).split())] == []


def test_the_most_partitions_are_those_of_the_page() -> None:
    found = re.search(r"spread over several shards, up to (\d+)", text(PAGE))
    assert found is not None
    most = int(found[1])
    check_item("queue", "clicks", msgspec.json.encode(QueueSettings(partitions=most)))
    with pytest.raises(InvalidInput):
        check_item("queue", "clicks", msgspec.json.encode(QueueSettings(partitions=most + 1)))


def test_an_id_says_its_shard_as_the_page_says() -> None:
    for shard in (0, 7, target.SHARDS - 1):
        made = placement.id_in((shard,))
        assert (made[14], placement.shard_said(made)) == ("8", shard)


# Architecture


def test_every_file_of_the_engine_is_described() -> None:
    described = {word for row in table(ROOT / "docs" / "ARCHITECTURE.md", "The Redis engine, file by file") for word in code_words(row[:1])}
    assert {word for word in described if not word.startswith("lua/")} == {file.stem for file in ENGINE.glob("*.py") if file.stem != "__init__"}
    assert {word.removeprefix("lua/") for word in described if word.startswith("lua/")} <= {file.stem for file in (ENGINE / "lua").glob("*.lua")}
