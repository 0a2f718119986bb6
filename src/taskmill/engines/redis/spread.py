"""One answer out of those of several shards."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from taskmill.clock import SECOND
from taskmill.engine import Claim, Claimed, Count, Ending, Engine, Entry, Filter, Fired, Outcome, Page, Room, Status, Target, Term
from taskmill.engines.redis import settings
from taskmill.engines.redis.finish import NEAR, Far
from taskmill.engines.redis.placement import shard_for
from taskmill.engines.redis.store import Shards, Store
from taskmill.engines.redis.submit import Batch, key_holder
from taskmill.engines.redis.target import SHARDS
from taskmill.errors import InvalidInput
from taskmill.task import TERMINAL, NewTask, State, Task

if TYPE_CHECKING:
    from taskmill.engines.redis.crossing import Crossing
    from taskmill.engines.redis.engine import RedisEngine

__all__ = ["apart", "claim", "fire", "first_ended", "last_request", "merged_page", "outbox", "outward", "seen", "summed"]

Parts = Mapping[int, tuple["RedisEngine", list[str]]]


def outward(shard: int, token: int) -> int:
    """A token as the world knows it."""
    return token * SHARDS + shard if token >= 0 else -token


def seen(shard: int, task: Task) -> Task:
    return task if task.token is None else msgspec.structs.replace(task, token=outward(shard, task.token))


# Claim: each shard an equal part first, then what is left over to those that have more. A shard is asked up to twice, under two numbers of its own.


def last_request(request: int) -> int:
    return 2 * request + 1


async def claim(parts: Parts, worker: str, request: int, room: Room) -> Claim:
    order = sorted(parts)
    order = order[request % len(order) :] + order[: request % len(order)] if order else []
    taken: list[Claimed] = []
    next_at: list[int] = []
    more, full = False, list[int]()
    for number, shards in ((2 * request, order), (last_request(request), full)):
        for place, shard in enumerate(list(shards)):
            left = _left(room, taken, len(shards) - place)
            if left.slots <= 0:
                more = True
                break
            part, queues = parts[shard]
            found = await part.claim_rest(worker, number, queues, left, room.max_bytes)
            taken += [msgspec.structs.replace(task, token=outward(shard, task.token)) for task in found.tasks]
            next_at += [] if found.next_at is None else [found.next_at]
            if len(found.tasks) >= left.slots:
                full += [shard] if number % 2 == 0 else []
            else:
                more = more or found.more
        if len(taken) >= room.slots or not full:
            break
    return Claim(tuple(taken), min(next_at) if next_at and not taken and not more else None, more or bool(full))


def _left(room: Room, taken: Sequence[Claimed], shards: int) -> Room:
    """The next one's part of what is left."""
    slots = room.slots - len(taken)
    prefetch = room.prefetch if slots >= 0 else max(0, room.prefetch + slots)
    types = dict(room.types)
    for task in taken:
        if task.type in types:
            types[task.type] -= 1
    size = room.max_bytes - sum(map(_bytes, taken))
    return Room(-(-slots // shards), {name: max(0, n) for name, n in types.items()}, prefetch // shards, max(size, 1))


def _bytes(task: Claimed) -> int:
    """What it brings along."""
    beside = sum(len(name) + len(value) for name, value in task.checkpoints.items()) + sum(len(signal.name) + len(signal.data) for signal in task.signals)
    return len(task.payload) + sum(len(name) + len(value) for name, value in task.headers.items()) + beside


# Finish


async def apart(crossing: Crossing, shards: Shards, shard: int, outcomes: list[Outcome]) -> tuple[list[Outcome], Far]:
    """What outcomes have to do with other shards."""
    named = [id for outcome in outcomes for id in outcome.tasks]
    if not named and not any(outcome.then for outcome in outcomes):
        return outcomes, NEAR
    far = Far({id: home for id, (home, _) in (await crossing.located(named)).items() if home != shard}, {})
    return [await _apart(crossing, shards, shard, outcome, far) if outcome.then else outcome for outcome in outcomes], far


async def _apart(crossing: Crossing, shards: Shards, shard: int, outcome: Outcome, far: Far) -> Outcome:
    """What follows it, if all of it belongs here; else it is started where it belongs, after the step."""
    homes = [shard_for(new, shards.settings) for new in outcome.then]
    if Batch(shards.settings, outcome.then).refused or (set(homes) == {shard} and not await crossing.settle_homes(outcome.then, shard)):
        return outcome
    far.starts[outcome.task] = msgspec.json.encode(outcome.then, enc_hook=dict).decode()
    if outcome.ending is not Ending.WAITING:
        return msgspec.structs.replace(outcome, then=())
    children = []
    for new, home in zip(outcome.then, homes, strict=True):
        child = await key_holder(shards[home], new) or new.id
        far.elsewhere[child] = home
        children.append(child)
    return msgspec.structs.replace(outcome, then=(), tasks=(*outcome.tasks, *children))


# Inspection


async def merged_page(parts: Mapping[int, RedisEngine], which: Filter, after: str | None, n: int) -> Page:
    """Newest first over all shards. The cursor says where each of them stands; one that it does not name is through."""
    at = _cursor(after) if after is not None else dict.fromkeys(parts)
    pages = {shard: await parts[shard].list(which, after=place, n=n) for shard, place in at.items() if shard in parts}
    rows = [(task.created_at, shard, number, task) for shard, page in pages.items() for number, task in enumerate(page.tasks)]
    rows.sort(key=lambda row: (-row[0], row[1], row[2]))
    shown = rows[:n]
    cursor: dict[int, str | None] = {}
    for shard, page in pages.items():
        count = sum(row[1] == shard for row in shown)
        if count == len(page.tasks):
            if page.cursor is not None:
                cursor[shard] = page.cursor
        else:
            cursor[shard] = await parts[shard].cursor_of(page.tasks[count - 1].id) if count else at[shard]
    tasks = tuple(seen(shard, task) for _, shard, _, task in shown)
    return Page(tasks, ",".join(f"{shard}:{place or ''}" for shard, place in cursor.items()) if cursor else None)


def _cursor(text: str) -> dict[int, str | None]:
    found: dict[int, str | None] = {}
    for one in text.split(","):
        shard, colon, place = one.partition(":")
        if not (colon and shard.isdecimal() and (place.isdecimal() or not place)):
            raise InvalidInput(f"{text!r:.40} is not a cursor", code="invalid_cursor", field="after", hint="pass on what the page before answered")
        found[int(shard)] = place or None
    return found


def summed(all_counts: Iterable[Sequence[Count]]) -> tuple[Count, ...]:
    """A queue with partitions is counted in several shards."""
    found: dict[tuple[Any, ...], Count] = {}
    for count in (count for counts in all_counts for count in counts):
        name = (count.queue, count.type, count.priority, count.state)
        other = found.get(name)
        if other is not None:
            ages = [at for at in (count.oldest, other.oldest) if at is not None]
            found[name] = msgspec.structs.replace(
                count, tasks=count.tasks + other.tasks, oldest=min(ages, default=None), no_worker=count.no_worker and other.no_worker
            )
        else:
            found[name] = count
    return tuple(sorted(found.values(), key=lambda count: (count.queue, count.type, count.priority, count.state)))


async def first_ended(groups: Sequence[tuple[RedisEngine, list[str]]], timeout: int) -> dict[str, State]:
    """Those that have ended, as soon as one has."""
    if len(groups) == 1:
        [(part, ids)] = groups
        return await part.wait(ids, timeout)
    ended: dict[str, State] = {}
    for part, ids in groups:
        ended |= await part.wait(ids, 0)
    if ended or timeout <= 0:
        return ended
    waits = [asyncio.create_task(part.wait(ids, timeout)) for part, ids in groups]
    try:
        async with asyncio.timeout(timeout / SECOND + 1):
            for wait in asyncio.as_completed(waits):
                if found := await wait:
                    return found
    except TimeoutError:
        pass
    finally:
        for task in waits:
            task.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
    return {}


# Under a term


async def fire(engine: Engine, first: Store, schedule: str, version: int, tasks: Sequence[NewTask], next_at: int | None, term: Term) -> Fired:
    await settings.check_fire(first, schedule, version, term)
    overlap, last = await settings.last_fired(first, schedule)
    answers = []
    for new in tasks:
        if last is not None and last != new.id and overlap != "allow" and await _lives(engine, last, new.id):
            if overlap == "skip":
                continue
            await engine.cancel([Target(last)])
        [answer] = await engine.submit([new])
        answers.append(answer)
        if answer.status is not Status.REFUSED:
            last = answer.id
    await settings.fire(first, schedule, version, (), next_at, term, made=last if tasks else None)
    return Fired(tuple(answers), version)


async def _lives(engine: Engine, last: str, new: str) -> bool:
    """Whether the one before has not ended, and the new one is not there already."""
    before, now = await engine.get([last, new])
    return isinstance(before, Task) and before.state not in TERMINAL and now is None


async def outbox(stores: Sequence[Store], kind: str, after: str, n: int, term: Term) -> tuple[Entry, ...]:
    """Those of all shards by their time. A cursor says how far each shard is read by then that has something in this answer."""
    if after and not all(part.isdecimal() for part in after.split(",")):
        raise InvalidInput(
            f"{after!r:.40} is not a cursor", code="invalid_cursor", field="after", hint="pass on the cursor of the last entry that was delivered"
        )
    delivered = {int(part) % SHARDS: int(part) // SHARDS for part in after.split(",") if part}
    rows = [(entry.at, store.number, entry) for store in stores for entry in await settings.outbox(store, kind, str(delivered.get(store.number, "")), n, term)]
    rows.sort(key=lambda row: row[:2])
    read: dict[int, str] = {}
    entries = []
    for _, shard, entry in rows[:n]:
        read[shard] = str(outward(shard, int(entry.cursor)))
        entries.append(msgspec.structs.replace(entry, cursor=",".join(read.values())))
    return tuple(entries)
