"""What editors and type checkers see of the face of the product: right code is right, and each wrong line is an error."""

from __future__ import annotations

from typing import Any, assert_type

from taskmill import App, Client, Context, Handle, Retry, State, Tasks
from taskmill.sync import SyncHandle
from taskmill.tasks import Call

app = App("sqlite:///taskmill.db")
tasks = Tasks()
client = Client("https://tasks.example.com", "tm_…")


@app.task(queue="mail", retry=Retry.exponential(max_retries=5), timeout="30s", rate_limit="100/m")
async def send_welcome(ctx: Context, user_id: int) -> str:
    await ctx.progress(0.5, "rendering")
    return f"sent to {user_id}"


@app.task
async def resize(picture: str, *, width: int = 100, height: int | None = None) -> dict[str, int]:
    return {picture: width * (height or 1)}


@app.task
def total(ctx: Context, numbers: list[int]) -> float:
    return float(sum(numbers))


@tasks.task(isolated=True)
def count(text: str, letter: str = "e") -> int:
    return text.count(letter)


@app.schedule("0 9 * * MON-FRI", timezone="Europe/Paris", overlap="skip")
def morning_report() -> None: ...


@app.schedule("@hourly", arguments={"picture": "front"}, name="hourly-resize")
@app.task(queue="slow")
async def crop(picture: str) -> bytes:
    return picture.encode()


assert_type(send_welcome.name, str)


async def submits() -> None:
    assert_type(await send_welcome.submit(42), Handle[str])
    assert_type(await send_welcome.submit(user_id=42), Handle[str])
    assert_type(await (await send_welcome.submit(42)).result(timeout="30s"), str)
    assert_type(await (await send_welcome.submit(42)).status(), State)
    assert_type(await resize.submit("a.png", width=3), Handle[dict[str, int]])
    assert_type(await total.submit([1, 2]), Handle[float])
    assert_type(await count.submit("text"), Handle[int])
    assert_type(await morning_report.submit(), Handle[None])
    assert_type(await crop.submit("front"), Handle[bytes])

    await send_welcome.submit("42")  # error: mypy[arg-type] pyright[reportArgumentType]
    await send_welcome.submit()  # error: mypy[call-arg] pyright[reportCallIssue]
    await send_welcome.submit(42, 43)  # error: mypy[call-arg] pyright[reportCallIssue]
    await send_welcome.submit(user=42)  # error: mypy[call-arg] pyright[reportCallIssue]
    await resize.submit("a.png", 3)  # error: mypy[call-arg] pyright[reportCallIssue]
    await resize.submit("a.png", width="wide")  # error: mypy[arg-type] pyright[reportArgumentType]
    await morning_report.submit(1)  # error: mypy[call-arg] pyright[reportCallIssue]


async def options(connection: Any) -> None:
    high = send_welcome.options(delay="10m", priority="high", idempotency_key="welcome-42")
    assert_type(await high.submit(42), Handle[str])
    assert_type(high.call(42), Call[str])
    assert_type(await send_welcome.options(tx=connection).submit(42), Handle[str])
    assert_type(await total.options(after=[await send_welcome.submit(1)], on_failure="ignore").submit([1]), Handle[float])

    send_welcome.options(dealy="10m")  # error: mypy[call-arg] pyright[reportCallIssue]
    send_welcome.options(priority="urgent")  # error: mypy[arg-type] pyright[reportArgumentType]
    await high.submit("42")  # error: mypy[arg-type] pyright[reportArgumentType]
    high.call()  # error: mypy[call-arg] pyright[reportCallIssue]


async def many() -> None:
    assert_type(send_welcome.call(1), Call[str])
    assert_type(await app.submit_many(send_welcome.call(i) for i in range(10)), list[Handle[str]])
    assert_type(await app.submit("send_welcome", {"user_id": 42}), Handle[Any])
    assert_type(await app.submit(send_welcome.call(1)), Handle[str])
    assert_type(await app.submit(send_welcome, {"user_id": 42}, delay="1m"), Handle[str])

    send_welcome.call("1")  # error: mypy[arg-type] pyright[reportArgumentType]
    await app.submit_many([send_welcome.submit(1)])  # error: mypy[arg-type] pyright[reportArgumentType]


def blocking() -> None:
    assert_type(send_welcome.sync.submit(42), SyncHandle[str])
    assert_type(send_welcome.sync.submit(42).result(), str)
    assert_type(send_welcome.options(delay=3).sync.submit(42).result(timeout=1.5), str)
    assert_type(app.sync.submit("send_welcome", {"user_id": 42}), SyncHandle[Any])
    assert_type(app.sync.submit_many([total.call([1])])[0].result(), float)

    assert_type(client.sync.submit(total.call([1])).result(), float)
    assert_type([task.id for task in client.sync.list(queue="mail")], list[str])

    send_welcome.sync.submit("42")  # error: mypy[arg-type] pyright[reportArgumentType]


async def remote() -> None:
    client.include(tasks)
    assert_type(await client.submit(send_welcome.call(1)), Handle[str])
    assert_type(await client.submit("send_welcome", {"user_id": 42}, priority="high"), Handle[Any])
    assert_type(await client.submit(send_welcome, {"user_id": 42}), Handle[str])
    assert_type(await (await client.submit(send_welcome.call(1))).result(timeout="30s"), str)
    assert_type(await client.submit_many([send_welcome.call(1)]), list[Handle[str]])
    assert_type([task.state async for task in client.list(state="dead")], list[State])
    assert_type(await client.count(queue=["mail"]), int)
    assert_type(await client.handle("…").status(), State)

    await client.submit("send_welcome", {}, dealy="10m")  # error: mypy[call-overload] pyright[reportCallIssue]
    await client.count(colour="red")  # error: mypy[call-arg] pyright[reportCallIssue]


async def direct() -> None:
    assert_type(await send_welcome(42), str)
    assert_type(total([1, 2]), float)
    assert_type(count("text"), int)

    await send_welcome("42")  # error: mypy[arg-type] pyright[reportArgumentType]
    total(["1"])  # error: mypy[list-item] pyright[reportArgumentType]


async def children(ctx: Context) -> None:
    assert_type(await ctx.submit(send_welcome, 42), Handle[str])
    assert_type(await ctx.submit(resize.options(delay=1).call("a.png")), Handle[dict[str, int]])
    assert_type(await ctx.submit("send_welcome", {"user_id": 42}), Handle[Any])
    assert_type(ctx.sync.submit(total, [1]), SyncHandle[float])

    await ctx.submit(send_welcome, "42")  # error: mypy[call-overload] pyright[reportArgumentType,reportCallIssue]
    ctx.snooze([])  # error: mypy[arg-type] pyright[reportArgumentType]


@app.task(quue="mail")  # error: mypy[call-overload,untyped-decorator] pyright[reportCallIssue,reportUntypedFunctionDecorator]
def misspelt() -> None: ...


@app.schedule("@daily", overlap="never")  # error: mypy[arg-type] pyright[reportArgumentType]
def overlapping() -> None: ...
