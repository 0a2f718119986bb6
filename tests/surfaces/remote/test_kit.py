"""The kit passes a worker that keeps to the protocol, and names what is wrong with one that does not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from taskmill.errors import InvalidInput
from taskmill.testing.workers import CHECKS, RULES, Report, conform

REFERENCE = Path(__file__).with_name("reference.py")
COMMAND = (sys.executable, str(REFERENCE))

MUTATIONS = {
    "never-beats": ("slow", {"slow", "punctual"}),
    "beats-late": ("slow", {"slow", "punctual"}),
    "beats-empty": ("slow", {"slow", "beats"}),
    "beats-ahead": ("idle", {"beats"}),
    "new-number": ("lost-claim", {"lost-claim", "numbers"}),
    "finishes-or-not": ("lost-finish", {"lost-finish", "beats"}),
    "finishes-twice": ("echo", {"finishes"}),
    "ignores-cancel": ("cancel", {"cancel"}),
    "no-timeout": ("timeout", {"timeout"}),
    "forgets": ("checkpoint", {"checkpoint"}),
    "says-nothing": ("fail", {"fail"}),
    "spins": ("idle", {"idle"}),
    "ends-on-503": ("unavailable", {"unavailable"}),
    "keeps-its-id": ("unknown", {"unknown", "sessions"}),
    "deaf": ("commands", {"commands"}),
    "leaves-at-once": ("drain", {"drain"}),
    "never-gives-up": ("revoked", {"revoked"}),
}
"""By mutation, the check that is run and what must fail; nothing else may."""


def wrong(report: Report) -> str:
    return "\n".join([*(f"{result.name}: {result.reason}" for result in report.results if not result.passed), report.output])


async def test_the_reference_passes() -> None:
    report = await conform(COMMAND)
    assert report.passed, wrong(report)
    assert [result.name for result in report.results] == [*CHECKS, *RULES]


@pytest.mark.parametrize("mutation", MUTATIONS)
async def test_what_is_wrong_is_found(mutation: str) -> None:
    check, failed = MUTATIONS[mutation]
    report = await conform((*COMMAND, mutation), only=[check], patience=12)
    assert report.failed == failed, wrong(report)
    assert all(result.reason for result in report.results if not result.passed)


async def test_a_program_that_is_no_worker() -> None:
    report = await conform((sys.executable, "-c", "print('hello')"), only=["joins"])
    [joins] = [result for result in report.results if not result.passed]
    assert "before it joined" in joins.reason
    assert "hello" in report.output


async def test_a_check_that_does_not_exist() -> None:
    with pytest.raises(InvalidInput, match="did you mean slow"):
        await conform(COMMAND, only=["slov"])


@pytest.mark.parametrize(("mutation", "code"), [("", 0), ("finishes-twice", 1)])
def test_the_command(mutation: str, code: int) -> None:
    worker = [*COMMAND, *([mutation] if mutation else [])]
    command = [sys.executable, "-m", "taskmill", "kit", "worker", "--json", "--only", "echo", "--", *worker]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ, timeout=120)
    results = {one["name"]: one for one in map(json.loads, ran.stdout.splitlines())}
    assert ran.returncode == code, ran.stderr
    assert results.keys() == {"echo", *RULES}
    assert results["echo"]["passed"]
    assert results["finishes"]["passed"] is (code == 0)


def test_the_command_for_people() -> None:
    command = [sys.executable, "-m", "taskmill", "kit", "worker", "--only", "joins", "--", sys.executable, "-c", "print('no worker')"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ, timeout=120)
    assert ran.returncode == 1
    assert "FAIL  joins" in ran.stdout
    assert "no worker" in ran.stderr
