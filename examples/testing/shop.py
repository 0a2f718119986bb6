"""A small shop: an order is stored, its buyer gets a mail, the warehouse packs, and every morning somebody is told what is left."""

from __future__ import annotations

from taskmill import App, Context, Fail, Retry

app = App(name="shop")
sent: list[str] = []
"""Where a real shop would have a mail server."""


@app.task(queue="mail", retry=Retry.exponential(max_retries=3, base="1m"))
def send_mail(to: str, text: str) -> None:
    if "@" not in to:
        raise Fail(f"{to} is no address")
    deliver(to, text)


def deliver(to: str, text: str) -> None:
    sent.append(f"{to}: {text}")


@app.task
async def pack(ctx: Context, order: int, to: str) -> str:
    await ctx.submit(send_mail, to, f"order {order} is on its way")
    return f"parcel {order}"


@app.schedule("0 7 * * MON-FRI", timezone="Europe/Paris")
async def morning_report() -> None:
    await send_mail.submit("boss@example.org", f"{len(sent)} mails so far")


async def order(number: int, to: str) -> None:
    """What the shop's web page calls."""
    await send_mail.submit(to, f"thank you for order {number}")
    await pack.options(delay="2h").submit(number, to)
