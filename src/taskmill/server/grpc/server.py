"""The gRPC port: all services, reflection and health, on one event loop.

Requests come as bytes and are read behind the gate, so that what is no message is refused like everything else. A port that somebody has is not shared with
them, though gRPC would: half of the calls would reach the wrong server.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from google.protobuf import message_factory
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from grpc_health.v1 import health_pb2_grpc
from grpc_health.v1.health import SERVICE_NAME as HEALTH
from grpc_reflection.v1alpha import reflection

from taskmill.errors import InvalidInput, TaskmillError
from taskmill.server.access import Keys
from taskmill.server.crew import Crew
from taskmill.server.crowd import seats
from taskmill.server.desk import Desk
from taskmill.server.grpc.gate import RPCS, Gate, Observed
from taskmill.server.grpc.health import Health
from taskmill.server.grpc.store import Store
from taskmill.server.grpc.tasks import Tasks
from taskmill.server.grpc.v1 import taskmill_pb2 as pb
from taskmill.server.grpc.workers import Workers
from taskmill.server.hub import Hub
from taskmill.server.tls import Tls
from taskmill.worker.probes import no_port

__all__ = ["MOST_BYTES", "GrpcServer"]

log = logging.getLogger("taskmill")

MOST_BYTES = 16 << 20
"""Of one message to the server; larger ones are refused with RESOURCE_EXHAUSTED."""
MOST_METADATA = 16 << 10
MOST_CALLS = 20_000
"""At once, in all; those beyond are refused with RESOURCE_EXHAUSTED."""
MOST_CALLS_OF_A_CONNECTION = 2_000
OPTIONS = (
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", MOST_BYTES),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_metadata_size", MOST_METADATA),
    ("grpc.absolute_max_metadata_size", MOST_METADATA),
    ("grpc.max_concurrent_streams", MOST_CALLS_OF_A_CONNECTION),
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.max_connection_idle_ms", 300_000),
)


class GrpcServer:
    """Made and used on one event loop. `ready`: whether calls would be answered now, for health; `observed` is told of every call."""

    def __init__(
        self,
        desk: Desk,
        crew: Crew,
        keys: Keys,
        *,
        hub: Hub | None = None,
        ready: Callable[[], Awaitable[bool]] | None = None,
        observed: Observed | None = None,
        tls: Tls | None = None,
        reflected: bool = True,
    ) -> None:
        """`reflected`: callers without a key are told which services there are."""
        self.port = 0
        """The one that is listened on, once started."""
        self._crew = crew
        self._tls = tls
        self._gate = Gate(keys, desk.quotas, observed)
        self._services: dict[str, Tasks | Store | Workers] = {"Tasks": Tasks(desk, hub, self._gate.paced), "Store": Store(desk), "Workers": Workers(crew)}
        self._reflected = reflected
        self._ready = ready or _always
        self._server: grpc.aio.Server | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen; 0 takes a free port. A port that cannot be had is told in one error."""
        if not 0 <= port <= 65_535:
            raise InvalidInput(f"{port} is not a port", code="invalid_port", field="grpc_port", hint="0 to 65535; 0 takes a free one")
        connections = (("grpc.max_allowed_incoming_connections", max(16, seats() // 4)),)
        server = grpc.aio.server(options=(*OPTIONS, *connections), maximum_concurrent_rpcs=MOST_CALLS)
        names = [service.full_name for service in _descriptors()]
        for service in _descriptors():
            server.add_generic_rpc_handlers((self._handlers(service),))
        health_pb2_grpc.add_HealthServicer_to_server(Health(names, self._ready, self._gate.stopping), server)
        if self._reflected:
            reflection.enable_server_reflection((*names, HEALTH, reflection.SERVICE_NAME), server)
        await asyncio.to_thread(_try_port, host, port)
        self.port = self._bind(server, host, port)
        await server.start()
        self._server = server
        log.info("gRPC: %s:%d%s", _shown(host), self.port, "" if self._tls is None else " (TLS)" if self._tls.client_ca is None else " (mutual TLS)")
        return self.port

    def _bind(self, server: grpc.aio.Server, host: str, port: int) -> int:
        address = f"{_shown(host)}:{port}"
        credentials = None if self._tls is None else _credentials(self._tls)
        try:
            return server.add_insecure_port(address) if credentials is None else server.add_secure_port(address, credentials)
        except RuntimeError as error:  # somebody took it since it was tried
            raise no_port(host, port, OSError(errno.EADDRINUSE, "in use")) from error

    async def stop(self, grace: float = 5.0) -> None:
        """Not ready from now on; calls that wait are answered, those under way have so many seconds."""
        self._gate.stopping.set()
        self._crew.drain()
        server, self._server = self._server, None
        if server is not None:
            await server.stop(grace)

    def _handlers(self, service: ServiceDescriptor) -> grpc.GenericRpcHandler:
        surface = self._services[service.name]
        return grpc.method_handlers_generic_handler(service.full_name, {method.name: self._handler(surface, method) for method in service.methods})

    def _handler(self, surface: Tasks | Store | Workers, method: MethodDescriptor) -> grpc.RpcMethodHandler[Any, Any]:
        rpc = RPCS[method.containing_service.name][method.name]
        run = getattr(surface, rpc.name)
        kind = message_factory.GetMessageClass(method.input_type)
        route = f"{method.containing_service.full_name}/{method.name}"
        if method.client_streaming:
            return grpc.stream_stream_rpc_method_handler(self._gate.both_streams(route, rpc, kind, run))
        if method.server_streaming:
            return grpc.unary_stream_rpc_method_handler(self._gate.server_stream(route, rpc, kind, run))
        return grpc.unary_unary_rpc_method_handler(self._gate.unary(route, rpc, kind, run))


def _descriptors() -> list[ServiceDescriptor]:
    return list(pb.DESCRIPTOR.services_by_name.values())


async def _always() -> bool:
    return True


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _try_port(host: str, port: int) -> None:
    """gRPC says that it cannot; the system says why."""
    try:
        for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE):
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                probe.bind(address)
    except (OSError, UnicodeError) as error:
        raise no_port(host, port, error) from error


def _credentials(tls: Tls) -> grpc.ServerCredentials:
    tls.context()  # judged here, where there is a message for people
    try:
        ca = None if tls.client_ca is None else tls.client_ca.read_bytes()
        return grpc.ssl_server_credentials([(tls.key.read_bytes(), tls.cert.read_bytes())], root_certificates=ca, require_client_auth=ca is not None)
    except OSError as error:
        raise TaskmillError(f"cannot read a certificate: {error.strerror}", code="unreadable_file", hint="name files that exist and may be read") from error
