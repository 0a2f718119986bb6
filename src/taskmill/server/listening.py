"""The sockets of a server: uvicorn for HTTP and WebSocket, within bounds that a stranger cannot exceed.

Without keys a server listens on this machine alone: whoever reaches it may do everything, so it refuses to be reached from elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import uvicorn

from taskmill.clock import SECOND
from taskmill.config import is_loopback
from taskmill.errors import TaskmillError
from taskmill.server.access import list_keys
from taskmill.server.connection import Connection
from taskmill.server.crowd import CROWD, seats
from taskmill.server.service import Service
from taskmill.server.sockets import Socket
from taskmill.server.tls import Tls
from taskmill.worker.probes import no_port

__all__ = ["bound", "check_exposure", "is_loopback", "serve_http", "shown"]

log = logging.getLogger("taskmill")

FRAME_LIMIT = 65_536
HANDSHAKE = 10.0
"""Seconds for a client to get to know the server, over TLS."""


async def check_exposure(service: Service, host: str) -> None:
    """Refuse to be open to others without keys."""
    if not is_loopback(host) and not await list_keys(service.engine):
        raise TaskmillError(
            f"the store has no API key, and {host} can be reached from other machines",
            code="no_keys",
            field="host",
            hint="make one first: taskmill key create --scope admin; or listen on 127.0.0.1",
        )


def bound(host: str, port: int) -> socket.socket:
    """A socket that listens; a port that cannot be had is told in one error."""
    try:
        [(family, *_, address), *_] = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # named, or asyncio lets answers wait for the acknowledgement of their head
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(address)
            sock.listen(2_048)
            sock.setblocking(False)
        except BaseException:
            sock.close()
            raise
    except (OSError, UnicodeError) as error:
        raise no_port(host, port, error) from error
    return sock


def shown(host: str, port: int, *, tls: bool = False) -> str:
    """Where a person finds it."""
    name = "127.0.0.1" if host in {"0.0.0.0", ""} else "[::1]" if host == "::" else f"[{host}]" if ":" in host else host  # noqa: S104
    return f"http{'s' * tls}://{name}:{port}"


class _Server(uvicorn.Server):
    """Signals are the business of whoever runs it."""

    def __init__(self, config: uvicorn.Config, stop: asyncio.Event) -> None:
        super().__init__(config)
        self._stop = stop

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn does it with sockets that listen already; but for the handshake of TLS, for which it would wait a minute."""
        config, loop = self.config, asyncio.get_running_loop()

        def connection() -> asyncio.Protocol:
            made: asyncio.Protocol = config.http_protocol_class(config=config, server_state=self.server_state, app_state={})  # type: ignore[call-arg]
            return made

        patience = None if config.ssl is None else HANDSHAKE
        self.servers = [
            await loop.create_server(connection, sock=sock, ssl=config.ssl, ssl_handshake_timeout=patience, backlog=config.backlog) for sock in sockets or ()
        ]
        self.started = True

    async def main_loop(self) -> None:
        """Once a second for the date of answers, and to the end at once: uvicorn itself looks ten times a second whether it is to stop."""
        while not await self.on_tick(0):
            with suppress(TimeoutError):
                async with asyncio.timeout(1):
                    await self._stop.wait()
                    self.should_exit = True


async def serve_http(app: Any, sock: socket.socket, stop: asyncio.Event, *, grace: int, tls: Tls | None = None, of_an_address: int = 0) -> None:
    """Until told to stop; then what is under way has so long to end."""
    CROWD.most, CROWD.of_an_address = seats(), of_an_address
    config = uvicorn.Config(
        app, http=Connection, ws=Socket, ws_max_size=FRAME_LIMIT, lifespan="off", access_log=False, log_config=None, log_level="warning",
        server_header=False, proxy_headers=False, timeout_keep_alive=75, timeout_graceful_shutdown=max(1, grace // SECOND),
        ssl_context_factory=None if tls is None else lambda *_: tls.context(),
    )  # fmt: skip
    await _Server(config, stop).serve(sockets=[sock])
