"""Tasks that make themselves: cron entries, in a time zone, and intervals.

python examples/schedules.py
"""

from __future__ import annotations

import asyncio

from running import run

from taskmill import App, Context, State
from taskmill.engine import Filter

app = App()


@app.schedule("0 9 * * MON-FRI", timezone="Europe/Paris", overlap="skip")
def morning_report() -> None:
    """At nine in the morning in Paris, winter and summer, unless the last one still runs."""


@app.schedule("@every 1s", name="tick", arguments={"what": "tick"})
@app.task
def note(ctx: Context, what: str) -> str:
    """A task like any other: it may also be submitted by hand."""
    return f"{what} for {ctx.headers.get('taskmill-fire-time', 'nobody')}"


async def main() -> None:
    async with app:
        ticks = Filter(types=frozenset({"note"}), states=frozenset({State.COMPLETED}))
        events = await app.operations.events()
        while len((await app.operations.list(ticks)).tasks) < 3:
            await asyncio.wait_for(anext(events), 30)
        await events.aclose()
        for task in reversed((await app.operations.list(ticks)).tasks[-3:]):
            print("fired:", (task.result or b"").decode())

        for each in await app.operations.schedules():
            if each.schedule is not None:
                print(f"{each.name}: {each.schedule.cron.expression} ({each.schedule.cron.timezone})")
        print("the report's next five times are all there:", len(await app.operations.next_times("morning_report", 5)) == 5)
        await app.operations.pause_schedule("tick", reason="enough seen")
        print("paused:", [each.name for each in await app.operations.schedules() if each.paused])


if __name__ == "__main__":
    run(__file__, main)
