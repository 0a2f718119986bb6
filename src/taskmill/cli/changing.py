"""Cancel, requeue, delete, purge: on the ids that are named or on everything that matches, after a question.

Nobody loses tasks by a slip: neither ids nor a filter is a refusal (`--all` says that everything is meant), and where nobody can be
asked, `--yes` must have been said. `--dry-run` counts and changes nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

import click

from taskmill.cli.filters import WORDS, is_everything
from taskmill.cli.output import note, print_json, progress
from taskmill.cli.store import Place, run
from taskmill.engine import Filter, Target
from taskmill.operations import Operations, Tally
from taskmill.requests import which_of

__all__ = ["Change", "agreed", "change", "chosen", "many"]

Act = Callable[[Operations, bool, Callable[[int], None] | None], Awaitable[Tally]]

_WHY = {
    "not_found": "not known to this store",
    "expired": "already removed",
    "terminal": "already ended",
    "not_terminal": "not ended yet: cancel first",
    "unique_held": "kept from it by another live task with the same unique key",
    "undelivered": "still owed to a subscriber: try again when it was delivered",
    "stale_version": "changed meanwhile: look again",
}


class Change(NamedTuple):
    """What a command does to tasks, in words and in fact."""

    verb: str
    past: str
    act: Act


def chosen(ids: Sequence[str], which: Filter, everything: bool) -> list[Target] | Filter:
    """The tasks that are meant; refused unless exactly one of ids, filter and --all says which."""
    narrow = not is_everything(which)
    if everything and narrow:
        raise click.UsageError("--all and a filter are both given (keep one)")
    if not (ids or narrow or everything):
        raise click.UsageError("nothing says which tasks (give ids or a filter such as --type or --queue; --all means every one)")
    # Whether it is confirmed, `agreed` asks when it is known how many match.
    wanted = which_of(ids or None, which if narrow or everything else None, confirm=True, dry_run=False, words=WORDS)
    return wanted if isinstance(wanted, Filter) else [Target(id) for id in wanted]


def change(where: Place, what: Change, wanted: Sequence[Target] | Filter, *, yes: bool, dry_run: bool, as_json: bool) -> int:
    """Count, ask, act, tell; 1 when something was refused or the answer was no."""
    named = 0 if isinstance(wanted, Filter) else len(wanted)

    async def count(operations: Operations) -> int:
        if isinstance(wanted, Filter):
            await operations.check_names(wanted)
        return (await what.act(operations, True, None)).matched

    matched = run(where, count)
    if dry_run:
        return _tell_dry(what, matched, named, as_json=as_json)
    # Where nothing fits there is nothing to ask; tasks that were named still get the reason why not.
    if matched and not agreed(yes, f"{what.verb} {many(matched)}?"):
        return 1
    with progress(f"{what.past} tasks", matched) as told:
        tally = run(where, lambda operations: what.act(operations, False, told)) if matched or named else Tally()
    return _tell(what, tally, as_json=as_json)


def agreed(yes: bool, question: str) -> bool:
    """Whether to go on: said beforehand, or asked now; refused where nobody is there to be asked."""
    if yes:
        return True
    if sys.stdin is None or not sys.stdin.isatty():
        raise click.UsageError(f"{question} Nobody can be asked here (add --yes to do it, --dry-run to see what it would do)")
    if click.confirm(question[0].upper() + question[1:], err=True):
        return True
    note("nothing was changed")
    return False


def many(tasks: int) -> str:
    return "1 task" if tasks == 1 else f"{tasks:,} tasks"


def _tell_dry(what: Change, matched: int, named: int, *, as_json: bool) -> int:
    if as_json:
        print_json({"matched": matched, "dry_run": True})
    else:
        click.echo(f"{many(matched)} would be {what.past}")
        if matched < named:
            note(f"{named - matched} of the {many(named)} named cannot be {what.past}")
    return 1 if matched < named else 0


def _tell(what: Change, tally: Tally, *, as_json: bool) -> int:
    if as_json:
        print_json({"matched": tally.matched, "done": tally.done, "requested": tally.requested, "refused": dict(tally.refused), "dry_run": False})
        return 1 if tally.refused else 0
    told = f", {many(tally.requested)} told to stop (running now)" if tally.requested else ""
    click.echo(f"{many(tally.done)} {what.past}{told}")
    for code, number in tally.refused.items():
        note(f"{many(number)} {_WHY.get(code, code)}")
    return 1 if tally.refused else 0
