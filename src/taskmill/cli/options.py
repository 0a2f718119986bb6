"""What several commands take: the store, `--json`, `--yes` and `--dry-run`, and words chosen from a list.

Nothing heavy is imported here: `taskmill version` comes by.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from taskmill.errors import nearest

__all__ = ["OneOf", "as_json", "confirmed", "did_you_mean", "example", "url"]

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

url = click.option("--url", metavar="URL", help="The store, for example sqlite:///taskmill.db.  [default: TASKMILL_URL, then url in taskmill.toml]")
as_json = click.option("--json", "as_json", is_flag=True, help="JSON instead of text: one object on each line.")

_yes = click.option("--yes", "-y", is_flag=True, help="Do it without asking.")
_dry_run = click.option("--dry-run", is_flag=True, help="Say what would be done; change nothing.")


def confirmed(function: Decorated) -> Decorated:
    """For a command that takes something away: it asks first, unless told not to."""
    return _yes(_dry_run(function))


def example(*lines: str) -> Callable[[click.Command], click.Command]:
    """Lines under the help, as they are."""

    def add(command: click.Command) -> click.Command:
        command.epilog = "\b\nExample:\n" + "\n".join(f"  {line}" for line in lines)
        return command

    return add


def did_you_mean(word: str, known: Sequence[str]) -> str:
    """`did you mean mail?`, or nothing when nothing is near."""
    near = nearest(word, known)
    return f"did you mean {near}?" if near else ""


class OneOf(click.Choice[str]):
    """A word of a short list; the refusal names the nearest."""

    def __init__(self, *words: str) -> None:
        super().__init__([str(word) for word in words])

    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:
        listed = ", ".join(self.choices)
        return f"{str(value)[:80]!r} is not one of {listed} ({did_you_mean(str(value), self.choices) or 'as they are written here'})"
