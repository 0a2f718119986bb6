"""What the tour shows: tasks by type and state and the latest events, redrawn in place; plain lines where there is no terminal."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from contextlib import aclosing
from datetime import datetime

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from taskmill import State
from taskmill.clock import SECOND
from taskmill.errors import Expired, NotFound
from taskmill.events import Event, Kind
from taskmill.operations import Operations
from taskmill.task import Task

REDRAW_EVERY = 0.25
LATEST = 12
MOST_TASKS = 1_000
QUIET = {Kind.PROGRESS, Kind.SETTING_CHANGED, Kind.LEADER_CHANGED, Kind.WORKER_JOINED}
STYLES = {
    State.SCHEDULED: "blue",
    State.PENDING: "yellow",
    State.RUNNING: "cyan",
    State.RETRYING: "magenta",
    State.WAITING: "blue",
    State.COMPLETED: "green",
    State.DEAD: "red",
    State.CANCELLED: "bright_black",
}


class Screen:
    """The tasks of a store as last seen, and what happened lately."""

    def __init__(self, operations: Operations, console: Console) -> None:
        self._operations = operations
        self._console = console
        self._tasks: tuple[Task, ...] = ()
        self._latest: deque[str] = deque(maxlen=LATEST)
        self._types: dict[str, str] = {}
        self.listening = asyncio.Event()

    async def run(self) -> None:
        """Until cancelled."""
        if not self._console.is_terminal:
            await self._follow()
            return
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow())
            with Live(console=self._console, auto_refresh=False, transient=True) as live:
                while True:
                    await self.look()
                    live.update(Group(self._table(), self._running(), self._happened()), refresh=True)
                    await asyncio.sleep(REDRAW_EVERY)

    async def summary(self) -> RenderableType:
        """How it all stands in the end."""
        await self.look()
        if self._console.is_terminal:
            return self._table()
        counts = Counter((task.type, task.state) for task in self._tasks)
        return Text("\n".join(["", *(f"{name}: {count} {state}" for (name, state), count in sorted(counts.items())), ""]))

    async def look(self) -> None:
        """Read the store; a task that is due reads as pending without any event."""
        self._tasks = (await self._operations.list(n=MOST_TASKS)).tasks

    # Events

    async def _follow(self) -> None:
        async with aclosing(await self._operations.events()) as events:
            self.listening.set()
            async for event in events:
                if event.kind in QUIET:
                    continue
                line = await self._line(event)
                self._latest.append(line)
                if not self._console.is_terminal:
                    self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    async def _line(self, event: Event) -> str:
        at = datetime.fromtimestamp(event.at / SECOND).astimezone()
        return f"{at:%H:%M:%S}  {event.kind.rpartition('.')[2]:<10} {await self._name(event)}"

    async def _name(self, event: Event) -> str:
        if not event.kind.startswith("task."):
            return event.subject
        if event.subject not in self._types:
            try:
                self._types[event.subject] = (await self._operations.get(event.subject)).type
            except (NotFound, Expired):
                return event.subject
        return f"{self._types[event.subject]:<14} {event.subject}"

    # Tables

    def _table(self) -> Table:
        """Tasks by type and state."""
        counts = Counter((task.type, task.state) for task in self._tasks)
        table = Table("type", box=None, padding=(0, 1, 0, 0), pad_edge=False)
        for state, style in STYLES.items():
            table.add_column(Text(state, style), justify="right", no_wrap=True)
        for name in sorted({task.type for task in self._tasks}):
            cells = ((counts[name, state], style) for state, style in STYLES.items())
            table.add_row(name, *(Text(str(count), style) if count else Text("·", "bright_black") for count, style in cells))
        return table

    def _running(self) -> Text:
        """What runs and says how far it is."""
        said = [(task.type, task.progress) for task in self._tasks if task.state is State.RUNNING and task.progress is not None]
        return Text("\n".join(f"running: {name}, {progress.value:.0%} {progress.message}" for name, progress in said), "cyan")

    def _happened(self) -> Text:
        """As many as fit below the table."""
        room = max(3, self._console.height - len({task.type for task in self._tasks}) - 6)
        return Text("\n".join(["", "latest events", *(f"  {line}" for line in list(self._latest)[-room:])]))
