"""Starting the programs of `programs.py` and hearing their words."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from pathlib import Path

__all__ = ["SOON", "hear", "started"]

SOON = 20.0
"""Seconds after which a word never comes; nothing is judged by it."""
ROOT = Path(__file__).parents[3]


@contextlib.asynccontextmanager
async def started(what: str, path: Path, *options: object) -> AsyncIterator[Process]:
    """A program that does not outlive the test."""
    command = [sys.executable, "-m", "tests.engines.sqlite.programs", what, str(path), *map(str, options)]
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdin=PIPE, stdout=PIPE)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def hear(process: Process) -> list[str]:
    """Its next line, in words."""
    assert process.stdout is not None
    async with asyncio.timeout(SOON):
        return (await process.stdout.readline()).decode().split()
