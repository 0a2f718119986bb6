"""Hearing what happens as it happens: a server over the store, and a client of its live events.

python examples/live_events.py
"""

from __future__ import annotations

import json

from running import run, server
from websockets.asyncio.client import connect

from taskmill import App, Context, Retry

app = App()


@app.task(retry=Retry.fixed("100ms"))
async def bake(ctx: Context, cake: str) -> str:
    await ctx.progress(0.5, "in the oven")
    if ctx.attempt == 1:
        raise RuntimeError("the oven is cold")
    return f"a {cake} cake"


async def main() -> None:
    with server() as url:
        async with connect(f"{url.replace('http', 'ws')}/ws?type=bake") as socket, app:
            handle = await bake.submit(cake="carrot")
            async for message in socket:
                event = json.loads(message)
                data = event["data"]
                assert data["task_id"] == handle.id
                print(data["sequence"], event["type"], *(data[name] for name in ("attempt", "value", "error") if name in data))
                if event["type"] == "task.completed":
                    break
            print(await handle.result(timeout="30s"))


if __name__ == "__main__":
    run(__file__, main)
