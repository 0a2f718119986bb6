"""A server in a process of its own, requests that no HTTP library would send, and what every refusal has to be."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPResponse
from pathlib import Path
from typing import Any, NamedTuple

from taskmill.engines import schema
from tests.surfaces.cli_tools import COMMAND, PATIENCE

TASKS = "/api/v1/tasks"
JSON = {"Content-Type": "application/json"}
_AT = re.compile(r"at http://127\.0\.0\.1:(\d+);")


class Answer(NamedTuple):
    """One answer, read to its end."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def data(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        return str(self.data["code"])


def read_answer(connection: socket.socket, method: str = "GET", endless: int | None = None) -> Answer:
    """`endless`: the status of an answer whose body goes on; its head is enough."""
    response = HTTPResponse(connection, method=method)
    response.begin()
    body = b"" if response.status == endless else response.read()
    return Answer(response.status, {name.lower(): value for name, value in response.getheaders()}, body)


def request(method: str, target: str, body: bytes | None = None, headers: dict[str, str] | None = None) -> bytes:
    """The bytes of a request as they should be, but for what is given."""
    given = {"Host": "127.0.0.1", **(headers or {})}
    if body is not None:
        given = {**JSON, "Content-Length": str(len(body)), **given}
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in given.items()), "", ""]
    return "\r\n".join(lines).encode("utf-8", "surrogateescape") + (body or b"")


class Server:
    """A server that runs, and its log."""

    def __init__(self, port: int, process: subprocess.Popen[bytes], log: Path, key: str | None = None) -> None:
        self.port = port
        self.process = process
        self.log = log
        self.key = key
        """What the helpers below call with."""

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE)

    def raw(self, data: bytes, method: str = "GET") -> Answer:
        """Sent as it is; the first answer."""
        with self.connect() as connection:
            connection.sendall(data)
            return read_answer(connection, method)

    def all(self, data: bytes) -> bytes:
        """Sent as it is; everything that comes back until the server closes the connection."""
        with self.connect() as connection:
            connection.sendall(data)
            return received(connection)

    def call(self, method: str, target: str, body: bytes | None = None, headers: dict[str, str] | None = None) -> Answer:
        known = {} if self.key is None else {"Authorization": f"Bearer {self.key}"}
        return self.raw(request(method, target, body, {**known, **(headers or {})}), method)

    def post(self, body: object, target: str = TASKS, headers: dict[str, str] | None = None) -> Answer:
        return self.call("POST", target, body if isinstance(body, bytes) else json.dumps(body).encode(), headers)

    def ids(self) -> set[str]:
        """Every task there is."""
        answer = self.call("GET", f"{TASKS}?limit=1000")
        assert answer.status == 200, answer
        return {task["id"] for task in answer.data["tasks"]}

    def alive(self) -> None:
        assert self.process.poll() is None
        assert self.call("GET", "/healthz").status == 200

    def said(self) -> str:
        return self.log.read_text()

    def memory(self) -> int:
        """Kilobytes that it holds now."""
        [found] = re.findall(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{self.process.pid}/status").read_text())
        return int(found)


def received(connection: socket.socket) -> bytes:
    """Everything up to the end; a reset ends it, too."""
    found = b""
    try:
        while part := connection.recv(65_536):
            found += part
    except ConnectionResetError:
        pass
    return found


def upgraded(url: str) -> str:
    """A store that can be used."""
    schema(url).upgrade()
    return url


@contextmanager
def serving(url: str, folder: Path, key: str | None = None) -> Iterator[Server]:
    """`taskmill api` over a store; its log is clean when it ends."""
    log = folder / "server.log"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TASKMILL_")}
    with (
        log.open("w") as out,
        subprocess.Popen([*COMMAND, "api", "--port", "0", "--no-grpc", "--url", url], stderr=out, cwd=folder, env=environment) as process,
    ):
        try:
            yield Server(_port(process, log), process, log, key)
            assert process.poll() is None
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(PATIENCE)
    said = log.read_text()
    assert "Traceback" not in said, said
    assert " ERROR " not in said, said


def _port(process: subprocess.Popen[bytes], log: Path) -> int:
    while process.poll() is None:
        if found := _AT.search(log.read_text()):
            return int(found[1])
        time.sleep(0.02)
    raise AssertionError(log.read_text())


def problem(answer: Answer, status: int, code: str | None = None, field: str | None = None) -> dict[str, Any]:
    """That it is a refusal as every one should be: it says what, where and what to do, and nothing about the program."""
    assert answer.status == status, answer
    assert answer.headers["content-type"] == "application/problem+json"
    data: dict[str, Any] = answer.data
    assert data["status"] == status
    assert data["type"] == f"urn:taskmill:problem:{data['code']}"
    assert data["title"]
    assert data["hint"]
    assert data["request_id"] == answer.headers["x-request-id"]
    assert "Traceback" not in answer.body.decode()
    assert "/src/" not in answer.body.decode()
    assert len(answer.body) < 2_000
    assert code is None or data["code"] == code, data
    assert field is None or data.get("field") == field, data
    return data
