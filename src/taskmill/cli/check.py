"""`taskmill check`: what is not as it should be, of the store and of the work in it."""

from __future__ import annotations

import click

from taskmill.cli.options import as_json, example, url
from taskmill.cli.output import clean, print_json
from taskmill.cli.store import place, run
from taskmill.engine import Finding
from taskmill.views import finding_data

__all__ = ["check"]

_COLOURS = {"error": "red", "warning": "yellow", "info": "blue"}


@example("taskmill check", "taskmill check --json")
@click.command()
@url
@as_json
def check(url: str | None, as_json: bool) -> int:
    """Say what the store cannot promise and what holds work up.

    Reads the store's own settings, looks for paused queues, tasks without a worker, schedules without an app and dead letters. Exit code
    1 when an error is among what was found.
    """
    where = place(url)
    findings = run(where, lambda operations: operations.check())
    wrong = any(finding.level == "error" for finding in findings)
    if as_json:
        print_json({"store": str(where.schema()), "ok": not wrong, "findings": [finding_data(finding) for finding in findings]})
    else:
        for finding in findings:
            _show(finding)
        click.echo(f"{where.schema()}: {len(findings)} finding{'' if len(findings) == 1 else 's'}" if findings else f"{where.schema()}: nothing to remark")
    return 1 if wrong else 0


def _show(finding: Finding) -> None:
    hint = f" ({clean(finding.hint)})" if finding.hint else ""
    click.echo(f"{click.style(finding.level, fg=_COLOURS.get(finding.level))} {finding.code}: {clean(finding.message)}{hint}")
