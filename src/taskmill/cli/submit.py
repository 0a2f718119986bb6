"""`taskmill submit`: a task by the name of its type, from any program and any language's shell."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import repeat
from typing import TYPE_CHECKING

import click
import msgspec

from taskmill.cli.ending import end_of
from taskmill.cli.filters import DURATION, INSTANT, NAME, PRIORITY, TAG
from taskmill.cli.options import as_json, did_you_mean, example, url
from taskmill.cli.output import note, print_json, progress
from taskmill.cli.payload import read_payload
from taskmill.cli.store import Place, place, place_of, run
from taskmill.engine import Status, Submitted
from taskmill.errors import InvalidInput
from taskmill.operations import Operations, submitted
from taskmill.task import NewTask, Priority, new_id
from taskmill.views import submitted_data

if TYPE_CHECKING:
    from taskmill.app import App

__all__ = ["submit"]

MOST = 1_000_000


@example(
    """taskmill submit send_welcome '{"user_id": 42}' --delay 10m""",
    "taskmill submit report @payload.json --priority high --wait --timeout 30s",
    """echo '{"user_id": 42}' | taskmill submit send_welcome -""",
)
@click.command()
@click.argument("type_name", metavar="TYPE", type=NAME)
@click.argument("payload", metavar="[JSON|@FILE|-]", required=False)
@click.option("--delay", type=DURATION, metavar="DURATION", help="Not before this has passed.")
@click.option("--run-at", type=INSTANT, metavar="TIME", help="Not before this time, RFC 3339.")
@click.option("--priority", type=PRIORITY, help="Goes before lower ones of its queue.  [default: that of the type]")
@click.option("--queue", type=NAME, help="Where it waits; for a type that no worker has registered it must be named.  [default: that of the type]")
@click.option("--idempotency-key", metavar="KEY", help="With the same key there is one task: a second submit answers with the first id.")
@click.option("--tag", "tags", type=TAG, multiple=True, metavar="NAME=VALUE", help="A tag to find it by; more than one may be given.")
@click.option("--tenant", default="", help="Whose task it is.")
@click.option("--count", type=click.IntRange(1, MOST), default=1, show_default=True, help="Submit it so many times.")
@click.option("--wait", is_flag=True, help="Wait until it has ended: exit code 0 when it completed, 1 when not.")
@click.option("--timeout", type=DURATION, metavar="DURATION", help="With --wait: no longer than this.  [default: for ever]")
@click.option("--app", "target", metavar="APP", help="An app that has the type, in a file or module: its handler judges the payload, its store is meant.")
@url
@as_json
def submit(
    url: str | None,
    target: str | None,
    type_name: str,
    payload: str | None,
    delay: int | None,
    run_at: int | None,
    priority: str | None,
    queue: str | None,
    idempotency_key: str | None,
    tags: tuple[tuple[str, str], ...],
    tenant: str,
    count: int,
    wait: bool,
    timeout: int | None,
    as_json: bool,
) -> int:
    """Submit a task by the name of its type.

    The payload is JSON as it is, from a file (@payload.json) or from stdin (-). Prints the id of the task.
    """
    _check_together(count, idempotency_key, wait, timeout, delay, run_at)
    new = NewTask(
        type=type_name,
        payload=read_payload(payload, "payload"),
        queue=queue,
        priority=None if priority is None else Priority[priority.upper()],
        run_at=run_at,
        delay=delay,
        idempotency_key=idempotency_key,
        tags=dict(tags),
        tenant=tenant,
    )
    app = _app_for(target, new) if target else None
    where = place_of(app.loaded, app.folder) if app is not None and url is None else place(url)
    return _submit(where, new, count, app, wait=wait, timeout=timeout, as_json=as_json)


def _app_for(target: str, new: NewTask) -> App:
    """The app, whose handler can take this payload."""
    from taskmill.loading import load

    app = load(target)
    if new.type not in app.types:
        hint = did_you_mean(new.type, list(app.types)) or f"it has {', '.join(sorted(app.types)[:10]) or 'no types'}"
        raise InvalidInput(f"{target} has no type {new.type!r}", code="unknown_type", field="TYPE", hint=hint)
    app.types[new.type].binding.arguments(new.payload)
    return app


def _check_together(count: int, key: str | None, wait: bool, timeout: int | None, delay: int | None, run_at: int | None) -> None:
    if count > 1 and key is not None:
        raise click.UsageError("--count and --idempotency-key are both given (one key gives one task)")
    if timeout is not None and not wait:
        raise click.UsageError("--timeout says how long to wait, and --wait is not given (add --wait)")
    if delay is not None and run_at is not None:
        raise click.UsageError("--delay and --run-at are both given (keep one)")


def _submit(where: Place, new: NewTask, count: int, app: App | None, *, wait: bool, timeout: int | None, as_json: bool) -> int:
    async def act(operations: Operations) -> int:
        answers = await (_answers(operations, new, count) if app is None else _answers_of(app, operations, new, count))
        quiet = wait and as_json
        for answer in answers:
            _tell(answer, as_json=as_json, quiet=quiet)
        return await end_of(operations, [answer.id for answer in answers], timeout, as_json=as_json) if wait else 0

    return run(where, act)


async def _answers(operations: Operations, new: NewTask, count: int) -> Sequence[Submitted]:
    try:
        if count == 1:
            return [await operations.submit(new)]
        with progress("submitted", count) as told:
            copies = (msgspec.structs.replace(new, id=new_id()) for _ in range(count))
            return [submitted(answer) for answer in await operations.submit_many(copies, progress=told)]
    except InvalidInput as error:
        if error.code != "unknown_type":
            raise
        near = did_you_mean(new.type, [known.name for known in await operations.types()])
        hint = f"{near + ' or ' if near else ''}name its queue with --queue, or start a worker that has it"
        raise InvalidInput(error.message, code=error.code, field="TYPE", hint=hint) from None


async def _answers_of(app: App, operations: Operations, new: NewTask, count: int) -> Sequence[Submitted]:
    """As the app itself submits: with what it declares of the type, which the store may not know yet."""
    app.use(operations.engine)
    call = app.types[new.type].payload_call(new.payload)
    given = {name: getattr(new, name) for name in ("queue", "priority", "run_at", "delay", "idempotency_key", "tags", "tenant")}
    given = {name: value for name, value in given.items() if value is not None}
    call = call.with_fields({**call.fields, **given})
    handles = [await app.submit_call(call)] if count == 1 else await app.submit_calls(repeat(call, count))
    await app.close()
    return [handle.submitted for handle in handles if handle.submitted is not None]


def _tell(answer: Submitted, *, as_json: bool, quiet: bool) -> None:
    if as_json and not quiet:
        print_json(submitted_data(answer))
    elif not as_json:
        click.echo(answer.id)
        sys.stdout.flush()
    if answer.status is not Status.CREATED:
        note(f"{answer.status}: {answer.id} was there before")
