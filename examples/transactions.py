"""A task in your own transaction: it exists if and only if your rows do.

    python examples/transactions.py

On SQLite your tables live in the same file as the tasks; the transaction is the store's own connection.
"""

from __future__ import annotations

from running import run

from taskmill import App, State
from taskmill.engine import Filter

app = App()


@app.task
def send_invoice(order: int) -> str:
    return f"invoice of order {order} is sent"


async def place(order: int, cents: int) -> None:
    async with app.transaction() as tx:
        tx.execute("INSERT INTO shop_order (number, cents) VALUES (?, ?)", (order, cents))
        await send_invoice.options(tx=tx).submit(order)
        if cents <= 0:
            raise ValueError("an order has a price")


async def main() -> None:
    async with app:
        async with app.transaction() as tx:
            tx.execute("CREATE TABLE shop_order (number INTEGER PRIMARY KEY, cents INTEGER)")
        await place(1, 1_000)
        try:
            await place(2, 0)
        except ValueError as error:
            print("order 2 is rolled back:", error)
        async with app.transaction() as tx:
            print("orders:", [number for (number,) in tx.execute("SELECT number FROM shop_order")])

        [task] = (await app.operations.list(Filter(types=frozenset({"send_invoice"})))).tasks
        print("tasks: 1;", await app.handle(task.id).result(timeout="30s"))
        assert await app.handle(task.id).status() is State.COMPLETED


if __name__ == "__main__":
    run(__file__, main)
