"""`taskmill submit`: a task by the name of its type, from any program and any language's shell."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import repeat
from typing import TYPE_CHECKING

import click
import msgspec

from taskmill.cli.changing import many
from taskmill.cli.ending import end_of
from taskmill.cli.filters import DURATION, INSTANT, NAME, PRIORITY, TAG
from taskmill.cli.options import as_json, did_you_mean, example, url
from taskmill.cli.output import note, print_json, progress
from taskmill.cli.payload import read_payload
from taskmill.cli.store import Place, place, place_of, run
from taskmill.clock import SystemClock
from taskmill.engine import Status, Submitted
from taskmill.errors import InvalidInput
from taskmill.operations import Operations, submitted
from taskmill.task import Edge, NewTask, Priority, Unique, check_id, new_id
from taskmill.views import submitted_data

if TYPE_CHECKING:
    from taskmill.app import App

__all__ = ["submit"]

MOST = 1_000_000
BATCH = 500
ACCEPTED = frozenset({Status.CREATED, Status.DUPLICATE, Status.REPLACED})


@example(
    """taskmill submit send_welcome '{"user_id": 42}' --delay 10m""",
    "taskmill submit report --after 018f3c9e-5d7a-7b64-9d2c-0f6a1b2c3d4e --unique report-eu --expires 2h",
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
@click.option("--id", "id_", metavar="UUID", help="The id of the task: a second submit with it answers that it is there.  [default: a new one]")
@click.option("--after", "after", metavar="ID", multiple=True, help="Waits until this task has ended; more than one may be given.")
@click.option("--unique", metavar="KEY", help="With the same key there is one live task: a second submit answers with it.")
@click.option("--expires", type=DURATION, metavar="DURATION", help="The deadline of the whole task, from now: unless it runs at that time, it is cancelled.")
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
    id_: str | None,
    after: tuple[str, ...],
    unique: str | None,
    expires: int | None,
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
    _check_together(count, {"--idempotency-key": idempotency_key, "--id": id_, "--unique": unique}, wait, timeout, delay, run_at)
    new = NewTask(
        type=type_name,
        payload=read_payload(payload, "payload"),
        queue=queue,
        priority=None if priority is None else Priority[priority.upper()],
        run_at=run_at,
        delay=delay,
        idempotency_key=idempotency_key,
        id=new_id() if id_ is None else check_id(id_, "--id"),
        edges=tuple(Edge(check_id(each, "--after")) for each in dict.fromkeys(after)),
        unique=None if unique is None else Unique(unique),
        expires_at=None if expires is None else SystemClock().now() + expires,
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


def _check_together(count: int, single: Mapping[str, str | None], wait: bool, timeout: int | None, delay: int | None, run_at: int | None) -> None:
    for option, value in single.items():
        if count > 1 and value is not None:
            raise click.UsageError(f"--count and {option} are both given (one key gives one task)")
    if timeout is not None and not wait:
        raise click.UsageError("--timeout says how long to wait, and --wait is not given (add --wait)")
    if delay is not None and run_at is not None:
        raise click.UsageError("--delay and --run-at are both given (keep one)")


def _submit(where: Place, new: NewTask, count: int, app: App | None, *, wait: bool, timeout: int | None, as_json: bool) -> int:
    async def act(operations: Operations) -> int:
        send = _sender(operations, new, count) if app is None else _sender_of(app, operations, new, count)
        stored: list[Submitted] = []
        try:
            await _send(send, count, stored)
        finally:  # also when it was interrupted, or one was refused: who asked must know which are there
            for answer in stored:
                _tell(answer, as_json=as_json, quiet=wait and as_json)
            if 0 < len(stored) < count:
                note(f"{len(stored):,} of {many(count)} were stored, their ids stand above; go on with --count {count - len(stored)}")
            if app is not None:
                await app.close()
        return await end_of(operations, [answer.id for answer in stored], timeout, as_json=as_json) if wait else 0

    return run(where, act)


Send = Callable[[int], Awaitable[Sequence[Submitted]]]


async def _send(send: Send, count: int, stored: list[Submitted]) -> None:
    """Batch after batch. Ctrl-C waits for the one under way, so that what is told is what was stored; a second one does not."""
    with progress("submitted", count) as told:
        while len(stored) < count:
            sending = asyncio.ensure_future(send(min(BATCH, count - len(stored))))
            try:
                answers = await asyncio.shield(sending)
            except asyncio.CancelledError:
                stored += [answer for answer in await sending if answer.status in ACCEPTED]
                raise
            stored += [answer for answer in answers if answer.status in ACCEPTED]
            for answer in answers:
                submitted(answer)
            if told is not None:
                told(len(stored))


def _sender(operations: Operations, new: NewTask, count: int) -> Send:
    async def send(n: int) -> Sequence[Submitted]:
        try:
            if count == 1:
                return [await operations.submit(new)]
            return await operations.submit_many(msgspec.structs.replace(new, id=new_id()) for _ in range(n))
        except InvalidInput as error:
            if error.code != "unknown_type":
                raise
            near = did_you_mean(new.type, [known.name for known in await operations.types()])
            hint = f"{near + ' or ' if near else ''}name its queue with --queue, or start a worker that has it"
            raise InvalidInput(error.message, code=error.code, field="TYPE", hint=hint) from None

    return send


FIELDS = ("queue", "priority", "run_at", "delay", "idempotency_key", "edges", "unique", "expires_at", "tags", "tenant")


def _sender_of(app: App, operations: Operations, new: NewTask, count: int) -> Send:
    """As the app itself submits: with what it declares of the type, which the store may not know yet."""
    app.use(operations.engine)
    call = app.types[new.type].payload_call(new.payload)
    given = {name: getattr(new, name) for name in FIELDS if getattr(new, name) is not None}
    call = call.with_fields({**call.fields, **given, **({"id": new.id} if count == 1 else {})})

    async def send(n: int) -> Sequence[Submitted]:
        handles = [await app.submit_call(call)] if count == 1 else await app.submit_calls(repeat(call, n))
        return [handle.submitted for handle in handles if handle.submitted is not None]

    return send


def _tell(answer: Submitted, *, as_json: bool, quiet: bool) -> None:
    if as_json and not quiet:
        print_json(submitted_data(answer))
    elif not as_json:
        click.echo(answer.id)
        sys.stdout.flush()
    if answer.status is not Status.CREATED:
        note(f"{answer.status}: {answer.id} was there before")
