"""The guide to workers in other languages names the checks, rules, types and variables of the kit as they are."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping

from taskmill.testing.workers import CHECKS, RULES, TYPES, stage
from tests.docs.test_docs import ROOT, code_words, table

PAGE = ROOT / "docs" / "guides" / "other-languages.md"


def says(functions: Mapping[str, Callable[..., object]]) -> list[list[str]]:
    return [[f"`{name}`", " ".join((function.__doc__ or "").split())] for name, function in functions.items()]


def test_the_tables_of_the_kit() -> None:
    rows = table(PAGE, "The kit")
    names = [code_words([row[0]])[0] for row in rows]
    variables = re.findall(r'"(TASKMILL_[A-Z_]+)":', inspect.getsource(stage))
    assert names[: len(variables)] == variables
    rest = rows[len(variables) :]
    assert [code_words([row[0]])[0] for row in rest[: len(TYPES)]] == list(TYPES)
    assert rest[len(TYPES) :] == [*says(CHECKS), *says(RULES)]
