"""Tests that need a server which is not there are skipped, and it is said loudly; with CI=true that is a failure."""

from __future__ import annotations

import os
from collections import Counter
from typing import NoReturn

import pytest

from tests.servers.programs import Absent

__all__ = ["Absence", "skip"]

WHAT = {
    "PostgreSQL": "tests of its engine",
    "PgBouncer": "tests behind it",
    "Redis": "tests of its engine",
    "Node.js": "tests of the worker in TypeScript",
    "promtool": "checks of alerts",
    "Go": "tests of the worker in Go",
    "curl": "sessions of the documents",
}
MIDDLE = " is not installed; "


def skip(absent: Absent) -> NoReturn:
    pytest.skip(str(absent))


class Absence:
    """Counts what was skipped for want of a server, in the process that reports to people."""

    def __init__(self) -> None:
        self._skipped: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and isinstance(report.longrepr, tuple):
            reason = report.longrepr[2].removeprefix("Skipped: ")
            if reason.partition(MIDDLE)[0] in WHAT and MIDDLE in reason:
                self._skipped[reason] += 1

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._skipped and _strict() and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for reason, count in self._skipped.items():
            name, _, remedy = reason.partition(MIDDLE)
            line = f"{name} is not installed: {count} {WHAT[name]} were skipped; {remedy}"
            terminalreporter.write_line(f"{line} (a failure, because CI=true)" if _strict() else line, red=True, bold=True)


def _strict() -> bool:
    return os.environ.get("CI", "").lower() in {"true", "1"}
