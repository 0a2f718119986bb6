"""What the README says of the server, done as it is printed there: curl, a WebSocket, grpcurl by reflection, keys; against `taskmill up` as it stands."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import grpc
import pytest
from websockets.asyncio.client import connect

from tests.docs.test_docs import ROOT
from tests.surfaces import workers
from tests.surfaces.grpc.test_reflection import ask, called
from tests.surfaces.workers import GENEROUS, Client, Program, program, until

HTTP, GRPC = "127.0.0.1:8080", "127.0.0.1:9090"
TITLE = "Over HTTP, gRPC and WebSocket"


class Up(NamedTuple):
    program: Program
    client: Client
    http: str
    grpc: str
    folder: Path

    def here(self, line: str) -> str:
        """A printed line with the ports that this server has."""
        return line.replace(HTTP, self.http).replace(GRPC, self.grpc)


@pytest.fixture
async def up(tmp_path: Path) -> AsyncIterator[Up]:
    command = [sys.executable, "-m", "taskmill", "init", "shop"]
    await asyncio.to_thread(subprocess.run, command, cwd=tmp_path, check=True, capture_output=True)
    folder = tmp_path / "shop"
    with program("up", "app.py", "--port", "0", "--grpc-port", "0", folder=folder) as running:
        async with workers.client(f"sqlite:///{folder}/taskmill.db") as client:
            await until(lambda: "gRPC is at" in running.said, "gRPC")
            await client.joined()
            found = re.search(r"the API is at http://(\S+),.* gRPC is at (\S+)", running.said)
            assert found is not None
            yield Up(running, client, found[1], found[2], folder)
            assert running.end() == 0


def session(word: str) -> list[str]:
    """The printed lines of that chapter that begin with a program."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    chapter = re.search(rf"^## {TITLE}\n(.*?)^## ", text, re.MULTILINE | re.DOTALL)
    assert chapter is not None
    return [line.removeprefix("$ ") for line in chapter[1].splitlines() if line.startswith(f"$ {word} ")]


@pytest.mark.usefixtures("curl")
async def test_curl_follows_events(up: Up) -> None:
    [line] = session("curl")
    command = shlex.split(up.here(line))
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        async with asyncio.timeout(GENEROUS):
            while b"connected" not in await process.stdout.readline():
                pass
            await up.client.submit("greet", name="Ada")
            while b"task.completed" not in await process.stdout.readline():
                pass
    finally:
        process.kill()
        await process.wait()


async def test_a_websocket_follows_events(up: Up) -> None:
    [line] = session("websocat")
    async with connect(up.here(shlex.split(line)[1])) as socket, asyncio.timeout(GENEROUS):
        await up.client.submit("greet", name="Ada")
        heard = []
        while "task.completed" not in heard:
            heard.append(json.loads(await socket.recv())["type"])
        assert "task.submitted" in heard


async def test_grpcurl_finds_the_services_and_submits(up: Up) -> None:
    lines = [shlex.split(up.here(line)) for line in session("grpcurl")]
    [listing] = [words for words in lines if words[-1] == "list"]
    [submitting] = [words for words in lines if "-d" in words]
    async with grpc.aio.insecure_channel(listing[-2]) as channel:
        services = (await ask(channel, list_services="")).list_services_response.service
        assert {"taskmill.v1.Tasks", "taskmill.v1.Workers"} <= {service.name for service in services}
        answer = await called(channel, "x-none: none", submitting[submitting.index("-d") + 1], submitting[-1])
    task = await up.client.ended(answer["submitted"]["id"])
    assert (task.state, task.result) == ("completed", b'"Hello, Ada!"')


@pytest.mark.usefixtures("curl")
async def test_keys_close_the_door(up: Up) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    lines = re.findall(r"^taskmill (key create .*)$", text, re.MULTILINE)
    assert len(lines) == 2
    tokens = []
    for line in lines:
        command = [sys.executable, "-m", "taskmill", *shlex.split(line)]
        made = await asyncio.to_thread(subprocess.run, command, cwd=up.folder, check=True, capture_output=True, text=True)
        tokens.append(made.stdout.strip())
    ids = [await up.client.submit("greet", name="Ada") for _ in range(2)]
    url = f"http://{up.http}/api/v1/tasks/{ids[0]}"
    async with asyncio.timeout(GENEROUS):
        while await status(url) != "401":  # noqa: ASYNC110 - within five seconds
            await asyncio.sleep(0.1)
    assert await status(url, tokens[0]) == "200"
    assert await status(url, tokens[1]) == "404"


async def status(url: str, key: str | None = None) -> str:
    head = [] if key is None else ["-H", f"Authorization: Bearer {key}"]
    process = await asyncio.create_subprocess_exec("curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", *head, url, stdout=asyncio.subprocess.PIPE)
    out, _ = await process.communicate()
    return out.decode()
