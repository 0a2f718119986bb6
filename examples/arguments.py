"""What arguments and results may be: plain values, dataclasses, msgspec structs, pydantic models, dates, decimals, enums.

    python examples/arguments.py

The payload in the store is JSON by the names of the parameters, so a client in any language can submit it. Pydantic is not needed, only
understood where it is installed.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from typing import Any

import msgspec
from pydantic import BaseModel, Field
from running import run

from taskmill import App, TaskFailed, TaskmillError

app = App()


class Size(Enum):
    SMALL = "small"
    LARGE = "large"


@dataclass
class Item:
    name: str
    price: Decimal
    size: Size = Size.SMALL


class Address(BaseModel):
    city: str = Field(min_length=1)
    country: str = "FR"


class Receipt(msgspec.Struct):
    total: Decimal
    city: str
    day: dt.date


@app.task
def order(items: list[Item], to: Address, day: dt.date) -> Receipt:
    return Receipt(sum((item.price for item in items), Decimal(0)), to.city, day)


async def main() -> None:
    async with app:
        items = [Item("lamp", Decimal("19.90")), Item("table", Decimal("80.10"), Size.LARGE)]
        handle = await order.submit(items, Address(city="Lyon"), dt.date(2030, 1, 31))
        print("payload:", (await handle.task()).payload.decode())
        print("result:", await handle.result(timeout="30s"))

        nothing: Any = object()
        try:
            await order.submit([Item("void", nothing)], Address(city="Nice"), dt.date(2030, 1, 31))
        except TaskmillError as error:
            print("refused at once:", error.field)

        foreign = await app.submit("order", {"items": [], "to": {"city": ""}, "day": "2030-01-31"})
        try:
            await foreign.result(timeout="30s")
        except TaskFailed as failed:
            attempts = len(await app.operations.attempts(foreign.id))
            print(f"a wrong payload from elsewhere: {failed.error.code if failed.error else ''}, dead after {attempts} attempt")


if __name__ == "__main__":
    run(__file__, main)
