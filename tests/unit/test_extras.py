"""pyproject.toml: every extra brings something that the program imports."""

from __future__ import annotations

import ast
import re
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXTRAS: dict[str, list[str]] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
LOADED_BY_OTHERS = {"hiredis"}
"""redis-py imports its parser by itself."""


def imported() -> set[str]:
    """The top of every name that a module of the program imports."""
    found: set[str] = set()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {each.name for each in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                found.add(node.module)
    return {name.partition(".")[0] for name in found}


@pytest.mark.parametrize("extra", EXTRAS)
def test_what_an_extra_brings_is_imported(extra: str) -> None:
    tops, providers = imported(), packages_distributions()
    for requirement in EXTRAS[extra]:
        distribution = re.split(r"[<>=!\[ ]", requirement)[0]
        modules = {module for module, names in providers.items() if distribution in {name.replace("_", "-").lower() for name in names}}
        assert distribution in LOADED_BY_OTHERS or modules & tops, requirement
