"""The tasks that the tour submits, what each is there to show, and how each should end."""

from __future__ import annotations

from typing import Any, NamedTuple

from taskmill import Handle, State
from taskmill.engine import Filter
from tour.app import app, book, chapter, charge, count_primes, encode_video, heartbeat, refund, send_sms, welcome

LOOK_EVERY = "200ms"


class Sample(NamedTuple):
    """A task, and the state it is meant to end in."""

    kind: str
    handle: Handle[Any]
    ends: State = State.COMPLETED


async def submit() -> list[Sample]:
    """One or a few of every kind."""
    once = welcome.options(idempotency_key="welcome-ada")
    samples = [
        Sample("plain", await welcome.submit("Grace")),
        Sample("idempotent", await once.submit("Ada")),
        Sample("the same again", await once.submit("Ada")),
        Sample("delayed", await welcome.options(delay="4s").submit("Linus")),
        Sample("retried", await charge.submit(7)),
        Sample("dead", await refund.submit(8), State.DEAD),
        Sample("cancelled", await encode_video.submit(60), State.CANCELLED),
        Sample("isolated", await count_primes.submit(100_000)),
    ]
    samples += [Sample("limited", handle) for handle in await app.submit_many(send_sms.call(number) for number in range(1, 9))]
    chapters = await app.submit_many(chapter.call(number) for number in range(1, 5))
    samples += [Sample("child", handle) for handle in chapters]
    samples.append(Sample("parent", await book.options(after=chapters).submit()))
    return samples


async def cancel_soon(samples: list[Sample]) -> None:
    """Whatever should end cancelled is cancelled three seconds after it began; to wait for its end is a way to pass the time."""
    for sample in samples:
        if sample.ends is State.CANCELLED:
            while await sample.handle.status() is not State.RUNNING:
                await sample.handle.wait(LOOK_EVERY)
            await sample.handle.wait("3s")
            await sample.handle.cancel()


async def all_ended(samples: list[Sample]) -> list[str]:
    """Waits for every sample and one task of the schedule; says which ended otherwise than meant."""
    events = await app.operations.events()
    wrong = []
    for sample in samples:
        state = await sample.handle.wait()
        if state is not sample.ends:
            wrong.append(f"{sample.kind}: task {sample.handle.id} is {state}, not {sample.ends}")
    fired = Filter(types=frozenset({heartbeat.name}), states=frozenset({State.COMPLETED}))
    while not (await app.operations.list(fired, n=1)).tasks:
        await anext(events)
    await events.aclose()
    return wrong
