"""What the tests of a worker's parts share: claimed tasks, and attempts of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from taskmill import App
from taskmill.clock import HOUR
from taskmill.engine import Claimed
from taskmill.retry import Retry
from taskmill.task import new_id
from taskmill.worker.attempt import Running

__all__ = ["claimed", "running"]


def claimed(
    type: str = "work",
    token: int = 1,
    *,
    payload: bytes = b"{}",
    priority: int = 1,
    retry: Retry | None = None,
    failures: int = 0,
    crashes: int = 0,
    timeout: int = HOUR,
    ready_at: int = 0,
    claimed_at: int = 0,
    tenant: str = "",
    headers: dict[str, str] | None = None,
    idempotency_key: str | None = None,
    suspect: bool = False,
) -> Claimed:
    return Claimed(
        id=new_id(), type=type, queue="default", payload=payload, worker="anna", token=token, attempt=1, claimed_at=claimed_at, priority=priority,
        failures=failures, crashes=crashes, max_crashes=3, version=2, created_at=0, retry=retry or Retry(), timeout=timeout, expires_at=None, tenant=tenant,
        limits=(), unwind=False, must_end=None, phase=None, headers=headers or {}, checkpoints={}, signals=(), results=(), ready_at=ready_at,
        idempotency_key=idempotency_key, suspect=suspect,
    )  # fmt: skip


def running(function: Callable[..., Any], *, payload: bytes = b"{}", isolated: bool = False, **fields: Any) -> tuple[App, Running]:
    """An attempt of this function that has begun, one second after its claim was answered."""
    app = App("sqlite://:memory:")
    declared: Any = app.task(name="work", isolated=isolated)(function)
    attempt = Running(claimed(payload=payload, **fields), declared, 1_000_000, _loop())
    attempt.started = 2_000_000
    return app, attempt


def _loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
