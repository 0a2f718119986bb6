"""What private servers have in common."""

from __future__ import annotations

import socket

__all__ = ["Missing", "free_port"]


class Missing(Exception):
    """There is no server to be had here; the message says what would help."""


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])
