"""The checks: each puts a worker into one situation and looks at what becomes of its tasks."""

from __future__ import annotations

import signal
import time
from collections.abc import Awaitable, Callable

from taskmill import codec
from taskmill.clock import MILLISECOND
from taskmill.operations import Operations
from taskmill.task import Task
from taskmill.testing.workers.proxy import Exchange
from taskmill.testing.workers.report import Broken
from taskmill.testing.workers.stage import Scene

__all__ = ["ALONE", "CHECKS", "TYPES", "Check"]

Check = Callable[[Scene], Awaitable[None]]

TYPES = ("kit.echo", "kit.fail", "kit.fail-then-work", "kit.slow", "kit.cancel", "kit.checkpoint")
"""What a worker must know to be tested."""

PAYLOADS: tuple[object, ...] = (None, True, -7, 0.25, "", "ünïcödé ✓ \U0001f600", [], {}, {"a": {"b": [1, None, "c"]}}, [[["deep"]]], "x" * 20_000)
IDLE_CLAIMS = 12
"""Claims in two idle leases: whoever asks more often does not wait."""
DEAF = 9
"""Seconds in which a key that was revoked is refused everywhere, and then some."""


# Plain tasks


async def joins(scene: Scene) -> None:
    """It joins with the types it knows and the queues it was told, and then claims."""
    await scene.start()
    join = next(one for one in scene.proxy.exchanges if one.verb == "join" and one.good)
    missing = set(TYPES) - set(join.body["types"])
    _need(not missing, f"it joins without the types {', '.join(sorted(missing))}")
    _need(join.body.get("queues") == [scene.queue], f"it joins for the queues {join.body.get('queues')}, and TASKMILL_QUEUES says {scene.queue}")
    # One that was cut off on a busy machine has no status; the worker sends it again.
    asked = scene.proxy.until(lambda one: one.verb in {"claim", "beat"} and one.status is not None)
    claim: Exchange = await scene.within(asked, "it neither claims nor beats")
    _need(claim.status == 200, f"its first {claim.verb} is answered {claim.status}: {claim.answer}")


async def echo(scene: Scene) -> None:
    """Tasks of every payload complete, each in one attempt, with the result that its handler returned."""
    await scene.start()
    ids = [await scene.submit("kit.echo", payload) for payload in PAYLOADS]
    for payload, task in zip(PAYLOADS, await scene.ended(*ids), strict=True):
        _completed(task)
        got = codec.decode(task.result or b"null")
        _need(got == payload and type(got) is type(payload), f"of the payload {payload!r:.60} it made {got!r:.60}")


async def fail(scene: Scene) -> None:
    """An attempt that fails is told as failed, with a code and a message, and the policy of the task decides what comes of it."""
    await scene.start()
    id = await scene.submit("kit.fail", {"message": "as asked"}, retries=1)
    [task] = await scene.ended(id)
    _need(task.state == "dead", f"after two failures of two that were allowed the task is {task.state}")
    _need(task.failures == 2, f"the task counts {task.failures} failures, not 2")
    error = task.error
    _need(error is not None and error.code != "" and "as asked" in error.message, f"the error should say what the handler said, it is {error}")


async def fail_then_work(scene: Scene) -> None:
    """It runs what failed again, and tells its handler which attempt it is."""
    await scene.start()
    [task] = await scene.ended(await scene.submit("kit.fail-then-work", retries=3))
    _completed(task, attempts=2)
    _need(codec.decode(task.result or b"null") == {"attempt": 2}, f"the second attempt returned {task.result!r:.60}")


async def checkpoint(scene: Scene) -> None:
    """What it saved in one attempt the next one finds, and goes on from there."""
    await scene.start()
    [task] = await scene.ended(await scene.submit("kit.checkpoint", {"value": [1, "two"]}, retries=3))
    _completed(task, attempts=2)
    _need(
        codec.decode(task.result or b"null") == {"resumed": [1, "two"]}, f"the second attempt should find what the first saved, it returned {task.result!r:.60}"
    )


async def many(scene: Scene) -> None:
    """It runs many tasks, several at a time, each once."""
    await scene.start()
    ids = [await scene.submit("kit.echo", n) for n in range(100)]
    for task in await scene.ended(*ids, more=scene.patience):
        _completed(task)


# Time


async def idle(scene: Scene) -> None:
    """With nothing to do it waits at the server instead of asking all the time, and goes on beating."""
    await scene.start()
    before = len(scene.proxy.exchanges)
    await scene.pass_leases(2)
    seen = [one.verb for one in scene.proxy.exchanges[before:]]
    _need(seen.count("claim") <= IDLE_CLAIMS, f"it asked {seen.count('claim')} times in two idle leases: claim with a `wait` of some seconds")
    _need(seen.count("beat") >= 2, f"it beat {seen.count('beat')} times in two idle leases")


async def slow(scene: Scene) -> None:
    """A task that takes several leases is kept by beats, and runs once."""
    await scene.start()
    id = await scene.submit("kit.slow", {"seconds": 3 * scene.lease})
    claim = await scene.running(id)
    [token] = [task["token"] for task in claim.tasks if task["id"] == id]
    [task] = await scene.ended(id, more=3 * scene.lease)
    beats = [one for one in scene.proxy.exchanges if one.verb == "beat" and token in (one.body or {}).get("leases", [])]
    _need(len(beats) >= 3, f"in three leases {len(beats)} beats named the token of the task")
    _completed(task)


async def timeout(scene: Scene) -> None:
    """A task that is over its time is ended by the worker, as failed with the code timeout."""
    await scene.start()
    [task] = await scene.ended(await scene.submit("kit.slow", {"seconds": 120}, timeout=500 * MILLISECOND))
    _need(task.state == "dead", f"a task over its time is {task.state}")
    _need(task.error is not None and task.error.code == "timeout", f"its error is {task.error}, and the code should be timeout")
    told = _endings(scene, task.id)
    _need(told == {"failed"}, f"it told the end of a task over its time as {told or 'nothing, and the server ended it'}")


def _endings(scene: Scene, id: str) -> set[object]:
    """What the worker told of the task."""
    finishes = [one for one in scene.proxy.exchanges if one.verb == "finish"]
    return {outcome.get("ending") for one in finishes for outcome in one.items("outcomes") if outcome.get("task") == id}


async def cancel(scene: Scene) -> None:
    """A task that is cancelled while it runs is stopped when a beat says so, and told as cancelled."""
    await scene.start()
    id = await scene.submit("kit.cancel", {"seconds": 120})
    await scene.running(id)
    await scene.cancel(id)
    [task] = await scene.ended(id)
    _need(task.state == "cancelled", f"a task that was cancelled is {task.state}")
    _need(_endings(scene, id) == {"cancelled"}, f"it told the end of a cancelled task as {_endings(scene, id) or 'nothing at all'}")


# Answers that are lost


async def lost_claim(scene: Scene) -> None:
    """A claim whose answer did not arrive is repeated under the same number, and nothing runs twice."""
    await scene.start()
    lost = scene.proxy.lose(lambda one: one.verb == "claim" and bool(one.tasks))
    id = await scene.submit("kit.echo", 1)
    exchange: Exchange = await scene.within(lost, "it does not claim the task")
    after = scene.proxy.exchanges.index(exchange) + 1
    repeated: Exchange = await scene.within(scene.proxy.until(lambda one: one.verb == "claim" and one.status is not None, after), "it does not claim again")
    number, again = exchange.body["request"], repeated.body["request"]
    _need(number == again, f"the claim {number} was not answered, and the next one has the number {again}: repeat it under the same")
    [task] = await scene.ended(id)
    _completed(task)


async def lost_finish(scene: Scene) -> None:
    """A finish whose answer did not arrive is repeated as it was."""
    await scene.start()
    lost = scene.proxy.lose(lambda one: one.verb == "finish")
    id = await scene.submit("kit.echo", 1)
    exchange: Exchange = await scene.within(lost, "it does not finish the task")
    after = scene.proxy.exchanges.index(exchange) + 1
    repeated = scene.proxy.until(lambda one: one.verb == "finish" and one.good, after)
    found: Exchange = await scene.within(repeated, "a finish that was not answered is not repeated")
    first, second = exchange.items("outcomes"), found.items("outcomes")
    _need(all(outcome in second for outcome in first), "the finish that was not answered is repeated with something else in it")
    _completed((await scene.ended(id))[0])


async def unavailable(scene: Scene) -> None:
    """Answers 503 are waited out, for every message."""
    process = await scene.start()
    for verb in ("claim", "beat", "finish"):
        scene.proxy.refuse(verb, 2)
    [task] = await scene.ended(await scene.submit("kit.echo", 1), more=scene.patience)
    _completed(task)
    _need(process.alive, "it ended because the server was away for a moment")


async def restart(scene: Scene) -> None:
    """The server is killed and comes back: the worker goes on, and what it ran meanwhile is told."""
    scene.disturbed = True
    process = await scene.start()
    id = await scene.submit("kit.slow", {"seconds": scene.lease})
    await scene.running(id)
    await scene.stage.server.kill()
    await scene.stage.server.start()
    [slow, task] = await scene.ended(id, await scene.submit("kit.echo", 2), more=scene.patience)
    _need(slow.state == task.state == "completed", f"after the server came back its tasks are {slow.state} and {task.state}")
    _need(process.alive, "it ended because the server was away for a moment")


# Workers that are lost


async def killed(scene: Scene) -> None:
    """A worker that is killed loses what it held; a new one runs it again, under an id of its own."""
    scene.disturbed = True
    process = await scene.start()
    id = await scene.submit("kit.slow", {"seconds": 1})
    await scene.running(id)
    first = scene.worker
    process.signal(signal.SIGKILL)
    await process.ended()
    await scene.start()
    _need(scene.worker != first, "the new process goes on under the id of the old one: join anew")
    [task] = await scene.ended(id, more=scene.patience)
    _completed(task, attempts=2)


async def paused(scene: Scene) -> None:
    """A worker that stood still past its lease has lost its tasks: what it tells late does not count, and it begins anew."""
    scene.disturbed = True
    process = await scene.start()
    id = await scene.submit("kit.slow", {"seconds": 1})
    await scene.running(id)
    first = scene.worker
    process.signal(signal.SIGSTOP)
    other = await scene.start()
    [task] = await scene.ended(id, more=scene.patience)
    before = len(scene.proxy.exchanges)
    process.signal(signal.SIGCONT)
    joined: Exchange = await scene.within(scene.proxy.until(lambda one: one.verb == "join" and one.good, before), "it does not join again after it was lost")
    _need(joined.worker != first, "it goes on under its old id")
    other.signal(signal.SIGKILL)
    await other.ended()
    _completed((await scene.ended(await scene.submit("kit.echo", 3), more=scene.patience))[0], attempts=None)
    task = await scene.task(id)
    _completed(task, attempts=2)


async def unknown(scene: Scene) -> None:
    """A worker that the store no longer knows joins again, and goes on."""
    await scene.start()
    first, before = scene.worker, len(scene.proxy.exchanges)
    await scene.engine.leave(first)
    joined: Exchange = await scene.within(scene.proxy.until(lambda one: one.verb == "join" and one.good, before), "it is unknown and does not join again")
    _need(joined.worker != first, "it goes on under its old id")
    _completed((await scene.ended(await scene.submit("kit.echo", 4)))[0])


# Operators


async def commands(scene: Scene) -> None:
    """Told to pause it claims nothing; told nothing any more it goes on; told to stop it ends."""
    process = await scene.start()
    operations = Operations(scene.engine)
    worker = scene.worker
    await operations.command_worker(worker, "pause")
    told = scene.proxy.until(lambda one: one.verb == "beat" and one.good and one.answer["commands"] == ["pause"])
    await scene.within(told, "it does not beat")
    id = await scene.submit("kit.echo", 5)
    await scene.pass_leases(1.5)
    before = len(scene.proxy.exchanges)
    await scene.pass_leases(0.5)
    _need(not any(one.verb == "claim" for one in scene.proxy.exchanges[before:]), "it was told to pause and goes on claiming")
    await operations.command_worker(worker, None)
    [_] = await scene.ended(id)
    await operations.command_worker(worker, "stop")
    code = await scene.within(process.ended(), "it was told to stop and does not end")
    _need(code == 0, f"it was told to stop and ended with the code {code}")


async def drain(scene: Scene) -> None:
    """On SIGTERM it claims no more, ends what it runs, leaves, and exits with 0."""
    process = await scene.start()
    id = await scene.submit("kit.slow", {"seconds": 2.5})
    await scene.running(id)
    process.signal(signal.SIGTERM)
    told = time.monotonic()
    code = await scene.within(process.ended(), "after SIGTERM it does not end")
    _need(code == 0, f"after SIGTERM it ended with the code {code}")
    task = await scene.task(id)
    _need(task.state in {"completed", "pending"}, f"it left a task behind that is {task.state}: finish it, or release it")
    left = [one for one in scene.proxy.exchanges if one.verb == "leave" and one.status == 200]
    _need(bool(left), "it ended without leaving")
    late = [one for one in scene.proxy.exchanges if one.verb == "claim" and one.began > told + 1]
    _need(not late, "after SIGTERM it goes on claiming")


async def revoked(scene: Scene) -> None:
    """A key that is not valid any more is no reason to try for ever: it ends, and says so by its exit code."""
    process = await scene.start()
    await scene.revoke()
    code = await scene.within(process.ended(), "its key was revoked and it does not end", DEAF + scene.lease)
    _need(code > 0, f"its key was revoked and it ended with the code {code}")


def _need(holds: bool, otherwise: str) -> None:
    if not holds:
        raise Broken(otherwise)


def _completed(task: Task, attempts: int | None = 1) -> None:
    error = f", with {task.error.code}: {task.error.message}" if task.error else ""
    _need(task.state == "completed", f"a task of type {task.type} is {task.state}{error}")
    _need(attempts is None or task.executions == attempts, f"a task of type {task.type} ran {task.executions} times, not {attempts}")


CHECKS: dict[str, Check] = {
    check.__name__.replace("_", "-"): check
    for check in (
        joins, echo, fail, fail_then_work, checkpoint, many, idle, slow, timeout, cancel, lost_claim, lost_finish, unavailable, killed, paused, unknown,
        commands, drain, revoked, restart,
    )
}  # fmt: skip
"""Every check by its name; its docstring is what it checks."""

ALONE = ("restart",)
"""They take the server away from everybody."""
