"""The API as a process under a supervisor (`taskmill up`): `python -m taskmill.server.process CHANNEL SOCKET SUPERVISOR`.

It exits when its supervisor is gone. Whether the workers have joined, and what they have counted, its supervisor tells when it is asked.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from itertools import count
from pathlib import Path

import msgspec

from taskmill.errors import StoreError, TaskmillError
from taskmill.server.running import grpc_of, run
from taskmill.server.service import Service
from taskmill.worker import logs
from taskmill.worker.channel import Channel, Message
from taskmill.worker.companion import Beginning
from taskmill.worker.process import under

__all__ = ["main"]

PATIENCE = 2.0


def main() -> None:
    channel_fd, socket_fd, supervisor = (int(argument) for argument in sys.argv[1:4])
    end = socket.socket(fileno=channel_fd)
    under(supervisor, end)
    import uvloop

    os._exit(uvloop.run(_serve(end, socket.socket(fileno=socket_fd))))


async def _serve(end: socket.socket, sock: socket.socket) -> int:
    channel = await Channel.open(end)
    message = await channel.hear()
    if message is None:
        return 1
    beginning = msgspec.json.decode(message.data, type=Beginning)
    settings = beginning.store.settings
    logs.configure(beginning.log_level or settings.log_level, settings.log_format)
    supervisor, stop = Supervisor(channel), asyncio.Event()
    hearing = asyncio.create_task(supervisor.hear(stop))

    def began(service: Service) -> None:
        service.supervisor = supervisor
        channel.say(Message("began", ids=(service.place.http, service.place.grpc or "")))

    grpc = grpc_of(settings, beginning.options.get("grpc_port"))
    try:
        await run(beginning.store.engine(), settings, sock, stop, base=Path(beginning.store.base), grpc=grpc, began=began)
    except TaskmillError as error:
        channel.say(Message("failed", text=str(error)))
        await channel.flush()
        return 1
    finally:
        hearing.cancel()
    return 0


class Supervisor:
    """Whoever started this process, as it can be asked."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._numbers = count(1)
        self._asked: dict[int, asyncio.Future[bytes]] = {}

    async def ask(self, question: str) -> bytes:
        """Its answer, JSON."""
        number = next(self._numbers)
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._asked[number] = answer
        self._channel.say(Message(question, number=number))
        try:
            async with asyncio.timeout(PATIENCE):
                return await answer
        except TimeoutError:
            raise StoreError("the supervisor does not answer", code="supervisor_silent", hint="its log says more") from None
        finally:
            del self._asked[number]

    async def hear(self, stop: asyncio.Event) -> None:
        """Until it says that this process is to end, or is gone."""
        while (message := await self._channel.hear()) is not None:
            if message.kind == "drain":
                stop.set()
            elif message.number in self._asked and not self._asked[message.number].done():
                self._asked[message.number].set_result(bytes(message.data))
        os._exit(1)


if __name__ == "__main__":
    main()
