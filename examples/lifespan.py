"""What every worker process makes once and handlers share: pools, clients, models. And tasks in modules that do not know the app.

python examples/lifespan.py
"""

from __future__ import annotations

from types import SimpleNamespace

from running import run

from taskmill import App, Context, Tasks

tasks = Tasks()


@tasks.task
async def price(ctx: Context, article: str) -> int:
    found: int = ctx.app.state.prices[article]
    return found


@tasks.task
async def uses(ctx: Context) -> int:
    ctx.app.state.counter.used += 1
    used: int = ctx.app.state.counter.used
    return used


app = App()
app.include(tasks)


@app.on_start
async def open_prices() -> None:
    """In each worker process, before its first task."""
    app.state.prices = {"lamp": 1_990, "table": 8_010}
    app.state.counter = SimpleNamespace(used=0)


@app.on_stop
def close_prices() -> None:
    """After its last task."""
    print("closed")


async def main() -> None:
    async with app:
        print("lamp:", await (await price.submit("lamp")).result(timeout="30s"))
        print("used:", [await (await uses.submit()).result(timeout="30s") for _ in range(3)])
        print("this process has made nothing:", vars(app.state))


if __name__ == "__main__":
    run(__file__, main)
