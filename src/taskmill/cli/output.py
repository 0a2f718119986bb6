"""What commands show: tables on a terminal, lines elsewhere, JSON where it was asked for.

A task's texts come from anybody. Before they reach a terminal, everything that could draw on it is written as an escape, and rich gets
them as plain text, never as markup. `rich` is imported when something is drawn.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from taskmill.clock import DAY, HOUR, MILLISECOND, MINUTE, SECOND, rfc3339

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["age", "clean", "drawn", "note", "on_terminal", "print_fields", "print_json", "print_table", "progress", "when"]

Row = Sequence[object]

_STYLES = {
    "completed": "green",
    "dead": "red",
    "error": "red",
    "lost": "red",
    "cancelled": "magenta",
    "running": "cyan",
    "retrying": "yellow",
    "warning": "yellow",
    "paused": "yellow",
    "scheduled": "blue",
    "waiting": "blue",
}
_GIVES_WAY = ("note", "error", "info", "value", "origin", "types", "limits", "cron", "type", "queue", "queues")
_LEFT_OUT = ("created", "joined", "attempts", "timezone", "last fired", "note", "info", "oldest", "queue", "workers")
_LEAST = 8
_UNSEEN = re.compile(r"[\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")


# Values


def clean(value: object) -> str:
    """One line that draws nothing: control characters and those that turn or hide text are written out."""
    text = "" if value is None else str(value)
    return text if text.isprintable() else "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)


def when(micros: int | None) -> str:
    """An instant to the second, for people; JSON has all of it."""
    return "" if micros is None else rfc3339(micros // SECOND * SECOND)


def age(micros: int | None) -> str:
    """A duration as one reads it at a glance: two units, not six."""
    if micros is None:
        return ""
    if micros < SECOND:
        return f"{micros // MILLISECOND}ms"
    for unit, size, small, part in (("d", DAY, "h", HOUR), ("h", HOUR, "m", MINUTE), ("m", MINUTE, "s", SECOND)):
        if micros >= size:
            rest = micros % size // part
            return f"{micros // size}{unit}{rest}{small}" if rest else f"{micros // size}{unit}"
    return f"{micros // SECOND}s"


# Where it goes


def on_terminal() -> bool:
    return sys.stdout is not None and sys.stdout.isatty()


def note(text: str) -> None:
    """Something to know that is not what was asked for."""
    click.echo(f"taskmill: {clean(text)}", err=True)


def print_json(data: Mapping[str, object]) -> None:
    """One object on one line; what a terminal would obey is escaped, as JSON may."""
    text = json.dumps(data, ensure_ascii=(getattr(sys.stdout, "encoding", None) or "utf-8").lower() not in {"utf-8", "utf8"})
    click.echo(_UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text))


def print_table(columns: Sequence[str], rows: Iterable[Row], *, heading: bool = False) -> None:
    """A table on a terminal; elsewhere lines of fields with a tab between them, each as soon as it is there. `heading`: the names of the columns
    above them, for a table whose figures mean nothing without."""
    if on_terminal():
        _print_drawn(drawn(columns, rows))
        return
    if heading:
        click.echo("\t".join(columns))
    for row in rows:
        click.echo("\t".join(map(clean, row)))


def print_fields(fields: Iterable[tuple[str, object]]) -> None:
    """One thing, a line for each of its fields; several lines of text stand below their name."""
    shown = [(name, value) for name, value in fields if value is not None and value != ""]
    width = max((len(name) for name, _ in shown), default=0) + 1
    for name, value in shown:
        lines = str(value).splitlines()
        if len(lines) == 1:
            click.echo(f"{name + ':':<{width}} {clean(value)}")
        else:
            click.echo("\n".join([f"{name}:", *(f"  {clean(line)}" for line in lines)]))


def drawn(columns: Sequence[str], rows: Iterable[Row], title: str | None = None) -> RenderableType:
    """The table as rich draws it, without columns in which nothing stands. An id is never shortened: it is there to be copied."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    texts = [[clean(value) for value in row] for row in rows]
    filled = [place for place in range(len(columns)) if not texts or any(row[place] for row in texts)]
    lengths = {columns[place]: max(len(columns[place]), *(Text(row[place]).cell_len for row in texts), 0) for place in filled}
    widths = _narrowed(lengths, Console().width)
    shown = [place for place in filled if columns[place] in widths]
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, title=title, title_justify="left", header_style="bold underline")
    for column, width in widths.items():
        table.add_column(Text(column), no_wrap=True, overflow="ellipsis", width=width)
    for row in texts:
        table.add_row(*(Text(row[place], style=_STYLES.get(row[place], "")) for place in shown))
    return table


def _narrowed(widths: Mapping[str, int], room: int) -> dict[str, int]:
    """Widths that fit: prose gives way first, then whole columns that other commands show too; what is copied stays."""
    left = dict(widths)
    found = _squeezed(left, room)
    for column in _LEFT_OUT:
        if _over(found, room) <= 0:
            break
        left.pop(column, None)
        found = _squeezed(left, room)
    return found


def _squeezed(widths: Mapping[str, int], room: int) -> dict[str, int]:
    found = dict(widths)
    for column in _GIVES_WAY:
        if column in found:
            found[column] = max(min(found[column], _LEAST), found[column] - max(_over(found, room), 0))
    return found


def _over(widths: Mapping[str, int], room: int) -> int:
    return sum(widths.values()) + 2 * (len(widths) - 1) - room


def _print_drawn(what: RenderableType) -> None:
    from rich.console import Console

    Console(highlight=False).print(what)


@contextmanager
def progress(title: str, total: int | None) -> Iterator[Callable[[int], None] | None]:
    """A bar on stderr for long work, told how many are done so far; none where nobody looks."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    parts = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*parts, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=total)
        yield lambda done: bar.update(task, completed=done)
