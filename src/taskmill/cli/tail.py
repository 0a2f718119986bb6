"""`taskmill task tail`: events as they come, those of the tasks that are wanted."""

from __future__ import annotations

from typing import NamedTuple

import click

from taskmill.cli.output import clean, note, on_terminal, print_json
from taskmill.clock import rfc3339
from taskmill.engine import Filter, Stream
from taskmill.errors import Expired, NotFound
from taskmill.events import ENDED, Event, Kind
from taskmill.operations import Operations
from taskmill.task import TERMINAL
from taskmill.views import event_data

__all__ = ["Wanted", "follow"]

_REMEMBERED = 10_000
_COLOURS = {Kind.COMPLETED: "green", Kind.DEAD: "red", Kind.FAILED: "red", Kind.RETRYING: "yellow", Kind.STARTED: "cyan", Kind.RESYNC: "yellow"}


class Wanted(NamedTuple):
    """Whose events are shown; nothing named: everybody's."""

    ids: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()


async def follow(operations: Operations, events: Stream[Event], wanted: Wanted, *, as_json: bool) -> None:
    """Show events until Ctrl-C, or until all tasks named by id have ended. The stream is open already, so nothing falls between."""
    open_ids = {id for id in wanted.ids if not await _has_ended(operations, id)}
    if wanted.ids and not open_ids:
        note("all of these tasks have ended")
        return
    await _hint(operations, wanted)
    note("following; Ctrl-C ends it")
    known: dict[str, tuple[object, object]] = {}
    async for event in events:
        if event.kind is Kind.RESYNC or await _is_wanted(operations, event, wanted, known):
            _show(event, as_json=as_json)
        if event.kind is Kind.RESYNC and wanted.ids:
            open_ids = {id for id in open_ids if not await _has_ended(operations, id)}
        if event.kind in ENDED:
            open_ids.discard(event.subject)
        if wanted.ids and not open_ids:
            return


async def _hint(operations: Operations, wanted: Wanted) -> None:
    """A name that nobody knows may still come, or is a slip."""
    try:
        await operations.check_names(Filter(types=frozenset(wanted.types), queues=frozenset(wanted.queues)))
    except NotFound as error:
        note(str(error))


async def _has_ended(operations: Operations, id: str) -> bool:
    try:
        return (await operations.get(id)).state in TERMINAL
    except Expired:
        return True


async def _is_wanted(operations: Operations, event: Event, wanted: Wanted, known: dict[str, tuple[object, object]]) -> bool:
    if wanted.ids and event.subject not in wanted.ids:
        return False
    if not wanted.types and not wanted.queues:
        return True
    if not event.kind.startswith("task."):
        return False
    of_type, queue = await _place(operations, event, known)
    return (not wanted.types or of_type in wanted.types) and (not wanted.queues or queue in wanted.queues)


async def _place(operations: Operations, event: Event, known: dict[str, tuple[object, object]]) -> tuple[object, object]:
    """The type and queue of an event's task. Not every event says them; the store does, and they never change."""
    if "type" in event.data and "queue" in event.data:
        known[event.subject] = event.data["type"], event.data["queue"]
    elif event.subject not in known:
        try:
            task = await operations.get(event.subject)
            known[event.subject] = task.type, task.queue
        except (NotFound, Expired):
            return None, None
    if len(known) > _REMEMBERED:
        del known[next(iter(known))]
    return known.get(event.subject, (None, None))


def _show(event: Event, *, as_json: bool) -> None:
    if as_json:
        print_json(event_data(event))
        return
    details = " ".join(f"{name}={clean(value)}" for name, value in event.data.items() if value is not None)
    if event.kind is Kind.RESYNC:
        details = "some events were missed: look again with `taskmill task list`"
    fields = [rfc3339(event.at), event.kind.value, clean(event.subject), details]
    if on_terminal():
        fields = [f"{fields[0]:<27}", click.style(f"{fields[1]:<16}", fg=_COLOURS.get(event.kind)), *fields[2:]]
    click.echo(("  " if on_terminal() else "\t").join(fields).rstrip())
