"""Named queries in .sql files: `-- name: oldest` above a statement makes it `queries.oldest`; and the numbered migrations.

The schema's name is a setting, so the files say `{schema}` where SQL takes a name (it is quoted there) and `{schema_name}` inside a text.
"""

from __future__ import annotations

import hashlib
import re
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Literal

from msgspec import Struct

from taskmill.engines.postgres.target import quoted

__all__ = ["MIGRATIONS", "Migration", "Phase", "Queries", "filled", "load", "migrations"]

_NAME = re.compile(r"^-- name: (\w+)\s*$", re.MULTILINE)
_PHASE = re.compile(r"-- phase: (\w+)\s*$", re.MULTILINE)
_EARLIER = re.compile(r"^-- earlier: ([0-9a-f]{64})$", re.MULTILINE)
_FILE = re.compile(r"(\d{4})_(\w+)\.sql", re.ASCII)

FOLDER: Traversable = files(__package__)
MIGRATIONS: Traversable = FOLDER / "migrations"

Phase = Literal["expand", "contract"]


class Queries:
    """The statements of one file, by name."""

    def __init__(self, statements: dict[str, str]) -> None:
        self.__dict__.update(statements)

    def __getattr__(self, name: str) -> str:
        raise AttributeError(f"no query is named {name!r}")


class Migration(Struct, frozen=True):
    """One step of the schema. `expand` leaves the program before this one able to work, `contract` takes away what only that one needed."""

    number: int
    name: str
    phase: Phase
    statements: str
    checksum: str
    """Of the file, so it is the same in every schema."""
    earlier: frozenset[str] = frozenset()
    """Of the same file before it was mended for those who could not apply it: `-- earlier: …` in it."""

    @property
    def title(self) -> str:
        return f"{self.number:04d} {self.name}"


def filled(text: str, schema: str) -> str:
    """The text with the schema's name where it belongs; other braces are left alone."""
    return text.replace("{schema}", quoted(schema)).replace("{schema_name}", schema)


def load(file: str, schema: str, folder: Traversable = FOLDER) -> Queries:
    text = filled((folder / file).read_text(encoding="utf-8"), schema)
    parts = _NAME.split(text)[1:]
    return Queries({name: statement.strip().rstrip(";") for name, statement in zip(parts[::2], parts[1::2], strict=True)})


def migrations(schema: str, folder: Traversable = MIGRATIONS) -> list[Migration]:
    """Every migration, in order."""
    return sorted((_read(file, schema) for file in folder.iterdir() if file.name.endswith(".sql")), key=lambda migration: migration.number)


def _read(file: Traversable, schema: str) -> Migration:
    found = _FILE.fullmatch(file.name)
    assert found is not None, f"{file.name} is not named NNNN_name.sql"
    text = file.read_text(encoding="utf-8")
    written = _PHASE.match(text)
    phase: Phase = "contract" if written and written[1] == "contract" else "expand"
    assert written is None or written[1] == phase, f"{file.name} has a phase that is neither expand nor contract"
    earlier = frozenset(_EARLIER.findall(text))
    return Migration(int(found[1]), found[2], phase, filled(text, schema), hashlib.sha256(text.encode()).hexdigest(), earlier)
