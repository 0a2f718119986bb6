"""The page of errors and the server: every code that a request can be answered with is in the table, under its status, with what to do; and no other is."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from taskmill import errors
from taskmill.errors import TaskmillError
from taskmill.server import conditions
from taskmill.server.problem import status_of
from tests.docs.test_docs import GUIDES, code_words, table

SOURCE = Path(errors.__file__).parent
SERVER = sorted({*(SOURCE / "server").glob("*.py"), *(SOURCE / "server" / "rest").glob("*.py")})
BELOW = [SOURCE / f"{name}.py" for name in ("codec", "task", "clock", "options", "requests", "retry", "schedule", "cron")] + sorted(
    (SOURCE / "operations").glob("*.py")
)
NOT_ANSWERS = {"no_keys", "supervisor_silent", "invalid_certificate", "unreadable_file", "unknown_option"}
"""Told to whoever starts a server, or writes Python."""
EVENTS = {"hub.py", "live.py", "wanted.py"}
"""docs/api/events.md has theirs."""
MADE = {
    "batch_empty": 422,
    "terminal": 409, "not_terminal": 409, "unique_held": 409, "edges_falling": 409, "undelivered": 409, "conflict": 409, "not_found": 404, "expired": 410,
    "rate_limited": 429, "unauthenticated": 401, "forbidden": 403, "invalid_input": 422, "stale_lease": 409, "stale_version": 409, "precondition_failed": 412,
    "unknown_edge": 422, "unknown_worker": 404, "unknown_queue": 404, "unknown_schedule": 404,
    "store_unavailable": 503, "store_busy": 503, "store_full": 503, "answer_lost": 503, "durability_unconfirmed": 503, "archive_unavailable": 503,
}  # fmt: skip
"""Codes that are written in no single place: of exceptions by themselves, and of what a store refuses."""


def classes() -> dict[str, type[TaskmillError]]:
    return {name: kind for module in (errors, conditions) for name, kind in vars(module).items() if isinstance(kind, type) and issubclass(kind, TaskmillError)}


def raised(path: Path) -> Iterator[tuple[str, int]]:
    """The codes that a file names where it makes an error, with their statuses."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            continue
        given = [argument.value if isinstance(argument, ast.Constant) else None for argument in node.args]
        named = next((word.value.value for word in node.keywords if word.arg == "code" and isinstance(word.value, ast.Constant)), None)
        if node.func.id == "Refused" and len(given) > 1 and isinstance(given[0], int):
            yield str(given[1]), given[0]
        elif node.func.id in {"_refuse", "_Refused"} and path.name == "codec.py" and isinstance(given[0], str):
            yield given[0], status_of(errors.InvalidPayload("", code=given[0]))
        elif isinstance(named, str) and node.func.id in classes():
            yield named, status_of(classes()[node.func.id]("", code=named))


def known() -> dict[str, set[int]]:
    found: dict[str, set[int]] = {code: {status} for code, status in MADE.items()}
    for code in ("unknown_type", "unknown_limit"):  # in a path, and in a task
        found[code] = {404, 422}
    for path in [*SERVER, *BELOW]:
        if path.name not in EVENTS:
            for code, status in raised(path):
                found.setdefault(code, set()).add(status)
    return {code: statuses for code, statuses in found.items() if code not in NOT_ANSWERS}


def described() -> dict[str, set[int]]:
    found: dict[str, set[int]] = {}
    for status, codes, remedy in table(GUIDES / "errors.md", "Over HTTP"):
        assert remedy.strip(), codes
        for code in code_words([codes]):
            found.setdefault(code, set()).add(int(re.sub(r"\D", "", status)))
    return found


def test_every_code_is_in_the_page_with_its_status_and_its_remedy() -> None:
    assert described() == known()
