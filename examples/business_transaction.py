"""Orders and their tasks in one transaction, and the handler's rows and the task's end in another: on PostgreSQL.

    taskmill db upgrade --url postgresql://localhost/shop
    python examples/business_transaction.py postgresql://localhost/shop

It makes the table shop_order there, and drops it in the end.
"""

from __future__ import annotations

import sys
from uuid import uuid4

import asyncpg
from running import run

from taskmill import App, Context, Handle

app = App()


@app.task
async def charge(ctx: Context, number: int) -> str:
    """The order is charged and the task has ended, or neither."""
    async with ctx.transaction() as tx:
        [row] = await tx.execute("UPDATE shop_order SET charges = charges + 1 WHERE number = $1 RETURNING cents", (number,))
        ctx.complete(f"order {number}: {row['cents']} cents")
    return f"order {number}: {row['cents']} cents"


async def place(db: asyncpg.Connection, number: int, cents: int) -> Handle[str]:
    """The order is stored and will be charged, or neither."""
    async with db.transaction():
        await db.execute("INSERT INTO shop_order (number, cents) VALUES ($1, $2)", number, cents)
        handle = await charge.options(tx=db).submit(number)
        if cents <= 0:
            raise ValueError("an order has a price")
    return handle


async def paid(db: asyncpg.Connection, message: str, number: int) -> str:
    """A message of the bank, which may come more than once."""
    async with db.transaction():
        if not await app.inbox(db, "bank", message):
            return "known"
        await db.execute("UPDATE shop_order SET paid = true WHERE number = $1", number)
        return "new"


async def main() -> None:
    db = await asyncpg.connect(sys.argv[1])
    await db.execute("CREATE TABLE shop_order (number integer PRIMARY KEY, cents integer, charges integer DEFAULT 0, paid boolean DEFAULT false)")
    try:
        async with app:
            await shop(db)
    finally:
        await db.execute("DROP TABLE shop_order")
        await db.close()


async def shop(db: asyncpg.Connection) -> None:
    charges = []
    for number, cents in ((1, 1_000), (2, 0), (3, 250)):
        try:
            charges.append(await place(db, number, cents))
        except ValueError as error:
            print(f"order {number} is rolled back: {error}")
    print("charged:", [await handle.result(timeout="60s") for handle in charges])

    first, second = uuid4().hex, uuid4().hex
    print("messages:", [await paid(db, message, 1) for message in (first, first, second)])
    rows = await db.fetch("SELECT number, charges, paid FROM shop_order ORDER BY number")
    print("orders:", [(row["number"], row["charges"], row["paid"]) for row in rows])


if __name__ == "__main__":
    if len(sys.argv) != 2 or not sys.argv[1].startswith("postgres"):
        sys.exit("name a database of PostgreSQL with a store in it: python examples/business_transaction.py postgresql://localhost/shop")
    run(__file__, main, url=sys.argv[1])
