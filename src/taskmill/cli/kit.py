"""`taskmill kit`: what helps those who write workers in other languages."""

from __future__ import annotations

import asyncio

import click
import msgspec

from taskmill.cli.groups import NounGroup
from taskmill.cli.options import as_json, example
from taskmill.cli.output import print_json
from taskmill.clock import duration

__all__ = ["kit"]


@click.group(cls=NounGroup)
def kit() -> None:
    """Test workers in other languages against the protocol."""


@example("taskmill kit worker -- node build/kit.js", "taskmill kit worker --only slow --only drain -- ./worker")
@kit.command()
@click.argument("command", metavar="-- COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option("--only", metavar="CHECK", multiple=True, help="This check alone; may be given several times.")
@click.option("--lease", default="3s", show_default=True, help="The lease that the worker is told to ask for; longer on a machine that is busy.")
@click.option("--parallel", type=click.IntRange(1, 32), default=4, show_default=True, help="How many checks run at once.")
@as_json
def worker(command: tuple[str, ...], only: tuple[str, ...], lease: str, parallel: int, as_json: bool) -> int:
    """Test a worker in any language against the worker protocol.

    COMMAND starts it, once for each check, with TASKMILL_SERVER_URL, TASKMILL_API_KEY, TASKMILL_QUEUES, TASKMILL_LEASE and TASKMILL_SLOTS in its
    environment. The server and its store are the kit's own. Exit code 0: every check and every rule passed.
    """
    from taskmill.testing.workers import Result, conform

    def tell(result: Result) -> None:
        if as_json:
            print_json(msgspec.to_builtins(result))
        elif result.passed:
            click.echo(f"pass  {result.name:16} {result.says}")
        else:
            click.echo(f"FAIL  {result.name:16} {result.reason}")

    report = asyncio.run(conform(command, only=only, lease=duration(lease, field="lease"), parallel=parallel, tell=tell))
    failed = sum(not result.passed for result in report.results)
    if failed and report.output:
        click.echo(f"\nThe last lines of the worker:\n{report.output}", err=True)
    if not as_json:
        click.echo(f"{len(report.results) - failed} passed, {failed} failed")
    return 1 if failed else 0
