"""Writes into the documents what the code says: the statements in docs/engines/sqlite.md and the table of verbs in docs/ARCHITECTURE.md.

`python tools/write_docs.py` after a change of either; a test compares, so a document that lags behind is found.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from taskmill.engine import Engine

ROOT = Path(__file__).resolve().parent.parent
STATEMENTS = ROOT / "src" / "taskmill" / "engines" / "sqlite"
BLOCK = re.compile(r"^```sql\n-- (\w+)\.sql: (\w+)\n.*?^```$", re.MULTILINE | re.DOTALL)
TABLE = re.compile(r"(?<=^\| verb \| guarantee \|\n\|---\|---\|\n)(?:^\|.*\n)*", re.MULTILINE)


def statement(file: str, name: str) -> str:
    """A named statement as its file has it."""
    text = (STATEMENTS / f"{file}.sql").read_text(encoding="utf-8")
    found = re.search(rf"^-- name: {name}\s*\n(.*?)(?=^-- name: |\Z)", text, re.MULTILINE | re.DOTALL)
    if found is None:
        raise LookupError(f"{file}.sql has no statement {name}")
    return found[1].strip()


def with_statements(text: str) -> str:
    return BLOCK.sub(lambda block: f"```sql\n-- {block[1]}.sql: {block[2]}\n{statement(block[1], block[2])}\n```", text)


def with_verbs(text: str) -> str:
    verbs = [(name, inspect.getdoc(verb)) for name, verb in vars(Engine).items() if inspect.isfunction(verb) and not name.startswith("_")]
    return TABLE.sub(lambda _: "".join(f"| `{name}` | {guarantee} |\n" for name, guarantee in verbs), text)


WRITERS = {"docs/engines/sqlite.md": with_statements, "docs/ARCHITECTURE.md": with_verbs}


def main() -> None:
    for name, write in WRITERS.items():
        page = ROOT / name
        page.write_text(write(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
