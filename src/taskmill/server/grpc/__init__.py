"""gRPC: the services of proto/taskmill/v1/taskmill.proto, a thin skin over the desk and the crew.

    wire ──▶ gate: key, scope, quota, deadline ──▶ reading ──▶ tasks, workers ──▶ desk, crew
                                                               └── writing, statuses ──▶ wire

It needs the extra `grpc`; nothing here is imported before somebody asks for the port, and `missing` says in one line what is not there.
"""

from __future__ import annotations

from importlib.util import find_spec

__all__ = ["missing"]

_NEEDED = ("google.protobuf", "google.rpc", "grpc", "grpc_health", "grpc_reflection")


def missing() -> str | None:
    """Why there is no gRPC here and the remedy; None where it can be served."""
    if all(map(_found, _NEEDED)):
        return None
    return 'gRPC is off: its libraries are not installed (pip install "taskmill[grpc]")'


def _found(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # of a parent package
        return False
