"""The page of the Redis engine names every key that a script or the program builds, and no other."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
ENGINE = ROOT / "src" / "taskmill" / "engines" / "redis"
IN_LUA = re.compile(r"P \.\. '([a-z_A-Z]+:?)")
IN_PYTHON = re.compile(r"\.key\(f?\"([a-z_]+:?)")


def built() -> set[str]:
    found = {name for file in (ENGINE / "lua").glob("*.lua") for name in IN_LUA.findall(file.read_text(encoding="utf-8"))}
    return found | {name for file in ENGINE.glob("*.py") for name in IN_PYTHON.findall(file.read_text(encoding="utf-8"))}


def told() -> set[str]:
    page = (ROOT / "docs" / "engines" / "redis.md").read_text(encoding="utf-8")
    cells = [line.split("|")[1] for line in page.partition("## Keys")[2].splitlines() if line.startswith("| `")]
    names = [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]
    return {re.sub(r"<.*", "", name) for name in names}


def test_every_key_is_told() -> None:
    assert built() - told() == set()


def test_every_key_that_is_told_is_built() -> None:
    assert told() - built() == set()
