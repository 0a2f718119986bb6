"""A task, from its declaration to its result.

python examples/quickstart.py
"""

from __future__ import annotations

from running import run

from taskmill import App, Context

app = App()


@app.task(queue="mail", timeout="30s")
async def send_welcome(ctx: Context, user_id: int) -> str:
    await ctx.progress(0.5, "rendering")
    return f"sent to {user_id}"


@app.task
def add(left: int, right: int) -> int:
    return left + right


async def main() -> None:
    async with app:
        handle = await send_welcome.submit(42)
        print("result:", await handle.result(timeout="30s"))
        print("status:", await handle.status())

        later = await send_welcome.options(delay="1s", priority="high").submit(43)
        print("at first:", await later.status())
        print("a second later:", await later.result(timeout="30s"))

        handles = await app.submit_many(add.call(number, number) for number in range(5))
        print("many:", [await each.result(timeout="30s") for each in handles])

        by_name = await app.submit("add", {"left": 1, "right": 2})
        print("by name:", await by_name.result(timeout="30s"))
        print("a direct call:", add(3, 4))


if __name__ == "__main__":
    run(__file__, main)
