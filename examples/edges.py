"""Tasks that wait for tasks: a tree of pages and their report, and what a failure means for those who wait.

python examples/edges.py
"""

from __future__ import annotations

from running import run

from taskmill import App, Context, Fail

app = App()


@app.task
async def page(number: int) -> int:
    if number > 100:
        raise Fail("there is no such page")
    return number * 100


@app.task
async def report(ctx: Context) -> str:
    """Runs when all its pages have ended; sees what they returned."""
    return f"{sum(words or 0 for words in ctx.results)} words on {len(ctx.results)} pages ({', '.join(str(each) for each in ctx.outcomes)})"


@app.task
async def book(ctx: Context, pages: int) -> str:
    """A task that submits others. Tried again, it finds its children instead of making new ones."""
    children = await ctx.submit_many(page.call(number) for number in range(1, pages + 1))
    last = await ctx.submit(report.options(after=children).call())
    return last.id


async def main() -> None:
    async with app:
        pages = await app.submit_many(page.call(number) for number in (1, 2, 3))
        waiting = await report.options(after=pages).submit()
        print("all three:", await waiting.result(timeout="30s"))

        lost = await page.submit(404)
        cancelled = await report.options(after=[pages[0], lost]).submit()
        print("one is dead, by default its report is:", await cancelled.wait(timeout="30s"))
        brave = await report.options(after=[pages[0], lost], on_failure="ignore").submit()
        print("who ignores that gets:", await brave.result(timeout="30s"))

        tree = await book.submit(4)
        print("a tree:", await app.handle(await tree.result(timeout="30s")).result(timeout="30s"))


if __name__ == "__main__":
    run(__file__, main)
