"""What a schema must hold, read from the text of the migrations, and what it holds, read from the catalog: `verify` compares the two.

Names of tables, columns, indexes, sequences and views, and the text of functions: PostgreSQL keeps that as it was written. Types, defaults and conditions
it writes anew in its own way, so they are not compared.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from taskmill.engines.postgres.connection import Connection

__all__ = ["differences", "made", "present"]

Objects = dict[str, str]
"""`table task`, `column task.id`, `function crash`, …: the text of a function, nothing for the others."""

_PIECES = re.compile(r"--[^\n]*|/\*.*?\*/|'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|(?P<tag>\$\w*\$).*?(?P=tag)|.", re.DOTALL)
_NAME = r'(?:(?:"[^"]+"|\w+)\.)?(?:"([^"]+)"|(\w+))'
_CREATE = re.compile(
    rf"CREATE (?:OR REPLACE )?(?:UNIQUE |UNLOGGED )?(TABLE|INDEX|SEQUENCE|VIEW|FUNCTION|PROCEDURE) (?:CONCURRENTLY )?(?:IF NOT EXISTS )?{_NAME}(.*)",
    re.IGNORECASE | re.DOTALL,
)
_DROP = re.compile(r"DROP (TABLE|INDEX|SEQUENCE|VIEW|FUNCTION|PROCEDURE) (?:CONCURRENTLY )?(?:IF EXISTS )?([^(]+)", re.IGNORECASE)
_ALTER = re.compile(rf"ALTER TABLE (?:IF EXISTS )?(?:ONLY )?{_NAME} (.*)", re.IGNORECASE | re.DOTALL)
_COLUMN = re.compile(rf"(ADD|DROP) (?:COLUMN )?(?:IF (?:NOT )?EXISTS )?{_NAME}", re.IGNORECASE)
_BODY = re.compile(r"\bAS (\$\w*\$)(.*?)\1", re.IGNORECASE | re.DOTALL)
_TEXT = re.compile(r"'(?:[^']|'')*'")
"""Emptied before commas and brackets are counted."""

_NO_COLUMN = {"primary", "unique", "check", "constraint", "exclude", "foreign", "like"}

CATALOG = """
SELECT CASE c.relkind WHEN 'S' THEN 'sequence' WHEN 'v' THEN 'view' WHEN 'i' THEN 'index' WHEN 'I' THEN 'index' ELSE 'table' END || ' ' || c.relname, ''
FROM pg_class c WHERE c.relnamespace = $1::text::regnamespace AND c.relkind IN ('r', 'p', 'S', 'v', 'i', 'I')
  AND NOT EXISTS (SELECT FROM pg_index i WHERE i.indexrelid = c.oid AND NOT i.indisvalid)
UNION ALL
SELECT 'column ' || c.relname || '.' || a.attname, ''
FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
WHERE c.relnamespace = $1::text::regnamespace AND c.relkind IN ('r', 'p') AND a.attnum > 0 AND NOT a.attisdropped
UNION ALL
SELECT CASE prokind WHEN 'p' THEN 'procedure ' ELSE 'function ' END || proname, coalesce(prosrc, '')
FROM pg_proc WHERE pronamespace = $1::text::regnamespace
"""


def made(texts: Iterable[str]) -> Objects:
    """What is there when these have been applied, one after the other."""
    found: Objects = {}
    for text in texts:
        for statement in _statements(text):
            _apply(statement, found)
    return found


async def present(connection: Connection, schema: str) -> dict[str, set[str]]:
    """What is there; functions of one name have several texts. An index that was left half-built is not."""
    found: dict[str, set[str]] = {}
    for name, text in await connection.fetch(CATALOG, f'"{schema}"'):
        found.setdefault(name, set()).add(text)
    return found


def differences(wanted: Objects, here: dict[str, set[str]]) -> list[str]:
    """What is wrong, in words; a table that is missing speaks for its columns."""
    lost = {name for name in wanted if name not in here}
    tables = {name.removeprefix("table ") for name in lost if name.startswith("table ")}
    shown = [name for name in wanted if name in lost and not (name.startswith("column ") and name.removeprefix("column ").partition(".")[0] in tables)]
    changed = [name for name, text in wanted.items() if name not in lost and text and text not in here[name]]
    return [f"{name} is missing" for name in shown] + [f"{name} differs from what this program makes" for name in changed]


def _statements(text: str) -> Iterator[str]:
    """Statements without comments, on one line but for what stands in quotes."""
    pieces: list[str] = []
    for found in _PIECES.finditer(text):
        piece = found[0]
        if piece == ";":
            yield "".join(pieces).strip()
            pieces = []
        elif piece.startswith(("--", "/*")) or piece.isspace():
            if pieces and pieces[-1] != " ":
                pieces.append(" ")
        else:
            pieces.append(piece)


def _apply(statement: str, found: Objects) -> None:
    if created := _CREATE.match(statement):
        _create(created[1].lower(), _named(created[2], created[3]), created[4], found)
    elif dropped := _DROP.match(statement):
        for name in re.findall(rf"{_NAME}(?=\s*(?:,|$|CASCADE|RESTRICT))", dropped[2].strip(), re.IGNORECASE):
            _drop(dropped[1].lower(), _named(*name), found)
    elif altered := _ALTER.match(statement):
        table = _named(altered[1], altered[2])
        for part in _parts(_TEXT.sub("''", altered[3])):
            column = _COLUMN.match(part)
            if column is None or _named(column[2], column[3]) in _NO_COLUMN:
                continue
            name = f"column {table}.{_named(column[2], column[3])}"
            if column[1].upper() == "ADD":
                found[name] = ""
            else:
                found.pop(name, None)


def _create(kind: str, name: str, rest: str, found: Objects) -> None:
    body = _BODY.search(rest) if kind in ("function", "procedure") else None
    found[f"{kind} {name}"] = body[2] if body else ""
    if kind == "table" and rest.lstrip().startswith("("):
        for part in _parts(_inside(_TEXT.sub("''", rest))):
            column = re.match(_NAME, part)
            if column is not None and _named(column[1], column[2]) not in _NO_COLUMN:
                found[f"column {name}.{_named(column[1], column[2])}"] = ""


def _drop(kind: str, name: str, found: Objects) -> None:
    found.pop(f"{kind} {name}", None)
    if kind == "table":
        for column in [one for one in found if one.startswith(f"column {name}.")]:
            del found[column]


def _named(quoted: str | None, plain: str | None) -> str:
    return quoted or (plain or "").lower()


def _inside(rest: str) -> str:
    """What stands in the first brackets."""
    depth, start = 0, rest.index("(")
    for at in range(start, len(rest)):
        depth += {"(": 1, ")": -1}.get(rest[at], 0)
        if depth == 0:
            return rest[start + 1 : at]
    return rest[start + 1 :]


def _parts(text: str) -> Iterator[str]:
    """What commas part, but for those in brackets."""
    depth, start = 0, 0
    for at, sign in enumerate(text):
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(sign, 0)
        if sign == "," and depth == 0:
            yield text[start:at].strip()
            start = at + 1
    yield text[start:].strip()
