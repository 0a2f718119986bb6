"""What is not as it should be: the store's own findings, and those of the work in it."""

from __future__ import annotations

from taskmill.engine import Engine, Finding

__all__ = ["check"]


async def check(engine: Engine) -> tuple[Finding, ...]:
    return await engine.check()
