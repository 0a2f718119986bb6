"""An API process to be measured, and loads on it from a process of their own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from bench.group import Group
from bench.report import Plan
from bench.temporary import folder
from taskmill.engines import schema

__all__ = ["Api", "Load", "load", "served", "trivial"]

BENCH = Path(__file__).resolve().parent
PATIENCE = 30.0
AT = re.compile(r"at (http://[^\s;]+)")


class Api(NamedTuple):
    """Where it is, and its process."""

    host: str
    port: int
    group: Group


class Load(NamedTuple):
    """What a load came to: requests a second, their statuses, and how long they took in ms."""

    rate: float
    statuses: dict[str, int]
    p50: float
    p95: float
    p99: float


@contextlib.contextmanager
def served(url: str, plan: Plan) -> Iterator[Api]:
    """`taskmill api` on a store, which is made if it is not there."""
    made = schema(url)
    if made.plan():
        made.upgrade()
    with folder(plan.directory) as path:
        command = [sys.executable, "-m", "taskmill", "api", "--url", url, "--port", "0"]
        with Group([command], {"TASKMILL_AUDIT_LOG": str(path / "audit.jsonl")}, path, path / "log") as group:
            host, port = _place(group)
            yield Api(host, port, group)


def _place(group: Group) -> tuple[str, int]:
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until and group.running:
        if found := AT.search(group.words()):
            host, _, port = found[1].removeprefix("http://").rpartition(":")
            return host, int(port)
        time.sleep(0.05)
    raise RuntimeError(f"the API did not start: {group.words()}")


@contextlib.contextmanager
def trivial(plan: Plan) -> Iterator[Api]:
    """The least that Starlette and msgspec do for a request of this form."""
    with folder(plan.directory) as path, socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen(2_048)
        sock.set_inheritable(True)
        program = subprocess.Popen([sys.executable, str(BENCH / "http_trivial.py"), str(sock.fileno())], pass_fds=(sock.fileno(),), cwd=path)
        try:
            group = Group([], {}, path, path / "log")
            group.programs.append(program)
            yield Api("127.0.0.1", sock.getsockname()[1], group)
        finally:
            program.terminate()
            program.wait()


async def load(api: Api, path: str, body: bytes, connections: int, seconds: float) -> Load:
    """POST the same body over so many connections for so long, from a second process."""
    command = [sys.executable, str(BENCH / "http_load.py"), api.host, str(api.port), path, str(connections), str(seconds)]
    process = await asyncio.create_subprocess_exec(*command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    out, _ = await asyncio.wait_for(process.communicate(body), seconds + PATIENCE)
    found = json.loads(out)
    return Load(found["rate"], found["statuses"], found["p50"], found["p95"], found["p99"])
