"""Groups of commands that name the nearest match, and one that loads its commands late.

`taskmill --help` and a mistyped command must answer at once and on a machine where a driver is missing, so the top group knows its
commands as a table of texts and imports only the one that runs.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import click

from taskmill.errors import nearest

__all__ = ["LazyCommand", "LazyGroup", "NounGroup"]


class LazyCommand(NamedTuple):
    """Where a command lives, and its line in the list."""

    module: str
    attribute: str
    summary: str


class NounGroup(click.Group):
    """A group whose refusal of an unknown command says which one was meant: `@click.group(cls=NounGroup)`."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if not name.startswith("-") and not ctx.resilient_parsing and self.get_command(ctx, name) is None:
            ctx.fail(_unknown(ctx.command_path, name, self.list_commands(ctx)))
        return super().resolve_command(ctx, args)


class LazyGroup(NounGroup):
    """A group over a table of commands, each imported when it runs."""

    def __init__(self, name: str, table: Mapping[str, LazyCommand], summary: str) -> None:
        super().__init__(name=name, help=summary)
        self.table = table

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*self.table, *super().list_commands(ctx)})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = self.table.get(cmd_name)
        if entry is None:
            return super().get_command(ctx, cmd_name)
        command = getattr(importlib.import_module(entry.module), entry.attribute)
        assert isinstance(command, click.Command), f"{entry.module}.{entry.attribute} is not a command"
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(name, self.table[name].summary) for name in self.list_commands(ctx) if name in self.table]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def _unknown(path: str, name: str, known: Iterable[str]) -> str:
    names = list(known)
    near = nearest(name, names, 0.5)
    hint = f"did you mean {path} {near}?" if near else f"{path} --help lists them: {', '.join(names)}"
    return f"there is no command {name!r} ({hint})"
