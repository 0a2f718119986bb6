"""The audit log: who changed what, in a file that is only ever appended to.

Each deed has two lines, one before it is tried and one with what came of it, so that none is missing however the process ends between them. A line is on
the disk before the deed begins. Where it cannot be written, nothing is changed: the caller is told that the store cannot be administered now.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from pathlib import Path
from types import MappingProxyType

import msgspec

from taskmill.clock import Clock, rfc3339
from taskmill.config import MEMORY, Settings, engine_kind, sqlite_path
from taskmill.errors import StoreError, TaskmillError

__all__ = ["REQUEST", "Audit", "Detail", "Line", "path_of"]

Detail = str | int | bool | None

REQUEST: ContextVar[str] = ContextVar("request", default="")
"""The id of the request that is answered here, where it has one."""


def path_of(settings: Settings, base: Path) -> Path:
    """Where the settings put it: beside a store that is a file, else from `base` on, where relative paths start."""
    url = settings.url.reveal()
    file = sqlite_path(url, base) if engine_kind(url) == "sqlite" else MEMORY
    return (base if file == MEMORY else file.parent) / settings.audit_log


class Line(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line. `outcome` is `asked` before the deed, then `done` or the code of the error that refused it."""

    at: str
    outcome: str
    action: str
    target: str
    key: str = ""
    """The id of the caller's key; empty for one who needed none, or for the command line."""
    tenant: str | None = None
    request: str = ""
    details: Mapping[str, Detail] | None = None


class Audit:
    """Appends to one file; processes may share it, a line is written in one piece."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self.path = path
        self._clock = clock

    @asynccontextmanager
    async def deed(
        self, action: str, target: str, *, key: str = "", tenant: str | None = None, details: Mapping[str, Detail] = MappingProxyType({})
    ) -> AsyncIterator[None]:
        """What happens inside is noted before and after."""

        async def note(outcome: str) -> None:
            at, request = rfc3339(self._clock.now()), REQUEST.get()
            line = Line(at=at, outcome=outcome, action=action, target=target, key=key, tenant=tenant, request=request, details=details or None)
            await asyncio.to_thread(self._append, msgspec.json.encode(line) + b"\n")

        await note("asked")
        try:
            yield
        except BaseException as error:
            await note(error.code if isinstance(error, TaskmillError) else type(error).__name__)
            raise
        await note("done")

    def _append(self, line: bytes) -> None:
        try:
            fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.write(fd, line)
                os.fsync(fd)
            finally:
                os.close(fd)
        except OSError as error:
            raise StoreError(
                f"the audit log cannot be written: {error.strerror}", code="audit_unavailable", hint=f"make room and allow writing to {self.path}"
            ) from error
