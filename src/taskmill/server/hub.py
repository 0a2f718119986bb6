"""One stream of the store's events for all who listen at this server.

    engine.events() ──▶ Hub ──▶ Group (all who want the same and may see the same) ──▶ Subscription ──▶ a connection

The stream is opened for the first listener that wants more than what is measured here, and closed behind the last: meanwhile engines keep no events. Listeners
with the same filter and the same rights are a group; an event is matched once for a group and written once for all groups of a form, so a thousand clients cost
a thousand writes and little more. Events go out together, as often as can be without taking more than a small part of the loop's time from those who submit.

What a listener does not read stays in its own buffer, bounded; at its end the listener is dropped, and nobody waits for it. Where anything was missed, be it by
the store's ring, by an outage or because there was more than could be passed on, every listener concerned gets `resync`.

Who may listen is asked again all the time: events go out only on news of the keys that is fresh.

Whoever comes back says what it heard last, and hears what followed, if the ring still has it; else `resync`. So that the only listener can come back too, the
stream stays open for some seconds behind the last.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Collection, Coroutine, Iterable
from typing import Any

import msgspec

from taskmill.clock import Clock, SystemClock
from taskmill.engine import Stream
from taskmill.errors import InvalidInput, NotFound, StoreError, TaskmillError
from taskmill.events import Event, Kind
from taskmill.operations import Operations
from taskmill.server.access import STALE, Caller, Forbidden, Keys, Scope
from taskmill.server.measures import measured
from taskmill.server.news import Form, News, how_many, news_of, of_worker, resync
from taskmill.server.ring import Ring
from taskmill.server.subscription import MOST_BYTES, Ended, Group, Subscription
from taskmill.server.wanted import Wanted
from taskmill.task import Task

__all__ = ["Ended", "Hub", "Subscription"]

log = logging.getLogger("taskmill")

MOST_SUBSCRIPTIONS = 100
"""Filters of one listener."""
SHARE = 15
"""Writing to listeners takes at most one part of so many and one of the loop's time …"""
LONGEST = 0.06
"""… unless that made events wait for longer than this many seconds."""
CHECK = 2.0
"""Seconds between two looks at the keys."""
MEASURE = 5.0
"""Seconds between two events of queues and of the system."""
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0
"""Seconds before a store that is away is asked again."""
REST = 0.02
"""Seconds in which events may come before they are looked for again."""
SLICE = 100
"""Events read before others get their turn."""
LINGER = 5.0
"""Seconds for which the stream stays open behind the last listener."""


class Hub:
    """The listeners of one server process, and the stream they share."""

    def __init__(
        self,
        operations: Operations,
        keys: Keys,
        *,
        clock: Clock | None = None,
        check: float = CHECK,
        measure: float = MEASURE,
        linger: float = LINGER,
    ) -> None:
        self._operations = operations
        self._keys = keys
        self._clock = clock or SystemClock()
        self._every = {"check": check, "measure": measure}
        self._linger = linger
        self._groups: dict[tuple[str | None, bool, Form, frozenset[Wanted]], Group] = {}
        self._index: dict[tuple[str, object], dict[Group, None]] = {}
        self._changed: dict[Group, None] = {}
        self._opening = asyncio.Lock()
        self._listened_to = False
        """Whether the store's events are heard."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._by_the_way: set[asyncio.Task[None]] = set()
        self._listeners = 0
        self._draining = False
        self._checked_at: int | None = None
        self._ring = Ring()
        self._sent = 0
        """The number of the last event that everybody was sent who is to hear it."""
        self._timer: asyncio.Handle | None = None
        self._closing: asyncio.Handle | None = None
        self._not_before = 0.0

    @property
    def listeners(self) -> int:
        return self._listeners

    @property
    def place(self) -> str:
        """Where the stream is: whoever has read all that it was sent has missed nothing up to here."""
        return self._ring.place(self._sent)

    # Listeners come and go

    async def subscribe(self, caller: Caller, wanted: Collection[Wanted], form: Form = Form.JSON, *, after: str | None = None) -> Subscription:
        """Everything from the moment this answers. `after`: the last event that the listener has heard; what followed comes first, or `resync`."""
        caller.need(Scope.READ)
        if self._draining:
            raise StoreError("this server is stopping", code="draining", hint="connect again; another server answers")
        await self._check(caller, wanted)
        subscription = Subscription(self, caller, form)
        async with self._opening:
            await self._open(wanted)
            self._send()
            if after is not None:
                self._catch_up(subscription, frozenset(wanted), after)
            self._listeners += 1
            self._join(subscription, frozenset(wanted))
        return subscription

    def _catch_up(self, subscription: Subscription, wanted: frozenset[Wanted], after: str) -> None:
        """What it missed of that which it wants now and may hear now; more than half of what may wait for a listener is too much."""
        alone = Group(subscription.caller, subscription.form, wanted)
        missed = self._ring.after(after)
        told = None if missed is None else [news.written(alone.form, alone.payload) for news in missed if news.type == "resync" or alone.reads(news)]
        if told is None or sum(map(len, told)) > MOST_BYTES // 2:
            told = [resync("reconnected", self._clock.now()).numbered(self._ring.place()).written(alone.form, alone.payload)]
        for data in told:
            subscription.push(data)

    async def change(self, subscription: Subscription, wanted: frozenset[Wanted]) -> None:
        await self._check(subscription.caller, wanted - subscription.wanted)
        async with self._opening:
            if subscription.ended:
                return
            await self._open(wanted)
            self._send()
            self._part(subscription)
            self._join(subscription, wanted)

    def leave(self, subscription: Subscription) -> None:
        if self._part(subscription):
            self._listeners -= 1
            if not self._listeners:
                self._stay()
                self._closing = asyncio.get_running_loop().call_later(self._linger, lambda: self._do(self._close_if_nobody_listens()))

    def _stay(self) -> None:
        if self._closing is not None:
            self._closing.cancel()

    def drain(self) -> None:
        """Everybody is told to come back; nobody else is let in."""
        self._draining = True
        self._end_those(lambda _: True, Ended.DRAINING)

    async def close(self) -> None:
        """The stream is let go of."""
        self.drain()
        self._stay()
        await self._close_if_nobody_listens()
        if self._by_the_way:
            await asyncio.gather(*self._by_the_way, return_exceptions=True)

    async def _check(self, caller: Caller, wanted: Iterable[Wanted]) -> None:
        """A caller with a tenant asks for its own only; a task of another is as unknown to it as one that never was."""
        wanted = list(wanted)
        if len(wanted) > MOST_SUBSCRIPTIONS:
            raise InvalidInput(
                f"more than {MOST_SUBSCRIPTIONS} subscriptions", code="too_many_subscriptions", field="filter", hint="name several things in one filter"
            )
        if caller.tenant is None:
            return
        if any(one.tenants - {caller.tenant} for one in wanted):
            raise Forbidden("this key is for another tenant", code="tenant_key", field="tenant", hint="leave the tenant out: it comes from the key")
        ids = sorted(frozenset().union(*(one.tasks for one in wanted)))
        for id, found in zip(ids, await self._operations.engine.get(ids) if ids else (), strict=True):
            if not isinstance(found, Task) or found.tenant != caller.tenant:
                raise NotFound(f"there is no task {id}", field="task", hint="the task must exist, and be one of this key's tenant")

    def _join(self, subscription: Subscription, wanted: frozenset[Wanted]) -> None:
        subscription.wanted = wanted
        caller = subscription.caller
        key = (caller.tenant, caller.may(Scope.READ_PAYLOAD), subscription.form, wanted)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = Group(caller, subscription.form, wanted)
            for place in group.places():
                self._index.setdefault(place, {})[group] = None
        group.members[subscription] = None

    def _part(self, subscription: Subscription) -> bool:
        caller = subscription.caller
        key = (caller.tenant, caller.may(Scope.READ_PAYLOAD), subscription.form, subscription.wanted)
        group = self._groups.get(key)
        if group is None or subscription not in group.members:
            return False
        del group.members[subscription]
        if not group.members:
            del self._groups[key]
            self._changed.pop(group, None)
            for place in group.places():
                self._index[place].pop(group, None)
                if not self._index[place]:
                    del self._index[place]
        return True

    # The stream

    async def _open(self, wanted: Iterable[Wanted]) -> None:
        """The store is listened to for those who want its events: it keeps them while it is, and what is measured here needs none of them."""
        stream = await self._operations.events() if not self._listened_to and any(one.needs_store for one in wanted) else None
        if not self._tasks:
            self._begin()
            self._checked_at = self._clock.monotonic()  # whoever is let in was just looked up
            self._tasks = {
                asyncio.create_task(self._repeat("check", self._check_keys), name="live events: keys"),
                asyncio.create_task(self._repeat("measure", self._measure), name="live events: measures"),
            }
        if stream is not None:
            self._begin()
            self._listened_to = True
            self._tasks.add(asyncio.create_task(self._listen(stream), name="live events"))

    def _begin(self) -> None:
        self._ring.begin()
        self._sent = 0

    async def _close_if_nobody_listens(self) -> None:
        async with self._opening:
            if self._listeners:
                return
            tasks, self._tasks = self._tasks, set()
            self._listened_to = False
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)

    async def _listen(self, stream: Stream[Event]) -> None:
        """Until nobody listens. Whatever goes wrong, listeners stay: they hear `resync` when the store is heard again."""
        try:
            while True:
                try:
                    await self._read(stream)
                except TaskmillError as error:
                    log.warning("live events: the store is not heard: %s", error)
                except Exception:  # a stream that cannot be read must not end everybody's: it is begun anew
                    log.exception("live events: the stream broke")
                await _closed(stream)
                stream = await self._opened_again()
                self._begin()
                self._tell_everybody(resync("outage", self._clock.now()))
        finally:
            await _closed(stream)

    async def _read(self, stream: Stream[Event]) -> None:
        """Looks at the store's ring cost the same for one event as for a hundred, so between two of them there is time for more to come."""
        read, rested = 0, 0.0
        async for event in stream:
            self._hear(event)
            read += 1
            if time.monotonic() - rested > REST:
                await asyncio.sleep(REST)
                rested = time.monotonic()
            elif read % SLICE == 0:
                await asyncio.sleep(0)

    async def _opened_again(self) -> Stream[Event]:
        pause = FIRST_PAUSE
        while True:
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
            with contextlib.suppress(TaskmillError):
                stream = await self._operations.events()
                await self._check_keys()
                return stream

    def _hear(self, event: Event) -> None:
        if event.kind is Kind.RESYNC:
            self._tell_everybody(resync("gap", self._clock.now()))
            return
        first = self._ring.add(event, how_many(event))
        if not self._concerns_somebody(event):
            return
        for number, news in enumerate(news_of(event), first):
            self._tell(news, number)
        if event.kind is Kind.SETTING_CHANGED and event.subject.startswith("worker/"):
            self._do(self._look_at_worker(event.subject.removeprefix("worker/"), event.at))

    def _concerns_somebody(self, event: Event) -> bool:
        """Whether there may be a group for it: most events of a busy store are nobody's who listens to one queue."""
        index, data = self._index, event.data
        return (
            ("all", None) in index
            or ("queue", data.get("queue")) in index
            or ("type", data.get("type")) in index
            or ("tenant", data.get("tenant", "")) in index
            or ("task", event.subject) in index
            or event.kind is Kind.SETTING_CHANGED
        )

    def _tell_more(self, news: News) -> None:
        """What no engine tells."""
        self._tell(news, self._ring.add(news))

    def _tell(self, news: News, number: int) -> None:
        numbered = False
        for place in (("all", None), ("tenant", news.tenant), ("queue", news.queue), ("type", news.task_type), ("task", news.task)):
            for group in self._index.get(place, ()):
                if group.reads(news):
                    if not numbered:
                        news.numbered(self._ring.place(number))
                        numbered = True
                    group.add(news)
                    self._changed[group] = None
        self._send_soon()

    def _tell_everybody(self, news: News) -> None:
        news.numbered(self._ring.place(self._ring.add(news)))
        for group in self._groups.values():
            group.add(news)
            self._changed[group] = None
        self._send_soon()

    # Sending

    def _send_soon(self) -> None:
        if self._timer is None and self._changed:
            self._timer = asyncio.get_running_loop().call_later(max(0.0, self._not_before - time.monotonic()), self._send_now)

    def _send_now(self) -> None:
        self._timer = None
        began = time.monotonic()
        self._send()
        now = time.monotonic()
        self._not_before = now + min(SHARE * (now - began), LONGEST)

    def _send(self) -> None:
        if self._checked_at is None or self._clock.monotonic() - self._checked_at > STALE:
            # Nobody knows who may still listen: nothing goes out now, and later it is told as missed.
            for group in self._changed:
                group.forget()
            return
        changed, self._changed = self._changed, {}
        self._sent = self._ring.number
        for group in changed:
            group.send(self._behind)

    def _behind(self) -> News:
        return resync("behind", self._clock.now()).numbered(self._ring.place())

    # Who may listen

    async def _check_keys(self) -> None:
        now = self._clock.monotonic()
        callers = {member.caller for group in self._groups.values() for member in group.members}
        for caller in callers:
            if not await self._keys.still(caller):
                self._end_those(lambda member, caller=caller: member.caller == caller, Ended.REVOKED)  # type: ignore[misc]
        self._checked_at = now
        self._send_soon()

    def _end_those(self, which: Callable[[Subscription], bool], why: Ended) -> None:
        for group in tuple(self._groups.values()):
            for member in tuple(group.members):
                if which(member):
                    member.end(why)

    # What no engine tells

    async def _look_at_worker(self, id: str, at: int) -> None:
        """A setting of a worker is what an operator told it."""
        items = {item.name: item.value for item in await self._operations.engine.items("worker")}
        if id in items:
            command = msgspec.json.decode(items[id], type=_Command).command
            if command in {"pause", "quiet"}:
                self._tell_more(of_worker(id, command, at))
        elif any(worker.id == id for worker in await self._operations.workers()):
            self._tell_more(of_worker(id, None, at))

    async def _measure(self) -> None:
        wanted = {event for event in ("queue.depth", "system.metrics") if any(group.asks_for(event) for group in self._groups.values())}
        if wanted:
            async for news in measured(self._operations.engine, self._clock, wanted, listeners=self._listeners):
                self._tell_more(news)

    async def _repeat(self, name: str, do: Callable[[], Coroutine[Any, Any, None]]) -> None:
        while True:
            await asyncio.sleep(self._every[name])
            try:
                await do()
            except TaskmillError as error:
                log.debug("live events: %s: %s", name, error)  # the store is away; the next look may see

    def _do(self, what: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(_quietly(what))
        self._by_the_way.add(task)
        task.add_done_callback(self._by_the_way.discard)


class _Command(msgspec.Struct):
    command: str = ""


async def _quietly(what: Coroutine[Any, Any, None]) -> None:
    """What is not told for this reason is told by the next event."""
    with contextlib.suppress(TaskmillError, msgspec.DecodeError):
        await what


async def _closed(stream: Stream[Event]) -> None:
    with contextlib.suppress(TaskmillError, OSError):
        await stream.aclose()
