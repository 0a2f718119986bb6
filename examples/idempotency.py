"""Submitting twice, on purpose or because an answer got lost, and still doing it once.

python examples/idempotency.py
"""

from __future__ import annotations

from running import run

from taskmill import App, TaskmillError, Unique

app = App()


@app.task
def charge(order: int, cents: int) -> str:
    return f"order {order}: {cents} cents"


@app.task(unique="report-{region}")
def report(region: str) -> str:
    return f"report of {region}"


async def main() -> None:
    async with app:
        once = charge.options(idempotency_key="order-7")
        first = await once.submit(7, 1_000)
        again = await once.submit(7, 1_000)
        print("the same key twice gives one task:", first.id == again.id)
        print("and one result:", await again.result(timeout="30s"))
        try:
            await once.submit(7, 2_000)
        except TaskmillError as error:
            print("the same key with another payload:", error.code)

        waiting = report.options(delay="1s")
        one, other, south = await waiting.submit("north"), await waiting.submit("north"), await waiting.submit("south")
        print("one live report for each region:", one.id == other.id, one.id != south.id)
        newest = await report.options(unique=Unique("report-north", on_conflict="replace")).submit("north")
        print("or the newest wins:", await newest.result(timeout="30s"))


if __name__ == "__main__":
    run(__file__, main)
