"""Submitting through a server: a client that has a URL and a key instead of a store, and tasks that it never runs.

python examples/remote_client.py
"""

from __future__ import annotations

import asyncio
import subprocess
import sys

from running import run, server

from taskmill import App, Client, Fail, TaskFailed, Tasks
from taskmill.errors import Forbidden, NotFound
from taskmill.task import new_id

tasks = Tasks()


@tasks.task(queue="mail")
async def send_welcome(user_id: int) -> str:
    if user_id < 0:
        raise Fail(f"there is no user {user_id}")
    return f"sent to {user_id}"


def operator(*words: str) -> str:
    """What `taskmill …` says to an operator."""
    return subprocess.run([sys.executable, "-m", "taskmill", *words], capture_output=True, text=True, check=True).stdout


def new_key(*scopes: str) -> str:
    """It is shown once."""
    return operator("key", "create", *(word for scope in scopes for word in ("--scope", scope))).strip()


async def main() -> None:
    operator("db", "upgrade")
    key, mailbox = new_key("submit", "read", "read-payload", "cancel"), new_key("submit")
    with server() as url:
        async with Client(url, key) as client, Client(url, mailbox) as poor:
            client.include(tasks)
            handle = await send_welcome.submit(42)
            print("result:", await handle.result(timeout="30s"))
            handles = await asyncio.gather(*(send_welcome.submit(number) for number in range(200)))
            print("together:", len({each.id for each in handles}), "tasks, the last", await handles[-1].result(timeout="30s"))
            first = await client.submit("send_welcome", {"user_id": 7}, idempotency_key="welcome-7")
            again = await client.submit("send_welcome", {"user_id": 7}, idempotency_key="welcome-7")
            print("one key, one task:", first == again)
            try:
                await (await send_welcome.submit(-1)).result(timeout="30s")
            except TaskFailed as error:
                print(error.message)
            try:
                await client.handle(new_id()).status()
            except NotFound as error:
                print("a task that never was:", error.code)
            try:
                await poor.handle((await poor.submit("send_welcome", {"user_id": 1})).id).status()
            except Forbidden as error:
                print(error.message)
            print("in all:", await client.count(type="send_welcome"))


if __name__ == "__main__":
    run(__file__, main)
else:
    app = App()  # what the worker beside it loads this file for
    app.include(tasks)
