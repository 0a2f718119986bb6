"""Running the checks against a worker, several at a time, and judging what went over the wire."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType

from taskmill.clock import SECOND
from taskmill.errors import InvalidInput, TaskmillError
from taskmill.testing.workers.checks import ALONE, CHECKS
from taskmill.testing.workers.report import Broken, Report, Result
from taskmill.testing.workers.rules import RULES
from taskmill.testing.workers.stage import Scene, Stage, stage

__all__ = ["LEASE", "PARALLEL", "conform"]

LEASE = 3 * SECOND
PARALLEL = 4
PATIENCE = 30.0
_NOTHING: Mapping[str, str] = MappingProxyType({})


async def conform(
    command: Sequence[str],
    *,
    only: Iterable[str] = (),
    lease: int = LEASE,
    parallel: int = PARALLEL,
    patience: float = PATIENCE,
    url: str | None = None,
    env: Mapping[str, str] = _NOTHING,
    tell: Callable[[Result], None] = lambda _: None,
) -> Report:
    """Test the worker that this command starts. `only` names checks; `patience` is how many seconds it has for what it should do soon; `url` is a store
    instead of a new one; `tell` hears each result as it comes."""
    names = _chosen(only)
    with tempfile.TemporaryDirectory(prefix="taskmill-kit-") as folder:
        async with stage(command, env, Path(folder), lease, patience, names, url) as found:
            run = _Run(found, tell)
            room = asyncio.Semaphore(parallel)
            async with asyncio.TaskGroup() as together:
                for name in names:
                    if name not in ALONE:
                        together.create_task(run.check(name, room))
            for name in names:
                if name in ALONE:
                    await run.check(name, room)
            run.judge()
            order = [*CHECKS, *RULES]
            return Report(sorted(run.results, key=lambda result: order.index(result.name)), "\n".join(found.lines))


def _chosen(only: Iterable[str]) -> list[str]:
    wanted = list(only)
    for name in wanted:
        if name not in CHECKS:
            near = get_close_matches(name, CHECKS, 1)
            hint = f"did you mean {near[0]}?" if near else f"one of {', '.join(CHECKS)}"
            raise InvalidInput(f"there is no check {name[:40]!r}", code="unknown_check", field="only", hint=hint)
    return [name for name in CHECKS if not wanted or name in wanted]


class _Run:
    def __init__(self, stage: Stage, tell: Callable[[Result], None]) -> None:
        self._stage = stage
        self._tell = tell
        self._scenes: list[tuple[str, Scene]] = []
        self.results: list[Result] = []

    async def check(self, name: str, room: asyncio.Semaphore) -> None:
        check = CHECKS[name]
        async with room:
            began = time.monotonic()
            reason = ""
            async with self._stage.scene(name) as scene:
                self._scenes.append((name, scene))
                try:
                    await check(scene)
                except Broken as broken:
                    reason = str(broken)
                except TaskmillError as error:
                    reason = f"the kit could not go on: {error}"
            self._add(Result(name=name, says=_says(check), passed=not reason, reason=reason, seconds=round(time.monotonic() - began, 2)))

    def judge(self) -> None:
        """The rules, over all scenes."""
        for name, rule in RULES.items():
            found = [f"{scene}: {wrong}" for scene, at in self._scenes for wrong in rule(at.proxy.exchanges, at.lease, at.disturbed)]
            more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
            self._add(Result(name=name, says=_says(rule), passed=not found, reason=f"{found[0]}{more}" if found else ""))

    def _add(self, result: Result) -> None:
        self.results.append(result)
        self._tell(result)


def _says(function: Callable[..., object]) -> str:
    return " ".join((function.__doc__ or "").split())
