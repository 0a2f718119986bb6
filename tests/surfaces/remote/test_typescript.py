"""The worker in TypeScript, really run: everything of the kit on SQLite, and its plain work on the other stores."""

from __future__ import annotations

import json
import re
import subprocess

import pytest

from taskmill.testing.workers import Report, conform
from tests.servers.typescript import FILES, SOURCE

PLAIN = ("joins", "echo", "fail", "fail-then-work", "checkpoint", "many", "timeout", "cancel", "lost-claim", "lost-finish", "killed", "drain")


def wrong(report: Report) -> str:
    return "\n".join([*(f"{result.name}: {result.reason}" for result in report.results if not result.passed), report.output])


async def test_it_keeps_the_whole_protocol(typescript_worker: tuple[str, ...]) -> None:
    report = await conform(typescript_worker)
    assert report.passed, wrong(report)


@pytest.mark.parametrize("store", ["postgres_url", "redis_url"])
async def test_it_works_on_every_store(request: pytest.FixtureRequest, typescript_worker: tuple[str, ...], store: str) -> None:
    report = await conform(typescript_worker, only=PLAIN, url=request.getfixturevalue(store))
    assert report.passed, wrong(report)


def test_it_needs_nothing_at_run_time_and_its_lock_names_no_registry() -> None:
    package = json.loads((SOURCE / "package.json").read_text())
    assert "dependencies" not in package
    assert set(package["devDependencies"]) == {"typescript", "@types/node"}
    lock = (SOURCE / "package-lock.json").read_text()
    assert "resolved" not in lock
    assert "://" not in lock
    assert re.findall(r'^import .* from "([^"]+)"', (SOURCE / "worker.ts").read_text(), re.MULTILINE) == []


def test_nothing_compiled_is_tracked() -> None:
    tracked = subprocess.run(["git", "ls-files", "."], cwd=SOURCE, capture_output=True, text=True, check=False)
    if tracked.returncode == 0:
        assert set(tracked.stdout.split()) <= {*FILES, "README.md"}
