"""The least that a handler of Starlette and msgspec does for a submit: read a body, answer 202 with an id. What ours is measured beside.

python bench/http_trivial.py SOCKET
"""

from __future__ import annotations

import itertools
import socket
import sys
from typing import Any

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route


class Task(msgspec.Struct):
    type: str
    payload: Any
    queue: str | None = None


_numbers = itertools.count()
_decoder = msgspec.json.Decoder(Task)


async def submit(request: Request) -> Response:
    task = _decoder.decode(await request.body())
    return Response(msgspec.json.encode({"id": next(_numbers), "type": task.type}), 202, media_type="application/json")


app = Starlette(routes=[Route("/api/v1/tasks", submit, methods=["POST"])])

if __name__ == "__main__":
    sock = socket.socket(fileno=int(sys.argv[1]))
    uvicorn.Server(uvicorn.Config(app, http="httptools", loop="uvloop", access_log=False, log_level="error")).run(sockets=[sock])
